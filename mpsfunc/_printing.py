"""How states and bad arguments look: arrays by dtype and shape, since numbers fill pages and may not exist yet.

Only Python's own types, NumPy's numbers and a few more are printed as they print themselves. Of everything else the
type is told, since what a stranger's ``__repr__`` does is not known: it may raise, evaluate arrays or fill pages.
"""

from __future__ import annotations

import html
import itertools
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

_State = TypeVar("_State", bound=type)

_LONGEST = 200  # characters of an argument in an error
_LONGEST_FIELD = 400  # and of a state's field
_ENTRIES = 16  # of a container
_DEEPEST = 3  # containers in containers
_BITS = 512  # of an int that is printed digit by digit

_AS_THEY_ARE = (
    type(None),
    bool,
    float,
    complex,
    np.number,
    np.bool_,
    Decimal,
    PurePath,
    mx.Dtype,
    mx.Device,
    mx.Stream,
)


def printed(state: _State) -> _State:
    """Gives a class of states its printed forms."""
    state.__repr__ = line  # type: ignore[assignment]  # of any state, where the type says of a type
    state._repr_html_ = table  # type: ignore[attr-defined]  # which notebooks look for
    return state


def line(state: Any) -> str:
    """A state on one line."""
    return f"{type(state).__name__}({', '.join(f'{name}={value}' for name, value in _fields(state))})"


def table(state: Any) -> str:
    """A state as a table of HTML."""
    rows = (f"<tr><td>{name}</td><td><code>{html.escape(value)}</code></td></tr>" for name, value in _fields(state))
    return f"<table><caption>{type(state).__name__}</caption>{''.join(rows)}</table>"


def told(value: Any) -> str:
    """A bad argument for an error: on one line, arrays as in states, and no longer than one can read.

    Nothing is evaluated, and nothing that belongs to the value is called, so that an error about it is the only one.

    Example:
        >>> told((16**5000, [mx.zeros((2, 3))], range(3)))
        '(an int of 20001 bits, [float32[2, 3]], range(0, 3))'
    """
    return _short(value, _LONGEST)


def a_kind(value: Any) -> str:
    """The name of its type behind "a" or "an"."""
    name = type.__getattribute__(type(value), "__name__")
    return f"{'an' if name[:1] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def _fields(state: Any) -> list[tuple[str, str]]:
    return [
        (name, _short(value, _LONGEST_FIELD)) for name, value in zip(state._fields, tuple.__iter__(state), strict=True)
    ]


def _short(value: Any, longest: int) -> str:
    text = " ".join(_told(value, 0).split())
    return text if len(text) <= longest else f"{text[:longest]}..."


def _told(value: Any, depth: int) -> str:
    kind = type(value)
    if isinstance(value, mx.array):
        return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"numpy.{str(np.ndarray.dtype.__get__(value))[:40]}{list(np.ndarray.shape.__get__(value))}"
    if isinstance(value, int) and kind is not bool:
        return _int(int.__index__(value))
    if kind in _AS_THEY_ARE or (isinstance(value, _AS_THEY_ARE) and kind.__module__ in _KNOWN):
        return repr(value)
    if isinstance(value, str):
        return _text(str.__getitem__(value, slice(_LONGEST_FIELD)), str.__len__(value))
    if isinstance(value, (bytes, bytearray)):
        own: Any = bytes if isinstance(value, bytes) else bytearray
        return _text(own.__getitem__(value, slice(_LONGEST_FIELD)), own.__len__(value))
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _container(value, depth)
    if kind is range or kind is slice:
        parts: tuple[Any, ...] = (value.start, value.stop, value.step)
        parts = parts[:2] if kind is range and value.step == 1 else parts
        return f"{kind.__name__}({', '.join(_told(part, depth + 1) for part in parts)})"
    if kind is Fraction:
        return f"Fraction({_int(value.numerator)}, {_int(value.denominator)})"
    if isinstance(value, type):
        return f"the class {type.__getattribute__(value, '__name__')}"
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return f"the function {value.__name__}"
    return f"a value of type {type.__getattribute__(kind, '__name__')}"


_KNOWN = frozenset(("builtins", "numpy", "decimal", "pathlib", "pathlib._local", "mlx.core"))
_MARKS: tuple[tuple[Any, str, str], ...] = ((list, "[", "]"), (dict, "{", "}"), (set, "{", "}"), (frozenset, "{", "}"))


def _int(value: int) -> str:
    bits = value.bit_length()
    if bits <= _BITS:
        return repr(value)
    return f"{'an' if value > 0 else 'a negative'} int of {bits} bits"


def _text(start: Any, length: int) -> str:
    return repr(start) + ("..." if length > len(start) else "")


def _container(value: Any, depth: int) -> str:
    """By the methods of Python's own types, whatever a class that derives from one says."""
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", ()) if type(value) is not tuple else ()
        entries = list(itertools.islice(tuple.__iter__(value), _ENTRIES))
        if type(names) is tuple and len(names) == tuple.__len__(value) and names and set(map(type, names)) == {str}:
            if depth >= _DEEPEST:
                return f"{type(value).__name__}(...)"
            pairs = zip(names, entries, strict=False)
            inner = ", ".join(f"{name}={_told(each, depth + 1)}" for name, each in pairs)
            return f"{type(value).__name__}({inner}{', ...' if len(names) > len(entries) else ''})"
        own: Any = tuple
        opened, closed = "(", ",)" if tuple.__len__(value) == 1 else ")"
    else:
        own, opened, closed = next(marks for marks in _MARKS if isinstance(value, marks[0]))
        each_of = dict.items(value) if own is dict else own.__iter__(value)
        entries = list(itertools.islice(each_of, _ENTRIES))
    length = own.__len__(value)
    if length == 0:
        return "set()" if own in (set, frozenset) else f"{opened}{closed}"
    if depth >= _DEEPEST:
        return f"{opened}...{closed}"
    if own is dict:
        made = [f"{_told(k, depth + 1)}: {_told(v, depth + 1)}" for k, v in entries]
    else:
        made = [_told(each, depth + 1) for each in entries]
    return f"{opened}{', '.join(made)}{', ...' if length > len(made) else ''}{closed}"
