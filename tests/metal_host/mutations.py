"""Faults that are put into a kernel text by rule, so that a new body is covered as soon as it exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    """A text with one thing wrong."""

    kind: str
    where: str  # the line, and the change
    text: str


def faults(body: str, arrays: tuple[str, ...]) -> list[Fault]:
    """Faults in a body, each a change of one place.

    - guard: a condition that keeps threads from doing something, or from reading outside, always holds or is gone.
    - index: an access to an array in device or threadgroup memory is one element further.
    - bound: a loop by ones runs once less.
    - start: a loop by larger steps starts one later.
    - step: its steps are one longer.
    - matrix: one is loaded or stored without being transposed.
    - barrier: a barrier is gone.
    - space: the address space of a declaration is gone.

    Args:
        body: The text.
        arrays: The names of the kernel's inputs and outputs.
    """
    # Comments are no place for faults; blanks in their stead leave every position as it is.
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), body)
    found = [*_guards(code), *_indices(code, arrays), *_loops(code), *_matrices(code)]
    found += [*_barriers(code), *_spaces(code)]
    return [_fault(kind, body, at, end, new) for kind, at, end, new in found]


def lost_spaces(header: str) -> list[Fault]:
    """The header once without each of its address spaces."""
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), header)
    return [_fault(kind, header, at, end, new) for kind, at, end, new in _spaces(code)]


_Change = tuple[str, int, int, str]  # kind, first and last position, what comes there


def _fault(kind: str, text: str, at: int, end: int, new: str) -> Fault:
    line = text[text.rfind("\n", 0, at) + 1 : (text + "\n").find("\n", end)].strip()
    return Fault(kind, f"{line}   [{text[at:end]} -> {new}]", text[:at] + new + text[end:])


def _guards(code: str) -> Iterator[_Change]:
    for match in re.finditer(r"\bif \(", code):
        end = _closing(code, match.end())
        leaves = re.match(r"\) (?:return|continue);", code[end:])
        yield ("guard", match.start(), end + leaves.end(), "") if leaves else ("guard", match.end(), end, "true")
    for match in re.finditer(r"\s\? ", code):
        yield "guard", _condition(code, match.start()), match.start(), "true"


def _closing(code: str, start: int) -> int:
    """Where the parenthesis closes that opened before ``start``."""
    depth = 1
    for at in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
    raise ValueError("a parenthesis without its end")


def _condition(code: str, end: int) -> int:
    """Where the condition starts that ends before a question mark."""
    depth = 0
    for at in range(end - 1, 0, -1):
        depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(code[at], 0)
        assigned = code[at] == "=" and code[at - 1] not in "=<>!" and code[at + 1] != "="
        if depth < 0 or (depth == 0 and (assigned or code[at] in ",;{")):
            return at + 1
    raise ValueError("a condition without a beginning")


def _indices(code: str, arrays: tuple[str, ...]) -> Iterator[_Change]:
    declarations = re.findall(r"^threadgroup \w+ (.*);", code, re.MULTILINE)
    shared = [name for names in declarations for name in re.findall(r"(\w+)\[", names)]
    for match in re.finditer(r"\b(?:load<V>|hold<V>|store|sum_of_rows)\(|\bsimdgroup_(?:load|store)\([^,]+, ", code):
        yield "index", match.end(), match.end(), "1 + "
    for match in re.finditer(r"^(?!threadgroup).+$", code, re.MULTILINE):
        for access in re.finditer(rf"\b(?:{'|'.join((*arrays, *shared))})\[", match[0]):
            at = match.start() + access.end()
            yield "index", at, at, "1 + "


def _loops(code: str) -> Iterator[_Change]:
    for match in re.finditer(r"for \(\w+ \w+ = ([^;]+);[^;]*?( <)?[^;<]*;([^;{]*)\)", code):
        if match[3].strip().startswith("++"):
            yield "bound", match.start(2), match.start(2), " + 1"
            continue
        yield "start", match.start(1), match.start(1), "1 + "
        step = re.match(r"[^;)]*?\+= ", match[3])
        if step:
            at = match.start(3) + step.end()
            yield "step", at, at, "1 + "
    for match in re.finditer(r"\bsum_of_rows\((?:\w+, ){3}", code):  # such a loop, in a header
        yield "start", match.end(), match.end(), "1 + "


def _matrices(code: str) -> Iterator[_Change]:
    for match in re.finditer(r"\bsimdgroup_\w+\(.*, (true)\);", code):
        yield "matrix", *match.span(1), "false"


def _barriers(code: str) -> Iterator[_Change]:
    for match in re.finditer(r"\b(?:thread|simd)group_barrier\(.*\);", code):
        yield "barrier", *match.span(), ""


def _spaces(code: str) -> Iterator[_Change]:
    for match in re.finditer(r"\b(?:device|constant|threadgroup) ", code):
        yield "space", *match.span(), ""
