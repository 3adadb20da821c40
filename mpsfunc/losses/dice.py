"""The Dice loss, which MPS does not have."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.channels import activation_rules, rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import arguments, labels, softmax_rules
from mpsfunc.losses.focal import OVERALL, OverallName

SharesName = Literal["none", "sigmoid", "softmax"]
SHARES: tuple[SharesName, ...] = get_args(SharesName)
_AS_THEY_ARE, _SIGMOID, _SOFTMAX = SHARES
_NONE, _SUM, _MEAN = OVERALL


def dice_loss(
    y: mx.array,
    target: mx.array,
    *,
    activation: SharesName = "none",
    smooth: float = 1e-5,
    squared: bool = False,
    reduction: OverallName = "mean",
    stream: StreamLike = None,
) -> mx.array:
    """How little predictions and targets overlap: 0 where both are the same zeros and ones.

    Without ``smooth`` it is 1 where ``p * t`` is 0 everywhere.

    For each image and class, with sums over its pixels and p the probabilities::

        1 - (2 * sum of p * t + smooth) / (sum of p + sum of t + smooth)

    Its derivative is exact, by y and by the target, and of every order.

    Source: none in MPS. With ``squared`` Milletari et al., "V-Net", 2016, whose formula has no ``smooth``; without
    ``squared`` as MONAI's ``DiceLoss`` computes it, whose ``smooth_nr`` and ``smooth_dr`` are ``smooth``.

    Args:
        y: Predictions (n, ..., c), images along the first axis and classes along the last; float32, float16, bfloat16,
            or float64 on the CPU.
        target: Of y's shape and dtype; or integers of shape ``y.shape[:-1]``, the classes, or (n,) where images have
            one pixel. One below 0 or beyond the last is no class, a target of zeros; with MPSFUNC_CHECK_LABELS=1 in
            the environment labels are evaluated, and such a one is an error.
        activation: What makes probabilities of y: "none" (they are some already), "sigmoid" or, over the last axis,
            "softmax". Default "none".
        smooth: At least 0. A class that neither is in the target nor is predicted has a loss of 0 with it, and NaN
            without. Default 1e-5.
        squared: Whether the lower sums are of ``p * p`` and ``t * t``. Default False.
        reduction: "none", a loss for each class of each image; "sum" or "mean" of all of them. Default "mean".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A number, or for "none" an array (n, 1, ..., 1, c); float32 (float64 for float64). The mean of an empty batch is
        NaN.

    Raises:
        TypeError: An argument is of a type, or an array of a dtype, that it cannot be.
        ValueError: Shapes do not fit, a name is unknown, or a number is out of range.

    Example:
        >>> p, target = mx.array([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]]), mx.array([[0, 0, 1]])
        >>> mx.round(dice_loss(p, target, reduction="none"), 4)
        array([[[0.1429, 0.2]]], dtype=float32)
    """
    given = _checked("dice_loss", y, target, activation, smooth, squared, reduction, stream)
    with mx.stream(given.spec.stream):
        p, t, wide = _arrays(y, target, given)
        each = _sums(p, t, given)
        lost = 1 - each.above / each.below
        if given.reduction == _NONE:
            return lost.reshape(y.shape[0], *(1,) * (y.ndim - 2), y.shape[-1])
        total = lost.sum()
        return total / mx.array(lost.size, wide) if given.reduction == _MEAN else total


def dice_loss_grad(
    y: mx.array,
    target: mx.array,
    *,
    activation: SharesName = "none",
    smooth: float = 1e-5,
    squared: bool = False,
    reduction: OverallName = "mean",
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `dice_loss` with respect to y, where a backward chain starts.

    Source: none in MPS.

    Args:
        y: As for `dice_loss`.
        target: As for `dice_loss`.
        activation: As for `dice_loss`.
        smooth: As for `dice_loss`.
        squared: As for `dice_loss`.
        reduction: As for `dice_loss`; "none" is as "sum". Default "mean".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of y's shape and dtype: the derivative of the value, or of the sum of its elements.

    Raises:
        TypeError: An argument is of a type, or an array of a dtype, that it cannot be.
        ValueError: Shapes do not fit, a name is unknown, or a number is out of range.

    Example:
        >>> p, target = mx.array([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]]), mx.array([[0, 0, 1]])
        >>> mx.round(dice_loss_grad(p, target, reduction="sum"), 3)
        array([[[-0.327, 0.32],
                [-0.327, 0.32],
                [0.245, -0.48]]], dtype=float32)
    """
    given = _checked("dice_loss_grad", y, target, activation, smooth, squared, reduction, stream)
    with mx.stream(given.spec.stream):
        p, t, wide = _arrays(y, target, given)
        each = _sums(p, t, given)
        share = 1 / max(each.above.size, 1) if given.reduction == _MEAN else 1.0
        by_overlap, by_size = -2 * share / each.below, share * each.above / (each.below * each.below)
        none = mx.zeros_like(by_size)
        if given.squared:
            dp = rules.plain_bn_normalize(t, none, by_overlap, none, given.spec)
            dp = dp + rules.plain_bn_normalize(p, none, 2 * by_size, none, given.spec)
        else:
            dp = rules.plain_bn_normalize(t, none, by_overlap, by_size, given.spec)
        if given.activation == _SOFTMAX:
            lines = (p.shape[0] * p.shape[1], p.shape[3], 1)
            dp = softmax_rules.softmax_grad(dp.reshape(lines), p.reshape(lines), softmax_rules.Spec(given.spec.stream))
        elif given.activation == _SIGMOID:
            dp = activation_rules.grad(dp, y.reshape(p.shape).astype(wide), _sigmoid(given))
        return dp.reshape(y.shape).astype(y.dtype)


class _Given(NamedTuple):
    activation: SharesName
    smooth: float
    squared: bool
    labelled: bool
    reduction: OverallName
    spec: ActivationSpec  # of sums, which are of what there is


class _Sums(NamedTuple):
    """Of each class of each image, (n, c): twice the overlap, and what it is compared with."""

    above: mx.array
    below: mx.array


def _checked(
    op: str, y: Any, target: Any, activation: Any, smooth: Any, squared: Any, reduction: Any, stream: Any
) -> _Given:
    stream = launch.resolve(stream)
    arguments.check_images(op, y, stream)
    labelled = is_a(target, mx.array) and mx.issubdtype(target.dtype, mx.integer)
    if labelled:
        arguments.check_labels(op, y, target)
    else:
        arguments.no_labels(op, y, target)
        arguments.check_target(op, y, target, stream)
    made = checks.choice(op, "activation", activation, SHARES)
    reduced = checks.choice(op, "reduction", reduction, OVERALL)
    number, switch = checks.number(op, "smooth", smooth, 0.0), checks.switch(op, "squared", squared)
    if labelled:
        with mx.stream(stream):
            known = labels.as_classes(target, y.shape[-1])
            labels.check_classes(op, target, known, None, y.shape[-1])
    return _Given(made, number, switch, labelled, reduced, ActivationSpec(NO_ACTIVATION, stream))


def _sigmoid(given: _Given) -> ActivationSpec:
    return ActivationSpec(activation_rules.activation("dice_loss", "sigmoid"), given.spec.stream)


def _arrays(y: mx.array, target: mx.array, given: _Given) -> tuple[mx.array, mx.array, mx.Dtype]:
    """Probabilities and targets as (n, pixels, 1, c) in the accumulator's dtype."""
    n, pixels, classes = y.shape[0], math.prod(y.shape[1:-1]), y.shape[-1]
    wide, shape = launch.accumulator(y.dtype), (n, pixels, 1, classes)
    p = y.reshape(shape).astype(wide)
    if given.activation == _SIGMOID:
        p = activation_rules.neuron(p, _sigmoid(given))
    elif given.activation == _SOFTMAX:
        p = softmax_rules.softmax(p.reshape(n * pixels, classes, 1), softmax_rules.Spec(given.spec.stream))
    t = (
        labels.as_classes(target, classes)[..., None] == mx.arange(classes).astype(mx.uint32)
        if given.labelled
        else target
    )
    return p.reshape(shape), t.reshape(shape).astype(wide), wide


def _sums(p: mx.array, t: mx.array, given: _Given) -> _Sums:
    """One pass over each of p and t, and one over both."""
    none = mx.zeros((p.shape[0], p.shape[3]), p.dtype)
    of_p, both = rules.plain_bn_stats_grad(p, t, none, given.spec)
    of_t, squares = rules.plain_bn_stats_grad(t, t, none, given.spec)
    if given.squared:
        of_p, of_t = rules.plain_bn_stats_grad(p, p, none, given.spec)[1], squares
    return _Sums(2 * both + given.smooth, of_p + of_t + given.smooth)
