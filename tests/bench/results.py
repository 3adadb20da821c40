"""What was measured for one problem, and which targets it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from support.benchmarks import COPY, OURS, Target

from . import stats
from .cupti import Kernel
from .problems import TOLERANCES, Problem, drop_error, error
from .rivals import Call, Refused, Side
from .stats import Ratio

# What meets a target of 1 where ours and the rival launch the same kernels.
_TIE = 0.99


class Row(NamedTuple):
    """Seconds a call of each rival, round by round; NaN where it sat a round out."""

    problem: Problem
    times: dict[str, list[float]]
    calls: dict[str, int]  # timed together
    kept: dict[str, list[float]]  # the same of as many calls whose results are kept until all are there; on the CPU
    wrong: dict[str, float | None]  # rivals that were not timed, and their error; None for one that refuses
    targets: tuple[Target, ...]
    routed: bool = False
    kernels: Mapping[str, tuple[Kernel, ...]] = MappingProxyType({})  # what a call of each rival runs on a GPU

    def ms(self, name: str) -> float | None:
        """Median milliseconds a call."""
        return 1e3 * stats.median(self.times[name]) if name in self.times else None

    def kept_ms(self, name: str) -> float | None:
        """Median milliseconds of one of the calls whose results are kept."""
        return 1e3 * stats.median(self.kept[name]) if name in self.kept else None

    def ratio(self, name: str) -> Ratio:
        """How many times faster ours is than a rival."""
        return stats.paired(self.times[name], self.times[OURS])

    def share(self) -> Ratio:
        """Bandwidth on necessary bytes, as a share of the copy's, which reads and writes x's bytes and keeps them."""
        scale, times = self.problem.necessary_bytes / (2 * self.problem.image_bytes), self.kept or self.times
        return stats.paired(times[COPY], times[OURS], scale)

    def fastest(self, names: Sequence[str]) -> str | None:
        """The rival with the lowest median."""
        present = [name for name in names if name in self.times]
        return min(present, key=lambda name: stats.median(self.times[name]), default=None)

    def measured(self, target: Target) -> Ratio | None:
        """What a target is about; None where no such rival was timed."""
        if target.versus == (COPY,):
            return self.share()
        name = self.fastest(target.versus)
        return None if name is None else self.ratio(name)

    def meets(self, target: Target) -> bool | None:
        """Whether ours reaches it, or nearly so with the rival's own kernels; None where it was not measured."""
        measured = self.measured(target)
        if measured is None:
            return None
        return measured.reaches(_TIE if target.least == 1 and self.ties(target) else target.least)

    def nearly(self, target: Target) -> bool:
        """Whether ours meets it by the rival's own kernels alone."""
        measured = self.measured(target)
        return measured is not None and bool(self.meets(target)) and not measured.reaches(target.least)

    def ties(self, target: Target) -> bool:
        """Whether ours launches kernels of the same names as the fastest rival of a target, as often."""
        ours, theirs = (self._launched(name) for name in (OURS, self.fastest(target.versus)))
        return bool(ours) and ours == theirs

    def _launched(self, name: str | None) -> list[tuple[str, float]]:
        return [(kernel.name, kernel.launches) for kernel in self.kernels.get(name or "", ())]


def checked(
    problem: Problem,
    sides: Sequence[Side],
    oracle: Side,
    inputs: SimpleNamespace,
    tolerance: float | None = None,
) -> tuple[dict[str, Call], dict[str, float | None]]:
    """The calls of the sides whose answers are right, to the dtype's tolerance or another, and the others' errors.

    Raises:
        AssertionError: Ours is wrong: no time of it is worth anything.
    """
    off_by = _judge(problem, oracle, inputs)
    calls: dict[str, Call] = {}
    wrong: dict[str, float | None] = {}
    tolerance = TOLERANCES[problem.dtype] if tolerance is None else tolerance
    for side in sides:
        if not hasattr(side.functions, problem.op):  # nor need it get the inputs
            continue
        try:
            call = side.bind(problem, side.place(inputs, problem.dtype))
            if call is None:
                continue
            off = off_by(side.answer(problem.op, call()))
        except Refused:
            wrong[side.name] = None
            continue
        if off <= tolerance:
            calls[side.name] = call
        elif side.name == OURS:
            raise AssertionError(f"{problem.title} {problem.dtype}: wrong, with a relative error of {off:.2g}")
        else:
            wrong[side.name] = off
    return calls, wrong


def has_oracle(problem: Problem, functions: Any) -> bool:
    """Whether PyTorch's functions can check answers; deform_conv's are torchvision's, which may be missing."""
    return not problem.operation.by_value or hasattr(functions, problem.op)


def _judge(problem: Problem, oracle: Side, inputs: SimpleNamespace) -> Callable[[list[np.ndarray]], float]:
    """Tells the error of an answer."""
    if not problem.operation.by_value:
        return lambda got: drop_error(got, inputs)
    reference = oracle.bind(problem, oracle.place(inputs, "float64"))
    assert reference is not None, f"{problem.title}: the oracle does not have it here"
    expected = oracle.answer(problem.op, reference())
    return lambda got: error(got, expected)
