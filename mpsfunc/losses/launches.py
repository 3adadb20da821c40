"""How losses run on a GPU.

The arrays are always y, a target, labels, weights and, of a gradient, scales. What is not there another array stands in
for, which is not read.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import Stage
from mpsfunc.losses.formulas import SOFTMAX, Spec

_INPUTS = ("y", "target", "labels", "weights")
# Packs of an image that a thread adds up, if there are enough.
_PACKS = 8


def arrays(given: list[mx.array], spec: Spec, *, gradient: bool) -> list[mx.array]:
    """What the bodies read."""
    y, target, *rest = given
    labels = target if spec.labelled else launch.packed(())
    weights = rest.pop(0) if spec.weighted else y
    read = [y, y if spec.labelled else target, labels, weights]
    return [*read, rest[0] if spec.scaled else y] if gradient else read


def loss(y: mx.array, weights: mx.array, spec: Spec) -> tuple[Stage, ...]:
    """Sums of images (n,) and the gradient that MPS passes on, the results 4 and 5, or 6 and 5."""
    n, pixels, classes = y.shape
    lanes, template = _template(y, weights, spec)
    by_rows = spec.type == SOFTMAX
    sharing = min(32, grids.power_of_two((classes if by_rows else pixels * classes) // lanes))
    items = pixels if by_rows else -(-pixels * classes // (lanes * sharing * _PACKS))
    parts = max(1, min(items, 8 * grids.FILL * 256 // (n * sharing)))
    body = "loss_rows" if by_rows else "loss"
    template = (*template, ("R", sharing), *(() if by_rows else (("K", spec.type),)))
    (threads, _, _), _ = grids.threads(-(-n * parts * sharing // 256) * 256, 1)  # which refuses what is too wide
    results = ((parts, n), mx.float32), (tuple(y.shape), y.dtype)
    params = (parts, *_numbers(spec))
    first = Stage(body, _INPUTS, ("partial", "gradient"), results, (threads, 1, 1), (256, 1, 1), params, template)
    if parts == 1:
        return (first,)
    return first, launch.sum_partials(n, parts)._replace(reads=(len(_INPUTS),))


def loss_grad(y: mx.array, weights: mx.array, spec: Spec, exact: bool) -> tuple[Stage, ...]:
    """The gradient that MPS passes on, or the derivative."""
    n, pixels, classes = y.shape
    lanes, template = _template(y, weights, spec)
    template = (*template, ("X", (2 if spec.scaled else 1) if exact else 0))
    inputs, result = (*_INPUTS, "scales"), (tuple(y.shape), y.dtype)
    if spec.type == SOFTMAX:
        sharing = min(32, grids.power_of_two(classes // lanes))
        grid, group = grids.sharing_threads(n * pixels, sharing)
        body, template = "loss_rows_grad", (*template, ("R", sharing))
    else:
        grid, group = grids.pointwise_threads(y.size // lanes)
        body, template = "loss_grad", (*template, ("K", spec.type))
    return (Stage(body, inputs, ("gradient",), (result,), grid, group, _numbers(spec), template),)


def _template(y: mx.array, weights: mx.array, spec: Spec) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Elements of a thread, and what a kernel knows as it is compiled."""
    lanes = grids.lanes(y.dtype, y.shape[2], y.size)
    kind = 0 if not spec.weighted else 1 if weights.shape[2] == y.shape[2] else 2
    return lanes, (("V", lanes), ("L", int(spec.labelled)), ("W", kind))


def _numbers(spec: Spec) -> tuple[int, ...]:
    numbers = spec.kept, spec.share, spec.epsilon, spec.delta, spec.weight, spec.factor
    return tuple(bit for number in numbers for bit in launch.bits(number))
