"""The kernels of softmax and its logarithm, and their rules.

Lines are those of the middle axis of an array (outer, length, inner). The Jacobian of softmax is symmetric, so its
gradient is its tangent too and the gradient's own derivative by dy; that of the logarithm has a transpose, `_tangent`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, over_batches, with_decomposition
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.losses import softmax_launches
from mpsfunc.losses.params import SoftmaxGradParams

_MOST = 2**31 - 1
# What the gradients' kernels compute; the numbers are theirs.
_GRADIENT, _SECOND_DERIVATIVE, _TANGENT = map(SoftmaxGradParams, range(3))


class Spec(NamedTuple):
    """Where everything runs."""

    stream: mx.Stream


def softmax(x: mx.array, spec: Spec) -> mx.array:
    """``exp(x - max) / sum of those`` along the middle axis."""
    y: mx.array = _softmax(x, spec)
    return y


def softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``y * (dy - sum of dy * y)``."""
    dx: mx.array = _softmax_grad(dy, y, spec)
    return dx


def log_softmax(x: mx.array, spec: Spec) -> mx.array:
    """``x - max - log(sum of exp(x - max))``."""
    y: mx.array = _log_softmax(x, spec)
    return y


def log_softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``dy - exp(y) * sum of dy``."""
    dx: mx.array = _log_softmax_grad(dy, y, spec)
    return dx


def lines(op: str, shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The shape as (outer, length, inner) around an axis."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if max(outer, inner) > _MOST:
        raise ValueError(
            f"{op}: too many lines for one axis; got shape={shape}, expected products of at most {_MOST} before "
            f"and behind axis {axis}"
        )
    return outer, shape[axis], inner


def _launched(op: str, arrays: dict[str, mx.array], params: SoftmaxGradParams | None, spec: Spec) -> mx.array:
    *_, like = arrays.values()

    def kernels() -> tuple[KernelLaunch, ...]:
        return softmax_launches.kernels(op.startswith("log"), op.endswith("grad"), like)

    return launch.launch(op, arrays, params, ((tuple(like.shape), like.dtype),), kernels, spec.stream)[0]


def _wide(*arrays: mx.array) -> list[mx.array]:
    return [a.astype(launch.accumulator(a.dtype)) for a in arrays]


def _total(terms: mx.array) -> mx.array:
    return terms.sum(1, keepdims=True)


def _own(spec: Spec) -> bool:
    """Whether the second order has a kernel too; a GPU takes MLX's operations."""
    return launch.backend(spec.stream) == "cpu"


# MLX's exponential of float64 has the digits of float32, and so have its derivatives of expm1.
exp: Any = differentiable(
    "exp",
    lambda x, spec: mx.expm1(x) + 1 if x.dtype == mx.float64 else mx.exp(x),
    vjp=lambda arrays, cotangents, outputs, spec: (cotangents[0] * exp(arrays[0], spec),),
    jvp=lambda arrays, tangents, spec: tangents[0] * exp(arrays[0], spec),
    vmap=lambda arrays, mapped, size, spec: exp(arrays[0], spec),
)


# Softmax ------------------------------------------------------------------------------------------------


_softmax: Any = differentiable(
    "softmax",
    lambda x, spec: _launched("softmax", {"x": x}, None, spec),
    vjp=lambda arrays, cotangents, outputs, spec: (softmax_grad(cotangents[0], outputs[0], spec),),
    jvp=lambda arrays, tangents, spec: softmax_grad(tangents[0], _softmax(arrays[0], spec), spec),
    vmap=over_batches(lambda: _softmax),
)


def _decomposition_of_softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    dy_wide, y_wide = _wide(dy, y)
    return (y_wide * (dy_wide - _total(dy_wide * y_wide))).astype(y.dtype)


_softmax_grad: Any = with_decomposition(
    "softmax_grad",
    lambda dy, y, spec: _launched("softmax_grad", {"dy": dy, "y": y}, _GRADIENT, spec),
    _decomposition_of_softmax_grad,
    vjp=lambda arrays, cotangents, outputs, spec: (
        _softmax_grad(cotangents[0], arrays[1], spec),
        _softmax_second_derivative(cotangents[0], *arrays, spec),
    ),
    vmap=over_batches(lambda: _softmax_grad),
)


def _decomposition_of_softmax_second_derivative(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    u_wide, dy_wide, y_wide = _wide(u, dy, y)
    made = u_wide * (dy_wide - _total(dy_wide * y_wide)) - dy_wide * _total(u_wide * y_wide)
    return made.astype(y.dtype)


def _run_softmax_second_derivative(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    if not _own(spec):
        return _decomposition_of_softmax_second_derivative(u, dy, y, spec)
    return _launched("softmax_grad", {"u": u, "dy": dy, "y": y}, _SECOND_DERIVATIVE, spec)


# The gradient of sum(u * softmax_grad(dy, y)) by y.
_softmax_second_derivative: Any = with_decomposition(
    "softmax_grad",
    _run_softmax_second_derivative,
    _decomposition_of_softmax_second_derivative,
    vmap=over_batches(lambda: _softmax_second_derivative),
)


# Its logarithm ------------------------------------------------------------------------------------------


def _log_softmax_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    return (_log_softmax_grad(cotangents[0], outputs[0], spec),)


_log_softmax: Any = differentiable(
    "log_softmax",
    lambda x, spec: _launched("log_softmax", {"x": x}, None, spec),
    vjp=_log_softmax_vjp,
    jvp=lambda arrays, tangents, spec: _tangent(tangents[0], _log_softmax(arrays[0], spec), spec),
    vmap=over_batches(lambda: _log_softmax),
)


def _decomposition_of_log_softmax_grad(dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    dy_wide, y_wide = _wide(dy, y)
    made: mx.array = (dy_wide - exp(y_wide, spec) * _total(dy_wide)).astype(y.dtype)
    return made


_log_softmax_grad: Any = with_decomposition(
    "log_softmax_grad",
    lambda dy, y, spec: _launched("log_softmax_grad", {"dy": dy, "y": y}, _GRADIENT, spec),
    _decomposition_of_log_softmax_grad,
    vjp=lambda arrays, cotangents, outputs, spec: (
        _tangent(cotangents[0], arrays[1], spec),
        _log_softmax_second_derivative(cotangents[0], *arrays, spec),
    ),
    vmap=over_batches(lambda: _log_softmax_grad),
)


def _decomposition_of_tangent(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    t_wide, y_wide = _wide(t, y)
    return (t_wide - _total(exp(y_wide, spec) * t_wide)).astype(y.dtype)


def _run_tangent(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    if not _own(spec):
        return _decomposition_of_tangent(t, y, spec)
    return _launched("log_softmax_grad", {"t": t, "y": y}, _TANGENT, spec)


_tangent: Any = with_decomposition(
    "log_softmax_grad",
    _run_tangent,
    _decomposition_of_tangent,
    vmap=over_batches(lambda: _tangent),
)


def _decomposition_of_log_softmax_second_derivative(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    u_wide, dy_wide, y_wide = _wide(u, dy, y)
    made: mx.array = (-u_wide * exp(y_wide, spec) * _total(dy_wide)).astype(y.dtype)
    return made


def _run_log_softmax_second_derivative(u: mx.array, dy: mx.array, y: mx.array, spec: Spec) -> mx.array:
    if not _own(spec):
        return _decomposition_of_log_softmax_second_derivative(u, dy, y, spec)
    return _launched("log_softmax_grad", {"u": u, "dy": dy, "y": y}, _SECOND_DERIVATIVE, spec)


# The gradient of sum(u * log_softmax_grad(dy, y)) by y.
_log_softmax_second_derivative: Any = with_decomposition(
    "log_softmax_grad",
    _run_log_softmax_second_derivative,
    _decomposition_of_log_softmax_second_derivative,
    vmap=over_batches(lambda: _log_softmax_second_derivative),
)
