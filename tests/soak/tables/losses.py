"""Tables of losses that MPS does not have."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.activations import sigmoid
from tests.soak.tables.case import Case, Rng, Row, dtype, family, of, pick, rounded


def _reduced(each: np.ndarray, reduction: str) -> np.ndarray:
    return each if reduction == "none" else np.asarray(each.sum() if reduction == "sum" else each.mean())


def _shape(rng: Rng) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.integers(1, 6, rng.integers(2, 5)))


def _focal(rng: Rng) -> Case:
    kind, shape, reduction = dtype(rng), _shape(rng), pick(rng, "none", "sum", "mean")
    y, t = rounded(rng.standard_normal(shape) * 2, kind), rounded(rng.uniform(0, 1, shape), kind)
    if rng.random() < 0.5:
        t = rng.integers(0, 2, shape).astype(float)
    alpha, gamma = pick(rng, None, 0.25, 0.75), float(pick(rng, 0, 0.5, 1, 2, 3.5))
    how: dict[str, Any] = {"alpha": alpha, "gamma": gamma, "reduction": reduction}

    def elements(y: np.ndarray, t: np.ndarray) -> np.ndarray:
        right = sigmoid(y) * t + sigmoid(-y) * (1 - t)
        lost = np.log1p(np.exp(-np.abs(y))) + np.maximum(y, 0) - y * t
        return (1 if alpha is None else alpha * t + (1 - alpha) * (1 - t)) * (1 - right) ** gamma * lost

    def size(y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return _reduced((np.abs(y) + 1) * (4 + gamma), reduction)

    def pulled(dy: mx.array, y: mx.array, t: mx.array) -> dict[int, mx.array]:
        gradient = of.focal_loss_grad(y, t, **how)
        return {0: gradient * dy.astype(gradient.dtype)} if kind in (mx.float32, mx.float64) else {}

    return Case(f"{how}", [y, t], kind, lambda *a: of.focal_loss(*a, **how),
        lambda *a: _reduced(elements(*a), reduction), size, terms=math.prod(shape), pulled=pulled)  # fmt: skip


def _dice(rng: Rng) -> Case:
    kind, shape, reduction = dtype(rng), _shape(rng), pick(rng, "none", "sum", "mean")
    activation, squared = pick(rng, "none", "sigmoid", "softmax"), bool(rng.integers(2))
    y, t = rounded(rng.uniform(0.1, 0.9, shape), kind), rounded(rng.uniform(0, 1, shape), kind)
    how: dict[str, Any] = {"activation": activation, "squared": squared, "reduction": reduction}
    how["smooth"] = float(np.float32(pick(rng, 0.1, 1.0)))
    pixels = tuple(range(1, len(shape) - 1))

    def result(y: np.ndarray, t: np.ndarray) -> np.ndarray:
        p = {"none": y, "sigmoid": sigmoid(y), "softmax": np.exp(y) / np.exp(y).sum(-1, keepdims=True)}[activation]
        ends = p * p + t * t if squared else p + t
        above, below = (a.sum(pixels, keepdims=True) + how["smooth"] for a in (2 * p * t, ends))
        return _reduced(1 - above / below, reduction)

    def pulled(dy: mx.array, y: mx.array, t: mx.array) -> dict[int, mx.array]:
        gradient = of.dice_loss_grad(y, t, **how)
        return {0: gradient * dy.astype(gradient.dtype)} if reduction != "none" and kind in _WIDE else {}

    return Case(f"{how}", [y, t], kind, lambda *a: of.dice_loss(*a, **how), result,
        lambda *a: np.asarray(8.0 * shape[0] * shape[-1]), terms=math.prod(shape), pulled=pulled)  # fmt: skip


_WIDE = (mx.float32, mx.float64)
ROWS = {
    "focal_loss": Row(family("focal_loss", "grad"), _focal),
    "dice_loss": Row(family("dice_loss", "grad"), _dice),
}
