"""Page and CSV of training on several GPUs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import across_gpus_ranks, report, stats
from .across_gpus_ranks import LOSSES, OWN, SYNCHRONISED, Options

OURS = "mpsfunc"
SCALING, SYNCHRONISING, DIFFERENCE, GONE = 0.95, 1.15, 1e-3, 60.0  # targets; the third is a share of the loss
_METHOD = """ResNet-50 on random images of {pixels}x{pixels}, {batch} a GPU, in {dtype}; SGD with momentum.
*mpsfunc* is [the example](../examples/train_across_gpus.py): a step is one compiled function, with MLX's average of the
gradients in it. *No launch limit* is the same with `MPSFUNC_RUN_AHEAD=0`: only MLX limits how much memory launches hold
that wait for the GPU. *PyTorch* is DistributedDataParallel, eager, with images channels last, weights in {dtype} and
cuDNN's benchmark mode; on one GPU it is the model alone. In *synchronised* statistics of batch norm are those of all
processes; PyTorch's is SyncBatchNorm. Each rank is a process. All live until the end and take turns, {rounds} each; in
a turn {warm} steps are not counted, then {steps} are launched without waiting for each other, and the time of the
slowest rank counts. Times are medians. *of so many GPUs* divides the images a second by those of one GPU in the same
turn times the number of GPUs; *synchronised / own* divides times of the same turn. Intervals are a bootstrap's, of
95 %. *launched* is when the Python thread had launched the steps, per step. *GB* is the peak of the library's
allocator, of each rank. Written by `python -m tests.bench.across_gpus --gpus {gpus}`."""
_COLUMNS = ("part", "library", "gpus", "kind", "number", "rank", "value", "unit", "note")


class Side(NamedTuple):
    """A library on so many GPUs, with statistics of one kind."""

    library: str
    gpus: int
    kind: str


class Turn(NamedTuple):
    """Seconds of a step, and until it was launched, of the slowest rank, and bytes of each."""

    side: Side
    number: int
    seconds: float
    launched: float
    peaks: tuple[int, ...]


class Event(NamedTuple):
    """What a rank did after the last one was killed or stopped: when it ended, if it did, how, and what it said."""

    gpus: int
    how: str
    rank: int
    seconds: float | None
    returncode: int | None
    said: str


class Measured:
    """Everything, as it comes in."""

    def __init__(self, options: Options, gpus: tuple[int, ...], steps: int, facts: dict[str, str]) -> None:
        self.options, self.gpus, self.steps, self.facts = options, gpus, steps, facts
        self.turns: list[Turn] = []
        self.losses: dict[int, list[float]] = {}
        self.events: list[Event] = []
        self.notes: list[str] = []

    def of(self, side: Side) -> dict[int, Turn]:
        """A side's turns by their numbers."""
        return {turn.number: turn for turn in self.turns if turn.side == side}

    def sides(self) -> list[Side]:
        """Those that have turns, in their order."""
        return list(dict.fromkeys(turn.side for turn in self.turns))

    def scaling(self, side: Side) -> list[float]:
        """Turn by turn, images a second of several GPUs over those of one, times their number."""
        here, alone = self.of(side), self.of(Side(side.library.split(",")[0], 1, OWN))
        return [alone[i].seconds / here[i].seconds for i in here if i in alone]

    def synchronising(self, side: Side) -> list[float]:
        """Turn by turn, a step with synchronised statistics over one without."""
        without, here = self.of(side._replace(kind=OWN)), self.of(side)
        return [here[i].seconds / without[i].seconds for i in here if i in without]


def write(folder: Path, measured: Measured) -> str:
    """Writes both and returns the page."""
    name = f"distributed_{max(measured.gpus)}"
    with report.opened(folder, f"{name}.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(_records(measured))
    options = measured.options
    method = _METHOD.format(
        pixels=options.pixels,
        batch=options.batch,
        dtype=options.dtype,
        rounds=max((len(measured.of(side)) for side in measured.sides()), default=0),
        warm=across_gpus_ranks.WARM,
        steps=measured.steps,
        gpus=" ".join(map(str, measured.gpus)),
    )
    parts = [f"# Training on {max(measured.gpus)} GPUs", method, report.table(["machine", ""], _told(measured.facts))]
    parts += ["## Speed", report.table(_SPEED, [_speed(measured, side) for side in measured.sides()])]
    if targets := list(_targets(measured)):
        parts += ["## Targets", report.table(["what", "measured", "target", ""], targets)]
    if measured.losses:
        parts += ["## Losses", _losses(measured)]
    if measured.events:
        parts += ["## When a process goes", _EVENTS, report.table(_EVENT, [_event(each) for each in measured.events])]
    if measured.notes:
        parts += ["## What failed", "\n".join(f"- {note}" for note in measured.notes)]
    return report.save(folder, name, parts)


_SPEED = [
    "library",
    "GPUs",
    "statistics",
    "ms",
    "launched, ms",
    "images/s",
    "of so many GPUs",
    "synchronised / own",
    "GB",
]
_EVENT = ["GPUs", "the last rank is", "rank", "ends after, s", "status", "says"]
_LOSSES = """Of {steps} steps of the example's small network in float32, without TF32, with the same {images} images of
{pixels}x{pixels} in all, and synchronised statistics. Those of ResNet-50 show nothing: on a CPU, images that differ by
2^-22 of their values change its loss by 0.8 % within four steps."""
_EVENTS = """The last rank of the example is killed (SIGKILL) or stopped (SIGSTOP) while all train."""


def _told(facts: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in facts.items() if value]


def _speed(measured: Measured, side: Side) -> list[str]:
    found = list(measured.of(side).values())
    seconds = stats.median([turn.seconds for turn in found])
    launched = stats.median([turn.launched for turn in found])
    speed = measured.options.batch * side.gpus / seconds
    peaks = [max(of_rank) / 1e9 for of_rank in zip(*(turn.peaks for turn in found), strict=True)]
    return [
        *(side.library, str(side.gpus), side.kind, f"{1e3 * seconds:.1f}", f"{1e3 * launched:.1f}", f"{speed:.0f}"),
        _interval(measured.scaling(side)) if side.gpus > 1 else "",
        _interval(measured.synchronising(side)) if side.kind == SYNCHRONISED else "",
        ", ".join(f"{peak:.1f}" for peak in peaks),
    ]


def _interval(values: list[float]) -> str:
    if not values:
        return "-"
    ratio = stats.paired(values, [1.0] * len(values))
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _targets(measured: Measured) -> Iterator[list[str]]:
    for gpus in measured.gpus:
        if gpus == 1:
            continue
        own, together = Side(OURS, gpus, OWN), Side(OURS, gpus, SYNCHRONISED)
        if values := measured.scaling(own):
            yield _judged(f"speed of {gpus} GPUs, of {gpus} times one", stats.median(values), SCALING, True)
        if values := measured.synchronising(together):
            yield _judged(f"step with synchronised statistics, {gpus} GPUs", stats.median(values), SYNCHRONISING, False)
        if (difference := _difference(measured, gpus)) is not None:
            yield _judged(f"losses, {gpus} processes and one, largest difference", difference, DIFFERENCE, False)
    for how in dict.fromkeys(event.how for event in measured.events):
        times = [event.seconds if event.returncode else None for event in measured.events if event.how == how]
        longest = max((math.inf if each is None else each for each in times), default=math.inf)
        yield _judged(f"seconds until all others have ended with an error, {how}", longest, GONE, False)


def _judged(what: str, value: float, target: float, at_least: bool) -> list[str]:
    met = value >= target if at_least else value <= target
    return [what, f"{value:.3g}", f"{'at least' if at_least else 'at most'} {target:g}", "met" if met else "**missed**"]


def _difference(measured: Measured, gpus: int) -> float | None:
    one, several = measured.losses.get(1), measured.losses.get(gpus)
    if not one or not several:
        return None
    return max(abs(a - b) / abs(a) for a, b in zip(one, several, strict=True))


def _losses(measured: Measured) -> str:
    steps = max(map(len, measured.losses.values()))
    head = ["step", *(f"{gpus} processes" for gpus in measured.losses)]
    body = [[str(i), *(f"{each[i]:.6f}" for each in measured.losses.values())] for i in range(steps)]
    what = _LOSSES.format(steps=steps, **{name: LOSSES[name] for name in ("images", "pixels")})
    return f"{what}\n\n{report.table(head, body)}"


def _event(event: Event) -> list[str]:
    seconds = "**not**" if event.seconds is None else f"{event.seconds:.1f}"
    return [str(event.gpus), event.how, str(event.rank), seconds, str(event.returncode), event.said]


def _records(measured: Measured) -> Iterator[list[object]]:
    for turn in measured.turns:
        side = turn.side
        head = [side.library, side.gpus, side.kind, turn.number]
        yield ["speed", *head, "", f"{turn.seconds:.6g}", "s a step", ""]
        yield ["speed", *head, "", f"{turn.launched:.6g}", "s a step, launched", ""]
        yield from (["speed", *head, rank, peak, "bytes", ""] for rank, peak in enumerate(turn.peaks))
    for gpus, found in measured.losses.items():
        yield from (["losses", OURS, gpus, SYNCHRONISED, i, "", repr(loss), "", ""] for i, loss in enumerate(found))
    for event in measured.events:
        seconds = "" if event.seconds is None else f"{event.seconds:.3f}"
        note = f"{event.returncode}: {event.said}"
        yield ["gone", OURS, event.gpus, event.how, "", event.rank, seconds, "s", note]
    yield from (["failed", "", "", "", "", "", "", "", note] for note in measured.notes)
    yield from (["fact", "", "", name, "", "", value, "", ""] for name, value in measured.facts.items())
