"""Gates that are hard sigmoids written out, in models for inference."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_inference import spread
from nn.test_layers import close, numbers
from support import nodes, same_bits

from mpsfunc import nn
from mpsfunc.core import lazy

pytestmark = pytest.mark.usefixtures("on_cpu")

X = (3, 5, 6, 24)
Gate = Callable[[mx.array], mx.array]

# What stands for the x of which these are hard sigmoids.
WRITTEN: dict[str, Gate] = {
    "relu6": lambda x: stock.relu6(x + 3) / 6,
    "the number ahead": lambda x: stock.relu6(3.0 + x) / 6.0,
    "clip": lambda x: mx.clip(x + 3, 0, 6) / 6,
    "from above first": lambda x: mx.maximum(mx.minimum(x + 3, 6), 0) / 6,
}
OTHERS: dict[str, Gate] = {
    "another sum": lambda x: stock.relu6(x + 2) / 6,
    "another share": lambda x: stock.relu6(x + 3) / 5,
    "other ends": lambda x: mx.clip(x + 3, 1, 6) / 6,
    "other ends above": lambda x: mx.clip(x + 3, 0, 5) / 6,
    "a difference": lambda x: stock.relu6(x - 3) / 6,
    "over it": lambda x: 6 / stock.relu6(x + 3),
    "an array's": lambda x: stock.relu6(x + x[:1, :1, :1, :1]) / 6,
    "not clipped": lambda x: (x + 3) / 6,
    "another dtype": lambda x: (stock.relu6(x.astype(mx.float16) + 3) / 6).astype(x.dtype),
}


class Gated(stock.Module):
    """Squeeze and excite by one layer."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        mx.random.seed(3)
        self.fc, self.last, self.norm = stock.Conv2d(24, 24, 1), stock.Conv2d(24, 32, 1), spread(stock.BatchNorm(32), 1)
        self.gate = gate
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        return self.norm(self.last(x * self.gate(8 * self.fc(x.mean(axis=(1, 2), keepdims=True)))))


def pair(gate: Gate, dtype: mx.Dtype = mx.float32) -> tuple[Gated, Gated]:
    """One for inference, and the same as it was."""
    net, same = Gated(gate).eval(), Gated(gate).eval()
    for each in (net, same):
        each.set_dtype(dtype)
        mx.eval(each.parameters())
    nn.convert(net, example=mx.zeros(X, dtype), inference=True)
    return net, same


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_ours(name: str, dtype: mx.Dtype) -> None:
    net, same = pair(WRITTEN[name], dtype)
    x = numbers(X).astype(dtype)
    y = mx.compile(net)(x)
    assert nodes(y)["neuron"] == 1 and not any("Minimum" in each for each in nodes(y))
    if dtype == mx.float32:
        close(y, same(x))
        return
    same.set_dtype(mx.float32)
    want = same(x.astype(mx.float32))
    assert float(mx.abs(y - want).max()) <= 0.03 * float(mx.abs(want).max())


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_something_else(name: str) -> None:
    net, same = pair(OTHERS[name])
    x = numbers(X)
    y = mx.compile(net)(x)
    assert nodes(y)["neuron"] == 0
    close(y, same(x))


def test_what_is_told_of_an_array() -> None:
    seen: list[mx.array | None] = []

    def run(x: mx.array) -> mx.array:
        gate = WRITTEN["relu6"](x)
        seen.append(lazy.hard_sigmoid_of(gate))
        assert seen[-1] is not None and lazy.same(seen[-1], x)
        return gate

    x = numbers((2, 1, 1, 8))
    assert same_bits(mx.compile(run)(x), stock.relu6(x + 3) / 6) and len(seen) == 1
    made = WRITTEN["clip"](x)
    assert lazy.hard_sigmoid_of(made) is not None
    mx.eval(made)
    assert lazy.hard_sigmoid_of(made) is None and lazy.hard_sigmoid_of(x) is None


def test_gradients_are_those_of_the_code() -> None:
    net, same = pair(WRITTEN["relu6"])
    x = numbers(X)

    def gradient(of: Gated) -> mx.array:
        return mx.compile(mx.grad(lambda x: of(x).square().sum()))(x)

    want = gradient(same)
    assert float(mx.abs(gradient(net) - want).max()) <= 2e-5 * float(mx.abs(want).max())


def test_training_keeps_what_the_code_says() -> None:
    """Its slopes at both ends are not ours."""
    net = Gated(WRITTEN["relu6"]).train()
    nn.convert(net, example=mx.zeros(X))
    assert nodes(mx.compile(net)(numbers(X)))["neuron"] == 0
