"""Average pooling as an operation, and its transpose: each is the other's VJP."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, operation, over_batches
from mpsfunc.pooling import launches
from mpsfunc.pooling.launches import Spec


@operation("avg_pool")
def pool(x: mx.array, spec: Spec) -> mx.array:
    """The means over windows."""
    source = x.shape, x.dtype
    result = (x.shape[0], spec.windows.rows.n_out, spec.windows.cols.n_out, x.shape[3]), x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.summing(
            "avg_pool",
            (("x",), ("y",)),
            source,
            result,
            spec.windows,
            lambda dtype: (("O", dtype),),
            images_per_thread=2 if x.dtype.size > 2 else 4,
        )

    return launch.launch("avg_pool", {"x": x}, spec.windows, (result,), kernels, spec.stream)[0]


@pool.vjp
def _pool_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (grad(cotangents[0], spec),)


@pool.jvp
def _pool_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return pool(tangents[0], spec)


pool.vmap(over_batches(pool))


@operation("avg_pool_grad")
def grad(dy: mx.array, spec: Spec) -> mx.array:
    """What the pixels of an image had in those means."""
    source = dy.shape, dy.dtype
    result = (dy.shape[0], spec.windows.rows.n_in, spec.windows.cols.n_in, dy.shape[3]), dy.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("dy",), ("dx",)
        tiles = launches.on_tiles("avg_pool_grad_tile", names, source, result, spec.windows)
        return (
            tiles or launches.by_pixel("avg_pool_grad", names, source, (result,), spec.windows, images_per_thread=4),
        )

    return launch.launch("avg_pool_grad", {"dy": dy}, spec.windows, (result,), kernels, spec.stream)[0]


@grad.vjp
def _grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (pool(cotangents[0], spec),)


@grad.jvp
def _grad_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return grad(tangents[0], spec)


grad.vmap(over_batches(grad))
