"""The activations that MPS does not have, in NumPy float64, by the formulas of their papers and masks."""

from __future__ import annotations

import math

import numpy as np

SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # of selu
ROOT = math.sqrt(2 / math.pi)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _cubic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The argument of gelu's hyperbolic tangent, and its derivatives."""
    return ROOT * (x + 0.044715 * x**3), ROOT * (1 + 3 * 0.044715 * x**2), ROOT * 6 * 0.044715 * x


def neuron(x: np.ndarray, type: str, a: float, b: float) -> np.ndarray:
    """f(x)."""
    with np.errstate(all="ignore"):
        if type in ("silu", "gelu_fast"):
            return x * _logistic((1.702 if type == "gelu_fast" else a) * x)
        if type == "hard_swish":
            return x * np.clip(x + 3, 0, 6) / 6
        if type == "mish":
            return x * np.tanh(np.logaddexp(0, x))
        if type == "gelu_tanh":
            return x * _logistic(2 * _cubic(x)[0])
        if type == "celu":
            return np.maximum(x, 0) + a * np.expm1(np.minimum(x, 0) / a)
        if type == "selu":
            return SCALE * (np.maximum(x, 0) + ALPHA * np.expm1(np.minimum(x, 0)))
        if type == "hard_tanh":
            return np.clip(x, a, b)
        if type == "hard_shrink":
            return np.where(np.abs(x) > a, x, 0)
        if type == "soft_shrink":
            return np.sign(x) * np.maximum(np.abs(x) - a, 0)
        if type == "relu2":
            return np.square(np.maximum(x, 0))
        if type == "relu6":
            return np.clip(x, 0, 6)
        if type == "log_sigmoid":
            return -np.logaddexp(0, -x)
        assert type == "step"
        return np.where(x >= a, 1.0, 0.0)


def slope(x: np.ndarray, type: str, a: float, b: float) -> np.ndarray:
    """f'(x), at a kink from the right."""
    one = np.ones_like(x)
    with np.errstate(all="ignore"):
        if type in ("silu", "gelu_fast"):
            a = 1.702 if type == "gelu_fast" else a
            return _logistic(a * x) * (1 + a * x * _logistic(-a * x))
        if type == "hard_swish":
            return np.where(x < -3, 0, np.where(x < 3, x / 3 + 0.5, 1))
        if type == "mish":
            t = np.tanh(np.logaddexp(0, x))
            return t + x * (1 - t * t) * _logistic(x)
        if type == "gelu_tanh":
            u, du, _ = _cubic(x)
            return _logistic(2 * u) + 2 * x * du * _logistic(2 * u) * _logistic(-2 * u)
        if type == "celu":
            return np.where(x < 0, np.exp(np.minimum(x, 0) / a), 1)
        if type == "selu":
            return np.where(x < 0, SCALE * ALPHA * np.exp(np.minimum(x, 0)), SCALE)
        if type == "hard_tanh":
            return np.where((x >= a) & (x < b), one, 0)
        if type == "hard_shrink":
            return np.where(np.abs(x) > a, one, 0)
        if type == "soft_shrink":
            return np.where((x < -a) | (x >= a), one, 0)
        if type == "relu2":
            return 2 * np.maximum(x, 0)
        if type == "relu6":
            return np.where((x >= 0) & (x < 6), one, 0)
        if type == "log_sigmoid":
            return _logistic(-x)
        assert type == "step"
        return 0 * one


def curvature(x: np.ndarray, type: str, a: float) -> np.ndarray:
    """f''(x)."""
    with np.errstate(all="ignore"):
        if type in ("silu", "gelu_fast"):
            a = 1.702 if type == "gelu_fast" else a
            s = _logistic(a * x)
            return a * s * (1 - s) * (2 + a * x * (1 - 2 * s))
        if type == "hard_swish":
            return np.where((x >= -3) & (x < 3), 1 / 3, 0)
        if type == "mish":
            t, s = np.tanh(np.logaddexp(0, x)), _logistic(x)
            first = (1 - t * t) * s
            return 2 * first + x * (first * (1 - s) - 2 * t * first * s)
        if type == "gelu_tanh":
            u, du, ddu = _cubic(x)
            t = np.tanh(u)
            return (1 - t * t) * (du + x / 2 * ddu - x * t * du * du)
        if type == "celu":
            return np.where(x < 0, np.exp(np.minimum(x, 0) / a) / a, 0)
        if type == "selu":
            return np.where(x < 0, SCALE * ALPHA * np.exp(np.minimum(x, 0)), 0)
        if type == "relu2":
            return np.where(x >= 0, 2.0, 0.0)
        if type == "log_sigmoid":
            return -_logistic(x) * _logistic(-x)
        return np.zeros_like(x)
