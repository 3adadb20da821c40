"""The sums of the Dice loss and their gradient: kernels of the CPU, with rules, and what a GPU makes them of.

Images are (n, pixels, c), with a target of that shape or labels (n, pixels) of uint32. A kernel makes probabilities
and targets of a block of pixels in its caches, so that nothing of an image's size is written but a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_rules, rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION, SIGMOID, Activation
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, operation, over_batches
from mpsfunc.losses import softmax_rules
from mpsfunc.losses.params import DiceLossParams, DiceParams

_SIGMOID, _SOFTMAX = 1, 2  # of DiceParams
_OF_SIGMOID = Activation(SIGMOID)

ChannelVectors = mx.array  # (n, c), in the accumulator's dtype


class DiceSpec(NamedTuple):
    """What is summed, and where."""

    params: DiceParams
    stream: mx.Stream

    def on(self, act: Activation = NO_ACTIVATION) -> ActivationSpec:
        """The statics of an activation, or of sums over channels."""
        return ActivationSpec(act, self.stream)


class DiceLossSpec(NamedTuple):
    """What is added above and below, what the loss of a class counts, and of what sums."""

    smooth: float
    share: float
    sums: DiceSpec

    @property
    def stream(self) -> mx.Stream:
        """Where everything runs."""
        return self.sums.stream


class Overlap(NamedTuple):
    """Of each class of each image, (n, c): twice the overlap, and what it is compared with."""

    above: mx.array
    below: mx.array


class DiceSums(NamedTuple):
    """Of each class of each image the sums of p * t, of p and of t; of squares the last two of p * p and t * t."""

    both: ChannelVectors
    of_p: ChannelVectors
    of_t: ChannelVectors

    def overlap(self, smooth: float) -> Overlap:
        """The two numbers whose ratio the loss is 1 less."""
        return Overlap(2 * self.both + smooth, self.of_p + self.of_t + smooth)


def has_kernels(spec: DiceSpec) -> bool:
    """Whether `sums` and `gradient` have kernels; a GPU takes `sums_of` and `gradient_of`."""
    return launch.backend(spec.stream) == "cpu"


@operation("dice_sums")
def sums(y: mx.array, target: mx.array, spec: DiceSpec) -> tuple[ChannelVectors, ChannelVectors, ChannelVectors]:
    """`DiceSums` in one pass."""
    results = (((y.shape[0], y.shape[2]), launch.accumulator(y.dtype)),) * 3
    arrays = {"y": y, "target": target}
    both, of_p, of_t = launch.launch("dice_sums", arrays, spec.params, results, _no_kernels, spec.stream)
    return both, of_p, of_t


@sums.vjp
def _sums_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: DiceSpec) -> Gradients:
    (y, target), (by_both, by_p, by_t) = arrays, cotangents
    dy = gradient(y, target, by_both, by_p, spec)
    if spec.params.labelled:
        return dy, None
    slope = _slope(probabilities(y, spec), targets(target, y, spec), by_both, by_t, spec)
    return dy, slope.reshape(target.shape).astype(target.dtype)


@sums.decomposition
def _sums_by_parts(
    y: mx.array, target: mx.array, spec: DiceSpec
) -> tuple[ChannelVectors, ChannelVectors, ChannelVectors]:
    both, of_p, of_t = sums_of(probabilities(y, spec), targets(target, y, spec), spec)
    return both, of_p, of_t


sums.vmap(over_batches(sums))


@operation("dice_grad")
def gradient(y: mx.array, target: mx.array, by_both: ChannelVectors, by_p: ChannelVectors, spec: DiceSpec) -> mx.array:
    """The gradient by y, in its dtype, from those by the first two of `DiceSums`."""
    arrays = {"y": y, "target": target, "by_both": by_both, "by_p": by_p}
    result = tuple(y.shape), y.dtype
    return launch.launch("dice_grad", arrays, spec.params, (result,), _no_kernels, spec.stream)[0]


@gradient.decomposition
def _gradient_by_parts(
    y: mx.array, target: mx.array, by_both: ChannelVectors, by_p: ChannelVectors, spec: DiceSpec
) -> mx.array:
    return gradient_of(y, probabilities(y, spec), targets(target, y, spec), by_both, by_p, spec)


gradient.vmap(over_batches(gradient))


@operation("dice_loss_grad")
def loss_gradient(y: mx.array, target: mx.array, spec: DiceLossSpec) -> mx.array:
    """The gradient of the loss by y, from sums and probabilities that are made once."""
    params, result = DiceLossParams(spec.sums.params, spec.smooth, spec.share), (tuple(y.shape), y.dtype)
    arrays = {"y": y, "target": target}
    return launch.launch("dice_loss_grad", arrays, params, (result,), _no_kernels, spec.stream)[0]


@loss_gradient.decomposition
def _loss_gradient_by_sums(y: mx.array, target: mx.array, spec: DiceLossSpec) -> mx.array:
    made = DiceSums(*sums(y, target, spec.sums))
    return gradient(y, target, *by_sums(made.overlap(spec.smooth), spec.share), spec.sums)


loss_gradient.vmap(over_batches(loss_gradient))


def by_sums(each: Overlap, share: float) -> tuple[ChannelVectors, ChannelVectors]:
    """The gradients of the loss by the first two of `DiceSums`."""
    return -2 * share / each.below, share * each.above / (each.below * each.below)


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("a GPU makes this of other operations")


# What these are made of, of images (n, pixels, 1, c) in the accumulator's dtype ---------------------------


def probabilities(y: mx.array, spec: DiceSpec) -> mx.array:
    """P of y."""
    n, pixels, classes = y.shape
    wide, made_by = y.astype(launch.accumulator(y.dtype)), spec.params.activation
    if made_by == _SIGMOID:
        wide = activation_rules.neuron(wide, spec.on(_OF_SIGMOID))
    elif made_by == _SOFTMAX:
        wide = softmax_rules.softmax(wide.reshape(n * pixels, classes, 1), softmax_rules.Spec(spec.stream))
    return wide.reshape(n, pixels, 1, classes)


def targets(target: mx.array, y: mx.array, spec: DiceSpec) -> mx.array:
    """T of a target; of labels ones and zeros."""
    n, pixels, classes = y.shape
    if spec.params.labelled:
        target = target[..., None] == mx.arange(classes).astype(mx.uint32)
    return target.reshape(n, pixels, 1, classes).astype(launch.accumulator(y.dtype))


def sums_of(p: mx.array, t: mx.array, spec: DiceSpec) -> DiceSums:
    """`DiceSums`, by one pass over each of p and t and one over both."""
    none, on = mx.zeros((p.shape[0], p.shape[3]), p.dtype), spec.on()
    of_p, both = rules.plain_bn_stats_grad(p, t, none, on)
    of_t, squares = rules.plain_bn_stats_grad(t, t, none, on)
    if spec.params.squared:
        return DiceSums(both, rules.plain_bn_stats_grad(p, p, none, on)[1], squares)
    return DiceSums(both, of_p, of_t)


def gradient_of(
    y: mx.array, p: mx.array, t: mx.array, by_both: ChannelVectors, by_p: ChannelVectors, spec: DiceSpec
) -> mx.array:
    """`gradient`, from the p and t of y and a target."""
    n, pixels, classes = y.shape
    dp, made_by = _slope(t, p, by_both, by_p, spec), spec.params.activation
    if made_by == _SOFTMAX:
        lines = n * pixels, classes, 1
        dp = softmax_rules.softmax_grad(dp.reshape(lines), p.reshape(lines), softmax_rules.Spec(spec.stream))
    elif made_by == _SIGMOID:
        dp = activation_rules.grad(dp, y.reshape(p.shape).astype(p.dtype), spec.on(_OF_SIGMOID))
    return dp.reshape(y.shape).astype(y.dtype)


def _slope(other: mx.array, own: mx.array, by_both: ChannelVectors, by_own: ChannelVectors, spec: DiceSpec) -> mx.array:
    """The gradient by p or by t, its own sum's and that of the overlap with the other."""
    none = mx.zeros_like(by_own)
    if not spec.params.squared:
        return rules.plain_bn_normalize(other, none, by_both, by_own, spec.on())
    of_other = rules.plain_bn_normalize(other, none, by_both, none, spec.on())
    return of_other + rules.plain_bn_normalize(own, none, 2 * by_own, none, spec.on())
