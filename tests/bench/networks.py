"""Whole training steps: stock MLX, converted MLX and PyTorch in turns, from the same weights on the same images.

python -m tests.bench.networks                     both networks, batches of 16 and 64, on the CPU
python -m tests.bench.networks --only small --batch 16 --rounds 30
python -m tests.bench.networks --gpu               a batch of 512, in float32 with TensorFloat-32 and in bfloat16
"""

from __future__ import annotations

import argparse
import contextlib
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

CHANNELS = (64, 64, 128, 128, 256, 256)
STAGES = (16, 32, 64)
LEARNING_RATE, MOMENTUM = 0.01, 0.9
NETWORKS, BATCHES, GPU_BATCHES = ("small", "resnet20"), (16, 64), (512,)
GPU_DTYPES = {"float32": 2e-2, "bfloat16": 5e-2}  # and how far losses may differ
CONVERTED, STOCK = "mpsfunc", "MLX"
WITH_GRAPHS = "mpsfunc, with CUDA graphs"  # MLX_USE_CUDA_GRAPHS=1
EAGER = ("PyTorch NCHW", "PyTorch NHWC")
COMPILED, JAX = "PyTorch NHWC, compiled", "JAX"
PROCESSES, GPU_PROCESSES = 3, 2
STEPS, GPU_STEPS, GPU_WARM = 3, 20, 5  # of a turn
_CURVE = 8  # steps whose losses are compared before anything is timed
SLOW, SLOW_ROUNDS = 1.0, 2  # seconds a step from which a side takes part in few rounds


class Setting(NamedTuple):
    """What is trained where."""

    network: str
    batch: int
    device: str = "cpu"
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.network} x{self.batch} {self.dtype}"


class Step(NamedTuple):
    """One side's training steps: so many, the last of which tells its loss; and the parameters that it began with."""

    times: Callable[[int], float]
    parameters: Callable[[], dict[str, list[np.ndarray]]]


class Result(NamedTuple):
    """What was measured, by side."""

    setting: Setting
    curves: dict[str, list[float]]
    seconds: dict[str, list[float]]
    megabytes: dict[str, float]  # on the CPU from the imports on
    stepping: dict[str, float]  # megabytes, once everything is built; on the CPU only


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels, the same for all."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 32, 32, 3)).astype(np.float32), rng.integers(0, 10, batch).astype(np.int32)


def side(name: str, setting: Setting, parameters: dict[str, list[np.ndarray]]) -> Step:
    """One side's step; MLX's draws the parameters itself, which the others are given."""
    x, labels = data(setting.batch)
    if name in (CONVERTED, WITH_GRAPHS, STOCK):
        import mlx.core as mx

        from .rivals import networks_mlx

        mx.set_default_device(getattr(mx, setting.device))
        return networks_mlx.step(setting, x, labels, converted=name != STOCK)
    if name == JAX:
        from .rivals import networks_jax

        return networks_jax.step(setting, parameters, x, labels)
    import torch

    from .rivals import networks_torch

    if setting.device == "cpu":
        torch.set_num_threads(2)
    torch.set_grad_enabled(True)
    return networks_torch.step(
        setting, parameters, x, labels, channels_last="NHWC" in name, compiled="compiled" in name
    )


def measure(setting: Setting, rounds: int, names: Sequence[str], processes: int) -> Result:
    """The curves, which have to agree, the seconds of every round, and the megabytes."""
    from .clock import rotated

    parameters = side(STOCK, setting._replace(device="cpu", dtype="float32"), {}).parameters()
    reports: list[dict[str, Any]] = []
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for begun in range(processes):
        with contextlib.ExitStack() as stack:
            sides = {}
            for name in names if begun == 0 else [name for name in names if min(seconds[name], default=0) < SLOW]:
                sides[name] = stack.enter_context(Process(name, setting, parameters))
                if setting.device == "cpu":  # on which one would slow the other
                    sides[name].report()
            reports.append({name: each.report() for name, each in sides.items()})
            for i in range(rounds * begun // processes, rounds * (begun + 1) // processes):
                for name in rotated(list(names), i):
                    out = name not in sides or (i >= SLOW_ROUNDS and min(seconds[name]) > SLOW)
                    seconds[name].append(float("nan") if out else sides[name].turn())
    curves = {name: report["curve"] for name, report in reports[0].items()}
    for name, curve in curves.items():
        want = curves[CONVERTED][: len(curve)]
        if not np.allclose(curve, want, rtol=GPU_DTYPES[setting.dtype]):
            raise SystemExit(f"{setting}: {name} learns otherwise: {curve}, ours {want}")
    megabytes, stepping = (
        {name: min(report[name][what] for report in reports if name in report) for name in names}
        for what in ("megabytes", "stepping")
    )
    return Result(setting, curves, seconds, megabytes, stepping)


class Process:
    """A side in a process of its own, which takes a step when it is told to."""

    def __init__(self, name: str, setting: Setting, parameters: dict[str, list[np.ndarray]]) -> None:
        command = [sys.executable, "-m", "tests.bench.networks", "--side", json.dumps([name, setting])]
        # With processes of its own for compiling, PyTorch had not compiled after four minutes on two cores.
        env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        env |= {"MLX_ENABLE_TF32": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        env.pop("MLX_USE_CUDA_GRAPHS", None)
        env |= {"MLX_USE_CUDA_GRAPHS": "1"} if name == WITH_GRAPHS else {}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._say(pickle.dumps(parameters))
        self._report: dict[str, Any] = {}

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *args: object) -> None:
        self._process.communicate()

    def report(self) -> dict[str, Any]:
        """What it says of its first steps, as soon as it has taken them."""
        self._report = self._report or json.loads(self._answer())
        return self._report

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


def _child(name: str, setting: Setting) -> None:
    from .clock import wall_of
    from .peak import peak, peak_from_now

    parameters = pickle.load(sys.stdin.buffer)
    rival = {CONVERTED: "mlx", WITH_GRAPHS: "mlx", STOCK: "mlx", JAX: "jax"}.get(name, "torch")
    module = importlib.import_module(f"tests.bench.rivals.networks_{rival}")
    if name in (CONVERTED, WITH_GRAPHS):
        importlib.import_module("mpsfunc.nn")
    on_gpu = setting.device == "gpu"
    imported = peak_from_now()
    step = side(name, setting, parameters)
    building = peak() - imported
    built = peak_from_now()
    curve = [step.times(1) for _ in range(3)]
    grown = {"megabytes": max(building, peak() - imported) / 1e6, "stepping": (peak() - built) / 1e6}
    if on_gpu:
        grown["megabytes"] = module.peak() / 1e6
    curve += [step.times(1) for _ in range(0 if name == STOCK and not on_gpu else _CURVE - 3)]
    print(json.dumps({"curve": curve, **grown}), flush=True)
    for _ in sys.stdin.buffer:
        if on_gpu:
            step.times(GPU_WARM)
            print(wall_of(lambda: step.times(GPU_STEPS)) / GPU_STEPS, flush=True)
            continue
        first = wall_of(lambda: step.times(1))
        slow = first > SLOW
        print(first if slow else sum(wall_of(lambda: step.times(1)) for _ in range(STEPS)) / STEPS, flush=True)


def main() -> None:
    """Measures and writes the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.networks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--batch", nargs="+", type=int)
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA GPU")
    parser.add_argument("--dtype", nargs="+", choices=GPU_DTYPES, default=GPU_DTYPES, help="on a GPU")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--compiled", action="store_true", help="PyTorch by torch.compile too")
    parser.add_argument("--jax", action="store_true", help="JAX too, in float32")
    parser.add_argument("--no-stock", action="store_true", help="without MLX's own layers, which take minutes")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--commit", default="", help="what was measured, where there is no git")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        name, setting = json.loads(args.side)
        return _child(name, Setting(*setting))
    if not args.gpu:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # before any library counts processors
    from . import networks_report

    names = [CONVERTED, *[WITH_GRAPHS] * args.gpu, *EAGER, *[COMPILED] * args.compiled, *[STOCK] * (not args.no_stock)]
    results = []
    for network in args.only:
        for batch in args.batch or (GPU_BATCHES if args.gpu else BATCHES):
            for dtype in args.dtype if args.gpu else ["float32"]:
                setting = Setting(network, batch, "gpu" if args.gpu else "cpu", dtype)
                print(setting, flush=True)
                sides = [*names, *[JAX] * (args.jax and dtype == "float32")]
                results.append(measure(setting, args.rounds, sides, GPU_PROCESSES if args.gpu else PROCESSES))
                told = networks_report.write(args.out, results, args.rounds, args.commit)  # so far: time may run out
    print(told)


if __name__ == "__main__":
    main()
