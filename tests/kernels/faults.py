"""Faults that are put into a kernel text by rule, so that a new body is covered as soon as it exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Every body has places for these; a body with barriers also for "barrier".
KINDS = ("guard", "index", "bound", "space")


class Fault(NamedTuple):
    """A text with one thing wrong."""

    kind: str
    what: str  # the line that changed
    text: str


def faults(body: str, arrays: tuple[str, ...]) -> list[Fault]:
    """Faults in a body, each a change of one place.

    - guard: a condition that keeps threads from doing something always holds, or is gone.
    - index: an access to an array, in device or threadgroup memory, is one element further.
    - bound: a loop runs once more.
    - barrier: a barrier is gone.
    - space: the address space of a declaration is gone.

    Args:
        body: The text.
        arrays: The names of the kernel's inputs and outputs.
    """
    return [fault for rule in (_guards, _indices, _bounds, _barriers, spaces) for fault in rule(body, arrays)]


def _changed(kind: str, text: str, at: int, end: int, new: str) -> Fault:
    line = text[text.rfind("\n", 0, at) + 1 : text.find("\n", end)]
    return Fault(kind, f"{line.strip()}  [{text[at:end]} -> {new or 'nothing'}]", text[:at] + new + text[end:])


def _guards(text: str, arrays: tuple[str, ...]) -> Iterator[Fault]:
    for match in re.finditer(r"if \(.+\) (?:return|continue);", text):
        yield _changed("guard", text, *match.span(), "")
    for match in re.finditer(r"if \((.+)\) (?!return|continue)", text):
        yield _changed("guard", text, *match.span(1), "true")
    for match in re.finditer(r"= ([^=?;]*[<>=&][^=?;]*|\w+) \?\s[^:;]*\[[^:;]*: 0\.0f;", text):
        yield _changed("guard", text, *match.span(1), "true")


def _indices(text: str, arrays: tuple[str, ...]) -> Iterator[Fault]:
    shared = re.findall(r"(\w+)\[[^\]]*\][,;]", " ".join(re.findall(r"^threadgroup .*;", text, re.MULTILINE)))
    names = "|".join((*arrays, *shared))
    for match in re.finditer(rf"\b(?:load<V>|store)\(((?:{names}) \+ )", text):
        yield _changed("index", text, match.end(1), match.end(1), "1 + ")
    for match in re.finditer(rf"(?<!threadgroup float )(?<!\], )\b(?:{names})\[", text):
        yield _changed("index", text, match.end(), match.end(), "1 + ")


def _bounds(text: str, arrays: tuple[str, ...]) -> Iterator[Fault]:
    for match in re.finditer(r"for \([^;]*;[^;]*( <)[^;<]*;", text):
        yield _changed("bound", text, *match.span(1), " <=")


def _barriers(text: str, arrays: tuple[str, ...]) -> Iterator[Fault]:
    for match in re.finditer(r"threadgroup_barrier\(.*\);", text):
        yield _changed("barrier", text, *match.span(), "")


def spaces(text: str, arrays: tuple[str, ...] = ()) -> Iterator[Fault]:
    """Address spaces that are gone from a body or a header."""
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), text)
    for match in re.finditer(r"\b(?:device|constant|threadgroup) ", code):
        yield _changed("space", text, *match.span(), "")
