"""What a comparison of a model with its conversions found, in one screen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import mlx.core as mx

from mpsfunc.nn.report import Conversion

STOCK, CONVERTED, INFERENCE = "mlx.nn", "converted", "for inference"
WHAT = ("forward", "step")

# Greatest difference of outputs, as a share of the largest, beyond which a variant is not timed.
TOLERANCES = {mx.float16: 3e-2, mx.bfloat16: 2e-1}
_TOLERANCE = 1e-3


class Timing(NamedTuple):
    """What a pass takes.

    Fields:
        seconds: The median.
        ratio: How many times faster than ``mlx.nn`` it is: the median of the ratios in each round. None without that.
        bytes: The most memory in use on the way.
    """

    seconds: float
    ratio: float | None
    bytes: int


class Variant(NamedTuple):
    """One of the models that were compared.

    Fields:
        name: "mlx.nn", "converted" or "for inference".
        forward: A forward pass in evaluation; None where it was not measured.
        step: A training step; None where it was not measured.
        difference: The greatest difference of an output from those of the first variant that has any, as a share of the
            largest; None for that one.
        note: Why something was not measured; empty where all was.
    """

    name: str
    forward: Timing | None
    step: Timing | None
    difference: float | None
    note: str


class Comparison(NamedTuple):
    """What `compare` found; print it.

    Fields:
        setting: Shape, dtype, device and rounds.
        variants: What was measured, of each variant.
        report: What `convert` said of the converted model.
    """

    setting: str
    variants: tuple[Variant, ...]
    report: Conversion

    @property
    def agree(self) -> bool:
        """Whether all outputs agree."""
        return all(each.difference is None or each.forward is not None for each in self.variants)

    def __str__(self) -> str:
        columns = ["", *(part for what in WHAT for part in (what, "x", "MB")), "difference"]
        rows = [columns, *(_cells(each) for each in self.variants)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = [self.setting]
        for first, *rest in rows:
            cells = "  ".join(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append(f"{first.ljust(widths[0])}  {cells}".rstrip())
        lines += [f"{each.name}: {each.note}" for each in self.variants if each.note]
        return "\n".join([*lines, str(self.report)])

    def as_dict(self) -> dict[str, object]:
        """The same for JSON."""
        report = {**self.report._asdict(), "hint": self.report.hint}
        variants = [
            {**each._asdict(), **{what: made and made._asdict() for what, made in _timings(each).items()}}
            for each in self.variants
        ]
        return {"setting": self.setting, "agree": self.agree, "variants": variants, "report": report}


def _timings(of: Variant) -> dict[str, Timing | None]:
    return {"forward": of.forward, "step": of.step}


def _cells(of: Variant) -> list[str]:
    """A row of the table."""
    cells = [of.name]
    for made in _timings(of).values():
        if made is None:
            cells += ["-", "", ""]
            continue
        ratio = "" if made.ratio is None else f"{made.ratio:.3g}"
        cells += [_time(made.seconds), ratio, f"{made.bytes / 1e6:.0f}"]
    return [*cells, "" if of.difference is None else f"{of.difference:.0e}"]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


# How variants take turns ----------------------------------------------------------------------------------


class TooSlow(Exception):
    """What was not measured, since it takes too long; told as it is."""


class Runner(Protocol):
    """A model, ready to be measured: "forward" and "step" are what it is asked for."""

    report: Conversion

    def first(self, what: str) -> int:
        """Runs it once, and returns the bytes in use on the way. Raises TooSlow."""
        ...

    def outputs(self) -> dict[str, mx.array]:
        """The results of the first forward pass, by their place."""
        ...

    def seconds(self, what: str) -> float:
        """Of running it once more."""
        ...


def measured(
    setting: str, starts: Mapping[str, Callable[[], Runner]], *, train: bool, rounds: int, limit: float
) -> Comparison:
    """Compares them: each at first by itself, and then in turns."""
    notes = dict.fromkeys(starts, "")
    runners: dict[str, Runner] = {}
    held: dict[str, dict[str, int]] = {what: {} for what in WHAT}
    differences: dict[str, float | None] = {}
    report, want = None, None
    for name, start in starts.items():
        runner = start()
        runners[name], report = runner, runner.report if name == CONVERTED else report
        try:
            held["forward"][name] = runner.first("forward")
            got = runner.outputs()
            differences[name] = None if want is None else difference(got, want)
            want = want or got
            if (differences[name] or 0) > max(TOLERANCES.get(a.dtype, _TOLERANCE) for a in got.values()):
                del held["forward"][name]
                notes[name] = f"not timed, since its outputs differ by {differences[name]:.0e} of the largest"
            elif train and name != INFERENCE:
                held["step"][name] = runner.first("step")
        except TooSlow as slow:
            notes[name] = str(slow)
    found = {
        what: timings(turns({name: partial(runners[name].seconds, what) for name in each}, rounds, limit), each)
        for what, each in held.items()
    }
    variants = [
        Variant(name, found["forward"].get(name), found["step"].get(name), differences.get(name), notes[name])
        for name in starts
    ]
    return Comparison(setting, tuple(variants), report or Conversion({}, {}, {}, {}))


def turns(sides: Mapping[str, Callable[[], float]], rounds: int, limit: float) -> dict[str, list[float]]:
    """Seconds by side and round, each round in another order; NaN where a side has had all its time before."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(rounds if names else 0):
        first = i % len(names)
        for name in (*names[first:], *names[:first]):
            spent = sum(each for each in seconds[name] if not math.isnan(each))
            seconds[name].append(math.nan if spent > limit else sides[name]())
    return seconds


def timings(seconds: Mapping[str, list[float]], held: Mapping[str, int]) -> dict[str, Timing]:
    """The medians, and the ratios to stock of the rounds in which both took part."""
    found = {}
    for name, each in seconds.items():
        pairs = [b / a for a, b in zip(each, seconds.get(STOCK, []), strict=False) if not math.isnan(a + b)]
        ratio = statistics.median(pairs) if pairs else None
        found[name] = Timing(statistics.median(a for a in each if not math.isnan(a)), ratio, held[name])
    return found


def difference(got: Mapping[str, mx.array], want: Mapping[str, mx.array]) -> float:
    """The greatest difference as a share of the largest number; infinite where numbers are missing on one side only."""
    if {at: a.shape for at, a in got.items()} != {at: a.shape for at, a in want.items()}:
        return math.inf
    greatest = 0.0
    with mx.stream(mx.cpu):  # where float64 is
        for at, a in got.items():
            ours, theirs = a.astype(mx.float64), want[at].astype(mx.float64)
            known = mx.isfinite(theirs)
            if mx.any(known != mx.isfinite(ours)).item():
                return math.inf
            scale = float(mx.where(known, mx.abs(theirs), 0).max()) if a.size else 0.0
            apart = float(mx.where(known, mx.abs(ours - theirs), 0).max()) if a.size else 0.0
            greatest = max(greatest, apart / scale if scale else math.inf if apart else 0.0)
    return greatest
