"""Edge mode "clamp" of convolutions: a margin that repeats the edge, and its adjoint, which folds it back.

Other margins than those of zeros (`margins`) come in here, too.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.convolution import margins
from mpsfunc.core import checks
from mpsfunc.windows.axis import Axis, clamps_taps, reach


def clamped(rows: Axis, cols: Axis) -> bool:
    """Whether some tap outside the image reads a pixel of it."""
    return any(clamps_taps(axis) or (margins.turns(axis) and any(_outside(axis))) for axis in (rows, cols))


def widened(axis: Axis) -> Axis:
    """The same windows on the pixels from the first that one reads to the last, whether inside the image or not."""
    return Axis(reach(axis), axis.n_out, axis.size, axis.stride, axis.dilation, 0, 0, 0, axis.begin, axis.end, 0)


def extend(x: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """What lies under `widened` axes: pixels of x, and beyond it those that the edge says."""
    for dimension, axis in ((1, rows), (2, cols)):
        if margins.turns(axis):
            x = margins.extend(x, axis, dimension)
            continue
        before, after = _outside(axis)
        inside = _between(x, max(0, -axis.pad), max(0, reach(axis) - axis.pad), dimension)
        top, bottom = (_between(x, at, at + 1, dimension) for at in (0, axis.n_in - 1))
        x = _joined([_repeated(top, before, dimension), inside, _repeated(bottom, after, dimension)], dimension)
    return x


def fold(dx: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """The adjoint of `extend`: what arrived outside is added to the pixel that was read, in a fixed order."""
    for dimension, axis in ((1, rows), (2, cols)):
        if margins.turns(axis):
            dx = margins.fold(dx, axis, dimension)
            continue
        length, last = reach(axis), axis.n_in - 1
        if last == 0:
            dx = dx.sum(axis=dimension, keepdims=True)
            continue
        # Positions start at -pad. Those up to 0 belong to the first pixel, those from `last` on to the last.
        head = min(max(axis.pad + 1, 0), length)
        tail = min(max(length - axis.pad - last, 0), length)
        skipped = max(0, min(-axis.pad, last) - 1)
        unread = last - 1 - skipped - (length - head - tail)
        parts = [
            _between(dx, 0, head, dimension).sum(axis=dimension, keepdims=True),
            _zeros(dx, skipped, dimension),
            _between(dx, head, length - tail, dimension),
            _zeros(dx, unread, dimension),
            _between(dx, length - tail, length, dimension).sum(axis=dimension, keepdims=True),
        ]
        dx = _joined(parts, dimension)
    return dx


def check_reach(op: str, shape: tuple[int, ...], rows: Axis, cols: Axis) -> None:
    """Refuses a margin that would make an image too large."""
    if clamped(rows, cols):
        n, _, _, c = shape
        checks.image_shape(op, "image with its margin", (n, reach(rows), reach(cols), c))


def _outside(axis: Axis) -> tuple[int, int]:
    """How many of the pixels under `widened` windows lie before the image, and how many behind it."""
    length = reach(axis)
    return min(max(axis.pad, 0), length), min(max(length - axis.pad - axis.n_in, 0), length)


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
