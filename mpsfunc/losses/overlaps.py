"""What boxes have in common, in MLX's operations: (..., 4) of float32 or float64, each (x1, y1, x2, y2).

Areas overflow and vanish long before lengths do. So lengths are brought near 1 before they are multiplied, along each
axis by a power of two, of which ratios of areas do not depend and no result is rounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import launch


class Side(NamedTuple):
    """Boxes along one axis, in quarters of what they are, so that no length overflows.

    Fields:
        low: Where they begin.
        high: Where they end.
        length: At least 0; a slope even at 0, as that of a box that may yet grow.
        fit: The power of two that brings the length near 1.
    """

    low: mx.array
    high: mx.array
    length: mx.array
    fit: mx.array

    @property
    def middle(self) -> mx.array:
        """Of both ends."""
        return 0.5 * self.low + 0.5 * self.high


def sides(boxes: mx.array) -> list[Side]:
    """Across and down."""
    x1, y1, x2, y2 = (0.25 * launch.cut(boxes, (..., i)) for i in range(4))
    return [_side(x1, x2), _side(y1, y2)]


def iou(a: list[Side], b: list[Side]) -> mx.array:
    """The intersection as a share of the union, 0 of none."""
    return ratio(*_Pair(a, b).areas(*(mx.minimum(p.fit, q.fit) for p, q in zip(a, b, strict=True))))


def overlap(boxes: mx.array, others: mx.array, kind: str, epsilon: float, *, exact: bool) -> mx.array:
    """IOU or what is made of it; epsilon is added to denominators, and a ratio of 0 to 0 is 0."""
    a, b = sides(boxes), sides(others)
    (x, y), (u, v), pair, epsilon = a, b, _Pair(a, b), epsilon / 16  # of areas in quarters
    if epsilon:
        along, down = _factors(mx.maximum(x.length, u.length), mx.maximum(y.length, v.length), epsilon)
        made = ratio(*pair.areas(along, down), epsilon * along * down)
    else:
        made = iou(a, b)
    if kind == "iou":
        return made
    wide, high = _around(x, u), _around(y, v)
    if kind == "giou":
        along, down = _factors(wide, high, epsilon)
        whole = (wide * along) * (high * down)
        return made - ratio(whole - pair.areas(along, down)[1], whole, epsilon * along * down)
    across, below = x.middle - u.middle, y.middle - v.middle
    fit = _fit(mx.maximum(mx.maximum(mx.maximum(wide, high), mx.maximum(abs(across), abs(below))), math.sqrt(epsilon)))
    apart = (across * fit).square() + (below * fit).square()
    far = made - ratio(apart, (wide * fit).square() + (high * fit).square(), epsilon * fit * fit)
    if kind == "diou":
        return far
    turned = (4 / math.pi**2) * (_angle(x.length, y.length) - _angle(u.length, v.length)).square()
    share = ratio(turned, 1 - made + turned, 16 * epsilon)
    return far - (share if exact else mx.stop_gradient(share)) * turned


def ratio(part: mx.array, whole: mx.array, epsilon: float | mx.array = 0.0) -> mx.array:
    """``part / (whole + epsilon)`` of a part of the whole; 0 where the whole is, and so are its derivatives there."""
    none = whole == 0
    fit = mx.where(none, mx.ones_like(whole), _fit(whole + epsilon))  # the derivative squares the denominator
    made = (part * fit) / mx.where(none, mx.ones_like(whole), (whole + epsilon) * fit)
    return mx.where(none, mx.zeros_like(made), made)


class _Pair:
    """What two boxes have in common."""

    def __init__(self, a: list[Side], b: list[Side]) -> None:
        self._a, self._b = a, b
        common = [_smaller(p.high, q.high) - _larger(p.low, q.low) for p, q in zip(a, b, strict=True)]
        # Not &, whose vmap returns wrong numbers in MLX 0.32.4.
        meets = mx.logical_and(common[0] > 0, common[1] > 0)
        self._common = [mx.where(meets, length, mx.zeros_like(length)) for length in common]

    def areas(self, along: mx.array, down: mx.array) -> tuple[mx.array, mx.array]:
        """The intersection and the union, of lengths times these factors."""
        both = (self._common[0] * along) * (self._common[1] * down)
        own, other = ((x.length * along) * (y.length * down) for x, y in (self._a, self._b))
        return both, own + other - both


def _side(low: mx.array, high: mx.array) -> Side:
    length = _positive(high - low)
    return Side(low, high, length, _fit(length))


def _positive(length: mx.array) -> mx.array:
    return mx.where(length < 0, mx.zeros_like(length), length)


def _around(a: Side, b: Side) -> mx.array:
    """The length of what is around both."""
    return _positive(_larger(a.high, b.high) - _smaller(a.low, b.low))


def _fit(length: mx.array) -> mx.array:
    """The power of two that brings a length near 1, as far as there is one; a constant in derivatives.

    Of 0 it is one that has a square, which second derivatives contain.
    """
    bits, unit, bias = (mx.int64, 2**52, 1023) if length.dtype == mx.float64 else (mx.int32, 2**23, 127)
    length = mx.stop_gradient(mx.where(length == 0, 2.0 ** (1 - bias // 2), length))
    whole = mx.view(mx.clip(length, 2.0 ** (1 - bias), 2.0 ** (bias - 1)), bits)
    return mx.view(2 * bias * unit - (whole - whole % unit), length.dtype)


def _factors(wide: mx.array, high: mx.array, epsilon: float) -> tuple[mx.array, mx.array]:
    """Powers of two for both axes, with which the larger of an area and epsilon comes near 1."""
    along, down = _fit(wide), _fit(high)
    if not epsilon:
        return along, down
    least = [mx.minimum(math.sqrt(epsilon), epsilon * fit) for fit in (down, along)]
    return _fit(mx.maximum(wide, least[0])), _fit(mx.maximum(high, least[1]))


def _larger(a: mx.array, b: mx.array) -> mx.array:
    """The maximum; of equal numbers both have half the slope. NaN where one is."""
    return mx.where(a > b, a, mx.where(b > a, b, 0.5 * a + 0.5 * b))


def _smaller(a: mx.array, b: mx.array) -> mx.array:
    """The minimum, likewise."""
    return mx.where(a < b, a, mx.where(b < a, b, 0.5 * a + 0.5 * b))


def _angle(wide: mx.array, high: mx.array) -> mx.array:
    """``atan(wide / high)``, of a point 0."""
    fit = _fit(mx.maximum(wide, high))
    point = mx.logical_and(wide == 0, high == 0)
    made = mx.arctan2(wide * fit, mx.where(point, mx.ones_like(high), high * fit))
    return mx.where(point, mx.zeros_like(made), made)
