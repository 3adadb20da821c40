"""What adding the shortcut inside the norm that ends a block saves: ``python -m tests.bench.residual``, from the
checkout's root.

Training steps of ResNet-50 take turns: with blocks whose norm adds the shortcut, with blocks that add it behind the
norm, and with blocks whose addition and activation cost nothing, which bounds what adding it inside can save.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

import mpsfunc as mf
from mpsfunc import _primitives
from mpsfunc.nn import convert

from . import report, stats

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, the stride of the first of them
EXPANSION, CLASSES = 4, 1000
WORTH = 0.03  # of a step, from which an addition inside the norm is worth having
_METHOD = """A ResNet-50 block ends in `relu(bn(conv(x)) + shortcut)`. *inside* is MLX's model after
`mpsfunc.nn.convert(model, example=...)`, where the norm adds the shortcut (`add=` of `mpsfunc.batch_norm`). *after* is
the same model after `convert(model)`: MLX adds the shortcut, and `mpsfunc.relu` follows. In *by MLX* that is
`mx.maximum(sum, 0)`, which `mx.compile` fuses with the addition. *bound* leaves the addition out: the norm ignores the
shortcut, whose gradient is that of the block's result. This computes something else, but no step with the addition
inside can take less time. Each step is compiled; all variants take turns, {rounds} each of {steps}. A ratio is the time
of *after* or *by MLX*, whichever is faster, divided by that of *inside* in the same turn; shown are its median and a
bootstrap interval of 95 %. *inside saves* is the part of a step's time that *inside* saves, and *bound saves* the part
that *bound* would save. *at least 3 %* says whether *inside saves* is 3 % or more; it is unclear if its interval
contains 3 %. Images are 224x224x3, and the optimizer is SGD with momentum. Written by `python -m
tests.bench.residual`."""


@mx.custom_function
def free_add(y: mx.array, shortcut: mx.array) -> mx.array:
    """What has the gradients of a sum and takes no time."""
    return y


@free_add.vjp
def _free_add_vjp(primals: list[mx.array], dy: mx.array, output: mx.array) -> tuple[mx.array, mx.array]:
    return dy, dy


def _after(y: mx.array, shortcut: mx.array) -> mx.array:
    return mf.relu(y + shortcut)


def _by_mlx(y: mx.array, shortcut: mx.array) -> mx.array:
    return mx.maximum(y + shortcut, 0)


JOINS: dict[str, Callable[[mx.array, mx.array], mx.array]] = {"after": _after, "by MLX": _by_mlx, "bound": free_add}
INSIDE = "inside"
WAYS = (INSIDE, *JOINS)


def _conv(before: int, after: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """A bottleneck, whose two sides are joined in one of the ways above."""

    def __init__(self, before: int, channels: int, stride: int, join: str) -> None:
        super().__init__()
        after = EXPANSION * channels
        self.body = nn.Sequential(
            *(_conv(before, channels, 1), nn.BatchNorm(channels), nn.ReLU()),
            *(_conv(channels, channels, 3, stride), nn.BatchNorm(channels), nn.ReLU()),
            *(_conv(channels, after, 1), nn.BatchNorm(after)),
            *([nn.ReLU()] * (join == "bound")),
        )
        self.short = nn.Identity()
        if before != after or stride > 1:
            self.short = nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm(after))
        self.join = join

    def __call__(self, x: mx.array) -> mx.array:
        y, shortcut = self.body(x), self.short(x)
        return nn.relu(y + shortcut) if self.join == INSIDE else JOINS[self.join](y, shortcut)


def resnet50(join: str) -> nn.Sequential:
    """He's network, with the stride in the 3x3 convolutions."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for channels, blocks, stride in STAGES:
        for i in range(blocks):
            layers.append(Block(before, channels, stride if i == 0 else 1, join))
            before = EXPANSION * channels
    return nn.Sequential(*layers)


class Step(NamedTuple):
    """One variant's training step."""

    name: str
    run: Callable[[], float]  # so many steps, and the seconds of one


def step(join: str, batch: int, size: int, dtype: mx.Dtype, steps: int) -> Step:
    """A compiled step of a network whose parameters are drawn from a seed, and have been drawn."""
    mx.random.seed(0)
    model, head = resnet50(join), nn.Linear(EXPANSION * STAGES[-1][0], CLASSES)
    both = nn.Sequential(model, head)
    both.set_dtype(dtype)
    if join == INSIDE:
        fused = list(convert(model, example=mx.zeros((1, 32, 32, 3), dtype)).fused.values())
        assert fused.count("a shortcut and nn.relu") == sum(blocks for _, blocks, _ in STAGES)
    convert(both)
    optimizer = optim.SGD(0.01, momentum=0.9)
    optimizer.init(both.trainable_parameters())
    images = mx.random.normal((batch, size, size, 3)).astype(dtype)
    labels = mx.random.randint(0, CLASSES, (batch,))
    state = [both.state, optimizer.state]
    mx.eval(state, images, labels)

    def loss() -> mx.array:
        return nn.losses.cross_entropy(head(model(images).mean(axis=(1, 2))), labels, reduction="mean")

    def train() -> mx.array:
        value, grads = nn.value_and_grad(both, loss)()
        optimizer.update(both, grads)
        return value

    compiled = mx.compile(train, inputs=state, outputs=state)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            value = compiled()
            mx.async_eval(value, state)
        mx.eval(value, state)
        return (time.perf_counter() - start) / steps

    run()  # compiles it
    run()
    return Step(join, run)


def measured(batch: int, size: int, dtype: mx.Dtype, rounds: int, steps: int) -> list[str]:
    """A row of the table."""
    variants = [step(join, batch, size, dtype, steps) for join in WAYS]
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for i in range(rounds):
        for variant in variants[i % len(WAYS) :] + variants[: i % len(WAYS)]:
            times[variant.name].append(variant.run())
    middle = {name: stats.median(of) for name, of in times.items()}
    best = min(("after", "by MLX"), key=middle.__getitem__)
    ratio, bound = (stats.paired(times[best], times[name]) for name in ("inside", "bound"))
    return [
        *(str(batch), str(dtype).rpartition(".")[2], *(f"{1e3 * middle[name]:.1f}" for name in WAYS)),
        f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        *saved(ratio),
        saved(bound)[0],
    ]


def saved(ratio: stats.Ratio) -> tuple[str, str]:
    """The share of a step that is saved, and whether that is worth having."""
    middle, least, most = (1 - 1 / each for each in (ratio.median, ratio.low, ratio.high))
    told = "yes" if least >= WORTH else "no" if most < WORTH else "unclear"
    return f"{100 * middle:.1f} % ({100 * least:.1f} to {100 * most:.1f})", told


def main(args: argparse.Namespace) -> None:
    """Measures on the default device, and writes residual.md or residual_gpu.md."""
    on_gpu = mx.default_device().type == mx.gpu
    if not on_gpu:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        mf.set_num_threads(2)
    rows = [
        measured(batch, args.size, dtype, args.rounds, args.steps)
        for batch in args.batch
        for dtype in (mx.float32, mx.bfloat16)
    ]
    if on_gpu:
        from .gpu import card

        facts = report.gpu_facts(args.commit or report.commit(), *card())
    else:
        facts = report.cpu_facts(args.commit or report.commit(), _primitives.isa(), 2)
    head = [
        "batch",
        "dtype",
        *(f"{name}, ms" for name in WAYS),
        "ratio (95 %)",
        "inside saves",
        "at least 3 %",
        "bound saves",
    ]
    text = [
        "# Adding the shortcut inside the norm",
        _METHOD.format(rounds=args.rounds, steps="one step" if args.steps == 1 else f"{args.steps} steps"),
        report.table(["machine", ""], facts.items()),
        report.table(head, rows),
    ]
    report.save(args.out, "residual_gpu" if on_gpu else "residual", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.residual", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1, help="steps that are launched together in a turn")
    parser.add_argument("--commit", help="where there is no git")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    main(parser.parse_args())
