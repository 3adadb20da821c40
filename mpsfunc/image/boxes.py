"""Boxes as arguments, and as the rows that `box_sample_rules` takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a, pair
from mpsfunc.core.printing import describe

MOST = 2**24  # positions along an axis, and images, that a float32 tells apart

_SIZES = "height", "width", "rows", "cols"


def check_images(op: str, images: int, height: int, width: int) -> None:
    """So many images of lengths that a float32 counts."""
    if max(images, height, width) > MOST:
        raise ValueError(
            f"{op}: too many images, or too long ones; got (n, h, w)={describe((images, height, width))}, "
            "expected at most 2**24 of each"
        )


def bins(op: str, name: str, value: Any, channels: int) -> tuple[int, int]:
    """The size of what is made of a box."""
    size = pair(op, name, value, least=1)
    if max(size) > MOST:
        raise ValueError(f"{op}: {name} is too large; got {name}={describe(value)}, expected at most 2**24")
    checks.image_shape(op, "output shape", (1, *size, channels))
    return size


def check_boxes(
    op: str, name: str, value: Any, length: int, other: str, dtype: mx.Dtype, stream: mx.Stream, rule: str
) -> None:
    """Boxes of so many numbers, of the images' dtype or float32."""
    checks.array(op, name, value, stream=stream)
    checks.shape(op, name, value, ("r", length), f"{name} are not {rule}")
    if value.dtype not in (dtype, mx.float32):
        either = dtype if dtype == mx.float32 else f"{dtype} or mlx.core.float32"
        raise TypeError(f"{op}: {name} and {other} differ in dtype; got {name}.dtype={value.dtype}, expected {either}")


def check_indices(op: str, value: Any, count: int, of: str) -> None:
    """An integer for each of so many boxes."""
    if not is_a(value, mx.array):
        raise TypeError(
            f"{op}: box_indices is not an array; got box_indices={describe(value)}, expected an mx.array of integers"
        )
    if not mx.issubdtype(value.dtype, mx.integer):
        raise TypeError(
            f"{op}: box_indices has no integer dtype; got box_indices.dtype={value.dtype}, expected an integer dtype"
        )
    checks.shape(op, "box_indices", value, (count,), f"box_indices does not belong to {of}")


def check_state(op: str, state: Any) -> None:
    """The sizes that a state has, which may have been made by hand."""
    checks.whole(op, "state.images", state.images, 0, MOST)
    sizes = (checks.whole(op, f"state.{name}", getattr(state, name), 1, MOST) for name in _SIZES)
    height, width, rows, cols = sizes
    channels = checks.whole(op, "state.channels", state.channels)
    checks.image_shape(op, "source shape", (1, height, width, channels))
    checks.image_shape(op, "output shape", (1, rows, cols, channels))


def with_numbers(numbers: mx.array, coordinates: Iterable[mx.array], dtype: mx.Dtype) -> mx.array:
    """Rows (r, 5) of the numbers (r,) of images and of columns of coordinates, which are four together."""
    column = mx.stop_gradient(mx.expand_dims(numbers, 1).astype(launch.accumulator(dtype)))
    return mx.concatenate([column, *coordinates], axis=1)
