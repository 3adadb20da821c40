"""Copying and pickling layers that contain functions of MLX, which ``copy.deepcopy`` and ``pickle`` do not support."""

from __future__ import annotations

import functools
from typing import Any

import mlx.core as mx
import mlx.nn as stock


class Copied:
    """A layer whose functions of MLX, in attributes and in lists, are copied and pickled by their names."""

    def __copy__(self) -> Any:
        """Shares all that it holds, as a copy of MLX's layer does."""
        other = _empty(type(self))
        other.__setstate__((vars(self), _items(self)))
        return other

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        attributes, items = ({name: named(each) for name, each in held.items()} for held in (vars(self), _items(self)))
        return _empty, (type(self),), (attributes, items)

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        attributes, items = state
        vars(self).update(attributes)
        dict.update(self, items)  # type: ignore[call-overload]  # a module is a dict


class Named:
    """Stands for a function of MLX, or a partial of one, and is copied and pickled to it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        if type(self.value) is functools.partial:
            return _partial, (Named(self.value.func), self.value.args, self.value.keywords)
        return _function, _name(self.value)


def named(held: Any) -> Any:
    """Stands for a function of MLX, or a list with some; what else there is stays the object that it is."""
    if type(held) is list:
        each_named = list(map(named, held))
        return each_named if any(one is not other for one, other in zip(each_named, held, strict=True)) else held
    return Named(held) if _name(held.func if type(held) is functools.partial else held) else held


def unnamed(held: Any) -> Any:
    """The function that was named, where nothing has copied it."""
    if type(held) is list and any(type(each) is Named for each in held):
        return list(map(unnamed, held))
    return held.value if type(held) is Named else held


def _name(held: Any) -> tuple[Any, ...]:
    """Whether a function is of ``mlx.nn``, and its name there or in ``mlx.core``; nothing if it is in neither."""
    if callable(held) and isinstance(name := getattr(held, "__name__", None), str):
        for of_nn, module in ((False, mx), (True, stock)):
            if getattr(module, name, None) is held:
                return of_nn, name
    return ()


def _function(of_nn: bool, name: str) -> Any:
    return getattr(stock if of_nn else mx, name)


def _partial(function: Any, args: Any, kwargs: Any) -> Any:
    return functools.partial(function, *args, **kwargs)


def _empty(kind: Any) -> Any:
    return kind.__new__(kind)


def _items(layer: Any) -> dict[str, Any]:
    return dict(layer)
