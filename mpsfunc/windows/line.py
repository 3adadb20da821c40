"""Windows along a line as those along the columns of an image of one row, which kernels know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpsfunc.core.arguments import IntPair, choice, entries, is_a, refuse, whole
from mpsfunc.windows.policy import PADDINGS, PaddingName

Sides = int | tuple[int, int] | list[int]

_SIDES = "an int >= 0 or (before, after)"


def step(op: str, name: str, value: object, least: int = 1) -> IntPair:
    """A number of elements along the line, as (y, x)."""
    plain = whole(value)
    rule = f"an int >= {least}"
    if plain is None:
        refuse(op, f"{name} is not an int", name, value, rule, TypeError)
    if plain < least:
        refuse(op, f"{name} is too small", name, value, rule)
    return 1 if least else 0, plain


def sides(op: str, name: str, value: object) -> tuple[IntPair, IntPair]:
    """Elements before and behind the line, one number for both or two, as ((top, bottom), (left, right))."""
    given = entries(value)
    parts = [whole(part) for part in ((value, value) if given is None else given)]
    if len(parts) != 2:
        refuse(op, f"{name} is not a pair", name, value, _SIDES)
    before, after = parts
    if before is None or after is None:
        refuse(op, f"{name} is not an int", name, value, _SIDES, TypeError)
    if min(before, after) < 0:
        refuse(op, f"{name} is negative", name, value, _SIDES)
    return (0, 0), (before, after)


def padding(op: str, value: Any, names: Sequence[PaddingName] = PADDINGS) -> Any:
    """The same, or one of the names."""
    if not is_a(value, str):
        return sides(op, "padding", value)
    return choice(op, "padding", value, names, f"{_SIDES}, {' or '.join(map(repr, names))}")
