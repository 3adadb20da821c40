"""The results of `compare`, which print on one screen."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.printing import describe
from mpsfunc.nn.report import Conversion

STOCK, CONVERTED, INFERENCE = "mlx.nn", "converted", "for inference"
WHAT = ("forward", "step")

# How far an output may be from mlx.nn's, as a share of the largest number in it: three to four times the furthest that
# networks of tests/models were, converted and for inference, on a CPU: 2.3e-6, 4.1e-3 and 3.1e-2, of U-Nets. bfloat16
# stays below a tenth, which is an error and no rounding. In float64 MLX's exp, layer and group norms have float32's
# digits (2.4e-7); what calls none of them was equal to 5e-16.
BOUNDS = {mx.float64: 1e-6, mx.float32: 1e-5, mx.float16: 1.5e-2, mx.bfloat16: 8e-2}
_GPU_FLOAT32 = 1e-4  # not measured: Metal's 3x3 convolutions are Winograd's, which round more
_FLIPS = 1e-2  # share of whole numbers and bools that may differ, such as classes where two are as likely


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
        difference: The greatest difference of an output from mlx.nn's, as a share of the largest number in it, or the
            share of whole numbers that differ. Infinite where shapes or dtypes differ; None where not compared.
        agrees: Whether its outputs are mlx.nn's but for rounding; None where not compared, and for mlx.nn.
        note: Why something was not measured or not compared; empty where all was.
        kept_twice: The bytes of folded and rearranged weights that it keeps in addition to its own.
    """

    name: str
    forward: Timing | None
    step: Timing | None
    difference: float | None
    agrees: bool | None
    note: str
    kept_twice: int = 0


class Comparison(NamedTuple):
    """What `compare` found; print it.

    Fields:
        setting: Shape, dtype, device and rounds.
        variants: What was measured, of each variant.
        report: The report of `convert` on the converted model.
    """

    setting: str
    variants: tuple[Variant, ...]
    report: Conversion

    @property
    def agree(self) -> bool | None:
        """Whether all outputs equal those of mlx.nn up to rounding; None if some were not compared and none differs."""
        told = [each.agrees for each in self.variants if each.name != STOCK]
        return False if False in told else None if None in told else True

    def __str__(self) -> str:
        columns = ["", *(part for what in WHAT for part in (what, "x", "MB")), "difference"]
        rows = [columns, *(_cells(each) for each in self.variants)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = [self.setting]
        for first, *rest in rows:
            cells = "  ".join(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append(f"{first.ljust(widths[0])}  {cells}".rstrip())
        lines += [f"{each.name}: {each.note}" for each in self.variants if each.note]
        lines += [
            f"{each.name}: keeps {each.kept_twice:,} bytes of folded and rearranged weights in addition to its own"
            for each in self.variants
            if each.kept_twice
        ]
        return "\n".join([*lines, str(self.report)])

    def as_dict(self) -> dict[str, object]:
        """The comparison as a dict for JSON. JSON has no infinite numbers, so an infinite difference is None."""
        report = {**self.report._asdict(), "hint": self.report.hint, "kept_twice": self.report.kept_twice}
        variants = [
            {
                **each._asdict(),
                **{what: made and made._asdict() for what, made in _timings(each).items()},
                "difference": None if each.difference == math.inf else each.difference,
            }
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


class NotMeasured(Exception):
    """What was not measured, since it takes too long or fails; told as it is."""


class Runner(Protocol):
    """A model, ready to be measured: "forward" and "step" are what it is asked for."""

    report: Conversion

    def first(self, what: str) -> int:
        """Runs it once, and returns the bytes in use on the way. Raises NotMeasured."""
        ...

    def outputs(self) -> dict[str, mx.array]:
        """The results of the first forward pass, by their place."""
        ...

    def outputs_of_one(self) -> dict[str, mx.array] | None:
        """The results of a forward pass of the first image alone; None where there are none."""
        ...

    def seconds(self, what: str) -> float:
        """Of running it once more."""
        ...


def measured(
    setting: str,
    starts: Mapping[str, Callable[[], Runner]],
    *,
    train: bool,
    rounds: int,
    limit: float,
    bounds: Mapping[mx.Dtype, float] = BOUNDS,
) -> Comparison:
    """Compares them, that of mlx.nn first: each at first by itself, and then in turns."""
    notes: dict[str, list[str]] = {name: [] for name in starts}
    runners: dict[str, Runner] = {}
    held: dict[str, dict[str, int]] = {what: {} for what in WHAT}
    differences: dict[str, float] = {}
    agrees: dict[str, bool] = {}
    want: dict[str, mx.array] | None = None
    of_one = False
    for name, start in starts.items():
        runner = runners[name] = start()
        try:
            held["forward"][name] = runner.first("forward")
        except NotMeasured as why:
            notes[name].append(str(why))
            if name == STOCK:
                want, of_one = runner.outputs_of_one(), True
            continue
        if name == STOCK:
            want = runner.outputs()
        else:
            got = (runner.outputs_of_one() if of_one else runner.outputs()) if want is not None else None
            if want is None or got is None:
                notes[name].append("not compared with mlx.nn")
            else:
                differences[name], other = apart(got, want, bounds)
                agrees[name] = not other
                if other:
                    del held["forward"][name]
                    notes[name].append(f"not timed, since {other}")
                    continue
                if of_one:
                    notes[name].append("compared with mlx.nn for the first image alone")
        if train and name != INFERENCE:
            try:
                held["step"][name] = runner.first("step")
            except NotMeasured as why:
                notes[name].append(str(why))
    found = {
        what: timings(turns({name: partial(runners[name].seconds, what) for name in each}, rounds, limit), each)
        for what, each in held.items()
    }
    variants = tuple(
        Variant(
            name,
            found["forward"].get(name),
            found["step"].get(name),
            differences.get(name),
            agrees.get(name),
            "; ".join(notes[name]),
            runner.report.kept_twice,
        )
        for name, runner in runners.items()
    )
    report = runners[CONVERTED].report if CONVERTED in runners else Conversion({}, {}, {}, {})
    return Comparison(setting, variants, report)


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


# How far outputs are apart ----------------------------------------------------------------------------------


def bounds_of(computed: Iterable[mx.Dtype], device: mx.Device) -> dict[mx.Dtype, float]:
    """How far an output of each dtype may be off where a model has parameters and an input of those dtypes.

    What was computed in a narrower dtype than it is returned in has that one's digits.
    """
    bounds = dict(BOUNDS)
    if device.type == mx.gpu:
        tf32 = launch.backend(mx.default_stream(device)) == "cuda" and os.environ.get("MLX_ENABLE_TF32", "1") != "0"
        bounds[mx.float32] = bounds[mx.float16] if tf32 else _GPU_FLOAT32  # TF32 has float16's digits
    least = max((bounds[dtype] for dtype in computed if dtype in bounds), default=0.0)
    return {dtype: max(bound, least) for dtype, bound in bounds.items()}


def apart(
    got: Mapping[str, mx.array], want: Mapping[str, mx.array], bounds: Mapping[mx.Dtype, float] = BOUNDS
) -> tuple[float, str]:
    """The greatest difference, and why the outputs are not the same but for rounding; empty if they are."""
    if got.keys() != want.keys():
        return math.inf, f"its outputs are {describe(list(got))} and mlx.nn's {describe(list(want))}"
    greatest, excess, why = 0.0, 1.0, ""
    for at, ours in got.items():
        theirs, which = want[at], f"its output {at}" if at else "its output"
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return math.inf, f"{which} is {describe(ours)} and mlx.nn's {describe(theirs)}"
        off, most = difference(ours, theirs), _bound(ours.dtype, bounds)
        greatest = max(greatest, off)
        if off > most * excess:
            excess = off / most
            why = f"{which} differs by {_off(off, ours.dtype)}; {str(ours.dtype).rpartition('.')[2]} may by {most:.1g}"
    return greatest, why


def _bound(dtype: mx.Dtype, bounds: Mapping[mx.Dtype, float]) -> float:
    if dtype == mx.complex64:
        return bounds[mx.float32]
    return bounds.get(dtype, _FLIPS)


def _off(off: float, dtype: mx.Dtype) -> str:
    if off == math.inf:
        return "what is infinite, NaN or nothing but zeros"
    return f"{off:.2g} of {'the largest' if mx.issubdtype(dtype, mx.inexact) else 'its numbers'}"


def difference(ours: mx.array, theirs: mx.array) -> float:
    """The greatest difference as a share of the largest number; infinite where not the same numbers are finite.

    Of whole numbers and bools the share that differs.
    """
    if not ours.size:
        return 0.0
    with mx.stream(mx.cpu):  # where float64 is
        if not mx.issubdtype(ours.dtype, mx.inexact):
            return int((ours != theirs).sum()) / ours.size
        if ours.dtype == mx.complex64:
            ours, theirs = (mx.stack([mx.real(a), mx.imag(a)]) for a in (ours, theirs))
        ours, theirs = ours.astype(mx.float64), theirs.astype(mx.float64)
        known = mx.isfinite(theirs) & mx.isfinite(ours)
        if not mx.array_equal(mx.where(known, 0, ours), mx.where(known, 0, theirs), equal_nan=True):
            return math.inf
        scale = float(mx.where(known, mx.abs(theirs), 0).max())
        off = float(mx.where(known, mx.abs(ours - theirs), 0).max())
    return off / scale if scale else math.inf if off else 0.0
