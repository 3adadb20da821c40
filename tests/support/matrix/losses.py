"""Softmax's and the losses' part of the matrix of transformations."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support.matrix.entry import Arrays, Entry, entry

LINES = (2, 3, 4)
# Types that want shares between 0 and 1 for y.
_OF_SHARES = {"categorical_cross_entropy", "log"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "softmax_cross_entropy": {"label_smoothing": 0.2, "number_of_classes": 3},
    "sigmoid_cross_entropy": {"label_smoothing": 0.1, "weight": 1.5},
    "huber": {"delta": 0.7},
    "log": {"epsilon": 0.01},
}
LABELS = mx.array([[0, 3, -1], [2, 9, 1]])


def share(x: mx.array) -> mx.array:
    """Between 0 and 1, to all digits of float64, which mx.sigmoid is not."""
    return (mx.tanh(x) + 1) / 2


def _arguments(y: mx.array, target: mx.array, type: str) -> Arrays:
    return share(y) if type in _OF_SHARES else y, share(target)


def _value(type: str, reduction: str) -> Entry:
    def call(y: mx.array, target: mx.array) -> mx.array:
        return mf.loss_value(*_arguments(y, target, type), type, reduction, **_OPTIONS.get(type, {}))

    return entry(call, LINES, LINES)


def _grad(type: str, **how: Any) -> Entry:
    def call(y: mx.array, target: mx.array) -> mx.array:
        return mf.loss_grad(*_arguments(y, target, type), type, **how, **_OPTIONS.get(type, {}))

    return entry(call, LINES, LINES)


def _weighted(function: Any, type: str, reduction: str, *weights: int, **how: Any) -> Entry:
    def call(y: mx.array, target: mx.array, w: mx.array) -> Any:
        made = function(*_arguments(y, target, type), type, reduction, weights=w, **how)
        return (made[0], made[1].gradient) if isinstance(made[1], mf.LossState) else made

    return entry(call, LINES, LINES, weights)


TYPES = (
    *("mean_absolute_error", "mean_squared_error", "softmax_cross_entropy", "sigmoid_cross_entropy"),
    *("categorical_cross_entropy", "hinge", "huber", "cosine_distance", "log", "kullback_leibler"),
)
SOFTMAX = "softmax_cross_entropy"

LOSSES: dict[str, Entry] = {
    "softmax": entry(lambda x: mf.softmax(x), LINES),
    "softmax along the first axis": entry(lambda x: mf.softmax(x, 0), (4, 3)),
    "softmax_grad": entry(lambda dy, y: mf.softmax_grad(dy, share(y), 1), LINES, LINES),
    "log_softmax": entry(lambda x: mf.log_softmax(x), LINES),
    "log_softmax along the middle": entry(lambda x: mf.log_softmax(x, 1), LINES),
    "log_softmax_grad": entry(lambda dy, y: mf.log_softmax_grad(dy, y), LINES, LINES),
    **{f"loss_value {type}": _value(type, "sum") for type in TYPES},
    "loss_value mean": _value(SOFTMAX, "mean"),
    "loss_value of elements": _value(SOFTMAX, "none"),
    "loss_value of squared elements": _value("mean_squared_error", "none"),
    "loss_value of labels": entry(lambda y: mf.loss_value(y, LABELS, SOFTMAX, "mean"), LINES),
    "loss_value of smoothed labels": entry(
        lambda y: mf.loss_value(y, LABELS, SOFTMAX, "none", **_OPTIONS[SOFTMAX]), LINES
    ),
    "loss_value weighted": _weighted(mf.loss_value, SOFTMAX, "sum_by_non_zero_weights", 2, 3, 4),
    "loss_value weighted by pixels": _weighted(mf.loss_value, "log", "sum_by_non_zero_weights", 3, 1, epsilon=0.1),
    "loss_value of weighted elements": _weighted(mf.loss_value, "sigmoid_cross_entropy", "none", 4),
    **{f"loss_grad {type}": _grad(type) for type in TYPES},
    **{
        f"loss_grad {type} divided": _grad(type, reduction="mean", divided=True)
        for type in ("softmax_cross_entropy", "log", "huber")
    },
    "loss_grad weighted and divided": _weighted(
        mf.loss_grad, SOFTMAX, "sum_by_non_zero_weights", 2, 3, 1, divided=True
    ),
    "loss_grad of smoothed labels": entry(
        lambda y: mf.loss_grad(y, LABELS, SOFTMAX, "mean", divided=True, **_OPTIONS[SOFTMAX]), LINES
    ),
    "loss": entry(lambda y, t: mf.loss(y, t, SOFTMAX, "mean"), LINES, LINES),
    "loss of elements": entry(lambda y, t: mf.loss(y, t, "sigmoid_cross_entropy", "none"), LINES, LINES),
    "loss weighted": _weighted(mf.loss, SOFTMAX, "sum", 2, 3, 1),
    "loss of labels": entry(lambda y: mf.loss(share(y), LABELS, "categorical_cross_entropy", "sum"), LINES),
    "loss_fwd": _weighted(mf.loss_fwd, "huber", "mean", 2, 3, 4),
}  # fmt: skip
