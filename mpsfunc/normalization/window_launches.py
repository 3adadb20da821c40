"""How the normalizations by window, and sums over windows, run on a GPU.

A window of size k around i is [i - k // 2, i + (k - 1) // 2], and the windows that hold i are those around the places
of the mirrored window; both are cut off where the image ends. Nothing here asks for ``finally_with``.
"""

from __future__ import annotations

import math

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import Stage

Shape = tuple[int, ...]
# Windows over so many channels run in one step.
_FEW = 9
# Results that a thread of the bodies along an axis makes at most: 32 chunks of 32.
_RUN = 1024


def window_sum(x: mx.array, axis: int, before: int, after: int) -> tuple[Stage, ...]:
    """y[p] = the sum of x[q] along axis 1, 2 or 3, q in [p - before, p + after], in float32."""
    return (_along("window_sum", ("x",), ("y",), tuple(x.shape), axis, (before, after), (("S", 0),)),)


def cross_channel_norm(x: mx.array, size: int, alpha: float, beta: float, delta: float) -> tuple[Stage, ...]:
    """``x * (delta + alpha / size * sum of x^2) ** -beta`` over windows of channels, from x."""
    numbers = _numbers(alpha / size, beta, delta)
    if size > _FEW:
        return *_squares(tuple(x.shape), (3,), size, 0, 1), _by_squares(x, numbers, beta, (0, 1))
    lanes, pixels = _lanes(x), x.size // x.shape[3]
    grid, group = grids.threads(x.shape[3] // lanes, -(-pixels // 4))
    template = (("V", lanes), ("K", size), _quarters(beta))
    return (Stage("cross_channel_norm", ("x",), ("y",), (_like(x),), grid, group, numbers, template),)


def cross_channel_norm_grad(
    dy: mx.array, x: mx.array, size: int, alpha: float, beta: float, delta: float
) -> tuple[Stage, ...]:
    """The gradient of `cross_channel_norm`, from dy and x."""
    if size > _FEW:
        return _grad_by_squares(x, (3,), size, size, alpha, beta, delta)
    lanes, channels = _lanes(x), x.shape[3]
    # What a thread works out for its neighbours is less beside two packs of its own.
    packs = 2 if lanes == 4 and channels % 8 == 0 else 1
    grid, group = grids.threads(channels // (lanes * packs), -(-x.size // (4 * channels)))
    numbers = _numbers(alpha / size, beta, delta, 2 * alpha * beta / size)
    template = (("V", lanes), ("K", size), ("O", packs), _quarters(beta))
    return (Stage("cross_channel_norm_grad", ("dy", "x"), ("dx",), (_like(x),), grid, group, numbers, template),)


def spatial_norm(x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float) -> tuple[Stage, ...]:
    """``x * (delta + alpha / kernel_size^2 * sum of x^2) ** -beta`` over windows of each channel, from x."""
    numbers = _numbers(alpha / kernel_size**2, beta, delta)
    return *_squares(tuple(x.shape), (1, 2), kernel_size, 0, 1), _by_squares(x, numbers, beta, (0, 2))


def spatial_norm_grad(
    dy: mx.array, x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float
) -> tuple[Stage, ...]:
    """The gradient of `spatial_norm`, from dy and x."""
    return _grad_by_squares(x, (1, 2), kernel_size, kernel_size**2, alpha, beta, delta)


def local_contrast_norm(
    x: mx.array, kernel_size: int, alpha: float, beta: float, delta: float, p0: float, pm: float, ps: float
) -> tuple[Stage, ...]:
    """``pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta`` over windows of each channel, from x."""
    params = _contrast(tuple(x.shape), kernel_size, alpha, beta, delta, p0, pm, ps)
    last = _pixelwise("local_contrast_norm", ("x", "mean", "m2"), ("y",), x, params, (0, 3, 4), _quarters(beta))
    return *_moments(tuple(x.shape), kernel_size, 0), last


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
) -> tuple[Stage, ...]:
    """The gradient of `local_contrast_norm`, from dy and x."""
    shape, area = tuple(x.shape), kernel_size**2
    inputs, outputs = ("dy", "x", "mean", "m2"), ("a", "b", "c")
    params = _contrast(shape, kernel_size, alpha, beta, delta, p0)
    weights = _pixelwise("local_contrast_norm_weights", inputs, outputs, x, params, (0, 1, 4, 5), _quarters(beta))

    def summed(axis: int, reads: tuple[int, ...]) -> Stage:
        names = ("x", *outputs), ("out_a", "out_b", "out_c")
        return _along("window_slopes", *names, shape, axis, _window(kernel_size)[::-1])._replace(reads=reads)

    numbers = _numbers(ps, ps * p0 / area, ps * 2 * alpha * beta / area)
    last = _flat("local_contrast_norm_grad", ("a", "sum_a", "sum_c"), "dx", x, numbers, (6, 12, 14), ("U", x.dtype))
    return (
        *_moments(shape, kernel_size, 1),
        weights,
        summed(1, (1, 6, 7, 8)),
        summed(2, (1, 9, 10, 11)),
        last,
    )


# Stages. `reads` number the arrays of an operation, and then what its stages made ------------------------


def _squares(shape: Shape, axes: tuple[int, ...], size: int, image: int, made: int) -> tuple[Stage, ...]:
    """Sums of squares of array ``image`` over windows along some axes; their results are ``made`` and on."""
    reads = (image, *range(made, made + len(axes) - 1))
    return tuple(
        _along("window_sum", ("x",), ("y",), shape, axis, _window(size), (("S", int(axis == axes[0])),), (read,))
        for axis, read in zip(axes, reads, strict=True)
    )


def _by_squares(x: mx.array, numbers: tuple[int, ...], beta: float, reads: tuple[int, ...]) -> Stage:
    return _flat("spatial_norm", ("x", "squares"), "y", x, numbers, reads, _quarters(beta))


def _grad_by_squares(
    x: mx.array, axes: tuple[int, ...], size: int, area: int, alpha: float, beta: float, delta: float
) -> tuple[Stage, ...]:
    """The gradient of a norm by sums of squares along some axes, from dy and x."""
    shape, squares = tuple(x.shape), 1 + len(axes)
    numbers = _numbers(alpha / area, beta, delta, 2 * alpha * beta / area)
    power = _quarters(beta)
    weights = _flat("spatial_norm_weights", ("dy", "x", "squares"), "weights", x, numbers, (0, 1, squares), power)
    mirrored = _window(size)[::-1]
    summed = tuple(
        _along("window_sum", ("x",), ("y",), shape, axis, mirrored, (("S", 0),), (squares + 1 + i,))
        for i, axis in enumerate(axes)
    )
    last = (0, 1, squares, squares + 1 + len(axes))
    return (
        *_squares(shape, axes, size, 1, 2),
        weights._replace(results=((shape, mx.float32),)),
        *summed,
        _flat("spatial_norm_grad", ("dy", "x", "squares", "sums"), "dx", x, numbers, last, power),
    )


def _moments(shape: Shape, size: int, image: int) -> tuple[Stage, ...]:
    """Mean and M2 of array ``image`` over windows, the last of an operation's; the second step has the results."""
    inputs, outputs = ("x", "mean", "m2"), ("out_mean", "out_m2")
    most = max(shape[1:3]) - 1  # the same cut along both axes, since the second step counts the rows of the first
    before, after = (min(n, most) for n in _window(size))

    def step(axis: int, first: int, reads: tuple[int, ...]) -> Stage:
        return _along("window_moments", inputs, outputs, shape, axis, (before, after), (("F", first),), reads)

    # The first step has no moments to read: the image stands in for them.
    return step(1, 1, (image, image, image)), step(2, 0, (image, image + 1, image + 2))


def _contrast(shape: Shape, size: int, *numbers: float) -> tuple[int, ...]:
    """Parameters of the bodies that look at a pixel in its window."""
    most = max(shape[1:3]) - 1
    return (*(min(n, most) for n in _window(size)), *_numbers(size**2, *numbers))


def _along(
    body: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    shape: Shape,
    axis: int,
    window: tuple[int, int],
    template: tuple[tuple[str, int], ...] = (),
    reads: tuple[int, ...] = (),
) -> Stage:
    """A step over windows [i - before, i + after] along an axis: a thread for each run of results of a line."""
    length = shape[axis]
    before, after = (min(n, length - 1) for n in window)
    run = min(before + after + 1, length, _RUN)
    chunk = math.isqrt(run - 1) + 1
    inner = math.prod(shape[axis + 1 :])
    lanes = grids.lanes(mx.float32, inner, math.prod(shape)) if body == "window_sum" else 1
    grid, group = grids.threads(math.prod(shape) // (length * lanes), -(-length // run))
    reach = window if body == "window_moments" else (before, after)
    params = (length, inner, *reach, run, chunk)
    template = (*template, ("R", 1 << (chunk - 1).bit_length()), *((("V", lanes),) if body == "window_sum" else ()))
    result = (shape, mx.float32)
    return Stage(body, inputs, outputs, (result,) * len(outputs), grid, group, params, template, reads)


def _pixelwise(
    body: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    x: mx.array,
    params: tuple[int, ...],
    reads: tuple[int, ...],
    constant: tuple[str, int],
) -> Stage:
    """A thread for some channels of some pixels; of one result like x, or of several in float32."""
    n, height, width, channels = x.shape
    lanes = grids.lanes(mx.float32, channels, x.size)  # of the widest arrays
    grid, group = grids.threads(width * (channels // lanes), height, n)
    results = (_like(x),) if len(outputs) == 1 else ((tuple(x.shape), mx.float32),) * len(outputs)
    return Stage(body, inputs, outputs, results, grid, group, params, (("V", lanes), constant), reads)


def _flat(
    body: str,
    inputs: tuple[str, ...],
    made: str,
    x: mx.array,
    params: tuple[int, ...],
    reads: tuple[int, ...],
    constant: tuple[str, mx.Dtype | int],
) -> Stage:
    """A thread for some elements anywhere, sixteen bytes of the widest arrays at a time."""
    lanes = grids.lanes(mx.float32, x.size, x.size)
    grid, group = grids.pointwise_threads(x.size // lanes)
    return Stage(body, inputs, (made,), (_like(x),), grid, group, params, (("V", lanes), constant), reads)


def _window(size: int) -> tuple[int, int]:
    """How far a window reaches before and after its place."""
    return size // 2, (size - 1) // 2


def _quarters(beta: float) -> tuple[str, int]:
    """The constant "Q": how many quarters beta is, or more than 32 for a power in general."""
    quarters = 4 * beta
    return "Q", int(quarters) if 0 <= quarters <= 32 and quarters == int(quarters) else 33


def _lanes(x: mx.array) -> int:
    return grids.lanes(x.dtype, x.shape[3], x.size)


def _like(x: mx.array) -> tuple[Shape, mx.Dtype]:
    return tuple(x.shape), x.dtype


def _numbers(*numbers: float) -> tuple[int, ...]:
    return tuple(bit for number in numbers for bit in launch.bits(number))
