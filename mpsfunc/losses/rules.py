"""The kernels of losses, and their rules.

Arrays are (images, pixels, classes). Two operations: `loss` computes the value and MPS's gradient, and `loss_grad`
either that gradient or the derivative of the value. A value's derivative is always the latter; those by targets and
weights, and all beyond the first, are those of `losses.formulas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch, Output
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches
from mpsfunc.losses import formulas, launches
from mpsfunc.losses.formulas import Spec
from mpsfunc.losses.params import LossGradParams, LossParams

if TYPE_CHECKING:
    from typing_extensions import Unpack


def both(arrays: Arrays, spec: Spec) -> tuple[mx.array, mx.array]:
    """`value` and `gradient`, made together.

    Each has rules of its own, or a derivative of one would be worked out for the other too.
    """
    if not launch.tracing():
        return made_together(*arrays, spec)
    with mx.stream(spec.stream):
        made, passed = made_together(*[mx.stop_gradient(a) for a in arrays], spec)
    return known_value(*arrays, made, spec), known_gradient(*arrays, passed, spec)


# The value ----------------------------------------------------------------------------------------------


@operation("loss")
def value(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    """The loss of each image (n,), or of every element."""
    *arrays, spec = args
    if _by_formula(spec):
        return formulas.value(tuple(arrays), spec)
    return _launched_loss(arrays, spec, False)[0]


@value.vjp
def _value_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    if spec.by_terms:
        return _by_terms_vjp(arrays, cotangents[0], spec)
    y, t, w = formulas.parts(arrays, spec)
    above = cotangents[0].astype(y.dtype)
    if spec.elements:
        weights = mx.broadcast_to(above * w, y.shape)
        dy = derivative(arrays[0], arrays[1], weights, spec._replace(weighted=True))
    else:
        dy = derivative(*arrays[: 2 + spec.weighted], above, spec._replace(scaled=True))
        above = above[:, None, None] * spec.factor
    dt = None if spec.labelled else above * w * spec.kept * formulas.target_slopes(y, t, spec)
    if not spec.weighted:
        return dy, dt
    dw = above * formulas.elements(y, t, spec)
    return dy, dt, dw if arrays[2].shape == y.shape else dw.sum(-1, keepdims=True)


def _by_terms_vjp(arrays: Arrays, above: mx.array, spec: Spec) -> Gradients:
    y, a, b = arrays[:3]
    if spec.elements:
        dy = derivative(y, above * a, above * b, spec)
    else:
        dy = derivative(y, a, b, above, spec._replace(scaled=True))
        above = above[:, None, None] * spec.factor
    return dy, above * formulas.softplus(-y, spec), above * formulas.softplus(y, spec)


@value.decomposition
def _value_by_formula(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    return formulas.value(args[:-1], args[-1])


value.vmap(over_batches(value))


# Gradients ----------------------------------------------------------------------------------------------


@operation("loss_grad")
def gradient(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    """MPS's gradient."""
    *arrays, spec = args
    return _launched_gradient(arrays, spec, False)


@gradient.decomposition
def _gradient_by_formula(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    return formulas.gradient(args[:-1], args[-1])


gradient.vmap(over_batches(gradient))


@operation("loss_grad")
def derivative(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    """The derivative of the value."""
    *arrays, spec = args
    return _launched_gradient(arrays, spec, True)


@derivative.decomposition
def _derivative_by_formula(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    return formulas.derivative(args[:-1], args[-1])


derivative.vmap(over_batches(derivative))


# Both, made together ------------------------------------------------------------------------------------


@operation("loss")
def made_together(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> tuple[mx.array, mx.array]:
    """The value and the gradient, without derivatives: `both` keeps what is differentiated away."""
    *arrays, spec = args
    if spec.elements and launch.backend(spec.stream) != "cpu":
        made = formulas.value(tuple(arrays), spec) if _by_formula(spec) else _launched_loss(arrays, spec, False)[0]
        return made, _launched_gradient(arrays, spec, False)
    made, passed = _launched_loss(arrays, spec, True)
    return made, passed


@made_together.vjp
def _together_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (None,) * len(arrays)


@made_together.jvp
def _together_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> tuple[mx.array, mx.array]:
    made, passed = made_together(*arrays, spec)
    return mx.zeros_like(made), mx.zeros_like(passed)


made_together.vmap(over_batches(made_together))


@operation("loss")
def known_value(*args: Unpack[tuple[Unpack[Arrays], mx.array, Spec]]) -> mx.array:
    """The last array, which is the `value` of those before it."""
    return args[-2]


@known_value.vjp
def _known_value_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return *_value_vjp(arrays[:-1], cotangents, outputs, spec), None


@known_value.decomposition
def _known_value_by_formula(*args: Unpack[tuple[Unpack[Arrays], mx.array, Spec]]) -> mx.array:
    return formulas.value(args[:-2], args[-1])


known_value.vmap(over_batches(known_value))


@operation("loss_grad")
def known_gradient(*args: Unpack[tuple[Unpack[Arrays], mx.array, Spec]]) -> mx.array:
    """The last array, which is the `gradient` of those before it."""
    return args[-2]


@known_gradient.decomposition
def _known_gradient_by_formula(*args: Unpack[tuple[Unpack[Arrays], mx.array, Spec]]) -> mx.array:
    return formulas.gradient(args[:-2], args[-1])


known_gradient.vmap(over_batches(known_gradient))


# Launches -----------------------------------------------------------------------------------------------


def _by_formula(spec: Spec) -> bool:
    """Whether the kernel has no such loss of elements: on a GPU what needs all classes of a pixel."""
    return spec.elements and spec.type == formulas.SOFTMAX and launch.backend(spec.stream) != "cpu"


def _launched_loss(arrays: list[mx.array], spec: Spec, passed: bool) -> list[mx.array]:
    if spec.by_terms and launch.backend(spec.stream) != "cpu":
        first, second = (_launched_loss(term, spec._replace(by_terms=False), passed) for term in _terms(arrays))
        return [first[0] + second[0], *(b - a for a, b in zip(first[1:], second[1:], strict=True))]
    named, outputs = _named(arrays, spec), _outputs(arrays[0], spec)
    params = LossParams(_kind(spec), int(spec.elements), int(spec.labelled), int(spec.weighted), spec.numbers)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.elements(named, spec) if spec.elements else launches.loss(named, spec)

    made = outputs if passed else outputs[:1]
    returns = ("total",) if spec.elements else ("total", "gradient")
    return launch.launch("loss", named, params, made, kernels, spec.stream, returns=returns)


def _launched_gradient(arrays: list[mx.array], spec: Spec, exact: bool) -> mx.array:
    if spec.by_terms and launch.backend(spec.stream) != "cpu":
        first, second = (_launched_gradient(term, spec._replace(by_terms=False), exact) for term in _terms(arrays))
        return second - first
    named, outputs = _named(arrays, spec), _outputs(arrays[0], spec)[1:]
    switches = int(exact), int(spec.labelled), int(spec.weighted), int(spec.scaled)
    params = LossGradParams(_kind(spec), *switches, spec.numbers)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.loss_grad(named, spec, exact)

    return launch.launch("loss_grad", named, params, outputs, kernels, spec.stream)[0]


_BY_TERMS = 11  # of a CPU, after the types


def _kind(spec: Spec) -> int:
    return _BY_TERMS if spec.by_terms else spec.type


def _named(arrays: list[mx.array], spec: Spec) -> dict[str, mx.array]:
    names = ["y", "target"]
    if spec.weighted:
        names.append("weights")
    if spec.scaled:
        names.append("scales")
    return dict(zip(names, arrays, strict=True))


def _terms(arrays: list[mx.array]) -> tuple[list[mx.array], list[mx.array]]:
    """The two terms of ``-a log p - b log(1 - p)``, each as the sigmoid cross-entropy of a target of zeros.

    With p the sigmoid of y they are ``a softplus(-y)`` and ``b softplus(y)``, and the derivative of the first by y is
    that by ``-y`` with the other sign. A single target ``a / (a + b)`` would round away the smaller of the two factors,
    and a target of 1 the derivative ``p - 1`` of a large y.
    """
    y, a, b, *scales = arrays
    zeros = mx.zeros_like(y)
    return [-y, zeros, a, *scales], [y, zeros, b, *scales]


def _outputs(y: mx.array, spec: Spec) -> tuple[Output, Output]:
    like = tuple(y.shape), y.dtype
    return like if spec.elements else ((y.shape[0],), launch.accumulator(y.dtype)), like
