"""The activation that ``neuron=`` of another operation names: read, applied, and its slope told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.activation import prelu_rules
from mpsfunc.channels import activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NAMES, NO_ACTIVATION, PRELU, Activation, NeuronName
from mpsfunc.core import checks
from mpsfunc.core.arguments import is_a, is_among, near, text
from mpsfunc.core.printing import describe


class Neuron(NamedTuple):
    """An activation with its parameters, for ``neuron=`` of convolutions and batch normalization.

    Source: ``MPSNNNeuronDescriptor``.

    Fields:
        type: Its name, as `neuron` takes it.
        a: First parameter; for "prelu" the slopes, an array with one entry per channel. Default: the type's own.
        b: Second parameter. Default: the type's own.
        c: Third parameter. Default: the type's own.

    Example:
        >>> from mpsfunc import conv
        >>> x, w = mx.array([-2.0, 8.0]).reshape(2, 1, 1, 1), mx.ones((1, 1, 1, 1))
        >>> conv(x, w, neuron=Neuron("relun", 0.5)).reshape(-1)
        array([-1, 6], dtype=float32)
    """

    type: NeuronName
    a: float | mx.array | None = None
    b: float | None = None
    c: float | None = None


class FusedActivation(NamedTuple):
    """An activation, and the slopes of one that has them."""

    act: Activation
    slopes: mx.array | None = None


def chosen(op: str, neuron: Any, channels: int, stream: mx.Stream, *, of: tuple[int, ...] = ()) -> FusedActivation:
    """What ``neuron=`` means: None, a name, or a `Neuron`."""
    if neuron is None:
        return FusedActivation(NO_ACTIVATION)
    if is_a(neuron, Neuron):
        kind, *parameters = tuple.__iter__(neuron)
        return parsed(op, "neuron.type", kind, parameters, channels, stream, of=of)
    if not is_a(neuron, str):
        raise TypeError(
            f"{op}: neuron is not an activation; got neuron={describe(neuron)}, expected None, a name or a Neuron"
        )
    return parsed(op, "neuron", neuron, (None, None, None), channels, stream, of=of)


def parsed(
    op: str,
    argument: str,
    kind: object,
    parameters: Sequence[object],
    channels: int | None,
    stream: mx.Stream,
    *,
    of: tuple[int, ...] = (),
) -> FusedActivation:
    """An activation from its name, which errors call ``argument``, and a, b and c, for images of so many channels."""
    a, b, c = parameters
    name = text(kind)
    if name is None:
        raise TypeError(f"{op}: {argument} is not a name; got {argument}={describe(kind)}, expected {_LISTED}")
    if not is_among(name, NAMES):
        meant = near("neuron", name, NAMES)
        raise ValueError(f"{op}: unknown neuron; got {argument}={describe(name)}, expected {_LISTED}{meant}")
    if name != "prelu":
        return FusedActivation(activation_rules.activation(op, name, a, b, c))
    for letter, given in (("b", b), ("c", c)):
        if given is not None:
            raise ValueError(f"{op}: prelu has no parameter {letter}; got {letter}={describe(given)}, expected None")
    if not is_a(a, mx.array):
        raise TypeError(f"{op}: the slopes of prelu are not an array; got a={describe(a)}, expected an mx.array")
    return FusedActivation(Activation(PRELU), check_slopes(op, "a", a, channels, stream, of=of))


_LISTED = " or ".join(map(repr, NAMES))


def check_slopes(
    op: str, name: str, slopes: mx.array, channels: int | None, stream: mx.Stream, *, of: tuple[int, ...] = ()
) -> mx.array:
    """A floating vector with one slope per channel of images ``of`` a shape; ``channels`` is None if x has no axis."""
    checks.array(op, name, slopes, stream=stream)
    if channels is None:
        raise ValueError(f"{op}: x has no channels; got x.shape=(), expected channels in the last axis")
    checks.shape(op, name, slopes, (channels,), "the slopes do not fit the channels", of=of)
    return slopes


def described(how: FusedActivation) -> str:
    """An activation in words that differ where two of them do, but for the slopes of a prelu."""
    if how.slopes is not None:
        return "prelu"
    kind, *parameters = how.act
    known = [p + 0.0 for p in parameters[: len(activation_rules.PARAMETERS[NAMES[kind]])]]  # -0.0 is 0.0
    return f"{NAMES[kind]}({', '.join(map(repr, known))})" if known else NAMES[kind]


def apply_activation(z: mx.array, how: FusedActivation, stream: mx.Stream) -> mx.array:
    """``f(z)``."""
    return (
        activation_rules.neuron(z, ActivationSpec(how.act, stream))
        if how.slopes is None
        else prelu_rules.prelu(z, how.slopes, stream)
    )


def grad_from_input(dy: mx.array, z: mx.array, how: FusedActivation, stream: mx.Stream) -> mx.array:
    """``dy * f'(z)``."""
    if how.slopes is None:
        return activation_rules.grad(dy, z, ActivationSpec(how.act, stream))
    return prelu_rules.prelu_grad_input(dy, z, how.slopes, stream)
