"""Convolution and its gradients by MLX's own functions, behind which a GPU has its vendor's library."""

from __future__ import annotations

import functools
import os
from typing import Any

import mlx.core as mx

from mpsfunc.channels import activation_spec
from mpsfunc.channels.activation_spec import Activation
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import launch
from mpsfunc.windows.axis import Axis


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
        wide = launch.accumulator(y.dtype)
        return activation_spec.finished(y.astype(wide) + b.astype(wide), act).astype(y.dtype)

    return launch.fused(activated if act.kind else biased)


def conv(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The images that `Spec` convolves to, before bias and neuron."""
    rows, cols = spec.rows, spec.cols
    if _product(x, spec):
        return _taken(x, spec) @ w.reshape(w.shape[0], w.shape[3]).T
    if _photographs(spec, x.shape[3], x.dtype):
        return _deeper(x, w, spec)
    (height, top, bottom), (width, left, right) = _padded(rows), _padded(cols)
    padding = [top, left], [bottom, right]
    x = x[:, :height, :width]
    if multiplies_in_float32(x, spec) and _dense(spec) and spec.groups == 1:
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
    channels = w.shape[3]
    if _product(dy, spec):
        return _put_back(dy @ w.reshape(w.shape[0], channels), spec)
    photographs = channels == 3 and _photographs(spec, channels, dy.dtype)
    if photographs:  # cuDNN has slow algorithms for three, but not for four; measured with eight
        w = mx.pad(w, [(0, 0), (0, 0), (0, 0), (0, _FOR_UNITS - channels)])
    swapped = exchanged(w, spec.groups)
    lows = [(a.size - 1) * a.dilation - a.pad for a in (rows, cols)]
    highs = [a.n_in - 1 - (a.n_out - 1) * a.stride + a.pad for a in (rows, cols)]
    options: dict[str, Any] = {"padding": (lows, highs), "kernel_dilation": (rows.dilation, cols.dilation)}
    unflipped = launch.backend(spec.stream) == "metal" or _of_64(dy, channels, spec)  # Winograd may run on Metal
    if rows.stride == cols.stride == 1 and unflipped:
        return mx.conv_general(dy, swapped[:, ::-1, ::-1], groups=spec.groups, **options)
    spread = (rows.stride, cols.stride)
    dx = mx.conv_general(dy, swapped, input_dilation=spread, flip=True, groups=spec.groups, **options)
    return dx[..., :channels] if photographs else dx


def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of ungrouped weights."""
    rows, cols = spec.rows, spec.cols
    if x.dtype == mx.float16:  # a sum over a batch may leave the range that the library would round it to
        dy, x = dy.astype(mx.float32), x.astype(mx.float32)
    strided = max(rows.stride, cols.stride) > 1
    if _product(x, spec) or (strided and _on_pixels(spec)):
        return (dy.reshape(-1, dy.shape[3]).T @ _taken(x, spec).reshape(-1, x.shape[3]))[:, None, None]
    seen = 4 * dy.size // dy.shape[3] * rows.size * cols.size * x.shape[3]
    if strided and x.shape[3] >= _WIDE and seen <= _MOST_SEEN and multiplies_in_float32(x, spec):
        return _by_patches(dy, x, spec)  # cuDNN multiplies what lies between the strides as well
    over = [_overhang(a) for a in (rows, cols)]
    height, width = (a.n_in + min(0, o) for a, o in zip((rows, cols), over, strict=True))
    behind = [max(0, o) for o in over]
    small = rows.size * cols.size < _MANY_TAPS and x.shape[3] < _WIDE and x.dtype == mx.float32
    if strided and small and not multiplies_in_float32(x, spec):
        # cuDNN is faster with no less padding behind than before, though it makes more taps, which are left out then.
        behind = [max(o, a.pad) for o, a in zip(behind, (rows, cols), strict=True)]
    dw = mx.conv_general(
        x[:, :height, :width].swapaxes(0, 3),
        dy.swapaxes(0, 3),
        stride=(rows.dilation, cols.dilation),
        padding=([rows.pad, cols.pad], behind),
        kernel_dilation=(rows.stride, cols.stride),
    )
    return dw[:, : rows.size, : cols.size].swapaxes(0, 3)


def _by_patches(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The same by one matrix product with what each window sees."""
    rows, cols = spec.rows, spec.cols
    x = mx.pad(x, [(0, 0), *((a.pad, max(0, _overhang(a))) for a in (rows, cols)), (0, 0)])
    n, height, width, channels = x.shape
    line = width * channels
    steps = height * line, rows.stride * line, cols.stride * channels, rows.dilation * line, cols.dilation * channels, 1
    seen = mx.as_strided(x, (n, rows.n_out, cols.n_out, rows.size, cols.size, channels), steps)
    flat = dy.reshape(-1, dy.shape[3]).T
    return (flat @ seen.reshape(flat.shape[1], -1)).reshape(dy.shape[3], rows.size, cols.size, channels)


def _deeper(x: mx.array, w: mx.array, spec: Spec) -> mx.array:
    """The same convolution without a stride, of an image with the channels of a block of pixels in each pixel."""
    (n, height, width, channels), out, step = x.shape, w.shape[0], spec.rows.stride
    padding, taps = [], []
    for axis in (spec.rows, spec.cols):
        lead = -axis.pad % step  # zeros before the first tap, so that windows start where blocks do
        size, low = -(-(lead + axis.size) // step), (axis.pad + lead) // step
        padding.append((low, axis.n_out - 1 + size - low - axis.n_in // step))
        taps.append((lead, size * step - lead - axis.size))
    w = mx.pad(w, [(0, 0), *taps, (0, 0)])
    x = x.reshape(n, height // step, step, width // step, step, channels)
    w = w.reshape(out, w.shape[1] // step, step, w.shape[2] // step, step, channels)
    x, w = (a.swapaxes(2, 3).flatten(3) for a in (x, w))
    lacking = -x.shape[3] % 8 if x.dtype.size == 2 else 0
    if lacking:  # for the units that multiply sixteen bits
        x = mx.concatenate([x, mx.zeros((*x.shape[:3], lacking), x.dtype)], axis=3)
        w = mx.pad(w, [(0, 0), (0, 0), (0, 0), (0, lacking)])
    return mx.conv_general(x, w, padding=([low for low, _ in padding], [high for _, high in padding]))


def exchanged(w: mx.array, groups: int) -> mx.array:
    """Weights whose inputs and outputs have changed places within each group."""
    if groups == 1:
        return w.swapaxes(0, 3)
    out, kh, kw, width = w.shape
    swapped = w.reshape(groups, out // groups, kh, kw, width).transpose(0, 4, 2, 3, 1)
    return swapped.reshape(groups * width, kh, kw, out // groups)


# Input channels from which a product with what windows see is worth its while, and how many bytes that may take.
_WIDE, _MOST_SEEN = 64, 2**30
# Pixels of images that are many, and taps of windows.
_MANY_PIXELS, _MANY_TAPS = 2**18, 10
# Channels of a photograph, with transparency or without.
_OF_PHOTOGRAPHS = (3, 4)
# As many channels as cuDNN is given for the gradient of three.
_FOR_UNITS = 8


def multiplies_in_float32(x: mx.array, spec: Spec) -> bool:
    """Whether an NVIDIA GPU's float32 units do the work, where cuDNN chooses otherwise than for its tensor cores."""
    full = x.dtype == mx.float32 and os.environ.get("MLX_ENABLE_TF32", "1") == "0"
    return full and launch.backend(spec.stream) == "cuda"


def _photographs(spec: Spec, channels: int, dtype: mx.Dtype) -> bool:
    """Whether cuDNN has a slow way for photographs, wide windows and a stride, and a faster one for more channels.

    Measured on an H200 with windows of 7 and 11 pixels; of 5 and less cuDNN's own way is the faster one.
    """
    rows, cols = spec.rows, spec.cols
    even = rows.stride == cols.stride > 1 and all(2 * a.size > 5 * a.stride for a in (rows, cols))
    blocks = all(a.n_in % a.stride == 0 and a.dilation == 1 for a in (rows, cols))
    if not (channels in _OF_PHOTOGRAPHS and spec.groups == 1 and even and blocks):
        return False
    units = os.environ.get("MLX_ENABLE_TF32", "1") != "0" if dtype == mx.float32 else dtype == mx.bfloat16
    return units and launch.backend(spec.stream) == "cuda"


def _of_64(dy: mx.array, channels: int, spec: Spec) -> bool:
    """Whether cuDNN's forward convolution is enough faster than its data gradient to turn the weights round for it.

    Measured on an H200 in 16 bits with windows of 3x3: with fewer pixels, or 16, 32, 128 or 256 channels, it is not.
    """
    window = spec.rows.size == spec.cols.size == 3 and _dense(spec) and spec.groups == 1
    return window and dy.dtype.size == 2 and channels == dy.shape[3] == 64 and dy.size >= 64 * _MANY_PIXELS


def _dense(spec: Spec) -> bool:
    return all(a.stride == a.dilation == 1 for a in (spec.rows, spec.cols))


def _product(x: mx.array, spec: Spec) -> bool:
    """Whether there is nothing but a matrix product, and a library for those does it faster."""
    pixel = spec.rows.n_in == spec.cols.n_in == 1
    return _on_pixels(spec) and (pixel or multiplies_in_float32(x, spec))


def _on_pixels(spec: Spec) -> bool:
    """Whether each window is a pixel of the image."""
    axes = spec.rows, spec.cols
    return spec.groups == 1 and all(a.size == 1 and a.pad == 0 and (a.n_out - 1) * a.stride < a.n_in for a in axes)


def _taken(x: mx.array, spec: Spec) -> mx.array:
    """Those pixels."""
    return x[_places(spec)]


def _put_back(pixels: mx.array, spec: Spec) -> mx.array:
    """The image that has them and zeros between them."""
    rows, cols = spec.rows, spec.cols
    if (rows.n_in, cols.n_in) == (rows.n_out, cols.n_out):
        return pixels
    image = mx.zeros((pixels.shape[0], rows.n_in, cols.n_in, pixels.shape[3]), pixels.dtype)
    image[_places(spec)] = pixels
    return image


def _places(spec: Spec) -> tuple[slice, slice, slice]:
    rows, cols = (slice(0, (a.n_out - 1) * a.stride + 1, a.stride) for a in (spec.rows, spec.cols))
    return slice(None), rows, cols


def _overhang(axis: Axis) -> int:
    """Pixels by which the last window extends past the end of the image; negative when it ends inside."""
    return (axis.n_out - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1 - axis.pad - axis.n_in


def _padded(axis: Axis) -> tuple[int, int, int]:
    """How many pixels are read, and the padding before and behind them."""
    # The same on both sides if that makes no more windows: for other padding MLX copies the image.
    extent = (axis.size - 1) * axis.dilation + 1
    if (axis.n_in + 2 * axis.pad - extent) // axis.stride + 1 == axis.n_out:
        return axis.n_in, axis.pad, axis.pad
    over = _overhang(axis)
    return axis.n_in + min(0, over), axis.pad, max(0, over)
