"""The kernels of L2 pooling and their rules.

Where ``c`` counts the taps of a window on a pixel, a norm's derivative by it is ``c * x / norm``. `grad` sums that over
the windows of a pixel, `jvp` over the pixels of a window: each is the other's VJP in its first argument, both are
linear in their second one, and division by the norm is all that is left. So two kernels serve derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, over_batches
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.pooling import launches
from mpsfunc.pooling.launches import Spec
from mpsfunc.windows.axis import clamps_taps


def norms(x: mx.array, spec: Spec) -> mx.array:
    """The norm of each window, in the accumulator's dtype."""
    y: mx.array = _norms(x, spec)
    return y


def grad(dy: mx.array, x: mx.array, norms: mx.array, spec: Spec) -> mx.array:
    """The gradient of the norms: dy and x have one dtype."""
    dx: mx.array = _grad(dy, x, norms, spec)
    return dx


# Kernels ------------------------------------------------------------------------------------------------


def _run_norms(x: mx.array, spec: Spec) -> mx.array:
    source = x.shape, x.dtype
    result = (x.shape[0], spec.windows.rows.n_out, spec.windows.cols.n_out, x.shape[3]), launch.accumulator(x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.summing("l2_pool", (("x",), ("norms",)), source, result, spec.windows, lambda dtype: ())

    return launch.launch("l2_pool", {"x": x}, spec.windows, (result,), kernels, spec.stream)[0]


def _run_grad(dy: mx.array, x: mx.array, norms: mx.array, spec: Spec) -> mx.array:
    source, result = (norms.shape, norms.dtype), (x.shape, x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        names, tiles = (("dy", "x", "norms"), ("dx",)), None
        if not any(map(clamps_taps, spec.windows)):
            tiles = launches.on_tiles("l2_pool_grad_tile", names, source, result, spec.windows, in_flight=1)
        return (tiles or launches.by_pixel("l2_pool_grad", names, source, (result,), spec.windows),)

    arrays = {"dy": dy, "x": x, "norms": norms}
    return launch.launch("l2_pool_grad", arrays, spec.windows, (result,), kernels, spec.stream)[0]


def _run_jvp(t: mx.array, x: mx.array, norms: mx.array, spec: Spec) -> mx.array:
    source, result = (x.shape, x.dtype), (norms.shape, norms.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("t", "x", "norms"), ("dnorms",)
        return (launches.by_pixel("l2_pool_jvp", names, source, (result,), spec.windows),)

    arrays = {"t": t, "x": x, "norms": norms}
    return launch.launch("l2_pool_jvp", arrays, spec.windows, (result,), kernels, spec.stream)[0]


# Rules --------------------------------------------------------------------------------------------------


def _over(a: mx.array, norms: mx.array) -> mx.array:
    """``a / norms``, and 0 where the norm is."""
    none = norms == 0
    return mx.where(none, 0, a.astype(norms.dtype) / mx.where(none, 1, norms))


def _norms_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (x,) = arrays
    return (_grad(cotangents[0].astype(x.dtype), x, outputs[0], spec),)


def _norms_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    (x,) = arrays
    return _jvp(tangents[0], x, _norms(x, spec), spec)


def _grad_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (dy, x, norms), t = arrays, cotangents[0]
    pushed = _jvp(t, x, norms, spec)
    return pushed, _grad(dy, t, norms, spec), -_over(dy, norms) * pushed


def _total(*terms: tuple[mx.array | None, Callable[[mx.array], mx.array]]) -> mx.array:
    """The sum of what each tangent that there is contributes."""
    first, *others = [contribution(tangent) for tangent, contribution in terms if tangent is not None]
    return sum(others, first)


def _grad_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    dy, x, norms = arrays
    return _total(
        (tangents[0], lambda t: _grad(t, x, norms, spec)),
        (tangents[1], lambda t: _grad(dy, t, norms, spec)),
        (tangents[2], lambda t: -_grad((_over(dy, norms) * t).astype(dy.dtype), x, norms, spec)),
    )


def _jvp_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    (t, x, norms), cotangent = arrays, cotangents[0]
    dy = cotangent.astype(x.dtype)
    return _grad(dy, x, norms, spec), _grad(dy, t, norms, spec), -_over(cotangent, norms) * outputs[0]


def _jvp_jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
    u, x, norms = arrays
    return _total(
        (tangents[0], lambda t: _jvp(t, x, norms, spec)),
        (tangents[1], lambda t: _jvp(u, t, norms, spec)),
        (tangents[2], lambda t: -_jvp(u, x, norms, spec) * _over(t, norms)),
    )


_norms: Any = differentiable("l2_pool", _run_norms, vjp=_norms_vjp, jvp=_norms_jvp, vmap=over_batches(lambda: _norms))
_grad: Any = differentiable("l2_pool_grad", _run_grad, vjp=_grad_vjp, jvp=_grad_jvp, vmap=over_batches(lambda: _grad))
_jvp: Any = differentiable("l2_pool_jvp", _run_jvp, vjp=_jvp_vjp, jvp=_jvp_jvp, vmap=over_batches(lambda: _jvp))
