"""Margins of convolutions: what taps outside the image read where that is no zero, and how it comes back.

Edge mode "clamp" repeats the edge, "reflect" mirrors the image at its edge pixels, "circular" repeats the image. Each
is a part of the convolution: `extend` in front of it, and its adjoint `fold` behind the data gradient.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import checks
from mpsfunc.windows.axis import CIRCULAR, REFLECT, Axis, clamps_taps, reach


def has_margin(rows: Axis, cols: Axis) -> bool:
    """Whether some tap outside the image reads a pixel of it."""
    return any(clamps_taps(axis) or (_reflects_or_wraps(axis) and any(_outside(axis))) for axis in (rows, cols))


def widened(axis: Axis) -> Axis:
    """The same windows on the pixels from the first that one reads to the last, whether inside the image or not."""
    return Axis(reach(axis), axis.n_out, axis.size, axis.stride, axis.dilation, 0, 0, 0, axis.begin, axis.end, 0)


def extend(x: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """What lies under `widened` axes: pixels of x, and beyond it those that the edge says."""
    for dimension, axis in ((1, rows), (2, cols)):
        x = (_extend_by_stretches if _reflects_or_wraps(axis) else _extend_clamped)(x, axis, dimension)
    return x


def fold(dx: mx.array, rows: Axis, cols: Axis) -> mx.array:
    """The adjoint of `extend`: what arrived outside is added to the pixel that was read, in a fixed order."""
    for dimension, axis in ((1, rows), (2, cols)):
        dx = (_fold_by_stretches if _reflects_or_wraps(axis) else _fold_clamped)(dx, axis, dimension)
    return dx


def check_reach(op: str, shape: tuple[int, ...], rows: Axis, cols: Axis) -> None:
    """Refuses a margin that would make an image too large."""
    if has_margin(rows, cols):
        n, _, _, c = shape
        checks.image_shape(op, "image with its margin", (n, reach(rows), reach(cols), c))


def widest(axis: Axis) -> int:
    """The most pixels that such a margin may have on each side: a reflection has one less than the image.

    Example:
        >>> widest(Axis(4, 4, 3, 1, 1, 1, REFLECT, 0, 0, 4, 0))
        3
    """
    return axis.n_in - (axis.edge == REFLECT)


def fits(axis: Axis) -> bool:
    """Whether the windows stay within the widest margins; a repeated edge has any width."""
    return not _reflects_or_wraps(axis) or max(axis.pad, reach(axis) - axis.pad - axis.n_in) <= widest(axis)


# A repeated edge ----------------------------------------------------------------------------------------


def _extend_clamped(x: mx.array, axis: Axis, dimension: int) -> mx.array:
    before, after = _outside(axis)
    inside = _between(x, max(0, -axis.pad), max(0, reach(axis) - axis.pad), dimension)
    top, bottom = (_between(x, at, at + 1, dimension) for at in (0, axis.n_in - 1))
    return _joined([_repeated(top, before, dimension), inside, _repeated(bottom, after, dimension)], dimension)


def _fold_clamped(dx: mx.array, axis: Axis, dimension: int) -> mx.array:
    length, last = reach(axis), axis.n_in - 1
    if last == 0:
        return dx.sum(axis=dimension, keepdims=True)
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
    return _joined(parts, dimension)


# A reflection, or the image again: stretches of it, one after the other ---------------------------------


def _reflects_or_wraps(axis: Axis) -> bool:
    return axis.edge in (REFLECT, CIRCULAR)


def _extend_by_stretches(x: mx.array, axis: Axis, dimension: int) -> mx.array:
    return _joined([_stretch(x, begin, end, back, dimension) for begin, end, back in _stretches(axis)], dimension)


def _fold_by_stretches(dx: mx.array, axis: Axis, dimension: int) -> mx.array:
    stretches, at, given = _stretches(axis), 0, []
    for begin, end, back in stretches:
        given.append(_stretch(dx, at, at + end - begin, back, dimension))
        at += end - begin
    cuts = sorted({0, axis.n_in, *(cut for begin, end, _ in stretches for cut in (begin, end))})
    parts = []
    for low, high in zip(cuts[:-1], cuts[1:], strict=True):
        arrived = [
            _between(each, low - begin, high - begin, dimension)
            for each, (begin, end, _) in zip(given, stretches, strict=True)
            if begin <= low and high <= end
        ]
        parts.append(sum(arrived[1:], arrived[0]) if arrived else _zeros(dx, high - low, dimension))
    return _joined(parts, dimension)


def _stretches(axis: Axis) -> list[tuple[int, int, bool]]:
    """The pixels under the windows as stretches [begin, end) of the image, of which some are read backwards."""
    n, low = axis.n_in, -axis.pad
    high = low + reach(axis)
    before, behind = (low, min(high, 0)), (max(low, n), high)
    inside = max(low, 0), min(high, n), False
    if axis.edge == CIRCULAR:
        runs = [(before[0] + n, before[1] + n, False), inside, (behind[0] - n, behind[1] - n, False)]
    else:
        last = 2 * n - 1
        runs = [(1 - before[1], 1 - before[0], True), inside, (last - behind[1], last - behind[0], True)]
    return [(begin, end, back) for begin, end, back in runs if begin < end]


def _stretch(x: mx.array, begin: int, end: int, back: bool, dimension: int) -> mx.array:
    piece = _between(x, begin, end, dimension)
    if not back:
        return piece
    return piece[:, ::-1] if dimension == 1 else piece[:, :, ::-1]


# Parts --------------------------------------------------------------------------------------------------


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
