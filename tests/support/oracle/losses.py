"""Softmax and the losses as mps-semantics defines them, in NumPy float64, from the formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray


def softmax(x: Array, axis: int = -1) -> Array:
    """Shares that add up to 1 along an axis."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)


def softmax_grad(dy: Array, y: Array, axis: int = -1, *, rounded: bool = False) -> Array:
    """By the Jacobian, written out: diag(y) - y y^T. Of a y that was rounded to 16 bits, dy is taken from its mean."""
    dy, y = (np.moveaxis(a, axis, -1) for a in (dy, y))
    if rounded:
        dy = dy - (dy * y).sum(-1, keepdims=True)
    jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
    return np.moveaxis(np.einsum("...ij,...j->...i", jacobian, dy), -1, axis)


def log_softmax(x: Array, axis: int = -1) -> Array:
    """Their logarithms."""
    with np.errstate(invalid="ignore"):
        less = x - x.max(axis, keepdims=True)
        return less - np.log(np.exp(less).sum(axis, keepdims=True))


def log_softmax_grad(dy: Array, y: Array, axis: int = -1) -> Array:
    """By the Jacobian, written out: identity - exp(y) in every row."""
    dy, y = (np.moveaxis(a, axis, -1) for a in (dy, y))
    jacobian = np.eye(y.shape[-1]) - np.exp(y)[..., None, :]
    return np.moveaxis(np.einsum("...ij,...i->...j", jacobian, dy), -1, axis)


# Losses: every element from its formula -------------------------------------------------------------------


def _times(t: Array, by: Array) -> Array:
    return np.where(t == 0, 0, t * by)


def elements(type: str, a: Array, b: Array, told: dict[str, Any]) -> Array:
    """The loss of each class of scores a and targets b, before weights; b is smoothed."""
    eps, delta = told["epsilon"], told["delta"]
    if type == "mean_absolute_error":
        return abs(a - b)
    if type == "mean_squared_error":
        return (a - b) ** 2
    if type == "softmax_cross_entropy":
        return -_times(b, log_softmax(a))
    if type == "sigmoid_cross_entropy":
        return np.maximum(a, 0) - a * b + np.log1p(np.exp(-abs(a)))
    if type == "categorical_cross_entropy":
        return -_times(b, np.log(a))
    if type == "hinge":
        return np.maximum(0, 1 - (2 * b - 1) * a)
    if type == "huber":
        d = abs(a - b)
        return np.where(d <= delta, d * d / 2, delta**2 / 2 + delta * (d - delta))
    if type == "cosine_distance":
        return -a * b
    if type == "log":
        return -_times(b, np.log(a + eps)) - _times(1 - b, np.log(1 - a + eps))
    assert type == "kullback_leibler"
    return _times(b, np.log(b) - a)


def slopes(type: str, a: Array, b: Array, told: dict[str, Any]) -> Array:
    """The gradient of each class as section 16 proposes it, before weights; b is smoothed."""
    eps, delta = told["epsilon"], told["delta"]
    if type == "mean_absolute_error":
        return 1.0 * (a > b) - 1.0 * (a < b)
    if type == "mean_squared_error":
        return 2 * (a - b)
    if type == "softmax_cross_entropy":
        return softmax(a) - b
    if type == "sigmoid_cross_entropy":
        return 1 / (1 + np.exp(-a)) - b
    if type == "categorical_cross_entropy":
        return -b / a
    if type == "hinge":
        return np.where(1 + (1 - 2 * b) * a > 0, 1 - 2 * b, 0)
    if type == "huber":
        return np.where(abs(a - b) > delta, np.copysign(delta, a - b), a - b)
    if type == "log":
        return (-2 * eps * b - b + a + eps) / (a * (1 - a) + eps * (eps + 1))
    return -b


def one_hot(labels: Array, classes: int) -> Array:
    """Rows with a 1 at each label, and of zeros where there is no such class."""
    return (labels[..., None] == np.arange(classes)).astype(np.float64)


def loss(
    y: Array,
    target: Array,
    type: str,
    reduction: str,
    *,
    weights: Array | None = None,
    weight: float = 1.0,
    label_smoothing: float = 0.0,
    number_of_classes: int = 1,
    epsilon: float = 1e-7,
    delta: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Value, MPS's gradient, and the derivative of the value's sum.

    A target of integers is labels; a pixel whose label is no class has targets of 0, whatever the smoothing.
    """
    labelled, classes = np.issubdtype(target.dtype, np.integer), y.shape[-1]
    target = one_hot(target, classes) if labelled else target
    of_a_class = target.any(-1, keepdims=True) if labelled else True
    told = {"epsilon": epsilon, "delta": delta}
    of_pixels = type == "softmax_cross_entropy"
    over = number_of_classes if of_pixels else 2
    smoothed = type in ("softmax_cross_entropy", "sigmoid_cross_entropy")
    t = target * (1 - label_smoothing) + label_smoothing / over if smoothed else target
    t = t * of_a_class
    w = np.broadcast_to(weight if weights is None else weights, y.shape)
    with np.errstate(all="ignore"):
        lost, passed = w * elements(type, y, t, told), w * slopes(type, y, t, told)
    exact = softmax(y) * (w * t).sum(-1, keepdims=True) - w * t if of_pixels else passed
    if reduction == "none":
        return lost, passed, exact
    axes = tuple(range(1, y.ndim))
    value = lost.sum(axes, keepdims=True)
    if type == "cosine_distance":
        value = value + weight
    divisor: Any = 1
    if reduction == "mean" or (reduction == "sum_by_non_zero_weights" and weights is None):
        divisor = math.prod(y.shape[1:-1] if of_pixels else y.shape[1:])
    elif reduction == "sum_by_non_zero_weights":
        assert weights is not None
        counted = w[..., :1] if of_pixels and (1, *weights.shape)[-1] == 1 else w
        divisor = np.maximum((counted != 0).sum(axes, keepdims=True), 1)
    return value / divisor, passed, exact / divisor
