"""The CSV of whole networks: a row a side of a cell, the latest for each kind of processor."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from . import report
from .networks_turns import OURS, Measured
from .stats import paired
from .whole import Cell

Record = dict[str, str]
CASE = ("network", "mode", "batch", "dtype", "pixels")
COLUMNS = (
    *CASE,
    *("side", "ms", "ms_low", "ms_high"),
    *("times_ours", "low", "high"),  # this side's time over ours, turn by turn
    *("mb", "mb_ahead", "rounds", "note"),
    *("machine", "isa", "bfloat16_by", "packages", "commit", "date"),
)
_ROOT = Path(__file__).parents[2]
_CODE = ("mpsfunc", "metal", "primitives")  # what is measured


class Machine(NamedTuple):
    """What a cell is measured on, and with.

    Fields:
        kind: In the names of files: "amd" or "intel" where its instructions for bfloat16 are used, otherwise with the
            set, as in "amd_avx2"; of a GPU "h100".
        name: Of the processor or the GPU.
        isa: The instruction set that mpsfunc uses, or the GPU's driver.
        bfloat16_by: The instructions that multiply bfloat16 as it is: "amx", "avx512_bf16" or nothing.
        packages: Their versions.
        commit: The last that changed what is measured, and whether it has changed since.
        date: When this program began.
    """

    kind: str
    name: str
    isa: str
    bfloat16_by: str
    packages: str
    commit: str
    date: str


def machine(on_gpu: bool, commit: str | None = None) -> Machine:
    """This one."""
    commit = commit or last_change()
    if on_gpu:
        from . import gpu

        name, driver = gpu.card()
        facts = report.gpu_facts(commit, name, driver)
        kind = re.sub(r"\W+", "_", name.lower().replace("nvidia", "").split()[0])
        return Machine(kind, name, f"driver {driver}", "tensor cores", facts["packages"], commit, facts["date"])
    from mpsfunc import _primitives

    facts = report.cpu_facts(commit, _primitives.isa(), 2)
    info = Path("/proc/cpuinfo").read_text()
    flags = set(re.findall(r"\w+", next((line for line in info.splitlines() if line.startswith("flags")), "")))
    by = "amx" if "amx_bf16" in flags else "avx512_bf16" if "avx512_bf16" in flags else ""
    isa = facts["instruction set used"]
    return Machine(kind_of(isa, by), facts["processor"], isa, by, facts["packages"], commit, facts["date"])


def kind_of(isa: str, bfloat16_by: str) -> str:
    """The kind of this processor with an instruction set: each has tables of its own, whose rows are comparable."""
    return report.vendor() if isa == bfloat16_by else f"{report.vendor()}_{isa}"


def last_change(root: Path = _ROOT) -> str:
    """The last commit that changed what is measured: tables that are committed between two runs change nothing."""
    git = ["git", "-C", str(root)]
    try:
        log = subprocess.run(
            [*git, "log", "-1", "--format=%h", "--abbrev=12", "--", *_CODE], capture_output=True, text=True
        )
        status = subprocess.run([*git, "status", "--porcelain", "--", *_CODE], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return (log.stdout.strip() or "unknown") + "-dirty" * bool(status.stdout.strip())


def read(table: Path) -> list[Record]:
    """The rows, none if there is no table."""
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def case(cell: Cell) -> tuple[str, ...]:
    """What tells a cell from others in a table."""
    return tuple(str(getattr(cell, name)) for name in CASE)


def case_of(record: Record) -> tuple[str, ...]:
    """That of a row."""
    return tuple(record[name] for name in CASE)


def lacking(records: Iterable[Record], cells: Sequence[Cell], on: Machine) -> list[Cell]:
    """The cells that have not been measured on this machine, at this commit."""
    known = {
        case_of(record)
        for record in records
        if (record["machine"], record["isa"], record["commit"]) == (on.name, on.isa, on.commit)
    }
    return [cell for cell in cells if case(cell) not in known]


def rows(measured: Measured, on: Machine) -> list[Record]:
    """Those of a cell."""
    ours, found = measured.seconds[OURS], []
    for side in (*measured.seconds, *measured.notes):
        record = dict.fromkeys(COLUMNS, "") | dict(zip(CASE, case(measured.cell), strict=True)) | {"side": side}
        record |= {"machine": on.name} | {name: str(getattr(on, name)) for name in COLUMNS if name in on._fields}
        if side in measured.notes:
            found.append(record | {"note": measured.notes[side]})
            continue
        seconds = measured.seconds[side]
        numbers = [1e3 * each for each in paired(seconds, [1.0] * len(seconds))] + list(paired(seconds, ours))
        named = zip(("ms", "ms_low", "ms_high", "times_ours", "low", "high"), numbers, strict=True)
        record |= {name: f"{number:.5g}" for name, number in named}
        record |= {"mb": f"{measured.megabytes[side]:.1f}", "rounds": str(sum(each == each for each in seconds))}
        if measured.ahead[side] == measured.ahead[side]:
            record["mb_ahead"] = f"{measured.ahead[side]:.1f}"
        found.append(record)
    return found


def keep(table: Path, measured: Measured, on: Machine) -> None:
    """Puts a cell into a table, in the place of what that has of it; and lets nobody read half of it."""
    mine = case(measured.cell)
    records = [record for record in read(table) if case_of(record) != mine] + rows(measured, on)
    order = {case(cell): i for i, cell in enumerate(_order(measured.cell))}
    records.sort(key=lambda record: order.get(case_of(record), len(order)))
    table.parent.mkdir(parents=True, exist_ok=True)
    part = table.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    part.replace(table)


def _order(cell: Cell) -> list[Cell]:
    from . import whole

    return [*whole.cells(cell.device), *whole.cells(cell.device, quick=True)]


def beside(side: str, cell: Sequence[Record]) -> Record | None:
    """A side's row of a cell, if it has times."""
    return next((record for record in cell if record["side"] == side and record["ms"]), None)


def faster(cell: Sequence[Record], names: Sequence[str]) -> Record:
    """The fastest of these sides, one of which is there."""
    timed = [record for name in names if (record := beside(name, cell))]
    return min(timed, key=lambda record: float(record["ms"]))
