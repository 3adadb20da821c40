"""Convolution and its gradients as definitions, in NumPy float64: what each tap reads, and products of matrices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpsfunc.windows.axis import Axis
from support.oracle.windows import read_by

Array = np.ndarray


def _patches(x: Array, rows: Axis, cols: Axis, groups: int) -> Array:
    """What each output reads, (groups, outputs, taps and channels of a group)."""
    framed = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))  # a zero behind each line, for taps that read nothing
    seen = framed[:, read_by(rows)[:, None, :, None], read_by(cols)[None, :, None, :]]
    n, j, i, q, p, channels = seen.shape
    seen = seen.reshape(n * j * i, q * p, groups, channels // groups).transpose(2, 0, 1, 3)
    return seen.reshape(groups, n * j * i, q * p * (channels // groups))


def _outputs(y: Array, groups: int) -> Array:
    """Output images as (groups, outputs, channels of a group)."""
    n, j, i, channels = y.shape
    return y.reshape(n * j * i, groups, channels // groups).swapaxes(0, 1)


def _weights(w: Array, groups: int) -> Array:
    """Weights as (groups, channels out, taps and channels in)."""
    outs, q, p, c = w.shape
    return w.reshape(groups, outs // groups, q * p * c)


def conv(x: Array, w: Array, b: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    """Sums over the taps of each window and the channels of its group."""
    y = _patches(x, rows, cols, groups) @ _weights(w, groups).swapaxes(1, 2)
    return y.swapaxes(0, 1).reshape(x.shape[0], rows.n_out, cols.n_out, w.shape[0]) + b


def conv_grad_input(dy: Array, w: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    """Each output's dy, spread over what its window read."""
    (n, j, i, _), (_, q, p, c) = dy.shape, w.shape
    spread = (_outputs(dy, groups) @ _weights(w, groups)).reshape(groups, n, j, i, q, p, c)
    spread = np.moveaxis(spread, 0, 5).reshape(n, j, i, q, p, groups * c)
    # Row by row and column by column, each tap's share goes where that tap reads, or behind the image.
    lines, dx = np.zeros((n, rows.n_in + 1, i, p, groups * c)), np.zeros((n, rows.n_in, cols.n_in + 1, groups * c))
    for (row, tap), at in np.ndenumerate(read_by(rows)):
        lines[:, at] += spread[:, row, :, tap]
    for (col, tap), at in np.ndenumerate(read_by(cols)):
        dx[:, :, at] += lines[:, :-1, col, tap]
    return dx[:, :, :-1]


def conv_grad_weights(dy: Array, x: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    """What each tap read, weighed with dy."""
    dw = _outputs(dy, groups).swapaxes(1, 2) @ _patches(x, rows, cols, groups)
    return dw.reshape(dy.shape[3], rows.size, cols.size, x.shape[3] // groups)


def conv_grad_bias(dy: Array) -> Array:
    """The sums of dy over images and pixels."""
    return dy.sum((0, 1, 2))


# Transposed: loops that put down what each pixel adds, and that correlate among zeros -------------------


def turned(w: Array, groups: int = 1) -> Array:
    """Weights that lead back, rotated by half a turn."""
    apart = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])[:, :, ::-1, ::-1]
    return apart.swapaxes(1, 4).reshape(groups * w.shape[3], *w.shape[1:3], w.shape[0] // groups)


def scattered(x: Array, w: Array, out: Any, stride: Any, pad: Any, dilation: Any, groups: int = 1) -> Array:
    """A transposed convolution: each pixel adds its multiples of the weights to the output."""
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
