"""Samples at the positions in a grid: three operations, of which the derivatives of any order are made.

A sample is ``sum_ij wy_i wx_j x[r_i, s_j]``, with weights that depend on the grid. With derivatives of the weights, of
an order by y and one by x, in their place it is a derivative by the grid. `sample` computes it; `spread`, its
transpose, adds up what samples give to the pixels that they read; `slopes` is the inner product of the cotangent and
a derivative more, by either coordinate. The derivatives of each are the three of one order more.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches, tangent_of
from mpsfunc.image.params import GridSampleParams

TAPS = (1, 2, 4)  # along an axis, of a mode
_ORDERS = (0, 1, 3)  # of derivatives that are not zero
_THREADS = 256  # of a GPU that look at as many samples together
_ACROSS = 16  # those side by side, as sampling.h has it


class Spec(NamedTuple):
    """Statics of samples.

    Fields:
        params: The size of the images that are sampled, and how.
        stream: Where everything runs.
    """

    params: GridSampleParams
    stream: mx.Stream


def _by(spec: Spec, y: int, x: int) -> Spec:
    """Of a derivative of more orders."""
    p = spec.params
    return spec._replace(params=p._replace(order_y=p.order_y + y, order_x=p.order_x + x))


def _vanishes(spec: Spec) -> bool:
    """Whether a derivative is zero everywhere."""
    p = spec.params
    return max(p.order_y, p.order_x) > _ORDERS[p.mode]


@operation("grid_sample")
def sample(x: mx.array, grid: mx.array, spec: Spec) -> mx.array:
    """The samples of x; the grid has the accumulator's dtype."""
    n, height, width, _ = grid.shape
    result = (n, height, width, x.shape[3]), x.dtype
    if _vanishes(spec):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(x.dtype, x.shape[3], x.size)
        grid_of, group = grids.threads(width * (x.shape[3] // vector_width), height, n)
        template = ("V", vector_width), ("K", TAPS[spec.params.mode])
        return (KernelLaunch("grid_sample", ("x", "grid"), ("y",), (result,), grid_of, group, spec.params, template),)

    return launch.launch("grid_sample", {"x": x, "grid": grid}, spec.params, (result,), kernels, spec.stream)[0]


@sample.vjp
def _sample_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, grid), dy = arrays, cotangents[0]
    return spread(dy, grid, spec), slopes(dy, x, grid, spec)


@sample.jvp
def _sample_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    x, grid = arrays
    return tangent_of(
        (tangents[0], lambda t: sample(t, grid, spec)),
        (tangents[1], lambda t: _moved(x, grid, t, spec)),
    ).astype(x.dtype)


sample.vmap(over_batches(sample))


@operation("grid_sample_grad")
def spread(dy: mx.array, grid: mx.array, spec: Spec) -> mx.array:
    """The gradient of `sample` by the images."""
    n, height, width, channels = dy.shape
    p = spec.params
    result = (n, p.height, p.width, channels), dy.dtype
    if _vanishes(spec):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        chunks = -(-height // (_THREADS // _ACROSS)) * -(-width // _ACROSS)
        bounds = ((n, chunks, 4), mx.int32)
        common = ("K", TAPS[p.mode]), ("G", _THREADS)
        vector_width = grids.vector_width(dy.dtype, channels, dy.size)
        tiled = grids.pixel_tiles(p.height, p.width, channels // vector_width, _THREADS)
        template = ("V", vector_width), *common, ("S", tiled.packs), ("DY", tiled.down), ("DX", tiled.across)
        group = (_THREADS, 1, 1)
        of_chunks = grids.whole_groups(chunks, n, _THREADS)
        of_tiles = grids.whole_groups(tiled.tiles, n * tiled.slices, _THREADS)
        names = ("dy", "grid", "bounds"), ("dx",)
        return (
            KernelLaunch("grid_sample_bounds", ("grid",), ("bounds",), (bounds,), of_chunks, group, p, common),
            KernelLaunch("grid_sample_grad", *names, (result,), of_tiles, group, p, template),
        )

    return launch.launch("grid_sample_grad", {"dy": dy, "grid": grid}, p, (result,), kernels, spec.stream)[0]


@spread.vjp
def _spread_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, grid), t = arrays, cotangents[0]
    return sample(t, grid, spec), slopes(dy, t, grid, spec)


@spread.jvp
def _spread_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, grid = arrays
    return tangent_of(
        (tangents[0], lambda t: spread(t, grid, spec)),
        (tangents[1], lambda t: _moved_back(dy, grid, t, spec)),
    )


spread.vmap(over_batches(spread))


@operation("grid_sample_grad_grid")
def slopes(dy: mx.array, x: mx.array, grid: mx.array, spec: Spec) -> mx.array:
    """The gradient of `sample` by the grid, of the grid's dtype."""
    result = grid.shape, grid.dtype
    by_y, by_x = _by(spec, 1, 0), _by(spec, 0, 1)
    if _vanishes(by_y) and _vanishes(by_x):
        return mx.zeros(*result)

    def kernels() -> tuple[KernelLaunch, ...]:
        vector_width = grids.vector_width(dy.dtype, x.shape[3], min(x.size, dy.size))
        sharing = min(32, grids.power_of_two(x.shape[3] // vector_width))
        grid_of, group = grids.sharing_threads(grid.size // 2, sharing)
        template = ("V", vector_width), ("K", TAPS[spec.params.mode]), ("R", sharing)
        names = ("dy", "x", "grid"), ("dgrid",)
        return (KernelLaunch("grid_sample_grad_grid", *names, (result,), grid_of, group, spec.params, template),)

    arrays = {"dy": dy, "x": x, "grid": grid}
    return launch.launch("grid_sample_grad_grid", arrays, spec.params, (result,), kernels, spec.stream)[0]


@slopes.vjp
def _slopes_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x, grid), t = arrays, cotangents[0]
    return _moved(x, grid, t, spec), _moved_back(dy, grid, t, spec), _bent(dy, x, grid, t, spec)


@slopes.jvp
def _slopes_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, x, grid = arrays
    return tangent_of(
        (tangents[0], lambda t: slopes(t, x, grid, spec)),
        (tangents[1], lambda t: slopes(dy, t, grid, spec)),
        (tangents[2], lambda t: _bent(dy, x, grid, t, spec)),
    )


slopes.vmap(over_batches(slopes))


def _parts(t: mx.array) -> tuple[mx.array, mx.array]:
    """What a grid's tangent says of y and of x."""
    return launch.cut(t, (..., slice(1, 2))), launch.cut(t, (..., slice(0, 1)))


def _moved(x: mx.array, grid: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The tangent of samples whose places move by t."""
    y, x_part = _parts(t)
    made = y * sample(x, grid, _by(spec, 1, 0)) + x_part * sample(x, grid, _by(spec, 0, 1))
    return made.astype(x.dtype)


def _moved_back(dy: mx.array, grid: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The transpose of that in x, which is also the tangent of `spread`."""
    y, x = ((part * dy).astype(dy.dtype) for part in _parts(t))
    return spread(y, grid, _by(spec, 1, 0)) + spread(x, grid, _by(spec, 0, 1))


def _bent(dy: mx.array, x: mx.array, grid: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The tangent of `slopes` where places move by t, which is also its gradient by them."""
    y, x_part = _parts(t)
    return y * slopes(dy, x, grid, _by(spec, 1, 0)) + x_part * slopes(dy, x, grid, _by(spec, 0, 1))
