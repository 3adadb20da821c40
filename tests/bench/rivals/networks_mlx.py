"""The networks in mlx.nn, plain and converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from ..networks import CHANNELS, LEARNING_RATE, MOMENTUM, STAGES, Setting, Step


class Mean(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x.mean(axis=(1, 2))


def small() -> nn.Module:
    layers: list[Any] = []
    for i, (before, after) in enumerate(zip((3, *CHANNELS), CHANNELS, strict=False)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm(after), nn.ReLU()]
        layers += [nn.AvgPool2d(3, 2, 1)] * (i % 2)
    return nn.Sequential(*layers, Mean(), nn.Linear(CHANNELS[-1], 10))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm(after),
        )
        self.short = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm(after))
        self.act = nn.ReLU()

    def __call__(self, x: mx.array) -> mx.array:
        return self.act(self.body(x) + self.short(x))


def resnet20() -> nn.Module:
    layers: list[Any] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm(16), nn.ReLU()]
    before = 16
    for after in STAGES:
        for i in range(3):
            layers.append(Block(before, after, 2 if i == 0 and after > 16 else 1))
            before = after
    return nn.Sequential(*layers, Mean(), nn.Linear(STAGES[-1], 10))


def step(setting: Setting, x: np.ndarray, labels: np.ndarray, *, converted: bool) -> Step:
    """A compiled training step of a network whose parameters are drawn from a seed."""
    mx.random.seed(0)
    model = {"small": small, "resnet20": resnet20}[setting.network]()
    dtype = getattr(mx, setting.dtype)
    model.set_dtype(dtype)
    if converted:
        from mpsfunc.nn import convert

        convert(model)
    optimizer = optim.SGD(LEARNING_RATE, momentum=MOMENTUM)
    optimizer.init(model.trainable_parameters())
    images, targets = mx.array(x).astype(dtype), mx.array(labels)
    state = [model.state, optimizer.state]

    def loss() -> mx.array:
        return nn.losses.cross_entropy(model(images), targets, reduction="mean")

    def train() -> mx.array:
        value, grads = nn.value_and_grad(model, loss)()
        optimizer.update(model, grads)
        return value

    run: Callable[[], mx.array] = mx.compile(train, inputs=state, outputs=state)

    def times(count: int) -> float:
        for _ in range(count):
            value = run()
            mx.async_eval(value, state)
        mx.eval(value, state)
        return float(value.item())

    return Step(times, lambda: _parameters(model))


def peak() -> int:
    """Bytes of arrays at most in use since the process began."""
    return mx.get_peak_memory()


def _parameters(model: nn.Module) -> dict[str, list[np.ndarray]]:
    """By kind, in the order in which layers stand."""
    found: dict[str, list[np.ndarray]] = {"conv": [], "linear": [], "bias": []}
    for _, module in reversed(model.named_modules()):
        if isinstance(module, nn.Conv2d):
            found["conv"].append(np.array(module.weight).transpose(0, 3, 1, 2))
        elif isinstance(module, nn.Linear):
            found["linear"].append(np.array(module.weight))
            found["bias"].append(np.array(module.bias))
    return found
