"""Every operation of the package, wherever a module keeps it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpsfunc as mf
from mpsfunc.core.operation import Operation

AnyOperation = Operation[..., Any]


def modules() -> list[str]:
    """The names of all modules of the package."""
    # An editable install has the checkout's root in the package's path, for the kernel texts.
    folder = str(Path(str(mf.__file__)).parent)
    names = [info.name for info in pkgutil.walk_packages([folder], "mpsfunc.")]
    return [name for name in names if not name.endswith((".__main__", "._primitives"))]


def held(where: str, value: Any) -> Iterator[tuple[str, AnyOperation]]:
    """Operations in a variable, or in the tables and records that it holds, by expressions."""
    if isinstance(value, Operation):
        yield where, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from held(f"{where}[{key!r}]", each)
    elif isinstance(value, tuple | list):
        for i, each in enumerate(value):
            yield from held(f"{where}[{i}]", each)


def operations() -> dict[str, AnyOperation]:
    """Each once, by an expression; in its own module if that one holds it."""
    found: dict[int, tuple[str, AnyOperation]] = {}
    for module in modules():
        for name, value in vars(importlib.import_module(module)).items():
            for where, each in held(f"{module}.{name}", value):
                if id(each) not in found or (each.__module__ == module and "[" not in where):
                    found[id(each)] = where, each
    return dict(sorted(found.values()))
