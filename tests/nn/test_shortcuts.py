"""A shortcut that a block adds to a batch normalization's result ahead of an activation, added by the layer itself."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from mlx.utils import tree_flatten
from support import DTYPES, close, exact, nodes, numbers, same_bits

from mpsfunc import nn

SHAPE = (2, 6, 5, 4)


class Block(stock.Module):
    """A residual block, which ends as `join` says."""

    def __init__(self, join: str, short: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.act = stock.Conv2d(4, 4, 3, padding=1), stock.BatchNorm(4), stock.ReLU()
        self.short = stock.BatchNorm(4) if short else stock.Identity()
        self.join = join

    def __call__(self, x: mx.array) -> mx.array:
        if self.join == "temporary":
            shortcut = self.short(x)
            return stock.relu(self.norm(self.conv(x)) + shortcut)
        y, shortcut = self.norm(self.conv(x)), self.short(x)
        if self.join == "function":
            return stock.relu(y + shortcut)
        if self.join == "module":
            return self.act(shortcut + y)
        if self.join == "rebound":  # so that nobody holds what was added
            y = self.norm(self.conv(x))
            y = y + self.short(x)
            return stock.relu(y)
        if self.join == "in place":
            y += shortcut
            return stock.relu(y)
        return mx.maximum(mx.add(y, shortcut), 0)


class Chain(stock.Module):
    def __init__(self, block: Callable[[], stock.Module]) -> None:
        super().__init__()
        self.blocks = [block() for _ in range(3)]

    def __call__(self, x: mx.array) -> mx.array:
        for block in self.blocks:
            x = block(x)
        return x


JOINS = ("function", "module", "temporary", "rebound", "in place", "maximum")


def steps(model: stock.Module, x: mx.array, compiled: bool) -> dict[str, mx.array]:
    """The results, gradients and running statistics of two training steps, and what evaluation gives then."""

    def step(x: mx.array) -> tuple[mx.array, Any]:
        return stock.value_and_grad(model, lambda x: (model(x).astype(mx.float32) ** 2).sum())(x)

    run = mx.compile(step, inputs=model.state, outputs=model.state) if compiled else step
    found: dict[str, mx.array] = {}
    for at in range(2):
        value, grads = run(x)
        found |= {f"{at} {name}": a for name, a in [("value", value), *tree_flatten(grads)]}
    model.eval()
    return {**found, "y": model(x), **dict(tree_flatten(model.parameters()))}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("join", JOINS)
def test_the_layer_adds_it(join: str, short: bool, compiled: bool, on_cpu: mx.Device) -> None:
    model, x = Chain(lambda: Block(join, short)), numbers(SHAPE)
    mx.eval(model.parameters())
    apart = copy.deepcopy(model)
    report = nn.convert(model, example=SHAPE)
    behind = "mx.maximum" if join == "maximum" else "nn.relu"
    first = "short" if short and join == "module" else "norm"  # of two that could, the first addend does
    for i in range(3):
        fused = report.fused[f"blocks.{i}.{first}"]
        assert fused == f"a shortcut and {f'blocks.{i}.act' if join == 'module' else behind}"
    nn.convert(apart)
    for one, other in zip(steps(model, x, compiled).items(), steps(apart, x, compiled).items(), strict=True):
        assert one[0] == other[0]
        right = exact(other[1])
        close(one[1], right, abs(right) + abs(right).max(), slack=64)
    made = nodes(model.train()(x))
    assert made["batch_norm_add"] == 3 and "Add" not in made and "neuron" not in made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_every_dtype(dtype: mx.Dtype, on_cpu: mx.Device) -> None:
    model, x = Block("function"), numbers(SHAPE, dtype)
    model.set_dtype(dtype)
    apart = copy.deepcopy(model)
    nn.convert(apart)
    nn.convert(model, example=mx.zeros(SHAPE, dtype))
    for training in (True, False):
        got, right = (each.train(training)(x) for each in (model, apart))
        assert got.dtype == right.dtype == dtype
        limit = (
            4 * float(mx.finfo(dtype).eps) * (abs(exact(right)) + abs(exact(right)).max())
        )  # rounded once, not thrice
        assert (abs(exact(got) - exact(right)) <= limit).all()


def test_a_sum_that_is_read_besides_is_not_computed_again(on_cpu: mx.Device) -> None:
    class Both(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = stock.BatchNorm(4), stock.ReLU()

        def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
            z = self.norm(x) + x
            return self.act(z), z

    model, x = Both(), numbers(SHAPE)
    assert "read besides" in nn.convert(model, example=x).unfused["act"]
    assert nodes(*model(x))["batch_norm"] == 1
    assert same_bits(model(x)[0], mx.maximum(model(x)[1], 0))


def test_what_is_no_sum_of_the_layer_s_result_is_stock_s(on_cpu: mx.Device) -> None:
    model, x = Block("module"), numbers(SHAPE)
    nn.convert(model, example=x)
    norm, act = model.norm.eval(), model.act
    y = norm(x)
    for z in (y + 1, y + x[:1, :1, :1], x + y.astype(mx.float16), y - x, y + x[..., :1], x + x, (y + x) + x):
        right = mx.maximum(mx.array(exact(z).astype("float32")), 0)
        assert same_bits(act(z), right)
    norm.weight = norm.weight * 2
    assert same_bits(act(y + x), mx.maximum(y + x, 0))  # by the weights that it was called with


def test_running_statistics_move_once(on_cpu: mx.Device) -> None:
    model, x = Block("function"), numbers(SHAPE)
    apart = copy.deepcopy(model)
    nn.convert(apart)
    nn.convert(model, example=x)
    for _ in range(3):
        mx.eval(model(x), apart(x))
    for name in ("running_mean", "running_var"):
        close(model.norm[name], exact(apart.norm[name]), abs(exact(apart.norm[name])) + 1)


def test_copies_pickles_and_what_was_reverted(on_cpu: mx.Device) -> None:
    model, x = Chain(lambda: Block("function")).eval(), numbers(SHAPE)
    nn.convert(model, example=x)
    right = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert nodes(other(x))["bn_normalize_add"] == 3 and same_bits(other(x), right)
        assert nn.convert(other).fused == nn.convert(model).fused and len(nn.convert(other).fused) == 3
    nn.revert(model)
    assert nn.convert(model).fused == {}
    nn.revert(model)
    close(model(x), exact(right), abs(exact(right)) + 1, slack=64)


def test_shortcuts_that_would_be_repeated_stay_stock_s(on_cpu: mx.Device) -> None:
    class Shifted(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.shift = stock.BatchNorm(4), mx.ones(4)

        def __call__(self, x: mx.array) -> mx.array:
            return stock.relu(self.norm(x) + self.shift)

    model, x = Shifted(), numbers(SHAPE)
    assert nn.convert(model, example=x).fused == {}
    assert nodes(model(x))["batch_norm"] == 1


@pytest.mark.parametrize("join", ["function", "temporary"])  # one holds what is added to, the other does not
def test_few_results_are_remembered(join: str, on_cpu: mx.Device) -> None:
    model, x = Block(join), numbers(SHAPE)
    nn.convert(model, example=x)
    mx.eval(model(x))
    common = model.norm._following
    assert not common._gone and not common._calls  # what was taken over is forgotten
    for _ in range(5):
        model.norm(x)
    assert len(common._gone) == 2 and not common._calls
    right = copy.deepcopy(model)(x)  # and these are in nobody's way
    for _ in range(2):
        assert same_bits(model(x), right)


def test_an_example_remembers_nothing(on_cpu: mx.Device) -> None:
    class Doubled(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.block = stock.BatchNorm(4), Block("temporary")

        def __call__(self, x: mx.array) -> mx.array:
            return self.block(self.norm(x) * 2)

    model, x = Doubled(), numbers(SHAPE)
    assert nn.convert(model, example=x).fused == {"block.norm": "a shortcut and nn.relu"}
    assert not model.block.norm._following._gone


def test_sums_that_are_activated_in_another_order(on_cpu: mx.Device) -> None:
    class Crossed(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = stock.BatchNorm(4), stock.BatchNorm(4)

        def __call__(self, x: mx.array) -> mx.array:
            one, other = self.first(x) + x, self.second(2 * x) + x
            return stock.relu(other) + stock.relu(one)

    model, x = Crossed(), numbers(SHAPE)
    apart = copy.deepcopy(model)
    assert len(nn.convert(model, example=x).fused) == 2
    nn.convert(apart)
    for _ in range(3):
        close(model(x), exact(apart(x)), abs(exact(apart(x))) + 1)


def test_threads_that_call_one_model(on_cpu: mx.Device) -> None:
    model, x = Chain(lambda: Block("temporary")).eval(), numbers(SHAPE)
    nn.convert(model, example=x)
    mx.eval(x, model.parameters())
    right, wrong = exact(model(x)), []

    def call() -> None:
        try:
            for _ in range(100):
                y = model(x)
                if not np.allclose(exact(y), right, atol=1e-5):
                    wrong.append(y)
        except Exception as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_another_example_replaces_what_the_first_showed(on_cpu: mx.Device) -> None:
    model, x = Block("function"), numbers(SHAPE)
    assert nn.convert(model, example=x).fused == {"norm": "a shortcut and nn.relu"}
    model.join = "module"
    assert nn.convert(model, example=x).fused == {"norm": "a shortcut and act"}
