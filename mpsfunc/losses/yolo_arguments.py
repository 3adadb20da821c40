"""Refuses what is no loss of a YOLO detector."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import entries, real
from mpsfunc.core.printing import describe
from mpsfunc.losses.yolo_parts import Anchors, Rules

DistanceName = Literal["mean_absolute_error", "mean_squared_error", "huber"]
DISTANCES: tuple[DistanceName, ...] = get_args(DistanceName)
ClassLossName = Literal["softmax_cross_entropy", "sigmoid_cross_entropy"]
CLASS_LOSSES: tuple[ClassLossName, ...] = get_args(ClassLossName)
YoloReductionName = Literal["none", "sum", "mean"]
REDUCTIONS: tuple[YoloReductionName, ...] = get_args(YoloReductionName)
MOST = 2**16  # anchors
LEAST = 2.0**-126  # of a delta, the smallest normal number of float32
_BEFORE_CLASSES = 5  # x, y, w, h, confidence


class Given(NamedTuple):
    """How a loss is made, checked."""

    reduction: YoloReductionName
    names: tuple[DistanceName, DistanceName, ClassLossName]
    delta: float
    rules: Rules
    stream: mx.Stream


def checked(
    op: str,
    y: Any,
    target: Any,
    anchors: Any,
    reduction: Any,
    xy_loss: Any,
    wh_loss: Any,
    class_loss: Any,
    delta: Any,
    scales: tuple[Any, ...],
    presence: Any,
    absence: Any,
    rescore: Any,
    epsilon: Any,
    stream: Any,
) -> Given:
    """The arguments of `yolo_loss`."""
    stream = launch.resolve(stream)
    checks.image(op, "y", y, stream=stream)
    known = anchors_of(op, anchors)
    channels = check_channels(op, y, len(known))
    checks.array(op, "target", target, stream=stream)
    if tuple(target.shape) != tuple(y.shape):
        expected = (*y.shape[:3], channels)
        checks.shape(op, "target", target, expected, "target does not fit y", of=(*y.shape[:3], channels))
    if target.dtype not in (y.dtype, mx.float32):
        either = y.dtype if y.dtype == mx.float32 else f"{y.dtype} or mlx.core.float32"
        raise TypeError(f"{op}: target and y differ in dtype; got target.dtype={target.dtype}, expected {either}")
    reduced = checks.choice(op, "reduction", reduction, REDUCTIONS)
    names = (
        checks.choice(op, "xy_loss", xy_loss, DISTANCES),
        checks.choice(op, "wh_loss", wh_loss, DISTANCES),
        checks.choice(op, "class_loss", class_loss, CLASS_LOSSES),
    )
    named = zip(("xy", "wh", "no_object", "object", "class"), scales, strict=True)
    xy, wh, no_object, has_object, of_class = (checks.number(op, f"scale_{name}", scale, 0.0) for name, scale in named)
    limits = [
        None if limit is None else checks.number(op, name, limit, 0.0, 1.0)
        for name, limit in (("min_iou_for_object_presence", presence), ("max_iou_for_object_absence", absence))
    ]
    width = checks.number(op, "delta", delta, LEAST)
    flag, least = checks.switch(op, "rescore", rescore), checks.number(op, "epsilon", epsilon, 0.0)
    how = Rules(known, (xy, wh, no_object, has_object, of_class), limits[0], limits[1], flag, least)
    return Given(reduced, names, width, how, stream)


def anchors_of(op: str, value: Any) -> Anchors:
    """(width, height) of each."""
    given = entries(value)
    rule = "a list of (width, height) above 0, in cells"
    if not given:
        raise TypeError(f"{op}: anchors is not a list of anchors; got anchors={describe(value)}, expected {rule}")
    if len(given) > MOST:
        raise ValueError(f"{op}: too many anchors; got {len(given)} anchors, expected at most {MOST}")
    made = []
    for anchor in given:
        numbers = [real(each) for each in entries(anchor) or ()]
        if len(numbers) != 2 or not all(each is not None and 0 < each <= checks.LARGEST for each in numbers):
            raise ValueError(f"{op}: not an anchor; got an entry of anchors={describe(anchor)}, expected {rule}")
        width, height = (float(each) for each in numbers if each is not None)
        made.append((width, height))
    return tuple(made)


def check_channels(op: str, y: mx.array, anchors: int) -> int:
    """The channels of an anchor."""
    channels, rest = divmod(y.shape[-1], anchors)
    if rest or channels <= _BEFORE_CLASSES:
        raise ValueError(
            f"{op}: the channels are not those of the anchors; got y.shape={tuple(y.shape)}, "
            f"expected (5 + classes) * {anchors} channels, with 1 class or more"
        )
    return channels
