"""Softmax and the losses as mps-semantics defines them, in NumPy float64: one line, one pixel at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray


def softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)


def softmax_grad(dy: Array, y: Array, axis: int = -1) -> Array:
    """By the Jacobian, written out: diag(y) - y y^T."""
    dy, y = (np.moveaxis(a, axis, -1) for a in (dy, y))
    jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
    return np.moveaxis(np.einsum("...ij,...j->...i", jacobian, dy), -1, axis)


def log_softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        less = x - x.max(axis, keepdims=True)
        return less - np.log(np.exp(less).sum(axis, keepdims=True))


def log_softmax_grad(dy: Array, y: Array, axis: int = -1) -> Array:
    """By the Jacobian, written out: identity - exp(y) in every row."""
    dy, y = (np.moveaxis(a, axis, -1) for a in (dy, y))
    jacobian = np.eye(y.shape[-1]) - np.exp(y)[..., None, :]
    return np.moveaxis(np.einsum("...ij,...i->...j", jacobian, dy), -1, axis)
