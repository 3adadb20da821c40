"""What it saves that our kernels are launched without MLX's primitive for kernels in machine code, on an NVIDIA GPU.

``python -m tests.bench.launching`` writes launching.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx

from mpsfunc.core import launch

from . import networks_turns, report, whole
from .clock import rotated
from .rivals import Runner
from .stats import median, paired
from .whole import Cell

BY_MLX = "by MLX"
NETWORKS = ("ResNet-50", "MobileNetV2", "ResNet-20")
ROUNDS, STEPS, WARM = 12, 20, 5
_METHOD = """Training steps of converted networks, the same as in `python -m tests.bench networks --gpu`, all in one
process, in this order. So the later ones may run ahead by the memory that the first one needs. *mpsfunc* launches its
kernels itself (`primitives/binding/cuda_kernel.cpp`); *by MLX* is the same step, whose kernels are launched by
`mx.fast.precompiled_cuda_kernel`. The two take turns, {rounds} each: {warm} steps are not counted, then {steps} are
launched without waiting for each other, and their mean counts. Times are medians of the turns, and the ratio is the
median of the turns' ratios, with a bootstrap interval of 95 %. Both have computed the same losses, bit for bit, in
the first {steps} steps. Written by `python -m tests.bench.launching`."""


class LeftToMLX:
    """The C++ module, but for its launches."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def launched(self, made: list[mx.array], *how: object) -> list[mx.array]:
        """What MLX launches."""
        return made


def steps(cell: Cell, folder: Path, name: str) -> tuple[Runner, list[float]]:
    """What takes a side's steps, traced, and the losses of the first ones."""
    runner = networks_turns.built(networks_turns.OURS, cell, folder)
    module = launch.optional_module()
    with mock.patch.object(launch, "_primitives", LeftToMLX(module) if name == BY_MLX else module):
        return runner, [runner.run(1) for _ in range(STEPS)]


def line(network: str, ours: Sequence[float], by_mlx: Sequence[float]) -> list[str]:
    """A line of the table, of seconds a step."""
    ratio = paired(ours, by_mlx)
    times = [f"{1e3 * median(each):.2f}" for each in (ours, by_mlx)]
    return [network, *times, f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"]


def measured(cell: Cell) -> list[str]:
    """That of a network."""
    with tempfile.TemporaryDirectory() as folder:
        whole.write_weights(cell, Path(folder) / "weights.npz")
        sides = {name: steps(cell, Path(folder), name) for name in (networks_turns.OURS, BY_MLX)}
    (_, ours), (_, by_mlx) = sides.values()
    if ours != by_mlx:
        raise SystemExit(f"{cell}: losses differ: {ours}, by MLX {by_mlx}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(ROUNDS):
        for name in rotated(list(sides), i):
            run = sides[name][0].run
            run(WARM, True)
            start = time.perf_counter()
            run(STEPS, True)
            seconds[name].append((time.perf_counter() - start) / STEPS)
    return line(cell.network, *seconds.values())


def main(args: argparse.Namespace) -> None:
    """Measures and writes the page."""
    from . import gpu  # which needs PyTorch

    cells = [
        cell for cell in whole.cells("gpu") if cell.trains and cell.dtype == "bfloat16" and cell.network in args.only
    ]
    if not launch.optional_module().launches_directly():
        raise SystemExit("launching: MLX launches here; expected an NVIDIA GPU, without CUDA graphs")
    lines = [measured(cell) for cell in cells]
    facts = report.gpu_facts(args.commit or report.commit(), *gpu.card())
    method = _METHOD.format(rounds=ROUNDS, steps=STEPS, warm=WARM)
    head = ["training in bfloat16", "mpsfunc, ms", "by MLX, ms", "times the time (95 %)"]
    parts = ["# Launches on an NVIDIA GPU", method, report.table(["machine", ""], facts.items())]
    print(report.save(args.out, "launching", [*parts, report.table(head, lines)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.launching", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=whole.NETWORKS, default=NETWORKS)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--commit", default="", help="what is measured, where there is no git")
    main(parser.parse_args())
