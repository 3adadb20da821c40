"""The page of whole networks on one kind of processor, out of its CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from . import networks_turns, report, whole
from .networks_csv import Record, beside, case_of, faster, read
from .networks_turns import ALIVE, AUTOTUNED, COMPILED, EAGER, JAX, OURS, Measured
from .stats import Ratio, median, paired

ALL, OVER_EAGER = 1.0, 1.3  # times the faster in each cell, and times PyTorch eager in the middle of those in float32
OF_FLOAT32 = 1.1  # times the float32 time, where the processor does not multiply bfloat16
OF_ALIVE = 1.15  # on a GPU, times what is alive
OF_EAGER = {"ResNet-50": 1.0}  # on a GPU what is alive, times PyTorch eager's; others 1.1
_SIDES = """The networks are those of `tests/models`: each is written with mlx.nn and again in PyTorch, has the same
random weights and statistics in both, and no dropout or stochastic depth. *mpsfunc* is the model of mlx.nn after
`mpsfunc.nn.convert` with an example input (for inference with `inference=True`), compiled by `mx.compile`. *PyTorch* is
eager, with images channels last; *compiled* is `torch.compile`, for inference with frozen weights.

A training step is forward, backward and SGD with momentum. The loss is cross-entropy; where a network has no classes
(U-Net, generator, YOLO backbone), it is the mean of (y - 1)^2 over an output y, added up over the outputs. In bfloat16,
weights, images, states and gradients are bfloat16, and the loss is computed in float32. Images are 224x224, except for
the U-Net (128x128), the YOLO backbone (that of YOLOv8-s; 416x416) and two networks for 32x32: *small*, which has six
3x3 convolutions, and ResNet-20, as He et al. (2015) define it for CIFAR, with projection shortcuts. The generator makes
images of 64x64.

Before anything is timed, results are compared with those of PyTorch eager. Errors may be at most {outputs:g} of the
outputs' norm in inference, {losses:g} of the loss in the first training step, and that plus {drops:g} of its decrease
in the decrease over two steps. In bfloat16 these are {wide:g}, {wide_losses:g} and {wide_drops:g}.

Each library runs in its own process, which is started {processes} times; one computes at a time, in turn. """
_CPU = """In a turn,
one step warms up threads and caches and is not counted; then as many as fill {turn} s, from one to {most}, and their
mean counts. If a step takes more than a second, stock MLX and JAX have two turns of one step; if more than a minute,
none. *ms* is the median of the turns. Ratios are medians of the turns' ratios, with a bootstrap interval of 95 %.
Every library uses at most two threads, on two cores. A target is met if the median is at least 1 and the lower end at
least 0.97. In bfloat16 it applies only where the processor has bfloat16 instructions; elsewhere mpsfunc may take at
most {float32:g} times its own time in float32. *MB* is how much a process's peak memory (VmHWM) grows in the first
three steps. It includes the optimizer's state, but not parameters and images, nor compilation by PyTorch and JAX. If
several processes ran, the smallest value counts. The target in training is no more memory than PyTorch eager.
Written by `python -m tests.bench networks`."""
_GPU = """In a turn,
{warm} steps are not counted; then {steps} are launched without waiting for each other, and their mean counts. Ratios
are medians of the turns' ratios, with a bootstrap interval of 95 %. Float32 uses TensorFloat-32 in all libraries, and
the three limits of errors are then {tf32:g}, {tf32_losses:g} and {tf32_drops:g}. A target is met if the median is at
least 1 and the lower end at least 0.97; for inference of one image it compares with PyTorch eager only. *MB* is the
peak of the library's allocator: *evaluated*, over steps that are evaluated one at a time; *ahead*, over {steps} steps
launched without waiting; *alive*, with `MLX_MAX_OPS_PER_BUFFER=2`, which is the memory that is in use at once.
Written by `python -m tests.bench networks --gpu`."""


class Line(NamedTuple):
    """A cell: its rows, the rival that counts, how ours stands to that, the target, and whether it is met."""

    cell: list[Record]
    rival: Record
    ratio: Ratio
    asked: str
    met: bool | None

    @property
    def ours(self) -> Record:
        """Our row."""
        return next(record for record in self.cell if record["side"] == OURS)

    @property
    def known(self) -> list[str]:
        """What is measured."""
        return [self.ours[name] for name in ("network", "mode", "batch", "dtype")]


def write(table: Path) -> str:
    """Writes the page beside a table, and returns it."""
    records = read(table)
    on_gpu = any(record["isa"].startswith("driver") for record in records)
    lines = judged(records, on_gpu)
    met = [line.met for line in lines if line.met is not None]
    memory = [each for line in lines if (each := of_memory(line, on_gpu))]
    met += [each[-1] == "met" for each in memory]
    means = " ".join(geometric(lines))
    method = (_SIDES + (_GPU if on_gpu else _CPU)).format(
        outputs=networks_turns.OUTPUTS["float32"],
        losses=networks_turns.LOSSES["float32"],
        drops=networks_turns.DROPS["float32"],
        wide=networks_turns.OUTPUTS["bfloat16"],
        wide_losses=networks_turns.LOSSES["bfloat16"],
        wide_drops=networks_turns.DROPS["bfloat16"],
        tf32=networks_turns.OUTPUTS["tf32"],
        tf32_losses=networks_turns.LOSSES["tf32"],
        tf32_drops=networks_turns.DROPS["tf32"],
        most=networks_turns.MOST_STEPS,
        processes=networks_turns.PROCESSES,
        turn=networks_turns.TURN,
        warm=networks_turns.GPU_WARM,
        steps=networks_turns.GPU_STEPS,
        float32=OF_FLOAT32,
    )
    name = table.stem
    title = f"Whole networks on an {_processor(name, records[0], on_gpu)}"
    said = f"{means} {report.counted(met, 'targets')}"
    head = ["network", "mode", "batch", "dtype", *(f"{side}, ms" for side in (OURS, EAGER, "compiled"))]
    head += ["compared with", "times as fast (95 %)", *(f"{side}, MB" for side in (OURS, EAGER, "compiled"))]
    parts = [f"# {title}", report.picture(name, said), method, report.table(["machine", ""], facts(records).items())]
    parts += ["## Networks", means, report.table([*head, "target", ""], (_cells(line) for line in lines))]
    if memory:
        kinds = ["evaluated", "ahead", "alive"] if on_gpu else [OURS]
        shown = ["network", "batch", "dtype", *(f"{kind}, MB" for kind in kinds), f"{EAGER}, MB", "at most", ""]
        parts += ["## Memory of a training", report.table(shown, (_marked(each) for each in memory))]
    if others := list(_others(lines)):
        parts += [
            "## Others",
            report.table(["network", "mode", "batch", "dtype", "side", "ms", "its time, times ours", "MB"], others),
        ]
    return report.save(table.parent, name, parts)


def _processor(name: str, record: Record, on_gpu: bool) -> str:
    if on_gpu:
        return record["machine"]
    _, kind, *isa = name.split("_", 2)
    return f"{dict(amd='AMD', intel='Intel').get(kind, kind)} CPU" + "".join(f" with {each}" for each in isa)


def facts(records: Sequence[Record]) -> dict[str, str]:
    """What a reader must know of the machine and the software, of all rows."""
    names = {"processor": "machine", "instruction set used": "isa", "bfloat16 multiplied by": "bfloat16_by"}
    names |= {name: name for name in ("packages", "commit")}
    told = {shown: "; ".join(dict.fromkeys(record[name] for record in records)) for shown, name in names.items()}
    told["commit"] = _commits(records)
    told["bfloat16 multiplied by"] = told["bfloat16 multiplied by"] or "nothing"
    dates = sorted(record["date"] for record in records)
    return told | {"date": dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"}


def _commits(records: Sequence[Record]) -> str:
    """That of all rows, or that of most, and of which rows the others are."""
    counted = Counter(record["commit"] for record in records)
    most = counted.most_common(1)[0][0]
    found = [most]
    for commit in (each for each in counted if each != most):
        cells = [record for record in records if record["commit"] == commit and record["side"] == OURS]
        named = dict.fromkeys(f"{each['network']}, {each['mode']} x{each['batch']}, {each['dtype']}" for each in cells)
        found.append(f"but {commit} of: {'; '.join(named)}")
    return "; ".join(found)


def judged(records: Sequence[Record], on_gpu: bool) -> list[Line]:
    """A line a cell."""
    cells: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        cells.setdefault(case_of(record), []).append(record)
    return [_line(cell, cells, on_gpu) for cell in cells.values()]


def _line(cell: list[Record], cells: dict[tuple[str, ...], list[Record]], on_gpu: bool) -> Line:
    ours = next(record for record in cell if record["side"] == OURS)
    rivals: tuple[str, ...] = EAGER, COMPILED
    if on_gpu and ours["mode"] == whole.TRAINING:
        rivals += AUTOTUNED, JAX
    elif on_gpu and ours["batch"] == "1":
        rivals = (EAGER,)
    rival = faster(cell, rivals)
    ratio = Ratio(*(float(rival[name]) for name in ("times_ours", "low", "high")))
    if ours["dtype"] == "float32" or ours["bfloat16_by"]:
        return Line(cell, rival, ratio, f"{ALL:g} x", ratio.reaches(ALL))
    wide = cells.get(tuple("float32" if name == "bfloat16" else name for name in case_of(ours)), [])
    of_float32 = beside(OURS, wide)
    met = None if of_float32 is None else float(ours["ms"]) <= OF_FLOAT32 * float(of_float32["ms"])
    return Line(cell, rival, ratio, f"{OF_FLOAT32:g} x the time in float32", met)


def of_memory(line: Line, on_gpu: bool) -> list[str] | None:
    """What a training takes beside PyTorch eager; nothing for inference."""
    ours, theirs = line.ours, beside(EAGER, line.cell)
    if ours["mode"] != whole.TRAINING or theirs is None:
        return None
    network, _, batch, dtype = line.known
    mine = float(ours["mb"])
    if not on_gpu:
        met = mine <= float(theirs["mb"])
        return [network, batch, dtype, f"{mine:.0f}", f"{float(theirs['mb']):.0f}", "1 x", "met" if met else "missed"]
    alive = beside(ALIVE, line.cell)
    if alive is None:
        return None
    least, share = float(alive["mb"]), OF_EAGER.get(network, 1.1)
    met = least <= share * float(theirs["mb"]) and max(mine, float(ours["mb_ahead"])) <= OF_ALIVE * least
    figures = [f"{each:.0f}" for each in (mine, float(ours["mb_ahead"]), least, float(theirs["mb"]))]
    return [
        network,
        batch,
        dtype,
        *figures,
        f"{share:g} x alive, {OF_ALIVE:g} x of that else",
        "met" if met else "missed",
    ]


def geometric(lines: Iterable[Line]) -> list[str]:
    """Sentences on the means over all cells of a dtype."""
    found = []
    for dtype in whole.DTYPES:
        over = [
            float(eager["times_ours"])
            for line in lines
            if line.known[3] == dtype and (eager := beside(EAGER, line.cell))
        ]
        best = [line.ratio.median for line in lines if line.known[3] == dtype]
        if over:
            means = [math.exp(sum(map(math.log, ratios)) / len(ratios)) for ratios in (over, best)]
            asked = f" (target {OVER_EAGER:g})" if dtype == "float32" else ""
            found.append(
                f"In {dtype} mpsfunc is {means[0]:.2f} times as fast as PyTorch eager in the geometric mean over "
                f"{len(over)} cells{asked}, and {means[1]:.2f} times as fast as the fastest alternative of each cell."
            )
    return found


def told(measured: Measured) -> str:
    """A cell in words."""
    ours = measured.seconds[OURS]
    parts = [f"{OURS} {1e3 * median(ours):.4g} ms, {measured.megabytes[OURS]:.0f} MB"]
    for side, seconds in measured.seconds.items():
        if side != OURS:
            ratio = paired(seconds, ours)
            parts.append(
                f"{side} {1e3 * median(seconds):.4g} ({ratio.median:.2f} x), {measured.megabytes[side]:.0f} MB"
            )
    return "; ".join(parts + [f"{side} {why}" for side, why in measured.notes.items()])


def _cells(line: Line) -> list[str]:
    timed = [beside(side, line.cell) for side in (OURS, EAGER, COMPILED)]
    numbers = [_figure(record["ms"]) if record else "" for record in timed]
    megabytes = [f"{float(record['mb']):.0f}" if record else "" for record in timed]
    ratio = f"{line.ratio.median:.2f} ({line.ratio.low:.2f} to {line.ratio.high:.2f})"
    verdict = "" if line.met is None else "met" if line.met else "**missed**"
    return [*line.known, *numbers, line.rival["side"], ratio, *megabytes, line.asked, verdict]


def _marked(cells: list[str]) -> list[str]:
    return [*cells[:-1], "**missed**" if cells[-1] == "missed" else cells[-1]]


def _others(lines: Iterable[Line]) -> Iterable[list[str]]:
    """Sides that the main table has no column for, and what has no time."""
    for line in lines:
        for record in line.cell:
            if record["note"]:
                yield [*line.known, record["side"], "", record["note"].replace("|", "/"), ""]
            elif record["side"] not in (OURS, EAGER, COMPILED):
                ratio = f"{float(record['times_ours']):.2f} ({float(record['low']):.2f} to {float(record['high']):.2f})"
                yield [*line.known, record["side"], _figure(record["ms"]), ratio, f"{float(record['mb']):.0f}"]


def _figure(ms: str) -> str:
    value = float(ms)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
