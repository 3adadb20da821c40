"""Lists which folder of the code imports which, and which files one call passes through.

A folder (room) is one of the package, of ``primitives/``, or all of ``metal/``; an import (arrow) is an import or an
include of a file in another folder. A folder is one level (floor) above the highest that it imports.

    python docs/draw_map.py            # the map, and the files of three calls
    python docs/draw_map.py --write    # the map into CONTRIBUTING.md
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mpsfunc"
MARKS = "<!-- the map: python docs/draw_map.py --write -->", "<!-- end of the map -->"
INCLUDE = re.compile(r'^\s*#include "(.+)"', re.MULTILINE)
TOP = "mpsfunc"  # the room of the public names


def room(path: Path) -> str:
    """The room in which a file of the code lies."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "metal":
        return "metal"
    if path.name in ("__main__.py", "bench.py"):  # what is run by python -m
        return "mpsfunc/__main__.py"
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def sources() -> Iterator[Path]:
    """Every file of the code, without tests and pages."""
    for folder, endings in (("mpsfunc", {".py"}), ("primitives", {".cpp", ".h"}), ("metal", {".h", ".metal"})):
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings)


def imported(path: Path) -> Iterator[str]:
    """The rooms of what a file imports or includes."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for name in INCLUDE.findall(text):
            found = [
                base / name for base in (path.parent, ROOT / "primitives", ROOT / "metal") if (base / name).is_file()
            ]
            yield from (room(file) for file in found[:1])
        return
    tree = ast.parse(text)
    public = path == PACKAGE / "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "_typing.TYPE_CHECKING"):
            # For type checkers, and imported by nobody; but so stand the public names, which come when asked for.
            node.body = [each for each in node.body if public and getattr(each, "module", TOP) != TOP]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "mpsfunc":
                inside = rest and (PACKAGE / rest[0]).is_dir()
                yield f"mpsfunc/{rest[0]}" if inside else TOP


def arrows() -> dict[str, set[str]]:
    """For every room those that it imports."""
    found: dict[str, set[str]] = {}
    for path in sources():
        found.setdefault(room(path), set()).update(set(imported(path)) - {room(path)})
    return found


def floors(of: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by floor, the ground first; a circle is a ValueError."""
    left, done, result = dict(of), set[str](), list[list[str]]()
    while left:
        free = sorted(name for name, beneath in left.items() if beneath <= done)
        if not free:
            raise ValueError(f"rooms import each other in a circle, among: {', '.join(sorted(left))}")
        result.append(free)
        done |= set(free)
        for name in free:
            del left[name]
    return result


# Calls --------------------------------------------------------------------------------------------------


def passed(call: Callable[[], object]) -> dict[Path, set[int]]:
    """Files of the package that a call runs through, with the lines at which the functions begin that it enters."""
    files: dict[Path, set[int]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            files.setdefault(path, set()).add(frame.f_code.co_firstlineno)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def hands_on(function: ast.FunctionDef | ast.Lambda) -> bool:
    """Whether a function does nothing but call another one with what it was given."""
    if isinstance(function, ast.Lambda):
        body: list[ast.expr | None] = [function.body]
    else:
        steps = [
            step for step in function.body if not (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
        ]
        named = [step for step in steps if isinstance(step, ast.Assign | ast.AnnAssign)]
        body = [step.value for step in steps if isinstance(step, ast.Assign | ast.AnnAssign | ast.Return)]
        if len(body) != len(steps) or len(named) > 1:
            return False
    call = body[0] if body else None
    if not isinstance(call, ast.Call) or not all(isinstance(other, ast.Name) for other in body[1:]):
        return False
    if isinstance(call.func, ast.Subscript):  # it chooses what to call
        return False
    given = [a.value if isinstance(a, ast.Starred) else a for a in (*call.args, *(k.value for k in call.keywords))]
    return all(isinstance(argument, ast.Name | ast.Constant) for argument in given)


def only_hands_on(path: Path, lines: set[int]) -> bool:
    """Whether all functions of a file that begin at these lines hand on what they get."""
    kinds = ast.FunctionDef | ast.Lambda
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    begun = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]): node for node in nodes}
    return all(hands_on(begun[line]) for line in lines if line in begun)


def calls() -> dict[str, Callable[[], object]]:
    """A call each of a pooling, a gradient of a convolution and one of batch norm, ready to be traced."""
    import mlx.core as mx

    import mpsfunc as mf

    x, weight, vector = mx.ones((2, 8, 8, 4)), mx.ones((4, 3, 3, 4)), mx.ones((4,))
    _, conv = mf.conv_fwd(x, weight, padding=1)
    batch = mf.bn_stats_grad(x, x, mf.bn_stats(x), vector, vector)
    mx.eval(x, weight, vector, batch.arrays)
    return {  # with the functions at hand, since to ask for one first is to import it
        "avg_pool": partial(mf.avg_pool, x, 3, stride=2, padding=1),
        "conv_grad_weights": partial(mf.conv_grad_weights, x, x, conv),
        "bn_grad": partial(mf.bn_grad, x, x, batch, vector, vector),
    }


# The map ------------------------------------------------------------------------------------------------


def sentence(name: str) -> str:
    """What a room is for, as its package says in its first line."""
    known = {
        "mpsfunc": "The public names.",
        "mpsfunc/__main__.py": "`python -m mpsfunc` and `python -m mpsfunc.bench`.",
        "primitives/runtime": "Instruction sets, checks of calls, threads; without MLX.",
        "primitives/kernels": "The CPU's kernels, once for each instruction set.",
        "primitives/binding": "The binding to MLX and Python, by nanobind.",
        "metal": "Source of the GPU kernels, and headers that C++ shares with it.",
    }
    if name in known:
        return known[name]
    text = ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0]


def drawn() -> str:
    """The map as Markdown: levels from the top, in each its folders with what they are for and what they import."""
    of = arrows()
    stories = floors(of)
    lines = [
        f"{len(of)} folders on {len(stories)} levels, {sum(map(len, of.values()))} imports.",
        "",
        "| level | folder | what it is for | imports |",
        "| --- | --- | --- | --- |",
    ]
    for number, rooms in reversed(list(enumerate(stories, 1))):
        for name in rooms:
            beneath = ", ".join(f"`{other.removeprefix('mpsfunc/')}`" for other in sorted(of[name]))
            lines.append(f"| {number} | `{name}` | {sentence(name)} | {beneath} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the map and the calls, or writes the map down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the map into CONTRIBUTING.md")
    if parser.parse_args().write:
        path = ROOT / "CONTRIBUTING.md"
        before, _, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
        _, _, behind = rest.partition(MARKS[1])
        path.write_text(f"{before}{MARKS[0]}\n\n{drawn()}\n\n{MARKS[1]}{behind}", encoding="utf-8")
        return
    print(drawn())
    for name, call in calls().items():
        files = passed(call)
        print(f"\n{name}: {len(files)} files")
        for path, lines in files.items():
            print(f"  {path.relative_to(ROOT)}{'  only hands on' if only_hands_on(path, lines) else ''}")


if __name__ == "__main__":
    main()
