"""Whole training steps: stock MLX, converted MLX and PyTorch in turns, from the same weights on the same images.

python -m tests.bench.networks                     both networks, batches of 16 and 64
python -m tests.bench.networks --only small --batch 16 --rounds 30
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_METHOD = """The small network has six 3x3 convolutions of 64, 64, 128, 128, 256 and 256 channels with batch
normalization and ReLU, a 3x3 average pooling of stride 2 behind each second one, a mean over the image and a linear
layer; ResNet-20 is He's for CIFAR, with projections. Images are 32x32x3; the loss is cross-entropy, and the optimizer
SGD with momentum 0.9. *mpsfunc* is MLX's model after `mpsfunc.nn.convert`; the steps of both are compiled by
`mx.compile`.

Every side has a process of its own, and they take turns, {rounds} in all, begun anew {processes} times. A turn is one
step that is not counted, since threads have slept and caches hold other things, and then the mean of {steps}; sides
slower than a second a step take single steps in {slow} turns. Ratios are medians of pairs with a bootstrap interval of
95 %. The first steps of all start from the same weights on the same images, and their losses have to agree to 2 %. No
side has more than two threads. Written by `python -m tests.bench.networks`.

Memory is the growth of a process's VmHWM from the imports over building and the first three steps, and of these steps
alone, once everything is built (PyTorch imports a good deal of itself while it builds an optimizer; MLX keeps the
buffers that it has let go of for later); of {processes} processes the least."""
CHANNELS = (64, 64, 128, 128, 256, 256)
STAGES = (16, 32, 64)
LEARNING_RATE, MOMENTUM = 0.01, 0.9
NETWORKS, BATCHES = ("small", "resnet20"), (16, 64)
CONVERTED, STOCK = "mpsfunc", "MLX"
EAGER = ("PyTorch NCHW", "PyTorch NHWC")
COMPILED, JAX = "PyTorch NHWC, compiled", "JAX"
_PROCESSES = 3
_STEPS = 3  # of a turn
_CURVE = 8  # steps whose losses are compared before anything is timed
_SLOW, _SLOW_ROUNDS = 1.0, 2  # seconds a step from which a side takes part in few rounds


class Step(NamedTuple):
    """One side's training step, which returns the loss; and the parameters that it began with."""

    once: Callable[[], float]
    parameters: Callable[[], dict[str, list[np.ndarray]]]


class Result(NamedTuple):
    """What was measured of one network at one batch, by side."""

    network: str
    batch: int
    curves: dict[str, list[float]]
    seconds: dict[str, list[float]]
    megabytes: dict[str, float]  # from the imports on
    stepping: dict[str, float]  # megabytes, once everything is built


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
    """The curves, which have to agree, the seconds of every round, and the megabytes."""
    from .clock import rotated

    parameters = side(STOCK, network, batch, {}).parameters()
    reports: list[dict[str, Any]] = []
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for begun in range(processes):
        with contextlib.ExitStack() as stack:
            sides = {}
            for name in names if begun == 0 else [name for name in names if min(seconds[name]) < _SLOW]:
                sides[name] = stack.enter_context(Process(name, network, batch, parameters))
            reports.append({name: each.report for name, each in sides.items()})
            for i in range(rounds * begun // processes, rounds * (begun + 1) // processes):
                for name in rotated(list(names), i):
                    out = name not in sides or (i >= _SLOW_ROUNDS and min(seconds[name]) > _SLOW)
                    seconds[name].append(float("nan") if out else sides[name].turn())
    curves = {name: report["curve"] for name, report in reports[0].items()}
    for name, curve in curves.items():
        want = curves[CONVERTED][: len(curve)]
        if not np.allclose(curve, want, rtol=2e-2):
            raise SystemExit(f"{network} x{batch}: {name} learns otherwise: {curve}, ours {want}")
    megabytes, stepping = (
        {name: min(report[name][what] for report in reports if name in report) for name in names}
        for what in ("megabytes", "stepping")
    )
    return Result(network, batch, curves, seconds, megabytes, stepping)


class Process:
    """A side in a process of its own, which takes a step when it is told to."""

    def __init__(self, name: str, network: str, batch: int, parameters: dict[str, list[np.ndarray]]) -> None:
        command = [sys.executable, "-m", "tests.bench.networks", "--side", json.dumps([name, network, batch])]
        # With processes of its own for compiling, PyTorch had not compiled after four minutes on two cores.
        env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._say(pickle.dumps(parameters))
        self.report: dict[str, Any] = json.loads(self._answer())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *args: object) -> None:
        self._process.communicate()

    def turn(self) -> float:
        """Seconds of a step."""
        self._say(b"turn\n")
        return float(self._answer())

    def _say(self, words: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(words)
        self._process.stdin.flush()

    def _answer(self) -> bytes:
        assert self._process.stdout
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a side ended: {self._process.wait()}")
        return answer


def _child(name: str, network: str, batch: int) -> None:
    from .clock import wall_of

    parameters = pickle.load(sys.stdin.buffer)
    rival = {CONVERTED: "mlx", STOCK: "mlx", JAX: "jax"}.get(name, "torch")
    importlib.import_module(f"tests.bench.rivals.networks_{rival}")
    if name == CONVERTED:
        importlib.import_module("mpsfunc.nn")
    imported = _peak_from_now()
    step = side(name, network, batch, parameters)
    building = _peak() - imported
    built = _peak_from_now()
    curve = [step.once() for _ in range(3)]
    grown = {"megabytes": max(building, _peak() - imported) / 1e6, "stepping": (_peak() - built) / 1e6}
    curve += [step.once() for _ in range(0 if name == STOCK else _CURVE - 3)]
    print(json.dumps({"curve": curve, **grown}), flush=True)
    for _ in sys.stdin.buffer:
        first = wall_of(step.once)
        slow = first > _SLOW
        print(first if slow else sum(wall_of(step.once) for _ in range(_STEPS)) / _STEPS, flush=True)


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
        [
            each.network,
            each.batch,
            name,
            f"{1e3 * median(seconds):.1f}",
            f"{each.megabytes[name]:.0f}",
            f"{each.stepping[name]:.0f}",
        ]
        for each in results
        for name, seconds in each.seconds.items()
    ]
    learned = [
        [each.network, each.batch, name, ", ".join(f"{loss:.4f}" for loss in curve)]
        for each in results
        for name, curve in each.curves.items()
    ]
    columns = ["network", "batch", "side", "ms", "MB", "MB, steps"]
    method = _METHOD.format(rounds=rounds, slow=_SLOW_ROUNDS, processes=_PROCESSES, steps=_STEPS)
    parts = ["# Whole networks on the CPU", report.picture("networks", result(times, targets)), method]
    parts += [report.table(["machine", ""], facts.items())]
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


def result(times: Sequence[Sequence[object]], targets: Sequence[Sequence[object]]) -> str:
    """The main result in words, from the lines of the tables of times and targets."""
    from .report import counted

    steps: dict[str, list[str]] = {}
    for network, batch, name, ms, *_ in times:
        against = [line[2] for line in targets if list(line[:2]) == [network, batch]]
        if name == CONVERTED or (name in against and name in (*EAGER, STOCK)):
            steps.setdefault(f"{network}, {batch} images", []).append(f"{name} {ms}")
    said = "; ".join(f"{known}: {', '.join(taken)}" for known, taken in steps.items())
    met = [line[-1] == "met" for line in targets if line[-1]]
    return "; ".join([f"Milliseconds a training step: {said}"] + [counted(met, "targets")] * bool(met))


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
    for what, grown, most in (("memory", of.megabytes, "no more"), ("memory of steps", of.stepping, "")):
        ours, theirs = grown[CONVERTED], grown[eager]
        verdict = "" if not most else "met" if ours <= theirs else "**missed**"
        lines.append([of.network, of.batch, f"{eager}, {what}", most, f"{ours:.0f} of {theirs:.0f} MB", verdict])
    return lines


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
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors
    if args.side:
        return _child(*json.loads(args.side))
    names = [CONVERTED, *EAGER, *[COMPILED] * args.compiled, *[JAX] * args.jax, *[STOCK] * (not args.no_stock)]
    results = []
    for network in args.only:
        for batch in args.batch:
            print(network, batch, flush=True)
            results.append(measure(network, batch, args.rounds, names))
    print(write(args.out, results, args.rounds))


if __name__ == "__main__":
    main()
