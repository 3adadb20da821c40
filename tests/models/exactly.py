"""float64 for what a network calls of MLX besides layers: MLX's own functions of it are no better than float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn

import mpsfunc as mf


def exp(x: mx.array) -> mx.array:
    return mf.neuron(x, "exponential", 1.0, 0.0, -1.0)  # to the base e


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """Along the last axis, as networks do."""
    assert axis in (-1, x.ndim - 1)
    return mf.softmax(x)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    assert axis in (-1, x.ndim - 1)
    return mf.log_softmax(x)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


# The functions that the networks call, of those of which MLX's have a relative error of 1e-8 to 1e-6 in float64.
FUNCTIONS: tuple[tuple[Any, str, Any], ...] = (
    (mx, "exp", exp),
    (mx, "sigmoid", mf.sigmoid),
    (mx.fast, "rms_norm", rms_norm),
    (nn, "silu", mf.silu),
    (nn, "softmax", softmax),
    (nn, "log_softmax", log_softmax),
    (nn, "log_sigmoid", mf.log_sigmoid),
)


@contextmanager
def exactly() -> Iterator[None]:
    """Has MLX's names stand for functions that are exact in float64, until the block ends."""
    with ExitStack() as replaced:
        for module, name, function in FUNCTIONS:
            replaced.enter_context(mock.patch.object(module, name, function))
        yield
