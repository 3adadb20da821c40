"""How far launches should run ahead of a GPU, and whether in CUDA graphs: the time and memory of training steps.

``python -m tests.bench.commits`` writes commits.md and commits.csv, and measures what the CSV lacks of this commit.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mpsfunc.core import mlx_settings

from . import networks_csv, report, whole
from .networks_turns import OURS, Side
from .whole import Cell

GRAPHS, LAUNCHES, PERCENT = "MLX_USE_CUDA_GRAPHS", "MLX_MAX_OPS_PER_BUFFER", "MPSFUNC_RUN_AHEAD"
ALIVE = "2 launches"  # hardly anything waits for the GPU, so that what is in use is what a step needs
SETTINGS = {
    "graphs": {GRAPHS: "1"},
    "100 launches": {GRAPHS: "0", PERCENT: "0"},
    **{f"{n} %": {GRAPHS: "0", PERCENT: str(n)} for n in (20, 10, 5)},
    ALIVE: {GRAPHS: "0", PERCENT: "0", LAUNCHES: "2"},
}
COLUMNS = ("network", "batch", "dtype", "setting", "ms", "mb", "mb_ahead", "machine", "packages", "commit", "date")
_TURNS = 3  # of each process
_ONE = "Each setting has one process, and they follow one another."
_SOME = "Each setting has {} processes, which follow one another; every other time settings go in the other order."
_METHOD = """Training steps of converted networks, the same as in `python -m tests.bench networks --gpu`. Launches wait
for the GPU, and what they read and write stays in memory until it has finished them. *graphs* is MLX's own setting, in
which up to a hundred launches are a CUDA graph; *100 launches* is MLX without graphs, which submits launches in
batches, of which ten may wait. Percentages are `{percent}`: memory that the launches that wait may hold, beyond what
the program needs. *{alive}* commits every other launch (`{launches}=2`), so that peaks are about what a step needs.
Importing mpsfunc chooses {chosen} %, unless the user set these variables.

{processes}
A turn is 20 steps that are launched ahead, after five that are not counted, and times are medians of {turns} turns a
process. Megabytes are peaks of MLX's arrays over such steps. Written by `python -m tests.bench.commits`."""


def measured(cell: Cell, settings: Sequence[str], processes: int) -> dict[str, tuple[float, float, float]]:
    """Milliseconds of a step, and megabytes of evaluated ones and of those launched ahead, by setting."""
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    peaks: dict[str, list[tuple[float, float]]] = {name: [] for name in settings}
    with tempfile.TemporaryDirectory() as folder:
        whole.write_weights(cell, Path(folder) / "weights.npz")
        for i in range(processes):
            for name in settings if i % 2 == 0 else reversed(settings):
                with Side(OURS, cell, Path(folder), SETTINGS[name]) as side:
                    told = side.report()
                    peaks[name].append((told["megabytes"], told["ahead"]))
                    seconds[name] += [side.turn() for _ in range(_TURNS)]
    return {
        name: (1e3 * statistics.median(seconds[name]), *(max(each[k] for each in peaks[name]) for k in (0, 1)))
        for name in settings
    }


def page(records: Sequence[networks_csv.Record]) -> list[str]:
    """A table of times and one of memory, a line a network, and what settings are beside the others on the whole."""
    by: dict[tuple[str, ...], dict[str, networks_csv.Record]] = {}
    for record in records:
        by.setdefault((record["network"], record["batch"], record["dtype"]), {})[record["setting"]] = record
    names = [name for name in SETTINGS if any(name in found for found in by.values())]
    parts = []
    for title, column, beside in (
        ("Milliseconds a step", "ms", None),
        ("Megabytes, steps launched ahead", "mb_ahead", ALIVE),
        ("Megabytes, steps evaluated one by one", "mb", ALIVE),
    ):
        lines = [
            [*case, *(f"{float(found[name][column]):.{1 if column == 'ms' else 0}f}" for name in names)]
            for case, found in by.items()
            if all(name in found for name in names)
        ]
        ratios = [[], *([] for _ in names[1:])] if names else []
        for found in by.values():
            if all(name in found for name in names):
                values = [float(found[name][column]) for name in names]
                least = values[names.index(beside)] if beside else min(values)
                for ratio, value in zip(ratios, values, strict=True):
                    ratio.append(value / least)
        means = [f"{math.exp(statistics.fmean(math.log(each) for each in ratio)):.2f}" for ratio in ratios if ratio]
        said = f"of the {'fastest' if beside is None else f'setting {beside}'}, geometric mean"
        worst = [f"{max(ratio):.2f}" for ratio in ratios if ratio]
        lines += [[said, "", "", *means], [said.replace("geometric mean", "at most"), "", "", *worst]]
        parts += [f"## {title}", report.table(["network", "batch", "dtype", *names], lines)]
    return parts


def main(args: argparse.Namespace) -> None:
    """Measures what is not known and writes the page."""
    machine = networks_csv.machine(True, args.commit)
    table, began = args.out / "commits.csv", time.monotonic()
    records = [each for each in networks_csv.read(table) if each["commit"] == machine.commit]
    known = {(each["network"], each["dtype"], each["setting"]) for each in records}
    cells = [cell for cell in whole.cells("gpu") if cell.trains and cell.network in args.only]
    for cell in (cell for cell in cells if cell.dtype in args.dtype):
        left = [name for name in args.settings if (cell.network, cell.dtype, name) not in known]
        if not left or time.monotonic() - began > 60 * args.minutes:
            continue
        for name, (ms, mb, ahead) in measured(cell, left, args.processes).items():
            values = (cell.network, cell.batch, cell.dtype, name, f"{ms:.3f}", f"{mb:.0f}", f"{ahead:.0f}")
            values += (machine.name, machine.packages, machine.commit, machine.date)
            records.append(dict(zip(COLUMNS, map(str, values), strict=True)))
            print(*values[:7], flush=True)
        with report.opened(args.out, table.name) as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)
    method = _METHOD.format(
        percent=PERCENT,
        launches=LAUNCHES,
        alive=ALIVE,
        chosen=mlx_settings.PERCENT,
        processes=_ONE if args.processes == 1 else _SOME.format(args.processes),
        turns=_TURNS,
    )
    facts = {"GPU": machine.name, "packages": machine.packages, "commit": machine.commit, "date": machine.date}
    parts = ["# CUDA graphs and the memory of launches that wait", method, report.table(["machine", ""], facts.items())]
    report.save(args.out, "commits", parts + page(records))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.commits", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=whole.NETWORKS, default=list(whole.NETWORKS))
    parser.add_argument("--dtype", nargs="+", choices=whole.DTYPES, default=["bfloat16"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no network after so many")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--commit", help="what is measured, where there is no git")
    main(parser.parse_args())
