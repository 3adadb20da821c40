"""Models that are written in ways of their own: converted, folded and compared, they compute what they did."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_conversion import X, step
from nn.test_examples import Block
from nn.test_layers import close, numbers

from mpsfunc import nn
from mpsfunc.nn.rewriting import codes, names_in

pytestmark = pytest.mark.usefixtures("on_cpu")

ACTIVATIONS = {"relu": stock.relu, "silu": stock.silu}
PAIR = (stock.relu, 3)


class Relu:
    """An object that is no module, and calls one that calls it."""

    def __call__(self, x: mx.array, again: bool = False) -> mx.array:
        return OTHER(x, again) if again else stock.relu(x)


class Other:
    def __call__(self, x: mx.array, again: bool = False) -> mx.array:
        return RELU(x) if again else x


class Plain:
    def __call__(self, x: mx.array) -> mx.array:
        return mx.abs(x)


RELU, OTHER = Relu(), Other()


class OfDict(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return ACTIVATIONS["relu"](self.norm(self.conv(x)))


class OfTuple(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return PAIR[0](self.norm(self.conv(x)))


class OfObject(Block):
    def __init__(self) -> None:
        super().__init__()
        self.relu = Relu()

    def __call__(self, x: mx.array) -> mx.array:
        return self.relu(self.norm(self.conv(x)))


class OfGlobalObject(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return RELU(self.norm(self.conv(x)))


class Importing(Block):
    def __call__(self, x: mx.array) -> mx.array:
        from mlx.nn import relu

        return relu(self.norm(self.conv(x)))


class ImportingWithin(Block):
    def __call__(self, x: mx.array) -> mx.array:
        import mlx.nn as layers

        return layers.relu(self.norm(self.conv(x))) + stock.silu(self.conv(x))


LIST, OBJECT = "a function in a list or dict", "in an object that is no module"


@pytest.mark.parametrize(
    ("kind", "at", "why"),
    [
        (OfDict, "ACTIVATIONS", LIST),
        (OfTuple, "PAIR", LIST),
        (OfObject, "relu", OBJECT),
        (OfGlobalObject, "RELU", OBJECT),
        (Importing, "Importing.__call__", "imports mlx.nn as it runs"),
        (ImportingWithin, "ImportingWithin.__call__", "imports mlx.nn as it runs"),
    ],
)
def test_functions_that_nothing_sees_are_reported(kind: Any, at: str, why: str) -> None:
    block, same = kind(), kind()
    report = nn.convert(block, example=X)
    assert report.unfused.pop(at) == why and not any("relu" in each for each in report.fused.values())
    assert set(report.unfused) <= {"act"}
    close(step(block), step(same))


def test_what_is_like_those_is_not_reported() -> None:
    class Like(Block):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.object, self.by_name = ["relu", stock.Linear], Plain(), {"relu": 1}

        def __call__(self, x: mx.array) -> mx.array:
            import mlx.core as core  # of which nothing here is an activation

            return core.abs(stock.relu(self.norm(self.conv(x))))

    report = nn.convert(Like(), example=X)
    assert report.fused == {"norm": "nn.relu"} and set(report.unfused) == {"act"}


class Namesake(Block):
    """Attributes that are called like functions and tables of this module."""

    def __init__(self) -> None:
        super().__init__()
        self.ACTIVATIONS, self.RELU, self.writes, self.type = 2.0, stock.BatchNorm(3), 3, "a"

    def __call__(self, x: mx.array) -> mx.array:
        y = stock.relu(self.norm(self.conv(x))) * self.ACTIVATIONS
        return super().__call__(self.RELU(y) * self.writes) if self.type == "a" else y


def writes(x: mx.array) -> mx.array:
    """Cannot be rewritten, and would be reported if it were called."""
    global WRITTEN
    WRITTEN = True
    return stock.relu(x)


WRITTEN = False


def test_attributes_that_are_called_like_globals_are_none() -> None:
    block, same = Namesake(), Namesake()
    report = nn.convert(block, example=X)
    assert report.fused["norm"] == "nn.relu and nn.sigmoid" and set(report.unfused) <= {"act"}, report.unfused
    close(step(block), step(same))
    assert not WRITTEN


def test_names_by_which_code_reads_globals_and_others() -> None:
    def code(x: Any) -> Any:
        import os.path as of_system
        from sys import path

        def inner() -> Any:
            return ACTIVATIONS, x.PAIR, x.called(of_system, path)

        x.stored = inner
        return [len(each) for each in x.items()]

    of_globals, others = names_in(*codes(code.__code__))
    assert of_globals == {"ACTIVATIONS", "len"}
    assert others >= {"PAIR", "called", "stored", "items", "path"} and not others & of_globals


def test_an_example_of_arguments_by_name() -> None:
    class Named(Block):
        def __call__(self, x: mx.array, *, scale: float, flags: Any = None) -> mx.array:
            return stock.relu(self.norm(x)) * scale

    for example in ({"x": numbers(X), "scale": 2.0}, {"scale": 1, "x": numbers(X), "flags": {"a": (1, 2)}}):
        assert nn.convert(Named(), example=example).fused == {"norm": "nn.relu"}
    told = r"convert: the model's call raises a TypeError of .*; got example={'x': float32\[4, 8, 8, 3\]}, expected"
    with pytest.raises(ValueError, match=told):
        nn.convert(Named(), example={"x": numbers(X)})
    for example in (Block(), {1: numbers(X)}):
        with pytest.raises(TypeError, match="convert: not an example"):
            nn.convert(Named(), example=example)


def spread(block: Any) -> Any:
    """Statistics and scales that are not 0 and 1."""
    for i, norm in enumerate(module for module in block.modules() if isinstance(module, stock.BatchNorm)):
        shape = norm.running_mean.shape
        norm.running_mean, norm.running_var = numbers(shape, seed=i), 0.5 + mx.abs(numbers(shape, seed=i + 9))
    return block


class TwoNorms(Block):
    """Of one result."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.second = stock.BatchNorm(3), stock.Conv2d(3, 3, 1, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.conv(x)
        return stock.relu(self.norm(y)) + self.last(y)


class TwoLayers(TwoNorms):
    """Ahead of one norm."""

    def __call__(self, x: mx.array) -> mx.array:
        return stock.relu(self.norm(self.conv(x))) + stock.silu(self.norm(self.second(x)))


class Normed(TwoNorms):
    """Weights of length 1, computed in each call and put back."""

    def __call__(self, x: mx.array) -> mx.array:
        kept = self.conv.weight
        self.conv.weight = kept / mx.linalg.norm(kept.reshape(len(kept), -1), axis=1).reshape(-1, 1, 1, 1)
        y = stock.relu(self.norm(self.conv(x)))
        self.conv.weight = kept
        return y


class Behind(TwoNorms):
    """A norm behind a norm, and arguments by name."""

    def __call__(self, x: mx.array) -> mx.array:
        return stock.relu(self.last(x=self.norm(x=self.conv(x=x))))


@pytest.mark.parametrize(
    ("kind", "folded"),
    [
        (TwoNorms, {}),
        (TwoLayers, {"conv": "norm", "second": "norm"}),
        (Normed, {"conv": "norm"}),
        (Behind, {"conv": "norm"}),
    ],
)
def test_norms_that_are_folded_or_not(kind: Any, folded: dict[str, str]) -> None:
    block, same = spread(kind()), spread(kind())
    report = nn.convert(block, example=X, inference=True)
    assert {at: norm for at, norm in report.fused.items() if norm in ("norm", "last")} == folded
    assert (report.kept_twice > 0) == bool(folded)
    for training in (False, True, False):
        block.train(training)
        same.train(training)
        close(block(numbers(X)), same(numbers(X)))
        close(step(block), step(same))


class Keeping(Block):
    """Keeps what it computes, and makes something at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.made = None

    def __call__(self, x: mx.array) -> mx.array:
        if self.made is None:
            self.made = mx.ones(x.shape[-1])
        self.seen = stock.relu(self.norm(self.conv(x)))
        return self.seen.mean((1, 2)) + self.made


def test_a_model_that_keeps_arrays_is_compared() -> None:
    found = nn.compare(Keeping, X, rounds=1)
    assert found.agree and all(each.forward for each in found.variants)
    assert [bool(each.step) for each in found.variants] == [True, True, False]
    assert mx.random.uniform().item() < 1  # which holds no tracer


def test_a_model_that_grows_with_each_call_is_refused() -> None:
    class Growing(Block):
        def __init__(self) -> None:
            super().__init__()
            self.calls: dict[int, mx.array] = {}

        def __call__(self, x: mx.array) -> mx.array:
            self.calls[len(self.calls)] = x
            return stock.relu(self.norm(self.conv(x)))

    told = (
        "compare: the training step of the model fails when it is repeated; got a KeyError of .*, expected a model that"
    )
    with pytest.raises(ValueError, match=told):
        nn.compare(Growing, X, rounds=1)
    assert mx.random.uniform().item() < 1
