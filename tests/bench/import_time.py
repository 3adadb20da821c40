"""What importing mpsfunc takes beyond mlx.core: ``python -m tests.bench.import_time``, from the checkout's root.

Processes of their own, which have MLX, import mpsfunc, and stock MLX's ``mlx.nn`` by turns for comparison. Beside the
times stand the modules that take longest, by ``python -X importtime``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from . import report

MODULES = ("mpsfunc", "mlx.nn")
_PROGRAM = """
import time, mlx.core
begin = time.perf_counter()
import {module}
print(time.perf_counter() - begin)
"""
_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| \s*(\S+)$", re.MULTILINE)
_METHOD = """What `import mpsfunc` takes where `mlx.core` is there already, and what MLX's own `mlx.nn` takes then for
comparison: each in {rounds} processes of its own, by turns, with compiled files of Python there. Then what the single
modules take, what they import left out, by `python -X importtime` in one more process, which makes all of them slower.
Written by `python -m tests.bench.import_time`."""


class Module(NamedTuple):
    """A module that an import imports, and the microseconds that it takes without what it imports itself."""

    name: str
    alone: int


def seconds(module: str) -> float:
    """Of one import, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(module=module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def parts(module: str) -> list[Module]:
    """The modules that an import brings beyond those of mlx.core, the longest first."""
    command = [sys.executable, "-X", "importtime", "-c", f"import mlx.core, {module}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return after_mlx(told)


def after_mlx(told: str) -> list[Module]:
    """Those that ``-X importtime`` tells below the line of mlx.core."""
    lines = _LINE.findall(told)
    first = [name for *_, name in lines].index("mlx.core") + 1
    return sorted((Module(name, int(alone)) for alone, _, name in lines[first:]), key=lambda each: -each.alone)


def main(rounds: int, folder: Path) -> None:
    """Measures, and writes import.md."""
    times: dict[str, list[float]] = {module: [seconds(module)] for module in MODULES}  # which compiles, if need be
    for of in times.values():
        of.clear()
    for _ in range(rounds):
        for module in MODULES:
            times[module].append(1e3 * seconds(module))
    found = parts("mpsfunc")
    facts = report.cpu_facts(report.commit(), "none", 1)
    rows = [[m, f"{statistics.median(of):.1f}", f"{min(of):.1f}", f"{max(of):.1f}"] for m, of in times.items()]
    text = [
        "# Importing",
        _METHOD.format(rounds=rounds),
        report.table(["machine", ""], facts.items()),
        report.table(["import", "ms, median", "least", "most"], rows),
        f"{len(found)} modules, {sum(each.alone for each in found) / 1e3:.1f} ms; the longest ten:",
        report.table(["module", "ms without what it imports"], [[m.name, f"{m.alone / 1e3:.1f}"] for m in found[:10]]),
    ]
    report.save(folder, "import", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.import_time", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    main(args.rounds, args.out)
