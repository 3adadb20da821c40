"""Whole training steps: stock MLX, converted MLX and PyTorch in turns, from the same weights on the same images.

python -m tests.bench.networks                     both networks, batches of 16 and 64, on the CPU
python -m tests.bench.networks --only small --batch 16 --rounds 30
python -m tests.bench.networks --gpu               a batch of 512, in float32 with TensorFloat-32 and in bfloat16
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

_SIDES = """The small network has six 3x3 convolutions of 64, 64, 128, 128, 256 and 256 channels with batch
normalization and ReLU, a 3x3 average pooling of stride 2 behind each second one, a mean over the image and a linear
layer; ResNet-20 is He's for CIFAR, with projections. Images are 32x32x3; the loss is cross-entropy, and the optimizer
SGD with momentum 0.9. *mpsfunc* is MLX's model after `mpsfunc.nn.convert`; the steps of both are compiled by
`mx.compile`.

Every side has a process of its own, and they take turns, {rounds} in all, begun anew {processes} times. """
_CPU = (
    _SIDES
    + """A turn is one
step that is not counted, since threads have slept and caches hold other things, and then the mean of {steps}; sides
slower than a second a step take single steps in {slow} turns. Ratios are medians of pairs with a bootstrap interval of
95 %. The first steps of all start from the same weights on the same images, and their losses have to agree to 2 %. No
side has more than two threads. Written by `python -m tests.bench.networks`.

Memory is the growth of a process's VmHWM from the imports over building and the first three steps, and of these steps
alone, once everything is built (PyTorch imports a good deal of itself while it builds an optimizer; MLX keeps the
buffers that it has let go of for later); of {processes} processes the least."""
)
_GPU = (
    _SIDES
    + """A turn is {warm}
steps that are not counted and then the mean of {steps}; nobody waits for a step before the last (`mx.async_eval` in
MLX), so that what Python does for one runs beside the GPU's work on another. Ratios are medians of pairs with a
bootstrap interval of 95 %. The first steps of all start from the same weights on the same images, and their losses have
to agree to 2 % in float32 and 5 % in bfloat16. Float32 is with TensorFloat-32 for all; in bfloat16 images, parameters,
running statistics and the optimizer's state are bfloat16. PyTorch runs with cuDNN's benchmark mode. Written by
`python -m tests.bench.networks --gpu`.

Memory is the peak of the library's allocator over building and the first steps."""
)
CHANNELS = (64, 64, 128, 128, 256, 256)
STAGES = (16, 32, 64)
LEARNING_RATE, MOMENTUM = 0.01, 0.9
NETWORKS, BATCHES, GPU_BATCHES = ("small", "resnet20"), (16, 64), (512,)
GPU_DTYPES = {"float32": 2e-2, "bfloat16": 5e-2}  # and how far losses may differ
CONVERTED, STOCK = "mpsfunc", "MLX"
EAGER = ("PyTorch NCHW", "PyTorch NHWC")
COMPILED, JAX = "PyTorch NHWC, compiled", "JAX"
_PROCESSES, _GPU_PROCESSES = 3, 2
_STEPS, _GPU_STEPS, _GPU_WARM = 3, 20, 5  # of a turn
_CURVE = 8  # steps whose losses are compared before anything is timed
_SLOW, _SLOW_ROUNDS = 1.0, 2  # seconds a step from which a side takes part in few rounds


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
    if name in (CONVERTED, STOCK):
        import mlx.core as mx

        from .rivals import networks_mlx

        mx.set_default_device(getattr(mx, setting.device))
        return networks_mlx.step(setting, x, labels, converted=name == CONVERTED)
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
            for name in names if begun == 0 else [name for name in names if min(seconds[name]) < _SLOW]:
                sides[name] = stack.enter_context(Process(name, setting, parameters))
                if setting.device == "cpu":  # on which one would slow the other
                    sides[name].report()
            reports.append({name: each.report() for name, each in sides.items()})
            for i in range(rounds * begun // processes, rounds * (begun + 1) // processes):
                for name in rotated(list(names), i):
                    out = name not in sides or (i >= _SLOW_ROUNDS and min(seconds[name]) > _SLOW)
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

    parameters = pickle.load(sys.stdin.buffer)
    rival = {CONVERTED: "mlx", STOCK: "mlx", JAX: "jax"}.get(name, "torch")
    module = importlib.import_module(f"tests.bench.rivals.networks_{rival}")
    if name == CONVERTED:
        importlib.import_module("mpsfunc.nn")
    on_gpu = setting.device == "gpu"
    imported = _peak_from_now()
    step = side(name, setting, parameters)
    building = _peak() - imported
    built = _peak_from_now()
    curve = [step.times(1) for _ in range(3)]
    grown = {"megabytes": max(building, _peak() - imported) / 1e6, "stepping": (_peak() - built) / 1e6}
    if on_gpu:
        grown["megabytes"] = module.peak() / 1e6
    curve += [step.times(1) for _ in range(0 if name == STOCK and not on_gpu else _CURVE - 3)]
    print(json.dumps({"curve": curve, **grown}), flush=True)
    for _ in sys.stdin.buffer:
        if on_gpu:
            step.times(_GPU_WARM)
            print(wall_of(lambda: step.times(_GPU_STEPS)) / _GPU_STEPS, flush=True)
            continue
        first = wall_of(lambda: step.times(1))
        slow = first > _SLOW
        print(first if slow else sum(wall_of(lambda: step.times(1)) for _ in range(_STEPS)) / _STEPS, flush=True)


def _peak() -> int:
    from .memory import _status

    return _status("VmHWM")


def _peak_from_now() -> int:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is in memory now
    return _peak()


def write(folder: Path, results: Sequence[Result], rounds: int, commit: str = "") -> str:
    """Writes networks.md and networks.csv, or on a GPU networks_gpu."""
    from . import report
    from .stats import median

    commit = commit or report.commit()
    on_gpu = results[0].setting.device == "gpu"
    if on_gpu:
        from . import gpu

        facts = report.gpu_facts(commit, *gpu.card())
        name, title, method = "networks_gpu", "Whole networks on an NVIDIA GPU", _GPU
    else:
        from mpsfunc import _primitives

        facts = report.cpu_facts(commit, _primitives.isa(), threads=2)
        name, title, method = "networks", "Whole networks on the CPU", _CPU
    steps, processes = (_GPU_STEPS, _GPU_PROCESSES) if on_gpu else (_STEPS, _PROCESSES)
    method = method.format(rounds=rounds, slow=_SLOW_ROUNDS, processes=processes, steps=steps, warm=_GPU_WARM)
    times = [
        [*_what(each), name, f"{1e3 * median(seconds):.{1 + on_gpu}f}", f"{each.megabytes[name]:.0f}"]
        + ([] if on_gpu else [f"{each.stepping[name]:.0f}"])
        for each in results
        for name, seconds in each.seconds.items()
    ]
    learned = [
        [*_what(each), name, ", ".join(f"{loss:.4f}" for loss in curve)]
        for each in results
        for name, curve in each.curves.items()
    ]
    what = ["network", "batch", *["dtype"] * on_gpu]
    targets = [[*_what(each), *line] for each in results for line in _targets(each)]
    parts = [f"# {title}", method, report.table(["machine", ""], facts.items())]
    parts += ["## Targets", report.table([*what, "against", "at least", "measured (95 %)", ""], targets)]
    columns = [*what, "side", "ms", "MB", *["MB, steps"] * (not on_gpu)]
    parts += ["## Milliseconds a step", report.table(columns, times)]
    parts += ["## Learning curves", report.table([*what, "side", "losses"], learned)]
    with report.opened(folder, f"{name}.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*what, "side", "round", "seconds"])
        for each in results:
            for rival, seconds in each.seconds.items():
                writer.writerows([*_what(each), rival, i, f"{s:.6f}"] for i, s in enumerate(seconds))
    return report.save(folder, name, parts)


def _what(of: Result) -> list[object]:
    setting = of.setting
    return [setting.network, setting.batch, *[setting.dtype] * (setting.device == "gpu")]


def _targets(of: Result) -> list[list[object]]:
    """Against the faster layout of PyTorch, stock MLX, and PyTorch compiled; and memory."""
    from .stats import median, paired

    on_gpu = of.setting.device == "gpu"
    eager = min(EAGER, key=lambda name: median(of.seconds[name]))
    lines: list[list[object]] = []
    stock = 60.0 if of.setting.network == "small" and not on_gpu else None
    for rival, least in ((eager, 1.0), (STOCK, stock), (COMPILED, None), (JAX, None)):
        if rival in of.seconds:
            ratio = paired(of.seconds[rival], of.seconds[CONVERTED])
            verdict = "" if least is None else "met" if ratio.reaches(least) else "**missed**"
            measured = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            lines.append([rival, "" if least is None else f"{least:g} x", measured, verdict])
    for what, grown, most in (
        ("memory", of.megabytes, "" if on_gpu else "no more"),
        *[("memory of steps", of.stepping, "")] * (not on_gpu),
    ):
        ours, theirs = grown[CONVERTED], grown[eager]
        verdict = "" if not most else "met" if ours <= theirs else "**missed**"
        lines.append([f"{eager}, {what}", most, f"{ours:.0f} of {theirs:.0f} MB", verdict])
    return lines


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
    names = [CONVERTED, *EAGER, *[COMPILED] * args.compiled, *[STOCK] * (not args.no_stock)]
    results = []
    for network in args.only:
        for batch in args.batch or (GPU_BATCHES if args.gpu else BATCHES):
            for dtype in args.dtype if args.gpu else ["float32"]:
                setting = Setting(network, batch, "gpu" if args.gpu else "cpu", dtype)
                print(setting, flush=True)
                sides = [*names, *[JAX] * (args.jax and dtype == "float32")]
                results.append(measure(setting, args.rounds, sides, _GPU_PROCESSES if args.gpu else _PROCESSES))
    print(write(args.out, results, args.rounds, args.commit))


if __name__ == "__main__":
    main()
