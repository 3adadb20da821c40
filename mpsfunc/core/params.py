"""Parameters of kernels: a named record in Python, and a struct of the same name and fields in C++ and Metal.

A record is a NamedTuple in a family's ``params.py``, and its struct stands in ``metal/<family>/params.h``. Fields are
ints, `Unsigned`, floats, or records themselves. They travel as 32-bit words: to a GPU floats as float32, to the CPU as
float64, of two words each.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NewType

import numpy as np

Unsigned = NewType("Unsigned", int)  # 32 bits
_CODES = {int: "i", Unsigned: "I", float: "f"}
_MOST = float(np.finfo(np.float32).max)

Words = Callable[[Any], tuple[int, ...]]
_GPU: dict[Any, Words] = {}
_CPU: dict[Any, Words] = {}


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
    kind = type(record)
    words = _GPU.get(kind) or _GPU.setdefault(kind, _for_gpu(kind))
    return words(record)


def for_cpu(record: Any) -> tuple[int, ...]:
    """The words of a record as a CPU primitive reads them."""
    kind = type(record)
    words = _CPU.get(kind) or _CPU.setdefault(kind, _for_cpu(kind))
    return words(record)


def _for_gpu(kind: Any) -> Words:
    flat, to_words = _flat(kind), _to_words(codes(kind))
    real = tuple(code == "f" for code in codes(kind))

    def words(record: Any) -> tuple[int, ...]:
        pairs = zip(flat(record), real, strict=True)
        return to_words(*(max(-_MOST, min(number, _MOST)) if is_real else number for number, is_real in pairs))

    return words if set(codes(kind)) - {"i"} else flat


def _for_cpu(kind: Any) -> Words:
    flat, to_words = _flat(kind), _to_words(codes(kind).replace("f", "d"))
    return (lambda record: to_words(*flat(record))) if set(codes(kind)) - {"i"} else flat


def _to_words(of: str) -> Callable[..., tuple[int, ...]]:
    packer = struct.Struct(f"={of}")
    return lambda *numbers: struct.unpack(f"={packer.size // 4}i", packer.pack(*numbers))


def _flat(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Makes one tuple of a record and those inside it; compiled, since every call asks."""

    def parts(of: Any, at: str) -> Iterator[str]:
        for i, (_, inner) in enumerate(fields(of)):
            if inner in _CODES:
                yield f"{at}[{i}]"
            elif all(leaf in _CODES for _, leaf in fields(inner)):
                yield f"*{at}[{i}]"
            else:
                yield from parts(inner, f"{at}[{i}]")

    made: Callable[[Any], tuple[Any, ...]] = eval(f"lambda r: ({''.join(part + ', ' for part in parts(kind, 'r'))})")
    return made
