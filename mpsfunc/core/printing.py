"""How states and bad arguments look: arrays by dtype and shape, since numbers fill pages and may not exist yet.

Only Python's own types, NumPy's numbers and a few more are printed as they print themselves, and what derives from
Python's as those. Of everything else the type is told, since what another ``__repr__`` does is not known: it may raise,
evaluate arrays or fill pages. So types are compared directly (``isinstance`` would ask for ``__class__``), and what
classes have is looked up past their metaclasses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import mlx.core as mx

from mpsfunc.core.numpy_later import np

_State = TypeVar("_State", bound=type)

_LONGEST = 200  # characters of an argument in an error
_LONGEST_FIELD = 400  # and of a state's field
_LONGEST_NAME = 80  # and of a class's name
_ENTRIES = 16  # of a container
_DEEPEST = 3  # containers in containers
_BITS = 512  # of an int that is printed digit by digit
_WORDED: list[type] = []  # classes of records that print in words


@functools.cache
def _as_they_are() -> tuple[type, ...]:
    import decimal  # like others in functions here: to import it takes long, and few calls print
    import pathlib as paths

    return (
        *(type(None), bool, float, complex, decimal.Decimal, mx.Dtype, mx.Device, mx.Stream),
        *(paths.PurePath, paths.PurePosixPath, paths.PureWindowsPath),
        *(paths.Path, paths.PosixPath, paths.WindowsPath),
        *(np.dtype(code).type for code in (*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "m", "M")),
    )


def printed(state: _State) -> _State:
    """Gives a class of states its printed forms."""
    state.__repr__ = line  # type: ignore[assignment]  # of any state, where the type says of a type
    state._repr_html_ = table  # type: ignore[attr-defined]  # which notebooks look for
    return state


def worded(words: Callable[[Any], str]) -> Callable[[_State], _State]:
    """Gives a class of records a printed form in words; those that have none, for which they are empty, have fields.

    Errors tell fields, since one of them is wrong.
    """

    def given(kind: _State) -> _State:
        def told(record: Any) -> str:
            try:
                said = words(record)
            except Exception:  # fields may be anything
                said = ""
            return f"{kind.__name__}({said})" if said else _short(record, _LONGEST_FIELD)

        kind.__repr__ = told  # type: ignore[assignment]  # of any record, where the type says of a type
        _WORDED.append(kind)
        return kind

    return given


def line(state: Any) -> str:
    """A state on one line."""
    return f"{type(state).__name__}({', '.join(f'{name}={value}' for name, value in _fields(state))})"


def table(state: Any) -> str:
    """A state as a table of HTML."""
    import html

    rows = (f"<tr><td>{name}</td><td><code>{html.escape(value)}</code></td></tr>" for name, value in _fields(state))
    return f"<table><caption>{type(state).__name__}</caption>{''.join(rows)}</table>"


def describe(value: Any) -> str:
    """A bad argument for an error: on one line, arrays as in states, and no longer than one can read.

    Nothing is evaluated, and neither methods nor properties of classes that are not known are called, so that an error
    about the value is the only one.

    Example:
        >>> describe((16**5000, [mx.zeros((2, 3))], range(3)))
        '(an int of 20001 bits, [float32[2, 3]], range(0, 3))'
    """
    return _short(value, _LONGEST)


def brief(text: str) -> str:
    """The start and the end of what is longer than one can read, such as the path of a file."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def name_of(kind: type) -> str:
    """A class's name, whatever its metaclass says."""
    name = _NAME(kind)
    return str.__getitem__(name, slice(_LONGEST_NAME)) + ("..." if str.__len__(name) > _LONGEST_NAME else "")


def a_kind(value: Any) -> str:
    """The name of a value's type, behind "a" or "an"."""
    name = name_of(type(value))
    return f"{'an' if name[:1] in tuple('aeiouAEIOU') or name == 'ndarray' else 'a'} {name}"


def _fields(state: Any) -> list[tuple[str, str]]:
    return [(name, _field(value)) for name, value in zip(state._fields, tuple.__iter__(state), strict=True)]


def _field(value: Any) -> str:
    return repr(value) if any(type(value) is kind for kind in _WORDED) else _short(value, _LONGEST_FIELD)


def _short(value: Any, longest: int) -> str:
    try:
        text = " ".join(_told(value, 0).split())
    except Exception:  # whatever it was, the error that is about the value has to be told
        return f"a value of type {name_of(type(value))}"
    return text if len(text) <= longest else f"{text[:longest]}..."


def _told(value: Any, depth: int) -> str:
    from fractions import Fraction

    kind = type(value)
    if issubclass(kind, mx.array):
        return f"{str(_DTYPE(value)).rpartition('.')[2]}{list(_SHAPE(value))}"
    if issubclass(kind, np.ndarray):
        return f"numpy.{str(np.ndarray.dtype.__get__(value))[:40]}{list(np.ndarray.shape.__get__(value))}"
    if any(kind is known for known in _as_they_are()):
        return repr(value)
    if issubclass(kind, int):
        return _int(int.__index__(value))
    if issubclass(kind, float):
        return float.__repr__(value)
    if issubclass(kind, str):
        return _text(str.__getitem__(value, slice(_LONGEST_FIELD)), str.__len__(value))
    if issubclass(kind, (bytes, bytearray)):
        own: Any = bytes if issubclass(kind, bytes) else bytearray
        return _text(own.__getitem__(value, slice(_LONGEST_FIELD)), own.__len__(value))
    if issubclass(kind, (list, tuple, dict, set, frozenset)):
        return _container(value, depth)
    if kind is range or kind is slice:
        parts: tuple[Any, ...] = (value.start, value.stop, value.step)
        parts = parts[:2] if kind is range and value.step == 1 else parts
        told_parts = ", ".join(_told(part, depth + 1) for part in parts) if depth < _DEEPEST else "..."
        return f"{kind.__name__}({told_parts})"
    if kind is Fraction:
        return f"Fraction({_int(value.numerator)}, {_int(value.denominator)})"
    if issubclass(kind, type):
        return f"the class {name_of(value)}"
    if kind is FunctionType or kind is BuiltinFunctionType:
        return f"the function {str.__str__(value.__name__)}"
    return f"a value of type {name_of(kind)}"


# As C has them: what a class or its metaclass puts in their place is not asked.
_NAME, _BASES, _OWN = (type.__dict__[name].__get__ for name in ("__name__", "__mro__", "__dict__"))
_DTYPE, _SHAPE = mx.array.dtype.__get__, mx.array.shape.__get__
_MARKS: tuple[tuple[Any, str, str], ...] = ((list, "[", "]"), (dict, "{", "}"), (set, "{", "}"), (frozenset, "{", "}"))


def _int(value: int) -> str:
    bits = value.bit_length()
    if bits <= _BITS:
        return repr(value)
    return f"{'an' if value > 0 else 'a negative'} int of {bits} bits"


def _text(start: Any, length: int) -> str:
    return repr(start) + ("..." if length > len(start) else "")


def _names(value: Any) -> tuple[str, ...]:
    """The fields of a NamedTuple; none of another tuple."""
    owners = (_OWN(base) for base in _BASES(type(value)))
    names = next((owner["_fields"] for owner in owners if "_fields" in owner), ())
    fits = type(names) is tuple and len(names) == tuple.__len__(value) and all(type(name) is str for name in names)
    return names if fits else ()


def _container(value: Any, depth: int) -> str:
    """By the methods of Python's own types, whatever a class that derives from one says."""
    kind = type(value)
    if issubclass(kind, tuple):
        names = _names(value)
        entries = list(itertools.islice(tuple.__iter__(value), _ENTRIES))
        if names:
            if depth >= _DEEPEST:
                return f"{name_of(kind)}(...)"
            pairs = zip(names, entries, strict=False)
            inner = ", ".join(f"{name}={_told(each, depth + 1)}" for name, each in pairs)
            return f"{name_of(kind)}({inner}{', ...' if len(names) > len(entries) else ''})"
        own: Any = tuple
        opened, closed = "(", ",)" if tuple.__len__(value) == 1 else ")"
    else:
        own, opened, closed = next(marks for marks in _MARKS if issubclass(kind, marks[0]))
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
