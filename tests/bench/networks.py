"""Whole training steps: stock MLX, converted MLX and PyTorch in turns, from the same weights on the same images.

python -m tests.bench.networks                     both networks, batches of 16 and 64
python -m tests.bench.networks --only small --batch 16 --rounds 30
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

_METHOD = """The small network has six 3x3 convolutions of 64, 64, 128, 128, 256 and 256 channels with batch
normalization and ReLU, a 3x3 average pooling of stride 2 behind each second one, a mean over the image and a linear
layer; ResNet-20 is He's for CIFAR, with projections. Images are 32x32x3; the loss is cross-entropy, and the optimizer
SGD with momentum 0.9. *mpsfunc* is MLX's model after `mpsfunc.nn.convert`; the steps of both are compiled by
`mx.compile`.

All sides take turns in one process for {rounds} rounds; those slower than a second a step take part in {slow}. Ratios
are medians of pairs with a bootstrap interval of 95 %. Before that every side takes some steps from the same weights
on the same images, and their losses have to agree to 2 %.

*Alone* is the median step of {alone} in a process of its own. Memory is the growth of its VmHWM from the imports over
building and the first three steps, and of these steps alone, once everything is built (PyTorch imports a good deal of
itself while it builds an optimizer; MLX keeps the buffers that it has let go of for later). Of {processes} processes,
for which the sides take turns, each figure is the least. No side has more than two threads. Written by
`python -m tests.bench.networks`."""
CHANNELS = (64, 64, 128, 128, 256, 256)
STAGES = (16, 32, 64)
LEARNING_RATE, MOMENTUM = 0.01, 0.9
NETWORKS, BATCHES = ("small", "resnet20"), (16, 64)
CONVERTED, STOCK = "mpsfunc", "MLX"
EAGER = ("PyTorch NCHW", "PyTorch NHWC")
COMPILED, JAX = "PyTorch NHWC, compiled", "JAX"
_ALONE = 20  # steps of a process of its own
_PROCESSES = 3
_CURVE = 8  # steps whose losses are compared before anything is timed
_SLOW, _SLOW_ROUNDS = 1.0, 2  # seconds a step from which a side takes part in few rounds


class Step(NamedTuple):
    """One side's training step, which returns the loss; and the parameters that it began with."""

    once: Callable[[], float]
    parameters: Callable[[], dict[str, list[np.ndarray]]]


class Alone(NamedTuple):
    """Of a process of its own."""

    seconds: float
    megabytes: float  # from the imports on
    stepping: float  # megabytes, once everything is built


class Result(NamedTuple):
    """What was measured of one network at one batch."""

    network: str
    batch: int
    curves: dict[str, list[float]]
    seconds: dict[str, list[float]]
    alone: dict[str, Alone]


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels, the same for all."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 32, 32, 3)).astype(np.float32), rng.integers(0, 10, batch).astype(np.int32)


def side(name: str, network: str, batch: int, parameters: dict[str, list[np.ndarray]]) -> Step:
    """One side's step; MLX's draws the parameters itself, which the others are given."""
    x, labels = data(batch)
    if name in (CONVERTED, STOCK):
        import mlx.core as mx

        from .rivals import networks_mlx

        mx.set_default_device(mx.cpu)
        return networks_mlx.step(network, x, labels, converted=name == CONVERTED)
    if name == JAX:
        from .rivals import networks_jax

        return networks_jax.step(network, parameters, x, labels)
    import torch

    from .rivals import networks_torch

    torch.set_num_threads(2)
    torch.set_grad_enabled(True)
    return networks_torch.step(
        network, parameters, x, labels, channels_last="NHWC" in name, compiled="compiled" in name
    )


def measure(network: str, batch: int, rounds: int, names: Sequence[str], processes: int = _PROCESSES) -> Result:
    """The curves, which have to agree, the seconds of every round, and the megabytes of fresh processes."""
    from .clock import rotated, wall_of

    parameters = side(STOCK, network, batch, {}).parameters()
    steps = {name: side(name, network, batch, parameters) for name in names}
    curves = {name: [steps[name].once() for _ in range(_CURVE if name != STOCK else 2)] for name in names}
    for name, curve in curves.items():
        want = curves[CONVERTED][: len(curve)]
        if not np.allclose(curve, want, rtol=2e-2):
            raise SystemExit(f"{network} x{batch}: {name} learns otherwise: {curve}, ours {want}")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    slow = {name for name in names if wall_of(steps[name].once) > _SLOW}
    for i in range(rounds):
        for name in rotated(list(names), i):
            out = name in slow and i >= _SLOW_ROUNDS
            seconds[name].append(float("nan") if out else wall_of(steps[name].once))
    each = [name for name in names if name != STOCK]
    runs = [{name: _alone(name, network, batch, parameters) for name in each} for _ in range(processes)]
    alone = {name: Alone(*map(min, zip(*(run[name] for run in runs), strict=True))) for name in each}
    return Result(network, batch, curves, seconds, alone)


def _alone(name: str, network: str, batch: int, parameters: dict[str, list[np.ndarray]]) -> Alone:
    """Some steps in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.networks", "--alone", json.dumps([name, network, batch])]
    done = subprocess.run(command, check=True, capture_output=True, input=pickle.dumps(parameters))
    return Alone(*map(float, done.stdout.split()[-3:]))


def _child(name: str, network: str, batch: int) -> None:
    from .clock import wall_of
    from .stats import median

    parameters = pickle.load(sys.stdin.buffer)
    rival = {CONVERTED: "mlx", STOCK: "mlx", JAX: "jax"}.get(name, "torch")
    importlib.import_module(f"tests.bench.rivals.networks_{rival}")
    if name == CONVERTED:
        importlib.import_module("mpsfunc.nn")
    imported = _peak_from_now()
    step = side(name, network, batch, parameters)
    building = _peak() - imported
    built = _peak_from_now()
    for _ in range(3):
        step.once()
    grown = max(building, _peak() - imported), _peak() - built
    print(median([wall_of(step.once) for _ in range(_ALONE)]), *(bytes / 1e6 for bytes in grown))


def _peak() -> int:
    from .memory import _status

    return _status("VmHWM")


def _peak_from_now() -> int:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is in memory now
    return _peak()


def write(folder: Path, results: Sequence[Result], rounds: int) -> str:
    """Writes networks.md and networks.csv."""
    from mpsfunc import _primitives

    from . import report
    from .stats import median

    facts = report.cpu_facts(report.commit(), _primitives.isa(), threads=2)
    targets = [line for each in results for line in _targets(each)]
    times = [
        [each.network, each.batch, name, f"{1e3 * median(seconds):.1f}", *_told(each.alone.get(name))]
        for each in results
        for name, seconds in each.seconds.items()
    ]
    learned = [
        [each.network, each.batch, name, ", ".join(f"{loss:.4f}" for loss in curve)]
        for each in results
        for name, curve in each.curves.items()
    ]
    columns = ["network", "batch", "side", "ms", "ms, alone", "MB", "MB, steps"]
    method = _METHOD.format(rounds=rounds, slow=_SLOW_ROUNDS, alone=_ALONE, processes=_PROCESSES)
    parts = ["# Whole networks on the CPU", method, report.table(["machine", ""], facts.items())]
    parts += ["## Targets", report.table(["network", "batch", "against", "at least", "measured (95 %)", ""], targets)]
    parts += ["## Milliseconds a step", report.table(columns, times)]
    parts += ["## Learning curves", report.table(["network", "batch", "side", "losses"], learned)]
    with report.opened(folder, "networks.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["network", "batch", "side", "round", "seconds"])
        for each in results:
            for name, seconds in each.seconds.items():
                writer.writerows([each.network, each.batch, name, i, f"{s:.6f}"] for i, s in enumerate(seconds))
    return report.save(folder, "networks", parts)


def _targets(of: Result) -> list[list[object]]:
    """Against the faster layout of PyTorch, stock MLX, and PyTorch compiled; and memory."""
    from .stats import median, paired

    eager = min(EAGER, key=lambda name: median(of.seconds[name]))
    lines: list[list[object]] = []
    for rival, least in ((eager, 1.0), (STOCK, 60.0 if of.network == "small" else None), (COMPILED, None), (JAX, None)):
        if rival in of.seconds:
            ratio = paired(of.seconds[rival], of.seconds[CONVERTED])
            verdict = "" if least is None else "met" if ratio.reaches(least) else "**missed**"
            measured = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            lines.append([of.network, of.batch, rival, "" if least is None else f"{least:g} x", measured, verdict])
    ours, theirs = of.alone[CONVERTED], of.alone[eager]
    for what, mine, other in (
        ("memory", ours.megabytes, theirs.megabytes),
        ("memory of steps", ours.stepping, theirs.stepping),
    ):
        verdict = "" if what != "memory" else "met" if mine <= other else "**missed**"
        most = "" if what != "memory" else "no more"
        lines.append([of.network, of.batch, f"{eager}, {what}", most, f"{mine:.0f} of {other:.0f} MB", verdict])
    return lines


def _told(each: Alone | None) -> list[str]:
    if each is None:
        return [""] * 3
    return [f"{1e3 * each.seconds:.1f}", f"{each.megabytes:.0f}", f"{each.stepping:.0f}"]


def main() -> None:
    """Measures and writes the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.networks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--batch", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--compiled", action="store_true", help="PyTorch by torch.compile too")
    parser.add_argument("--jax", action="store_true", help="JAX too")
    parser.add_argument("--no-stock", action="store_true", help="without MLX's own layers, which take minutes")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors
    if args.alone:
        return _child(*json.loads(args.alone))
    names = [CONVERTED, *EAGER, *[COMPILED] * args.compiled, *[JAX] * args.jax, *[STOCK] * (not args.no_stock)]
    results = []
    for network in args.only:
        for batch in args.batch:
            print(network, batch, flush=True)
            results.append(measure(network, batch, args.rounds, names))
    print(write(args.out, results, args.rounds))


if __name__ == "__main__":
    main()
