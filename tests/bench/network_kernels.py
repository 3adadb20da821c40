"""Where a GPU's time goes in a training step: the kernels of our side and of PyTorch's, by CUPTI's records.

python -m tests.bench.network_kernels --only small --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import cupti, networks_turns, whole
from .networks_turns import EAGER, OURS, STOCK
from .whole import Cell

_METHOD = """Kernels of {steps} training steps, recorded by CUPTI through PyTorch's profiler in the process of each
side, after {warm} that are not recorded. *busy* is the sum of their times, which is more than a step where kernels
overlap; *a step* is by the clock, without the profiler. The networks are those of `python -m tests.bench networks`;
float32 is with TensorFloat-32, and in bfloat16 everything is bfloat16. Names are shortened to what distinguishes
them. Written by `python -m tests.bench.network_kernels`."""
_STEPS, _WARM, _LINES = 10, 10, 16
SIDES = (OURS, STOCK, EAGER)


def profile(name: str, cell: Cell) -> dict[str, Any]:
    """Milliseconds a step by the clock, and by kernel, with its number of launches."""
    import torch
    from torch.profiler import ProfilerActivity

    with tempfile.TemporaryDirectory() as folder:
        whole.write_weights(cell, Path(folder) / "weights.npz")
        runner = networks_turns.built(name, cell, Path(folder))
    runner.run(_WARM, True)
    start = time.perf_counter()
    runner.run(_STEPS, True)
    wall = (time.perf_counter() - start) / _STEPS
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        runner.run(_STEPS, True)
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in cupti.records(profiler):
        entry = found[cupti.short(event.name)]
        entry[0] += event.device_time / 1e3 / _STEPS
        entry[1] += 1 / _STEPS
    return {"wall": 1e3 * wall, "kernels": sorted(([k, *v] for k, v in found.items()), key=lambda e: -e[1])}


def table(cell: Cell, found: dict[str, dict[str, Any]]) -> list[str]:
    """One side after another: the kernels that take most, and all others together."""
    from . import report

    parts = [f"## {cell.network}, batch {cell.batch}, {cell.dtype}"]
    lines = []
    for name, each in found.items():
        busy, launches = (sum(entry[i] for entry in each["kernels"]) for i in (1, 2))
        lines.append([name, f"{each['wall']:.2f}", f"{busy:.2f}", f"{launches:.0f}"])
    parts.append(report.table(["side", "ms a step", "ms busy", "kernels a step"], lines))
    for name, each in found.items():
        first, rest = each["kernels"][:_LINES], each["kernels"][_LINES:]
        rows = [[f"`{kernel}`", f"{ms:.3f}", f"{count:.1f}"] for kernel, ms, count in first]
        rows.append([f"{len(rest)} others", f"{sum(e[1] for e in rest):.3f}", f"{sum(e[2] for e in rest):.1f}"])
        parts += [f"### {name}", report.table(["kernel", "ms a step", "launches a step"], rows)]
    return parts


def measure(cell: Cell, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each side in a process of its own."""
    found = {}
    for name in names:
        command = [sys.executable, "-m", "tests.bench.network_kernels", "--side", json.dumps([name, cell])]
        env = {**os.environ, "MLX_ENABLE_TF32": "1"}
        env.pop("MLX_USE_CUDA_GRAPHS", None)  # each side has its own default
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measures and writes networks_gpu_kernels.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.network_kernels", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=whole.NETWORKS, default=("small", "ResNet-20"))
    parser.add_argument("--dtype", nargs="+", choices=whole.DTYPES, default=whole.DTYPES)
    parser.add_argument("--batch", type=int, default=whole.OF_SMALL_IMAGES)
    parser.add_argument("--no-stock", action="store_true", help="without MLX's own layers")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--commit", default="", help="what was measured, where there is no git")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        name, fields = json.loads(args.side)
        print(json.dumps(profile(name, Cell(*fields))))
        return
    from . import gpu, report

    facts = report.gpu_facts(args.commit or report.commit(), *gpu.card())
    parts = ["# Kernels of whole networks on an NVIDIA GPU", _METHOD.format(steps=_STEPS, warm=_WARM)]
    parts.append(report.table(["machine", ""], facts.items()))
    for network in args.only:
        for dtype in args.dtype:
            pixels = whole.NETWORKS[network].pixels
            cell = Cell(network, whole.TRAINING, args.batch, dtype, pixels, "gpu")
            parts += table(cell, measure(cell, [s for s in SIDES if s != STOCK or not args.no_stock]))
    print(report.save(args.out, "networks_gpu_kernels", parts))


if __name__ == "__main__":
    main()
