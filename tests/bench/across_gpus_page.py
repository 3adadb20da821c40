"""Page and CSV of training on several GPUs."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mpsfunc.core import mlx_settings

from . import across_gpus_ranks, report, stats
from .across_gpus_ranks import LOSSES, OWN, SYNCHRONISED, Options

OURS = "mpsfunc"
EXAMPLES = 50  # MPSFUNC_RUN_AHEAD of docs/examples/train_across_gpus.py
SCALING, SYNCHRONISING, DIFFERENCE, GONE = 0.95, 1.15, 1e-3, 60.0  # targets; the third is a share of the loss
_METHOD = """ResNet-50 on random images of {pixels}x{pixels}, {batch} a GPU, in {dtype}; SGD with momentum.
*mpsfunc* is [the example](../examples/train_across_gpus.py): a step is one compiled function, with MLX's average of the
gradients in it. *ahead* is `MPSFUNC_RUN_AHEAD`: the percentage of memory, beyond what the program needs, that launches
may hold which wait for the GPU; 0 takes that limit away. {default:g} is what `import mpsfunc` chooses and {examples:g}
what the example does. With *synchronised* statistics of batch norm are those of all processes.{pytorch}

Each rank is a process. A group of them is started, takes its turns and is ended before the next one starts, once in
each round; there were {rounds}. In a turn {warm} steps are not counted, then {steps} are launched without waiting for
each other, and the time of the slowest rank counts. A group takes {turns} turns of each kind. Times are medians of all
turns. *of so many* divides images a second by those of one GPU in the same round, times the number of GPUs, with the
same limit and with that of {default:g} %; *synchronised / own* divides times of the same round and limit. Ratios are
medians over the rounds, and what follows is the lowest and the highest. *launched* is when the Python thread had
launched the steps, per step. *GB* is the peak of the library's allocator, of each rank. Written by the command in the
table."""
_PYTORCH = """ *PyTorch* is
DistributedDataParallel, eager, with images channels last, weights in {dtype} and cuDNN's benchmark mode; on one GPU it
is the model alone. Its synchronised batch norm is SyncBatchNorm."""
_COLUMNS = ("part", "library", "gpus", "kind", "ahead", "number", "rank", "value", "unit", "note")


class Side(NamedTuple):
    """A library on so many GPUs, with statistics of one kind, and a limit to its launches if it is ours."""

    name: str
    gpus: int
    kind: str
    ahead: float | None


class Turn(NamedTuple):
    """Seconds of a step, and until it was launched, of the slowest rank, and bytes of each."""

    side: Side
    round: int
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

    def of(self, side: Side) -> dict[int, float]:
        """A side's seconds by rounds."""
        rounds: dict[int, list[float]] = {}
        for turn in self.turns:
            if turn.side == side:
                rounds.setdefault(turn.round, []).append(turn.seconds)
        return {number: stats.median(found) for number, found in rounds.items()}

    def sides(self) -> list[Side]:
        """Those that have turns, in their order."""
        return sorted(
            dict.fromkeys(turn.side for turn in self.turns), key=lambda side: (side.name == "PyTorch", side.gpus)
        )

    def scaling(self, side: Side, ahead: float | None) -> list[float]:
        """Round by round, images a second of several GPUs over those of one with that limit, times their number."""
        return _ratios(self.of(Side(side.name, 1, OWN, ahead)), self.of(side))

    def synchronising(self, side: Side) -> list[float]:
        """Round by round, a step with synchronised statistics over one without."""
        return _ratios(self.of(side), self.of(side._replace(kind=OWN)))


def _ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    return [above[i] / below[i] for i in above if i in below]


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
        turns=_turns(measured),
        warm=across_gpus_ranks.WARM,
        default=mlx_settings.PERCENT,
        examples=EXAMPLES,
        steps=measured.steps,
        pytorch=_PYTORCH.format(dtype=options.dtype) if any(side.name != OURS for side in measured.sides()) else "",
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


_SPEED = (
    *("library", "GPUs", "statistics", "ahead", "ms", "launched, ms", "images/s"),
    *("of so many, same limit", f"of so many, {mlx_settings.PERCENT:g} %", "synchronised / own", "GB"),
)
_EVENT = ["GPUs", "the last rank is", "rank", "ends after, s", "status", "says"]
_LOSSES = """Of {steps} steps of the example's small network in float32, without TF32, with the same {images} images of
{pixels}x{pixels} in all, and synchronised statistics. Those of ResNet-50 show nothing, since rounding alone soon drives
them apart."""
_EVENTS = """The last rank of the example is killed (SIGKILL) or stopped (SIGSTOP) while all train."""


def _told(facts: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in facts.items() if value]


def _turns(measured: Measured) -> int:
    return max(Counter((turn.side, turn.round) for turn in measured.turns).values(), default=0)


def _speed(measured: Measured, side: Side) -> list[str]:
    found = [turn for turn in measured.turns if turn.side == side]
    seconds = stats.median([turn.seconds for turn in found])
    launched = stats.median([turn.launched for turn in found])
    speed = measured.options.batch * side.gpus / seconds
    peaks = [max(of_rank) / 1e9 for of_rank in zip(*(turn.peaks for turn in found), strict=True)]
    default = float(mlx_settings.PERCENT) if side.name == OURS else None
    scaled = side.gpus > 1
    return [
        *(side.name, str(side.gpus), side.kind, "" if side.ahead is None else f"{side.ahead:g}"),
        *(f"{1e3 * seconds:.1f}", f"{1e3 * launched:.1f}", f"{speed:.0f}"),
        _ratio(measured.scaling(side, side.ahead)) if scaled else "",
        _ratio(measured.scaling(side, default)) if scaled and default is not None else "",
        _ratio(measured.synchronising(side)) if side.kind == SYNCHRONISED else "",
        ", ".join(f"{peak:.1f}" for peak in peaks),
    ]


def _ratio(values: list[float]) -> str:
    between = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{stats.median(values):.3f}{between}" if values else "-"


def _targets(measured: Measured) -> Iterator[list[str]]:
    for gpus in measured.gpus:
        if gpus == 1:
            continue
        own = Side(OURS, gpus, OWN, float(EXAMPLES))
        for what, ahead in (("", own.ahead), (f" with a limit of {mlx_settings.PERCENT:g} %", mlx_settings.PERCENT)):
            if values := measured.scaling(own, ahead):
                what = f"speed of the example on {gpus} GPUs, of {gpus} times one{what}"
                yield _judged(what, stats.median(values), SCALING, True)
        if values := measured.synchronising(own._replace(kind=SYNCHRONISED)):
            what = f"step of the example with synchronised statistics, {gpus} GPUs, of one without"
            yield _judged(what, stats.median(values), SYNCHRONISING, False)
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
        head = [side.name, side.gpus, side.kind, "" if side.ahead is None else f"{side.ahead:g}", turn.round]
        yield ["speed", *head, "", f"{turn.seconds:.6g}", "s a step", ""]
        yield ["speed", *head, "", f"{turn.launched:.6g}", "s a step, launched", ""]
        yield from (["speed", *head, rank, peak, "bytes", ""] for rank, peak in enumerate(turn.peaks))
    for gpus, found in measured.losses.items():
        yield from (["losses", OURS, gpus, SYNCHRONISED, "", i, "", repr(loss), "", ""] for i, loss in enumerate(found))
    for event in measured.events:
        seconds = "" if event.seconds is None else f"{event.seconds:.3f}"
        note = f"{event.returncode}: {event.said}"
        yield ["gone", OURS, event.gpus, event.how, "", "", event.rank, seconds, "s", note]
    yield from (["failed", "", "", "", "", "", "", "", "", note] for note in measured.notes)
    yield from (["fact", "", "", name, "", "", "", value, "", ""] for name, value in measured.facts.items())
