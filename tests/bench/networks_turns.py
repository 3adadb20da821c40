"""One cell of the matrix of whole networks: every side in a process of its own, compared, and timed in turns.

``python -m tests.bench.networks_turns NAME CELL FOLDER`` is a side; the folder has the weights, and takes what it gave.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import whole
from .whole import Cell

OURS, STOCK, EAGER = "mpsfunc", "MLX", "PyTorch"
COMPILED, AUTOTUNED, JAX = "PyTorch, compiled", "PyTorch, max-autotune", "JAX"
GRAPHS, ALIVE = "mpsfunc, CUDA graphs", "mpsfunc, a commit every 2 launches"
MODULES = {STOCK: "mlx", JAX: "jax", EAGER: "torch", COMPILED: "torch", AUTOTUNED: "torch"}  # else mpsfunc
ENVIRONMENT = {GRAPHS: {"MLX_USE_CUDA_GRAPHS": "1"}, ALIVE: {"MLX_MAX_OPS_PER_BUFFER": "2"}}
PROCESSES = 2
CURVE = 3  # steps whose losses are compared
TURN, MOST_STEPS = 0.25, 20  # seconds of a turn, if steps are short, and steps of it
GPU_STEPS, GPU_WARM = 20, 5
MINUTE = 60.0  # seconds of a first step from which stock MLX and JAX are left out
SLOW, SLOW_ROUNDS = 1.0, 2  # and seconds of a step from which they take part in few rounds, with single steps
ENOUGH, LEAST_ROUNDS = 90.0, 6  # seconds of a cell's turns from which there are no more than so many rounds
# How far results may be from PyTorch eager's, in the 2-norm; float32 on a GPU is TensorFloat-32.
OUTPUTS = {"float32": 1e-4, "bfloat16": 0.1, "tf32": 2e-2}
LOSSES = {"float32": 1e-4, "bfloat16": 2e-2, "tf32": 5e-3}
DROPS = {"float32": 0.1, "bfloat16": 0.5, "tf32": 0.2}  # and of what is learned, its own size


class Refused(Exception):
    """A side that has no time here, and why."""


class Measured(NamedTuple):
    """What was measured, by side: seconds of each round, NaN where it sat out; megabytes; and why some have none."""

    cell: Cell
    seconds: dict[str, list[float]]
    megabytes: dict[str, float]
    ahead: dict[str, float]  # megabytes of steps launched ahead, on a GPU
    notes: dict[str, str]


def sides(cell: Cell) -> list[str]:
    """Who takes part in a cell."""
    if cell.device == "gpu":
        names = [OURS, GRAPHS, *[ALIVE] * cell.trains, EAGER, *[COMPILED] * (cell.dtype == "bfloat16")]
        return names + [AUTOTUNED, JAX] * (cell.network in whole.BESIDE_JAX)
    names = [OURS, EAGER, *[COMPILED] * (not cell.trains)]
    return names + [JAX, STOCK] * (cell.network in whole.BESIDE_ALL)


def measure(cell: Cell, names: Sequence[str], rounds: int, processes: int = PROCESSES) -> Measured:
    """Every side of a cell, after a comparison of what they compute; ours and PyTorch eager have to agree."""
    from .clock import rotated

    seconds: dict[str, list[float]] = {name: [] for name in names}
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        whole.write_weights(cell, Path(folder) / "weights.npz")
        for begun in range(processes):
            with contextlib.ExitStack() as stack:
                running: dict[str, Side] = {}
                slow = [name for name in names if reports[name] and reports[name][0]["slow"]]
                taking_part = [name for name in names if name not in notes and name not in slow]
                begun_sides = [stack.enter_context(Side(name, cell, Path(folder))) for name in taking_part]
                for name, side in zip(taking_part, begun_sides, strict=True):
                    try:
                        reports[name].append(side.report())
                        if begun == 0 and name != EAGER and reports[EAGER]:
                            agree(cell, reports[EAGER][0], reports[name][0])
                        running[name] = side
                    except Refused as why:
                        side.end()
                        notes[name] = str(why)
                        if name in (OURS, EAGER):
                            raise SystemExit(f"{cell}: {name}: {why}") from why
                    if begun == 0 and name == EAGER:
                        _all_agree(cell, reports, notes)
                for i in range(rounds * begun // processes, rounds * (begun + 1) // processes):
                    if spent > ENOUGH * (begun + 1) / processes and i * processes >= LEAST_ROUNDS * (begun + 1):
                        break
                    start = time.monotonic()
                    for name in rotated(list(names), i):
                        out = name not in running or (reports[name][0]["slow"] and i >= SLOW_ROUNDS)
                        seconds[name].append(math.nan if out else running[name].turn())
                    spent += time.monotonic() - start
    kept = {name: each for name, each in seconds.items() if name not in notes}
    megabytes, ahead = (
        {name: min(report[what] for report in reports[name]) for name in kept} for what in ("megabytes", "ahead")
    )
    return Measured(cell, kept, megabytes, ahead, notes)


def _all_agree(cell: Cell, reports: dict[str, list[dict[str, Any]]], notes: dict[str, str]) -> None:
    """Those that were there before PyTorch eager."""
    for name, found in reports.items():
        if found and name != EAGER and name not in notes:
            try:
                agree(cell, reports[EAGER][0], found[0])
            except Refused as why:
                raise SystemExit(f"{cell}: {name}: {why}") from why


def agree(cell: Cell, right: dict[str, Any], found: dict[str, Any]) -> None:
    """Compares what inference gave, or the first losses of a training and how far they fell.

    Raises:
        Refused: They differ.
    """
    kind = "tf32" if cell.device == "gpu" and cell.dtype == "float32" else cell.dtype
    if cell.trains:
        theirs, ours = np.array(right["curve"]), np.array(found["curve"])
        fell = theirs[0] - theirs[-1], ours[0] - ours[-1]
        same = abs(theirs[0] - ours[0]) <= LOSSES[kind] * abs(theirs[0])
        allowed = DROPS[kind] * abs(fell[0]) + LOSSES[kind] * abs(theirs[0])
        if not (same and abs(fell[0] - fell[1]) <= allowed):
            raise Refused(f"learns otherwise: {found['curve']}, {EAGER} {right['curve']}")
        return
    with np.load(right["outputs"]) as one, np.load(found["outputs"]) as other:
        if [one[name].shape for name in one] != [other[name].shape for name in other]:
            raise Refused("gives results of other shapes")
        off = max(np.linalg.norm(one[name] - other[name]) / np.linalg.norm(one[name]) for name in one)
    if not off <= OUTPUTS[kind]:
        raise Refused(f"gives other results, by {off:.2g}")


class Side:
    """A library in a process of its own, which takes steps when it is told to."""

    def __init__(self, name: str, cell: Cell, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "tests.bench.networks_turns", name, json.dumps(cell), str(folder)]
        env = {**os.environ, "MLX_ENABLE_TF32": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if cell.device == "cpu":
            # With processes of its own for compiling, PyTorch had not compiled after four minutes on two cores.
            env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        for variables in ENVIRONMENT.values():
            for variable in variables:
                env.pop(variable, None)
        env |= ENVIRONMENT.get(name, {}) if environment is None else environment
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd=_ROOT
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *args: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the process, at once if it does not by itself."""
        if self._process.poll() is None:
            assert self._process.stdin
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def report(self) -> dict[str, Any]:
        """Has it take its first steps, which nobody else does meanwhile, and gives what it says of them.

        Raises:
            Refused: It ended, or is stock MLX or JAX and takes over a minute for one.
        """
        self._answer(None)  # it is there
        self._tell("begin")
        self._answer(MINUTE if self._name in (STOCK, JAX) else None)  # and has taken a step
        report: dict[str, Any] = json.loads(self._answer(None))
        return report

    def turn(self) -> float:
        """Seconds of a step."""
        self._tell("turn")
        return float(self._answer(None))

    def _tell(self, word: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the answer says
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self, patience: float | None) -> bytes:
        assert self._process.stdout
        if patience is not None and not select.select([self._process.stdout], [], [], patience)[0]:
            raise Refused("a step takes over a minute")
        answer = self._process.stdout.readline()
        if answer:
            return answer
        self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line for line in said if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)] or said or ["no word"]
        raise Refused(f"ended with {self._process.returncode}: {said[-1]}"[:200])


_ROOT = Path(__file__).parents[2]


def _module(name: str) -> Any:
    return importlib.import_module(f"tests.bench.rivals.networks_{MODULES.get(name, 'mlx')}")


def built(name: str, cell: Cell, folder: Path) -> Any:
    """A side's network with the weights that lie in a folder, in this process."""
    if name not in MODULES:
        import mpsfunc  # first, as users do: it has a say in how MLX launches, which MLX reads at its first launch

        if cell.device == "cpu":
            mpsfunc.set_num_threads(2)
    settings: dict[str, bool] = {}
    if MODULES.get(name) == "torch":
        settings = {"compiled": name != EAGER, "autotuned": name == AUTOTUNED}
    elif name != JAX:
        settings = {"converted": name != STOCK}
    return _module(name).runner(cell, whole.weights(folder / "weights.npz"), **settings)


def child(name: str, cell: Cell, folder: Path) -> None:
    """A side: builds, says so, waits, takes its first steps, reports, and takes a turn for every further line."""
    from .clock import wall_of
    from .peak import given_back, peak, peak_from_now

    module, runner = _module(name), built(name, cell, folder)
    on_gpu = cell.device == "gpu"
    print("built", flush=True)
    if not sys.stdin.buffer.readline():
        return
    curve = [runner.run(1) for _ in range(cell.trains and name in (COMPILED, AUTOTUNED))]  # else they are compiled
    module.reset_peak()
    given_back()
    before = peak_from_now()
    curve.append(runner.run(1))
    print("a step", flush=True)
    while len(curve) < CURVE:
        start = time.perf_counter()
        curve.append(runner.run(1))
        step = time.perf_counter() - start
    grown = {"megabytes": (module.peak() if on_gpu else peak() - before) / 1e6, "ahead": math.nan}
    slow = name in (STOCK, JAX) and step > SLOW
    steps = GPU_STEPS if on_gpu else 1 if slow else max(1, min(MOST_STEPS, round(TURN / step)))
    if on_gpu:
        module.reset_peak()
        runner.run(GPU_STEPS, True)
        grown["ahead"] = module.peak() / 1e6
    outputs = folder / f"{list(MODULES).index(name) if name in MODULES else name}.npz"
    np.savez(outputs, *runner.outputs())
    print(json.dumps({"curve": curve, "outputs": str(outputs), "slow": slow, **grown}), flush=True)
    for _ in sys.stdin.buffer:
        if not slow:
            runner.run(GPU_WARM if on_gpu else 1, on_gpu)
        print(wall_of(lambda: runner.run(steps, on_gpu)) / steps, flush=True)


if __name__ == "__main__":
    child(sys.argv[1], Cell(*json.loads(sys.argv[2])), Path(sys.argv[3]))
