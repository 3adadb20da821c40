"""Programs that call this library at random without end; `python -m tests.soak` runs them.

A program is a module of this package with a NAME and `rounds(seed)`, which for ever checks a little, yields counts of
what was checked, and raises an AssertionError that says how to repeat it. `one_round(seed, at)`, where a program has
it, is one round alone.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parent.parent.parent


def programs() -> dict[str, ModuleType]:
    """Every program, by the name of its module."""
    for folder in ("tests", "docs", "docs/examples"):  # as pytest has it
        if str(_ROOT / folder) not in sys.path:
            sys.path.insert(0, str(_ROOT / folder))
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.ispkg)
    names = [name for name in names if name not in ("__main__", "run") and not name.startswith("test_")]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "rounds")}
