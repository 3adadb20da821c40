"""Convolution and its gradients by MLX's own functions, behind which a GPU has its vendor's library."""

from __future__ import annotations

import functools
import os
from typing import Any

import mlx.core as mx

from mpsfunc import _activation, _launch
from mpsfunc._activation import Activation
from mpsfunc._conv_spec import Spec
from mpsfunc.window import Axis


def ordinary(spec: Spec) -> bool:
    """Whether all windows start at or before their first pixel and touch the image, as the libraries expect."""
    return all(
        0 <= a.pad <= (a.size - 1) * a.dilation and -a.n_in < _overhang(a) <= (a.size - 1) * a.dilation
        for a in (spec.rows, spec.cols)
    )


def finished(y: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """Adds the bias to y and applies the neuron, in one kernel."""
    if not spec.biased and not spec.neuron.kind:
        return y
    done: mx.array = _finish(spec.neuron)(y, b)
    return done


@functools.lru_cache(maxsize=256)
def _finish(act: Activation) -> Any:
    def biased(y: mx.array, b: mx.array) -> mx.array:
        return y + b.astype(y.dtype)

    def activated(y: mx.array, b: mx.array) -> mx.array:
        wide = _launch.accumulator(y.dtype)
        return _activation.finished(y.astype(wide) + b.astype(wide), act).astype(y.dtype)

    return _launch.fused(activated if act.kind else biased)


def conv(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The images that `Spec` convolves to, before bias and neuron."""
    rows, cols = spec.rows, spec.cols
    if _product(x, spec):
        return x @ w.reshape(w.shape[0], w.shape[3]).T
    (height, top, bottom), (width, left, right) = _padded(rows), _padded(cols)
    padding = [top, left], [bottom, right]
    x = x[:, :height, :width]
    if _multiplies_in_float32(x, spec) and _dense(spec) and spec.groups == 1:
        return mx.conv_general(x, w[:, ::-1, ::-1], padding=padding, flip=True)  # cuDNN is faster that way round
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
    if _product(dy, spec):
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
    if _product(x, spec):
        return (dy.reshape(-1, dy.shape[3]).T @ x.reshape(-1, x.shape[3]))[:, None, None]
    strided = max(rows.stride, cols.stride) > 1
    if strided and x.shape[3] >= _WIDE and _multiplies_in_float32(x, spec):
        return _by_rows(dy, x, spec)  # cuDNN multiplies what lies between the strides as well
    over = [_overhang(a) for a in (rows, cols)]
    height, width = (a.n_in + min(0, o) for a, o in zip((rows, cols), over, strict=True))
    dw = mx.conv_general(
        x[:, :height, :width].swapaxes(0, 3),
        dy.swapaxes(0, 3),
        stride=(rows.dilation, cols.dilation),
        padding=([rows.pad, cols.pad], [max(0, o) for o in over]),
        kernel_dilation=(rows.stride, cols.stride),
    )
    return dw.swapaxes(0, 3)


def _by_rows(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The same by a matrix product for each row of taps."""
    rows, cols = spec.rows, spec.cols
    sides = [(a.pad, max(0, _overhang(a))) for a in (rows, cols)]
    x, flat = mx.pad(x, [(0, 0), *sides, (0, 0)]), dy.reshape(-1, dy.shape[3]).T

    def seen(axis: Axis, tap: int) -> slice:
        first = tap * axis.dilation
        return slice(first, first + (axis.n_out - 1) * axis.stride + 1, axis.stride)

    made = []
    for q in range(rows.size):
        line = x[:, seen(rows, q)]
        taps = mx.concatenate([line[:, :, seen(cols, p)] for p in range(cols.size)], axis=3)
        made.append(flat @ taps.reshape(flat.shape[1], taps.shape[3]))
    return mx.stack(made, axis=1).reshape(dy.shape[3], rows.size, cols.size, x.shape[3])


def exchanged(w: mx.array, groups: int) -> mx.array:
    """Weights whose inputs and outputs have changed places within each group."""
    if groups == 1:
        return w.swapaxes(0, 3)
    out, kh, kw, width = w.shape
    swapped = w.reshape(groups, out // groups, kh, kw, width).transpose(0, 4, 2, 3, 1)
    return swapped.reshape(groups * width, kh, kw, out // groups)


# Input channels from which a matrix product for each row of taps is worth its while.
_WIDE = 64


def _multiplies_in_float32(x: mx.array, spec: Spec) -> bool:
    """Whether an NVIDIA GPU's float32 units do the work, where cuDNN chooses otherwise than for its tensor cores."""
    full = x.dtype == mx.float32 and os.environ.get("MLX_ENABLE_TF32", "1") == "0"
    return full and _launch.backend(spec.stream) == "cuda"


def _dense(spec: Spec) -> bool:
    return all(a.stride == a.dilation == 1 for a in (spec.rows, spec.cols))


def _product(x: mx.array, spec: Spec) -> bool:
    """Whether there is nothing but a matrix product, and a library for those does it faster."""
    axes = spec.rows, spec.cols
    if spec.groups > 1 or not all(a.size == a.stride == 1 and a.pad == 0 and a.n_in == a.n_out for a in axes):
        return False
    return all(a.n_in == 1 for a in axes) or _multiplies_in_float32(x, spec)


def _overhang(axis: Axis) -> int:
    """Pixels that the last window hangs over the end of the image; negative when it ends inside."""
    return (axis.n_out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1 - axis.pad - axis.n_in


def _padded(axis: Axis) -> tuple[int, int, int]:
    """How many pixels are read, and the padding before and behind them."""
    # The same on both sides if that makes no more windows: for other padding MLX copies the image.
    extent = (axis.size - 1) * axis.dilation + 1
    if (axis.n_in + 2 * axis.pad - extent) // axis.stride + 1 == axis.n_out:
        return axis.n_in, axis.pad, axis.pad
    over = _overhang(axis)
    return axis.n_in + min(0, over), axis.pad, max(0, over)
