"""Samples at places that a grid tells, in NumPy float64: for each sample a row of weights along each axis.

Pixels go on beyond the image, as zeros, as the one at the border, or mirrored; each sample adds up the curves around
those near it.
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
A = -0.75
# By the distance from a pixel: up to 1, up to 2; the highest power first.
CURVES = {"bilinear": ([-1, 1],), "bicubic": ([A + 2, -(A + 3), 0, 1], [A, -5 * A, 8 * A, -4 * A])}


def curve(mode: str, distance: float, order: int) -> float:
    """A derivative of the weight of a pixel that lies so far to the left, at a kink the one to the right."""
    if mode == "nearest":
        return float(np.rint(distance) == 0) if order == 0 else 0.0
    for i, powers in enumerate(CURVES[mode]):
        inside = i <= distance < i + 1 if distance >= 0 else i < -distance <= i + 1
        if inside:
            value = float(np.polyval(np.polyder(np.array(powers, np.float64), order), abs(distance)))
            return value if distance >= 0 else (-1) ** order * value
    return 0.0


def mirrored(pixel: int, length: int, middles: bool) -> int:
    """The pixel that is seen in mirrors at the middles of the outermost pixels, or at their outer edges."""
    if middles:
        pixel %= max(1, 2 * (length - 1))
        return min(pixel, 2 * (length - 1) - pixel) if length > 1 else 0
    pixel %= 2 * length
    return min(pixel, 2 * length - 1 - pixel)


def weights(given: float, own: int, length: int, order: int, how: dict[str, Any]) -> Array:
    """What a sample has of each pixel of an axis, or a derivative of that by the grid."""
    aligned, mode, edge = how.get("align_corners", False), how.get("mode", "bilinear"), how.get("edge_mode", "zero")
    coordinates = how.get("coordinates", "normalized")
    unit, origin = 1.0, own if coordinates == "offset" else 0.0
    if coordinates == "normalized":
        unit, origin = ((length - 1) / 2 if aligned else length / 2), (length - 1) / 2
    u = origin + unit * given
    row = np.zeros(length)
    for pixel in range(floor(u) - 3, floor(u) + 5):
        seen = pixel
        if edge == "border":
            seen = min(max(pixel, 0), length - 1)
        elif edge == "reflection":
            seen = mirrored(pixel, length, aligned)
        if 0 <= seen < length:
            row[seen] += curve(mode, u - pixel, order) * unit**order
    return row


def tables(grid: Array, shape: tuple[int, ...], orders: tuple[int, int] = (0, 0), **how: Any) -> tuple[Array, Array]:
    """The weights of rows and of columns, (n, oh, ow, h) and (n, oh, ow, w), or derivatives by y and by x."""
    rows, cols = (np.zeros((*grid.shape[:3], length)) for length in shape[1:3])
    for n, y, x in np.ndindex(*grid.shape[:3]):
        rows[n, y, x] = weights(grid[n, y, x, 1], y, shape[1], orders[0], how)
        cols[n, y, x] = weights(grid[n, y, x, 0], x, shape[2], orders[1], how)
    return rows, cols


def sample(x: Array, rows: Array, cols: Array) -> Array:
    """The samples of images."""
    made: Array = np.einsum("nyxh,nyxw,nhwc->nyxc", rows, cols, x, optimize=True)
    return made


def spread(dy: Array, rows: Array, cols: Array) -> Array:
    """The gradient by the images."""
    made: Array = np.einsum("nyxh,nyxw,nyxc->nhwc", rows, cols, dy, optimize=True)
    return made


def slopes(dy: Array, x: Array, grid: Array, **how: Any) -> Array:
    """The gradient by the grid."""
    by = [(sample(x, *tables(grid, x.shape, orders, **how)) * dy).sum(-1) for orders in ((0, 1), (1, 0))]
    return np.stack(by, axis=-1)
