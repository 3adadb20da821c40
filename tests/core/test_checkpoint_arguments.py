"""What `checkpoint` refuses: arrays where it cannot follow them would have no gradients."""

from __future__ import annotations

import functools
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from support.checkpoint_case import X
from support.hostile import HOSTILE

import mpsfunc as mf

pytestmark = pytest.mark.usefixtures("on_cpu")


@dataclass
class Batch:
    x: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Own:
    def __init__(self, x: Any) -> None:
        self.x = x


class Kind(Enum):
    ONE = 1


class Named(dict[str, Any]):
    pass


def boxed(x: Any) -> Any:
    made = np.empty((1, 2), object)
    made[0, 1] = x
    return made


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "deque": lambda x: deque([x]),
    "mappingproxy": lambda x: MappingProxyType({"x": x}),
    "UserDict": lambda x: UserDict(x=x),
    "SimpleNamespace": lambda x: SimpleNamespace(x=x),
    "Batch": Batch,
    "Slotted": Slotted,
    "Own": Own,
    "set": lambda x: {x},
    "frozenset": lambda x: frozenset([x]),
    "dict_values": lambda x: {"x": x}.values(),
    "ndarray": boxed,
}
EMPTY: dict[str, Callable[[], Any]] = {
    "generator": lambda: (x for x in [1]),
    "list_iterator": lambda: iter([1.0]),
    "map": lambda: map(abs, [1]),
    "OrderedDict": OrderedDict,
    "Named": Named,
}


def run_by(module: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return functools.partial(mf.nn.checkpoint, stock.Linear(1, 1)) if module else mf.checkpoint


@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
@pytest.mark.parametrize("kind", [*HOLDERS, *EMPTY])
def test_arrays_in_other_objects_are_refused(kind: str, module: bool) -> None:
    checkpoint = run_by(module)
    said = f"^checkpoint: {{}} holds a collection or object .*; got an? {kind}, expected arrays in lists"
    within: list[Callable[[Any], Any]] = [lambda held: held, lambda held: [{"a": (1, held)}]]
    if kind in HOLDERS:
        within.append(lambda held: deque([[Own((held,))]]))
    for wrap in within:
        holder = (lambda x: HOLDERS[kind](x)) if kind in HOLDERS else lambda x: EMPTY[kind]()
        outer = said.replace(kind, r"\w+")
        with pytest.raises(TypeError, match=outer.format("an argument")):
            mx.grad(lambda x, w=wrap, h=holder: checkpoint(lambda held: X.sum())(w(h(x))))(X)
        with pytest.raises(TypeError, match=outer.format("the result")):
            checkpoint(lambda x, w=wrap, h=holder: w(h(x)))(X)
    with pytest.raises(TypeError, match=said.format("an argument")):
        checkpoint(lambda held: X)(named=holder(X))


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_holds_no_arrays_is_handed_through(kind: str) -> None:
    for inner in ("text", mx.float32, Kind.ONE, np.ones(2)[0], (1, mx.add)):
        held = HOLDERS[kind](inner)
        assert mf.checkpoint(lambda x, h: [x, h])(X, held)[1] is held


@pytest.mark.parametrize(
    "value",
    [None, 3, 1j, b"b", Kind.ONE, np.float32(1), np.ones(3), mx.float16, mx.Device(mx.cpu), Batch, lambda: X, object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_collection_is_handed_through(value: Any) -> None:
    assert mf.checkpoint(lambda x, v, w: [x, v, w])(X, value, w=value)[1:] == [value, value]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_of_an_argument_is_called(hostile: str) -> None:
    value = HOSTILE[hostile]()
    for given in (value, [value], deque([value])):
        try:
            mf.checkpoint(lambda x, held: x)(X, given)
        except (TypeError, ValueError) as error:
            assert str(error).startswith("checkpoint: an argument ")


def nested(levels: int) -> Any:
    made: Any = X
    for at in range(levels):
        made = ([made], (made,), {"a": made})[at % 3]
    return made


@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
def test_trees_that_are_too_deep_or_hold_themselves(module: bool) -> None:
    checkpoint = run_by(module)
    round_and_round: list[Any] = []
    round_and_round += [round_and_round, round_and_round]
    for tree in (nested(101), nested(3000), round_and_round):
        with pytest.raises(ValueError, match="^checkpoint: an argument is nested too deep; got .*at most 100 levels"):
            checkpoint(lambda tree: X)(tree)
        with pytest.raises(ValueError, match="^checkpoint: the result is nested too deep; got .*at most 100 levels"):
            checkpoint(lambda x, tree=tree: tree)(X)
    assert isinstance(checkpoint(lambda tree: tree)(nested(100)), list)


def test_changes_of_arguments_are_lost() -> None:
    """As the docstring says, with or without derivatives."""
    items, names = [X], {"x": X}

    def function(items: list[Any], names: dict[str, Any]) -> mx.array:
        items.append(1)
        names["y"] = 2
        total: mx.array = (items[0] * names["x"]).sum()
        return total

    mx.grad(lambda x: mf.checkpoint(function)(items, names | {"x": x}))(X)
    mf.checkpoint(function)(items, names)
    assert len(items) == 1 and list(names) == ["x"]
