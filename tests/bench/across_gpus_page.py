"""Page and CSV of training on several GPUs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import across_gpus_ranks, report, stats
from .across_gpus_ranks import COMPILED, OWN, SYNCHRONISED, Options

OURS = "mpsfunc"
SCALING, SYNCHRONISING, LOSSES, GONE = 0.95, 1.15, 1e-3, 60.0  # targets; the third is a share of the loss
_METHOD = """ResNet-50 on random images of {pixels}x{pixels}, {batch} a GPU, in {dtype}; SGD with momentum.
*mpsfunc* is [the example](../examples/train_across_gpus.py): gradients are averaged in buckets of 32 MiB while the
backward pass runs, by NCCL on a stream of their own. *PyTorch* is DistributedDataParallel, eager, with images channels
last, weights in {dtype} and cuDNN's benchmark mode. In *synchronised* the statistics of batch norm are those of all
processes; PyTorch's is SyncBatchNorm. Each rank is a process. All sides take turns, {rounds} each; in a turn {warm}
steps are not counted, then {steps} are launched without waiting for each other, and the time of the slowest rank
counts. Times are medians. *one function* is a step on one GPU that is compiled as a whole, as in [whole
networks](networks_h200.md). *of so many GPUs* divides the images a second by those of one GPU in the same turn, of the
faster way, times the number of GPUs; *synchronised / own* divides times of the same turn. Intervals are a bootstrap's,
of 95 %. *launched* is when the Python thread had launched the steps, per step. *GB* is the peak of the library's
allocator, of each rank. Written by `python -m tests.bench.across_gpus --gpus {gpus}`."""
_COLUMNS = ("part", "library", "gpus", "kind", "number", "rank", "value", "unit", "note")


class Side(NamedTuple):
    """A library on so many GPUs, with statistics of one kind; a variant is of ours, and beside the comparison."""

    library: str
    gpus: int
    kind: str
    variant: bool = False


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

    def sides(self, variants: bool) -> list[Side]:
        """Those that have turns, in their order."""
        return list(dict.fromkeys(turn.side for turn in self.turns if turn.side.variant == variants))

    def scaling(self, side: Side) -> list[float]:
        """Turn by turn, images a second of several GPUs over those of one, times their number."""
        here, alone = self.of(side), [self.of(Side(side.library, 1, kind)) for kind in (OWN, COMPILED)]
        if side.variant:
            one = min((stats.median([turn.seconds for turn in each.values()]) for each in alone if each), default=None)
            return [] if one is None else [one / turn.seconds for turn in here.values()]
        faster = {i: min(each[i].seconds for each in alone if i in each) for i in here if any(i in a for a in alone)}
        return [faster[i] / here[i].seconds for i in faster]

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
        rounds=max((len(measured.of(side)) for side in measured.sides(False)), default=0),
        warm=across_gpus_ranks.WARM,
        steps=measured.steps,
        gpus=" ".join(map(str, measured.gpus)),
    )
    parts = [f"# Training on {max(measured.gpus)} GPUs", method, report.table(["machine", ""], _told(measured.facts))]
    parts += ["## Speed", report.table(_SPEED, [_speed(measured, side) for side in measured.sides(False)])]
    if targets := list(_targets(measured)):
        parts += ["## Targets", report.table(["what", "measured", "target", ""], targets)]
    if measured.losses:
        parts += ["## Losses", _losses(measured)]
    if measured.events:
        parts += ["## When a process goes", _EVENTS, report.table(_EVENT, [_event(each) for each in measured.events])]
    if others := measured.sides(True):
        parts += ["## Variants", _VARIANTS, report.table(_SPEED, [_speed(measured, side) for side in others])]
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
_EVENTS = """The last rank of the example is killed (SIGKILL) or stopped (SIGSTOP) while all train."""
_VARIANTS = """Measured after the others, and compared with the median of one GPU. What is not said is as in *own
statistics*, which is among them again."""


def _told(facts: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in facts.items() if value]


def _speed(measured: Measured, side: Side) -> list[str]:
    found = list(measured.of(side).values())
    seconds = stats.median([turn.seconds for turn in found])
    launched = stats.median([turn.launched for turn in found])
    speed = measured.options.batch * side.gpus / seconds
    peaks = [max(of_rank) / 1e9 for of_rank in zip(*(turn.peaks for turn in found), strict=True)]
    synchronised = not side.variant and side.kind == SYNCHRONISED
    return [
        *(side.library, str(side.gpus), side.kind, f"{1e3 * seconds:.1f}", f"{1e3 * launched:.1f}", f"{speed:.0f}"),
        _interval(measured.scaling(side)) if side.gpus > 1 else "",
        _interval(measured.synchronising(side)) if synchronised else "",
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
        if difference := _difference(measured, gpus):
            yield _judged(f"losses, {gpus} processes and one, largest difference", difference, LOSSES, False)
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
    what = f"Of {steps} steps in float32 with the same images in all, and synchronised statistics."
    return f"{what}\n\n{report.table(head, body)}"


def _event(event: Event) -> list[str]:
    seconds = "**not**" if event.seconds is None else f"{event.seconds:.1f}"
    return [str(event.gpus), event.how, str(event.rank), seconds, str(event.returncode), event.said]


def _records(measured: Measured) -> Iterator[list[object]]:
    for turn in measured.turns:
        side = turn.side
        part = "variant" if side.variant else "speed"
        head = [side.library, side.gpus, side.kind, turn.number]
        yield [part, *head, "", f"{turn.seconds:.6g}", "s a step", ""]
        yield [part, *head, "", f"{turn.launched:.6g}", "s a step, launched", ""]
        yield from ([part, *head, rank, peak, "bytes", ""] for rank, peak in enumerate(turn.peaks))
    for gpus, found in measured.losses.items():
        yield from (["losses", OURS, gpus, SYNCHRONISED, i, "", repr(loss), "", ""] for i, loss in enumerate(found))
    for event in measured.events:
        seconds = "" if event.seconds is None else f"{event.seconds:.3f}"
        note = f"{event.returncode}: {event.said}"
        yield ["gone", OURS, event.gpus, event.how, "", event.rank, seconds, "s", note]
    yield from (["failed", "", "", "", "", "", "", "", note] for note in measured.notes)
    yield from (["fact", "", "", name, "", "", value, "", ""] for name, value in measured.facts.items())
