"""The kernels of softmax, its logarithm and softmin, and their rules.

Lines are those of the middle axis of an array (outer, length, inner). The Jacobian of softmax is symmetric, so its
gradient is its tangent too and the gradient's own derivative by dy; that of the logarithm has a transpose,
`log_softmax_tangent`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, operation, over_batches
from mpsfunc.losses import softmax_launches
from mpsfunc.losses.params import SoftmaxGradParams

_MOST = 2**31 - 1
# What the gradients' kernels compute; the numbers are theirs.
_GRADIENT, _SECOND_DERIVATIVE, _TANGENT = map(SoftmaxGradParams, range(3))
_OF_SOFTMIN = _TANGENT  # of softmax, whose gradient is its tangent


class Spec(NamedTuple):
    """Where everything runs."""

    stream: mx.Stream


def lines(op: str, shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The shape as (outer, length, inner) around an axis."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if max(outer, inner) > _MOST:
        raise ValueError(
            f"{op}: too many lines for one axis; got shape={shape}, expected products of at most {_MOST} before "
            f"and after axis {axis}"
        )
    return outer, shape[axis], inner


@operation("exp")
def exp(x: mx.array, spec: Spec) -> mx.array:
    """The exponential; MLX's of float64 has the digits of float32, and so have its derivatives of expm1."""
    return mx.expm1(x) + 1 if x.dtype == mx.float64 else mx.exp(x)


@exp.vjp
def _exp_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (cotangents[0] * exp(arrays[0], spec),)


@exp.jvp
def _exp_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return tangents[0] * exp(arrays[0], spec)


@exp.vmap
def _exp_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    return exp(arrays[0], spec)


# Softmax ------------------------------------------------------------------------------------------------


@operation("softmax")
def softmax(x: mx.array, spec: Spec) -> mx.array:
    """``exp(x - max) / sum of those`` along the middle axis."""
    return _launched("softmax", {"x": x}, None, spec)


@softmax.vjp
def _softmax_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (softmax_grad(cotangents[0], outputs[0], spec),)


@softmax.jvp
def _softmax_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return softmax_grad(tangents[0], softmax(arrays[0], spec), spec)


softmax.vmap(over_batches(softmax))


@operation("softmax_grad")
def softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``y * (dy - sum of dy * y)``."""
    return _launched("softmax_grad", {"dy": dy, "y": y}, _GRADIENT, spec)


@softmax_grad.vjp
def _softmax_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, y), u = arrays, cotangents[0]
    return softmax_grad(u, y, spec), softmax_grad_by_y(u, dy, y, spec)


@softmax_grad.decomposition
def _softmax_grad_by_formula(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    dy_wide, y_wide = _wide(dy, y)
    return (y_wide * (dy_wide - _total(dy_wide * y_wide))).astype(y.dtype)


softmax_grad.vmap(over_batches(softmax_grad))


@operation("softmax_grad")
def softmax_grad_by_y(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """The gradient of ``sum(u * softmax_grad(dy, y))`` by y."""
    if not _own(spec):
        return _softmax_grad_by_y_by_formula(u, dy, y, spec)
    return _launched("softmax_grad", {"u": u, "dy": dy, "y": y}, _SECOND_DERIVATIVE, spec)


@softmax_grad_by_y.decomposition
def _softmax_grad_by_y_by_formula(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    u_wide, dy_wide, y_wide = _wide(u, dy, y)
    made = u_wide * (dy_wide - _total(dy_wide * y_wide)) - dy_wide * _total(u_wide * y_wide)
    return made.astype(y.dtype)


softmax_grad_by_y.vmap(over_batches(softmax_grad_by_y))


# Its logarithm ------------------------------------------------------------------------------------------


@operation("log_softmax")
def log_softmax(x: mx.array, spec: Spec) -> mx.array:
    """``x - max - log(sum of exp(x - max))``."""
    return _launched("log_softmax", {"x": x}, None, spec)


@log_softmax.vjp
def _log_softmax_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (log_softmax_grad(cotangents[0], outputs[0], spec),)


@log_softmax.jvp
def _log_softmax_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return log_softmax_tangent(tangents[0], log_softmax(arrays[0], spec), spec)


log_softmax.vmap(over_batches(log_softmax))


@operation("log_softmax_grad")
def log_softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``dy - exp(y) * sum of dy``."""
    return _launched("log_softmax_grad", {"dy": dy, "y": y}, _GRADIENT, spec)


@log_softmax_grad.vjp
def _log_softmax_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, y), u = arrays, cotangents[0]
    return log_softmax_tangent(u, y, spec), log_softmax_grad_by_y(u, dy, y, spec)


@log_softmax_grad.decomposition
def _log_softmax_grad_by_formula(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    dy_wide, y_wide = _wide(dy, y)
    return (dy_wide - exp(y_wide, spec) * _total(dy_wide)).astype(y.dtype)


log_softmax_grad.vmap(over_batches(log_softmax_grad))


@operation("log_softmax_grad")
def log_softmax_tangent(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``t - sum of exp(y) * t``, the tangent of y from that of x."""
    if not _own(spec):
        return _log_softmax_tangent_by_formula(t, y, spec)
    return _launched("log_softmax_grad", {"t": t, "y": y}, _TANGENT, spec)


@log_softmax_tangent.decomposition
def _log_softmax_tangent_by_formula(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    t_wide, y_wide = _wide(t, y)
    return (t_wide - _total(exp(y_wide, spec) * t_wide)).astype(y.dtype)


log_softmax_tangent.vmap(over_batches(log_softmax_tangent))


@operation("log_softmax_grad")
def log_softmax_grad_by_y(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """The gradient of ``sum(u * log_softmax_grad(dy, y))`` by y."""
    if not _own(spec):
        return _log_softmax_grad_by_y_by_formula(u, dy, y, spec)
    return _launched("log_softmax_grad", {"u": u, "dy": dy, "y": y}, _SECOND_DERIVATIVE, spec)


@log_softmax_grad_by_y.decomposition
def _log_softmax_grad_by_y_by_formula(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    u_wide, dy_wide, y_wide = _wide(u, dy, y)
    return (-u_wide * exp(y_wide, spec) * _total(dy_wide)).astype(y.dtype)


log_softmax_grad_by_y.vmap(over_batches(log_softmax_grad_by_y))


# Softmin ------------------------------------------------------------------------------------------------


@operation("softmin")
def softmin(x: mx.array, spec: Spec) -> mx.array:
    """Softmax of -x."""
    return _launched("softmin", {"x": x}, None, spec)


@softmin.vjp
def _softmin_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (softmin_grad(cotangents[0], outputs[0], spec),)


@softmin.jvp
def _softmin_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return softmin_grad(tangents[0], softmin(arrays[0], spec), spec)


softmin.vmap(over_batches(softmin))


@operation("softmin")
def softmin_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``-softmax_grad(dy, y)``."""
    return _launched("softmax_grad", {"dy": dy, "y": y}, _OF_SOFTMIN, spec)


@softmin_grad.vjp
def _softmin_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, y), u = arrays, cotangents[0]
    return softmin_grad(u, y, spec), -softmax_grad_by_y(u, dy, y, spec)


@softmin_grad.decomposition
def _softmin_grad_by_formula(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    return -_softmax_grad_by_formula(dy, y, spec)


softmin_grad.vmap(over_batches(softmin_grad))


# Helpers ------------------------------------------------------------------------------------------------


def _launched(op: str, arrays: dict[str, mx.array], params: SoftmaxGradParams | None, spec: Spec) -> mx.array:
    *_, like = arrays.values()

    def kernels() -> tuple[KernelLaunch, ...]:
        sign = -1 if op == "softmin" or (op == "softmax_grad" and params == _OF_SOFTMIN) else 1
        return softmax_launches.kernels(op.startswith("log"), op.endswith("grad"), like, sign)

    return launch.launch(op, arrays, params, ((tuple(like.shape), like.dtype),), kernels, spec.stream)[0]


def _wide(*arrays: mx.array) -> list[mx.array]:
    return [a.astype(launch.accumulator(a.dtype)) for a in arrays]


def _total(terms: mx.array) -> mx.array:
    return terms.sum(1, keepdims=True)


def _own(spec: Spec) -> bool:
    """Whether the second order has a kernel too; a GPU takes MLX's operations."""
    return launch.backend(spec.stream) == "cpu"
