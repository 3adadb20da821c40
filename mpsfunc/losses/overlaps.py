"""What boxes have in common, in MLX's operations: (..., 4) of float32 or float64, each (x1, y1, x2, y2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import launch


class Sides(NamedTuple):
    """The ends of boxes along one axis."""

    low: mx.array
    high: mx.array

    @property
    def length(self) -> mx.array:
        """At least 0; a slope even at 0, as that of a box that may yet grow."""
        made = self.high - self.low
        return mx.where(made < 0, mx.zeros_like(made), made)

    @property
    def middle(self) -> mx.array:
        """Of both ends."""
        return 0.5 * self.low + 0.5 * self.high


def overlap(boxes: mx.array, others: mx.array, kind: str, epsilon: float, *, exact: bool) -> mx.array:
    """IOU or what is made of it; epsilon is added to denominators, and a ratio of 0 to 0 is 0."""
    (x, y), (u, v) = _sides(boxes), _sides(others)
    wide, high, others_wide, others_high = x.length, y.length, u.length, v.length
    across, down = (_larger(a.low, b.low) for a, b in ((x, u), (y, v)))
    common = (_smaller(x.high, u.high) - across), (_smaller(y.high, v.high) - down)
    overlaps = mx.logical_and(common[0] > 0, common[1] > 0)  # vmap of MLX 0.32.4's & returns wrong numbers
    both = mx.where(overlaps, common[0] * common[1], mx.zeros_like(common[0]))
    union = wide * high + others_wide * others_high - both
    made = ratio(both, union, epsilon)
    if kind == "iou":
        return made
    around = (
        Sides(_smaller(x.low, u.low), _larger(x.high, u.high)),
        Sides(_smaller(y.low, v.low), _larger(y.high, v.high)),
    )
    if kind == "giou":
        whole = around[0].length * around[1].length
        return made - ratio(whole - union, whole, epsilon)
    apart = (x.middle - u.middle).square() + (y.middle - v.middle).square()
    far = made - ratio(apart, around[0].length.square() + around[1].length.square(), epsilon)
    if kind == "diou":
        return far
    turned = (4 / math.pi**2) * (_angle(wide, high) - _angle(others_wide, others_high)).square()
    share = ratio(turned, 1 - made + turned, epsilon)
    return far - (share if exact else mx.stop_gradient(share)) * turned


def ratio(part: mx.array, whole: mx.array, epsilon: float = 0.0) -> mx.array:
    """``part / (whole + epsilon)``, and 0 where the denominator is; so are its derivatives there."""
    below = whole + epsilon if epsilon else whole
    none = below == 0
    made = part / mx.where(none, mx.ones_like(below), below)
    return mx.where(none, mx.zeros_like(made), made)


def _sides(boxes: mx.array) -> tuple[Sides, Sides]:
    x1, y1, x2, y2 = (launch.cut(boxes, (..., i)) for i in range(4))
    return Sides(x1, x2), Sides(y1, y2)


def _larger(a: mx.array, b: mx.array) -> mx.array:
    """The maximum; of equal numbers both have half the slope. NaN where one is."""
    return mx.where(a > b, a, mx.where(b > a, b, 0.5 * a + 0.5 * b))


def _smaller(a: mx.array, b: mx.array) -> mx.array:
    """The minimum, likewise."""
    return mx.where(a < b, a, mx.where(b < a, b, 0.5 * a + 0.5 * b))


def _angle(wide: mx.array, high: mx.array) -> mx.array:
    """``atan(wide / high)``, of a point 0."""
    point = mx.logical_and(wide == 0, high == 0)
    made = mx.arctan2(wide, mx.where(point, mx.ones_like(high), high))
    return mx.where(point, mx.zeros_like(made), made)
