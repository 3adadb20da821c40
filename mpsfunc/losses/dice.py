"""The Dice loss, which MPS does not have."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import arguments, dice_rules, labels
from mpsfunc.losses.dice_rules import DiceLossSpec, DiceSpec, DiceSums
from mpsfunc.losses.focal import OVERALL, OverallName
from mpsfunc.losses.params import DiceParams

SharesName = Literal["none", "sigmoid", "softmax"]
SHARES: tuple[SharesName, ...] = get_args(SharesName)  # DiceParams has their places
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
    """Dice loss: 1 minus the overlap of predictions and targets, 0 where both are the same zeros and ones.

    Without ``smooth`` it is 1 where ``p * t`` is 0 everywhere.

    For each image and class, with sums over its pixels and p the probabilities::

        1 - (2 * sum of p * t + smooth) / (sum of p + sum of t + smooth)

    Its derivatives with respect to y and target are exact, of every order.

    Source: none in MPS. With ``squared`` Milletari et al., "V-Net", 2016, whose formula has no ``smooth``; without
    ``squared`` as MONAI's ``DiceLoss`` computes it, whose ``smooth_nr`` and ``smooth_dr`` are ``smooth``.

    Args:
        y: Predictions (n, ..., c), images along the first axis and classes along the last; float32, float16, bfloat16,
            or float64 on the CPU.
        target: Of y's shape and dtype; or integers of shape ``y.shape[:-1]``, the classes, or (n,) where images have
            one pixel. A label below 0 or above the last class is not a class: its target is zeros. With
            MPSFUNC_CHECK_LABELS=1 in the environment labels are evaluated, and such a label is an error.
        activation: How y becomes probabilities: "none" (it has probabilities already), "sigmoid", or "softmax" over the
            last axis. Default "none".
        smooth: At least 0. With it, a class that is neither in the target nor predicted has a loss of 0, without it
            NaN. Default 1e-5.
        squared: Whether the sums in the denominator are of ``p * p`` and ``t * t``. Default False.
        reduction: "none", a loss for each class of each image; "sum" or "mean" of all of them. Default "mean".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A number, or for "none" an array (n, 1, ..., 1, c); float32 (float64 for float64). The mean of an empty batch is
        NaN.

    Raises:
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit, a name is unknown, or a number is out of range.

    Example:
        >>> p = mx.array([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]])
        >>> target = mx.array([[0, 0, 1]])
        >>> mx.round(dice_loss(p, target, reduction="none"), 4)
        array([[[0.1429, 0.2]]], dtype=float32)
    """
    given = _checked("dice_loss", y, target, activation, smooth, squared, reduction, stream)
    with mx.stream(given.spec.stream):
        each = _Parts(y, target, given).sums().overlap(given.smooth)
        lost = 1 - each.above / each.below
        if given.reduction == _NONE:
            return lost.reshape(y.shape[0], *(1,) * (y.ndim - 2), y.shape[-1])
        total = lost.sum()
        return total / mx.array(lost.size, total.dtype) if given.reduction == _MEAN else total


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
    """Gradient of `dice_loss` with respect to y, with which a backward pass starts.

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
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit, a name is unknown, or a number is out of range.

    Example:
        >>> p = mx.array([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]])
        >>> target = mx.array([[0, 0, 1]])
        >>> mx.round(dice_loss_grad(p, target, reduction="sum"), 3)
        array([[[-0.327, 0.32],
                [-0.327, 0.32],
                [0.245, -0.48]]], dtype=float32)
    """
    given = _checked("dice_loss_grad", y, target, activation, smooth, squared, reduction, stream)
    with mx.stream(given.spec.stream):
        share = 1 / max(y.shape[0] * y.shape[-1], 1) if given.reduction == _MEAN else 1.0
        return _Parts(y, target, given).gradient(given.smooth, share).reshape(y.shape)


class _Given(NamedTuple):
    smooth: float
    reduction: OverallName
    spec: DiceSpec


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
    params = DiceParams(SHARES.index(made), int(switch), int(labelled))
    return _Given(number, reduced, DiceSpec(params, stream))


class _Parts:
    """Images and targets as the kernels take them, or as probabilities and targets where there are no kernels."""

    def __init__(self, y: mx.array, target: mx.array, given: _Given) -> None:
        n, pixels, classes = y.shape[0], math.prod(y.shape[1:-1]), y.shape[-1]
        self._spec = given.spec
        self._y = y.reshape(n, pixels, classes)
        if given.spec.params.labelled:
            self._target = labels.as_classes(target, classes).reshape(n, pixels)
        else:
            self._target = target.reshape(n, pixels, classes)
        if not dice_rules.has_kernels(self._spec):
            self._p = dice_rules.probabilities(self._y, self._spec)
            self._t = dice_rules.targets(self._target, self._y, self._spec)

    def sums(self) -> DiceSums:
        if dice_rules.has_kernels(self._spec):
            return DiceSums(*dice_rules.sums(self._y, self._target, self._spec))
        return dice_rules.sums_of(self._p, self._t, self._spec)

    def gradient(self, smooth: float, share: float) -> mx.array:
        if dice_rules.has_kernels(self._spec):
            return dice_rules.loss_gradient(self._y, self._target, DiceLossSpec(smooth, share, self._spec))
        by_both, by_p = dice_rules.by_sums(self.sums().overlap(smooth), share)
        return dice_rules.gradient_of(self._y, self._p, self._t, by_both, by_p, self._spec)
