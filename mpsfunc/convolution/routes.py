"""What convolutions ask before they launch: in which form, by our kernels or MLX's own, and with which parameters."""

from __future__ import annotations

import functools

import mlx.core as mx

from mpsfunc.convolution import launches, library, margins
from mpsfunc.convolution.params import ConvGradWeightsParams, ConvParams
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import environment, launch
from mpsfunc.windows.axis import Axis

# Other forms of the same convolution --------------------------------------------------------------------


PLAIN, MARGIN, COVERING = range(3)


@functools.lru_cache(maxsize=1024)
def form(rows: Axis, cols: Axis, groups: int, exchanged: bool) -> tuple[int, tuple[Axis, Axis, int]]:
    """Which form a convolution takes, and the windows and groups of every CPU kernel of a plain one."""
    windows = (rows._replace(edge=0), cols._replace(edge=0), groups)
    if margins.has_margin(rows, cols):
        return MARGIN, windows
    # One window, larger than a pixel, that takes exactly the whole image.
    whole = all(a.n_out == 1 and a.pad == 0 and a.size == a.n_in and a.dilation == 1 for a in (rows, cols))
    flattens = whole and groups == 1 and not exchanged and rows.n_in * cols.n_in > 1
    return (COVERING if flattens else PLAIN), windows


def widened(spec: Spec) -> Spec:
    """The convolution of an image with a margin."""
    return spec._replace(rows=margins.widened(spec.rows), cols=margins.widened(spec.cols))


def on_a_pixel(spec: Spec) -> Spec:
    """The convolution of one pixel."""
    one = Axis(1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0)
    return spec._replace(rows=one, cols=one)


def flat(a: mx.array) -> mx.array:
    """Images or weights as one pixel of many channels."""
    return a.reshape(a.shape[0], 1, 1, a.shape[1] * a.shape[2] * a.shape[3])


# Whose kernels ------------------------------------------------------------------------------------------


def slow_in_cudnn(spec: Spec, out: int, x: mx.array) -> bool:
    """Whether our kernels for few channels beat cuDNN's weight gradient on an H200.

    docs/benchmarks/convolution/gpu.md has times of both.
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


# What a launch is given ---------------------------------------------------------------------------------


def weights(w: mx.array, images: mx.array, spec: Spec) -> mx.array:
    """Weights as a launch takes them: in the accumulator's dtype, which the CPU's kernels widen those of images to."""
    ready = launch.backend(spec.stream) == "cpu" and w.dtype == images.dtype
    return w if ready else w.astype(launch.accumulator(images.dtype))


def params(windows: tuple[Axis, Axis, int], spec: Spec) -> ConvParams:
    """Of a convolution, or the gradient of its images, on a CPU."""
    kind, a, b, c = spec.neuron
    return ConvParams(*windows, kind, _winograd(windows), int(spec.exchanged), a, b, c)


def grad_weights_params(windows: tuple[Axis, Axis, int], spec: Spec) -> ConvGradWeightsParams:
    """Of the gradient of weights on a CPU."""
    return ConvGradWeightsParams(*windows, _winograd(windows), int(spec.exchanged))


def _winograd(windows: tuple[Axis, Axis, int]) -> int:
    """Whether a CPU may save multiplications, where a window or every second of its taps are 3 by 3."""
    return int(windows[0].size > 2 < windows[1].size and environment.switch("MPSFUNC_WINOGRAD", True))
