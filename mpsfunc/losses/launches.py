"""How losses run on a GPU: from y, a target or labels, weights and, of a gradient, scales.

y stands in for weights and scales that are not there, and is not read for them.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch, Name
from mpsfunc.losses.formulas import FOCAL, SOFTMAX, Spec
from mpsfunc.losses.params import LossLaunch

_FOCAL_OF_TWO = 11  # with a gamma of 2, for which no power is taken
# Packs of an image that a thread adds up, if there are enough.
_PACKS = 8


def loss(arrays: dict[str, mx.array], spec: Spec) -> tuple[KernelLaunch, ...]:
    """The sums of images (n,), "total", and MPS's "gradient"."""
    y = arrays["y"]
    n, pixels, classes = y.shape
    vector_width, template = _template(arrays, spec)
    by_rows = spec.type == SOFTMAX
    sharing = min(32, grids.power_of_two((classes if by_rows else pixels * classes) // vector_width))
    items = pixels if by_rows else -(-pixels * classes // (vector_width * sharing * _PACKS))
    parts = max(1, min(items, 8 * grids.FILL * 256 // (n * sharing)))
    body = "softmax_cross_entropy" if by_rows else "loss"
    template = (*template, ("R", sharing), *(() if by_rows else (("K", _kind(spec)),)))
    (threads, _, _), _ = grids.threads(-(-n * parts * sharing // 256) * 256, 1)  # which refuses what is too wide
    grid, group, params = (threads, 1, 1), (256, 1, 1), LossLaunch(parts, spec.numbers)
    sums, writes = ((parts, n) if parts > 1 else (n,), mx.float32), ("partial", "gradient")
    first = KernelLaunch(body, _reads(spec), writes, (sums, (tuple(y.shape), y.dtype)), grid, group, params, template)
    return (first, launch.sum_partials(n, parts)) if parts > 1 else (first.renamed(partial="total"),)


def elements(arrays: dict[str, mx.array], spec: Spec) -> tuple[KernelLaunch, ...]:
    """The loss of every element, "total"; not of softmax cross-entropy."""
    (launched,) = _for_elements(arrays, spec, 3)
    return (launched.renamed(gradient="total"),)


def loss_grad(arrays: dict[str, mx.array], spec: Spec, exact: bool) -> tuple[KernelLaunch, ...]:
    """MPS's gradient, or the derivative."""
    return _for_elements(arrays, spec, (2 if spec.scaled else 1) if exact else 0)


def _for_elements(arrays: dict[str, mx.array], spec: Spec, what: int) -> tuple[KernelLaunch, ...]:
    y = arrays["y"]
    n, pixels, classes = y.shape
    vector_width, template = _template(arrays, spec)
    template = (*template, ("X", what))
    reads, results = (*_reads(spec), "scales" if spec.scaled else ("scales", "y")), ((tuple(y.shape), y.dtype),)
    if spec.type == SOFTMAX:
        sharing = min(32, grids.power_of_two(classes // vector_width))
        grid, group = grids.sharing_threads(n * pixels, sharing)
        body, template = "softmax_cross_entropy_grad", (*template, ("R", sharing))
    else:
        grid, group = grids.pointwise_threads(y.size // vector_width)
        body, template = "loss_grad", (*template, ("K", _kind(spec)))
    return (KernelLaunch(body, reads, ("gradient",), results, grid, group, spec.numbers, template),)


def _kind(spec: Spec) -> int:
    return _FOCAL_OF_TWO if spec.type == FOCAL and spec.delta == 2 else spec.type


def _reads(spec: Spec) -> tuple[Name, ...]:
    return "y", "target", "weights" if spec.weighted else ("weights", "y")


def _template(arrays: dict[str, mx.array], spec: Spec) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Elements of a thread, and what a kernel knows as it is compiled."""
    y = arrays["y"]
    vector_width = grids.vector_width(y.dtype, y.shape[2], y.size)
    kind = 0 if not spec.weighted else 1 if arrays["weights"].shape[2] == y.shape[2] else 2
    return vector_width, (("V", vector_width), ("L", int(spec.labelled)), ("W", kind))
