"""Pooling as a definition, in NumPy float64: ``einsum`` over dense windows."""

from __future__ import annotations

import itertools

import numpy as np

from mpsfunc.windows.axis import Axis
from support.oracle.windows import averages, counts, taps

Array = np.ndarray


def avg_pool(x: Array, rows: Axis, cols: Axis) -> Array:
    return np.einsum("jh,iw,nhwc->njic", averages(rows), averages(cols), x, optimize=True)


def avg_pool_grad(dy: Array, rows: Axis, cols: Axis) -> Array:
    return np.einsum("jh,iw,njic->nhwc", averages(rows), averages(cols), dy, optimize=True)


def max_pool(x: Array, rows: Axis, cols: Axis) -> tuple[Array, Array]:
    """The maxima, and where they lie in the image: y * width + x, or -1 for a zero of the padding."""
    n, h, w, c = x.shape
    best = np.zeros((n, rows.n_out, cols.n_out, c), x.dtype)
    at = np.full(best.shape, -1)
    zero, clamp = rows.edge == 0, rows.edge == 1
    for j, i in np.ndindex(rows.n_out, cols.n_out):
        y, where, outside, none = best[:, j, i], at[:, j, i], False, True
        for row, col in itertools.product(taps(rows, j), taps(cols, i)):
            inside = 0 <= row < h and 0 <= col < w
            if not inside and not clamp:
                outside = True
                continue
            row, col = min(max(row, 0), h - 1), min(max(col, 0), w - 1)
            value = x[:, row, col]
            wins = np.full(y.shape, True) if none else (y == y) & ((value > y) | (value != value))
            y[wins], where[wins], none = value[wins], row * w + col, False
        if zero and outside:
            lost = np.full(y.shape, True) if none else y < 0
            y[lost], where[lost] = 0, -1
    return best, at


def max_pool_grad(dy: Array, at: Array, height: int, width: int) -> Array:
    n, _, _, c = dy.shape
    dx = np.zeros((n, height * width + 1, c))  # the last row takes what goes nowhere
    for image, j, i, channel in np.ndindex(*dy.shape):
        dx[image, at[image, j, i, channel], channel] += dy[image, j, i, channel]
    return dx[:, :-1].reshape(n, height, width, c)


def l2_pool(x: Array, rows: Axis, cols: Axis) -> Array:
    return np.sqrt(np.einsum("jh,iw,nhwc->njic", counts(rows), counts(cols), x**2, optimize=True))


def l2_pool_grad(dy: Array, x: Array, norms: Array, rows: Axis, cols: Axis) -> Array:
    """dx for the selected outputs, given the norms of all."""
    share = np.divide(dy, norms, out=np.zeros_like(dy), where=norms != 0)
    return x * np.einsum("jh,iw,njic->nhwc", counts(rows), counts(cols), share, optimize=True)


def l2_pool_jvp(t: Array, x: Array, norms: Array, rows: Axis, cols: Axis) -> Array:
    total = np.einsum("jh,iw,nhwc->njic", counts(rows), counts(cols), t * x, optimize=True)
    return np.divide(total, norms, out=np.zeros_like(total), where=norms != 0)
