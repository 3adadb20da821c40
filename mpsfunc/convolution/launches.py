"""How convolutions and their gradients run on a GPU: as tiles of a matrix product, or channel by channel."""

from __future__ import annotations

import functools
import math

import mlx.core as mx

from mpsfunc.convolution.params import ConvDepthwiseGradWeightsLaunch, ConvGradWeightsLaunch, ConvLaunch
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch, Output
from mpsfunc.core.params import Threadgroup

Shape = tuple[int, ...]


# The tiled bodies give a threadgroup of 256 a tile of 64 by 64.
_TILE, _GROUP = 64, (256, 1, 1)
# Pixels of a row that a thread of the depthwise bodies owns, and taps whose gradients one sums up at most.
_PIXELS, _TAPS = 4, 5
# Channels and taps up to which gradients of weights are narrow.
_NARROW, _MOST_TAPS = 64, 9
_LONGEST_ROW = 256
# Threads of their threadgroups, of which a GPU has more at a time the fewer they are.
_THREADS = 128
# Bytes of threadgroup memory that a strip of an image may take on CUDA, and sums of sixteen by sixteen products that a
# simdgroup has.
_STRIP, _MATRICES = 3 * 2**14, 4
# Floats that partial weight gradients may take.
_PARTIALS = 4 * 2**20


def conv(spec: Spec, x_shape: Shape, out: int, dtype: mx.Dtype) -> tuple[KernelLaunch, ...]:
    """The convolution of x with weights and ``out`` biases in the accumulator's dtype."""
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    if depthwise(groups, x_shape[3] // groups):
        return _depthwise_conv(spec, x_shape, out, dtype)
    result = ((x_shape[0], rows.n_out, cols.n_out, out), dtype)
    pixels = x_shape[0] * rows.n_out * cols.n_out
    grid = grids.tiles(_tiles(pixels), _tiles(out // groups), groups)
    return (KernelLaunch("conv", ("x", "w", "bias"), ("y",), (result,), grid, _GROUP, _params(spec)),)


def grad_input(spec: Spec, dy_shape: Shape, width: int, dtype: mx.Dtype) -> tuple[KernelLaunch, ...]:
    """The image's gradient, ``width`` channels a group, from dy, weights and a bias for each channel."""
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    if depthwise(groups, width):
        return _depthwise_grad_input(spec, dy_shape, dtype)
    result = ((dy_shape[0], rows.n_in, cols.n_in, groups * width), dtype)
    pixels = dy_shape[0] * rows.n_in * cols.n_in
    grid = grids.tiles(_tiles(pixels), _tiles(width), groups)
    return (KernelLaunch("conv_grad_input", ("dy", "w", "bias"), ("dx",), (result,), grid, _GROUP, _params(spec)),)


def grad_weights(
    spec: Spec, dy_shape: Shape, x_shape: Shape, dtype: mx.Dtype, *, matrices: bool
) -> tuple[KernelLaunch, ...]:
    """The weights' gradient, of shape (o, kh, kw, c / groups), from dy and x.

    ``matrices``: by matrices of simdgroups for all that is not depthwise.
    """
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    out, width = dy_shape[3], x_shape[3] // groups
    if depthwise(groups, width):
        return _depthwise_grad_weights(spec, dy_shape, x_shape)
    at_a_time = 0 if matrices else strip(spec, out, width, dtype)
    if at_a_time:
        return _tensor_core_grad_weights(spec, dy_shape, x_shape, at_a_time)
    if not matrices and narrow(spec, out, width):
        return _register_grad_weights(spec, dy_shape, x_shape)
    depth = rows.size * cols.size * width
    down, across = _tiles(out // groups), _tiles(depth)
    pixels = dy_shape[0] * rows.n_out * cols.n_out
    parts = max(1, min(grids.FILL // (down * across * groups), _PARTIALS // (out * depth), pixels // 256))
    partial = ((parts, out * depth), mx.float32)
    vector_width = _vector_width(min(math.prod(dy_shape), math.prod(x_shape)), width, out // groups)
    first = KernelLaunch(
        "conv_grad_weights" if matrices else "conv_grad_weights_simt",
        ("dy", "x"),
        ("partial",),
        (partial,),
        grids.tiles(down, across, groups * parts),
        _GROUP,
        ConvGradWeightsLaunch(rows, cols, groups, parts),
        (("V", vector_width),) if matrices else (),
    )
    return first, _summed(spec, out, width)


# Few channels -------------------------------------------------------------------------------------------


def narrow(spec: Spec, out: int, width: int) -> bool:
    """Whether weights are so few that a thread has registers for all taps of some channels."""
    rows, cols = spec.rows, spec.cols
    few = rows.size * cols.size <= _MOST_TAPS and max(out, width) <= _NARROW
    # A thread goes along whole rows, which must neither keep it for long nor be over at once.
    fits = cols.stride <= 2 and cols.dilation == 1 and 2 <= cols.n_out <= _LONGEST_ROW
    return spec.groups == 1 and few and fits


def _register_grad_weights(spec: Spec, dy_shape: Shape, x_shape: Shape) -> tuple[KernelLaunch, ...]:
    rows, cols = spec.rows, spec.cols
    out, width, lines = dy_shape[3], x_shape[3], dy_shape[0] * rows.n_out
    of_dy, of_x = _vector_width(math.prod(dy_shape), out), 2 if width % 2 == 0 and math.prod(x_shape) >= 8 else 1
    down, blocks_down = _evenly(out // of_dy, 4)
    across, blocks_across = _evenly(width // of_x, 8)
    taps = rows.size * cols.size
    # As many threadgroups as a quarter of `FILL` multiprocessors have registers for.
    own = taps * of_dy * of_x
    at_a_time = grids.FILL // 4 * (3 if own > 36 else 4 if own > 8 else 6)
    parts = min(at_a_time // (blocks_down * blocks_across), _PARTIALS // (out * taps * width))
    parts = max(1, min(parts, lines // (_THREADS // (down * across))))
    in_flight = 4 if cols.stride == 1 or cols.size == 1 else 3
    template = {"KY": rows.size, "KX": cols.size, "S": cols.stride, "U": in_flight, "OUT": out, "IN": width}
    template |= {"O": of_dy, "I": of_x, "G": _THREADS, "DOWN": down, "ACROSS": across}
    first = KernelLaunch(
        "conv_grad_weights_registers",
        ("dy", "x"),
        ("partial",),
        (((parts, out * taps * width), mx.float32),),
        (parts * _THREADS, blocks_down, blocks_across),
        (_THREADS, 1, 1),
        ConvGradWeightsLaunch(rows, cols, spec.groups, parts),
        tuple(template.items()),
    )
    return first, _summed(spec, out, width)


def strip(spec: Spec, out: int, width: int, dtype: mx.Dtype) -> int:
    """How many rows of windows a threadgroup holds at a time where tensor cores make narrow gradients; 0 elsewhere."""
    rows, cols = spec.rows, spec.cols
    whole = out % 8 == width % 8 == 0 and dtype.size == 2 and cols.n_out >= 8 and _tensor_cores()
    simple = rows.dilation == 1 and rows.stride <= 2 and rows.size * cols.size > 1
    if not (whole and simple and narrow(spec, out, width)):
        return 0
    # Sixteens of channels and eight more lie from pixel to pixel, and eight windows behind the last row.
    of_dy, of_x = (eights + eights % 2 + 1 for eights in _eights(out, width))
    of_windows = -(-cols.n_out // 8) * 8 * of_dy
    of_pixels = -(-((cols.n_out - 1) * cols.stride + cols.size) // cols.stride) * cols.stride * of_x
    left = _STRIP // 16 - 8 * of_dy - (rows.size - rows.stride) * of_pixels
    most = left // (of_windows + rows.stride * of_pixels)
    return _evenly(rows.n_out, most)[0] if most > 0 else 0


@functools.cache
def _tensor_cores() -> bool:
    """Whether the GPU, if it is NVIDIA's, has the instructions by which `simdgroup_mma.h` multiplies."""
    return int(mx.device_info(mx.gpu).get("compute_capability_major", 8)) >= 8


def _eights(out: int, width: int) -> tuple[int, int]:
    """Eights of channels of dy and of x that a threadgroup takes: as many sums as a thread has registers for."""
    of_dy, of_x = out // 8, width // 8
    most = _MATRICES // ((of_dy + 1) // 2)
    return of_dy, max(n for n in range(1, of_x + 1) if of_x % n == 0 and (n + 1) // 2 <= most)


def _tensor_core_grad_weights(spec: Spec, dy_shape: Shape, x_shape: Shape, at_a_time: int) -> tuple[KernelLaunch, ...]:
    rows, cols = spec.rows, spec.cols
    out, width, taps = dy_shape[3], x_shape[3], rows.size * cols.size
    of_dy, of_x = _eights(out, width)
    across, strips = width // (8 * of_x), dy_shape[0] * -(-rows.n_out // at_a_time)
    parts = max(1, min(grids.FILL // 2 // across, strips, _PARTIALS // (out * taps * width)))
    _, parts = _evenly(strips, -(-strips // parts))
    template = {"KY": rows.size, "KX": cols.size, "SY": rows.stride, "SX": cols.stride, "N": cols.n_out}
    template |= {"R": at_a_time, "O": 8 * of_dy, "I": 8 * of_x}
    first = KernelLaunch(
        "conv_grad_weights_tensor_core",
        ("dy", "x"),
        ("partial",),
        (((parts, out * taps * width), mx.float32),),
        (parts * taps * 32, 1, across),
        (taps * 32, 1, 1),
        ConvGradWeightsLaunch(rows, cols, spec.groups, parts),
        tuple(template.items()),
    )
    return first, _summed(spec, out, width)


def _evenly(n: int, most: int) -> tuple[int, int]:
    """How many of n a block has, ``most`` at most, and how many blocks there are then."""
    blocks = -(-n // most)
    return -(-n // blocks), blocks


# Channels with outputs of their own --------------------------------------------------------------------


def depthwise(groups: int, width: int) -> bool:
    """Whether every channel is a group, for which tiles would be all but empty."""
    return groups > 1 and width == 1


def _depthwise_conv(spec: Spec, x_shape: Shape, out: int, dtype: mx.Dtype) -> tuple[KernelLaunch, ...]:
    """The depthwise convolution of x with float32 weights, and ``out`` biases."""
    rows, cols = spec.rows, spec.cols
    result = ((x_shape[0], rows.n_out, cols.n_out, out), dtype)
    return (_by_pixel("conv_depthwise", ("x", "w", "bias"), "y", result, spec, out == x_shape[3], x_shape),)


def _depthwise_grad_input(spec: Spec, dy_shape: Shape, dtype: mx.Dtype) -> tuple[KernelLaunch, ...]:
    """The image's gradient from dy and float32 weights, and a bias for each channel of the image."""
    channels = spec.groups
    result = ((dy_shape[0], spec.rows.n_in, spec.cols.n_in, channels), dtype)
    name, inputs = "conv_depthwise_grad_input", ("dy", "w", "bias")
    return (_by_pixel(name, inputs, "dx", result, spec, dy_shape[3] == channels, dy_shape),)


def _depthwise_grad_weights(spec: Spec, dy_shape: Shape, x_shape: Shape) -> tuple[KernelLaunch, ...]:
    """The weights' gradient, of shape (o, kh, kw, 1), from dy and x."""
    rows, cols, out = spec.rows, spec.cols, dy_shape[3]
    taps, pixels = rows.size * cols.size, math.prod(dy_shape[:3])
    rounds = -(-taps // _TAPS)
    smaller = min(math.prod(dy_shape), math.prod(x_shape))
    per_thread = _vector_width(smaller, out) if out == x_shape[3] else 1
    (across, _, _), group = grids.column_threads(out // per_thread, pixels)
    most = grids.FILL // (-(-across // group[0]) * rounds)
    parts = max(1, min(most, _PARTIALS // (out * taps), pixels // (16 * group[1])))
    first = KernelLaunch(
        "conv_depthwise_grad_weights",
        ("dy", "x"),
        ("partial",),
        (((parts, out * taps), mx.float32),),
        (across, parts * group[1], rounds),
        group,
        ConvDepthwiseGradWeightsLaunch(rows, cols, spec.groups, Threadgroup(*group[:2])),
        (("V", per_thread), ("U", -(-taps // rounds))),
    )
    return first, _summed(spec, out, 1)


def _by_pixel(
    body: str,
    inputs: tuple[str, ...],
    output: str,
    result: Output,
    spec: Spec,
    alone: bool,
    source: Shape,
) -> KernelLaunch:
    """A thread for some channels, if each has one output alone, of a few pixels of the result."""
    (n, height, width, channels), _ = result
    per_thread = _vector_width(math.prod(source), channels) if alone else 1
    grid, group = grids.threads(-(-width // _PIXELS) * (channels // per_thread), height, n)
    return KernelLaunch(body, inputs, (output,), (result,), grid, group, _params(spec), (("V", per_thread),))


# Both ---------------------------------------------------------------------------------------------------


def _vector_width(size: int, *widths: int) -> int:
    """Channels that a thread loads together from arrays of this size at least, in which they run in such widths."""
    return 4 if size >= 8 and all(width % 4 == 0 for width in widths) else 1


def _params(spec: Spec) -> ConvLaunch:
    return ConvLaunch(spec.rows, spec.cols, spec.groups, spec.neuron.kind, spec.neuron.gpu_params)


def _tiles(n: int) -> int:
    return -(-n // _TILE)


def _summed(spec: Spec, out: int, width: int) -> KernelLaunch:
    """The launch that adds partial gradients of weights."""
    result = ((out, spec.rows.size, spec.cols.size, width), mx.float32)
    return launch.sum_partials(math.prod(result[0]))._replace(results=(result,))
