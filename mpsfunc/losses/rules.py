"""The kernels of losses, and their rules.

Arrays are (images, pixels, classes). Two operations: `loss` computes the value, with the gradient that MPS passes on
beside it, and `loss_grad` either that gradient or the derivative of the value. A value's derivative is always the
latter; those by targets and weights, and all beyond the first, are those of `losses.formulas`.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, over_batches, with_decomposition
from mpsfunc.core.launch import KernelLaunch, Output
from mpsfunc.losses import formulas, launches
from mpsfunc.losses.formulas import Spec
from mpsfunc.losses.params import LossGradParams, LossParams

Arrays = tuple[mx.array, ...]


def value(arrays: Arrays, spec: Spec) -> mx.array:
    """The loss of each image (n,), or of every element."""
    made: mx.array = _value(*arrays, spec)
    return made


def gradient(arrays: Arrays, spec: Spec) -> mx.array:
    """The gradient that MPS passes on."""
    made: mx.array = _gradient(*arrays, spec)
    return made


def derivative(arrays: Arrays, spec: Spec) -> mx.array:
    """The derivative of the value."""
    made: mx.array = _derivative(*arrays, spec)
    return made


def both(arrays: Arrays, spec: Spec) -> tuple[mx.array, mx.array]:
    """`value` and `gradient`, made together.

    Each has rules of its own, or a derivative of one would be worked out for the other too.
    """
    if not launch.tracing():
        made, passed = _run_both(*arrays, spec)
        return made, passed
    with mx.stream(spec.stream):
        made, passed = _both(*[mx.stop_gradient(a) for a in arrays], spec)
    return _known_value(*arrays, made, spec), _known_gradient(*arrays, passed, spec)


# Launches -----------------------------------------------------------------------------------------------


def _named(arrays: list[mx.array], spec: Spec) -> dict[str, mx.array]:
    names = ["y", "target"]
    if spec.weighted:
        names.append("weights")
    if spec.scaled:
        names.append("scales")
    return dict(zip(names, arrays, strict=True))


def _outputs(y: mx.array, spec: Spec) -> tuple[Output, Output]:
    like = tuple(y.shape), y.dtype
    return like if spec.elements else ((y.shape[0],), launch.accumulator(y.dtype)), like


def _run_both(*args: Any) -> tuple[mx.array, mx.array]:
    *arrays, spec = args
    if spec.elements and launch.backend(spec.stream) != "cpu":
        return formulas.value(tuple(arrays), spec), _run_gradient(*arrays, spec)
    made, passed = _launched_loss(arrays, spec, True)
    return made, passed


def _run_value(*args: Any) -> mx.array:
    *arrays, spec = args
    if spec.elements and launch.backend(spec.stream) != "cpu":
        return formulas.value(tuple(arrays), spec)
    return _launched_loss(arrays, spec, False)[0]


def _launched_loss(arrays: list[mx.array], spec: Spec, passed: bool) -> list[mx.array]:
    named, outputs = _named(arrays, spec), _outputs(arrays[0], spec)
    params = LossParams(spec.type, int(spec.elements), int(spec.labelled), int(spec.weighted), spec.numbers)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.loss(named, spec)

    made = outputs if passed else outputs[:1]
    return launch.launch("loss", named, params, made, kernels, spec.stream, returns=("total", "gradient"))


def _run_gradient(*args: Any) -> mx.array:
    *arrays, spec = args
    return _launched_gradient(arrays, spec, False)


def _run_derivative(*args: Any) -> mx.array:
    *arrays, spec = args
    return _launched_gradient(arrays, spec, True)


def _launched_gradient(arrays: list[mx.array], spec: Spec, exact: bool) -> mx.array:
    named, outputs = _named(arrays, spec), _outputs(arrays[0], spec)[1:]
    switches = int(exact), int(spec.labelled), int(spec.weighted), int(spec.scaled)
    params = LossGradParams(spec.type, *switches, spec.numbers)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.loss_grad(named, spec, exact)

    return launch.launch("loss_grad", named, params, outputs, kernels, spec.stream)[0]


# Rules --------------------------------------------------------------------------------------------------


def _value_vjp(arrays: Arrays, cotangents: Any, outputs: Any, spec: Spec) -> Any:
    y, t, w = formulas.parts(arrays, spec)
    above = cotangents[0].astype(y.dtype)
    if spec.elements:
        weights = mx.broadcast_to(above * w, y.shape)
        dy = _derivative(arrays[0], arrays[1], weights, spec._replace(weighted=True))
    else:
        dy = _derivative(*arrays[: 2 + spec.weighted], above, spec._replace(scaled=True))
        above = above[:, None, None] * spec.factor
    dt = None if spec.labelled else above * w * spec.kept * formulas.target_slopes(y, t, spec)
    if not spec.weighted:
        return dy, dt
    dw = above * formulas.elements(y, t, spec)
    return dy, dt, dw if arrays[2].shape == y.shape else dw.sum(-1, keepdims=True)


_value: Any = with_decomposition(
    "loss",
    _run_value,
    lambda *args: formulas.value(args[:-1], args[-1]),
    vjp=_value_vjp,
    vmap=over_batches(lambda: _value),
)
_gradient: Any = with_decomposition(
    "loss_grad",
    _run_gradient,
    lambda *args: formulas.gradient(args[:-1], args[-1]),
    vmap=over_batches(lambda: _gradient),
)
_derivative: Any = with_decomposition(
    "loss_grad",
    _run_derivative,
    lambda *args: formulas.derivative(args[:-1], args[-1]),
    vmap=over_batches(lambda: _derivative),
)
# Nothing is differentiated here: the arrays come behind mx.stop_gradient.
_both: Any = differentiable(
    "loss",
    _run_both,
    vjp=lambda arrays, cotangents, outputs, spec: (None,) * len(arrays),
    jvp=lambda arrays, tangents, spec: tuple(map(mx.zeros_like, _both(*arrays, spec))),
    vmap=over_batches(lambda: _both),
)


def _known(*args: Any) -> mx.array:
    """What has been computed, the last array."""
    known: mx.array = args[-2]
    return known


_known_value: Any = with_decomposition(
    "loss",
    _known,
    lambda *args: formulas.value(args[:-2], args[-1]),
    vjp=lambda arrays, *rest: (*_value_vjp(arrays[:-1], *rest), None),
    vmap=over_batches(lambda: _known_value),
)
_known_gradient: Any = with_decomposition(
    "loss_grad",
    _known,
    lambda *args: formulas.gradient(args[:-2], args[-1]),
    vmap=over_batches(lambda: _known_gradient),
)
