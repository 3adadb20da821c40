"""The convolutions of a network one by one: forward and both gradients beside PyTorch, with their share of the peak."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import torch

import mpsfunc as mf

from . import clock, cpu, flops, networks_csv, operations, report, stats, whole
from .problems import Problem
from .results import checked
from .rivals import on_mlx, ours, pytorch
from .stats import Ratio

BATCHES = (1, 8)
ROUNDS = 30
WHOLE, LEAST = 1.0, 0.9  # times PyTorch in the sum over layers, and in each
# What the names of operations end in, behind conv or conv_transpose.
PASSES = {"": "forward", "_grad_input": "gradient of the image", "_grad_weights": "gradient of the weights"}
_METHOD = """Each convolution of {network} that is another, found by running the converted model on {batches} images, as
a single call whose result is used and dropped: *layers* have it, *ms* are medians of {rounds} rounds in which all sides
take turns, PyTorch in both layouts and without autograd's bookkeeping, and the ratio is to its faster one, with a
bootstrap interval of 95 %. Answers were compared with float64 first. *of peak* is two operations a product, as the
definition has them (so that Winograd's algorithm may have more than it does), by the peak of two threads of multiplying
and adding in registers, which a program measured in the same run: {peaks}. Sums count a layer as often as the network
has it. {left}Written by `python -m tests.bench networks --layers {network}`."""


class Measured(NamedTuple):
    """One operation of one convolution."""

    problem: Problem
    layers: int
    ms: float
    rival: str
    rival_ms: float
    ratio: Ratio

    @property
    def gflops(self) -> float:
        """Products and sums by the definition, a nanosecond."""
        return 2 * products(self.problem) / (1e6 * self.ms)


def products(problem: Problem) -> int:
    """Products of a pixel with a weight, those with the margin too."""
    outs, *window = problem.w_shape
    if problem.op.startswith("conv_transpose"):
        return math.prod(problem.shape) * math.prod(window[:-1]) * outs // problem.groups
    return math.prod(problem.out_shape) * math.prod(window)


def geometries(cell: whole.Cell) -> tuple[Counter[Problem], Counter[str]]:
    """The convolutions that a converted network runs, how often each; and the layers that are others, by class."""
    from mpsfunc.nn import convert

    model = whole.of_mlx(cell).eval()
    x = mx.zeros(cell.spec.shape(cell.batch, cell.pixels))
    convert(model, example=x)
    found: Counter[Problem] = Counter()
    others: Counter[str] = Counter()

    def seen(call: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def run(layer: Any, image: mx.array) -> mx.array:
            size, stride, padding, dilation = (
                _square(n) for n in (layer.weight.shape[1:3], layer.stride, layer.padding, layer.dilation)
            )
            op = "conv_transpose" if isinstance(layer, nn.ConvTranspose2d) else "conv"
            plain = _square(getattr(layer, "output_padding", 0)) == 0
            if op not in operations.OPERATIONS or None in (size, stride, padding, dilation) or not plain:
                others[type(layer).__name__] += 1
            else:
                outs, groups = layer.weight.shape[0], getattr(layer, "groups", 1)
                outs = 0 if outs == image.shape[-1] else outs
                shape, rest = tuple(image.shape), {"outs": outs, "dilation": dilation, "groups": groups}
                found[Problem(op, shape, "float32", size, stride, padding, **rest)] += 1
            return call(layer, image)

        return run

    with ExitStack() as stack:
        layers = [each for each in model.modules() if isinstance(each, nn.Conv2d | nn.ConvTranspose2d)]
        for of in {type(layer) for layer in layers}:
            stack.enter_context(mock.patch.object(of, "__call__", seen(of.__call__)))
        model(x)
    return found, others


def _square(size: Any) -> int | None:
    """One number for both directions, if it is one."""
    both = (size, size) if isinstance(size, int) else tuple(size)
    return both[0] if len(set(both)) == 1 else None


def measured(problem: Problem, layers: int, rounds: int) -> Measured:
    """Ours and both layouts of PyTorch in turns."""
    sides = [on_mlx.side(cpu.OURS, ours.functions)]
    sides += [pytorch.side(name, layout, "cpu") for name, layout in pytorch.LAYOUTS.items()]
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    bound, wrong = checked(problem, sides, oracle, problem.inputs())
    if len(bound) < 2:
        raise AssertionError(f"{problem.title} {problem.dtype}: wrong answers of {wrong}")
    by_name = {side.name: side for side in sides}
    times = clock.interleave({name: clock.one_by_one(by_name[name], call, 1) for name, call in bound.items()}, rounds)
    rival = min((name for name in times if name != cpu.OURS), key=lambda name: stats.median(times[name]))
    ms, theirs = (1e3 * stats.median(times[name]) for name in (cpu.OURS, rival))
    return Measured(problem, layers, ms, rival, theirs, stats.paired(times[rival], times[cpu.OURS]))


def main(args: argparse.Namespace) -> str:
    """Measures all layers of a network, writes their page as it grows, and returns it."""
    mx.set_default_device(mx.cpu)
    torch.set_num_threads(cpu.THREADS)
    mf.set_num_threads(cpu.THREADS)
    machine = networks_csv.machine(False, args.commit)
    rounds, found, text = 1 if args.quick else ROUNDS, [], ""
    peaks, batches = flops.peaks(cpu.THREADS), [n for n in BATCHES if not args.batch or n in args.batch]
    for batch in batches:
        spec = whole.NETWORKS[args.layers]
        pixels = min(spec.pixels, whole.QUICK_PIXELS) if args.quick else spec.pixels
        convolutions, others = geometries(whole.Cell(args.layers, whole.INFERENCE, batch, "float32", pixels))
        for dtype in args.dtype or whole.DTYPES:
            for problem, layers in convolutions.items():
                for ending in PASSES:
                    found.append(measured(problem._replace(op=problem.op + ending, dtype=dtype), layers, rounds))
                    print(f"{found[-1].problem.title} {dtype} {found[-1].ratio.median:.2f}", flush=True)
            text = write(args, machine, found, peaks, others, rounds, batches)
    return text


def write(
    args: argparse.Namespace,
    machine: networks_csv.Machine,
    found: list[Measured],
    peaks: dict[str, float],
    others: Counter[str],
    rounds: int,
    batches: list[int],
) -> str:
    """The page of a network's layers on this kind of processor."""
    told = ", ".join(f"{peak:.0f} GFLOP/s by {name}" for name, peak in peaks.items()) or "not measured"
    left = f"Left out, since no row of the benchmarks has them: {_counted(others)}. " if others else ""
    shown = " and ".join(map(str, batches))
    method = _METHOD.format(network=args.layers, batches=shown, rounds=rounds, peaks=told, left=left)
    facts = {"processor": machine.name, "instruction set used": machine.isa, "packages": machine.packages}
    facts |= {"commit": machine.commit, "date": machine.date}
    title = f"# Layers of {args.layers}: {machine.kind.replace('_', ', ')}"
    parts = [title, method, report.table(["machine", ""], facts.items())]
    sums, body = [], []
    for batch in batches:
        for dtype in whole.DTYPES:
            mine = [m for m in found if (m.problem.dtype, m.problem.shape[0]) == (dtype, batch)]
            for ending in PASSES:
                of = [m for m in mine if re.fullmatch(f"conv(_transpose)?{ending}", m.problem.op)]
                if of:
                    sums.append(_sum(batch, dtype, ending, of))
                body += [_row(each, peak_of(dtype, peaks)) for each in of]
    head = ["batch", "dtype", "", "mpsfunc, ms", "PyTorch, ms", "times as fast", f"at least {WHOLE:g}"]
    parts += ["## Sums", report.table([*head, "slowest layer", f"at least {LEAST:g}"], sums)]
    head = ["operation", "x", "dtype", "layers", "mpsfunc, ms", "PyTorch, ms", "layout", "times as fast (95 %)"]
    parts += ["## Layers", report.table([*head, "GFLOP/s", "of peak"], body)]
    name = f"{args.layers.lower().replace(' ', '_')}_{machine.kind}"
    return report.save(args.out / "layers", name, parts)


def peak_of(dtype: str, peaks: dict[str, float]) -> float | None:
    """What a dtype's share is of: in bfloat16 the best instructions that multiply it as it is."""
    return peaks.get("fma") if dtype == "float32" else peaks.get("amx", peaks.get("avx512_bf16"))


def _sum(batch: int, dtype: str, ending: str, of: list[Measured]) -> list[str]:
    mine, theirs = (sum(m.layers * getattr(m, name) for m in of) for name in ("ms", "rival_ms"))
    slowest = min(m.ratio.median for m in of)
    verdicts = [
        "met" if ratio >= least else "**missed**" for ratio, least in ((theirs / mine, WHOLE), (slowest, LEAST))
    ]
    figures = [f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.2f}", verdicts[0], f"{slowest:.2f}", verdicts[1]]
    return [str(batch), dtype, PASSES[ending], *figures]


def _row(of: Measured, peak: float | None) -> list[str]:
    share = "not measured" if peak is None else f"{of.gflops / peak:.0%}"
    ratio = f"{of.ratio.median:.2f} ({of.ratio.low:.2f} to {of.ratio.high:.2f})"
    shape = "x".join(map(str, of.problem.shape))
    figures = [f"{of.ms:.3g}", f"{of.rival_ms:.3g}", of.rival.removeprefix("PyTorch "), ratio]
    return [of.problem.title, shape, of.problem.dtype, str(of.layers), *figures, f"{of.gflops:.0f}", share]


def _counted(classes: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in classes.items())
