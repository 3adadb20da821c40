"""The focal loss, which MPS does not have."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import arguments, rules
from mpsfunc.losses.formulas import FOCAL, Spec

OverallName = Literal["none", "sum", "mean"]
OVERALL: tuple[OverallName, ...] = get_args(OverallName)
_NONE, _SUM, _MEAN = OVERALL


def focal_loss(
    y: mx.array,
    target: mx.array,
    *,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    reduction: OverallName = "none",
    stream: StreamLike = None,
) -> mx.array:
    """Focal loss: sigmoid cross-entropy in which predictions that are already right count less.

    With ``p = sigmoid(y)`` and ``q = p * (1 - t) + t * (1 - p)``, the probability of the wrong answer::

        a * q ** gamma * (max(y, 0) - y * t + log(1 + exp(-|y|)))    a = alpha * t + (1 - alpha) * (1 - t)

    Its derivatives with respect to y and target are exact, of every order; but if ``a * gamma * |y|`` exceeds the range
    of float32 (float64 for float64) and y is far from the target, a gradient of a gradient is NaN.

    Source: none in MPS. Lin et al., "Focal Loss for Dense Object Detection", 2017, as torchvision's
    ``sigmoid_focal_loss`` computes it, where an ``alpha`` below 0 is None.

    Args:
        y: Logits (n, ..., c); float32, float16, bfloat16, or float64 on the CPU.
        target: Of y's shape and dtype, from 0 to 1.
        alpha: The weight of targets that are 1, while those that are 0 have ``1 - alpha``; from 0 to 1. None: no
            weights. Default 0.25.
        gamma: Exponent of q, at least 0: the larger it is, the less predictions that are right count. With 0 it is
            sigmoid cross-entropy. Default 2.
        reduction: "none", the loss of every element; "sum" or "mean" over the whole batch.
            Default "none", as in torchvision.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of y's shape and dtype for "none", else a number, float32 (float64 for float64). The mean of an empty
        batch is NaN.

    Raises:
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit, the reduction is unknown, or a number is out of range.

    Example:
        >>> y, target = mx.array([[0.0, 4.0, -4.0]]), mx.array([[1.0, 1.0, 1.0]])
        >>> mx.round(focal_loss(y, target), 5)
        array([[0.04332, 0, 0.96873]], dtype=float32)
    """
    shape, spec, mean = _checked("focal_loss", y, target, alpha, gamma, reduction, stream)
    with mx.stream(spec.stream):
        made = rules.value(*_as_images(y, target), spec)
        if spec.elements:
            return made.reshape(shape)
        total = made.sum()
        return total / mx.array(math.prod(shape), total.dtype) if mean else total


def focal_loss_grad(
    y: mx.array,
    target: mx.array,
    *,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    reduction: OverallName = "sum",
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `focal_loss` with respect to y, with which a backward pass starts.

    Source: none in MPS.

    Args:
        y: As for `focal_loss`.
        target: As for `focal_loss`.
        alpha: As for `focal_loss`.
        gamma: As for `focal_loss`.
        reduction: "mean" divides by the number of elements; "none" and "sum" do not. Default "sum".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of y's shape and dtype: the derivative of the value, or of the sum of its elements.

    Raises:
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit, the reduction is unknown, or a number is out of range.

    Example:
        >>> y, target = mx.array([[0.0, 4.0, -4.0]]), mx.array([[1.0, 1.0, 1.0]])
        >>> mx.round(focal_loss_grad(y, target), 5)
        array([[-0.07457, -0, -0.2716]], dtype=float32)
    """
    shape, spec, mean = _checked("focal_loss_grad", y, target, alpha, gamma, reduction, stream)
    factor = 1 / max(math.prod(shape), 1) if mean else 1.0
    with mx.stream(spec.stream):
        return rules.derivative(*_as_images(y, target), spec._replace(elements=False, factor=factor)).reshape(shape)


def _checked(
    op: str, y: Any, target: Any, alpha: Any, gamma: Any, reduction: Any, stream: Any
) -> tuple[tuple[int, ...], Spec, bool]:
    """The shape of y, the loss, and whether its mean is meant."""
    stream = launch.resolve(stream)
    arguments.check_images(op, y, stream)
    arguments.check_target(op, y, target, stream)
    weight = -1.0 if alpha is None else checks.number(op, "alpha", alpha, 0.0, 1.0)
    power = checks.number(op, "gamma", gamma, 0.0)
    reduced = checks.choice(op, "reduction", reduction, OVERALL)
    spec = Spec(FOCAL, 1.0, 0.0, weight, power, 1.0, 1.0, reduced == _NONE, False, False, False, False, stream)
    return tuple(y.shape), spec, reduced == _MEAN


def _as_images(*arrays: mx.array) -> list[mx.array]:
    """Each as (images, pixels, classes)."""
    return [a.reshape(a.shape[0], math.prod(a.shape[1:-1]), a.shape[-1]) for a in arrays]
