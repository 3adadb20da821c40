"""Maximum pooling as operations.

With the winners fixed, pooling is linear: `grad` adds to the winners what `gather` reads from them. Each is the other's
VJP, and derivatives of every order run through these two.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches
from mpsfunc.pooling.launches import Spec, by_pixel, on_tiles, taps_in_flight
from mpsfunc.windows.axis import Axis, clamps_taps


def winners_dtype(rows: Axis, cols: Axis) -> mx.Dtype:
    """The fewest bytes that number every tap and leave one number for none."""
    taps = rows.size * cols.size
    return mx.uint8 if taps <= 0xFF else mx.uint16 if taps <= 0xFFFF else mx.uint32


@operation("max_pool")
def pool(x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """The maxima, and the number of the tap that won each."""
    shape = x.shape[0], spec.windows.rows.n_out, spec.windows.cols.n_out, x.shape[3]
    winners = winners_dtype(spec.windows.rows, spec.windows.cols)
    results = (shape, x.dtype), (shape, winners)

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("x",), ("y", "winners")
        template = ("W", winners), taps_in_flight(spec.windows.cols, x.dtype)
        return (by_pixel("max_pool", names, (x.shape, x.dtype), results, spec.windows, template),)

    y, chosen = launch.launch("max_pool", {"x": x}, spec.windows, results, kernels, spec.stream)
    return y, chosen


@pool.vjp
def _pool_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    if not mx.issubdtype(arrays[0].dtype, mx.floating):
        return (None,)
    return (grad(cotangents[0], outputs[1], spec),)


@pool.jvp
def _pool_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> tuple[mx.array, mx.array]:
    y, winners = pool(arrays[0], spec)
    if not mx.issubdtype(y.dtype, mx.floating):  # integers have no derivative
        return mx.zeros_like(y), mx.zeros_like(winners)
    return gather(tangents[0], winners, spec), mx.zeros_like(winners)


pool.vmap(over_batches(pool))


@operation("max_pool_grad")
def grad(dy: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """An image with dy added to the winners."""
    source = dy.shape, dy.dtype
    result = (dy.shape[0], spec.windows.rows.n_in, spec.windows.cols.n_in, dy.shape[3]), dy.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("dy", "winners"), ("dx",)
        template = (("W", winners.dtype),)
        tiles = None
        if not any(map(clamps_taps, spec.windows)):
            tiles = on_tiles("max_pool_grad_tile", names, source, result, spec.windows, template)
        return (tiles or by_pixel("max_pool_grad", names, source, (result,), spec.windows, template),)

    arrays = {"dy": dy, "winners": winners}
    return launch.launch("max_pool_grad", arrays, spec.windows, (result,), kernels, spec.stream)[0]


@grad.vjp
def _grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return gather(cotangents[0], arrays[1], spec), None


@grad.jvp
def _grad_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, winners = arrays
    return mx.zeros_like(grad(dy, winners, spec)) if tangents[0] is None else grad(tangents[0], winners, spec)


grad.vmap(over_batches(grad))


@operation("max_pool_gather")
def gather(x: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """What the winners read in an image."""
    result = winners.shape, x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("x", "winners"), ("y",)
        return (
            by_pixel("max_pool_gather", names, (x.shape, x.dtype), (result,), spec.windows, (("W", winners.dtype),)),
        )

    arrays = {"x": x, "winners": winners}
    return launch.launch("max_pool_gather", arrays, spec.windows, (result,), kernels, spec.stream)[0]


@gather.vjp
def _gather_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return grad(cotangents[0], arrays[1], spec), None


@gather.jvp
def _gather_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    x, winners = arrays
    return mx.zeros_like(gather(x, winners, spec)) if tangents[0] is None else gather(tangents[0], winners, spec)


gather.vmap(over_batches(gather))
