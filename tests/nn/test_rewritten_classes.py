"""Classes and closures whose code is rewritten, or is not, and why."""

from __future__ import annotations

import builtins
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_conversion import X, step
from nn.test_examples import Block
from nn.test_layers import close, numbers

from mpsfunc import nn

pytestmark = pytest.mark.usefixtures("on_cpu")

COUNTED = 0


class Counting(Block):
    def __call__(self, x: mx.array) -> mx.array:
        global COUNTED
        COUNTED += 1
        return stock.sigmoid(self.norm(x))


class Executing(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return eval("stock.sigmoid(self.norm(x))") + stock.sigmoid(self.more(x))


class Asking(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.norm(x)) + super(type(self), self).__call__(x)


class Meta(type):
    """A metaclass."""


class OfMeta(Block, metaclass=Meta):
    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.norm(x))


@pytest.mark.parametrize(
    ("kind", "at", "why"),
    [
        (Counting, "Counting.__call__", "Counting.__call__ writes a global variable"),
        (Executing, "Executing.__call__", "Executing.__call__ calls eval"),
        (Asking, "", "Asking.__call__ calls super with type(self)"),
        (OfMeta, "", "OfMeta has a metaclass"),
    ],
)
def test_what_is_not_rewritten(kind: Any, at: str, why: str) -> None:
    block, same = kind(), kind()
    report = nn.convert(block, example=X)
    assert report.fused == {} and report.unfused[at] == why and type(block) is kind
    counted = COUNTED
    close(step(block), step(same))
    assert COUNTED == counted + 2 * (kind is Counting)


def test_classes_that_look_at_those_derived_from_them() -> None:
    derived = []

    class Registered(Block):
        def __init_subclass__(cls) -> None:
            derived.append(cls)

        def __call__(self, x: mx.array) -> mx.array:
            return stock.sigmoid(self.norm(x))

    class Second(Registered):
        def __call__(self, x: mx.array) -> mx.array:
            return stock.sigmoid(self.more(super().__call__(x)))

    block = Second()
    assert set(nn.convert(block, example=X).fused) == {"more", "norm"} and derived == [Second]
    close(block(numbers(X)), Second()(numbers(X)))


class Mixed:
    """No module."""

    def acted(self: Any, x: mx.array) -> mx.array:
        return stock.sigmoid(self.norm(x))


class First(Block):
    _owner = _following = 3  # names of a user's

    def __call__(self, x: mx.array) -> mx.array:
        return stock.sigmoid(self.more(x)) * self._owner


class Second(Block):
    def __call__(self, x: mx.array) -> mx.array:
        return stock.silu(self.conv(x))


class Diamond(First, Second, Mixed):
    def __init__(self) -> None:
        super().__init__()
        self._following = 4

    def __call__(self, x: mx.array) -> mx.array:
        return self.acted(x) + super().__call__(x) + super(First, self).__call__(x) * self._following


def test_classes_with_several_bases() -> None:
    block, same = Diamond(), Diamond()
    fused = {"conv": "nn.silu", "more": "nn.sigmoid", "norm": "nn.sigmoid"}
    assert nn.convert(block, example=X).fused == nn.convert(block).fused == fused
    own = [kind for kind in type(block).__mro__ if not kind.__name__.startswith("_")]
    assert [kind for i, kind in enumerate(own) if kind in own[i + 1 :] or kind in Diamond.__mro__] == [*Diamond.__mro__]
    close(step(block), step(same))
    nn.convert(nn.Sequential(block, Block()), example=X)
    assert block._following == 4
    assert type(nn.revert(block)) is Diamond and block._following == 4


def test_names_that_classes_and_objects_both_have() -> None:
    class Default(Block):
        function = None

        def __call__(self, x: mx.array) -> mx.array:
            y = self.norm(x)
            return y if self.function is None else self.function(y)

    block, same = Default(), Default()
    assert nn.convert(block, example=X).fused == {"norm": "nn.sigmoid"} and type(block).function is None
    for each in (block, same):
        del each.function
        assert each.function is None and "function" not in vars(each)
    close(block(numbers(X)), same(numbers(X)))
    for each in (block, same):
        with pytest.raises(AttributeError):
            del each.function
        with pytest.raises(AttributeError):  # MLX's modules delete what is not theirs
            each.function = stock.Tanh()
        each.function = stock.tanh
    close(block(numbers(X)), same(numbers(X)))


def test_imports_and_builtins_in_rewritten_code() -> None:
    class Importing(Block):
        def __call__(self, x: mx.array) -> mx.array:
            from . import test_layers
            from .test_layers import close

            assert test_layers.close is close
            return stock.sigmoid(self.norm(x))

    assert nn.convert(Importing(), example=X).fused == {"norm": "nn.sigmoid"}
    imported = []

    def importing(name: str, *args: Any) -> Any:
        imported.append(name)
        return __import__(name, *args)

    code = """
class Special(Block):
    def __call__(self, x):
        import math
        assert special and math.pi > 3
        return stock.sigmoid(self.norm(x))
"""
    own = {**vars(builtins), "__import__": importing, "special": 7}
    space: dict[str, Any] = {"__builtins__": own, "__name__": "special", "Block": Block, "stock": stock}
    exec(code, space)
    assert nn.convert(space["Special"](), example=X).fused == {"norm": "nn.sigmoid"} and imported == ["math"]


def test_cells_that_code_writes() -> None:
    act = stock.sigmoid

    class Writing(Block):
        def __call__(self, x: mx.array) -> mx.array:
            nonlocal act
            y = act(self.norm(x)) + stock.silu(self.more(x))
            act = stock.tanh
            return y

    x = numbers(X)
    results = []
    for fused in (True, False):
        act, block = stock.sigmoid, Writing()
        if fused:
            assert nn.convert(block, example=X).fused == {"more": "nn.silu"}
            assert act == stock.tanh  # what the example wrote is not the model's
            act = stock.sigmoid
        results.append([block(x), block(x)])
        assert act == stock.tanh
    close(*results)


def test_cells_that_change_later() -> None:
    def made() -> Any:
        act, depth = stock.sigmoid, 0

        class Cells(Block):
            def __call__(self, x: mx.array) -> mx.array:
                nonlocal depth
                depth += 1
                return act(self.norm(x)) * depth

        def change(to: Any) -> None:
            nonlocal act
            act = to

        return Cells, change

    (kind, change), (other, also) = made(), made()
    block, same = kind(), other()
    assert nn.convert(block, example=X).fused == {"norm": "nn.sigmoid"}
    same(numbers(X))  # as often as the example counted
    same.norm = stock.BatchNorm(3)
    for to in (stock.silu, mx.square, stock.sigmoid):
        close(block(numbers(X)), same(numbers(X)))
        change(to)
        also(to)
    close(block(numbers(X)), same(numbers(X)))
