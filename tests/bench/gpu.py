"""Our operations on an NVIDIA GPU beside stock MLX and PyTorch, on arrays that no cache holds."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import torch
from torch.profiler import ProfilerActivity, profile

from mpsfunc.core.mlx_settings import CUDA_GRAPHS

from . import clock, cupti
from .problems import TF32_TOLERANCE, Problem
from .results import COPY, OURS, PYTORCH, Row, Target, checked
from .rivals import Call, Side, cudnn, on_mlx, ours, pytorch, stock, swapped

SHAPE, QUICK_SHAPE = (128, 56, 56, 64), (8, 56, 56, 64)
OWN, SWAPPED = "own kernel", "MLX swapped"
CUDNN = {"cuDNN NCHW": torch.contiguous_format, "cuDNN NHWC": torch.channels_last}
_TORCH = (*PYTORCH, *CUDNN)

# Bytes that pass before an input is read again: four times the L2 of an H200.
_PASSING = 240 * 10**6
_INFORMATIVE_ROUNDS = 10

_FLOAT32 = ("float32",)
_BOTH = ("float32", "bfloat16")
# Window, targets, and the dtypes that they are for.
_ROWS: dict[str, tuple[tuple[int, int, int], tuple[Target, ...], tuple[str, ...]]] = {
    "avg_pool_grad": ((3, 2, 1), (Target((COPY,), 0.7), Target(PYTORCH, 5)), _FLOAT32),
    "max_pool_grad": ((3, 2, 1), (Target((COPY,), 0.7),), _FLOAT32),
    "l2_pool_grad": ((3, 2, 1), (Target((COPY,), 0.7),), _FLOAT32),
    "avg_pool": ((3, 2, 1), (Target((COPY,), 0.7),), _FLOAT32),
    "max_pool": ((3, 2, 1), (), ()),
    "l2_pool": ((3, 2, 1), (), ()),
}
_SHARE = (Target((COPY,), 0.7),)
_PIXELWISE, _LARGE = (Target((COPY,), 0.8),), (Target((COPY,), 0.85),)
_RESPONSE: dict[str, Any] = {"kernel_size": 5, "exponent": 0.75}
# Normalizations: what they have besides images, times as many images, and targets.
_NORMS: tuple[tuple[str, dict[str, Any], int, tuple[Target, ...]], ...] = (
    ("bn_stats", {}, 1, _SHARE),
    ("bn_stats", {}, 4, _LARGE),
    ("bn_normalize", {}, 1, _PIXELWISE),
    ("bn_relu_normalize", {}, 1, _PIXELWISE),
    ("bn_stats_grad", {}, 1, (*_SHARE, Target(PYTORCH, 1))),
    ("bn_stats_grad", {}, 4, _LARGE),
    ("bn_grad", {}, 1, _PIXELWISE),
    ("bn_relu_grad", {}, 1, _PIXELWISE),
    ("bn_forward", {}, 1, ()),
    ("bn_relu_forward", {}, 1, ()),
    ("bn_backward", {}, 1, (Target(_TORCH, 1),)),
    ("bn_relu_backward", {}, 1, ()),
    ("instance_norm", {}, 1, _SHARE),
    ("instance_norm_grad", {}, 1, _SHARE),
    ("cross_channel_norm", _RESPONSE, 1, _SHARE),
    ("cross_channel_norm_grad", _RESPONSE, 1, _SHARE),
)
_DTYPES = ("float32", "float16", "bfloat16")
_NEURONS = ("relu", "relu_grad", "gelu", "gelu_grad")
_DROPOUT = ("dropout", "dropout_grad", "dropout_masked", "dropout_masked_grad")
_ARITHMETIC = ("add", "multiply", "multiply_grad", "multiply_channels")
_SOFTMAX = ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad")
_UPSAMPLING = tuple(
    f"upsample_{rule}{grad}" for rule in ("bilinear", "asymmetric", "nearest") for grad in ("", "_grad")
)
# Pointwise families: targets for float32.
_POINTWISE: dict[str, tuple[Target, ...]] = {
    **dict.fromkeys((*_NEURONS, *_DROPOUT, *_ARITHMETIC), _PIXELWISE),
    **dict.fromkeys((*_SOFTMAX, *_UPSAMPLING), _SHARE),
    **dict.fromkeys(("multiply_channels_grad", "cross_entropy", "cross_entropy_dense"), ()),
}
_LOGITS = (4096, 1000)  # of cross-entropy
# Images, window and output channels of convolutions, all with the same targets.
_CONVOLUTIONS: tuple[tuple[tuple[int, int, int, int], tuple[int, int, int], int], ...] = (
    (SHAPE, (3, 1, 1), 0),
    ((128, 28, 28, 128), (3, 1, 1), 0),
    ((128, 28, 28, 128), (3, 2, 1), 256),
    ((128, 14, 14, 256), (1, 1, 0), 0),
    ((64, 112, 112, 3), (7, 2, 3), 64),
)
_OF_CONVOLUTIONS = ("conv_grad_weights", "conv_grad_weights_vjp", "conv_grad_input", "conv")
_CONV = (Target(("MLX", SWAPPED), 1), Target(PYTORCH, 0.9))
# Of few channels, for which weight gradients have a kernel of their own.
_NARROW: tuple[tuple[tuple[int, int, int, int], tuple[int, int, int], int], ...] = (
    ((512, 32, 32, 3), (3, 1, 1), 16),
    ((512, 32, 32, 16), (3, 1, 1), 0),
    ((512, 16, 16, 32), (3, 1, 1), 0),
    ((512, 32, 32, 16), (3, 2, 1), 32),
    ((512, 16, 16, 32), (3, 2, 1), 64),
    ((512, 32, 32, 16), (1, 2, 0), 32),
)


def problems(only: Sequence[str], shape: tuple[int, ...], *, tf32: bool) -> list[tuple[Problem, tuple[Target, ...]]]:
    """The rows of the table; with ``tf32`` convolutions in float32 alone."""
    convolutions = [
        (Problem(op, image if shape == SHAPE else (2, *image[1:]), dtype, *window, outs=outs), _CONV)
        for op in _OF_CONVOLUTIONS
        for image, window, outs in _CONVOLUTIONS + (_NARROW if op.startswith("conv_grad_weights") else ())
        for dtype in (_FLOAT32 if tf32 else _BOTH)
        if dtype == "bfloat16" or not op.endswith("_vjp")  # of float32 it is the same work
    ]
    poolings = [
        (Problem(op, shape, dtype, *window), targets if dtype in dtypes else ())
        for op, (window, targets, dtypes) in _ROWS.items()
        for dtype in _BOTH
    ]
    norms = [
        (Problem(op, (times * shape[0], *shape[1:]), dtype, **how), targets)
        for op, how, times, targets in _NORMS
        for dtype in _DTYPES
    ]
    pointwise = [
        (
            Problem(op, _LOGITS if op.startswith("cross_entropy") else shape, dtype),
            targets if dtype == "float32" else (),
        )
        for op, targets in _POINTWISE.items()
        for dtype in _DTYPES
    ]
    rows = convolutions if tf32 else poolings + norms + pointwise + convolutions
    return [row for row in rows if not only or row[0].op in only]


def main(args: argparse.Namespace) -> list[Row]:
    """All rows asked for."""
    os.environ[CUDA_GRAPHS] = "0"  # where MLX has them on CUPTI ends the process
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.backends.cudnn.benchmark = True
    rows = []
    for problem, targets in problems(args.only, QUICK_SHAPE if args.quick else SHAPE, tf32=args.tf32):
        print(f"{problem.title} {problem.dtype}", flush=True)
        rounds = args.rounds if targets else min(args.rounds, _INFORMATIVE_ROUNDS)
        try:
            rows.append(measure(problem, targets, rounds, TF32_TOLERANCE if args.tf32 else None))
        except KeyboardInterrupt:
            print("interrupted: the rows so far", flush=True)
            break
        mx.clear_cache()
        torch.cuda.empty_cache()
    return rows


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
        unrouted = SimpleNamespace(**{op: _unrouted(getattr(ours.functions, op)) for op in _OF_CONVOLUTIONS})
        sides.insert(1, on_mlx.side(OWN, unrouted))
    sides += [pytorch.side(name, layout, "cuda") for name, layout in pytorch.LAYOUTS.items()]
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
