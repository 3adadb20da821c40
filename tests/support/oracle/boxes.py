"""Crops and regions of interest in NumPy float64: for each box matrices of what bins have of rows and of columns.

A pixel is a tent; a sample's weight of it is the tent's height where the sample lies.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Side(NamedTuple):
    """Of a box along an axis: what bins have of pixels (bins, length), the same by both ends, and which are inside."""

    value: Array
    by_begin: Array
    by_end: Array
    inside: Array


def tent(at: float, length: int) -> tuple[Array, Array]:
    """Weights of all pixels at a place on the image, and their slopes: to the right, on the last pixel to the left."""
    pixels = np.arange(length)
    weights = np.maximum(0, 1 - abs(at - pixels))
    cell = max(0, min(int(np.floor(at)), length - 2))
    slopes = (pixels == cell + 1) * 1.0 - (pixels == cell) if length > 1 else np.zeros(1)
    return weights, slopes


def crop_side(begin: float, end: float, bins: int, length: int, method: str) -> Side:
    """Normalized ends."""
    made = Side(*(np.zeros((bins, length)) for _ in range(3)), np.zeros(bins, bool))
    for i in range(bins):
        share = i / (bins - 1) if bins > 1 else 0.5
        at = ((1 - share) * begin + share * end) * (length - 1)
        if not -1e-12 <= at <= length - 1 + 1e-12:  # NaN is not, either
            continue
        at, made.inside[i] = min(max(at, 0), length - 1), True
        if method == "nearest":
            made.value[i, int(np.floor(at + 0.5))] = 1
            continue
        made.value[i], slopes = tent(at, length)
        made.by_begin[i], made.by_end[i] = slopes * (1 - share) * (length - 1), slopes * share * (length - 1)
    return made


def roi_side(begin: float, end: float, bins: int, length: int, scale: float, ratio: int, aligned: bool) -> Side:
    """Ends of a region as given."""
    made = Side(*(np.zeros((bins, length)) for _ in range(3)), np.zeros(bins, bool))
    low, high = (edge * scale - 0.5 * aligned for edge in (begin, end))
    size, moves = high - low, True
    if not aligned and size < 1:
        size, moves = 1.0, False
    if not np.isfinite(low + high):
        return made
    samples = ratio if ratio > 0 else min(65536, max(0, ceil(size / bins)))
    for i, s in np.ndindex(bins, samples):
        share = (i + (s + 0.5) / samples) / bins
        at = low + size * share
        if not -1 <= at <= length:
            continue
        made.inside[i] = True
        weights, slopes = tent(min(max(at, 0), length - 1), length)
        steep = slopes * (0 < at < length - 1) * scale / samples
        made.value[i] += weights / samples
        made.by_begin[i] += steep * (1 - share * moves)
        made.by_end[i] += steep * share * moves
    return made


def crop_sides(shape: Any, boxes: Array, size: Any, method: str = "bilinear", **_: Any) -> list[tuple[Side, Side]]:
    """Of rows and of columns, for each box."""
    rows, cols = (size, size) if isinstance(size, int) else size
    return [
        (crop_side(y1, y2, rows, shape[1], method), crop_side(x1, x2, cols, shape[2], method))
        for y1, x1, y2, x2 in boxes
    ]


def roi_sides(
    shape: Any, rois: Array, size: Any, scale: float = 1.0, ratio: int = -1, aligned: bool = False
) -> list[tuple[Side, Side]]:
    """Of rows and of columns, for each region (x1, y1, x2, y2)."""
    rows, cols = (size, size) if isinstance(size, int) else size
    how = scale, ratio, aligned
    return [
        (roi_side(y1, y2, rows, shape[1], *how), roi_side(x1, x2, cols, shape[2], *how))
        for x1, y1, x2, y2 in rois[:, -4:]
    ]


def sample(x: Array, numbers: Any, sides: list[tuple[Side, Side]], outside: float = 0.0) -> Array:
    """The bins of boxes of the images of these numbers."""
    made = []
    for number, (down, across) in zip(numbers, sides, strict=True):
        known = 0 <= number < len(x)
        image = x[int(number)] if known else np.zeros(x.shape[1:])
        there = (down.inside[:, None] & across.inside) & known
        bins = np.einsum("yh,xw,hwc->yxc", down.value, across.value, image)
        made.append(np.where(there[..., None], bins, outside))
    return np.stack(made) if made else np.zeros((0, *_sizes(sides), x.shape[3]))


def _sizes(sides: list[tuple[Side, Side]]) -> tuple[int, int]:
    return len(sides[0][0].value), len(sides[0][1].value)


def spread(dy: Array, numbers: Any, sides: list[tuple[Side, Side]], shape: Any) -> Array:
    """The gradient by the images."""
    dx = np.zeros(shape)
    for number, (down, across), pulled in zip(numbers, sides, dy, strict=True):
        if 0 <= number < shape[0]:
            dx[int(number)] += np.einsum("yh,xw,yxc->hwc", down.value, across.value, pulled)
    return dx


def slopes(dy: Array, x: Array, numbers: Any, sides: list[tuple[Side, Side]]) -> Array:
    """The gradient by y1, x1, y2 and x2 of each box."""
    made = np.zeros((len(sides), 4))
    for r, (number, (down, across)) in enumerate(zip(numbers, sides, strict=True)):
        if not 0 <= number < len(x):
            continue
        products = np.einsum("yxc,hwc->yxhw", dy[r], x[int(number)])
        pairs = (
            (down.by_begin, across.value),
            (down.value, across.by_begin),
            (down.by_end, across.value),
            (down.value, across.by_end),
        )
        made[r] = [np.einsum("yh,xw,yxhw->", rows, cols, products) for rows, cols in pairs]
    return made
