"""Names, numbers and pairs as arguments, of all kinds as Python's own, and what a wrong name was meant to be.

They are recognized by their types alone: an array that is passed instead is not evaluated, and of a class that derives
from Python's or NumPy's no method is called but theirs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import describe

if TYPE_CHECKING:
    from typing_extensions import TypeIs

IntPair = tuple[int, int]
OperandName = Literal["primary", "secondary"]
OPERANDS: tuple[OperandName, ...] = get_args(OperandName)

PIXELS = "pixels >= 0 as an int, (y, x) or ((top, bottom), (left, right))"

_Kind = TypeVar("_Kind")
_Name = TypeVar("_Name", bound=str)


def is_a(value: Any, kinds: type[_Kind] | tuple[type[_Kind], ...]) -> TypeIs[_Kind]:
    """`isinstance`, which would ask the value for its ``__class__``, too."""
    kind = type(value)
    return kind is kinds or issubclass(kind, kinds)


@functools.cache
def _own() -> set[type]:
    return {kind for kind in np.sctypeDict.values() if kind is not np.object_}


def is_derived(value: Any) -> bool:
    """Whether a class derives from Python's or NumPy's, so that nobody knows what its values answer."""
    kind = type(value)
    if kind is int or kind is str or kind is float or kind is bool:  # nearly every field
        return False
    return issubclass(kind, (int, float, str, np.generic)) and not any(kind is own for own in _own())


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
    if type(value) is float or type(value) is int:
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


# Names ----------------------------------------------------------------------------------------------------

# What other libraries call the same thing, by the field that the name stands in. A note follows where it takes more
# than the name.
_ELSEWHERE: dict[str, dict[str, tuple[str, str]]] = {
    "mode": {
        "reflect": ("mirror", ""),
        "symmetric": ("mirror_with_edge", ""),
        "replicate": ("clamp", ""),
        "edge": ("clamp", ""),
        "wrap": ("circular", ""),
        "zeros": ("zero", ""),
    },
    "edge_mode": {"zeros": ("zero", ""), "constant": ("zero", ""), "replicate": ("clamp", ""), "border": ("clamp", "")},
    "method": {"linear": ("bilinear", "")},
    "padding": {"same_upper": ("same", "")},
    "padding_mode": {
        **{"zero": ("zeros", ""), "constant": ("zeros", ""), "clamp": ("replicate", ""), "edge": ("replicate", "")},
        **{"mirror": ("reflect", ""), "wrap": ("circular", "")},
    },
    "neuron": {
        "leaky_relu": ("relu", " with its slope as a"),
        "leakyrelu": ("relu", " with its slope as a"),
        "swish": ("silu", ""),
        "gelu_approx": ("gelu_tanh", ""),
        "gelu_fast_approx": ("gelu_fast", ""),
        "identity": ("none", ""),
        "abs": ("absolute", ""),
        "exp": ("exponential", ""),
        "log": ("logarithm", ""),
    },
    "type": {
        "mse": ("mean_squared_error", ""),
        "mse_loss": ("mean_squared_error", ""),
        "mae": ("mean_absolute_error", ""),
        "l1": ("mean_absolute_error", ""),
        "l1_loss": ("mean_absolute_error", ""),
        "cross_entropy": ("softmax_cross_entropy", ""),
        "binary_cross_entropy_with_logits": ("sigmoid_cross_entropy", ""),
        "kl_div": ("kullback_leibler", ""),
        "kld": ("kullback_leibler", ""),
    },
    "reduction": {"average": ("mean", ""), "avg": ("mean", ""), "add": ("sum", "")},
    "operation": {"sub": ("subtract", ""), "mul": ("multiply", ""), "div": ("divide", "")},
    "comparison": {
        **{"eq": ("equal", ""), "ne": ("not_equal", ""), "lt": ("less", ""), "gt": ("greater", "")},
        **{"le": ("less_equal", ""), "ge": ("greater_equal", "")},
    },
}
# Functions of their own that are spelled much like one of ours.
_OTHERS = frozenset(("binary_cross_entropy",))
_LONGEST = 40


def choice(op: str, name: str, value: Any, names: Collection[_Name], rule: str = "") -> _Name:
    """One of a few names; ``rule`` says what is expected where there is more."""
    given = text(value)
    if given is not None and is_among(given, names):
        return given
    rule = rule or " or ".join(map(repr, names))
    if given is None:
        raise TypeError(f"{op}: {name} is not a name; got {name}={describe(value)}, expected {rule}")
    meant = near(name.rpartition(".")[2], given, names)
    raise ValueError(f"{op}: unknown {name}; got {name}={describe(value)}, expected {rule}{meant}")


def is_among(value: str, names: Collection[_Name]) -> TypeIs[_Name]:
    """Whether a string is one of a few names."""
    return value in names


def near(field: str, value: str, names: Iterable[str]) -> str:
    """``; did you mean 'clamp'?``, or nothing where no name is near.

    Names that differ in capitals come first, then what other libraries call them, then what is spelled alike.

    Example:
        >>> near("mode", "Mirror", ("mirror", "clamp")), near("mode", "reflect", ("mirror", "clamp"))
        ("; did you mean 'mirror'?", "; did you mean 'mirror'?")
        >>> near("neuron", "leaky_relu", ("relu", "elu")), near("neuron", "swish", ("relu", "elu"))
        ("; did you mean 'relu' with its slope as a?", '')
    """
    start = str.__getitem__(value, slice(_LONGEST + 1))
    if len(start) > _LONGEST:
        return ""
    known = list(names)
    plain = start.strip().lower().replace("-", "_").replace(" ", "_")
    meant, note = next((name for name in known if name == plain), ""), ""
    if not meant:
        meant, note = _ELSEWHERE.get(field, {}).get(plain, ("", ""))
    if meant not in known and plain not in _OTHERS:
        import difflib  # to import it takes long

        meant, note = next(iter(difflib.get_close_matches(plain, known, 1, 0.75)), ""), ""
    return f"; did you mean {meant!r}{note}?" if meant in known else ""


# Pairs and pixels -----------------------------------------------------------------------------------------


def two(op: str, arg: str, value: object, rule: str, of: object = None) -> tuple[object, object]:
    """A pair's two entries, or one value twice; ``of`` is the argument where the value is a part of it."""
    given = entries(value)
    if given is None:
        return value, value
    if len(given) != 2:
        refuse(op, f"{arg} is not a pair", arg, value if of is None else of, rule)
    return given[0], given[1]


def pair(op: str, arg: str, value: object, least: int | None = None, rule: str = "", of: object = None) -> IntPair:
    """An int, or a pair of ints, as a pair; ``rule`` replaces the usual words for what is expected.

    Where the value is a part of an argument, that is ``of``, and what errors show.
    """
    if type(value) is int and (least is None or value >= least):  # nearly every call
        return value, value
    rule = rule or "an int or a (y, x) pair of ints" + ("" if least is None else f" >= {least}")
    y, x = map(whole, two(op, arg, value, rule, of))
    of = value if of is None else of
    if y is None or x is None:
        refuse(op, f"{arg} is not an int", arg, of, rule, TypeError)
    if least is not None and min(y, x) < least:
        refuse(op, f"{arg} is too small", arg, of, rule)
    return y, x


def pixels(op: str, arg: str, value: object, negative: str = "") -> list[IntPair]:
    """Pixels as [(top, bottom), (left, right)]; ``negative`` says what is wrong where there are less than none."""
    sides = [pair(op, arg, part, rule=PIXELS, of=value) for part in two(op, arg, value, PIXELS)]
    if min(map(min, sides)) < 0:
        refuse(op, negative or f"{arg} is too small", arg, value, PIXELS)
    return sides


def cacheable(values: Iterable[Any]) -> bool:
    """Whether a typed `functools.lru_cache` tells these arguments from all others: in a tuple it takes True for 1."""
    for value in values:  # no generators: this runs at every call
        kind = type(value)
        if kind is int or kind is str or kind is bool or value is None:
            continue
        if kind is not tuple or not value:
            return False
        for entry in value:
            if type(entry) is not int:
                return False
    return True


def refuse(op: str, wrong: str, arg: str, value: object, rule: str, kind: type[Exception] = ValueError) -> NoReturn:
    """Raises what is wrong with an argument, in the words of all errors."""
    raise kind(f"{op}: {wrong}; got {arg}={describe(value)}, expected {rule}")
