"""The activations as mps-semantics 10 defines them, in NumPy float64, by masks and the textbook's formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import beyond_mps

# What is left out, where a type has it.
DEFAULTS: dict[str, dict[str, float]] = {
    "relu": {"a": 0}, "linear": {"a": 1, "b": 0}, "hard_sigmoid": {"a": 0.2, "b": 0.5}, "tanh": {"a": 1, "b": 1},
    "softplus": {"a": 1, "b": 1}, "elu": {"a": 1}, "relun": {"a": 1, "b": 6}, "power": {"a": 1, "b": 0, "c": 1},
    "exponential": {"a": 1, "b": 0, "c": -1}, "logarithm": {"a": 1, "b": 0, "c": -1}, "silu": {"a": 1},
    "celu": {"a": 1}, "hard_tanh": {"a": -1, "b": 1}, "hard_shrink": {"a": 0.5}, "soft_shrink": {"a": 0.5},
    "step": {"a": 0},
}  # fmt: skip


def _parameters(type: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    known = {**DEFAULTS.get(type, {}), **{k: v for k, v in given.items() if v is not None}}
    return known.get("a"), known.get("b"), known.get("c")


def _ln(c: float) -> float:
    return 1.0 if c == -1 else math.log(c)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


_erf = np.vectorize(math.erf, otypes=[float])
_erfc = np.vectorize(math.erfc, otypes=[float])


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _below(x: np.ndarray, a: Any) -> np.ndarray:
    """x, where it is less than 0 times a."""
    y = np.array(x, dtype=float)
    low = x < 0
    y[low] = (np.broadcast_to(a, x.shape) * np.where(np.isinf(x) & (np.broadcast_to(a, x.shape) == 0), 0, x))[low]
    return y


def neuron(x: np.ndarray, type: str, **given: Any) -> np.ndarray:
    """f(x)."""
    a, b, c = _parameters(type, given)
    x = np.asarray(x, dtype=float)
    with np.errstate(all="ignore"):
        if type in ("relu", "prelu"):
            return _below(x, a)
        if type == "linear":
            return a * x + b
        if type == "sigmoid":
            return _logistic(x)
        if type == "hard_sigmoid":
            return np.clip(a * x + b, 0, 1)
        if type == "tanh":
            return a * np.tanh(b * x)
        if type == "absolute":
            return np.abs(x)
        if type == "softplus":
            return a * np.logaddexp(0, b * x)
        if type == "softsign":
            return x / (1 + np.abs(x))
        if type == "elu":
            return np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x)
        if type == "relun":
            return np.minimum(_below(x, a), b)
        if type == "power":
            return (a * x + b) ** c
        if type == "exponential":
            return np.exp(_ln(c) * (a * x + b))
        if type == "logarithm":
            return np.log(a * x + b) / _ln(c)
        if type == "gelu":
            return x * _erfc(-x / math.sqrt(2)) / 2
        if type == "none":
            return x
    return beyond_mps.neuron(x, type, a, b)


def slope(x: np.ndarray, type: str, **given: Any) -> np.ndarray:
    """f'(x), at kinks as MPS has it."""
    a, b, c = _parameters(type, given)
    x = np.asarray(x, dtype=float)
    one = np.ones_like(x)
    with np.errstate(all="ignore"):
        if type in ("relu", "prelu"):
            return np.where(x >= 0, 1, a * one)
        if type == "linear":
            return a * one
        if type == "sigmoid":
            return _logistic(x) * _logistic(-x)
        if type == "hard_sigmoid":
            u = a * x + b
            return np.where((u >= 0) & (u <= 1), a * one, 0)
        if type == "tanh":
            return a * b * (1 - np.tanh(b * x) ** 2)
        if type == "absolute":
            return np.sign(x)
        if type == "softplus":
            return a * b * _logistic(b * x)
        if type == "softsign":
            return 1 / (1 + np.abs(x)) ** 2
        if type == "elu":
            return np.where(x >= 0, 1, a * np.exp(np.minimum(x, 0)))
        if type == "relun":
            return np.where(_below(x, a) >= b, 0, np.where(x >= 0, 1, a * one))
        if type == "power":
            return a * c * (a * x + b) ** (c - 1) if a * c else 0 * one
        if type == "exponential":
            return a * _ln(c) * neuron(x, type, **given)
        if type == "logarithm":
            return a / (_ln(c) * (a * x + b))
        if type == "gelu":
            return _erfc(-x / math.sqrt(2)) / 2 + x * _normal(x)
        if type == "none":
            return one
    return beyond_mps.slope(x, type, a, b)


def curvature(x: np.ndarray, type: str, **given: Any) -> np.ndarray:
    """f''(x)."""
    a, b, c = _parameters(type, given)
    x = np.asarray(x, dtype=float)
    with np.errstate(all="ignore"):
        if type == "sigmoid":
            return _logistic(x) * _logistic(-x) * (_logistic(-x) - _logistic(x))
        if type == "tanh":
            return -2 * a * b**2 * np.tanh(b * x) / np.cosh(b * x) ** 2
        if type == "softplus":
            return a * b**2 * _logistic(b * x) * _logistic(-b * x)
        if type == "softsign":
            return -2 * np.sign(x) / (1 + np.abs(x)) ** 3
        if type == "elu":
            return np.where(x < 0, a * np.exp(np.minimum(x, 0)), 0)
        if type == "power":
            return a * a * c * (c - 1) * (a * x + b) ** (c - 2) if a * c * (c - 1) else np.zeros_like(x)
        if type == "exponential":
            return (a * _ln(c)) ** 2 * neuron(x, type, **given)
        if type == "logarithm":
            return -a * a / (_ln(c) * (a * x + b) ** 2)
        if type == "gelu":
            return (2 - x * x) * _normal(x)
    return beyond_mps.curvature(x, type, a)


def slopes_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of a prelu's slopes."""
    channels = x.shape[-1]
    total = np.zeros(channels)
    for g, row in zip(dy.reshape(-1, channels), x.reshape(-1, channels), strict=True):
        total += np.where(row < 0, g * row, 0)
    return total
