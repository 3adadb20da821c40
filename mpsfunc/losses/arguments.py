"""Refuses what is no loss, and brings the rest into the shapes of the kernels."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import describe
from mpsfunc.losses import formulas, labels, rules
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


class Counting(NamedTuple):
    """What counts for how much, as arguments that were not looked at."""

    ignore_index: Any
    class_weights: Any
    pos_weight: Any


class Given(NamedTuple):
    """The arrays of a loss as (images, pixels, classes), and how its value comes out."""

    arrays: tuple[mx.array, ...]
    spec: Spec
    shape: tuple[int, ...]  # of y
    dtype: mx.Dtype  # of y, which may be wider in the arrays
    counts: mx.array | None  # what sums of images are divided by besides

    def value(self, made: mx.array) -> mx.array:
        """The value in its shape, from the kernels'."""
        if self.spec.elements:
            return self.image(made)
        if self.spec.type == COSINE:
            made = self.spec.weight + made
        if self.counts is not None:
            made = made / self.counts
        return made.reshape(self.shape[0], *(1,) * (len(self.shape) - 1))

    def image(self, made: mx.array) -> mx.array:
        """What has a number for each of y, in its shape and dtype, from the kernels'."""
        return made.reshape(self.shape).astype(self.dtype)

    def derivative(self) -> mx.array:
        """The exact derivative of the value."""
        if self.counts is None:
            return self.image(rules.derivative(*self.arrays, self.spec))
        return self.image(rules.derivative(*self.arrays, 1 / self.counts, self.spec._replace(scaled=True)))


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
    counting: Counting,
    passed: bool = True,
) -> Given:
    """The arguments of `loss`, checked; ``passed`` is whether they are for MPS's gradient."""
    stream = launch.resolve(stream)
    check_images(op, y, stream)
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
    ignored = labels.check_index(op, counting.ignore_index, type, labelled)
    for name, vector, kinds in zip(counting._fields[1:], counting[1:], (_LABELLED, (SIGMOID,)), strict=True):
        labels.check_weights(op, name, vector, channels, stream, type, " or ".join(formulas.TYPES[k] for k in kinds))
    divisor = pixels if kind == SOFTMAX else pixels * channels
    averaged = reduction == _MEAN or (reduction == _BY_WEIGHTS and weights is None)
    kept, share = 1 - smoothing, smoothing / (classes if kind == SOFTMAX else 2)
    wide = launch.accumulator(y.dtype)
    with mx.stream(stream):
        seen, counts = y.reshape(n, pixels, channels), None
        w = wide_weights = None if weights is None else _weights(op, y, weights, weight, kind, stream)
        counted = None
        if labelled:
            known = labels.as_classes(target, channels)
            counted = labels.counted(target, ignored)
            labels.check_classes(op, target, known, counted, channels, " or ignore_index")
            wanted = labels.without(known, counted).reshape(n, pixels)
            counted = None if counted is None else counted.reshape(n, pixels, 1).astype(wide)
            of_pixels = _of_pixels(wanted, counted, counting.class_weights, wide, stream)
            if averaged and of_pixels is not None:
                averaged, counts = False, _total(of_pixels, divisor / pixels)
            if of_pixels is not None and (counting.class_weights is not None or passed or w is not None):
                w = (weight if w is None else w) * of_pixels[..., None]
                if counting.class_weights is not None and smoothing != 0:
                    w = _of_elements(counting.class_weights.astype(wide), weight, wide_weights, counted, seen.shape)
        else:
            wanted = target.reshape(n, pixels, channels)
            if counting.class_weights is not None:
                w = _of_elements(counting.class_weights.astype(wide), weight, wide_weights, None, seen.shape)
        if reduction == _BY_WEIGHTS and wide_weights is not None:
            some = wide_weights if counted is None else wide_weights * counted
            counts = _counts(some, channels if kind != SOFTMAX else 1)
        if counting.pos_weight is not None:
            seen = seen.astype(wide)
            each = weight if w is None else w
            terms = labels.terms(seen, wanted, counting.pos_weight, kept, share)
            wanted, w = terms if each is weight and weight == 1 else (each * a for a in terms)
            kept, share = 1.0, 0.0
    factor = 1 / divisor if averaged else 1.0
    flags = reduction == _NONE, labelled, w is not None, False, counting.pos_weight is not None
    spec = Spec(kind, kept, share, *numbers, weight, factor, *flags, stream)
    arrays = (seen, wanted) if w is None else (seen, wanted, w)
    return Given(arrays, spec, tuple(y.shape), y.dtype, counts)


def check_images(op: str, y: Any, stream: mx.Stream) -> None:
    """Images of pixels and classes, (n, ..., c)."""
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
        check_labels(op, y, target)
        return True
    if kind in _LABELLED:
        no_labels(op, y, target)
    check_target(op, y, target, stream)
    return False


def no_labels(op: str, y: mx.array, target: Any) -> None:
    """Refuses what has the shape of labels, but is no integers."""
    one = math.prod(y.shape[1:-1]) == 1 and y.shape[:1]
    if is_a(target, mx.array) and target.shape != y.shape and target.shape in (y.shape[:-1], one):
        raise TypeError(
            f"{op}: labels are integers; got target.shape={tuple(target.shape)} of {target.dtype}, expected an integer "
            f"dtype, such as target.astype(mx.int32), or a share of each class, {tuple(y.shape)}"
        )


def check_labels(op: str, y: mx.array, target: mx.array) -> None:
    """An integer a pixel; of images of one pixel (n,) will do."""
    if target.shape != y.shape[:1] or math.prod(y.shape[1:-1]) != 1:
        of = y.shape if target.ndim == y.ndim - 1 else ()  # whose axes may be in another order
        checks.shape(op, "target", target, tuple(y.shape[:-1]), "the labels do not fit y", of=of)


def check_target(op: str, y: mx.array, target: Any, stream: mx.Stream) -> None:
    """A number for each of y, of its dtype."""
    if is_a(target, mx.array) and (target.dtype == mx.bool_ or mx.issubdtype(target.dtype, mx.integer)):
        raise TypeError(
            f"{op}: target has no floating dtype; got target.dtype={target.dtype}, expected {y.dtype}, such as "
            "target.astype(y.dtype)"
        )
    checks.array(op, "target", target, stream=stream)
    checks.shape(op, "target", target, tuple(y.shape), "target does not fit y")
    checks.same_dtype(op, "target", target, "y", y.dtype)


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
        raise ValueError(f"{op}: weights and weight exclude each other; got weight={weight}, expected 1 with weights")
    wide = weights.astype(launch.accumulator(y.dtype))
    last = 1 if padded[-1] == 1 else shape[-1]
    return mx.broadcast_to(wide, (*shape[:-1], last)).reshape(shape[0], math.prod(shape[1:-1]), last)


def _counts(weights: mx.array, of_pixel: int) -> mx.array:
    """How many weights of each image are not 0, at least 1; a pixel's stands for ``of_pixel`` of them."""
    each = of_pixel if weights.shape[-1] == 1 else 1
    counts = (weights != 0).sum((1, 2)).astype(weights.dtype) * each
    return mx.stop_gradient(mx.maximum(counts, 1))


def _of_pixels(
    wanted: mx.array, counted: mx.array | None, class_weights: mx.array | None, wide: mx.Dtype, stream: mx.Stream
) -> mx.array | None:
    """What each label counts; None if all count 1."""
    if class_weights is not None:
        return labels.weights_of(wanted, class_weights.astype(wide), labels.Where(stream))
    return None if counted is None else counted[..., 0]


def _of_elements(
    class_weights: mx.array, weight: float, given: mx.array | None, counted: mx.array | None, shape: tuple[int, ...]
) -> mx.array:
    """The weights of classes, of every element."""
    each = class_weights * (weight if given is None else given)
    return mx.broadcast_to(each if counted is None else each * counted, shape)


def _total(of_pixels: mx.array, each: float) -> mx.array:
    """What the images of a batch count on an average, for each of them; 1 if that is nothing."""
    n = of_pixels.shape[0]
    total = of_pixels.sum() * (each / max(n, 1))
    return mx.broadcast_to(mx.where(total == 0, mx.ones_like(total), total), (n,))
