"""Parameters of kernels: a named record in Python, and a struct of the same name and fields in C++ and Metal.

A record is a NamedTuple in a family's ``params.py``, and its struct stands in ``metal/<family>/params.h``. Fields are
ints, `Unsigned`, floats, or records themselves. They travel as 32-bit words: to a GPU floats as float32, to the CPU as
float64, of two words each.
"""

from __future__ import annotations

import itertools
import struct
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NewType

Unsigned = NewType("Unsigned", int)  # 32 bits
_CODES = {int: "i", Unsigned: "I", float: "f"}
LARGEST = (2 - 2.0**-23) * 2.0**127  # the greatest float32

Words = Callable[[Any], tuple[int, ...]]


class Threadgroup(NamedTuple):
    """How many threads of a threadgroup stand side by side, and in how many rows."""

    width: int
    height: int


def fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """Name and type of each field of a record."""
    hints = typing.get_type_hints(kind)
    yield from ((name, hints[name]) for name in kind._fields)


def codes(kind: Any) -> str:
    """The types of a record's numbers, one after the other, as `struct` writes them; "f" is a real number."""
    return "".join(_CODES[of] if of in _CODES else codes(of) for _, of in fields(kind))


def for_gpu(record: Any) -> tuple[int, ...]:
    """The words of a record as a GPU kernel reads them; a number too large for a float32 becomes the largest.

    Example:
        >>> from mpsfunc.pooling.params import PoolParams
        >>> from mpsfunc.windows.placement import place
        >>> for_gpu(PoolParams(*place("avg_pool", (6, 4), 2)))
        (6, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 4, 2, 2, 2, 1, 0, 0, 0, 0, 2, 0)
    """
    return _GPU[type(record)](record)


def for_cpu(record: Any) -> tuple[int, ...]:
    """The words of a record as a CPU primitive reads them."""
    return _CPU[type(record)](record)


class _Known(dict[type, Words]):
    """How the words of each kind of record are made, found out when the first one comes."""

    def __init__(self, code: str, real: str) -> None:
        super().__init__()
        self._how = code, real

    def __missing__(self, kind: type) -> Words:
        self[kind] = _words(kind, *self._how)
        return self[kind]


_GPU = _Known("f", "max(-most, min({}, most))")
_CPU = _Known("d", "{}")


def _words(kind: Any, code: str, real: str) -> Words:
    """Makes words of a record and those inside it; compiled, since every call asks.

    Args:
        kind: The record.
        code: What `struct` calls a real number here.
        real: How one is written.
    """
    known: dict[str, Any] = {"most": LARGEST}

    def parts(of: Any, at: str) -> Iterator[tuple[str, str]]:
        for i, (_, inner) in enumerate(fields(of)):
            part = f"{at}[{i}]"
            if inner in _CODES:
                yield _CODES[inner], real.format(part) if inner is float else part
            elif set(codes(inner)) == {"i"} and all(leaf in _CODES for _, leaf in fields(inner)):
                yield "i", f"*{part}"
            else:
                yield from parts(inner, part)

    made = ""
    for are_ints, run in itertools.groupby(parts(kind, "r"), lambda part: part[0] == "i"):
        types, numbers = zip(*run, strict=True)
        if are_ints:  # words as they are
            made += "".join(f"{number}, " for number in numbers)
            continue
        numbers_of = struct.Struct("=" + "".join(types).replace("f", code))
        i = len(known)
        known |= {f"pack_{i}": numbers_of.pack, f"unpack_{i}": struct.Struct(f"={numbers_of.size // 4}i").unpack}
        made += f"*unpack_{i}(pack_{i}({', '.join(numbers)})), "
    compiled: Words = eval(f"lambda r: ({made})", known)
    return compiled
