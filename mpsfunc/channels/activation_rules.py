"""The activations: what they are called, their parameters, and their kernels with the rules between these.

`neuron` is a value, `grad` a derivative times a gradient, `second_derivative` that times two of them, and
`grad_from_output` is what `grad` is where the value alone is known. Each is the derivative of another; from the third
order on a formula of activations is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_launches, activation_spec
from mpsfunc.channels.activation_spec import (
    ABSOLUTE,
    ELU,
    EXPONENTIAL,
    GELU,
    HARD_SIGMOID,
    LINEAR,
    LOGARITHM,
    NAMES,
    NO_ACTIVATION,
    NONE,
    POWER,
    RELU,
    RELUN,
    SIGMOID,
    SOFTPLUS,
    SOFTSIGN,
    TANH,
    Activation,
)  # fmt: skip
from mpsfunc.core import checks, launch
from mpsfunc.core.autodiff import differentiable, with_decomposition
from mpsfunc.core.printing import describe

# The parameters of each type with MPS's defaults. Those of prelu are an array.
PARAMETERS: dict[str, tuple[float, ...]] = {
    "none": (),
    "relu": (0.0,),
    "linear": (1.0, 0.0),
    "sigmoid": (),
    "hard_sigmoid": (0.2, 0.5),
    "tanh": (1.0, 1.0),
    "absolute": (),
    "softplus": (1.0, 1.0),
    "softsign": (),
    "elu": (1.0,),
    "relun": (1.0, 6.0),
    "power": (1.0, 0.0, 1.0),
    "exponential": (1.0, 0.0, -1.0),
    "logarithm": (1.0, 0.0, -1.0),
    "gelu": (),
}
_EXP = Activation(EXPONENTIAL, 1.0, 0.0, -1.0)
# Those that are made of straight lines.
_FLAT = (NONE, RELU, LINEAR, HARD_SIGMOID, ABSOLUTE, RELUN)


def activation(op: str, name: str, a: Any = None, b: Any = None, c: Any = None) -> Activation:
    """An activation by its name, any but prelu's, and parameters, of which None are the type's own."""
    usual, made = PARAMETERS[name], []
    for i, (letter, given) in enumerate((("a", a), ("b", b), ("c", c))):
        if i < len(usual):
            made.append(usual[i] if given is None else checks.number(op, letter, given))
        elif given is not None:
            raise ValueError(f"{op}: {name} has no parameter {letter}; got {letter}={describe(given)}, expected None")
    if name in ("exponential", "logarithm") and made[2] != -1 and (made[2] <= 0 or (name, made[2]) == ("logarithm", 1)):
        rule = "c > 0" if name == "exponential" else "c > 0 but 1"
        raise ValueError(f"{op}: c is no base; got c={made[2]:g}, expected {rule}, or -1 for e")
    return Activation(NAMES.index(name), *made)


# Operations on arrays of any one shape ------------------------------------------------------------------


class ActivationSpec(NamedTuple):
    """The statics of these operations."""

    act: Activation
    stream: mx.Stream

    @property
    def plain(self) -> ActivationSpec:
        """Without the activation."""
        return ActivationSpec(NO_ACTIVATION, self.stream)


def neuron(x: mx.array, on: ActivationSpec) -> mx.array:
    """``f(x)``."""
    y: mx.array = _neuron(x, on) if on.act.kind else x
    return y


def grad(dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(x)``, at a kink with the slope from the right; that of an absolute value is 0 there."""
    dx: mx.array = _grad(dy, x, on) if on.act.kind else dy
    return dx


def applied(z: mx.array, on: ActivationSpec) -> mx.array:
    """``f(z)`` with the derivatives of `grad_from_output`."""
    y: mx.array = _applied(z, on) if on.act.kind else z
    return y


def grad_from_output(dy: mx.array, y: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(z)`` of a relu, told from ``y = f(z)``; where the y of a plain one is 0 its slope is."""
    dz: mx.array = _from_output(dy, y, on) if on.act.kind else dy
    return dz


def in_few_axes(arrays: list[mx.array], run: Callable[[list[mx.array]], mx.array]) -> mx.array:
    """``run(arrays)``, whose result has the shape of each, with one to four axes of which the last stays."""
    shape = tuple(arrays[0].shape)
    if 1 <= len(shape) <= 4:
        return run(arrays)
    *before, last = shape or (1,)
    axes: list[int] = []
    for length in before:  # MLX counts along an axis in int32
        if axes and axes[-1] * length < 2**31:
            axes[-1] *= length
        else:
            axes.append(length)
    return run([a.reshape(*axes, last) for a in arrays]).reshape(shape)


def elementwise(function: Any) -> Any:
    """The vmap rule of ``function()(*arrays, spec)`` on arrays of any one shape."""

    def rule(arrays: Any, mapped: Any, size: int, spec: Any) -> Any:
        return function()(
            *[a if m else mx.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)], spec
        )

    return rule


# Rules --------------------------------------------------------------------------------------------------


def _sum(*terms: mx.array | None) -> Any:
    present = [t for t in terms if t is not None]
    return sum(present[1:], present[0])


def _curved(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array | None:
    return None if on.act.kind in _FLAT else _second_derivative(u, dy, x, on)


def _neuron_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    return (grad(cotangents[0], arrays[0], on),)


def _neuron_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    return grad(tangents[0], arrays[0], on)


def _grad_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    (dy, x), (u,) = arrays, cotangents
    return grad(u, x, on), _curved(u, dy, x, on)


def _grad_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    (dy, x), (tdy, tx) = arrays, tangents
    bent = None if tx is None else _curved(tx, dy, x, on)
    if tdy is None:
        return mx.zeros_like(dy) if bent is None else bent
    return _sum(grad(tdy, x, on), bent)


def _second(x: mx.array, on: ActivationSpec) -> mx.array:
    """``f''(x)`` of float32 or float64, by activations and operations that have derivatives."""
    (kind, a, b, c), of = on.act, on.stream
    if kind == SIGMOID:
        s = neuron(x, on)
        return s * (1 - s) * (1 - 2 * s)
    if kind == TANH:
        t = neuron(x, ActivationSpec(Activation(TANH, 1.0, b), of))
        return (-2 * a * b * b) * t * (1 - t * t)
    if kind == SOFTPLUS:
        s = neuron(b * x, ActivationSpec(Activation(SIGMOID), of))
        return (a * b * b) * s * (1 - s)
    if kind == SOFTSIGN:
        near = 1 / (1 + mx.abs(x))
        return -2 * mx.sign(x) * near * near * near
    if kind == ELU:
        return mx.where(x < 0, a * neuron(mx.minimum(x, 0), ActivationSpec(_EXP, of)), 0)
    if kind == POWER:
        factor = a * a * c * (c - 1)
        return factor * neuron(x, ActivationSpec(Activation(POWER, a, b, c - 2), of)) if factor else mx.zeros_like(x)
    if kind == EXPONENTIAL:
        return (a * activation_spec.log_of(c)) ** 2 * neuron(x, on)
    if kind == LOGARITHM:
        return (-a * a / activation_spec.log_of(c)) * neuron(x, ActivationSpec(Activation(POWER, a, b, -2.0), of))
    assert kind == GELU
    z = mx.clip(x, -40, 40)  # beyond, it is 0 and would be 0 * infinity
    return neuron(-0.5 * z * z, ActivationSpec(_EXP, of)) * (2 - z * z) * math.sqrt(0.5 / math.pi)


def _second_derivative_decomposition(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    wide = launch.accumulator(x.dtype)
    return (u.astype(wide) * dy.astype(wide) * _second(x.astype(wide), on)).astype(x.dtype)


def _applied_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    return (grad_from_output(cotangents[0], outputs[0], on),)


def _applied_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    return grad_from_output(tangents[0], applied(arrays[0], on), on)


def _from_output_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    return grad_from_output(cotangents[0], arrays[1], on), None


def _from_output_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    return mx.zeros_like(arrays[0]) if tangents[0] is None else grad_from_output(tangents[0], arrays[1], on)


# Kernels ------------------------------------------------------------------------------------------------


def _run(op: str, arrays: dict[str, mx.array], kernels: Any, on: ActivationSpec) -> mx.array:
    def launched(some: list[mx.array]) -> mx.array:
        named, result = dict(zip(arrays, some, strict=True)), (tuple(some[0].shape), some[0].dtype)
        return launch.launch(op, named, on.act, (result,), lambda: kernels(some[0], on.act), on.stream)[0]

    return in_few_axes(list(arrays.values()), launched)


def _run_neuron(x: mx.array, on: ActivationSpec) -> mx.array:
    return _run("neuron", {"x": x}, activation_launches.neuron, on)


def _run_grad(dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    return _run("neuron_grad", {"dy": dy, "x": x}, activation_launches.grad, on)


def _run_second_derivative(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    return _run("neuron_grad_grad", {"u": u, "dy": dy, "x": x}, activation_launches.neuron_grad_grad, on)


def _run_from_output(dy: mx.array, y: mx.array, on: ActivationSpec) -> mx.array:
    return _run("neuron_grad_from_output", {"dy": dy, "y": y}, activation_launches.neuron_grad_from_output, on)


_neuron: Any = differentiable(
    "neuron", _run_neuron, vjp=_neuron_vjp, jvp=_neuron_jvp, vmap=elementwise(lambda: _neuron)
)
_grad: Any = differentiable("neuron_grad", _run_grad, vjp=_grad_vjp, jvp=_grad_jvp, vmap=elementwise(lambda: _grad))
_second_derivative: Any = with_decomposition(
    "neuron_grad_grad",
    _run_second_derivative,
    _second_derivative_decomposition,
    vmap=elementwise(lambda: _second_derivative),
)
_applied: Any = differentiable(
    "neuron", _run_neuron, vjp=_applied_vjp, jvp=_applied_jvp, vmap=elementwise(lambda: _applied)
)
_from_output: Any = differentiable(
    "neuron_grad_from_output",
    _run_from_output,
    vjp=_from_output_vjp,
    jvp=_from_output_jvp,
    vmap=elementwise(lambda: _from_output),
)
