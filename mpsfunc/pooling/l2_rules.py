"""The kernels of L2 pooling and their rules.

Where ``c`` counts the taps of a window on a pixel, a norm's derivative by it is ``c * x / norm``. `grad` sums that over
the windows of a pixel, `jvp` over the pixels of a window: each is the other's VJP in its first argument, both are
linear in their second one, and division by the norm is all that is left. So two kernels serve derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches
from mpsfunc.pooling import launches
from mpsfunc.pooling.launches import Spec
from mpsfunc.windows.axis import clamps_taps


@operation("l2_pool")
def norms(x: mx.array, spec: Spec) -> mx.array:
    """The norm of each window, in the accumulator's dtype."""
    source = x.shape, x.dtype
    result = (x.shape[0], spec.windows.rows.n_out, spec.windows.cols.n_out, x.shape[3]), launch.accumulator(x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.summing("l2_pool", (("x",), ("norms",)), source, result, spec.windows, lambda dtype: ())

    return launch.launch("l2_pool", {"x": x}, spec.windows, (result,), kernels, spec.stream)[0]


@norms.vjp
def _norms_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x,) = arrays
    return (grad(cotangents[0].astype(x.dtype), x, outputs[0], spec),)


@norms.jvp
def _norms_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    (x,) = arrays
    return jvp(tangents[0], x, norms(x, spec), spec)


norms.vmap(over_batches(norms))


@operation("l2_pool_grad")
def grad(dy: mx.array, x: mx.array, norms: mx.array, spec: Spec) -> mx.array:
    """The gradient of the norms: dy and x have one dtype."""
    source, result = (norms.shape, norms.dtype), (x.shape, x.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        names, tiles = (("dy", "x", "norms"), ("dx",)), None
        if not any(map(clamps_taps, spec.windows)):
            tiles = launches.on_tiles("l2_pool_grad_tile", names, source, result, spec.windows, in_flight=1)
        return (tiles or launches.by_pixel("l2_pool_grad", names, source, (result,), spec.windows),)

    arrays = {"dy": dy, "x": x, "norms": norms}
    return launch.launch("l2_pool_grad", arrays, spec.windows, (result,), kernels, spec.stream)[0]


@grad.vjp
def _grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x, norms), t = arrays, cotangents[0]
    pushed = jvp(t, x, norms, spec)
    return pushed, grad(dy, t, norms, spec), -_over(dy, norms) * pushed


@grad.jvp
def _grad_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    dy, x, norms = arrays
    return _total(
        (tangents[0], lambda t: grad(t, x, norms, spec)),
        (tangents[1], lambda t: grad(dy, t, norms, spec)),
        (tangents[2], lambda t: -grad((_over(dy, norms) * t).astype(dy.dtype), x, norms, spec)),
    )


grad.vmap(over_batches(grad))


@operation("l2_pool_jvp")
def jvp(t: mx.array, x: mx.array, norms: mx.array, spec: Spec) -> mx.array:
    """The tangent of the norms, in the accumulator's dtype, from that of x."""
    source, result = (x.shape, x.dtype), (norms.shape, norms.dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        names = ("t", "x", "norms"), ("dnorms",)
        return (launches.by_pixel("l2_pool_jvp", names, source, (result,), spec.windows),)

    arrays = {"t": t, "x": x, "norms": norms}
    return launch.launch("l2_pool_jvp", arrays, spec.windows, (result,), kernels, spec.stream)[0]


@jvp.vjp
def _jvp_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (t, x, norms), cotangent = arrays, cotangents[0]
    dy = cotangent.astype(x.dtype)
    return grad(dy, x, norms, spec), grad(dy, t, norms, spec), -_over(cotangent, norms) * outputs[0]


@jvp.jvp
def _jvp_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    u, x, norms = arrays
    return _total(
        (tangents[0], lambda t: jvp(t, x, norms, spec)),
        (tangents[1], lambda t: jvp(u, t, norms, spec)),
        (tangents[2], lambda t: -jvp(u, x, norms, spec) * _over(t, norms)),
    )


jvp.vmap(over_batches(jvp))


def _over(a: mx.array, norms: mx.array) -> mx.array:
    """``a / norms``, and 0 where the norm is."""
    none = norms == 0
    return mx.where(none, 0, a.astype(norms.dtype) / mx.where(none, 1, norms))


def _total(*terms: tuple[mx.array | None, Callable[[mx.array], mx.array]]) -> mx.array:
    """The sum of what each tangent that there is contributes."""
    first, *others = [contribution(tangent) for tangent, contribution in terms if tangent is not None]
    return sum(others, first)
