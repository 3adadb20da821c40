"""Normalization with another image added before the activation, as where a block ends that has a shortcut.

Images and vectors are those of `channels.rules`, whose operations the derivatives are made of.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from mpsfunc.channels import activation_rules, launches
from mpsfunc.channels.activation_spec import RELU, slope_from_output
from mpsfunc.channels.rules import (
    ActivationSpec,
    ChannelVectors,
    mapped_images,
    plain_bn_normalize,
    plain_bn_stats_grad,
)
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, operation


@operation("bn_normalize_add")
def bn_normalize_add(
    x: mx.array,
    added: mx.array,
    mean: ChannelVectors,
    scale: ChannelVectors,
    shift: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    """``act(z)`` with ``z = (x - mean) * scale + shift + added``."""

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_normalize(x, mean.shape[0], on.act, adds=True)

    arrays = {"x": x, "added": added, "mean": mean, "scale": scale, "shift": shift}
    return launch.launch("bn_normalize_add", arrays, on.act, ((tuple(x.shape), x.dtype),), kernels, on.stream)[0]


@bn_normalize_add.decomposition
def _bn_normalize_and_add(
    x: mx.array,
    added: mx.array,
    mean: ChannelVectors,
    scale: ChannelVectors,
    shift: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    return activated_sum(plain_bn_normalize(x, mean, scale, shift, on) + added, on)


@bn_normalize_add.vjp
def _bn_normalize_add_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    x, added, mean, scale, shift = arrays
    none = mx.zeros_like(mean)

    def sum_again() -> mx.array:
        return bn_normalize_add(x, added, mean, scale, shift, on.plain)

    dz = before_activation(cotangents[0], outputs[0], sum_again, on)
    total, dot = plain_bn_stats_grad(dz, x, mean, on)
    return plain_bn_normalize(dz, none, scale, none, on), dz, -scale * total, dot, total


bn_normalize_add.vmap(mapped_images(bn_normalize_add, 2, shared=True))


def activated_sum(z: mx.array, on: ActivationSpec) -> mx.array:
    """``act(z)`` with the derivatives that `before_activation` has."""
    apply = activation_rules.applied if slope_from_output(on.act) else activation_rules.neuron
    return apply(z, on)


def before_activation(dy: mx.array, y: mx.array, sum_again: Callable[[], mx.array], on: ActivationSpec) -> mx.array:
    """``dy * act'(z)`` from ``y = act(z)``, or from ``z = sum_again()`` where y does not tell the slope."""
    if not on.act.kind:
        return dy
    if not slope_from_output(on.act):
        return activation_rules.grad(dy, sum_again(), on)
    if on.act.kind == RELU and on.act.a == 0 and launch.backend(on.stream) != "cpu":
        return mx.where(y > 0, dy, 0)  # which mx.compile joins with the sum of a block's two gradients
    return activation_rules.grad_from_output(dy, y, on)
