"""Copies and pickles of layers that hold functions of MLX, which neither ``copy.deepcopy`` nor ``pickle`` takes."""

from __future__ import annotations

from typing import Any, NamedTuple

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
        attributes, items = ({name: _named(each) for name, each in held.items()} for held in (vars(self), _items(self)))
        return _empty, (type(self),), (attributes, items)

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        attributes, items = ({name: _found(each) for name, each in held.items()} for held in state)
        vars(self).update(attributes)
        dict.update(self, items)  # type: ignore[call-overload]  # a module is a dict


class _Function(NamedTuple):
    """A function of MLX."""

    of_nn: bool
    name: str


def _empty(kind: Any) -> Any:
    return kind.__new__(kind)


def _items(layer: Any) -> dict[str, Any]:
    return dict(layer)


def _named(held: Any) -> Any:
    """A function of MLX, or a list with some, by name; what else there is stays the object that it is."""
    if type(held) is list:
        named = list(map(_named, held))
        return named if any(one is not other for one, other in zip(named, held, strict=True)) else held
    if callable(held) and isinstance(name := getattr(held, "__name__", None), str):
        for of_nn, module in ((False, mx), (True, stock)):
            if getattr(module, name, None) is held:
                return _Function(of_nn, name)
    return held


def _found(held: Any) -> Any:
    """What was named."""
    if type(held) is list and any(isinstance(each, _Function) for each in held):
        return list(map(_found, held))
    return getattr(stock if held.of_nn else mx, held.name) if isinstance(held, _Function) else held
