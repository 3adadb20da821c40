"""Whole networks in mlx.nn, plain and converted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from .. import whole
from . import Runner


def runner(cell: whole.Cell, weights: Mapping[str, np.ndarray], *, converted: bool) -> Runner:
    """Compiled steps of a network with these weights, which are there before the first."""
    mx.set_default_device(getattr(mx, cell.device))
    given, classes = whole.data(cell)
    dtype = getattr(mx, cell.dtype)
    model = whole.of_mlx(cell)
    model.load_weights([(path, mx.array(a)) for path, a in weights.items()])
    model.set_dtype(dtype)
    model.train(cell.trains)
    x, targets = mx.array(given).astype(dtype), mx.array(classes)
    mx.eval(model.parameters(), x, targets)  # a compiled function would make them anew in every call
    if converted:
        _convert(model, x, inference=not cell.trains)
    run = _training(cell, model, x, targets) if cell.trains else _inference(model, x)
    return run


def _convert(model: nn.Module, x: mx.array, *, inference: bool) -> None:
    from mpsfunc.nn import convert

    known = inspect.signature(convert).parameters
    settings: dict[str, Any] = {"inference": True} if inference and "inference" in known else {}
    convert(model, example=x, **settings)
    mx.eval(model.parameters())


def loss_of(cell: whole.Cell, y: Any, classes: mx.array) -> mx.array:
    """In float32, as users compute it."""
    if cell.spec.loss == whole.CLASSES:
        return nn.losses.cross_entropy(y.astype(mx.float32), classes, reduction="mean")
    # By channels first: MLX adds up all of an array one after the other, and is off by a thousandth then.
    squares = [(each.astype(mx.float32) - 1) ** 2 for each in _several(y)]
    return sum(each.mean(axis=(1, 2)).mean() for each in squares)


def _several(y: Any) -> list[mx.array]:
    return list(y) if isinstance(y, tuple) else [y]


def _training(cell: whole.Cell, model: nn.Module, x: mx.array, classes: mx.array) -> Runner:
    optimizer = optim.SGD(cell.spec.rate, momentum=whole.MOMENTUM)
    step: list[Callable[[], mx.array]] = []
    state: list[Any] = []

    def begin() -> None:
        optimizer.init(model.trainable_parameters())
        state.extend([model.state, optimizer.state])

        def loss() -> mx.array:
            return loss_of(cell, model(x), classes)

        def train() -> mx.array:
            value, grads = nn.value_and_grad(model, loss)()
            optimizer.update(model, grads)
            return value

        step.append(mx.compile(train, inputs=state, outputs=state))

    def run(count: int, ahead: bool = False) -> float:
        if not step:
            begin()
        for _ in range(count):
            value = step[0]()
            (mx.async_eval if ahead else mx.eval)(value, state)
        mx.eval(value, state)
        return float(value.item())

    return Runner(run, lambda: [])


def _inference(model: nn.Module, x: mx.array) -> Runner:
    forward = mx.compile(model)
    outputs: list[np.ndarray] = []

    def run(count: int, ahead: bool = False) -> float:
        if not outputs:  # a compiled function would fold weights anew in every call
            mx.eval(model(x[:1]))
        for _ in range(count):
            y = forward(x)
            (mx.async_eval if ahead else mx.eval)(y)
        mx.eval(y)
        if not outputs:
            outputs.extend(np.array(each.astype(mx.float32)) for each in _several(y))
        return 0.0

    return Runner(run, lambda: outputs)


def peak() -> int:
    """Bytes of arrays at most in use since the last reset."""
    return mx.get_peak_memory()


def reset_peak() -> None:
    """Begins anew, from what is in use."""
    mx.clear_cache()
    mx.reset_peak_memory()
