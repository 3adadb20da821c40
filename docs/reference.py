"""The public names of the pages of the reference, which list them by the family that has them."""

from __future__ import annotations

import inspect
import re

import mpsfunc


def public_names(family: str) -> list[str]:
    """The public functions and classes that a folder of the package has, classes first."""
    found = {name: getattr(mpsfunc, name) for name in dir(mpsfunc)}
    own = [name for name, value in found.items() if getattr(value, "__module__", "").split(".")[1:2] == [family]]
    return sorted(own, key=lambda name: (not inspect.isclass(found[name]), name))


def filled(page: str) -> str:
    """A page with a directive for each name in place of ``PUBLIC NAMES OF family``."""

    def directives(found: re.Match[str]) -> str:
        names = public_names(found[1])
        kinds = ["class" if inspect.isclass(getattr(mpsfunc, name)) else "function" for name in names]
        return "\n".join(f".. auto{kind}:: mpsfunc.{name}" for kind, name in zip(kinds, names, strict=True))

    return re.sub(r"^PUBLIC NAMES OF (\w+)$", directives, page, flags=re.MULTILINE)
