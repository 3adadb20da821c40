"""Tables: Markdown for people, CSV for machines."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from support.benchmarks import COPY, OURS, PYTORCH

from . import cupti, stats
from .memory import LIMITS_MB, Growth
from .results import Row
from .stats import Ratio

_LONG = 140  # letters of a kernel's name
_PACKAGES = ("mlx", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "torch", "jax", "numpy")
_COLUMNS = [
    "op", "n", "h", "w", "c", "dtype", "kernel_size", "stride", "padding", "edge_mode", "outs", "dilation", "groups",
    "exponent", "rival", "ms", "kept_ms",
    "calls", "rounds", "ours_is_faster", "low", "high", "necessary_bytes", "error", "routed",
]  # fmt: skip


def write(folder: Path, name: str, title: str, facts: dict[str, str], method: str, rows: Sequence[Row]) -> str:
    """Writes ``name``.md and ``name``.csv and returns the first."""
    parts = [f"# {title}", picture(name, _result(rows)), method, table(["machine", ""], facts.items())]
    parts += ["## Targets", _targets(rows)]
    parts += ["## Milliseconds a call", _times(rows)]
    if launched := _kernels(rows):
        parts += ["## Kernels behind what is missed", "Of one turn more, which is not among the others.", launched]
    with opened(folder, f"{name}.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(line for row in rows for line in _records(row))
    return save(folder, name, parts)


def write_memory(folder: Path, facts: dict[str, str], method: str, growths: Sequence[Growth]) -> str:
    """Writes memory.md and memory.csv and returns the first."""
    sides = list(growths[0].beyond) if growths else []
    head = ["operation", "x", "outputs", *sides, "limit"]
    body = []
    for growth in growths:
        limit = LIMITS_MB.get(growth.problem.op)
        verdict = "" if limit is None else f"{limit} MB, {'met' if growth.met else 'missed'}"
        megabytes = [f"{n / 1e6:.1f}" for n in (growth.outputs, *growth.beyond.values())]
        body.append([growth.problem.title, _shape(growth.problem.shape), *megabytes, verdict])
    with opened(folder, "memory.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["op", "n", "h", "w", "c", "dtype", "rival", "beyond_bytes", "output_bytes"])
        for growth in growths:
            p = growth.problem
            writer.writerows([p.op, *p.nhwc, p.dtype, side, n, growth.outputs] for side, n in growth.beyond.items())
    parts = ["# Memory on the CPU", picture("memory", _memory_result(growths)), method]
    parts += [table(["machine", ""], facts.items()), "## Megabytes", table(head, body)]
    return save(folder, "memory", parts)


def cpu_facts(commit: str, isa: str, threads: int) -> dict[str, str]:
    """What a reader must know about this machine and its software."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, {threads} threads used",
        "instruction set used": isa,
        "processes running before": f"{os.getloadavg()[0]:.1f} in the last minute",
        **_software(commit),
    }


def gpu_facts(commit: str, name: str, driver: str) -> dict[str, str]:
    """The same for a GPU."""
    return {"GPU": name, "driver": driver, "processor": _processor(), **_software(commit)}


def commit(folder: Path | None = None) -> str:
    """The commit of a checkout, by default of this one, and whether it has changes."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(git, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _software(commit: str) -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": commit,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def vendor() -> str:
    """Who made this processor, in the names of files: "amd", "intel", or the architecture."""
    try:
        found = re.search(r"^vendor_id\s*:\s*(\w+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(found[1] if found else "", platform.machine())


def _targets(rows: Iterable[Row]) -> str:
    body = []
    for row in rows:
        for target in row.targets:
            measured = row.measured(target)
            met, p = row.meets(target), row.problem
            verdict = "" if met is None else "met" if met else "**missed**"
            said = [_share(measured) if target.versus == (COPY,) else _ratio(measured), verdict]
            notes = [_note(row)] * row.routed + ["same kernels"] * row.ties(target)
            body.append([p.title, p.dtype, _shape(p.shape), str(target), *said, ", ".join(notes)])
    return table(["operation", "dtype", "x", "at least", "measured (95 %)", "", ""], body)


def _result(rows: Sequence[Row]) -> str:
    """The main result in words."""
    ratios = [row.ratio(best).median for row in rows if (best := row.fastest(PYTORCH))]
    met = [row.meets(target) for row in rows for target in row.targets]
    nearly = sum(row.nearly(target) for row in rows for target in row.targets)
    said = speed_result(ratios, [each for each in met if each is not None])
    return said + f"; {nearly} of those met are 0.99 with the same kernels" * bool(nearly)


def speed_result(ratios: Sequence[float], met: Sequence[bool]) -> str:
    """How many rows are as fast as PyTorch, by how much, and how many targets are met."""
    parts = []
    if ratios:
        as_fast = f"{sum(ratio >= 1 for ratio in ratios)} of {len(ratios)} rows"
        middle = f"{statistics.median(ratios):.2f} times as fast in the median row"
        parts.append(f"mpsfunc is at least as fast as PyTorch's faster layout in {as_fast}, {middle}")
    return "; ".join(parts + [counted(met, "targets")] * bool(met))


def counted(met: Sequence[bool], what: str) -> str:
    """How many targets or limits are met, and how many are not."""
    return f"{sum(met)} of {len(met)} {what} are met, {len(met) - sum(met)} missed"


def _memory_result(growths: Sequence[Growth]) -> str:
    sides = list(growths[0].beyond) if growths else []
    most = [f"{max(growth.beyond[side] for growth in growths) / 1e6:.1f} for {side}" for side in sides]
    met = [growth.met for growth in growths if growth.met is not None]
    said = f"The most megabytes that a call takes beyond its inputs and outputs: {', '.join(most)}"
    return "; ".join([said] + [counted(met, "limits")] * bool(met))


def _times(rows: Sequence[Row]) -> str:
    rivals = list(dict.fromkeys(name for row in rows for name in (*row.times, *row.wrong) if name not in (OURS, COPY)))
    kept = ["kept", "PyTorch, kept"] if any(row.kept for row in rows) else []
    head = ["operation", "dtype", "x", OURS, *rivals, "x PyTorch", *kept, "MB", "of copy", ""]
    body = []
    for row in rows:
        p, best = row.problem, row.fastest(PYTORCH)
        against = _ratio(row.ratio(best) if best else None)
        megabytes = f"{p.necessary_bytes / 1e6:.1f}"
        times = [_milliseconds(row.ms(OURS)), *(_time(row, name) for name in rivals)]
        theirs = min((ms for name in PYTORCH if (ms := row.kept_ms(name)) is not None), default=None)
        second = [_milliseconds(row.kept_ms(OURS)), _milliseconds(theirs)] if kept else []
        figures = [*times, against, *second, megabytes, _share(row.share())]
        body.append([p.title, p.dtype, _shape(p.shape), *figures, _note(row)])
    return table(head, body)


def _kernels(rows: Iterable[Row]) -> str:
    """What ours and each rival of a missed target ran on a GPU, the longest first; nothing where none is known."""
    body = []
    for row in rows:
        missed = [target for target in row.targets if row.meets(target) is False]
        rivals = [name for target in missed if (name := row.fastest(target.versus)) and name != COPY]
        for side in dict.fromkeys([OURS] * bool(missed) + rivals):
            p = row.problem
            for kernel in sorted(row.kernels.get(side, ()), key=lambda kernel: -kernel.microseconds):
                name = f"`{cupti.short(kernel.name, _LONG)}`"
                figures = f"{kernel.launches:.3g}", f"{kernel.microseconds:.1f}"
                body.append([p.title, p.dtype, _shape(p.shape), side, name, *figures])
    head = ["operation", "dtype", "x", "side", "kernel", "launches", "microseconds"]
    return table(head, body) if body else ""


def _records(row: Row) -> Iterable[list[object]]:
    p = row.problem
    known = [p.op, *p.nhwc, p.dtype, p.kernel_size, p.stride, p.padding, p.edge_mode, p.outs]
    known += [p.dilation, p.groups, p.exponent]
    alone = {name: times for name, times in row.kept.items() if name not in row.times}  # the copy, on the CPU
    for name, times in {**row.times, **alone}.items():
        taken = sum(t == t for t in times)
        ratio = stats.paired(times, row.kept[OURS]) if name in alone else row.ratio(name)
        ms = row.kept_ms(name) if name in alone else row.ms(name)
        numbers = [ms, row.kept_ms(name), row.calls[name], taken, *ratio]
        yield [*known, name, *map(_rounded, numbers), p.necessary_bytes, "", row.routed and name == OURS]
    for name, error in row.wrong.items():
        yield [*known, name, *[""] * 7, p.necessary_bytes, "refused" if error is None else f"{error:.2g}", False]


def _time(row: Row, name: str) -> str:
    if name not in row.wrong:
        return _milliseconds(row.ms(name))
    error = row.wrong[name]
    return "refused" if error is None else f"wrong by {error:.1g}"


def _note(row: Row) -> str:
    return "routed" if row.routed else ""


def _milliseconds(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def _ratio(ratio: Ratio | None) -> str:
    return "not timed" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _share(ratio: Ratio | None) -> str:
    return "not timed" if ratio is None else f"{ratio.median:.0%} ({ratio.low:.0%} to {ratio.high:.0%})"


def _rounded(value: float | int | None) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else "" if value is None else value


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def picture(name: str, said: str) -> str:
    """The line that shows what docs/draw_benchmarks.py draws of a table, and says what is to be seen."""
    return f"![{said}]({name}.svg)"


def table(head: Sequence[object], body: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (head, rule, *body))


def opened(folder: Path, name: str) -> TextIO:
    """A file of a folder, to write to."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).open("w", encoding="utf-8", newline="")


def save(folder: Path, name: str, parts: Sequence[str]) -> str:
    """Writes parts of a page, and returns it."""
    text = "\n\n".join(parts) + "\n"
    with opened(folder, f"{name}.md") as file:
        file.write(text)
    return text
