"""Where names of earlier layouts of the package are now."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn


def pointing_to_public_names(module: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a package that was once a module of public functions."""

    def missing(name: str) -> NoReturn:
        public = name in getattr(sys.modules["mpsfunc"], "__all__", ())
        now = f"; it is mpsfunc.{name}" if public else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{now}")

    return missing
