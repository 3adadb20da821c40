"""The public names of the pages of the reference, and of the table of all of them, by the family that has them."""

from __future__ import annotations

import inspect
import re

import mpsfunc


def public_names(family: str) -> list[str]:
    """The public functions and classes that a folder of the package has, classes first."""
    found = {name: getattr(mpsfunc, name) for name in dir(mpsfunc)}
    own = [name for name, value in found.items() if getattr(value, "__module__", "").split(".")[1:2] == [family]]
    return sorted(own, key=lambda name: (not inspect.isclass(found[name]), name))


def names_of(module: str) -> list[str]:
    """The functions and classes of mpsfunc.nn or mpsfunc.graph, functions first."""
    found = vars(getattr(mpsfunc, module))
    own = [name for name, value in found.items() if name[0] != "_" and _is_told(value)]
    return sorted(own, key=lambda name: (inspect.isclass(found[name]), name.lower()))


def functions_first(names: list[str]) -> list[str]:
    """Public names in another order."""
    return sorted(names, key=lambda name: inspect.isclass(getattr(mpsfunc, name)))


def _is_told(value: object) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def summary(value: object) -> str:
    """The first paragraph of a docstring as Markdown in a cell of a table, without what follows its first sentence."""
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
    return sentence.replace("``", "`").replace("|", "\\|")


def table(family: str) -> str:
    """A table of a family, or of mpsfunc.nn or mpsfunc.graph, with a line for each name, linked to its entry."""
    inside = family in ("nn", "graph")
    module = getattr(mpsfunc, family) if inside else mpsfunc
    rows = ["| name | what it is |", "| --- | --- |"]
    for name in (
        names_of(family)
        if inside
        else sorted(public_names(family), key=lambda name: (inspect.isclass(getattr(mpsfunc, name)), name))
    ):
        path = f"mpsfunc.{family}.{name}" if inside else f"mpsfunc.{name}"
        rows.append(f"| {{py:obj}}`{name} <{path}>` | {summary(getattr(module, name))} |")
    return "\n".join(rows)


def filled(page: str) -> str:
    """A page with a directive for each name in place of ``PUBLIC NAMES OF family``, and a table for ``TABLE OF``."""

    def directives(found: re.Match[str]) -> str:
        names = public_names(found[1])
        kinds = ["class" if inspect.isclass(getattr(mpsfunc, name)) else "function" for name in names]
        return "\n".join(f".. auto{kind}:: mpsfunc.{name}" for kind, name in zip(kinds, names, strict=True))

    page = re.sub(r"^TABLE OF (\w+)$", lambda found: table(found[1]), page, flags=re.MULTILINE)
    return re.sub(r"^PUBLIC NAMES OF (\w+)$", directives, page, flags=re.MULTILINE)
