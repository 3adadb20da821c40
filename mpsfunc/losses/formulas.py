"""What losses are, element by element, in MLX's operations, which give them derivatives of every order.

Arrays are (images, pixels, classes) in the accumulator's dtype, targets smoothed. Where a target is 0, its product
with a logarithm is 0, even of 0; its derivative by the target is the logarithm all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, get_args

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Operation, Tangents, operation
from mpsfunc.losses import softmax_rules
from mpsfunc.losses.params import LossNumbers

# Numbered as MPS does.
LossName = Literal[
    "mean_absolute_error",
    "mean_squared_error",
    "softmax_cross_entropy",
    "sigmoid_cross_entropy",
    "categorical_cross_entropy",
    "hinge",
    "huber",
    "cosine_distance",
    "log",
    "kullback_leibler",
]
TYPES: tuple[LossName, ...] = get_args(LossName)
ABSOLUTE, SQUARED, SOFTMAX, SIGMOID, CATEGORICAL, HINGE, HUBER, COSINE, LOG, DIVERGENCE = range(10)
FOCAL = 10  # which MPS has not: a function of its own

P = ParamSpec("P")


class Spec(NamedTuple):
    """A loss, which arrays belong to it, and where everything runs."""

    type: int
    kept: float  # a target becomes kept * target + share
    share: float
    epsilon: float  # of the focal loss alpha, below 0 for none
    delta: float  # of the focal loss gamma
    weight: float  # of every element, unless there are weights
    factor: float  # of a sum
    elements: bool  # no sum
    labelled: bool  # the target is a class a pixel
    weighted: bool
    scaled: bool  # a gradient has a factor for each image, the last array
    by_terms: bool  # of sigmoid cross-entropy; target and weights are what its two terms are multiplied with
    stream: mx.Stream

    @property
    def numbers(self) -> LossNumbers:
        """Those that a kernel is told."""
        return LossNumbers(self.kept, self.share, self.epsilon, self.delta, self.weight, self.factor)


class Power(NamedTuple):
    """An exponent, and where everything runs."""

    k: int
    stream: mx.Stream


class Exponent(NamedTuple):
    """An exponent that need not be whole, and where everything runs."""

    k: float
    stream: mx.Stream


# Functions whose own rules keep digits, or signs, that those of MLX's operations lose. ------------------


def _elementwise(function: Operation[P, mx.array], *slopes: Callable[P, mx.array]) -> None:
    """Gives a function of arrays of one shape its rules, from its derivative by each of them."""
    run: Callable[..., mx.array] = function
    by_each: tuple[Callable[..., mx.array], ...] = slopes

    @function.vjp
    def vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Any) -> Gradients:
        return [cotangents[0] * slope(*arrays, spec) for slope in by_each]

    @function.jvp
    def jvp(arrays: Arrays, tangents: Tangents, spec: Any) -> mx.array:
        moving = zip(by_each, tangents, strict=True)
        first, *others = [t * slope(*arrays, spec) for slope, t in moving if t is not None]
        return sum(others, first)

    @function.vmap
    def vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Any) -> mx.array:
        both = zip(arrays, mapped, strict=True)  # of one shape again, as the gradients will be
        return run(*[a if m else mx.broadcast_to(a, (size, *a.shape)) for a, m in both], spec)


@operation("loss")
def product(t: mx.array, factor: mx.array, spec: Spec) -> mx.array:
    """``t * factor``, and 0 where t is."""
    return mx.where(t == 0, mx.zeros_like(t), t * factor)


_elementwise(product, lambda t, factor, spec: factor, lambda t, factor, spec: t)


@operation("loss")
def xlogy(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``t * log(y)``, and 0 where t is; so are its derivatives by y, of 0 too."""
    return mx.where(t == 0, mx.zeros_like(t), t * mx.log(y))


_elementwise(xlogy, lambda t, y, spec: mx.log(y), lambda t, y, spec: _over(t, y, spec))


@operation("loss")
def xlogx(t: mx.array, spec: Spec) -> mx.array:
    """``t * log(t)``, and 0 where t is."""
    return mx.where(t == 0, mx.zeros_like(t), t * mx.log(t))


_elementwise(xlogx, lambda t, spec: mx.log(t) + 1)


@operation("loss")
def sigmoid(y: mx.array, spec: Spec) -> mx.array:
    """``1 / (1 + exp(-y))``."""
    small = softmax_rules.exp(-mx.abs(y), softmax_rules.Spec(spec.stream))
    return mx.where(y < 0, small, mx.ones_like(small)) / (1 + small)


_elementwise(sigmoid, lambda y, spec: sigmoid(y, spec) * sigmoid(-y, spec))


@operation("loss")
def softplus(y: mx.array, spec: Spec) -> mx.array:
    """``log(1 + exp(y))``."""
    return mx.maximum(y, 0) + mx.log1p(softmax_rules.exp(-mx.abs(y), softmax_rules.Spec(spec.stream)))


_elementwise(softplus, lambda y, spec: sigmoid(y, spec))


@operation("loss")
def over_power(t: mx.array, y: mx.array, spec: Power) -> mx.array:
    """``t / y^k``, and 0 where t is; its derivatives by y, of every order, are the like."""
    return mx.where(t == 0, mx.zeros_like(t), t / _power(y, spec.k))


_elementwise(
    over_power,
    lambda t, y, spec: 1 / _power(y, spec.k),
    lambda t, y, spec: -spec.k * over_power(t, y, spec._replace(k=spec.k + 1)),
)


@operation("loss")
def powered(q: mx.array, spec: Exponent) -> mx.array:
    """``q ** k``, of 0 also where k is below 0: 0, as what q's own derivatives leave of it. ``q ** 0`` is 1."""
    if spec.k == 0:
        return mx.ones_like(q)
    return mx.where(q == 0, mx.zeros_like(q), mx.power(mx.where(q == 0, mx.ones_like(q), q), spec.k))


_elementwise(powered, lambda q, spec: spec.k * powered(q, spec._replace(k=spec.k - 1)))


def _power(y: mx.array, k: int) -> mx.array:
    made = y
    for _ in range(k - 1):
        made = made * y
    return made


def _over(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """``t / y``, and 0 where t is."""
    return over_power(t, y, Power(1, spec.stream))


def _over_classes(function: Callable[[mx.array, softmax_rules.Spec], mx.array], y: mx.array, spec: Spec) -> mx.array:
    """Softmax or its logarithm of the last axis."""
    n, pixels, classes = y.shape
    return function(y.reshape(n * pixels, classes, 1), softmax_rules.Spec(spec.stream)).reshape(y.shape)


def _sign(d: mx.array) -> mx.array:
    return mx.where(d == d, mx.sign(d), d)


def _huber_slope(d: mx.array, spec: Spec) -> mx.array:
    return mx.where(mx.abs(d) > spec.delta, spec.delta * mx.sign(d), d)


class _Focal(NamedTuple):
    """What a focal loss is made of: ``alpha * off ** gamma * lost``, and derivatives of its parts."""

    alpha: mx.array | float
    alpha_slope: float  # by t
    off: mx.array  # the share that is given to the wrong answer
    off_slope: mx.array  # by y
    off_target_slope: mx.array
    lost: mx.array
    lost_slope: mx.array


def _focal(y: mx.array, t: mx.array, spec: Spec) -> _Focal:
    p, rest = sigmoid(y, spec), sigmoid(-y, spec)
    some = spec.epsilon >= 0
    return _Focal(
        t * spec.epsilon + (1 - t) * (1 - spec.epsilon) if some else 1.0,
        2 * spec.epsilon - 1 if some else 0.0,
        *(p * (1 - t) + t * rest, p * rest * (1 - 2 * t), rest - p),
        *(softplus(y, spec) - y * t, p - t),
    )


def _focused(off: mx.array, spec: Spec, less: int = 0) -> mx.array:
    """``off ** gamma``, or with less its derivative."""
    made = powered(off, Exponent(spec.delta - less, spec.stream))
    return made * spec.delta if less else made


def _margin(y: mx.array, t: mx.array) -> mx.array:
    return 1 - (2 * t - 1) * y


def _within(margin: mx.array, slope: mx.array) -> mx.array:
    """The slope above 0, NaN at NaN."""
    return mx.where(margin > 0, slope, mx.where(margin <= 0, mx.zeros_like(margin), margin))


# Loss, and derivatives by y and t -----------------------------------------------------------------------


def elements(y: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The loss of every element, before weights."""
    d = y - t
    if spec.type == ABSOLUTE:
        return mx.abs(d)
    if spec.type == SQUARED:
        return d * d
    if spec.type == SOFTMAX:
        return -product(t, _over_classes(softmax_rules.log_softmax, y, spec), spec)
    if spec.type == SIGMOID:
        return softplus(y, spec) - y * t
    if spec.type == CATEGORICAL:
        return -xlogy(t, y, spec)
    if spec.type == HINGE:
        margin = _margin(y, t)
        return mx.where(margin <= 0, mx.zeros_like(margin), margin)
    if spec.type == HUBER:
        size = mx.abs(d)
        return mx.where(size <= spec.delta, 0.5 * d * d, spec.delta * (size - 0.5 * spec.delta))
    if spec.type == COSINE:
        return -y * t
    if spec.type == LOG:
        ends = xlogy(t, y + spec.epsilon, spec), xlogy(1 - t, 1 - y + spec.epsilon, spec)
        return -ends[0] - ends[1]
    if spec.type == FOCAL:
        of = _focal(y, t, spec)
        return of.alpha * _focused(of.off, spec) * of.lost
    return xlogx(t, spec) - product(t, y, spec)


def slopes(y: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The derivative of every element by its y; that of softmax cross-entropy assumes that targets add up to 1."""
    d = y - t
    if spec.type == ABSOLUTE:
        return _sign(d)
    if spec.type == SQUARED:
        return 2 * d
    if spec.type == SOFTMAX:
        return _over_classes(softmax_rules.softmax, y, spec) - t
    if spec.type == SIGMOID:
        return sigmoid(y, spec) - t
    if spec.type == CATEGORICAL:
        return -_over(t, y, spec)
    if spec.type == HINGE:
        return _within(_margin(y, t), 1 - 2 * t)
    if spec.type == HUBER:
        return _huber_slope(d, spec)
    if spec.type == LOG:
        ends = _over(t, y + spec.epsilon, spec), _over(1 - t, 1 - y + spec.epsilon, spec)
        return ends[1] - ends[0]
    if spec.type == FOCAL:
        of = _focal(y, t, spec)
        grown = _focused(of.off, spec, 1) * of.off_slope * of.lost if spec.delta else 0.0
        return of.alpha * (grown + _focused(of.off, spec) * of.lost_slope)
    return -t


def target_slopes(y: mx.array, t: mx.array, spec: Spec) -> mx.array:
    """The derivative of every element by its target."""
    d = y - t
    if spec.type == ABSOLUTE:
        return -_sign(d)
    if spec.type == SQUARED:
        return -2 * d
    if spec.type == SOFTMAX:
        return -_over_classes(softmax_rules.log_softmax, y, spec)
    if spec.type == CATEGORICAL:
        return -mx.log(y)
    if spec.type == HINGE:
        return _within(_margin(y, t), -2 * y)
    if spec.type == HUBER:
        return -_huber_slope(d, spec)
    if spec.type == LOG:
        return mx.log(1 - y + spec.epsilon) - mx.log(y + spec.epsilon)
    if spec.type == DIVERGENCE:
        return mx.log(t) + 1 - y
    if spec.type == FOCAL:
        of = _focal(y, t, spec)
        power = _focused(of.off, spec)
        grown = _focused(of.off, spec, 1) * of.off_target_slope * of.lost if spec.delta else 0.0
        return of.alpha_slope * power * of.lost + of.alpha * (grown - power * y)
    return -y


# Of whole arrays ----------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """The arrays of a loss, in the accumulator's dtype."""

    y: mx.array
    t: mx.array  # a target for every element, smoothed
    w: mx.array | float


def parts(arrays: Arrays, spec: Spec) -> Parts:
    """From y, the target and perhaps weights."""
    y, target, *rest = arrays
    wide = launch.accumulator(y.dtype)
    classes = y.shape[-1]
    t = target[..., None] == mx.arange(classes).astype(mx.uint32) if spec.labelled else target
    t = t.astype(wide)
    if spec.kept != 1 or spec.share != 0:
        share = (target < classes)[..., None].astype(wide) * spec.share if spec.labelled else spec.share
        t = t * spec.kept + share  # a label that is no class has nothing to share
    return Parts(y.astype(wide), t, rest[0] if spec.weighted else spec.weight)


def value(arrays: Arrays, spec: Spec) -> mx.array:
    """The loss of each image, or of every element in y's dtype."""
    if spec.by_terms:
        y, a, b = arrays
        made = a * softplus(-y, spec) + b * softplus(y, spec)
    else:
        y, t, w = parts(arrays, spec)
        made = w * elements(y, t, spec)
    return made.astype(arrays[0].dtype) if spec.elements else spec.factor * made.sum((1, 2))


def gradient(arrays: Arrays, spec: Spec) -> mx.array:
    """MPS's gradient: every element's slope times its weight."""
    if spec.by_terms:
        return _slopes_by_terms(arrays, spec).astype(arrays[0].dtype)
    y, t, w = parts(arrays, spec)
    return (w * slopes(y, t, spec)).astype(arrays[0].dtype)


def derivative(arrays: Arrays, spec: Spec) -> mx.array:
    """The derivative of the sum of `value` by y, each image's times its factor if there are any."""
    if spec.by_terms:
        made = _slopes_by_terms(arrays, spec)
    elif spec.type == SOFTMAX:
        y, t, w = parts(arrays, spec)
        shares = _over_classes(softmax_rules.softmax, y, spec)
        made = shares * (w * t).sum(-1, keepdims=True) - w * t
    else:
        y, t, w = parts(arrays, spec)
        made = w * slopes(y, t, spec)
    if spec.scaled:
        made = made * arrays[-1][:, None, None]
    return (made * spec.factor).astype(arrays[0].dtype)


def _slopes_by_terms(arrays: Arrays, spec: Spec) -> mx.array:
    """The derivative of ``-a log p - b log(1 - p)`` by y, with p its sigmoid."""
    y, a, b = arrays[:3]
    return b * sigmoid(y, spec) - a * sigmoid(-y, spec)
