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
    ignore_index: int | None = None,
    class_weights: Array | None = None,
    pos_weight: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Value, MPS's gradient, and the derivative of the value's sum.

    A target of integers is labels; a pixel whose label is no class has targets of 0, whatever the smoothing. Where
    labels count unevenly, a mean divides by what an image of the batch counts on an average.
    """
    labelled, classes = np.issubdtype(target.dtype, np.integer), y.shape[-1]
    labels = target.reshape(y.shape[:-1]) if labelled else target
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    target = one_hot(labels, classes) * counted[..., None] if labelled else target
    of_a_class = target.any(-1, keepdims=True) if labelled else True
    told = {"epsilon": epsilon, "delta": delta}
    of_pixels = type == "softmax_cross_entropy"
    over = number_of_classes if of_pixels else 2
    smoothed = type in ("softmax_cross_entropy", "sigmoid_cross_entropy")
    t = target * (1 - label_smoothing) + label_smoothing / over if smoothed else target
    t = t * of_a_class
    w = np.broadcast_to(weight if weights is None else weights, y.shape)
    if labelled:
        w = w * counted[..., None]
    of_labels = counted * 1.0
    passing = w
    if class_weights is not None:
        of_labels = (target * class_weights).sum(-1) if labelled else of_labels
        passing = w * of_labels[..., None] if labelled and label_smoothing == 0 else w * class_weights
        w = w * class_weights
    with np.errstate(all="ignore"):
        lost, passed = w * elements(type, y, t, told), passing * slopes(type, y, t, told)
        if pos_weight is not None:
            shares = 1 / (1 + np.exp(-y))
            lost = -w * (pos_weight * t * np.log(shares) + (1 - t) * np.log(1 / (1 + np.exp(y))))
            passed = w * ((1 - t) * shares - pos_weight * t * (1 - shares))
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
        if labelled and (ignore_index is not None or class_weights is not None):
            total = of_labels.sum() / len(y) * (1 if of_pixels else classes)
            divisor = total if total else 1
    elif reduction == "sum_by_non_zero_weights":
        assert weights is not None
        own = np.broadcast_to(weights, y.shape) * (counted[..., None] if labelled else 1)
        own = own[..., :1] if of_pixels and (1, *weights.shape)[-1] == 1 else own
        divisor = np.maximum((own != 0).sum(axes, keepdims=True), 1)
    return value / divisor, passed, exact / divisor


# Losses that MPS does not have ----------------------------------------------------------------------------


def focal(y: Array, t: Array, alpha: float | None, gamma: float) -> tuple[Array, Array]:
    """Every element's loss, a sum over the two answers' probabilities, and its derivative by y."""
    with np.errstate(all="ignore"):
        p, rest = 1 / (1 + np.exp(-y)), 1 / (1 + np.exp(y))
        right = p * t + rest * (1 - t)
        scale = 1.0 if alpha is None else np.where(t == 1, alpha, alpha * t + (1 - alpha) * (1 - t))
        entropy = -_times(t, -np.log1p(np.exp(-y))) - _times(1 - t, -np.log1p(np.exp(y)))
        lost = scale * entropy * (1 - right) ** gamma
        steep = -gamma * (1 - right) ** (gamma - 1) * p * rest * (2 * t - 1) if gamma else 0
    return lost, scale * (steep * entropy + (1 - right) ** gamma * (p - t))


def dice(y: Array, target: Array, activation: str, smooth: float, squared: bool) -> tuple[Array, Array]:
    """The loss (n, c) of each class of each image, pixel after pixel, and the derivative of their sum."""
    t = one_hot(target.reshape(y.shape[:-1]), y.shape[-1]) if np.issubdtype(target.dtype, np.integer) else target
    p = {"none": lambda y: y, "sigmoid": lambda y: 1 / (1 + np.exp(-y)), "softmax": softmax}[activation](y)
    flat = [a.reshape(len(y), math.prod(y.shape[1:-1]), y.shape[-1]) for a in (p, t)]
    above, below = (np.full((len(y), y.shape[-1]), float(smooth)) for _ in range(2))
    for one, other in zip(*(np.moveaxis(a, 1, 0) for a in flat), strict=True):
        above = above + 2 * one * other
        below = below + (one**2 + other**2 if squared else one + other)
    slope = above[:, None] / below[:, None] ** 2 * (2 * flat[0] if squared else 1) - 2 * flat[1] / below[:, None]
    slope = slope.reshape(y.shape)
    if activation == "softmax":
        slope = softmax_grad(slope, p)
    elif activation == "sigmoid":
        slope = slope * p * (1 - p)
    return 1 - above / below, slope


def reduced(each: Array, reduction: str) -> Array:
    """All elements, their sum or their mean."""
    return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()
