"""How much memory an operation takes beyond its inputs and outputs: the peak of a process that does nothing else."""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from support.benchmarks import OURS, PYTORCH, Benchmark

from .peak import peak, peak_from_now
from .problems import TOLD, Problem
from .rivals import Side

SHAPE, QUICK_SHAPE = (8, 224, 224, 64), (1, 24, 24, 64)
SIDES = (OURS, "MLX", *PYTORCH)
LIMITS_MB = {"conv_grad_weights": 32}

_WINDOWS = {
    "avg_pool": (3, 2, 1),
    "avg_pool_grad": (3, 2, 1),
    "bn_forward": (1, 1, 0),
    "bn_backward": (1, 1, 0),
    "conv": (3, 1, 1),
    "conv_grad_input": (3, 1, 1),
    "conv_grad_weights": (3, 1, 1),
}


class Growth(NamedTuple):
    """Bytes beyond inputs and outputs, a side each."""

    problem: Problem
    beyond: dict[str, int]
    outputs: int

    @property
    def met(self) -> bool | None:
        """Whether ours stays within its limit; None where it has none."""
        limit = LIMITS_MB.get(self.problem.op)
        return None if limit is None else self.beyond[OURS] <= limit * 10**6


def main(args: argparse.Namespace) -> list[Growth]:
    """Every operation, each side in a process of its own."""
    shape = QUICK_SHAPE if args.quick else SHAPE
    growths = []
    for op, window in _WINDOWS.items():
        if args.only and op not in args.only:
            continue
        problem = Problem(op, shape, "float32", *window)
        print(f"{problem.title} {problem.dtype}", flush=True)
        measured = {name: _in_fresh_process(problem, name) for name in SIDES}
        beyond = {name: max(0, grown - outputs) for name, (grown, outputs) in measured.items()}
        growths.append(Growth(problem, beyond, measured[OURS][1]))
    return growths


def _in_fresh_process(problem: Problem, side: str) -> tuple[int, int]:
    told = json.dumps([problem, problem.operation._replace(cpu=(), gpu=())])
    command = [sys.executable, "-m", "tests.bench.memory", told, side]
    grown, outputs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return grown, outputs


def _side(name: str) -> Side:
    if name.startswith("PyTorch"):
        import torch

        from .rivals import pytorch

        torch.set_num_threads(2)
        return pytorch.side(name, pytorch.LAYOUTS[name], "cpu")
    import mlx.core as mx

    from .rivals import on_mlx

    mx.set_default_device(mx.cpu)
    if name == OURS:
        from .rivals.ours import functions
    else:
        from .rivals.stock import functions
    return on_mlx.side(name, functions)


def _child(arguments: Sequence[str]) -> None:
    (op, shape, *rest), told = json.loads(arguments[0])
    TOLD[op] = Benchmark(*told)
    problem, side = Problem(op, tuple(shape), *rest), _side(arguments[1])
    placed = side.place(problem.inputs(), problem.dtype)
    call = side.bind(problem, placed)
    assert call is not None
    kept: list[Any] = []

    def keep() -> list[Any]:
        kept[:] = call()
        return kept

    gc.collect()
    before = peak_from_now()
    side.run(keep, 1)
    grown = peak() - before
    print(json.dumps([grown, sum(output.nbytes for output in kept)]))


if __name__ == "__main__":
    _child(sys.argv[1:])
