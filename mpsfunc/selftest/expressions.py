"""Calls of public functions as data: what is called, on which arrays, with which settings; JSON can hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import mlx.core as mx

import mpsfunc as mf

SETTINGS = ("Neuron", "PaddingPolicy")  # what a call of these makes is no state

Kind = Literal["numbers", "positive", "shares", "bools", "bytes"]


class Array(NamedTuple):
    """An array whose values whoever runs the call draws.

    Fields:
        shape: Its shape.
        of: "numbers" of either sign, "positive" ones, not near 0, or "shares" between 0 and 1, in the dtype of the
            run; "bools", or "bytes", which are uint8.
        wide: Whether it is in the accumulator's dtype, float32 or float64.
        moves: Whether derivatives are asked for with respect to it; those of bools and bytes are not.
    """

    shape: tuple[int, ...]
    of: Kind = "numbers"
    wide: bool = False
    moves: bool = True

    def dtype(self, of_run: mx.Dtype) -> mx.Dtype:
        """What it is drawn in."""
        if self.of in ("bools", "bytes"):
            return mx.bool_ if self.of == "bools" else mx.uint8
        return mx.float32 if self.wide and of_run != mx.float64 else of_run

    @property
    def argument(self) -> bool:
        """Whether it is an argument of the call as a function of arrays."""
        return self.moves and self.of not in ("bools", "bytes")


class Fixed(NamedTuple):
    """An array of values that are given; without a dtype, in that of the run."""

    values: Any
    dtype: str = ""


class DtypeOfRun(NamedTuple):
    """Stands for the dtype of the run."""


class Call(NamedTuple):
    """A public function or class by its name, and its arguments, among which may be calls.

    Fields:
        function: The name, under mpsfunc.
        args: What goes by position.
        how: What goes by name.
        take: Which part of the result is meant, such as 1 for the state of ``(y, state)``. Default: all of it.
    """

    function: str
    args: tuple[Any, ...] = ()
    how: dict[str, Any] = {}
    take: int | None = None


def arrays(value: Any) -> Iterator[Array]:
    """The arrays of a call that are its arguments, in the order in which it names them."""
    if isinstance(value, Array):
        if value.argument:
            yield value
    elif isinstance(value, Call):
        for each in (*value.args, *value.how.values()):
            yield from arrays(each)
    elif isinstance(value, tuple | list) and not isinstance(value, Fixed):
        for each in value:
            yield from arrays(each)


def resolved(value: Any, draw: Callable[[Array], Any], fix: Callable[[Fixed], Any], run: Any, called: Any) -> Any:
    """A call with something in place of each array, ``run`` for the dtype, and ``called`` made of each call in it."""
    if isinstance(value, Array):
        return draw(value)
    if isinstance(value, Fixed):
        return fix(value)
    if isinstance(value, DtypeOfRun):
        return run
    if isinstance(value, Call):
        args = tuple(resolved(each, draw, fix, run, called) for each in value.args)
        how = {name: resolved(each, draw, fix, run, called) for name, each in value.how.items()}
        return called(value._replace(args=args, how=how))
    if type(value) in (tuple, list):
        return type(value)(resolved(each, draw, fix, run, called) for each in value)
    return value


def arguments(
    value: Call, draw: Callable[[Array], mx.array], dtype: mx.Dtype, made: Iterator[Any] | None = None
) -> Call:
    """A call whose arguments are what they stand for.

    Args:
        value: The call.
        draw: Makes the arrays, in the order in which the call names them.
        dtype: Of the run.
        made: The states that the calls among its arguments returned already. Default: they are run.

    Returns:
        The same call with arrays and states.
    """

    def fix(given: Fixed) -> mx.array:
        return mx.array(given.values, getattr(mx, given.dtype) if given.dtype else dtype)

    def argument(each: Any) -> Any:
        if made is not None and isinstance(each, Call) and each.function not in SETTINGS:
            return next(made)
        return resolved(each, draw, fix, dtype, _called)

    args = tuple(map(argument, value.args))
    return value._replace(args=args, how={name: argument(each) for name, each in value.how.items()})


def evaluated(
    value: Call, draw: Callable[[Array], mx.array], dtype: mx.Dtype, made: Iterator[Any] | None = None, **more: Any
) -> Any:
    """What a call returns, or the part of it that is meant; arguments are those of `arguments`, and what is added."""
    whole = arguments(value, draw, dtype, made)
    return _called(whole._replace(how=whole.how | more))


def _called(each: Call) -> Any:
    result = getattr(mf, each.function)(*each.args, **each.how)
    return result if each.take is None else result[each.take]


def results(out: Any) -> tuple[mx.array, ...]:
    """The arrays of what a function returned: an array, a state, or a tuple or list of both."""
    if isinstance(out, mx.array):
        return (out,)
    if hasattr(out, "arrays"):
        return tuple(out.arrays)
    return tuple(a for part in out if part is not None for a in results(part)) if isinstance(out, tuple | list) else ()


def unpacked(value: Any) -> Any:
    """A call, or a part of one, of what JSON has of it; lists are tuples."""
    if isinstance(value, dict):
        if "call" in value:
            how = {name: unpacked(each) for name, each in value.get("how", {}).items()}
            return Call(value["call"], tuple(map(unpacked, value["args"])), how, value.get("take"))
        if "shape" in value:
            return Array(**{**value, "shape": tuple(value["shape"])})
        return Fixed(value["fixed"], value["dtype"]) if "fixed" in value else DtypeOfRun()
    return tuple(map(unpacked, value)) if isinstance(value, list) else value
