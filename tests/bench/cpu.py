"""Our operations on the CPU beside stock MLX, PyTorch and JAX, two threads each."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from types import SimpleNamespace

import mlx.core as mx
import torch
from support.benchmarks import COPY, OURS, Target

import mpsfunc as mf

from . import clock, openblas, operations, rounds
from .problems import Problem
from .results import Row, checked, has_oracle
from .rivals import Side, on_mlx, ours, pytorch, stock

THREADS = 2
SHAPE, QUICK_SHAPE = (8, 56, 56, 64), (1, 12, 12, 64)

# Calls this short are timed ten in a row; of calls that take their time one is enough.
_SHORT, _LONG = 2e-3, 20e-3
_TOGETHER = 10
_TRIES = 5

_QUICK_SIZE, _QUICK_ROWS = 12, 64


def problems(only: Sequence[str], shape: tuple[int, ...]) -> list[operations.Planned]:
    """The rows of the table, or of a quick run on another shape."""
    rows: list[operations.Planned] = []
    for op, benchmark in operations.chosen(only).items():
        for measured in benchmark.cpu:
            of = measured.shape or shape
            if shape != SHAPE:
                # How many times as fast as stock MLX is for the table's images.
                measured = measured._replace(targets=tuple(t for t in measured.targets if t.versus != ("MLX",)))
                if measured.shape and benchmark.family == "pooling":  # the same at other sizes
                    continue
                of = _quick(of) if measured.shape else shape
            rows += operations.rows(op, measured, of)
    return rows


def _quick(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A small shape for one that an operation has of its own, with as many channels."""
    images, *size, channels = shape
    return 1 if size else min(images, _QUICK_ROWS), *(min(n, _QUICK_SIZE) for n in size), channels


def measure(problem: Problem, targets: tuple[Target, ...], args: argparse.Namespace) -> Row:
    """One row, after a check of every answer."""
    inputs = problem.inputs()
    # Stock MLX convolves some of the other layers for minutes a call.
    slow = problem.weighted and problem.shape != (QUICK_SHAPE if args.quick else SHAPE)
    without = ["MLX"] * (slow or args.no_mlx) + ["PyTorch NHWC"] * (not problem.of_images)
    sides = _sides(args.jax, without)
    bound, wrong = checked(problem, sides, pytorch.side("oracle", torch.contiguous_format, "cpu"), inputs)
    by_name = {side.name: side for side in sides}

    once = {name: clock.wall(by_name[name], call, 1) for name, call in bound.items()}
    calls = in_a_row(once)

    samplers = {name: clock.one_by_one(by_name[name], call, calls[name]) for name, call in bound.items()}
    library = openblas.find(args.openblas)
    if library and problem.weighted and not slow:
        with openblas.Rival(problem, library) as rival:
            samplers[openblas.NAME] = rival.sample
            times = clock.interleave(samplers, args.rounds)
    else:
        times = clock.interleave(samplers, args.rounds)
    together = {name: clock.wall(by_name[name], call, calls[name]) for name, call in bound.items()}
    together[COPY] = _copy(inputs, problem.dtype, calls[OURS])
    kept = clock.interleave(together, args.rounds)
    return Row(problem, times, {name: calls.get(name, 1) for name in kept | times}, kept, wrong, targets)


def in_a_row(once: dict[str, clock.Sampler]) -> dict[str, int]:
    """How many calls of each side are timed together: several where some side's is short, one of a long one."""
    seconds = {name: _least(sample) for name, sample in once.items()}
    several = _TOGETHER if min(seconds.values()) < _SHORT else 1
    return {name: 1 if taken > _LONG else several for name, taken in seconds.items()}


def _least(sample: clock.Sampler) -> float:
    """Seconds of a call once memory and threads are there; a long one is not repeated."""
    first = sample()
    return first if first > _LONG else min(first, *(sample() for _ in range(_TRIES)))


def main(args: argparse.Namespace, kept: rounds.Kept | None = None) -> list[Row]:
    """All rows asked for, but those that are left where the time is over; rows that were kept are not timed again."""
    mx.set_default_device(mx.cpu)
    torch.set_num_threads(THREADS)
    mf.set_num_threads(THREADS)
    shape = QUICK_SHAPE if args.quick else SHAPE
    known, end = kept.rows() if kept else {}, time.monotonic() + 60 * (args.minutes or math.inf)
    rows, left = [], 0
    for problem, targets in problems(args.only, shape):
        if args.dtype and problem.dtype not in args.dtype:
            continue
        if problem in known:
            rows.append(known[problem]._replace(targets=targets))
            continue
        if time.monotonic() > end:
            left += 1
            continue
        if not has_oracle(problem, pytorch.functions):
            print(f"{problem.title}: left out, as PyTorch without torchvision does not have it", flush=True)
            continue
        print(f"{problem.title} {problem.dtype}", flush=True)
        try:
            rows.append(measure(problem, targets, args))
        except KeyboardInterrupt:
            print("interrupted: the rows so far", flush=True)
            break
        if kept:
            kept.add(rows[-1])
    if left:
        print(f"no time for {left} rows", flush=True)
    return rows


def _sides(jax: bool, without: Sequence[str] = ()) -> list[Side]:
    sides = [on_mlx.side(OURS, ours.functions), on_mlx.side("MLX", stock.functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    if jax:
        from .rivals import xla

        sides.append(xla.side())
    return [side for side in sides if side.name not in without]


def _copy(inputs: SimpleNamespace, dtype: str, copies: int) -> clock.Sampler:
    """Seconds of PyTorch's two-thread copy of x, of several in a row, each into an output that MLX just made."""
    source = torch.from_numpy(inputs.x).to(getattr(torch, dtype))

    def fresh() -> torch.Tensor:
        output = mx.zeros(tuple(source.shape), getattr(mx, dtype))
        mx.eval(output)
        return torch.from_dlpack(output)

    def sample() -> float:
        time.sleep(clock.PAUSE)
        fresh().copy_(source)
        outputs = [fresh() for _ in range(copies)]
        start = time.perf_counter()
        for output in outputs:
            output.copy_(source)
        return (time.perf_counter() - start) / copies

    return sample
