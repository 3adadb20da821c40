"""Convolutions of bfloat16 with weights of bfloat16, for tests of the sets that multiply these as they are."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np
import pytest

from mpsfunc.channels.activation_spec import RELU, SIGMOID, Activation
from mpsfunc.windows.axis import Axis
from support import close, exact, same_bits
from support.convolution_case import CHANNELS, Case, _primitives, case
from support.oracle import convolution as oracle

Windows = tuple[Axis, Axis]
Channels = tuple[int, int, int]

LEVELS = ("avx512_bf16", "amx")
# Besides odd ones: whole pairs, tiles and lines of the cache, rests of each, and groups of many channels.
OF_PAIRS = ((1, 64, 64), (1, 32, 96), (1, 150, 70), (2, 40, 33), (3, 32, 32), (1, 6, 130))
EVERY = (*(channels for channels in CHANNELS if channels[1:] not in ((1, 1), (4, 4), (2, 2))), *OF_PAIRS)


def level(name: str) -> str:
    """A set by its name, or a skipped test."""
    if name not in _primitives.isas():
        pytest.skip(f"this processor or build has no {name}")
    return name


def narrow(k: Case) -> Case:
    """A case with weights of the images' dtype."""
    return k._replace(w=k.w.astype(k.x.dtype))


@functools.lru_cache(maxsize=2)
def defined(windows: Windows, channels: Channels, images: int) -> tuple[Case, list[tuple[np.ndarray, np.ndarray]]]:
    """A case, and what conv, grad_input and grad_both are to give: values, and the size of the terms."""
    k, where = narrow(case(windows, channels, mx.bfloat16, images)), (*windows, channels[0])
    mask = np.zeros((images, k.rows.n_out, k.cols.n_out, 1))
    mask[:, k.rows.begin : k.rows.end, k.cols.begin : k.cols.end] = 1

    def definitions(x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray, back: np.ndarray) -> list[np.ndarray]:
        y, dx = oracle.conv(x, w, b, *where) * mask, oracle.conv_grad_input(dy, w, *where) + back
        return [y, dx, oracle.conv_grad_weights(dy, x, *where), oracle.conv_grad_bias(dy * mask)]

    arrays = [exact(a) for a in (k.x, k.w, k.b, k.dy, k.back)]
    return k, list(zip(definitions(*arrays), definitions(*map(abs, arrays)), strict=True))


def grad_both(k: Case) -> list[mx.array]:
    """The gradients of weights and bias, which are in float32 whatever the weights are in."""
    return k._replace(w=k.w.astype(mx.float32)).grad_both()


def as_transposed(k: Case) -> list[mx.array]:
    """The convolution, its gradients and the bias's with weights as a transposed convolution has them."""
    turned = k.as_transposed()
    dw, db = grad_both(turned)
    return [turned.conv(), turned.grad_input(), dw.swapaxes(0, 3), db]


def check(windows: Windows, channels: Channels, images: int = 2, of: type[Case] = Case) -> None:
    """Compares a convolution, its gradients, and what activations make of it with their definitions."""
    k, expected = defined(windows, channels, images)
    k = of(*k)
    made = [k.conv(), k.grad_input(), *grad_both(k)]
    for value, definition in zip(made, expected, strict=True):
        close(value, *definition)
    assert same_bits(k.grad_weights(), made[2].astype(k.w.dtype, stream=mx.cpu))
    if k.groups == 1:
        turned = as_transposed(k)
        for value, definition in zip(turned, expected, strict=True):
            close(value, *definition)
        assert same_bits(turned[3], made[3])
    rectified, bent = (k._replace(neuron=Activation(kind)) for kind in (RELU, SIGMOID))
    for plain, other in ((made[0], rectified.conv()), (made[1], rectified.grad_input())):
        assert same_bits(other, mx.maximum(plain, 0))
    y, size = expected[0]
    selected = size > 0  # of the bias at least
    close(bent.conv(), np.where(selected, 1 / (1 + np.exp(-y)), 0), size + 1)
