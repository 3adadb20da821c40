"""Edge mode "clamp" of convolutions: a margin that repeats the edge, and its adjoint, which folds it back."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import checks
from mpsfunc.windows.axis import Axis, clamps_taps


def clamped(rows: Axis, cols: Axis) -> bool:
    """Whether some tap outside the image reads its edge."""
    return clamps_taps(rows) or clamps_taps(cols)


def widened(axis: Axis) -> Axis:
    """The same windows on the pixels from the first that one reads to the last, whether inside the image or not."""
    return Axis(_reach(axis), axis.n_out, axis.size, axis.stride, axis.dilation, 0, 0, 0, axis.begin, axis.end, 0)


def extend(x: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """What lies under `widened` axes: pixels of x, and beyond it the nearest ones."""
    for dimension, axis in ((1, rows), (2, cols)):
        before, after = _outside(axis)
        inside = _between(x, max(0, -axis.pad), max(0, _reach(axis) - axis.pad), dimension)
        top, bottom = (_between(x, at, at + 1, dimension) for at in (0, axis.n_in - 1))
        x = _joined([_repeated(top, before, dimension), inside, _repeated(bottom, after, dimension)], dimension)
    return x


def fold(dx: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """The adjoint of `extend`: what arrived outside is added to the nearest pixel, in a fixed order."""
    for dimension, axis in ((1, rows), (2, cols)):
        reach, last = _reach(axis), axis.n_in - 1
        if last == 0:
            dx = dx.sum(axis=dimension, keepdims=True)
            continue
        # Positions start at -pad. Those up to 0 belong to the first pixel, those from `last` on to the last.
        head = min(max(axis.pad + 1, 0), reach)
        tail = min(max(reach - axis.pad - last, 0), reach)
        skipped = max(0, min(-axis.pad, last) - 1)
        unread = last - 1 - skipped - (reach - head - tail)
        parts = [
            _between(dx, 0, head, dimension).sum(axis=dimension, keepdims=True),
            _zeros(dx, skipped, dimension),
            _between(dx, head, reach - tail, dimension),
            _zeros(dx, unread, dimension),
            _between(dx, reach - tail, reach, dimension).sum(axis=dimension, keepdims=True),
        ]
        dx = _joined(parts, dimension)
    return dx


def check_reach(op: str, shape: tuple[int, ...], rows: Axis, cols: Axis) -> None:
    """Refuses a margin that would make an image too large."""
    if clamped(rows, cols):
        n, _, _, c = shape
        checks.image_shape(op, "image with its margin", (n, _reach(rows), _reach(cols), c))


def _reach(axis: Axis) -> int:
    return (axis.n_out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1


def _outside(axis: Axis) -> tuple[int, int]:
    """How many of the pixels under `widened` windows lie before the image, and how many behind it."""
    reach = _reach(axis)
    return min(max(axis.pad, 0), reach), min(max(reach - axis.pad - axis.n_in, 0), reach)


def _repeated(edge: mx.array, count: int, dimension: int) -> mx.array:
    shape = list(edge.shape)
    shape[dimension] = count
    return mx.broadcast_to(edge, shape)


def _between(x: mx.array, begin: int, end: int, dimension: int) -> mx.array:
    return x[:, begin:end] if dimension == 1 else x[:, :, begin:end]


def _zeros(like: mx.array, count: int, dimension: int) -> mx.array:
    shape = list(like.shape)
    shape[dimension] = count
    return mx.zeros(shape, like.dtype)


def _joined(parts: list[mx.array], dimension: int) -> mx.array:
    some = [part for part in parts if part.shape[dimension]]
    return mx.concatenate(some, axis=dimension) if len(some) > 1 else some[0]
