"""Kernel texts without comments, indentation, what is for another GPU, and declarations that a kernel does not use.

Each launch of a kernel has its whole text in the file. The headers of ``metal/`` declare what all kernels of a family
need, of which one uses a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACES, _AROUND = re.compile(r"\s+"), re.compile(r" ?([;()=?]) ?(?!\{)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_GUARD = re.compile(r"#ifndef (\w+)\n#define \1\n")  # of a header, which is there once
_EMPTY = re.compile(r"^(?:#if[^\n]*\n(?:#el[^\n]*\n)*#endif|MPSF_BEGIN_PARAMS\nMPSF_END_PARAMS)\n", re.MULTILINE)
_MACRO = re.compile(r"#define (\w+)")
_CUDA = "#if defined(__CUDACC__) || defined(__CUDACC_RTC__)"
_MACRO_LINE = re.compile(r"[A-Z][A-Z0-9_]*(?:\(.*\))?\Z")  # such as MPSF_BEGIN_PARAMS
_TEMPLATE = re.compile(r"template ?<")
_TYPE = re.compile(r"(?:struct|enum|class|union) (?:alignas\([^)]*\) ?)?([A-Za-z_]\w*)")
_CALLED = re.compile(r"([A-Za-z_]\w*) ?\(")
_NO_NAMES = frozenset(("alignas", "decltype", "sizeof"))


class _Part(NamedTuple):
    """A directive or a declaration, with the names by which others use it; without any it always stays."""

    text: str
    names: frozenset[str]


def shortened(header: str, body: str, *, cuda: bool) -> tuple[str, str]:
    """A header and a body that mean the same, of which the header has what the body uses and what that uses."""
    body = _plain(body, cuda)
    parts = _parts(_plain(header, cuda))
    used = set(_WORD.findall(body))
    kept: set[int] = set()
    growing = True
    while growing:
        growing = False
        for i, part in enumerate(parts):
            if i not in kept and (not part.names or part.names & used):
                kept.add(i)
                used.update(_WORD.findall(part.text))
                growing = True
    left = "".join(f"{part.text}\n" for i, part in enumerate(parts) if i in kept)
    while left != (emptied := _EMPTY.sub("", left)):
        left = emptied
    return left, body


def _plain(text: str, cuda: bool) -> str:
    text = re.sub(r"\\\n", " ", _COMMENTS.sub("", text))
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    # A directive's spaces mean something, and so do those of a string.
    lines = (line if line.startswith("#") or '"' in line else _AROUND.sub(r"\1", line) for line in lines)
    text = _GUARD.sub(r"#if 1\n#define \1\n", "".join(f"{line}\n" for line in lines if line))
    return "\n".join(_chosen(text.splitlines(), cuda))


def _chosen(lines: Sequence[str], cuda: bool) -> Iterator[str]:
    """The lines that are for the GPU; conditions of anything else stay."""
    left: list[bool | None] = []  # of each condition around a line: whether it holds, None where it stays
    for line in lines:
        if line.startswith("#if"):
            left.append(True if line == "#if 1" else cuda if line == _CUDA else None)
            if left[-1] is not None:
                continue
        elif line.startswith(("#el", "#endif")) and left[-1] is not None:
            if line.startswith("#elif") and not left[-1]:  # the rest is a condition of its own
                left[-1], line = None, line.replace("#elif", "#if")
            elif line == "#endif":
                left.pop()
                continue
            else:
                left[-1] = not left[-1] if line == "#else" else False
                continue
        if all(holds is not False for holds in left):
            yield line
        if line == "#endif":
            left.pop()


def _parts(text: str) -> list[_Part]:
    parts: list[_Part] = []
    open_lines: list[str] = []
    depth = 0
    for line in text.split("\n"):
        if not open_lines and (line.startswith("#") or _MACRO_LINE.match(line)):
            parts.append(_Part(line, frozenset(_MACRO.findall(line))))
            continue
        open_lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.endswith((";", "}")):
            declaration = "\n".join(open_lines)
            parts.append(_Part(declaration, _names(declaration)))
            open_lines = []
    if open_lines:
        raise AssertionError(f"a declaration does not end: {open_lines[0]}")
    return parts


def _names(declaration: str) -> frozenset[str]:
    """What a declaration names: a type, the numbers of an enum, a function; nothing where that is not clear."""
    head = _past_template(declaration.partition("{")[0])
    of_type = _TYPE.match(head)
    if declaration.startswith("enum"):
        return frozenset(_WORD.findall(declaration))
    if of_type is not None and "(" not in head.replace("alignas(", ""):
        return frozenset((of_type[1],))
    called = [name for name in _CALLED.findall(head) if name not in _NO_NAMES]
    if "operator" in head or not called or head.startswith(("using", "typedef", "constexpr", "constant")):
        return frozenset()
    return frozenset(called[:1])


def _past_template(head: str) -> str:
    """What follows ``template <...>``."""
    while _TEMPLATE.match(head):
        depth, end = 0, 0
        for end, letter in enumerate(head):  # noqa: B007  # where the loop stopped
            depth += (letter == "<") - (letter == ">")
            if letter == ">" and depth == 0:
                break
        head = head[end + 1 :].strip()
    return head
