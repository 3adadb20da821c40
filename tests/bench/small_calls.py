"""What one small call costs beyond ``x + x`` of stock MLX: ``python -m tests.bench.small_calls``, from the root.

On the CPU, where a call on a few pixels is the interpreter's work and MLX's more than a kernel's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

import mpsfunc as mf

from . import report, stats

LEAST, ROUNDS, CALLS = 20.0, 300, 20  # microseconds that a call may take beyond MLX's; calls of a turn
SHAPE = (1, 8, 8, 8)
BASE = "x + x"
_METHOD = """How much longer a call on an image of {shape} takes than `x + x` of stock MLX, in microseconds, if every
result is evaluated and freed before the next call. In each of {rounds} rounds every call has a turn of {calls} in a
row. Shown are the medians of the differences within a round, with a bootstrap interval of 95 %. A target of {least:g}
is met by a median that is not higher. Written by `python -m tests.bench.small_calls`."""

Call = Callable[[], mx.array]


class Cost(NamedTuple):
    """Microseconds of a call, and what it costs beyond the first of the calls, with its interval."""

    name: str
    whole: float
    beyond: stats.Ratio


def calls() -> dict[str, Call]:
    """What is measured, stock MLX's first."""
    channels = SHAPE[-1]
    x, w = mx.random.normal(SHAPE), mx.random.normal((channels, 3, 3, channels))
    depthwise, pixel = mx.random.normal((channels, 3, 3, 1)), mx.random.normal((1, 1, 1, channels))
    dense = mx.random.normal((channels, 1, 1, channels))
    b, g = mx.zeros((channels,)), mx.ones((channels,))
    mx.eval(x, w, depthwise, pixel, dense, b, g)
    return {
        BASE: lambda: x + x,
        "mx.conv2d": lambda: mx.conv2d(x, w, padding=1),
        "relu": lambda: mf.relu(x),
        "silu": lambda: mf.silu(x),
        "add": lambda: mf.add(x, x),
        "avg_pool": lambda: mf.avg_pool(x, 2),
        "max_pool": lambda: mf.max_pool(x, 2),
        "conv": lambda: mf.conv(x, w, b, padding=1),
        "conv depthwise": lambda: mf.conv(x, depthwise, b, padding=1, groups=channels),
        "fully_connected": lambda: mf.fully_connected(pixel, dense, b),
        "batch_norm": lambda: mf.batch_norm(x, g, b),
        "group_norm": lambda: mf.group_norm(x, 2, g, b),
        "softmax": lambda: mf.softmax(x),
        "resize_bilinear": lambda: mf.resize_bilinear(x, (16, 16)),
        "pad": lambda: mf.pad(x, 1, 1),
    }


def turns(of: Mapping[str, Call], rounds: int, each: int = CALLS) -> dict[str, list[float]]:
    """Microseconds a call, so many rounds, in which each begins at another call."""
    times: dict[str, list[float]] = {name: [] for name in of}
    names = list(of)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            call = of[name]
            mx.eval(call())
            start = time.perf_counter()
            for _ in range(each):
                mx.eval(call())
            times[name].append(1e6 * (time.perf_counter() - start) / each)
    return times


def costs(times: Mapping[str, Sequence[float]]) -> list[Cost]:
    """Of all calls, beyond the first."""
    base = np.asarray(next(iter(times.values())))
    return [Cost(name, stats.median(of), stats.middle(np.asarray(of) - base)) for name, of in times.items()]


def rows(found: Sequence[Cost]) -> list[list[str]]:
    """Of the page; targets are ours."""
    made = []
    for name, whole, (median, low, high) in found:
        judged = "" if name in (BASE, "mx.conv2d") else "met" if median <= LEAST else "**missed**"
        made.append([name, f"{whole:.1f}", f"{median:.1f} ({low:.1f} to {high:.1f})", judged])
    return made


def main(rounds: int, folder: Path) -> None:
    """Measures, and writes small_calls.md."""
    mx.set_default_device(mx.cpu)
    isa = mf._primitives.isa()
    found = costs(turns(calls(), rounds))
    text = [
        "# Small calls",
        _METHOD.format(shape="x".join(map(str, SHAPE)), rounds=rounds, calls=CALLS, least=LEAST),
        report.table(["machine", ""], report.cpu_facts(report.commit(), isa, mf.get_num_threads()).items()),
        report.table(["call", "microseconds", f"beyond {BASE}", f"at most {LEAST:g}"], rows(found)),
    ]
    report.save(folder, "small_calls", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.small_calls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    main(args.rounds, args.out)
