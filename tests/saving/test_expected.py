"""`load` with the type that its tree must be of."""

from __future__ import annotations

import re
import sys
import typing
from pathlib import Path
from typing import Any, Literal, TypedDict

import mlx.core as mx
import pytest

import mpsfunc as mf
from mpsfunc.typing import Tree


class Settings(TypedDict):
    rate: float
    neuron: Literal["relu", "gelu"]
    label: str | None


class Saved(TypedDict):
    step: int
    settings: Settings
    params: dict[str, mx.array]
    pool: mf.AvgPoolState
    optimizer: Tree
    parts: tuple[list[int | str], ...]
    pair: tuple[bool, object]


STATE = mf.avg_pool_state((1, 4, 4, 1), 2)
RIGHT: dict[str, Any] = {
    "step": 7,
    "settings": {"rate": 1, "neuron": "relu", "label": None},
    "params": {"w": mx.ones(2)},
    "pool": STATE,
    "optimizer": {"step": mx.array(3), "all": [None, (1.5, {"b": True})]},
    "parts": ([1, "two"], []),
    "pair": (True, {"any": 1}),
}


def loaded(folder: Path, tree: object, expected: Any) -> Any:
    mf.save(folder / "file", tree)
    return mf.load(folder / "file", expected)


def test_a_tree_of_its_type_is_loaded(tmp_path: Path) -> None:
    saved = loaded(tmp_path, RIGHT, Saved)
    assert repr(saved) == repr(RIGHT) and list(saved) == list(RIGHT)


@pytest.mark.parametrize(
    ("tree", "kind"),
    [
        *[(3, int), (True, bool), (True, int), (3, float), (0.5, float), ("text", str), (STATE, mf.AvgPoolState)],
        *[([1, "a"], list), ((1,), tuple), ({"a": 1}, dict), ({}, dict[str, int]), ((), tuple[int, ...])],
        *[(STATE, tuple), (STATE, object), ([None], list[None]), ({"a": [1]}, dict[str, Any])],
        *[({"s": STATE, "n": [1]}, dict[str, Tree]), ([STATE, 1.5], list[Tree]), ({"s": STATE}, Tree)],
        *[(mf.Neuron("relu"), mf.Neuron), (mf.PaddingPolicy(), mf.PaddingPolicy), ([STATE], list[mf.AvgPoolState])],
    ],
)
def test_types_of_trees(tmp_path: Path, tree: object, kind: Any) -> None:
    assert loaded(tmp_path, tree, kind) == tree


@pytest.mark.parametrize(
    ("change", "place", "kind"),
    [
        ({"step": "7"}, "tree['step']='7'", "int"),
        ({"step": 7.0}, "tree['step']=7.0", "int"),
        (
            {"settings": {"rate": 0.1}},
            "tree['settings']={'rate': 0.1}",
            "Settings, a dict with 'rate', 'neuron', 'label'",
        ),
        (
            {"settings": {"rate": 0.1, "neuron": "elu", "label": None}},
            "tree['settings']['neuron']='elu'",
            "Literal['relu', 'gelu']",
        ),
        ({"params": {"w": mx.ones(2), "b": 0.0}}, "tree['params']['b']=0.0", "array"),
        ({"params": [mx.ones(2)]}, "tree['params']=[float32[2]]", "dict[str, mlx.core.array]"),
        ({"pool": tuple(STATE)}, "tree['pool']=('avg_pool', ", "AvgPoolState"),
        ({"parts": ([1], [None])}, "tree['parts'][1][0]=None", "int | str"),
        ({"parts": [[1]]}, "tree['parts']=[[1]]", "tuple[list[int | str], ...]"),
        ({"pair": (True, 1, 2)}, "tree['pair']=(True, 1, 2)", "tuple[bool, object]"),
        ({"pair": (1, 1)}, "tree['pair'][0]=1", "bool"),
        ({"more": 1}, "tree={'step': 7, ", "Saved, a dict with 'step', 'settings', "),
    ],
)
def test_another_tree_is_refused(tmp_path: Path, change: dict[str, Any], place: str, kind: str) -> None:
    start = f"^load: the file holds something else; got {re.escape(place)}"
    with pytest.raises(ValueError, match=f"{start}.*, expected {re.escape(kind)}"):
        loaded(tmp_path, RIGHT | change, Saved)


# Python 3.10 has no NotRequired of its own.
te: Any = typing if sys.version_info >= (3, 11) else pytest.importorskip("typing_extensions")


class Partly(te.TypedDict, total=False):
    a: te.Required[int]
    b: str


class Mostly(te.TypedDict):
    a: int
    b: te.NotRequired[str]


@pytest.mark.parametrize("kind", [Partly, Mostly])
def test_keys_that_need_not_be_there(tmp_path: Path, kind: Any) -> None:
    """Annotations are strings in this file, which Python does not look into."""
    for tree in ({"a": 1}, {"a": 1, "b": "text"}):
        assert loaded(tmp_path, tree, kind) == tree
    for tree in ({"b": "text"}, {}, {"a": "text"}, {"a": 1, "b": 2}, {"a": 1, "c": 2}):
        with pytest.raises(ValueError, match="^load: the file holds something else; got "):
            loaded(tmp_path, tree, kind)


@pytest.mark.parametrize("kind", [set, bytes, Path, 3, "int", mx.ones(2), list[set], dict[int, str], [int]])
def test_other_types_are_refused(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(TypeError, match="^load: this is no type of trees; got expected=.*, expected a TypedDict, "):
        loaded(tmp_path, [1], kind)
