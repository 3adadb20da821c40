"""Pooling as a definition, in NumPy float64: ``einsum`` over dense windows."""

from __future__ import annotations

import numpy as np

from mpsfunc.windows.axis import Axis
from support.oracle.windows import averages, counts, taps

Array = np.ndarray
NO_TAP = 2**62


def avg_pool(x: Array, rows: Axis, cols: Axis) -> Array:
    """Means of windows."""
    return np.einsum("jh,iw,nhwc->njic", averages(rows), averages(cols), x, optimize=True)


def avg_pool_grad(dy: Array, rows: Axis, cols: Axis) -> Array:
    """Each window's share of dy, at what it read."""
    return np.einsum("jh,iw,njic->nhwc", averages(rows), averages(cols), dy, optimize=True)


def _taps(axis: Axis) -> Array:
    """(n_out, most taps): where they lie; NO_TAP behind those of an output that has fewer."""
    each = [taps(axis, o) for o in range(axis.n_out)]
    most = max(map(len, each), default=0)
    return np.array([at + [NO_TAP] * (most - len(at)) for at in each], np.int64).reshape(axis.n_out, most)


def max_pool(x: Array, rows: Axis, cols: Axis) -> tuple[Array, Array]:
    """The maxima, and where they lie in the image: y * width + x, or -1 for a zero of the padding."""
    n, h, w, c = x.shape
    best = np.zeros((n, rows.n_out, cols.n_out, c), x.dtype)
    at, none = np.full(best.shape, -1), np.full(best.shape, True)
    outside = np.full(best.shape, False)
    down, along = _taps(rows), _taps(cols)
    for q, p in np.ndindex(down.shape[1], along.shape[1]):  # of all outputs at once
        row, col = down[:, q, None], along[None, :, p]
        tap = ((row != NO_TAP) & (col != NO_TAP))[..., None]
        inside = ((0 <= row) & (row < h) & (0 <= col) & (col < w))[..., None] | (rows.edge == 1)
        row, col = row.clip(0, h - 1), col.clip(0, w - 1)
        value, where = x[:, row, col], (row * w + col)[..., None]
        wins = tap & inside & (none | (best == best) & ((value > best) | (value != value)))
        best, at = np.where(wins, value, best), np.where(wins, where, at)
        none, outside = none & ~(tap & inside), outside | (tap & ~inside)
    if rows.edge == 0:
        lost = outside & (none | (best < 0))
        best, at = np.where(lost, np.zeros((), x.dtype), best), np.where(lost, -1, at)
    return best, at


def max_pool_grad(dy: Array, at: Array, height: int, width: int) -> Array:
    """dy at the winners."""
    n, _, _, c = dy.shape
    dx = np.zeros((n, height * width + 1, c))  # the last row takes what goes nowhere
    np.add.at(dx, (np.arange(n)[:, None, None, None], at, np.arange(c)), dy)
    return dx[:, :-1].reshape(n, height, width, c)


def l2_pool(x: Array, rows: Axis, cols: Axis) -> Array:
    """Roots of the sums of squares in windows."""
    return np.sqrt(np.einsum("jh,iw,nhwc->njic", counts(rows), counts(cols), x**2, optimize=True))


def l2_pool_grad(dy: Array, x: Array, norms: Array, rows: Axis, cols: Axis) -> Array:
    """dx for the selected outputs, given the norms of all."""
    share = np.divide(dy, norms, out=np.zeros_like(dy), where=norms != 0)
    return x * np.einsum("jh,iw,njic->nhwc", counts(rows), counts(cols), share, optimize=True)


def l2_pool_jvp(t: Array, x: Array, norms: Array, rows: Axis, cols: Axis) -> Array:
    """The tangent for a tangent of x."""
    total = np.einsum("jh,iw,nhwc->njic", counts(rows), counts(cols), t * x, optimize=True)
    return np.divide(total, norms, out=np.zeros_like(total), where=norms != 0)
