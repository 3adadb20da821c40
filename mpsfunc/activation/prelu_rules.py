"""The activation whose slopes below zero are an array, one per channel: its kernels and their rules."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mpsfunc.channels import activation_launches, activation_rules, rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION, PRELU, RELUN, Activation
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation, tangent_of

_OF_SLOPES = Activation(PRELU)
# min(x, 0), whose derivative is 1 below 0 and 0 from there on.
_BELOW = Activation(RELUN, 1.0, 0.0)


def _over_channels(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The vmap rule of ``function(*images, slopes, on)``: mapped slopes join the channels."""

    def rule(arrays: Arrays, mapped: Mapped, size: int, on: ActivationSpec) -> mx.array:
        *images, slopes = [
            a if m else mx.broadcast_to(a, (size, *a.shape)) for a, m in zip(arrays, mapped, strict=True)
        ]
        if not mapped[-1]:
            return function(*images, arrays[-1], on)
        wide = [mx.moveaxis(a, 0, -2) for a in images]
        shape = wide[0].shape
        joined = *shape[:-2], size * shape[-1]
        y = function(*[a.reshape(joined) for a in wide], slopes.reshape(joined[-1]), on)
        return mx.moveaxis(y.reshape(shape), -2, 0)

    return rule


def prelu(x: mx.array, slopes: mx.array, stream: mx.Stream) -> mx.array:
    """``x``, below 0 times the slope of its channel, the last axis."""
    return prelu_kernel(x, slopes, ActivationSpec(_OF_SLOPES, stream))


@operation("neuron")
def prelu_kernel(x: mx.array, slopes: mx.array, on: ActivationSpec) -> mx.array:
    """`prelu`, for a spec of its activation."""
    return _launched("neuron", {"x": x}, slopes, activation_launches.neuron, on)


@prelu_kernel.vjp
def _prelu_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (x, slopes), (dy,) = arrays, cotangents
    return prelu_grad_input_kernel(dy, x, slopes, on), prelu_grad_slopes(dy, x, on.stream)


@prelu_kernel.jvp
def _prelu_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    (x, slopes), (tx, tslopes) = arrays, tangents
    return tangent_of(
        (tx, lambda t: prelu_grad_input_kernel(t, x, slopes, on)),
        (tslopes, lambda t: prelu_kernel(activation_rules.neuron(x, on._replace(act=_BELOW)), t, on)),
    )


prelu_kernel.vmap(_over_channels(prelu_kernel))


def prelu_grad_input(dy: mx.array, x: mx.array, slopes: mx.array, stream: mx.Stream) -> mx.array:
    """``dy``, where x is below 0 times the slope of its channel."""
    return prelu_grad_input_kernel(dy, x, slopes, ActivationSpec(_OF_SLOPES, stream))


@operation("neuron_grad")
def prelu_grad_input_kernel(dy: mx.array, x: mx.array, slopes: mx.array, on: ActivationSpec) -> mx.array:
    """`prelu_grad_input`, for a spec of its activation."""
    return _launched("neuron_grad", {"dy": dy, "x": x}, slopes, activation_launches.grad, on)


@prelu_grad_input_kernel.vjp
def _grad_input_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (dy, x, slopes), (u,) = arrays, cotangents
    return prelu_grad_input_kernel(u, x, slopes, on), None, _sums_below(u, dy, x, on.stream)


@prelu_grad_input_kernel.jvp
def _grad_input_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    (dy, x, slopes), (tdy, _, tslopes) = arrays, tangents
    terms = [mx.zeros_like(dy)] if tdy is None and tslopes is None else []
    if tdy is not None:
        terms.append(prelu_grad_input_kernel(tdy, x, slopes, on))
    if tslopes is not None:
        below = activation_rules.grad(dy, x, on._replace(act=_BELOW))
        terms.append((below * tslopes.astype(launch.accumulator(dy.dtype))).astype(dy.dtype))
    return sum(terms[1:], terms[0])


prelu_grad_input_kernel.vmap(_over_channels(prelu_grad_input_kernel))


def prelu_grad_slopes(dy: mx.array, x: mx.array, stream: mx.Stream) -> mx.array:
    """The sums (c,) of ``dy * x`` over all x below 0 of a channel, in the accumulator's dtype."""
    return _sums_below(dy, x, x, stream)


def _launched(
    op: str,
    arrays: dict[str, mx.array],
    slopes: mx.array,
    kernels: Callable[..., tuple[KernelLaunch, ...]],
    on: ActivationSpec,
) -> mx.array:
    wide = slopes.astype(launch.accumulator(arrays["x"].dtype))

    def launched(some: list[mx.array]) -> mx.array:
        named, result = dict(zip(arrays, some, strict=True)), (tuple(some[0].shape), some[0].dtype)

        def made() -> tuple[KernelLaunch, ...]:
            return kernels(some[0], on.act, slopes=True)

        return launch.launch(op, {**named, "slopes": wide}, on.act, (result,), made, on.stream)[0]

    return activation_rules.in_few_axes(list(arrays.values()), launched)


def _sums_below(dy: mx.array, other: mx.array, x: mx.array, stream: mx.Stream) -> mx.array:
    """The sums (c,) of ``dy * other`` where x is below 0; whatever else there is elsewhere, infinity too, adds 0."""
    channels = x.shape[-1]
    rows = x.size // max(channels, 1)
    first = rows if rows < 2**31 else x.shape[0]
    shape = first, rows // max(first, 1), 1, channels
    if shape[1] * channels >= 2**31:
        raise ValueError(
            f"prelu_grad: x is too large; got x.shape={tuple(x.shape)}, expected less after the first axis"
        )
    none = mx.zeros((1, channels), launch.accumulator(x.dtype))
    below = ActivationSpec(_BELOW, stream)
    if other is x:
        other = activation_rules.neuron(x, below)
        act = _BELOW
    else:
        dy, other, act = activation_rules.grad(dy, x, below), activation_rules.grad(other, x, below), NO_ACTIVATION
    on = ActivationSpec(act, stream)
    return rules.bn_stats_grad(dy.reshape(shape), other.reshape(shape), none, none + 1, none, on)[1].reshape(channels)
