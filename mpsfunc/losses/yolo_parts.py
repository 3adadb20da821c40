"""The parts of a YOLO loss: which anchors stand for which objects, and the losses of places, sizes, scores and classes.

Arrays are (images, places, channels), a place an anchor in a cell, with the channels x, y, w, h, confidence, classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.losses import formulas, rules, softmax_rules
from mpsfunc.losses.formulas import SIGMOID, TYPES, LossName, Spec
from mpsfunc.losses.overlaps import ratio

Anchors = tuple[tuple[float, float], ...]  # (width, height), in cells


class Rules(NamedTuple):
    """How objects are assigned to anchors, and what each part counts."""

    anchors: Anchors
    scales: tuple[float, float, float, float, float]  # xy, wh, no object, object, class
    presence: float | None
    absence: float | None
    rescore: bool
    epsilon: float


class Part(NamedTuple):
    """Some channels of a place, and the loss that they have."""

    first: int
    end: int | None
    type: int
    delta: float

    def spec(self, elements: bool, factor: float, stream: mx.Stream) -> Spec:
        """The loss, of every element with a weight of its own."""
        flags = elements, False, True, False, False
        return Spec(self.type, 1.0, 0.0, 1e-7, self.delta, 1.0, factor, *flags, stream)


def parts_of(xy: LossName, wh: LossName, classes: LossName, delta: float) -> tuple[Part, Part, Part, Part]:
    """The four parts, in their order."""
    of_xy, of_wh = Part(0, 2, TYPES.index(xy), delta), Part(2, 4, TYPES.index(wh), delta)
    return of_xy, of_wh, Part(4, 5, SIGMOID, 1.0), Part(5, None, TYPES.index(classes), 1.0)


def places(image: mx.array, anchors: int) -> mx.array:
    """(n, h, w, anchors * channels) as (n, places, channels), in the accumulator's dtype."""
    n, h, w, c = image.shape
    return image.reshape(n, h * w * anchors, c // anchors).astype(launch.accumulator(image.dtype))


def shown(made: mx.array, stream: mx.Stream) -> mx.array:
    """The channels of places with the sigmoid of x and y."""
    return mx.concatenate([_sigmoid(made[..., :2], stream), made[..., 2:]], axis=-1)


def sizes(raw: mx.array, anchors: Anchors, stream: mx.Stream) -> mx.array:
    """Widths and heights in cells, of raw ones (n, places, 2)."""
    n, count, _ = raw.shape
    apart = raw.reshape(n, count // len(anchors), len(anchors), 2)
    return (_exp(apart, stream) * mx.array(anchors, raw.dtype)).reshape(raw.shape)


def assigned(y: mx.array, label: mx.array, how: Rules, stream: mx.Stream) -> tuple[mx.array, mx.array]:
    """What every channel of a place is compared with, and what it counts.

    Args:
        y: Raw predictions (n, cells * anchors, channels), which only the overlap with the truth reads.
        label: Labels (n, cells, channels), one for each cell.
        how: The rules.
        stream: Where everything runs.

    Returns:
        Targets and weights of y's shape.
    """
    n, cells, channels = label.shape
    if n == 0:
        return mx.zeros_like(y), mx.zeros_like(y)
    anchors, count = mx.array(how.anchors, y.dtype), len(how.anchors)
    truth = label[:, :, None, :]
    size, filled = truth[..., 2:4], truth[..., 4] > 0  # (n, cells, 1, 2), (n, cells, 1)
    alike = _shape_overlap(size, anchors)  # (n, cells, anchors)
    best = mx.argmax(alike, axis=-1, keepdims=True) == mx.arange(count)
    # Not & and |, whose vmap returns wrong numbers in MLX 0.32.4.
    chosen = best if how.presence is None else mx.logical_or(best, alike >= how.presence)
    chosen = mx.logical_and(chosen, filled)
    empty = mx.logical_not(chosen)
    if how.absence is not None:
        empty = mx.logical_and(empty, mx.logical_or(mx.logical_not(filled), alike <= how.absence))
    apart = y.reshape(n, cells, count, channels)
    score = _predicted_overlap(apart, truth, anchors, stream) if how.rescore else mx.ones_like(alike)
    stretched = mx.log(mx.where(chosen[..., None], size / anchors, mx.ones_like(size)) + how.epsilon)
    whole = mx.broadcast_to(truth, apart.shape)
    targets = mx.concatenate([whole[..., :2], stretched, score[..., None], whole[..., 5:]], axis=-1)
    targets = mx.where(chosen[..., None], targets, mx.zeros_like(targets))
    xy, wh, no_object, has_object, of_class = how.scales
    present = chosen.astype(y.dtype)[..., None]
    confidence = present * has_object + empty.astype(y.dtype)[..., None] * no_object
    widths = (xy, 2), (wh, 2), (None, 1), (of_class, channels - 5)
    each = [
        mx.broadcast_to(confidence if scale is None else present * scale, (*apart.shape[:-1], length))
        for scale, length in widths
    ]
    weights = mx.concatenate(each, axis=-1)
    return mx.stop_gradient(targets.reshape(y.shape)), mx.stop_gradient(weights.reshape(y.shape))


class Compared(NamedTuple):
    """Predictions (n, places, channels), what they are compared with, and what that counts."""

    y: mx.array
    target: mx.array
    weights: mx.array


def value(of: Compared, parts: tuple[Part, ...], factor: float, stream: mx.Stream) -> mx.array:
    """The sum over the places of each image, times a factor."""
    cut = _cut(of._replace(y=shown(of.y, stream)), parts)
    made = [rules.value(*arrays, part.spec(False, factor, stream)) for part, arrays in zip(parts, cut, strict=True)]
    return sum(made[1:], made[0])


def elements(of: Compared, parts: tuple[Part, ...], stream: mx.Stream) -> mx.array:
    """The loss of every channel."""
    cut = _cut(of._replace(y=shown(of.y, stream)), parts)
    made = [rules.value(*arrays, part.spec(True, 1.0, stream)) for part, arrays in zip(parts, cut, strict=True)]
    return mx.concatenate(made, axis=-1)


def gradient(of: Compared, parts: tuple[Part, ...], factor: float, stream: mx.Stream) -> mx.array:
    """The derivative of the sum of `value`."""
    cut = _cut(of._replace(y=shown(of.y, stream)), parts)
    specs = [part.spec(False, factor, stream) for part in parts]
    made = [rules.derivative(*arrays, spec) for arrays, spec in zip(cut, specs, strict=True)]
    made[0] = made[0] * _sigmoid(of.y[..., :2], stream) * _sigmoid(-of.y[..., :2], stream)
    return mx.concatenate(made, axis=-1)


def _cut(of: Compared, parts: tuple[Part, ...]) -> list[list[mx.array]]:
    return [[a[..., part.first : part.end] for a in of] for part in parts]


def _shape_overlap(size: mx.array, anchors: mx.array) -> mx.array:
    """IOU of boxes around one middle."""
    both = mx.minimum(size, anchors).prod(-1)
    return ratio(both, size.prod(-1) + anchors.prod(-1) - both)


def _predicted_overlap(raw: mx.array, truth: mx.array, anchors: mx.array, stream: mx.Stream) -> mx.array:
    """IOU of predicted boxes and the truth of their cells."""
    half = 0.5 * _exp(raw[..., 2:4], stream) * anchors
    middle = _sigmoid(raw[..., :2], stream)
    own, size = truth[..., :2], truth[..., 2:4]
    common = mx.minimum(middle + half, own + 0.5 * size) - mx.maximum(middle - half, own - 0.5 * size)
    both = mx.maximum(common, 0).prod(-1)
    # One exponential, since a width that overflows and a height that vanishes would be NaN.
    area = _exp(raw[..., 2] + raw[..., 3], stream) * anchors.prod(-1)
    return ratio(both, area + size.prod(-1) - both)


def _sigmoid(x: mx.array, stream: mx.Stream) -> mx.array:
    return formulas.sigmoid(x, Part(0, 2, SIGMOID, 1.0).spec(True, 1.0, stream))


def _exp(x: mx.array, stream: mx.Stream) -> mx.array:
    return softmax_rules.exp(x, softmax_rules.Spec(stream))


def scores(made: mx.array, stream: mx.Stream) -> mx.array:
    """(n, places, classes): the probability of an object times those of its classes."""
    n, count, channels = made.shape
    lines = made[..., 5:].reshape(n * count, channels - 5, 1)
    shares = softmax_rules.softmax(lines, softmax_rules.Spec(stream)).reshape(n, count, channels - 5)
    return _sigmoid(made[..., 4:5], stream) * shares


def cell_of(cells: tuple[int, ...], anchors: int, dtype: mx.Dtype) -> mx.array:
    """(places, 2): the column and the row of the cell of each place."""
    rows, cols = cells
    place, _ = mx.divmod(mx.arange(math.prod(cells) * anchors), anchors)
    row, col = mx.divmod(place, cols)
    return mx.stack([col, row], axis=-1).astype(dtype)
