"""Convolution's kernels, and which of them runs: ours, or MLX's own convolution where that is the faster one."""

from __future__ import annotations

import functools

import mlx.core as mx

from mpsfunc.channels.sums import channel_sums
from mpsfunc.convolution import clamped_edges, launches, library
from mpsfunc.convolution.params import ConvGradWeightsParams, ConvParams
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import environment, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.windows.axis import Axis


def conv(x: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """Images (n, out_h, out_w, o) of x's dtype."""
    form, windows = _form(spec.rows, spec.cols, spec.groups)
    if form == _CLAMPED:
        return conv(clamped_edges.extend(x, spec.rows, spec.cols), w, b, _widened(spec))
    if form == _COVERING:
        return conv(_flat(x), _flat(w), b, _on_a_pixel(spec))
    # MLX's forward convolution is cuDNN on NVIDIA, and on Apple GPUs Winograd or a matrix-unit kernel.
    if launch.routed(spec.stream, "cuda", "metal") and library.ordinary(spec) and x.size:
        return library.finished(library.conv(x, w.astype(x.dtype), spec), b, spec)
    n, out = x.shape[0], w.shape[0]
    acc = launch.accumulator(x.dtype)
    result = ((n, spec.rows.n_out, spec.cols.n_out, out), x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.conv(spec, x.shape, out, x.dtype)

    arrays = {"x": x, "w": _wide(w, x, spec), "bias": b.astype(acc)}
    return launch.launch("conv", arrays, _params(windows, spec), (result,), kernels, spec.stream)[0]


def _wide(w: mx.array, images: mx.array, spec: Spec) -> mx.array:
    """Weights as a launch takes them: in the accumulator's dtype, which the CPU's kernels widen those of images to."""
    ready = launch.backend(spec.stream) == "cpu" and w.dtype == images.dtype
    return w if ready else w.astype(launch.accumulator(images.dtype))


def grad_input(dy: mx.array, w: mx.array, b: mx.array, spec: Spec) -> mx.array:
    """Images (n, h, w, c) of dy's dtype."""
    form, windows = _form(spec.rows, spec.cols, spec.groups)
    if form == _CLAMPED:
        assert not spec.biased and not spec.neuron.kind, "what the margin took back is added before them"
        wide = dy.astype(launch.accumulator(dy.dtype))  # so that what is folded was not rounded
        dx = grad_input(wide, w, b, _widened(spec))
        return clamped_edges.fold(dx, spec.rows, spec.cols).astype(dy.dtype)
    n, channels = dy.shape[0], w.shape[3] * spec.groups
    if form == _COVERING:
        dx = grad_input(dy, _flat(w), mx.tile(b, spec.rows.n_in * spec.cols.n_in), _on_a_pixel(spec))
        return dx.reshape(n, spec.rows.n_in, spec.cols.n_in, channels)
    # cuDNN's data gradient; on Apple GPUs MLX is fast only where no stride spreads dy (its strided path is general).
    backends = ("cuda", "metal") if spec.rows.stride == spec.cols.stride == 1 else ("cuda",)
    if launch.routed(spec.stream, *backends) and library.ordinary(spec) and dy.size:
        return library.finished(library.grad_input(dy, w.astype(dy.dtype), spec), b, spec)
    result = ((n, spec.rows.n_in, spec.cols.n_in, channels), dy.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.grad_input(spec, dy.shape, w.shape[3], dy.dtype)

    acc = launch.accumulator(dy.dtype)
    arrays = {"dy": dy, "w": _wide(w, dy, spec), "bias": b.astype(acc)}
    return launch.launch("conv_grad_input", arrays, _params(windows, spec), (result,), kernels, spec.stream)[0]


def grad_weights(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """Weights (o, kh, kw, c / groups) in the accumulator's dtype, or the images' where cuDNN makes them."""
    return _grad_weights(dy, x, spec, 1)[0]


def grad_parameters(dy: mx.array, x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """`grad_weights` and `grad_bias` on a CPU, which reads dy once for both."""
    dw, db = _grad_weights(dy, x, spec, 2)
    return dw, db


def _grad_weights(dy: mx.array, x: mx.array, spec: Spec, count: int) -> list[mx.array]:
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    form, windows = _form(rows, cols, groups)
    if form == _CLAMPED:
        return _grad_weights(dy, clamped_edges.extend(x, rows, cols), _widened(spec), count)
    out, width = dy.shape[3], x.shape[3] // groups
    shape = out, rows.size, cols.size, width
    if form == _COVERING:
        dw, *db = _grad_weights(dy, _flat(x), _on_a_pixel(spec), count)
        return [dw.reshape(shape), *db]
    # cuDNN's weight gradient, which MLX reaches by a convolution over swapped axes but has no grouped form of.
    ordinary = groups == 1 and launch.routed(spec.stream, "cuda") and library.ordinary(spec) and x.size
    if ordinary and not _slow_in_cudnn(spec, out, x):
        return [library.grad_weights(dy, x, spec)]
    acc = launch.accumulator(x.dtype)
    results = (shape, acc), ((out,), acc)

    def kernels() -> tuple[KernelLaunch, ...]:
        matrices = launch.backend(spec.stream) == "metal"
        return launches.grad_weights(spec, dy.shape, x.shape, x.dtype, matrices=matrices)

    params = ConvGradWeightsParams(*windows, _winograd())
    return launch.launch("conv_grad_weights", {"dy": dy, "x": x}, params, results[:count], kernels, spec.stream)


def _slow_in_cudnn(spec: Spec, out: int, x: mx.array) -> bool:
    """Whether our kernels for few channels beat cuDNN's weight gradient on an H200.

    docs/benchmarks/README.md has most of the times.
    """
    rows, cols, width = spec.rows, spec.cols, x.shape[3]
    taps, stride = rows.size * cols.size, max(rows.stride, cols.stride)
    if launches.strip(spec, out, width, x.dtype):
        few = width <= 32 and (stride == 1 or out * width <= 1024)
        return few or x.dtype == mx.float16  # which cuDNN would be given as float32
    if not launches.narrow(spec, out, width) or stride > 2 or rows.dilation > 1:
        return False
    if width in (1, 3):  # photographs
        return stride == 1 and taps > 1
    if library.multiplies_in_float32(x, spec) and taps > 1 and width % 2 == 0:
        return stride == 1 or width <= 32
    if taps > 1:
        most = 0 if stride == 1 and out > 32 else _MOST_WEIGHTS.get(x.dtype, 0)
    else:  # of bfloat16 a matrix product is faster
        most = 0 if stride == 1 or x.dtype == mx.bfloat16 else 2048
    return width % 2 == 0 and width <= 32 and out * width <= most


# Inputs times outputs up to which it does, of windows of several taps.
_MOST_WEIGHTS = {mx.float32: 1024, mx.float16: 512, mx.bfloat16: 64}


def grad_bias(dy: mx.array, spec: Spec) -> mx.array:
    """A vector (o,) in the accumulator's dtype."""
    return channel_sums(dy, spec.stream)


def _params(windows: tuple[Axis, Axis, int], spec: Spec) -> ConvParams:
    kind, a, b, c = spec.neuron
    return ConvParams(*windows, kind, _winograd(), a, b, c)


def _winograd() -> int:
    """Whether a CPU may save multiplications where a window is 3 by 3."""
    return int(environment.switch("MPSFUNC_WINOGRAD", True))


# Other forms of the same convolution --------------------------------------------------------------------


_PLAIN, _CLAMPED, _COVERING = range(3)


@functools.lru_cache(maxsize=1024)
def _form(rows: Axis, cols: Axis, groups: int) -> tuple[int, tuple[Axis, Axis, int]]:
    """Which form a convolution takes, and the windows and groups of every CPU kernel of a plain one."""
    windows = (rows._replace(edge=0), cols._replace(edge=0), groups)
    if clamped_edges.clamped(rows, cols):
        return _CLAMPED, windows
    # One window, larger than a pixel, that takes exactly the whole image.
    whole = all(a.n_out == 1 and a.pad == 0 and a.size == a.n_in and a.dilation == 1 for a in (rows, cols))
    return (_COVERING if whole and groups == 1 and rows.n_in * cols.n_in > 1 else _PLAIN), windows


def _widened(spec: Spec) -> Spec:
    return spec._replace(rows=clamped_edges.widened(spec.rows), cols=clamped_edges.widened(spec.cols))


def _on_a_pixel(spec: Spec) -> Spec:
    one = Axis(1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0)
    return spec._replace(rows=one, cols=one)


def _flat(a: mx.array) -> mx.array:
    """Images or weights as one pixel of many channels."""
    return a.reshape(a.shape[0], 1, 1, a.shape[1] * a.shape[2] * a.shape[3])
