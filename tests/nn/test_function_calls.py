"""Calls of functions with arguments: those that layers apply, and those that stay MLX's."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_conversion import X
from nn.test_examples import Block
from nn.test_layers import close, numbers

from mpsfunc import nn

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.mark.parametrize(
    "call",
    [
        lambda y: mx.maximum(y, 1),
        lambda y: mx.maximum(y, -0.5),
        lambda y: mx.maximum(y, mx.zeros(3)),
        lambda y: mx.maximum(y, y),
        lambda y: mx.maximum(y, False),
        lambda y: stock.leaky_relu(y, 1.5),
        lambda y: stock.leaky_relu(y, mx.array([0.1, 0.2, 0.3])),
        lambda y: stock.leaky_relu(y, negative_slope=float("nan")),
        lambda y: stock.leaky_relu(x=y),
        lambda y: stock.celu(y, -1.0),
        lambda y: stock.softshrink(y, -0.5),
        lambda y: stock.hard_tanh(y, -0.5, 0.5),
        lambda y: stock.hard_tanh(y, min_val=-0.5),
        lambda y: mx.sigmoid(y, stream=mx.cpu),
    ],
)
def test_calls_that_are_not_ours(call: Any) -> None:
    class Calling(Block):
        def __init__(self) -> None:
            super().__init__()
            self.call = call

        def __call__(self, x: mx.array) -> mx.array:
            return self.call(self.norm(x)) + stock.silu(self.more(x))

    block, same = Calling(), Calling()
    assert nn.convert(block, example=X).fused == {"more": "nn.silu"}
    close(block(numbers(X)), same(numbers(X)))


@pytest.mark.parametrize(
    "call",
    [
        lambda y: mx.maximum(-0.0, y),
        lambda y: stock.leaky_relu(y),
        lambda y: stock.leaky_relu(y, -0.5),
        lambda y: stock.leaky_relu(y, negative_slope=1),
        lambda y: stock.elu(y, alpha=0.5),
        lambda y: stock.celu(y, 0.5),
        lambda y: stock.softshrink(y, lambd=0.25),
        lambda y: stock.hard_shrink(y, 0.25),
        lambda y: stock.hard_tanh(y),
        lambda y: stock.gelu_approx(y),
        lambda y: stock.tanh(y),
        lambda y: mx.tanh(y),
    ],
)
def test_calls_with_their_arguments(call: Any) -> None:
    class Calling(Block):
        def __init__(self) -> None:
            super().__init__()
            self.call = call

        def __call__(self, x: mx.array) -> mx.array:
            return self.call(self.norm(x))

    block, same = Calling(), Calling()
    assert set(nn.convert(block, example=X).fused) == {"norm"}
    close(block(numbers(X)), same(numbers(X)))
