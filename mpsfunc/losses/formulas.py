"""What losses are, element by element, in MLX's operations, which give them derivatives of every order.

Arrays are (images, pixels, classes) in the accumulator's dtype, targets smoothed. Where a target is 0, its product
with a logarithm is 0, even of 0; its derivative by the target is the logarithm all the same.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable
from mpsfunc.losses import softmax_rules
from mpsfunc.losses.params import LossNumbers

# Numbered as MPS does.
TYPES = (
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
)
ABSOLUTE, SQUARED, SOFTMAX, SIGMOID, CATEGORICAL, HINGE, HUBER, COSINE, LOG, DIVERGENCE = range(10)


class Spec(NamedTuple):
    """A loss, which arrays belong to it, and where everything runs."""

    type: int
    kept: float  # a target becomes kept * target + share
    share: float
    epsilon: float
    delta: float
    weight: float  # of every element, unless there are weights
    factor: float  # of a sum
    elements: bool  # no sum
    labelled: bool  # the target is a class a pixel
    weighted: bool
    scaled: bool  # a gradient has a factor for each image, the last array
    stream: mx.Stream

    @property
    def numbers(self) -> LossNumbers:
        """Those that a kernel is told."""
        return LossNumbers(self.kept, self.share, self.epsilon, self.delta, self.weight, self.factor)


# Functions whose own rules keep digits, or signs, that those of MLX's operations lose. ------------------


def _pointwise(name: str, run: Any, *slopes: Any) -> Any:
    """``run(*arrays, spec)`` of arrays of one shape, and its derivative by each of them."""

    def vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Spec) -> Any:
        return tuple(cotangents[0] * slope(*arrays, spec) for slope in slopes)

    def jvp(arrays: Any, tangents: Any, spec: Spec) -> Any:
        parts = [t * slope(*arrays, spec) for slope, t in zip(slopes, tangents, strict=True) if t is not None]
        return sum(parts[1:], parts[0])

    def vmap(arrays: Any, mapped: Any, size: int, spec: Spec) -> Any:
        return operation(*arrays, spec)

    operation: Any = differentiable(name, run, vjp=vjp, jvp=jvp, vmap=vmap)
    return operation


def _run_by(t: mx.array, by: mx.array, spec: Spec) -> mx.array:
    return mx.where(t == 0, mx.zeros_like(t), t * by)


def _run_by_log(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    return mx.where(t == 0, mx.zeros_like(t), t * mx.log(y))


def _run_entropy(t: mx.array, spec: Spec) -> mx.array:
    return mx.where(t == 0, mx.zeros_like(t), t * mx.log(t))


def _run_sigmoid(y: mx.array, spec: Spec) -> mx.array:
    small = softmax_rules.exp(-mx.abs(y), spec)
    made: mx.array = mx.where(y < 0, small, mx.ones_like(small)) / (1 + small)
    return made


def _run_softplus(y: mx.array, spec: Spec) -> mx.array:
    return mx.maximum(y, 0) + mx.log1p(softmax_rules.exp(-mx.abs(y), spec))


# t * by, and 0 where t is.
_by: Any = _pointwise("loss", _run_by, lambda t, by, spec: by, lambda t, by, spec: t)
# t * log(y), and 0 where t is; so are its derivatives by y, of 0 too.
_by_log: Any = _pointwise("loss", _run_by_log, lambda t, y, spec: mx.log(y), lambda t, y, spec: _over(t, y, spec))
# t * log(t)
_entropy: Any = _pointwise("loss", _run_entropy, lambda t, spec: mx.log(t) + 1)
_sigmoid: Any = _pointwise("loss", _run_sigmoid, lambda y, spec: _sigmoid(y, spec) * _sigmoid(-y, spec))
_softplus: Any = _pointwise("loss", _run_softplus, lambda y, spec: _sigmoid(y, spec))


@functools.cache
def _over_power(k: int) -> Any:
    """Makes ``t / y^k``, and 0 where t is; the derivatives by y, of every order, are the like."""

    def power(y: mx.array) -> mx.array:
        made = y
        for _ in range(k - 1):
            made = made * y
        return made

    def run(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
        return mx.where(t == 0, mx.zeros_like(t), t / power(y))

    def by_y(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
        made: mx.array = -k * _over_power(k + 1)(t, y, spec)
        return made

    return _pointwise("loss", run, lambda t, y, spec: 1 / power(y), by_y)


def _over(t: mx.array, y: mx.array, spec: Spec) -> mx.array:
    made: mx.array = _over_power(1)(t, y, spec)
    return made


def _over_classes(function: Any, y: mx.array, spec: Spec) -> mx.array:
    """Softmax or its logarithm of the last axis."""
    n, pixels, classes = y.shape
    made: mx.array = function(y.reshape(n * pixels, classes, 1), softmax_rules.Spec(spec.stream))
    return made.reshape(y.shape)


def _sign(d: mx.array) -> mx.array:
    return mx.where(d == d, mx.sign(d), d)


def _huber_slope(d: mx.array, spec: Spec) -> mx.array:
    return mx.where(mx.abs(d) > spec.delta, spec.delta * mx.sign(d), d)


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
        made: mx.array = -_by(t, _over_classes(softmax_rules.log_softmax, y, spec), spec)
        return made
    if spec.type == SIGMOID:
        return _softplus(y, spec) - y * t  # type: ignore[no-any-return]
    if spec.type == CATEGORICAL:
        return -_by_log(t, y, spec)  # type: ignore[no-any-return]
    if spec.type == HINGE:
        margin = _margin(y, t)
        return mx.where(margin <= 0, mx.zeros_like(margin), margin)
    if spec.type == HUBER:
        size = mx.abs(d)
        return mx.where(size <= spec.delta, 0.5 * d * d, spec.delta * (size - 0.5 * spec.delta))
    if spec.type == COSINE:
        return -y * t
    if spec.type == LOG:
        ends = _by_log(t, y + spec.epsilon, spec), _by_log(1 - t, 1 - y + spec.epsilon, spec)
        return -ends[0] - ends[1]  # type: ignore[no-any-return]
    return _entropy(t, spec) - _by(t, y, spec)  # type: ignore[no-any-return]


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
        return _sigmoid(y, spec) - t  # type: ignore[no-any-return]
    if spec.type == CATEGORICAL:
        return -_over(t, y, spec)
    if spec.type == HINGE:
        return _within(_margin(y, t), 1 - 2 * t)
    if spec.type == HUBER:
        return _huber_slope(d, spec)
    if spec.type == LOG:
        ends = _over(t, y + spec.epsilon, spec), _over(1 - t, 1 - y + spec.epsilon, spec)
        return ends[1] - ends[0]
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
    return -y


# Of whole arrays ----------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """The arrays of a loss, in the accumulator's dtype."""

    y: mx.array
    t: mx.array  # a target for every element, smoothed
    w: mx.array | float


def parts(arrays: tuple[mx.array, ...], spec: Spec) -> Parts:
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


def value(arrays: tuple[mx.array, ...], spec: Spec) -> mx.array:
    """The loss of each image, or of every element in y's dtype."""
    y, t, w = parts(arrays, spec)
    made = w * elements(y, t, spec)
    return made.astype(arrays[0].dtype) if spec.elements else spec.factor * made.sum((1, 2))


def gradient(arrays: tuple[mx.array, ...], spec: Spec) -> mx.array:
    """What MPS passes on: every element's slope times its weight."""
    y, t, w = parts(arrays, spec)
    return (w * slopes(y, t, spec)).astype(arrays[0].dtype)


def derivative(arrays: tuple[mx.array, ...], spec: Spec) -> mx.array:
    """The derivative of the sum of `value` by y, each image's times its factor if there are any."""
    y, t, w = parts(arrays, spec)
    if spec.type == SOFTMAX:
        shares = _over_classes(softmax_rules.softmax, y, spec)
        made = shares * (w * t).sum(-1, keepdims=True) - w * t
    else:
        made = w * slopes(y, t, spec)
    if spec.scaled:
        made = made * arrays[-1][:, None, None]
    return (made * spec.factor).astype(arrays[0].dtype)
