"""Whether a tree is of the type that somebody expects."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import mlx.core as mx

from mpsfunc.core.arguments import text
from mpsfunc.core.printing import brief, describe, name_of
from mpsfunc.saving.trees import RECORDS, Path, Tree, place

_Tree = TypeVar("_Tree")

_CLASSES = {*RECORDS.values(), mx.array, bool, int, float, str, list, tuple, dict, object, NoneType}
_RULE = "a TypedDict, a class of what files hold, object, or list[...], tuple[...] or dict[str, ...] of such"


def checked(tree: Any, kind: type[_Tree]) -> _Tree:
    """The tree, if it is of a type; it is looked through as deep as the type says."""
    wrong = _wrong(tree, kind, ())
    if wrong:
        raise ValueError(f"load: the file holds something else; got {wrong}")
    right: _Tree = tree
    return right


def _wrong(value: Any, kind: Any, path: Path) -> str:
    """What is not of its type, and that; empty if all is."""
    origin = get_origin(kind)
    # In the parts of trees.Tree its name stands for it.
    if kind is Any or kind == Tree or text(getattr(kind, "__forward_arg__", kind)) == "Tree":
        fits = True
    elif origin is Union or origin is UnionType:
        fits = not all(_wrong(value, each, path) for each in get_args(kind))
    elif origin is Literal:
        fits = any(type(value) is type(each) and value == each for each in get_args(kind))
    elif kind is None:
        fits = value is None
    elif isinstance(kind, type) and kind in _CLASSES:
        # A type checker takes an int for a float, too.
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    else:
        kinds = _kinds(value, kind)
        if kinds is not None:
            each = (_wrong(value[at], of, (*path, (f"[{describe(at)}]", ""))) for at, of in kinds.items())
            return next(filter(None, each), "")
        fits = False
    return "" if fits else f"{place(path)}={describe(value)}, expected {shown(kind)}"


def _kinds(value: Any, kind: Any) -> dict[Any, Any] | None:
    """The types of the parts of a list, a tuple or a dict; None where it is no such value."""
    if _is_typed_dict(kind):
        hints, required = _keys(kind)
        fits = type(value) is dict and required <= value.keys() <= hints.keys()
        return {key: hints[key] for key in value} if fits else None
    origin, of = get_origin(kind), get_args(kind)
    if origin is dict and of[0] is str:
        return dict.fromkeys(value, of[1]) if type(value) is dict else None
    if origin is list:
        return dict.fromkeys(range(len(value)), of[0]) if type(value) is list else None
    if origin is tuple:
        of = of[:1] * len(value) if of[1:] == (...,) and type(value) is tuple else of
        return dict(enumerate(of)) if type(value) is tuple and len(value) == len(of) else None
    raise TypeError(f"load: this is no type of trees; got expected={shown(kind)}, expected {_RULE}")


def _is_typed_dict(kind: Any) -> bool:
    """Of typing or of typing_extensions, which Python's own `is_typeddict` does not know."""
    return isinstance(kind, type) and hasattr(kind, "__required_keys__") and hasattr(kind, "__total__")


def _keys(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """The types of a TypedDict's keys, and those that must be there, also where its annotations are strings."""
    hints, required = get_type_hints(kind, include_extras=True), set(kind.__required_keys__)
    for key, hint in hints.items():
        marker = getattr(get_origin(hint), "_name", "")
        if marker in ("Required", "NotRequired"):
            hints[key] = get_args(hint)[0]
            (required.add if marker == "Required" else required.discard)(key)
    return hints, required


def shown(kind: Any) -> str:
    """A type for errors."""
    if _is_typed_dict(kind):
        return f"{name_of(kind)}, a dict with {', '.join(map(describe, get_type_hints(kind)))}"
    if isinstance(kind, type) and get_origin(kind) is None:
        return name_of(kind)
    return brief(str(kind).replace("typing.", "")) if get_origin(kind) else describe(kind)
