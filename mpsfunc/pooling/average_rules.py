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


def _run(op: str, x: mx.array, height: int, width: int, spec: Spec) -> mx.array:
    source, result = (x.shape, x.dtype), ((x.shape[0], height, width, x.shape[3]), x.dtype)
    name = "x" if op == "avg_pool" else "dy"

    def kernels() -> tuple[KernelLaunch, ...]:
        if op == "avg_pool":
            names = ("x",), ("y",)
            images_per_thread = 2 if x.dtype.size > 2 else 4
            return launches.summing(
                op,
                names,
                source,
                result,
                spec.windows,
                lambda dtype: (("O", dtype),),
                images_per_thread=images_per_thread,
            )
        names = ("dy",), ("dx",)
        tiles = launches.on_tiles("avg_pool_grad_tile", names, source, result, spec.windows)
        return (tiles or launches.by_pixel(op, names, source, (result,), spec.windows, images_per_thread=4),)

    return launch.launch(op, {name: x}, spec.windows, (result,), kernels, spec.stream)[0]


def _run_avg_pool(x: mx.array, spec: Spec) -> mx.array:
    return _run("avg_pool", x, spec.windows.rows.n_out, spec.windows.cols.n_out, spec)


def _run_avg_pool_grad(dy: mx.array, spec: Spec) -> mx.array:
    return _run("avg_pool_grad", dy, spec.windows.rows.n_in, spec.windows.cols.n_in, spec)


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
