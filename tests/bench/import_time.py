"""What importing mpsfunc takes beyond mlx.core: ``python -m tests.bench.import_time``, from the checkout's root.

Processes of their own, which have MLX, import mpsfunc, and stock MLX's ``mlx.nn`` by turns for comparison; others ask
for a name of each family. Beside the times stand the modules that take longest, by ``python -X importtime``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import report

MODULES = ("mpsfunc", "mlx.nn")
NAMES = (
    *("relu", "avg_pool", "max_pool", "conv", "batch_norm", "instance_norm", "cross_channel_norm", "softmax", "loss"),
    *("add", "dropout", "pad", "resize_bilinear", "checkpoint", "load", "graph", "nn"),
)
_PROGRAM = """
import time, mlx.core
{before}
begin = time.perf_counter()
{timed}
print(time.perf_counter() - begin)
"""
_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| \s*(\S+)$", re.MULTILINE)
_METHOD = """The first table has the time of `import mpsfunc` in a process that has already imported `mlx.core`, and
for comparison that of `import mlx.nn`, each in {rounds} new processes, in turns, with Python's bytecode already
written. The second table has the times of single modules without what they import, by `python -X importtime` in
another process, where all of them are slower. The third table has the time of the first use of a name, in new
processes, since that imports the function's modules. `load` imports the states of all families, and `nn` imports
`mlx.nn`. Written by `python -m tests.bench.import_time`."""


_LOADED = """
import json, mpsfunc, os
from mpsfunc.core import launch
module, sets = launch.optional_module(), launch.instruction_sets()
print(json.dumps([module and module.__file__, sets and sets[0], len(os.listdir("/proc/self/task"))]))
"""


class Module(NamedTuple):
    """A module that an import imports, and the microseconds that it takes without what it imports itself."""

    name: str
    alone: int


def seconds(timed: str, before: str = "") -> float:
    """Of a statement in a new process, behind another one."""
    program = _PROGRAM.format(timed=timed, before=before)
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def by_turns(statements: Sequence[str], rounds: int, before: str = "") -> list[list[float]]:
    """The milliseconds of each, so many times."""
    for timed in statements:  # which compiles files of Python, if need be
        seconds(timed, before)
    found = [[1e3 * seconds(timed, before) for timed in statements] for _ in range(rounds)]
    return [list(times) for times in zip(*found, strict=True)]


def rows(names: Sequence[str], times: list[list[float]]) -> list[list[str]]:
    """A table's rows: name, median, least and most."""
    numbers = [(statistics.median(of), min(of), max(of)) for of in times]
    return [[name, *(f"{number:.1f}" for number in of)] for name, of in zip(names, numbers, strict=True)]


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


def facts() -> dict[str, str]:
    """This machine's, and what a process loads that only imports mpsfunc."""
    told = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True).stdout
    file, isa, threads = json.loads(told)
    loaded = f"loaded, for {Path(file).parent.name}" if file else "none"
    return {**report.cpu_facts(report.commit(), isa or "none", threads), "C++ module": loaded}


def main(rounds: int, folder: Path) -> None:
    """Measures, and writes import.md."""
    imports = by_turns([f"import {module}" for module in MODULES], rounds)
    uses = by_turns([f"mpsfunc.{name}" for name in NAMES], rounds, "import mpsfunc")
    found = parts("mpsfunc")
    text = [
        "# Importing",
        _METHOD.format(rounds=rounds),
        report.table(["machine", ""], facts().items()),
        report.table(["import", "ms, median", "least", "most"], rows(MODULES, imports)),
        f"{len(found)} modules, {sum(each.alone for each in found) / 1e3:.1f} ms; the longest ten:",
        report.table(["module", "ms without what it imports"], [[m.name, f"{m.alone / 1e3:.1f}"] for m in found[:10]]),
        report.table(["first use", "ms, median", "least", "most"], rows([f"mpsfunc.{name}" for name in NAMES], uses)),
    ]
    report.save(folder, "import", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.import_time", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    main(args.rounds, args.out)
