"""The activations: what they are called, their parameters, and their kernels with the rules between these.

`neuron` is a value, `grad` a derivative times a gradient, `second_derivative` that times two of them, and
`grad_from_output` is what `grad` is where the value alone is known. Each is the derivative of another; from the third
order on a formula of activations is differentiated. Where there may be no activation a function stands before an
operation, whose name ends in ``_kernel``, and returns its argument as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_launches, activation_spec
from mpsfunc.channels.activation_spec import (
    ABSOLUTE,
    CELU,
    ELU,
    EXPONENTIAL,
    GELU,
    GELU_TANH,
    HARD_SHRINK,
    HARD_SIGMOID,
    HARD_SWISH,
    HARD_TANH,
    LINEAR,
    LOGARITHM,
    MISH,
    NAMES,
    NO_ACTIVATION,
    NONE,
    POWER,
    RELU,
    RELU2,
    RELUN,
    SELU,
    SIGMOID,
    SILU,
    SOFT_SHRINK,
    SOFTPLUS,
    SOFTSIGN,
    STEP,
    SYNONYMS,
    TANH,
    Activation,
    NeuronName,
)  # fmt: skip
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation
from mpsfunc.core.printing import describe

# The parameters of each type with MPS's defaults, or those of other libraries. Those of prelu are an array.
PARAMETERS: dict[NeuronName, tuple[float, ...]] = {
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
    "silu": (1.0,),
    "hard_swish": (),
    "mish": (),
    "gelu_tanh": (),
    "celu": (1.0,),
    "selu": (),
    "hard_tanh": (-1.0, 1.0),
    "hard_shrink": (0.5,),
    "soft_shrink": (0.5,),
    "relu2": (),
    "step": (0.0,),
    "relu6": (),
    "log_sigmoid": (),
    "gelu_fast": (),
}
_EXP = Activation(EXPONENTIAL, 1.0, 0.0, -1.0)
_TANH = Activation(TANH, 1.0, 1.0)
_SELU_BELOW = 1.0507009873554805 * 1.6732632423543772  # the factors of its authors
# Those that are made of straight lines.
_FLAT = (NONE, RELU, LINEAR, HARD_SIGMOID, ABSOLUTE, RELUN, HARD_TANH, HARD_SHRINK, SOFT_SHRINK, STEP)


def activation(op: str, name: NeuronName, a: Any = None, b: Any = None, c: Any = None) -> Activation:
    """An activation by its name, any but prelu's, and parameters, of which None are the type's own."""
    if a is b is c is None and name in _USUAL:
        return _USUAL[name]
    usual, made = PARAMETERS[name], []
    for i, (letter, given) in enumerate((("a", a), ("b", b), ("c", c))):
        if i < len(usual):
            made.append(usual[i] if given is None else checks.number(op, letter, given))
        elif given is not None:
            raise ValueError(f"{op}: {name} has no parameter {letter}; got {letter}={describe(given)}, expected None")
    if name in ("exponential", "logarithm") and made[2] != -1 and (made[2] <= 0 or (name, made[2]) == ("logarithm", 1)):
        rule = "c > 0" if name == "exponential" else "c > 0 but 1"
        raise ValueError(f"{op}: c is not a possible base; got c={made[2]:g}, expected {rule}, or -1 for e")
    if name == "celu" and made[0] <= 0:
        raise ValueError(f"{op}: a is not positive; got a={describe(a)}, expected a > 0")
    if name in ("hard_shrink", "soft_shrink") and made[0] < 0:
        raise ValueError(f"{op}: a is negative; got a={describe(a)}, expected a >= 0")
    if name == "hard_tanh" and made[0] > made[1]:
        raise ValueError(f"{op}: a is more than b; got a={describe(made[0])}, b={describe(made[1])}, expected a <= b")
    if name in SYNONYMS:
        name, *made = SYNONYMS[name]
    return Activation(NAMES.index(name), *made)


_USUAL: dict[NeuronName, Activation] = {}  # with the parameters that are a type's own
_USUAL |= {name: activation("neuron", name) for name in PARAMETERS}


# Operations on arrays of any one shape ------------------------------------------------------------------


class ActivationSpec(NamedTuple):
    """The statics of these operations."""

    act: Activation
    stream: mx.Stream

    @property
    def plain(self) -> ActivationSpec:
        """Without the activation."""
        return ActivationSpec(NO_ACTIVATION, self.stream)


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


def elementwise(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The vmap rule of ``function(*arrays, spec)`` on arrays of any one shape."""

    def rule(arrays: Arrays, mapped: Mapped, size: int, spec: ActivationSpec) -> mx.array:
        wide = [a if m else mx.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)]
        return function(*wide, spec)

    return rule


def neuron(x: mx.array, on: ActivationSpec) -> mx.array:
    """``f(x)``."""
    return neuron_kernel(x, on) if on.act.kind else x


@operation("neuron")
def neuron_kernel(x: mx.array, on: ActivationSpec) -> mx.array:
    """``f(x)`` of an activation."""
    return _launched("neuron", {"x": x}, activation_launches.neuron, on)


@neuron_kernel.vjp
def _neuron_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    return (grad(cotangents[0], arrays[0], on),)


@neuron_kernel.jvp
def _neuron_jvp(arrays: Arrays, tangents: Arrays, on: ActivationSpec) -> mx.array:
    return grad(tangents[0], arrays[0], on)


neuron_kernel.vmap(elementwise(neuron_kernel))


def grad(dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(x)``, where f has no derivative with the slope from the right; that of an absolute value is 0 there."""
    return grad_kernel(dy, x, on) if on.act.kind else dy


@operation("neuron_grad")
def grad_kernel(dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(x)`` of an activation."""
    return _launched("neuron_grad", {"dy": dy, "x": x}, activation_launches.grad, on)


@grad_kernel.vjp
def _grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (dy, x), (u,) = arrays, cotangents
    return grad(u, x, on), _by_curvature(u, dy, x, on)


@grad_kernel.jvp
def _grad_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    (dy, x), (tdy, tx) = arrays, tangents
    by_x = None if tx is None else _by_curvature(tx, dy, x, on)
    if tdy is None:
        return mx.zeros_like(dy) if by_x is None else by_x
    by_dy = grad(tdy, x, on)
    return by_dy if by_x is None else by_dy + by_x


grad_kernel.vmap(elementwise(grad_kernel))


@operation("neuron_grad_grad")
def second_derivative(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    """``u * dy * f''(x)``."""
    return _launched("neuron_grad_grad", {"u": u, "dy": dy, "x": x}, activation_launches.neuron_grad_grad, on)


@second_derivative.decomposition
def _second_derivative_by_formula(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array:
    wide = launch.accumulator(x.dtype)
    return (u.astype(wide) * dy.astype(wide) * _second(x.astype(wide), on)).astype(x.dtype)


second_derivative.vmap(elementwise(second_derivative))


def applied(z: mx.array, on: ActivationSpec) -> mx.array:
    """``f(z)`` with the derivatives of `grad_from_output`."""
    return applied_kernel(z, on) if on.act.kind else z


@operation("neuron")
def applied_kernel(z: mx.array, on: ActivationSpec) -> mx.array:
    """``f(z)`` of a relu with the derivatives of `grad_from_output`."""
    return _launched("neuron", {"x": z}, activation_launches.neuron, on)


@applied_kernel.vjp
def _applied_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    return (grad_from_output(cotangents[0], outputs[0], on),)


@applied_kernel.jvp
def _applied_jvp(arrays: Arrays, tangents: Arrays, on: ActivationSpec) -> mx.array:
    return grad_from_output(tangents[0], applied(arrays[0], on), on)


applied_kernel.vmap(elementwise(applied_kernel))


def grad_from_output(dy: mx.array, y: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(z)`` of a relu, computed from ``y = f(z)``; where the y of a plain one is 0 its slope is."""
    return grad_from_output_kernel(dy, y, on) if on.act.kind else dy


@operation("neuron_grad_from_output")
def grad_from_output_kernel(dy: mx.array, y: mx.array, on: ActivationSpec) -> mx.array:
    """``dy * f'(z)`` of a relu, computed from ``y = f(z)``."""
    return _launched("neuron_grad_from_output", {"dy": dy, "y": y}, activation_launches.neuron_grad_from_output, on)


@grad_from_output_kernel.vjp
def _grad_from_output_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    return grad_from_output(cotangents[0], arrays[1], on), None


@grad_from_output_kernel.jvp
def _grad_from_output_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    return mx.zeros_like(arrays[0]) if tangents[0] is None else grad_from_output(tangents[0], arrays[1], on)


grad_from_output_kernel.vmap(elementwise(grad_from_output_kernel))


# What these are made of ---------------------------------------------------------------------------------


def _launched(
    op: str,
    arrays: dict[str, mx.array],
    kernels: Callable[[mx.array, Activation], tuple[KernelLaunch, ...]],
    on: ActivationSpec,
) -> mx.array:
    first, *_ = arrays.values()
    shape = first.shape
    if 1 <= len(shape) <= 4:  # without what other shapes need, for this runs at every call
        result = (shape, first.dtype)
        return launch.launch(op, arrays, on.act, (result,), lambda: kernels(first, on.act), on.stream)[0]

    def launched(some: list[mx.array]) -> mx.array:
        named, result = dict(zip(arrays, some, strict=True)), (tuple(some[0].shape), some[0].dtype)
        return launch.launch(op, named, on.act, (result,), lambda: kernels(some[0], on.act), on.stream)[0]

    return in_few_axes(list(arrays.values()), launched)


def _by_curvature(u: mx.array, dy: mx.array, x: mx.array, on: ActivationSpec) -> mx.array | None:
    """`second_derivative`, or None where it is 0 everywhere."""
    return None if on.act.kind in _FLAT else second_derivative(u, dy, x, on)


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
    if kind == GELU:
        z = mx.clip(x, -40, 40)  # beyond, it is 0 and would be 0 * infinity
        return neuron(-0.5 * z * z, ActivationSpec(_EXP, of)) * (2 - z * z) * math.sqrt(0.5 / math.pi)
    return _second_of_others(x, on)


def _second_of_others(x: mx.array, on: ActivationSpec) -> mx.array:
    """Of those that MPS does not have."""
    (kind, a, _, _), of = on.act, on.stream
    sigmoid = ActivationSpec(Activation(SIGMOID), of)
    if kind == SILU:
        z = mx.clip(a * x, -1000, 1000)
        s = neuron(z, sigmoid)
        return a * s * (1 - s) * (2 + z * (1 - 2 * s))
    if kind == HARD_SWISH:
        return mx.where((x >= -3) & (x < 3), mx.array(1 / 3, x.dtype), 0)
    if kind == MISH:
        z = mx.clip(x, -1000, 1000)
        s = neuron(z, sigmoid)
        t = neuron(neuron(z, ActivationSpec(Activation(SOFTPLUS, 1.0, 1.0), of)), ActivationSpec(_TANH, of))
        return (1 - t * t) * s * (2 + z * (1 - s * (1 + 2 * t)))
    if kind == GELU_TANH:
        z, factor = mx.clip(x, -40, 40), math.sqrt(8 / math.pi)
        square = 0.044715 * z * z
        first = factor * (1 + 3 * square)
        s = neuron(factor * z * (1 + square), sigmoid)
        return s * (1 - s) * (2 * first + z * (6 * 0.044715 * factor * z + first * first * (1 - 2 * s)))
    if kind == CELU:
        return mx.where(x < 0, neuron(mx.minimum(x, 0) / a, ActivationSpec(_EXP, of)) / a, 0)
    if kind == SELU:
        return mx.where(x < 0, _SELU_BELOW * neuron(mx.minimum(x, 0), ActivationSpec(_EXP, of)), 0)
    assert kind == RELU2
    return mx.where(x < 0, mx.zeros_like(x), 2)
