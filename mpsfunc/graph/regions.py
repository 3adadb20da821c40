"""Regions of images, which are the same for each image of a batch, as in MPS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import checks, params
from mpsfunc.core.arguments import entries, real
from mpsfunc.core.printing import describe
from mpsfunc.typing import CropMethodName

IntOrPair = int | Sequence[int]
Regions = Sequence[Sequence[float]]


def crop_and_resize(
    x: mx.array,
    regions: Regions,
    crop_size: IntOrPair,
    *,
    method: CropMethodName = "bilinear",
    extrapolation_value: float = 0.0,
) -> mx.array:
    """Regions (x, y, w, h) cut out of each image and resized; the crops of an image follow those of the one before."""
    how: dict[str, Any] = {"method": method, "extrapolation_value": extrapolation_value}
    return cropped(x, regions, crop_size, **how)[0]


def cropped(x: mx.array, regions: Regions, crop_size: IntOrPair, **how: Any) -> tuple[mx.array, mf.CropAndResizeState]:
    """The crops, and their state."""
    return mf.crop_and_resize_fwd(x, *boxes_of(x, regions), crop_size, **how)


def boxes_of(x: mx.array, regions: Regions) -> tuple[mx.array, mx.array]:
    """The boxes of each image, and the numbers of their images."""
    op = "crop_and_resize"
    checks.image(op, "x", x)
    corners = [(y, x, y + h, x + w) for x, y, w, h in map(_numbers, _entries(regions))]
    dtype = mx.float64 if x.dtype == mx.float64 else mx.float32
    of = mx.array([image for image in range(x.shape[0]) for _ in corners], mx.int32)
    return mx.array(corners * x.shape[0], dtype).reshape(-1, 4), of


def _entries(regions: Any) -> tuple[Any, ...]:
    given = entries(regions)
    if not given:
        raise TypeError(
            f"crop_and_resize: no list of regions; got regions={describe(regions)}, expected one (x, y, w, h) or more"
        )
    return given


def _numbers(region: Any) -> tuple[float, ...]:
    made = [real(each) for each in entries(region) or ()]
    if len(made) != 4 or any(each is None or not abs(each) <= params.LARGEST for each in made):
        raise ValueError(
            f"crop_and_resize: not a region; got an entry of regions={describe(region)}, expected numbers (x, y, w, h)"
        )
    return tuple(float(each) for each in made if each is not None)
