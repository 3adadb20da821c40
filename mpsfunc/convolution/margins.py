"""Margins that reflect an image or go round it, along one axis, and their adjoint, which folds them back.

Both are made of slices, so that what arrives at a pixel is added in a fixed order.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.windows.axis import CIRCULAR, REFLECT, Axis, reach


def turns(axis: Axis) -> bool:
    """Whether this is the axis of such a margin."""
    return axis.edge in (REFLECT, CIRCULAR)


def widest(axis: Axis) -> int:
    """The most pixels that a margin may have on each side: those of the image, of which a reflection repeats one less.

    Example:
        >>> widest(Axis(4, 4, 3, 1, 1, 1, REFLECT, 0, 0, 4, 0))
        3
    """
    return axis.n_in - (axis.edge == REFLECT)


def fits(axis: Axis) -> bool:
    """Whether the windows stay within the widest margins."""
    return not turns(axis) or max(axis.pad, reach(axis) - axis.pad - axis.n_in) <= widest(axis)


def extend(x: mx.array, axis: Axis, dimension: int) -> mx.array:
    """What the windows span, from the first pixel to the last."""
    parts = [_piece(x, begin, end, back, dimension) for begin, end, back in _runs(axis)]
    return mx.concatenate(parts, axis=dimension) if len(parts) > 1 else parts[0]


def fold(dx: mx.array, axis: Axis, dimension: int) -> mx.array:
    """The adjoint of `extend`."""
    runs, at, given = _runs(axis), 0, []
    for begin, end, back in runs:
        given.append(_piece(dx, at, at + end - begin, back, dimension))
        at += end - begin
    cuts = sorted({0, axis.n_in, *(cut for begin, end, _ in runs for cut in (begin, end))})
    parts = []
    for low, high in zip(cuts[:-1], cuts[1:], strict=True):
        arrived = [
            _piece(piece, low - begin, high - begin, False, dimension)
            for piece, (begin, end, _) in zip(given, runs, strict=True)
            if begin <= low and high <= end
        ]
        shape = list(dx.shape)
        shape[dimension] = high - low
        parts.append(sum(arrived[1:], arrived[0]) if arrived else mx.zeros(shape, dx.dtype))
    return mx.concatenate(parts, axis=dimension) if len(parts) > 1 else parts[0]


def _runs(axis: Axis) -> list[tuple[int, int, bool]]:
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


def _piece(x: mx.array, begin: int, end: int, back: bool, dimension: int) -> mx.array:
    piece = x[:, begin:end] if dimension == 1 else x[:, :, begin:end]
    if not back:
        return piece
    return piece[:, ::-1] if dimension == 1 else piece[:, :, ::-1]
