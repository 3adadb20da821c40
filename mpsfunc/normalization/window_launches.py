"""How the normalizations by window, and sums over windows, run on a GPU.

A window of size k around i is [i - k // 2, i + (k - 1) // 2], and the windows that hold i are those around the places
of the mirrored window; both are cut off where the image ends. Operations call their arrays dy and x.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from mpsfunc.core import grids
from mpsfunc.core.launch import KernelLaunch, Name
from mpsfunc.normalization.params import (
    LocalContrastGradLaunch,
    LocalContrastLaunch,
    LocalContrastWeightsLaunch,
    SquaresNormGradLaunch,
    SquaresNormLaunch,
    WindowLaunch,
)

Shape = tuple[int, ...]
# Windows over so many channels run in one step.
_FEW = 9
# Results that a thread of the bodies along an axis makes at most: 32 chunks of 32.
_RUN = 1024


def window_sum(x: mx.array, axis: int, before: int, after: int) -> tuple[KernelLaunch, ...]:
    """y[p] = the sum of x[q] along axis 1, 2 or 3, q in [p - before, p + after], in float32."""
    return (_along("window_sum", ("x",), ("y",), tuple(x.shape), axis, (before, after), (("S", 0),)),)


def cross_channel_norm(x: mx.array, size: int, alpha: float, beta: float, delta: float) -> tuple[KernelLaunch, ...]:
    """``x * (delta + alpha / size * sum of x^2) ** -beta`` over windows of channels, from x."""
    params = SquaresNormLaunch(alpha / size, beta, delta)
    if size > _FEW:
        return *_squares(tuple(x.shape), (3,), size), _by_squares(x, params)
    vector_width, pixels = _lanes(x), x.size // x.shape[3]
    grid, group = grids.threads(x.shape[3] // vector_width, -(-pixels // 4))
    template = (("V", vector_width), ("K", size), _quarters(beta))
    return (KernelLaunch("cross_channel_norm", ("x",), ("y",), (_like(x),), grid, group, params, template),)


def cross_channel_norm_grad(
    dy: mx.array, x: mx.array, size: int, alpha: float, beta: float, delta: float
) -> tuple[KernelLaunch, ...]:
    """The gradient of `cross_channel_norm`, from dy and x."""
    if size > _FEW:
        return _grad_by_squares(x, (3,), size, size, alpha, beta, delta)
    vector_width, channels = _lanes(x), x.shape[3]
    # What a thread works out for its neighbours is less beside two packs of its own.
    packs = 2 if vector_width == 4 and channels % 8 == 0 else 1
    grid, group = grids.threads(channels // (vector_width * packs), -(-x.size // (4 * channels)))
    params = SquaresNormGradLaunch(alpha / size, beta, delta, 2 * alpha * beta / size)
    template = (("V", vector_width), ("K", size), ("O", packs), _quarters(beta))
    names = ("dy", "x"), ("dx",)
    return (KernelLaunch("cross_channel_norm_grad", *names, (_like(x),), grid, group, params, template),)


def spatial_norm(x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float) -> tuple[KernelLaunch, ...]:
    """``x * (delta + alpha / kernel_size^2 * sum of x^2) ** -beta`` over windows of each channel, from x."""
    params = SquaresNormLaunch(alpha / kernel_size**2, beta, delta)
    return *_squares(tuple(x.shape), (1, 2), kernel_size), _by_squares(x, params)


def spatial_norm_grad(
    dy: mx.array, x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float
) -> tuple[KernelLaunch, ...]:
    """The gradient of `spatial_norm`, from dy and x."""
    return _grad_by_squares(x, (1, 2), kernel_size, kernel_size**2, alpha, beta, delta)


def local_contrast_norm(
    x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float, p0: float, pm: float, ps: float
) -> tuple[KernelLaunch, ...]:
    """``pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta`` over windows of each channel, from x."""
    shape, area = tuple(x.shape), float(kernel_size**2)
    params = LocalContrastLaunch(*_reach(shape, kernel_size), area, alpha, beta, delta, p0, pm, ps)
    last = _pixelwise("local_contrast_norm", ("x", "mean", "m2"), ("y",), x, params)
    return *_moments(shape, kernel_size), last


def local_contrast_norm_grad(
    dy: mx.array,
    x: mx.array,
    kernel_size: int,
    alpha: float,
    beta: float,
    delta: float,
    p0: float,
    pm: float,
    ps: float,
) -> tuple[KernelLaunch, ...]:
    """The gradient of `local_contrast_norm`, from dy and x."""
    shape, area = tuple(x.shape), float(kernel_size**2)
    params = LocalContrastWeightsLaunch(*_reach(shape, kernel_size), area, alpha, beta, delta, p0)
    weights = _pixelwise("local_contrast_norm_weights", ("dy", "x", "mean", "m2"), ("a", "b", "c"), x, params)

    def summed(axis: int, source: str, result: str) -> KernelLaunch:
        reads: tuple[Name, ...] = ("x", *((name, f"{source}{name}") for name in "abc"))
        writes = tuple((f"out_{name}", f"{result}{name}") for name in "abc")
        return _along("window_slopes", reads, writes, shape, axis, _window(kernel_size)[::-1])

    factors = LocalContrastGradLaunch(ps, ps * p0 / area, ps * 2 * alpha * beta / area)
    last = _flat("local_contrast_norm_grad", ("a", "sum_a", "sum_c"), "dx", x, factors, ("U", x.dtype))
    return *_moments(shape, kernel_size), weights, summed(1, "", "column_sum_"), summed(2, "column_sum_", "sum_"), last


# Launches -----------------------------------------------------------------------------------------------


def _sums(
    source: str, result: str, shape: Shape, axes: tuple[int, ...], window: tuple[int, int], *, squared: bool = False
) -> tuple[KernelLaunch, ...]:
    """Sums of an array, or of its squares, over windows along some axes, one after the other."""
    steps = [source, *(f"{result}_along_{axis}" for axis in axes[:-1]), result]

    def step(i: int) -> KernelLaunch:
        reads, writes = (("x", steps[i]),), (("y", steps[i + 1]),)
        return _along("window_sum", reads, writes, shape, axes[i], window, (("S", int(squared and i == 0)),))

    return tuple(map(step, range(len(axes))))


def _squares(shape: Shape, axes: tuple[int, ...], size: int) -> tuple[KernelLaunch, ...]:
    """``squares``: sums of those of x over windows along some axes."""
    return _sums("x", "squares", shape, axes, _window(size), squared=True)


def _by_squares(x: mx.array, params: SquaresNormLaunch) -> KernelLaunch:
    return _flat("spatial_norm", ("x", "squares"), "y", x, params, _quarters(params.beta))


def _grad_by_squares(
    x: mx.array, axes: tuple[int, ...], size: int, area: int, alpha: float, beta: float, delta: float
) -> tuple[KernelLaunch, ...]:
    """The gradient of a norm by sums of squares along some axes, from dy and x."""
    shape, power = tuple(x.shape), _quarters(beta)
    norm = SquaresNormLaunch(alpha / area, beta, delta)
    weights = _flat("spatial_norm_weights", ("dy", "x", "squares"), "weights", x, norm, power)
    params = SquaresNormGradLaunch(*norm, 2 * alpha * beta / area)
    return (
        *_squares(shape, axes, size),
        weights._replace(results=((shape, mx.float32),)),
        *_sums("weights", "sums", shape, axes, _window(size)[::-1]),
        _flat("spatial_norm_grad", ("dy", "x", "squares", "sums"), "dx", x, params, power),
    )


def _moments(shape: Shape, size: int) -> tuple[KernelLaunch, ...]:
    """``mean`` and ``m2`` of x over windows, by those over columns."""
    most = max(shape[1:3]) - 1  # the same cut along both axes, since the second step counts the rows of the first
    before, after = (min(n, most) for n in _window(size))

    def step(axis: int, first: int, reads: tuple[Name, ...], writes: tuple[Name, ...]) -> KernelLaunch:
        return _along("window_moments", ("x", *reads), writes, shape, axis, (before, after), (("F", first),))

    # The first step has no moments to read: the image stands in for them.
    down = step(1, 1, (("mean", "x"), ("m2", "x")), (("out_mean", "column_mean"), ("out_m2", "column_m2")))
    columns = ("mean", "column_mean"), ("m2", "column_m2")
    return down, step(2, 0, columns, (("out_mean", "mean"), ("out_m2", "m2")))


def _reach(shape: Shape, size: int) -> tuple[int, int]:
    """How far the windows reach of the bodies that look at a pixel in its window."""
    most = max(shape[1:3]) - 1
    before, after = _window(size)
    return min(before, most), min(after, most)


def _along(
    body: str,
    reads: tuple[Name, ...],
    writes: tuple[Name, ...],
    shape: Shape,
    axis: int,
    window: tuple[int, int],
    template: tuple[tuple[str, int], ...] = (),
) -> KernelLaunch:
    """A step over windows [i - before, i + after] along an axis: a thread for each run of results of a line."""
    length = shape[axis]
    before, after = (min(n, length - 1) for n in window)
    run = min(before + after + 1, length, _RUN)
    chunk = math.isqrt(run - 1) + 1
    inner = math.prod(shape[axis + 1 :])
    vector_width = grids.vector_width(mx.float32, inner, math.prod(shape)) if body == "window_sum" else 1
    grid, group = grids.threads(math.prod(shape) // (length * vector_width), -(-length // run))
    reach = window if body == "window_moments" else (before, after)
    params = WindowLaunch(length, inner, *reach, run, chunk)
    template = (
        *template,
        ("R", 1 << (chunk - 1).bit_length()),
        *((("V", vector_width),) if body == "window_sum" else ()),
    )
    results = ((shape, mx.float32),) * len(writes)
    return KernelLaunch(body, reads, writes, results, grid, group, params, template)


def _pixelwise(
    body: str,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    x: mx.array,
    params: LocalContrastLaunch | LocalContrastWeightsLaunch,
) -> KernelLaunch:
    """A thread for some channels of some pixels; of one result like x, or of several in float32."""
    n, height, width, channels = x.shape
    vector_width = grids.vector_width(mx.float32, channels, x.size)  # of the widest arrays
    grid, group = grids.threads(width * (channels // vector_width), height, n)
    results = (_like(x),) if len(writes) == 1 else ((tuple(x.shape), mx.float32),) * len(writes)
    template = ("V", vector_width), _quarters(params.beta)
    return KernelLaunch(body, reads, writes, results, grid, group, params, template)


def _flat(
    body: str,
    reads: tuple[str, ...],
    written: str,
    x: mx.array,
    params: Any,
    constant: tuple[str, mx.Dtype | int],
) -> KernelLaunch:
    """A thread for some elements anywhere, sixteen bytes of the widest arrays at a time."""
    vector_width = grids.vector_width(mx.float32, x.size, x.size)
    grid, group = grids.pointwise_threads(x.size // vector_width)
    return KernelLaunch(body, reads, (written,), (_like(x),), grid, group, params, (("V", vector_width), constant))


def _window(size: int) -> tuple[int, int]:
    """How far a window reaches before and after its place."""
    return size // 2, (size - 1) // 2


def _quarters(beta: float) -> tuple[str, int]:
    """The constant "Q": how many quarters beta is, or more than 32 for a power in general."""
    quarters = 4 * beta
    return "Q", int(quarters) if 0 <= quarters <= 32 and quarters == int(quarters) else 33


def _lanes(x: mx.array) -> int:
    return grids.vector_width(x.dtype, x.shape[3], x.size)


def _like(x: mx.array) -> tuple[Shape, mx.Dtype]:
    return tuple(x.shape), x.dtype
