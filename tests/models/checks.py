"""What every network has to pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mpsfunc.core import lazy
from mpsfunc.nn.conversion import DROP_INS
from mpsfunc.nn.drop_in import Activation, Fusing

from . import comparison, left
from .comparison import DTYPES, FACTOR, VARIANTS, converted, distances, fused, made, run
from .registry import Network


def near(network: Network, dtype: str, *, small: bool) -> None:
    """A converted network is as near to the right values as stock MLX, in every array.

    And these are what MLX means, as its results, statistics and gradients in float32 show. In a large network roundings
    decide so much (a ResNet-50's own gradients are off by a hundredth in float32) that this is asked of half the
    gradients of the first step only, and less narrowly of all.
    """
    found = distances(network, dtype)
    assert tuple(found) == VARIANTS
    if dtype == "float32":
        stock = {each.name: each.stock for each in found["converted"]}
        gradients = [name for name in stock if name.startswith("gradient") and (small or name.endswith("step 1"))]
        off = np.quantile([stock[name] for name in gradients], 1.0 if small else 0.5)
        assert off <= (1e-2 if small else 0.1), f"gradients have another meaning: {off}"
        astray = {name for name, off in stock.items() if off > (1e-5 if small else 1e-2)}
        assert all(name.startswith("gradient") for name in astray), f"another meaning: {sorted(astray)}"
    for variant, worst in found.items():
        assert worst[0].ratio <= FACTOR, f"{variant}: {worst[0]}"


def nothing_left(network: Network) -> None:
    """No layer that has a drop-in stays MLX's."""
    model, x = made(network, 0, mx.float32)
    report = converted(model, x, fused=True)
    assert len(report.replaced) > 2
    for path, module in model.named_modules():
        name = type(module).__name__
        if type(module) in DROP_INS:
            assert report.left.get(path) in left.REASONS, f"{path} ({name}) stays: {report.left.get(path)}"
        elif type(module) is left.layers().get(name):
            assert name in left.WITHOUT, f"{path}: {name}"


def same_bits(network: Network, dtype: str) -> None:
    for change, original in (comparison.reverted, lambda model, x: model), (comparison.copied, fused):
        one, other = ({}, {})
        for into, make in ((one, change), (other, original)):
            model, x = made(network, 0, DTYPES[dtype])
            into.update(run(make(model, x), x, network))
        assert one.keys() == other.keys()
        for name, a in one.items():
            assert np.array_equal(a, other[name], equal_nan=True), name


def fused_wherever_it_can_be(network: Network) -> None:
    """Every layer that can apply an activation, and whose result one is called on at once, applies it."""
    model, x = made(network, 0, mx.float32)
    wanted = followed(model, x)
    report = converted(model, x, fused=True)
    assert wanted and wanted <= report.fused.keys(), sorted(wanted - report.fused.keys())


def followed(model: nn.Module, x: mx.array) -> set[str]:
    """Paths of layers of MLX's that fuse once they are converted, of whose result an activation is the first reader."""
    paths = {id(module): path for path, module in model.named_modules()}
    results: dict[int, tuple[str, mx.array, mx.array]] = {}  # held, so that no other array gets an identity
    found: set[str] = set()

    def layer(call: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def noted(self: nn.Module, x: mx.array) -> mx.array:
            y = call(self, x)
            results[id(y)] = paths[id(self)], y, copy.copy(y)
            return y

        return noted

    def activation(call: Callable[..., mx.array], given: int) -> Callable[..., mx.array]:
        def noted(*arguments: Any) -> mx.array:
            path, _, unchanged = results.get(id(arguments[given]), ("", None, None))
            if unchanged is not None and lazy.same(unchanged, arguments[given]):  # y += x keeps the object
                found.add(path)
            return call(*arguments)

        return noted

    with ExitStack() as replaced:
        for theirs, ours in DROP_INS.items():
            if issubclass(ours, Fusing):
                replaced.enter_context(mock.patch.object(theirs, "__call__", layer(theirs.__call__)))
            elif issubclass(ours, Activation):
                replaced.enter_context(mock.patch.object(theirs, "__call__", activation(theirs.__call__, 1)))
        for name in ("relu", "silu", "leaky_relu", "tanh", "sigmoid"):
            for module in (nn, mx):
                if function := getattr(module, name, None):
                    replaced.enter_context(mock.patch.object(module, name, activation(function, 0)))
        mx.eval(model(x))
    return found
