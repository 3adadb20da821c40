"""Every public function with right arguments, and values that are right for hardly any argument.

generic/test_bad_calls.py puts each of them in the place of each argument.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np
from generic.ops import OPS

import mpsfunc as mf
from support import numbers

X = numbers((2, 6, 5, 4))
_STATE = mf.conv_state(X.shape, (6, 3, 3, 4))
# What is no operation, and so has no samples.
_OTHERS: dict[str, dict[str, Any]] = {
    "checkpoint": {"function": mx.abs},
    "set_num_threads": {"count": mf.get_num_threads()},
}
FUNCTIONS = {
    name: getattr(mf, name) for name in OPS if name not in ("get_num_threads", "save", "load", "export", "exported")
}


@functools.cache
def good(name: str) -> Mapping[str, Any]:
    """Right arguments of a function by their names: of its plain sample, in float32."""
    found = _OTHERS[name] if name in _OTHERS else OPS[name].plain_sample().named_arguments(mx.float32)
    return MappingProxyType(found)


@functools.cache
def parameters(name: str) -> list[str]:
    """What a function takes, but for ``stream``, whose errors name no function."""
    signature = inspect.signature(FUNCTIONS[name])
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in signature.parameters.values() if p.kind in kinds and p.name != "stream"]


# Strangers ----------------------------------------------------------------------------------------------


class Raises:
    """All that one may be asked raises what is no error about an argument."""

    def _no(self, *_: object) -> NoReturn:
        raise RuntimeError("a stranger's method was called")

    __repr__ = __str__ = __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__ = _no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __contains__ = _no
    __hash__ = None


class RaisingInt(int):
    """An int that raises where it is asked through its class."""

    __repr__ = __str__ = __index__ = __int__ = __float__ = __bool__ = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = Raises._no
    __hash__ = None


class RaisingText(str):
    """A str that does."""

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = Raises._no
    __contains__ = __getitem__ = __format__ = __add__ = __mod__ = Raises._no
    startswith = endswith = lower = split = encode = Raises._no


class RaisingFloat(float):
    """A float that does."""

    __repr__ = __str__ = __int__ = __float__ = __bool__ = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingList(list[Any]):
    """A list that does."""

    __repr__ = __len__ = __iter__ = __eq__ = __bool__ = Raises._no
    __contains__ = __getitem__ = __add__ = Raises._no
    __hash__ = None


class RaisingTuple(tuple[Any, ...]):
    """A tuple that does."""

    __repr__ = __len__ = __iter__ = __eq__ = __bool__ = __hash__ = Raises._no
    __contains__ = __getitem__ = __add__ = Raises._no


class RaisingNumPyInt(np.int64):
    """An int of NumPy that does."""

    __repr__ = __str__ = __int__ = __index__ = __float__ = __bool__ = item = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingNumPyFloat(np.float64):
    """A float of NumPy that does."""

    __repr__ = __str__ = __int__ = __float__ = __bool__ = item = Raises._no
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Raises._no


class RaisingClass:
    """What `isinstance` asks for raises."""

    __class__ = property(Raises._no)


class _RaisingMeta(type):
    _fields = __name__ = __mro__ = property(Raises._no)
    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __repr__ = Raises._no


def odd_classes() -> tuple[Any, Any]:
    """A tuple's class that raises when it is asked itself, and a float's without a module; doctest asks every class."""

    class RaisingFields(tuple[Any, ...], metaclass=_RaisingMeta):
        pass

    class NoModule(float):
        __module__ = []

    return RaisingFields, NoModule


def _loop() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


HUGE = 16**5000
# Made anew for every call: a generator is spent after one.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "a huge int": lambda: HUGE,
    "a huge negative int": lambda: -HUGE,
    "2**63": lambda: 2**63,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "nan": lambda: float("nan"),
    "1e308": lambda: 1e308,
    "complex": lambda: 1 + 2j,
    "Decimal": lambda: Decimal("1.5"),
    "Fraction": lambda: Fraction(1, 3),
    "np.bool": lambda: np.True_,
    "np.float16": lambda: np.float16(1),
    "np.longdouble": lambda: np.longdouble("1e400"),
    "np.nan": lambda: np.float32("nan"),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.int8": lambda: np.int8(-3),
    "np.datetime": lambda: np.datetime64("2020-01-01"),
    "seconds": lambda: np.timedelta64(2, "s"),
    "NaT": lambda: np.timedelta64("NaT", "s"),
    "text": lambda: "nothing of the kind",
    "empty text": lambda: "",
    "long text": lambda: "a\n" * 10**5,
    "a surrogate": lambda: "\ud800",
    "NUL": lambda: "a\0b",
    "bytes": lambda: b"zero",
    "dict": lambda: {1: 2, "a": X},
    "set": lambda: {1, 2},
    "generator": lambda: (i for i in (1, 2)),
    "range": lambda: range(2),
    "empty list": lambda: [],
    "nested": lambda: [[[[[[X]]]]]],
    "long list": lambda: [HUGE] * 10**4,
    "loop": _loop,
    "huge pair": lambda: (HUGE, -HUGE),
    "pair of arrays": lambda: [mx.array(1), mx.array(2)],
    "four huge": lambda: (HUGE, 2, 2, HUGE),
    "shape of floats": lambda: (1.0, 2.0, 3.0, 4.0),
    "shape of NumPy": lambda: tuple(np.array((2, 6, 5, 4))),
    "shape of bools": lambda: (True, True, True, True),
    "shape of arrays": lambda: [mx.array(2)] * 4,
    "array": lambda: X,
    "int array": lambda: mx.array(2),
    "empty array": lambda: mx.zeros((0,)),
    "vector": lambda: mx.ones(4),
    "complex array": lambda: mx.zeros((2, 6, 5, 4), mx.complex64),
    "np.ndarray": lambda: np.ones((2, 6, 5, 4)),
    "np scalar array": lambda: np.array(2),
    "np objects": lambda: np.array([Raises(), None], object),
    "a type": lambda: int,
    "a function": lambda: len,
    "a dtype": lambda: mx.int32,
    "np dtype": lambda: np.float32,
    "raises": Raises,
    "raising int": lambda: RaisingInt(2),
    "raising text": lambda: RaisingText("zero"),
    "raising pair": lambda: (Raises(), Raises()),
    "raising list": lambda: RaisingList([2, 2]),
    "raising list of four": lambda: RaisingList([2, 6, 5, 4]),
    "raising tuple": lambda: RaisingTuple((2, RaisingInt(2))),
    "raising float": lambda: RaisingFloat(0.5),
    "raising np.int64": lambda: RaisingNumPyInt(2),
    "raising np.float64": lambda: RaisingNumPyFloat(0.5),
    "raising class": RaisingClass,
    "raising fields": lambda: odd_classes()[0]((1, 2)),
    "no module": lambda: odd_classes()[1](0.5),
    "policy": lambda: mf.PaddingPolicy(exclude_edges=1),  # type: ignore[arg-type]
    "policy of arrays": lambda: mf.PaddingPolicy(X, Raises(), [X]),  # type: ignore[arg-type]
    "neuron": lambda: mf.Neuron("relu", HUGE),
    "neuron of arrays": lambda: mf.Neuron("linear", X, Raises()),  # type: ignore[arg-type]
    "no neuron": lambda: mf.Neuron(X),  # type: ignore[arg-type]
    "state": lambda: _STATE,
    "torn state": lambda: _STATE._replace(groups=Raises(), rows=None),
}


# The rule -----------------------------------------------------------------------------------------------

SENTENCE = re.compile(r"(?s)[^;]+: [^;]+; got .+, expected .+")
LONGEST = 700


def names(name: str) -> tuple[str, ...]:
    """What errors of a function may call it: with or without a state, it is one operation."""
    return name, name.removesuffix("_fwd")


def fault(name: str, call: Callable[[], Any]) -> str:
    """What is wrong with how a call ends: nothing, if it returns or refuses in our words."""
    try:
        call()
    except (TypeError, ValueError) as error:
        text = str(error)
        if not text.startswith(tuple(f"{known}: " for known in names(name))):
            return f"names no {name}: {text[:LONGEST]}"
        if not SENTENCE.fullmatch(text) or text.count("; got ") != 1:
            return f"not in the grammar: {text[:LONGEST]}"
        if len(text) > LONGEST or "\n" in text or "array(" in text:
            return f"too long, or with numbers of an array: {text[:LONGEST]}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:LONGEST]}"
    return ""


def single() -> Iterator[tuple[str, str, str]]:
    """Each function, argument and hostile value."""
    for name in FUNCTIONS:
        for argument in parameters(name):
            for hostile in HOSTILE:
                yield name, argument, hostile
