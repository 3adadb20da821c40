"""The kernels of maximum pooling and their rules.

With the winners fixed, pooling is linear: `grad` adds to the winners what `gather` reads from them. Each is the other's
VJP, and derivatives of every order run through these two.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, over_batches
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.pooling.launches import Spec, by_pixel, on_tiles, taps_in_flight
from mpsfunc.windows.axis import Axis, clamps_taps


def pool(x: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """The maxima, and the number of the tap that won each."""
    y, winners = _pool(x, spec)
    return y, winners


def grad(dy: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """An image with dy added to the winners."""
    dx: mx.array = _grad(dy, winners, spec)
    return dx


def gather(x: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    """What the winners read in an image."""
    y: mx.array = _gather(x, winners, spec)
    return y


def winners_dtype(rows: Axis, cols: Axis) -> mx.Dtype:
    """The fewest bytes that number every tap and leave one number for none."""
    taps = rows.size * cols.size
    return mx.uint8 if taps <= 0xFF else mx.uint16 if taps <= 0xFFFF else mx.uint32


# Kernels ------------------------------------------------------------------------------------------------


def _run_pool(x: mx.array, spec: Spec) -> tuple[mx.array, ...]:
    shape = x.shape[0], spec.windows.rows.n_out, spec.windows.cols.n_out, x.shape[3]
    winners = winners_dtype(spec.windows.rows, spec.windows.cols)
    results = (shape, x.dtype), (shape, winners)

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("x",), ("y", "winners")
        template = ("W", winners), taps_in_flight(spec.windows.cols, x.dtype)
        return (by_pixel("max_pool", names, (x.shape, x.dtype), results, spec.windows, template),)

    return tuple(launch.launch("max_pool", {"x": x}, spec.windows, results, kernels, spec.stream))


def _run_grad(dy: mx.array, winners: mx.array, spec: Spec) -> mx.array:
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


def _run_gather(x: mx.array, winners: mx.array, spec: Spec) -> mx.array:
    result = winners.shape, x.dtype

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("x", "winners"), ("y",)
        return (
            by_pixel("max_pool_gather", names, (x.shape, x.dtype), (result,), spec.windows, (("W", winners.dtype),)),
        )

    arrays = {"x": x, "winners": winners}
    return launch.launch("max_pool_gather", arrays, spec.windows, (result,), kernels, spec.stream)[0]


# Rules --------------------------------------------------------------------------------------------------


def _pool_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    if not mx.issubdtype(arrays[0].dtype, mx.floating):
        return (None,)
    return (_grad(cotangents[0], outputs[1], spec),)


def _pool_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    y, winners = _pool(arrays[0], spec)
    if not mx.issubdtype(y.dtype, mx.floating):  # integers have no derivative
        return mx.zeros_like(y), mx.zeros_like(winners)
    return _gather(tangents[0], winners, spec), mx.zeros_like(winners)


def _linear(op: str, run: Any, own: Any, adjoint: Any) -> Any:
    return differentiable(
        op,
        run,
        vjp=lambda arrays, cotangents, outputs, spec: (adjoint()(cotangents[0], arrays[1], spec), None),
        jvp=lambda arrays, tangents, spec: (
            mx.zeros_like(run(*arrays, spec)) if tangents[0] is None else own()(tangents[0], arrays[1], spec)
        ),
        vmap=over_batches(own),
    )


_gather: Any = _linear("max_pool_gather", _run_gather, lambda: _gather, lambda: _grad)
_grad: Any = _linear("max_pool_grad", _run_grad, lambda: _grad, lambda: _gather)
_pool: Any = differentiable(
    "max_pool",
    _run_pool,
    vjp=_pool_vjp,
    jvp=_pool_jvp,
    vmap=over_batches(lambda: _pool),
)
