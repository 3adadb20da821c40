"""The kernels of average pooling and their rules: each is the other's transposed matrix and VJP."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, over_batches
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.pooling import launches
from mpsfunc.pooling.launches import Spec


def pool(x: mx.array, spec: Spec) -> mx.array:
    """The means over windows."""
    y: mx.array = _avg_pool(x, spec)
    return y


def grad(dy: mx.array, spec: Spec) -> mx.array:
    """What the pixels of an image had in those means."""
    dx: mx.array = _avg_pool_grad(dy, spec)
    return dx


def _run_avg_pool(x: mx.array, spec: Spec) -> mx.array:
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


def _run_avg_pool_grad(dy: mx.array, spec: Spec) -> mx.array:
    source = dy.shape, dy.dtype
    result = (dy.shape[0], spec.windows.rows.n_in, spec.windows.cols.n_in, dy.shape[3]), dy.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("dy",), ("dx",)
        tiles = launches.on_tiles("avg_pool_grad_tile", names, source, result, spec.windows)
        return (
            tiles or launches.by_pixel("avg_pool_grad", names, source, (result,), spec.windows, images_per_thread=4),
        )

    return launch.launch("avg_pool_grad", {"dy": dy}, spec.windows, (result,), kernels, spec.stream)[0]


def _linear(name: str, run: Any, own: Any, adjoint: Any) -> Any:
    """The rules of one linear operation on a batch: ``own()`` is itself, ``adjoint()`` the other."""
    return differentiable(
        name,
        run,
        vjp=lambda arrays, cotangents, outputs, spec: (adjoint()(cotangents[0], spec),),
        jvp=lambda arrays, tangents, spec: own()(tangents[0], spec),
        vmap=over_batches(own),
    )


_avg_pool: Any = _linear("avg_pool", _run_avg_pool, lambda: _avg_pool, lambda: _avg_pool_grad)
_avg_pool_grad: Any = _linear("avg_pool_grad", _run_avg_pool_grad, lambda: _avg_pool_grad, lambda: _avg_pool)
