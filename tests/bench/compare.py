"""Ten fixed rows beside what they were on this kind of processor: whether a change made something slower."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import torch

import mpsfunc as mf
from mpsfunc import _primitives

from . import clock, cpu, report, stats
from .problems import Problem
from .results import checked
from .rivals import on_mlx, ours, pytorch
from .stats import Ratio

IMAGES = (8, 56, 56, 64)
ROWS = (
    Problem("avg_pool", IMAGES, "float32", 3, 2, 1),
    Problem("max_pool_grad", IMAGES, "bfloat16", 3, 2, 1),
    Problem("bn_relu_forward", IMAGES, "float32"),
    Problem("bn_backward", IMAGES, "bfloat16"),
    Problem("conv", IMAGES, "float32", 3, 1, 1),
    Problem("conv", (8, 56, 56, 128), "float32", 3, 1, 1, groups=128),
    Problem("conv_grad_weights", IMAGES, "float32", 3, 1, 1),
    Problem("gelu_grad", IMAGES, "float32"),
    Problem("upsample_bilinear", IMAGES, "float32"),
    Problem("cross_entropy", (4096, 1000), "float32"),
)
# Every row is measured in so many turns, with the others between them: a neighbour's work on a shared machine lasts
# longer than a turn, and the interval is to show it.
TURNS, ROUNDS, QUICK_ROUNDS = 3, 20, 2
HEAD = ("operation", "dtype", "x", "ratio", "low", "high", "ms", "PyTorch", "commit", "date")


class Measured(NamedTuple):
    """How many times as fast as PyTorch's faster layout, over all turns, and the milliseconds of a call of ours."""

    ratio: Ratio
    ms: float


class Verdict(NamedTuple):
    """A row beside its kept one."""

    problem: Problem
    before: Ratio
    now: Measured

    @property
    def said(self) -> str:
        """ "slower" or "faster" where the two intervals have nothing in common, else nothing."""
        if self.now.ratio.high < self.before.low:
            return "slower"
        return "faster" if self.now.ratio.low > self.before.high else ""


def kind() -> str:
    """The kind of processor that a table is for: who made it, and the instruction set that is used."""
    return f"{report.vendor()}-{_primitives.isa()}"


def measured(problems: Sequence[Problem], rounds: int) -> list[Measured]:
    """All rows, by turns."""
    turns = [[_times(problem, rounds) for problem in problems] for _ in range(TURNS)]
    return [_summary([turn[i] for turn in turns]) for i in range(len(problems))]


def _times(problem: Problem, rounds: int) -> dict[str, list[float]]:
    sides = [on_mlx.side(cpu.OURS, ours.functions)]
    sides += [
        pytorch.side(name, layout, "cpu")
        for name, layout in pytorch.LAYOUTS.items()
        if problem.of_images or name == "PyTorch NCHW"
    ]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    bound, wrong = checked(problem, sides, oracle, problem.inputs())
    if wrong:
        raise AssertionError(f"{problem.title}: wrong answers of {wrong}")
    by_name = {side.name: side for side in sides}
    calls = cpu.in_a_row({name: clock.wall(by_name[name], call, 1) for name, call in bound.items()})
    return clock.interleave(
        {name: clock.wall(by_name[name], call, calls[name]) for name, call in bound.items()}, rounds
    )


def _summary(turns: list[dict[str, list[float]]]) -> Measured:
    """The middle of all rounds; the interval reaches from the lowest to the highest of the turns."""
    whole = {name: [t for turn in turns for t in turn[name]] for name in turns[0]}
    rival = min((name for name in whole if name != cpu.OURS), key=lambda name: stats.median(whole[name]))
    parts = [stats.paired(turn[rival], turn[cpu.OURS]) for turn in turns]
    middle = stats.paired(whole[rival], whole[cpu.OURS]).median
    interval = min(part.low for part in parts), max(part.high for part in parts)
    return Measured(Ratio(middle, *interval), 1e3 * stats.median(whole[cpu.OURS]))


def kept(path: Path) -> dict[tuple[str, ...], Ratio]:
    """A table, by operation, dtype and shape."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["operation"], row["dtype"], row["x"]): Ratio(*(float(row[name]) for name in ("ratio", "low", "high")))
        for row in rows
    }


def key_of(problem: Problem) -> tuple[str, str, str]:
    """Operation, dtype and shape."""
    return problem.title, problem.dtype, "x".join(map(str, problem.shape))


def as_rows(found: Sequence[tuple[Problem, Measured]], commit: str) -> list[dict[str, str]]:
    """Rows of a table."""
    date = report.cpu_facts(commit, "", 0)["date"]
    return [
        {
            **dict(zip(HEAD, key_of(p), strict=False)),
            **{name: f"{value:.3f}" for name, value in zip(HEAD[3:6], m.ratio, strict=True)},
            **{"ms": f"{m.ms:.3g}", "PyTorch": torch.__version__, "commit": commit, "date": date},
        }
        for p, m in found
    ]


def compared(found: Sequence[tuple[Problem, Measured]], table: dict[tuple[str, ...], Ratio]) -> list[Verdict]:
    """Each row with the kept one.

    Raises:
        KeyError: The table lacks a row.
    """
    return [Verdict(problem, table[key_of(problem)], now) for problem, now in found]


def main(args: argparse.Namespace, commit: str) -> int:
    """Measures, and keeps or compares; 1 where a row is slower by more than the intervals."""
    mx.set_default_device(mx.cpu)
    torch.set_num_threads(cpu.THREADS)
    mf.set_num_threads(cpu.THREADS)
    path = (args.out or Path("docs/benchmarks")) / "compare" / f"{kind()}.csv"
    if not args.keep and (lacking := _lacking(path)):
        print(f"{lacking}: --compare --keep, on the code before a change, writes {path}")
        return 1
    found = list(zip(ROWS, measured(ROWS, QUICK_ROUNDS if args.quick else ROUNDS), strict=True))
    if args.keep:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, HEAD, lineterminator="\n")
            writer.writeheader()
            writer.writerows(as_rows(found, commit))
        print(path.read_text())
        return 0
    verdicts = compared(found, kept(path))
    body = [[v.problem.title, v.problem.dtype, _told(v.before), _told(v.now.ratio), v.said] for v in verdicts]
    print(report.table(["operation", "dtype", "x PyTorch, kept", "x PyTorch, now", ""], body))
    moved = [f"{v.problem.title} {v.problem.dtype} is {v.said}" for v in verdicts if v.said]
    print("; ".join(moved) or "no row moved by more than the intervals")
    return int(any(v.said == "slower" for v in verdicts))


def _lacking(path: Path) -> str:
    """What is wrong with a table, if anything is."""
    if not path.exists():
        return "no table for this kind of processor"
    with path.open(encoding="utf-8", newline="") as file:
        others = {row["PyTorch"] for row in csv.DictReader(file)} - {torch.__version__}
    if others:
        return f"the table is beside PyTorch {', '.join(others)}, and this is {torch.__version__}"
    missing = [" ".join(key_of(row)) for row in ROWS if key_of(row) not in kept(path)]
    return f"the table lacks {', '.join(missing)}" if missing else ""


def _told(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
