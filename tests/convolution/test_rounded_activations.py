"""Activations that convolutions of bfloat16 apply ahead of rounding, where a processor multiplies it as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support.convolution_case import Case, axis

from mpsfunc.channels.activation_spec import GELU, SILU, Activation

pytestmark = pytest.mark.usefixtures("on_cpu", "used")

ROUNDING, BEYOND = 2.0**-8, 2.0**-13  # of bfloat16, and what an activation may be off on top
NOTHING = 2e-36


def every_number() -> mx.array:
    """All of bfloat16 but subnormal numbers, which the instructions take for 0."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    return mx.array(bits[(bits & 0x7F80 != 0) | (bits & 0x7F == 0)]).view(mx.bfloat16)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * np.vectorize(math.erfc)(-x * math.sqrt(0.5)) / 2


DEFINED: dict[str, tuple[Activation, Callable[[np.ndarray], np.ndarray]]] = {
    "silu": (Activation(SILU, 1.0), silu),
    "gelu": (Activation(GELU), gelu),
}


@pytest.mark.parametrize("channels", (1, 64))
@pytest.mark.parametrize("neuron", DEFINED)
def test_every_number(neuron: str, channels: int) -> None:
    """By windows of one pixel and a weight of 1, of one channel and of channels that are groups of their own."""
    x = every_number()
    x = mx.concatenate([x, mx.zeros(-x.size % 512, x.dtype)]).reshape(1, 8, -1, channels)
    w, b = mx.ones((channels, 1, 1, 1), mx.bfloat16), mx.zeros(channels)
    width, (known, right_of) = x.shape[2], DEFINED[neuron]
    k = Case(axis(8, 8, 1, 1, 1, 0), axis(width, width, 1, 1, 1, 0), channels, x, w, b, x, b, known)
    made = k.conv()
    with np.errstate(invalid="ignore"):  # NaN of either kind
        y, z = (np.array(a.astype(mx.float32)).ravel().astype(np.float64) for a in (made, x))
    for at, value in {np.inf: np.inf, -np.inf: 0.0, 0.0: 0.0}.items():
        assert np.all(y[z == at] == value) and np.any(z == at)
    assert np.all(np.isnan(y[np.isnan(z)])) and np.any(np.isnan(z))
    finite = np.isfinite(z)
    y, z = y[finite], z[finite]
    with np.errstate(over="ignore"):  # of e ** -x
        right = right_of(z)
    assert np.all(np.abs(y - right) <= (ROUNDING + BEYOND) * np.abs(right) + NOTHING)
    exactly = np.array(mx.array(right.astype(np.float32)).astype(mx.bfloat16).astype(mx.float32))
    assert np.mean(y == exactly) > 0.95  # nearly all are what float32's digits give
