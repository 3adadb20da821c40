"""Our operations on an NVIDIA GPU beside stock MLX and PyTorch, on arrays that no cache holds."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import torch
from support.benchmarks import COPY, OURS, Target
from torch.profiler import ProfilerActivity, profile

from mpsfunc.core.mlx_settings import CUDA_GRAPHS

from . import clock, cupti, operations
from .problems import TF32_TOLERANCE, Problem
from .results import Row, checked, has_oracle
from .rivals import Call, Side, cudnn, on_mlx, ours, pytorch, stock, swapped
from .rivals.pytorch import deterministic

SHAPE, QUICK_SHAPE = (128, 56, 56, 64), (8, 56, 56, 64)
OWN, SWAPPED = "own kernel", "MLX swapped"
CUDNN = {"cuDNN NCHW": torch.contiguous_format, "cuDNN NHWC": torch.channels_last}

# Bytes that pass before an input is read again: four times the L2 of an H200.
_PASSING = 240 * 10**6
_INFORMATIVE_ROUNDS = 10


def problems(only: Sequence[str], shape: tuple[int, ...], *, tf32: bool) -> list[operations.Planned]:
    """The rows of the table, or of a quick run on another shape; with ``tf32`` convolutions in float32 alone."""
    rows: list[operations.Planned] = []
    for op, benchmark in operations.chosen(only).items():
        convolution = benchmark.family == "convolution"
        if tf32 and not convolution:
            continue
        for measured in benchmark.gpu:
            of = measured.shape or shape
            if convolution and shape != SHAPE:
                of = 2, *(measured.shape or SHAPE)[1:]
            rows += [row for row in operations.rows(op, measured, of) if not tf32 or row[0].dtype == "float32"]
    return rows


def main(args: argparse.Namespace) -> Iterator[Row]:
    """All rows asked for, each when it is measured."""
    os.environ[CUDA_GRAPHS] = "0"  # where MLX has them on CUPTI ends the process
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cudnn.benchmark = True
    for problem, targets in problems(args.only, QUICK_SHAPE if args.quick else SHAPE, tf32=args.tf32):
        if args.dtype and problem.dtype not in args.dtype:
            continue
        if not has_oracle(problem, pytorch.functions):
            print(f"{problem.title}: left out, as PyTorch without torchvision does not have it", flush=True)
            continue
        print(f"{problem.title} {problem.dtype}", flush=True)
        rounds = args.rounds if targets else min(args.rounds, _INFORMATIVE_ROUNDS)
        yield measure(problem, targets, rounds, TF32_TOLERANCE if args.tf32 else None)
        mx.clear_cache()
        torch.cuda.empty_cache()


def measure(problem: Problem, targets: tuple[Target, ...], rounds: int, tolerance: float | None) -> Row:
    """One row, after a check of every answer."""
    inputs = problem.inputs()
    convolution = problem.op.startswith("conv")
    free = convolution and os.environ.get("MPSFUNC_DETERMINISTIC", "0") != "1"
    sides = _sides(free, own=problem.kernel_size == 3 and problem.stride == 1 and not tolerance)
    if problem.dtype == "bfloat16":  # PyTorch's operators for cuDNN want parameters of this dtype, which nobody has
        sides = [side for side in sides if side.name not in CUDNN]
    if not problem.of_images:
        sides = [side for side in sides if side.name != "PyTorch NHWC"]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cuda")
    right, wrong = checked(problem, sides, oracle, inputs, tolerance)

    calls = {side.name: _calls(side, problem, inputs) for side in sides if side.name in right}
    x = torch.from_numpy(inputs.x).to("cuda", getattr(torch, problem.dtype))
    calls[COPY] = [_copy(x.clone()) for _ in range(_sets(2 * problem.image_bytes))]
    times = clock.interleave({name: busy(each) for name, each in calls.items()}, rounds)
    kernels = {name: cupti.kernels(_records(each), len(each)) for name, each in calls.items()}
    routed = convolution and not any("mpsfunc_conv" in kernel.name for kernel in kernels[OURS])
    return Row(problem, times, {name: len(each) for name, each in calls.items()}, {}, wrong, targets, routed, kernels)


def busy(calls: Sequence[Call]) -> clock.Sampler:
    """Seconds a call for which the GPU works: its kernels, copies and fills, by CUPTI's records."""
    return lambda: sum(record.device_time for record in _records(calls)) / 1e6 / len(calls)


def _records(calls: Sequence[Call]) -> list[Any]:
    _evaluate(calls)  # what the side before this one wrote lies in the L2, and is written to memory now
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _evaluate(calls)
    records = cupti.records(profiler)
    if not records:
        raise RuntimeError("CUPTI recorded nothing")
    return records


def _evaluate(calls: Sequence[Call]) -> None:
    outputs = []  # apart from one another, in memory of their own
    for call in calls:
        outputs.append(call())
        mx.eval([a for a in outputs[-1] if not isinstance(a, torch.Tensor)])
    torch.cuda.synchronize()


def card() -> tuple[str, str]:
    """Name and driver of the GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().split(", ")
    return name, driver


def _sets(moved: int) -> int:
    return max(1, math.ceil(_PASSING / moved))


def _calls(side: Side, problem: Problem, inputs: SimpleNamespace) -> list[Call]:
    """As many as there are sets of inputs."""
    calls = []
    for _ in range(_sets(problem.necessary_bytes)):
        call = side.bind(problem, side.place(inputs, problem.dtype))
        assert call is not None
        calls.append(call)
    return calls


def _sides(free: bool, own: bool) -> list[Side]:
    sides = [on_mlx.side(OURS, ours.functions), on_mlx.side("MLX", stock.functions), on_mlx.side(SWAPPED, swapped)]
    if free and own:
        convolutions = [op for op, benchmark in operations.OF_FAMILY["convolution"].items() if benchmark.gpu]
        unrouted = SimpleNamespace(**{op: _unrouted(getattr(ours.functions, op)) for op in convolutions})
        sides.insert(1, on_mlx.side(OWN, unrouted))
    sides += [pytorch.side(name, layout, "cuda") for name, layout in pytorch.LAYOUTS.items()]
    sides.append(pytorch.side(deterministic.NAME, torch.contiguous_format, "cuda", functions=deterministic.functions))
    return sides + [pytorch.side(name, layout, "cuda", functions=cudnn) for name, layout in CUDNN.items()]


def _unrouted(bind: Callable[[Problem, SimpleNamespace], Call]) -> Callable[[Problem, SimpleNamespace], Call]:
    """The same operation with the vendor's library forbidden."""

    def bind_unrouted(problem: Problem, arrays: SimpleNamespace) -> Call:
        call = bind(problem, arrays)

        def unrouted() -> list[Any]:
            os.environ["MPSFUNC_DETERMINISTIC"] = "1"
            try:
                return call()
            finally:
                del os.environ["MPSFUNC_DETERMINISTIC"]

        return unrouted

    return bind_unrouted


def _copy(x: torch.Tensor) -> Call:
    return lambda: [x.clone()]
