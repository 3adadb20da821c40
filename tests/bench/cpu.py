"""Our operations on the CPU beside stock MLX, PyTorch and JAX, two threads each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import torch

import mpsfunc as mf

from . import clock, openblas
from .problems import Problem
from .results import COPY, OURS, PYTORCH, Row, Target, checked
from .rivals import Side, on_mlx, ours, pytorch, stock

THREADS = 2
SHAPE, QUICK_SHAPE = (8, 56, 56, 64), (1, 12, 12, 64)

# Calls this short are timed ten an evaluation; calls that take their time are timed one by one all the same.
_SHORT, _LONG = 2e-3, 20e-3
_TOGETHER = 10
_TRIES = 5

DROPPING = "PyTorch NHWC, dropping"
_STOCK = ("MLX",)
_LEVEL = (Target(PYTORCH, 1.0),)
_CONV = (Target(PYTORCH, 1.0), Target(_STOCK, 40))
_POOLINGS = ((3, 2, 1), (2, 2, 0))
_ROWS: tuple[tuple[str, tuple[tuple[int, int, int], ...], tuple[Target, ...]], ...] = (
    ("avg_pool", _POOLINGS, _LEVEL),
    ("avg_pool_grad", _POOLINGS, _LEVEL),
    ("max_pool", _POOLINGS, _LEVEL),
    ("max_pool_grad", _POOLINGS, _LEVEL),
    ("l2_pool", _POOLINGS, _LEVEL),
    ("l2_pool_grad", _POOLINGS, _LEVEL),
)
_BATCH, _LOCAL_RESPONSE = (Target(PYTORCH, 1.3),), (Target(PYTORCH, 3.0),)
_THREE_COPIES, _TWO_COPIES = (Target((COPY,), 1 / 3),), (Target((COPY,), 1 / 2),)
_GROUPS: dict[str, Any] = {"groups": 8}
_RESPONSE: dict[str, Any] = {"kernel_size": 5, "exponent": 0.75}


def _around(size: int, exponent: float) -> dict[str, Any]:
    return {"kernel_size": size, "exponent": exponent}


# What a normalization has besides images, and its targets; the first row of each in half precision too.
_NORMS: dict[str, tuple[tuple[dict[str, Any], tuple[Target, ...]], ...]] = {
    "bn_forward": (({}, _BATCH),),
    "bn_backward": (({}, _BATCH),),
    "bn_relu_forward": (({}, _BATCH),),
    "bn_relu_backward": (({}, _BATCH),),
    "instance_norm": (({}, _LEVEL),),
    "instance_norm_grad": (({}, _LEVEL),),
    "group_norm": ((_GROUPS, _LEVEL),),
    "group_norm_grad": ((_GROUPS, _LEVEL),),
    "cross_channel_norm": ((_RESPONSE, _LOCAL_RESPONSE),),
    "cross_channel_norm_grad": ((_RESPONSE, _LOCAL_RESPONSE),),
    "spatial_norm": (
        (_around(5, 0.6), _THREE_COPIES),
        (_around(5, 5), _THREE_COPIES),
        (_around(5, 0.5), _TWO_COPIES),
        (_around(5, 1), _TWO_COPIES),
        (_around(31, 0.6), ()),
    ),
    "spatial_norm_grad": ((_around(5, 0.6), ()), (_around(31, 0.6), ())),
    "local_contrast_norm": ((_around(5, 0.5), ()),),
    "local_contrast_norm_grad": ((_around(5, 0.5), ()),),
}
# Pointwise families, in half precision too.
_POINTWISE: dict[str, tuple[Target, ...]] = {
    **dict.fromkeys(("relu", "relu_grad", "gelu", "gelu_grad"), _LEVEL),
    **dict.fromkeys(("softmax", "softmax_grad", "log_softmax", "log_softmax_grad"), _LEVEL),
    **dict.fromkeys(("dropout", "dropout_grad", "dropout_masked", "dropout_masked_grad"), _LEVEL),
    **dict.fromkeys(("upsample_bilinear", "upsample_bilinear_grad"), _LEVEL),
    **dict.fromkeys(("upsample_asymmetric", "upsample_asymmetric_grad"), ()),
    **dict.fromkeys(("upsample_nearest", "upsample_nearest_grad"), _LEVEL),
    "cross_entropy": _LEVEL,
    "cross_entropy_dense": (),
    **dict.fromkeys(("add", "multiply", "multiply_grad", "multiply_channels", "multiply_channels_grad"), ()),
}
_LOGITS, _QUICK_LOGITS = (4096, 1000), (64, 1000)  # of cross-entropy
_DTYPES = ("float32", "float16", "bfloat16")
_CONVS = ("conv", "conv_grad_input", "conv_grad_weights")
_CONNECTED = ("fully_connected", "fully_connected_grad_input", "fully_connected_grad_weights")
# Images, window, and what else a convolution has.
_CONVOLUTIONS: tuple[tuple[tuple[int, int, int, int], tuple[int, int, int], dict[str, int]], ...] = (
    (SHAPE, (3, 1, 1), {}),
    ((8, 28, 28, 128), (3, 1, 1), {}),
    ((8, 14, 14, 256), (3, 1, 1), {}),
    ((8, 7, 7, 512), (3, 1, 1), {}),
    (SHAPE, (1, 1, 0), {"outs": 256}),
    ((8, 28, 28, 256), (3, 2, 1), {"outs": 512}),
    ((8, 224, 224, 3), (7, 2, 3), {"outs": 64}),
    ((8, 56, 56, 128), (3, 1, 1), {"groups": 128}),
    ((8, 28, 28, 64), (3, 1, 2), {"dilation": 2}),
    ((32, 8, 8, 32), (3, 1, 1), {"outs": 64}),
)
_LAYERS = {op: _CONVOLUTIONS for op in _CONVS} | {
    op: (((256, 1, 1, 1024), (1, 1, 0), {"outs": 1024}),) for op in _CONNECTED
}
# Pooling in float32 besides, averages with edge mode clamp: images of other sizes and channel counts.
_MORE = ((8, 112, 112, 32), (8, 56, 56, 3), (8, 56, 56, 8), (8, 56, 56, 65))


Rows = list[tuple[Problem, tuple[Target, ...]]]


def problems(only: Sequence[str], shape: tuple[int, ...]) -> Rows:
    """The rows of the table; targets are for float32."""
    rows = [*_pooling(shape), *_normalization(shape), *_pointwise(shape), *_convolution(shape), *_more_pooling(shape)]
    return [row for row in rows if not only or row[0].op in only]


def _pooling(shape: tuple[int, ...]) -> Rows:
    return [
        (Problem(op, shape, dtype, *window), targets if dtype == "float32" else ())
        for op, windows, targets in _ROWS
        for window in windows
        for dtype in ("float32", "bfloat16")
    ]


def _more_pooling(shape: tuple[int, ...]) -> Rows:
    rows: Rows = []
    for op, windows, targets in _ROWS:
        for window in windows:
            edge = "clamp" if op.startswith("avg") else "zero"
            shapes = _MORE if shape == SHAPE else ()
            same = [shape] if edge == "clamp" and window[2] > 0 else []  # without padding there is no edge
            rows += [(Problem(op, other, "float32", *window, edge), targets) for other in (*same, *shapes)]
    return sorted(rows, key=lambda row: row[0].shape)


def _normalization(shape: tuple[int, ...]) -> Rows:
    return [
        (Problem(op, shape, dtype, **how), targets if dtype == "float32" else ())
        for op, norms in _NORMS.items()
        for at, (how, targets) in enumerate(norms)
        for dtype in (_DTYPES if at == 0 else ("float32",))
    ]


def _pointwise(shape: tuple[int, ...]) -> Rows:
    logits = _LOGITS if shape == SHAPE else _QUICK_LOGITS
    return [
        (Problem(op, logits if op.startswith("cross_entropy") else shape, dtype), targets if dtype == "float32" else ())
        for op, targets in _POINTWISE.items()
        for dtype in _DTYPES
    ]


def _convolution(shape: tuple[int, ...]) -> Rows:
    rows: Rows = []
    for op, layers in _LAYERS.items():
        for at, (image, window, how) in enumerate(layers):
            if shape != SHAPE:  # a quick run
                image = (1, *(min(n, 12) for n in image[1:3]), image[3])
            targets = _CONV if image == SHAPE and not how else _LEVEL
            for dtype in _DTYPES if at == 0 else ("float32",):
                row = Problem(op, image, dtype, *window, **how)
                rows.append((row, targets if dtype == "float32" else ()))
    return rows


def measure(problem: Problem, targets: tuple[Target, ...], args: argparse.Namespace) -> Row:
    """One row, after a check of every answer."""
    inputs = problem.inputs()
    # Stock MLX convolves some of the other layers for minutes a call.
    slow = problem.weighted and problem.shape != (QUICK_SHAPE if args.quick else SHAPE)
    without = ("MLX",) if slow else () if problem.of_images else ("PyTorch NHWC", DROPPING)
    sides = _sides(args.jax, without)
    bound, wrong = checked(problem, sides, pytorch.side("oracle", torch.contiguous_format, "cpu"), inputs)
    by_name = {side.name: side for side in sides}

    once = {name: clock.wall(by_name[name], call, 1) for name, call in bound.items()}
    seconds = {name: _least(sample) for name, sample in once.items()}
    several = _TOGETHER if min(seconds.values()) < _SHORT else 1
    calls = {name: 1 if seconds[name] > _LONG else several for name in bound}

    samplers = {name: clock.wall(by_name[name], call, calls[name]) for name, call in bound.items()}
    samplers[COPY] = _copy(inputs, problem.dtype, calls[OURS])
    library = openblas.find(args.openblas)
    if library and problem.weighted and not slow:
        with openblas.Rival(problem, library) as rival:
            samplers[openblas.NAME] = rival.sample
            times = clock.interleave(samplers, args.rounds)
    else:
        times = clock.interleave(samplers, args.rounds)
    alone = {name: once[name] for name, count in calls.items() if count > 1}
    single = clock.interleave(alone, args.rounds) if alone else {}
    return Row(problem, times, {name: calls.get(name, 1) for name in times}, single, wrong, targets)


def _least(sample: clock.Sampler) -> float:
    """Seconds of a call once memory and threads are there; a long one is not repeated."""
    first = sample()
    return first if first > _LONG else min(first, *(sample() for _ in range(_TRIES)))


def main(args: argparse.Namespace) -> list[Row]:
    """All rows asked for."""
    mx.set_default_device(mx.cpu)
    torch.set_num_threads(THREADS)
    mf.set_num_threads(THREADS)
    shape = QUICK_SHAPE if args.quick else SHAPE
    rows = []
    for problem, targets in problems(args.only, shape):
        print(f"{problem.title} {problem.dtype}", flush=True)
        try:
            rows.append(measure(problem, targets, args))
        except KeyboardInterrupt:
            print("interrupted: the rows so far", flush=True)
            break
    return rows


def _sides(jax: bool, without: Sequence[str] = ()) -> list[Side]:
    sides = [on_mlx.side(OURS, ours.functions), on_mlx.side("MLX", stock.functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    sides.append(pytorch.side(DROPPING, torch.channels_last, "cpu", keep=False))
    if jax:
        from .rivals import xla

        sides.append(xla.side())
    return [side for side in sides if side.name not in without]


def _copy(inputs: SimpleNamespace, dtype: str, copies: int) -> clock.Sampler:
    """Seconds of PyTorch's two-thread copy of x, of several in a row, each into an output that MLX just made."""
    source = torch.from_numpy(inputs.x).to(getattr(torch, dtype))

    def fresh() -> torch.Tensor:
        output = mx.zeros(tuple(source.shape), getattr(mx, dtype))
        mx.eval(output)
        return torch.from_dlpack(output)

    def sample() -> float:
        time.sleep(clock.PAUSE)
        fresh().copy_(source)
        outputs = [fresh() for _ in range(copies)]
        start = time.perf_counter()
        for output in outputs:
            output.copy_(source)
        return (time.perf_counter() - start) / copies

    return sample
