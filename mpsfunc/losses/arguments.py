"""Refuses what is no loss, and brings the rest into the shapes of the kernels."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import describe
from mpsfunc.losses import formulas, rules
from mpsfunc.losses.formulas import CATEGORICAL, COSINE, HUBER, LOG, SIGMOID, SOFTMAX, Spec

ReductionName = Literal["none", "sum", "mean", "sum_by_non_zero_weights"]
REDUCTIONS: tuple[ReductionName, ...] = get_args(ReductionName)
_NONE, _SUM, _MEAN, _BY_WEIGHTS = REDUCTIONS
_LABELLED = (SOFTMAX, CATEGORICAL)
# Arguments that one type reads, with their defaults.
_FOR_ONE: tuple[tuple[str, float, int], ...] = (
    ("number_of_classes", 1, SOFTMAX),
    ("epsilon", 1e-7, LOG),
    ("delta", 1.0, HUBER),
)


class Given(NamedTuple):
    """The arrays of a loss as (images, pixels, classes), and how its value comes out."""

    arrays: tuple[mx.array, ...]
    spec: Spec
    shape: tuple[int, ...]  # of y
    counts: mx.array | None  # what sums of images are divided by besides

    def value(self, made: mx.array) -> mx.array:
        """The value in its shape, from the kernels'."""
        if self.spec.elements:
            return made.reshape(self.shape)
        if self.spec.type == COSINE:
            made = self.spec.weight + made
        if self.counts is not None:
            made = made / self.counts
        return made.reshape(self.shape[0], *(1,) * (len(self.shape) - 1))

    def derivative(self) -> mx.array:
        """The exact derivative of the value."""
        if self.counts is None:
            return rules.derivative(*self.arrays, self.spec)
        return rules.derivative(*self.arrays, 1 / self.counts, self.spec._replace(scaled=True))


def check_arguments(
    op: str,
    y: Any,
    target: Any,
    type: Any,
    reduction: Any,
    weights: Any,
    weight: Any,
    label_smoothing: Any,
    number_of_classes: Any,
    epsilon: Any,
    delta: Any,
    stream: Any,
) -> Given:
    """The arguments of `loss`, checked."""
    stream = launch.resolve(stream)
    _images(op, y, stream)
    type = checks.choice(op, "type", type, formulas.TYPES)
    kind = formulas.TYPES.index(type)
    reduction = checks.choice(op, "reduction", reduction, REDUCTIONS)
    if kind == COSINE and reduction != _SUM:
        raise ValueError(f"{op}: cosine_distance is a sum; got reduction={describe(reduction)}, expected 'sum'")
    labelled = _target(op, y, target, kind, stream)
    weight = checks.number(op, "weight", weight)
    smoothing = checks.number(op, "label_smoothing", label_smoothing, 0.0, 1.0)
    classes = checks.whole(op, "number_of_classes", number_of_classes)
    if smoothing != 0 and kind not in (SOFTMAX, SIGMOID):
        raise ValueError(
            f"{op}: label_smoothing has no meaning here; got label_smoothing={smoothing} for {type}, expected 0, "
            "softmax_cross_entropy or sigmoid_cross_entropy"
        )
    numbers = checks.number(op, "epsilon", epsilon, 0.0), checks.number(op, "delta", delta, 0.0)
    for (name, usual, meant), given in zip(_FOR_ONE, (classes, *numbers), strict=True):
        if given != usual and kind != meant and np.float32(given) != np.float32(usual):
            raise ValueError(
                f"{op}: {name} has no meaning here; got {name}={describe(given)} for {type}, expected {usual} or "
                f"{formulas.TYPES[meant]}"
            )
    n, pixels, channels = y.shape[0], math.prod(y.shape[1:-1]), y.shape[-1]
    divisor = pixels if kind == SOFTMAX else pixels * channels
    averaged = reduction == _MEAN or (reduction == _BY_WEIGHTS and weights is None)
    share = smoothing / (classes if kind == SOFTMAX else 2)
    with mx.stream(stream):
        wanted = _labels(target, channels).reshape(n, pixels) if labelled else target.reshape(n, pixels, channels)
        arrays: tuple[mx.array, ...] = y.reshape(n, pixels, channels), wanted
        counts = None
        if weights is not None:
            wide = _weights(op, y, weights, weight, kind, stream)
            arrays = (*arrays, wide)
            if reduction == _BY_WEIGHTS:
                counts = _counts(wide, channels if kind != SOFTMAX else 1)
    factor = 1 / divisor if averaged else 1.0
    flags = reduction == _NONE, labelled, weights is not None, False
    return Given(
        arrays, Spec(kind, 1 - smoothing, share, *numbers, weight, factor, *flags, stream), tuple(y.shape), counts
    )


def _images(op: str, y: Any, stream: mx.Stream) -> None:
    checks.array(op, "y", y, stream=stream)
    shape = tuple(y.shape)
    if len(shape) < 2:
        raise ValueError(f"{op}: no images with classes; got y.shape={shape}, expected (n, ..., c)")
    if 0 in shape[1:]:
        raise ValueError(f"{op}: an image has no elements; got y.shape={shape}, expected lengths of at least 1")
    if math.prod(shape[1:]) >= 2**31:
        raise ValueError(f"{op}: an image is too large; got y.shape={shape}, expected less than 2**31 elements each")


def _target(op: str, y: mx.array, target: Any, kind: int, stream: mx.Stream) -> bool:
    """Whether the target is a class a pixel."""
    if is_a(target, mx.array) and mx.issubdtype(target.dtype, mx.integer) and kind in _LABELLED:
        checks.shape(op, "target", target, tuple(y.shape[:-1]), "the labels do not fit y", of=y.shape)
        return True
    checks.array(op, "target", target, stream=stream)
    checks.shape(op, "target", target, tuple(y.shape), "target does not fit y")
    checks.same_dtype(op, "target", target, "y", y.dtype)
    return False


def _labels(target: mx.array, classes: int) -> mx.array:
    """Labels as uint32, in which those of no class are beyond the last."""
    if target.dtype in (mx.int64, mx.uint64):
        target = mx.where((target >= 0) & (target < classes), target, -1).astype(mx.int32)
    if target.dtype in (mx.int8, mx.int16):
        target = target.astype(mx.int32)
    return target.view(mx.uint32) if target.dtype == mx.int32 else target.astype(mx.uint32)


def _weights(op: str, y: mx.array, weights: Any, weight: float, kind: int, stream: mx.Stream) -> mx.array:
    """A weight for every element, or with a last axis of 1 for every pixel."""
    if kind == COSINE:
        raise ValueError(f"{op}: cosine_distance has one weight; got weights, expected weights=None and a weight")
    checks.array(op, "weights", weights, stream=stream)
    shape, given = tuple(y.shape), tuple(weights.shape)
    padded = (1,) * (len(shape) - len(given)) + given
    if len(padded) != len(shape) or any(g not in (1, s) for g, s in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{op}: the weights do not fit y; got weights.shape={given}, expected what broadcasts to {shape}"
        )
    if weight != 1:
        raise ValueError(f"{op}: weights take the place of weight; got weight={weight}, expected 1 beside weights")
    wide = weights.astype(launch.accumulator(y.dtype))
    last = 1 if padded[-1] == 1 else shape[-1]
    return mx.broadcast_to(wide, (*shape[:-1], last)).reshape(shape[0], math.prod(shape[1:-1]), last)


def _counts(weights: mx.array, of_pixel: int) -> mx.array:
    """How many weights of each image are not 0, at least 1; a pixel's stands for ``of_pixel`` of them."""
    each = of_pixel if weights.shape[-1] == 1 else 1
    counts = (weights != 0).sum((1, 2)).astype(weights.dtype) * each
    return mx.stop_gradient(mx.maximum(counts, 1))
