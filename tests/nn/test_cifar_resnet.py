"""The residual network for CIFAR of mlx-examples, written from its description: every activation is a function call."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from nn.test_layers import numbers

from mpsfunc import nn

pytestmark = pytest.mark.usefixtures("on_cpu")


class Shortcut(stock.Module):
    """Every other pixel, and channels of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def __call__(self, x: mx.array) -> mx.array:
        side = (self.channels - x.shape[-1]) // 2
        return mx.pad(x[:, ::2, ::2], [(0, 0), (0, 0), (0, 0), (side, self.channels - x.shape[-1] - side)])


class Block(stock.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, given: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = stock.Conv2d(given, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = stock.BatchNorm(channels)
        self.conv2 = stock.Conv2d(channels, channels, 3, stride=1, padding=1, bias=False)
        self.bn2 = stock.BatchNorm(channels)
        self.shortcut = Shortcut(channels) if stride != 1 else None

    def __call__(self, x: mx.array) -> mx.array:
        out = stock.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.shortcut is None else self.shortcut(x)
        return stock.relu(out)


class ResNet(stock.Module):
    """Of 6 n + 2 layers."""

    def __init__(self, n: int = 3, width: int = 16) -> None:
        super().__init__()
        self.conv1 = stock.Conv2d(3, width, 3, stride=1, padding=1, bias=False)
        self.bn1 = stock.BatchNorm(width)
        self.layer1 = self.layer(n, width, width, 1)
        self.layer2 = self.layer(n, width, 2 * width, 2)
        self.layer3 = self.layer(n, 2 * width, 4 * width, 2)
        self.linear = stock.Linear(4 * width, 10)

    def layer(self, n: int, given: int, channels: int, stride: int) -> stock.Sequential:
        first = Block(given, channels, stride)
        return stock.Sequential(first, *(Block(channels, channels) for _ in range(n - 1)))

    def __call__(self, x: mx.array) -> mx.array:
        x = stock.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = mx.mean(x, axis=[1, 2]).reshape(x.shape[0], -1)
        return self.linear(x)


def network(**size: int) -> ResNet:
    mx.random.seed(1)
    model = ResNet(**size)
    mx.eval(model.parameters())
    return model


def trained(model: ResNet, compiled: bool, dtype: mx.Dtype = mx.float32) -> dict[str, np.ndarray]:
    """The results, gradients, parameters and statistics of two steps."""
    model.update(tree_map(lambda a: a.astype(dtype), model.parameters()))
    optimizer = optim.SGD(0.05, momentum=0.9)
    x, labels = numbers((6, 16, 16, 3)).astype(dtype), mx.arange(6) % 10

    def loss(x: mx.array, labels: mx.array) -> Any:
        y = model(x)
        return stock.losses.cross_entropy(y, labels, reduction="mean"), y

    def step(x: mx.array, labels: mx.array) -> Any:
        made, grads = stock.value_and_grad(model, loss)(x, labels)
        optimizer.update(model, grads)
        return made, grads

    state = [model.state, optimizer.state]
    run = mx.compile(step, inputs=state, outputs=state) if compiled else step
    seen = [run(x, labels)]
    mx.eval(seen, state)
    seen.append(run(x, labels))
    mx.eval(seen, state)
    model.eval()
    made = {"steps": seen, "parameters": model.parameters(), "evaluated": model(x)}
    return {name: np.array(a.astype(mx.float64)) for name, a in tree_flatten(made)}


def test_every_norm_with_an_activation_is_fused() -> None:
    report = nn.convert(network(n=9), example=(1, 32, 32, 3))
    assert report.fused == {
        "bn1": "nn.relu",
        **{f"layer{i}.layers.{k}.bn1": "nn.relu" for i in (1, 2, 3) for k in range(9)},
        **{f"layer{i}.layers.{k}.bn2": "a shortcut and nn.relu" for i in (1, 2, 3) for k in range(9)},
    }
    assert len(report.fused) == 55 and report.left == report.unfused == {}


def test_every_norm_is_folded_for_inference() -> None:
    model, same, x = network(n=9), network(n=9), numbers((2, 32, 32, 3))
    for each in (model, same):
        each(x)  # statistics
        each.eval()
    fused = nn.convert(model, example=(1, 32, 32, 3), inference=True).fused
    norms = {path for path, module in model.named_modules() if isinstance(module, stock.BatchNorm)}
    assert len(norms) == 55 and norms <= set(fused.values())
    assert sorted(fused[path] for path in norms & fused.keys()) == ["a shortcut and nn.relu"] * 27 + ["nn.relu"] * 28
    want = same(x)
    assert mx.allclose(model(x), want, rtol=0, atol=1e-5 * float(mx.abs(want).max()))
    assert mx.array_equal(mx.compile(model)(x), model(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_training_is_that_of_stock(compiled: bool) -> None:
    model, exact = network(n=1, width=8), network(n=1, width=8)
    assert len(nn.convert(model, example=(1, 32, 32, 3)).fused) == 7
    nn.convert(exact)
    right = trained(exact, False, mx.float64)
    theirs, ours = trained(network(n=1, width=8), compiled), trained(model, compiled)
    assert right.keys() == theirs.keys() == ours.keys() and len(right) > 80
    for name, want in right.items():
        scale = max(1e-2, float(np.abs(want).max()))
        bound = max(3 * float(np.abs(theirs[name] - want).max()), 2e-6 * scale)
        assert np.abs(ours[name] - want).max() <= bound, name
