"""Whole networks beside PyTorch, eager and compiled, JAX and stock MLX, in all modes, batches and dtypes.

python -m tests.bench networks                       what the CSV of this kind of processor lacks for this commit
python -m tests.bench networks --minutes 25 --only ResNet-50 MobileNetV2
python -m tests.bench networks --gpu                 on an NVIDIA GPU
python -m tests.bench networks --layers ResNet-50    each of its convolutions, with its share of the peak
python -m tests.bench networks --page                the page of a CSV, without measuring
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import whole
from .whole import Cell

FOLDER = Path("docs/benchmarks")
ROUNDS, GPU_ROUNDS = 15, 8


def parser() -> argparse.ArgumentParser:
    """Of this program's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m tests.bench networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--only", nargs="+", choices=whole.NETWORKS, metavar="NETWORK", help=", ".join(whole.NETWORKS))
    found.add_argument("--modes", nargs="+", choices=whole.MODES)
    found.add_argument("--batch", nargs="+", type=int, help="of those of the matrix")
    found.add_argument("--dtype", nargs="+", choices=whole.DTYPES)
    found.add_argument("--gpu", action="store_true", help="on an NVIDIA GPU")
    found.add_argument("--again", action="store_true", help="measure what the CSV has, too")
    found.add_argument("--minutes", type=float, help="begin no cell that may end later than after so many")
    found.add_argument("--rounds", type=int, help=f"default {ROUNDS}, on a GPU {GPU_ROUNDS}")
    found.add_argument("--quick", action="store_true", help="small images, one round: to see that it runs")
    found.add_argument(
        "--sides", nargs="+", metavar="SIDE", help="beside mpsfunc and PyTorch eager, of those of a cell"
    )
    found.add_argument("--layers", choices=whole.NETWORKS, metavar="NETWORK", help="its convolutions one by one")
    found.add_argument("--page", action="store_true", help="only write the page and the picture of what the CSV has")
    found.add_argument("--out", type=Path, help=f"folder of the tables; default {FOLDER}, if not --quick")
    found.add_argument("--commit", help="what is measured, where there is no git")
    return found


def main(arguments: Sequence[str]) -> int:
    """Measures what is asked for and not there yet, and writes the page after each cell."""
    parsing = parser()
    args = parsing.parse_args(arguments)
    args.out = args.out or (Path(tempfile.mkdtemp()) if args.quick else FOLDER)
    args.rounds = args.rounds or (1 if args.quick else GPU_ROUNDS if args.gpu else ROUNDS)
    if not args.gpu:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors
    if args.layers:
        if args.gpu:
            parsing.error("--layers measures the CPU")
        from . import networks_layers

        print(networks_layers.main(args))
        return 0

    from . import networks_csv, networks_page

    machine = networks_csv.machine(args.gpu, args.commit)
    table = args.out / f"networks_{machine.kind}.csv"
    if not args.page:
        with contextlib.suppress(KeyboardInterrupt):  # the rows so far
            run(args, machine, table)
    if table.exists():
        print(networks_page.write(table))
    return 0


def wanted(args: argparse.Namespace) -> list[Cell]:
    """The cells that are asked for, in the order in which they are measured."""
    return [
        cell
        for cell in whole.cells("gpu" if args.gpu else "cpu", args.quick)
        if (not args.only or cell.network in args.only)
        and (not args.modes or cell.mode in args.modes)
        and (not args.batch or cell.batch in args.batch)
        and (not args.dtype or cell.dtype in args.dtype)
    ]


def run(args: argparse.Namespace, machine: object, table: Path) -> None:
    """Measures the cells that a table lacks, one after the other, and keeps each as soon as it is there."""
    from . import networks_csv, networks_page, networks_turns

    assert isinstance(machine, networks_csv.Machine)
    asked = wanted(args)
    cells = asked if args.again else networks_csv.lacking(networks_csv.read(table), asked, machine)
    print(f"{len(asked)} cells, of which the table has {len(asked) - len(cells)}", flush=True)
    begun, longest = time.monotonic(), 0.0
    for i, cell in enumerate(cells):
        start = time.monotonic()
        if args.minutes and i and start + longest - begun > 60 * args.minutes:
            print(f"no time for the {len(cells) - i} cells that are left", flush=True)
            return
        names = networks_turns.sides(cell)
        if args.sides is not None:
            always = (networks_turns.OURS, networks_turns.EAGER)
            names = [name for name in names if name in (*always, *args.sides)]
        processes = 1 if args.rounds == 1 else networks_turns.PROCESSES
        measured = networks_turns.measure(cell, names, args.rounds, processes)
        networks_csv.keep(table, measured, machine)
        longest = max(longest, time.monotonic() - start)
        print(f"{cell}: {networks_page.told(measured)}; {time.monotonic() - start:.0f} s", flush=True)
