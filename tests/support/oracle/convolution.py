"""Convolution and its gradients as definitions, in NumPy float64: ``einsum`` over dense windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpsfunc.windows.axis import Axis
from support.oracle.windows import weighted

Array = np.ndarray


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


# Transposed: loops that put down what each pixel adds, and that correlate among zeros -------------------


def turned(w: Array, groups: int = 1) -> Array:
    """Weights that lead back, rotated by half a turn."""
    apart = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])[:, :, ::-1, ::-1]
    return apart.swapaxes(1, 4).reshape(groups * w.shape[3], *w.shape[1:3], w.shape[0] // groups)


def scattered(x: Array, w: Array, out: Any, stride: Any, pad: Any, dilation: Any, groups: int = 1) -> Array:
    y = np.zeros((x.shape[0], *out, w.shape[0]))
    for j, i, row, col, q, p, outs, ins in _meetings(x, w, out, stride, pad, dilation, groups):
        y[:, row, col, outs] += x[:, j, i, ins] @ w[outs, q, p].T
    return y


def gathered(
    dy: Array, x: Array, w: Array, stride: Any, pad: Any, dilation: Any, groups: int = 1
) -> tuple[Array, Array]:
    """What comes back from there to each pixel and to each weight."""
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for j, i, row, col, q, p, outs, ins in _meetings(x, w, dy.shape[1:3], stride, pad, dilation, groups):
        dx[:, j, i, ins] += dy[:, row, col, outs] @ w[outs, q, p]
        dw[outs, q, p] += dy[:, row, col, outs].T @ x[:, j, i, ins]
    return dx, dw


def _meetings(x: Array, w: Array, out: Any, stride: Any, pad: Any, dilation: Any, groups: int) -> Iterator[Any]:
    """Every pixel and tap, where in the output they meet, and the channels of each group."""
    (_, height, width, _), (o, kh, kw, inputs) = x.shape, w.shape
    for j, i, q, p, g in itertools.product(*map(range, (height, width, kh, kw, groups))):
        row, col = j * stride[0] - pad[0] + q * dilation[0], i * stride[1] - pad[1] + p * dilation[1]
        if 0 <= row < out[0] and 0 <= col < out[1]:
            outs, ins = slice(g * o // groups, (g + 1) * o // groups), slice(g * inputs, (g + 1) * inputs)
            yield j, i, row, col, q, p, outs, ins


def framed(x: Array, w: Array, out: Any, stride: Any, total: Any, dilation: Any, groups: int = 1) -> Array:
    """Zeros between the pixels, then a correlation with stride 1 and windows centred at ``j + total``."""
    n, height, width, c = x.shape
    o, kh, kw, inputs = w.shape
    frame = np.zeros((n, (height - 1) * stride[0] + 1, (width - 1) * stride[1] + 1, c))
    frame[:, :: stride[0], :: stride[1]] = x
    extents = (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1
    y = np.zeros((n, *out, o))
    for j, i, q, p, g in itertools.product(*map(range, (*out, kh, kw, groups))):
        row = j + total[0] - extents[0] // 2 + q * dilation[0]
        col = i + total[1] - extents[1] // 2 + p * dilation[1]
        if 0 <= row < frame.shape[1] and 0 <= col < frame.shape[2]:
            outs, ins = slice(g * o // groups, (g + 1) * o // groups), slice(g * inputs, (g + 1) * inputs)
            y[:, j, i, outs] += frame[:, row, col, ins] @ w[outs, q, p].T
    return y
