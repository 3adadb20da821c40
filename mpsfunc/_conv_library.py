"""Convolution and its gradients by MLX's own functions, behind which a GPU has its vendor's library."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _launch, _neuron
from mpsfunc.window import Axis


class Spec(NamedTuple):
    """Where the windows sit, how channels group, whether a bias is added, which neuron follows, and where to run."""

    rows: Axis
    cols: Axis
    groups: int
    biased: bool
    neuron: int
    stream: mx.Stream


def ordinary(spec: Spec) -> bool:
    """Whether all windows start at or before their first pixel and touch the image, as the libraries expect."""
    return all(
        0 <= a.pad <= (a.size - 1) * a.dilation and -a.n_in < _overhang(a) <= (a.size - 1) * a.dilation
        for a in (spec.rows, spec.cols)
    )


def pointwise(spec: Spec) -> bool:
    """Whether every output reads one pixel and every pixel is read once, so that a matrix product is all there is."""
    return spec.groups == 1 and all(
        a.size == a.stride == 1 and a.pad == 0 and a.n_in == a.n_out for a in (spec.rows, spec.cols)
    )


def finished(y: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """Adds the bias to y and applies the neuron, in one kernel."""
    if not spec.biased and not spec.neuron:
        return y
    done: mx.array = (_finish_relu if spec.neuron else _finish)(y, b)
    return done


@_launch.fused
def _finish(y: mx.array, b: mx.array) -> mx.array:
    return y + b.astype(y.dtype)


@_launch.fused
def _finish_relu(y: mx.array, b: mx.array) -> mx.array:
    return _neuron.apply(y + b.astype(y.dtype), _neuron.RELU)


def conv(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The images that `Spec` convolves to, before bias and neuron."""
    rows, cols = spec.rows, spec.cols
    if pointwise(spec):
        return x @ w.reshape(w.shape[0], w.shape[3]).T
    x, padding = _read(x, spec)
    return mx.conv_general(
        x,
        w,
        stride=(rows.stride, cols.stride),
        padding=padding,
        kernel_dilation=(rows.dilation, cols.dilation),
        groups=spec.groups,
    )


def grad_input(dy: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The gradient of the images."""
    rows, cols = spec.rows, spec.cols
    if pointwise(spec):
        return dy @ w.reshape(w.shape[0], w.shape[3])
    swapped = exchanged(w, spec.groups)
    lows = [(a.size - 1) * a.dilation - a.pad for a in (rows, cols)]
    highs = [a.n_in - 1 - (a.n_out - 1) * a.stride + a.pad for a in (rows, cols)]
    options: dict[str, Any] = {"padding": (lows, highs), "kernel_dilation": (rows.dilation, cols.dilation)}
    if rows.stride == cols.stride == 1 and _launch.backend(spec.stream) == "metal":
        return mx.conv_general(dy, swapped[:, ::-1, ::-1], groups=spec.groups, **options)  # unflipped: Winograd may run
    spread = (rows.stride, cols.stride)
    return mx.conv_general(dy, swapped, input_dilation=spread, flip=True, groups=spec.groups, **options)


def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of ungrouped weights."""
    rows, cols = spec.rows, spec.cols
    if x.dtype == mx.float16:  # a sum over a batch may leave the range that the library would round it to
        dy, x = dy.astype(mx.float32), x.astype(mx.float32)
    if pointwise(spec):
        dw = dy.reshape(-1, dy.shape[3]).T @ x.reshape(-1, x.shape[3])
        return dw[:, None, None]
    x, padding = _read(x, spec)
    dw = mx.conv_general(
        x.swapaxes(0, 3),
        dy.swapaxes(0, 3),
        stride=(rows.dilation, cols.dilation),
        padding=padding,
        kernel_dilation=(rows.stride, cols.stride),
    )
    return dw.swapaxes(0, 3)


def exchanged(w: mx.array, groups: int) -> mx.array:
    """Weights whose inputs and outputs have changed places within each group."""
    out, kh, kw, width = w.shape
    swapped = w.reshape(groups, out // groups, kh, kw, width).transpose(0, 4, 2, 3, 1)
    return swapped.reshape(groups * width, kh, kw, out // groups)


def _overhang(axis: Axis) -> int:
    """Pixels that the last window hangs over the end of the image; negative when it ends inside."""
    return (axis.n_out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1 - axis.pad - axis.n_in


def _read(x: mx.array, spec: Spec) -> tuple[mx.array, tuple[list[int], list[int]]]:
    """The pixels up to the last that a window reads, and the padding around them."""
    over = [_overhang(a) for a in (spec.rows, spec.cols)]
    h, w = (a.n_in + min(0, o) for a, o in zip((spec.rows, spec.cols), over, strict=True))
    return x[:, :h, :w], ([spec.rows.pad, spec.cols.pad], [max(0, o) for o in over])
