"""How rivals take turns, and the CPU's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from .rivals import Call, Side

Sampler = Callable[[], float]  # seconds for one call

# PyTorch's threads spin for 7 or 8 ms after their work, more on a busy machine; the next rival starts when they sleep.
PAUSE = 0.02
# Seconds a call from which a rival takes part in ten rounds only.
_SLOW, _SLOW_ROUNDS = 0.2, 10


def wall(side: Side, call: Call, calls: int) -> Sampler:
    """Wall-clock seconds a call, of ``calls`` independent ones in one evaluation, which keeps their results.

    One as long comes before it, so that what the rival before left in the caches, and has yet to be stored, is gone.
    """

    def sample() -> float:
        time.sleep(PAUSE)
        side.run(call, calls)
        start = time.perf_counter()
        side.run(call, calls)
        return (time.perf_counter() - start) / calls

    return sample


def one_by_one(side: Side, call: Call, calls: int) -> Sampler:
    """Wall-clock seconds a call, of ``calls`` in a row, each of whose results is dropped before the next.

    After one that is not timed.
    """

    def sample() -> float:
        time.sleep(PAUSE)
        side.run(call, 1)
        start = time.perf_counter()
        for _ in range(calls):
            side.run(call, 1)
        return (time.perf_counter() - start) / calls

    return sample


def interleave(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, list[float]]:
    """Samples all rivals once a round, each round in another order; NaN where a slow one sat out."""
    times: dict[str, list[float]] = {name: [] for name in samplers}
    slow = {name for name, sample in samplers.items() if sample() > _SLOW}
    every = math.ceil(rounds / _SLOW_ROUNDS)
    names = list(samplers)
    for i in range(rounds):
        for name in rotated(names, i):
            sits_out = name in slow and i % every != 0
            times[name].append(math.nan if sits_out else samplers[name]())
    return times


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names, beginning with another one."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def wall_of(once: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    once()
    return time.perf_counter() - start
