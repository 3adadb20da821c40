"""Numbers, names and sequences of all kinds as Python's own.

They are told by their types alone: an array in the place of one is not evaluated, and of a class that derives from
Python's or NumPy's no method is called but theirs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_Kind = TypeVar("_Kind")


def is_a(value: Any, kinds: type[_Kind] | tuple[type[_Kind], ...]) -> TypeIs[_Kind]:
    """`isinstance`, which would ask the value for its ``__class__``, too."""
    kind = type(value)
    return kind is kinds or issubclass(kind, kinds)


_OWN = {kind for kind in np.sctypeDict.values() if kind is not np.object_}


def is_derived(value: Any) -> bool:
    """Whether a class derives from Python's or NumPy's, so that nobody knows what its values answer."""
    kind = type(value)
    if kind is int or kind is str or kind is float or kind is bool:  # nearly every field
        return False
    return issubclass(kind, (int, float, str, np.generic)) and not any(kind is own for own in _OWN)


def whole(value: Any) -> int | None:
    """An int, Python's or NumPy's, as Python's; None for everything else, True, False and spans of time among it."""
    if type(value) is int:  # nearly every call
        return value
    kind = type(value)
    if issubclass(kind, np.integer):
        # NumPy derives spans of time from its ints.
        return None if issubclass(kind, np.timedelta64) else int(np.generic.item(value))
    return int.__index__(value) if issubclass(kind, int) and kind is not bool else None


def real(value: Any) -> float | int | None:
    """An int or a float, Python's or NumPy's, as Python's; None for everything else, True and False among it."""
    if type(value) is float:
        return value
    kind = type(value)
    if issubclass(kind, np.floating):
        item = np.generic.item(value)
        made = float(item)
        return int(item) if math.isinf(made) and not np.isinf(item) else made  # a longdouble past all floats is whole
    return float.__float__(value) if issubclass(kind, float) else whole(value)


def text(value: Any) -> str | None:
    """A string; None for everything else."""
    if type(value) is str:
        return value
    return str.__str__(value) if issubclass(type(value), str) else None


def entries(value: Any) -> tuple[Any, ...] | None:
    """What a list or a tuple holds; None for everything else."""
    if type(value) is tuple:
        return value
    kind = type(value)
    if issubclass(kind, tuple):
        return tuple(tuple.__iter__(value))
    return tuple(list.__iter__(value)) if issubclass(kind, list) else None
