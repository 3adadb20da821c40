"""The operations as definitions: NumPy float64, from the formulas, with nothing in common with the kernels.

Windows are dense 0/1 arrays over (output, tap, input), made by asking every tap where it reads; everything else is
``einsum``. Slow, and obviously right.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from mpsfunc.window import Axis

Array = np.ndarray


def taps(axis: Axis, o: int) -> list[int]:
    """The positions of an output's taps, inside the image or not."""
    if axis.edge == 3:  # windows part the input evenly
        return list(range(math.floor(o * axis.n_in / axis.n_out), math.ceil((o + 1) * axis.n_in / axis.n_out)))
    return [o * axis.stride - axis.pad + k * axis.dilation for k in range(axis.size)]


def reads(axis: Axis) -> Array:
    """(n_out, size, n_in): 1 where that tap of that output reads that input."""
    hit = np.zeros((axis.n_out, axis.size, axis.n_in))
    for o in range(axis.begin, axis.end):
        for k, at in enumerate(taps(axis, o)):
            if 0 <= at < axis.n_in:
                hit[o, k, at] = 1
    return hit


def weighted(axis: Axis) -> Array:
    """(n_out, size, n_in): where the taps of a convolution read; with edge 1 those outside read the nearest."""
    hit = np.zeros((axis.n_out, axis.size, axis.n_in))
    for o in range(axis.begin, axis.end):
        for k, at in enumerate(taps(axis, o)):
            if axis.edge == 1:
                at = min(max(at, 0), axis.n_in - 1)
            if 0 <= at < axis.n_in:
                hit[o, k, at] = 1
    return hit


def counts(axis: Axis) -> Array:
    """(n_out, n_in): how many taps of an output read an input, where with edge 1 those outside read the nearest."""
    hit = np.zeros((axis.n_out, axis.n_in))
    for o in range(axis.begin, axis.end):
        for at in taps(axis, o):
            if axis.edge == 1:
                at = min(max(at, 0), axis.n_in - 1)
            if 0 <= at < axis.n_in:
                hit[o, at] += 1
    return hit


def averages(axis: Axis) -> Array:
    """(n_out, n_in): the share of each input in each output of an average along one axis."""
    divisors = []
    for o in range(axis.n_out):
        counted = [t for t in taps(axis, o) if -axis.zero_pad <= t <= axis.n_in - 1 + axis.zero_pad_after]
        divisors.append(axis.size if axis.edge == 0 else len(counted))
    return reads(axis).sum(1) / np.maximum(divisors, 1)[:, None]


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


def l2_pool_tangent(t: Array, x: Array, norms: Array, rows: Axis, cols: Axis) -> Array:
    total = np.einsum("jh,iw,nhwc->njic", counts(rows), counts(cols), t * x, optimize=True)
    return np.divide(total, norms, out=np.zeros_like(total), where=norms != 0)


def _grouped(a: Array, groups: int, axis: int) -> Array:
    """That axis as (groups, rest)."""
    axis %= a.ndim
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


def conv(x: Array, w: Array, b: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    # g group, c and o channels inside it, q and p taps
    patches = np.einsum(
        "jqh,ipw,nhwgc->njiqpgc", weighted(rows), weighted(cols), _grouped(x, groups, -1), optimize=True
    )
    y = np.einsum("njiqpgc,goqpc->njigo", patches, _grouped(w, groups, 0), optimize=True)
    return y.reshape(*y.shape[:3], w.shape[0]) + b


def conv_grad_input(dy: Array, w: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    spread = np.einsum("njigo,goqpc->njiqpgc", _grouped(dy, groups, -1), _grouped(w, groups, 0), optimize=True)
    dx = np.einsum("jqh,ipw,njiqpgc->nhwgc", weighted(rows), weighted(cols), spread, optimize=True)
    return dx.reshape(*dx.shape[:3], groups * w.shape[3])


def conv_grad_weights(dy: Array, x: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    patches = np.einsum(
        "jqh,ipw,nhwgc->njiqpgc", weighted(rows), weighted(cols), _grouped(x, groups, -1), optimize=True
    )
    dw = np.einsum("njigo,njiqpgc->goqpc", _grouped(dy, groups, -1), patches, optimize=True)
    return dw.reshape(dy.shape[3], *dw.shape[2:])


def conv_grad_bias(dy: Array) -> Array:
    return dy.sum((0, 1, 2))


class Norm(NamedTuple):
    """Batch normalization of one batch, forward and backward."""

    mean: Array
    var: Array
    y: Array
    dgamma: Array
    dbeta: Array
    dx: Array
    dx_frozen: Array


def batch_norm(x: Array, dy: Array, gamma: Array, beta: Array, eps: float) -> Norm:
    pixels = (0, 1, 2)
    mean = x.mean(pixels)
    var = ((x - mean) ** 2).mean(pixels)
    root = np.sqrt(var + eps)
    xhat = (x - mean) / root
    dgamma, dbeta = (dy * xhat).sum(pixels), dy.sum(pixels)
    count = x.size / x.shape[-1]
    dx = gamma / root * (dy - dbeta / count - xhat * dgamma / count)
    return Norm(mean, var, gamma * xhat + beta, dgamma, dbeta, dx, gamma / root * dy)
