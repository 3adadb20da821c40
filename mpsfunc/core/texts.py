"""The kernel texts of ``metal/``: a body, and in front of it what it and its headers include, each once."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@functools.cache
def text(name: str) -> str:
    """A file of ``metal/``, such as "shared/geometry.h", without its lines of includes."""
    return _INCLUDE.sub("", _whole(name))


def body(name: str) -> str:
    """What stands between the braces of a kernel."""
    return text(_places()[name])


@functools.cache
def header(name: str, *, metal: bool) -> str:
    """What stands in front of the kernel ``name``, for CUDA behind the words of Metal."""
    found: dict[str, str] = {}
    source = _whole(_places()[name])
    if not metal:
        words = "shared/cuda.h", "shared/cuda_matrix.h"
        _gather(words[: 1 + ("simdgroup_" in source)], found)
    _gather(_INCLUDE.findall(source), found)
    return "".join(found.values())


def bodies() -> tuple[str, ...]:
    """The names of all bodies."""
    return tuple(sorted(_places()))


def _gather(names: Any, found: dict[str, str]) -> None:
    """Puts the headers of these names, and before each what it includes, at the end of what is found."""
    for name in names:
        if name in found:
            continue
        _gather(_INCLUDE.findall(_whole(name)), found)
        found[name] = text(name)


@functools.cache
def _whole(name: str) -> str:
    with open(os.path.join(_folder(), name), encoding="utf-8") as file:
        return file.read()


@functools.cache
def _folder() -> str:
    """Where the texts are: inside an installed package, or beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(__file__))
    packaged = os.path.join(package, "metal")
    return packaged if os.path.isdir(packaged) else os.path.join(os.path.dirname(package), "metal")


@functools.cache
def _places() -> dict[str, str]:
    """The file of each body."""
    with os.scandir(_folder()) as folder:
        families = [entry.name for entry in folder if entry.is_dir()]
    files = [(family, name) for family in families for name in os.listdir(os.path.join(_folder(), family))]
    return {
        name.removesuffix(".metal"): f"{family}/{name}" for family, name in sorted(files) if name.endswith(".metal")
    }
