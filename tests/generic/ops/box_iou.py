"""Overlaps of boxes: `box_iou`, `box_iou_loss` and `box_iou_loss_grad`; and suppression, `nms`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Fixed, OpInfo, Sample, Wrong, call
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import detection as oracle
from support.oracle import losses

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

# Of random corners a quarter are boxes, the others have no area.
SEVERAL, MORE = Array((3, 8, 4)), Array((40, 4))
TARGET = Fixed(
    [[[0.1 * i - 1, 0.2 * j - 1, 0.1 * i + 0.4 + 0.2 * j, 0.8 - 0.1 * i] for i in range(8)] for j in range(3)]
)
KINDS = ("iou", "giou", "diou", "ciou")
BOXES, SCORES = Array((40, 4), moves=False), Array((40,), moves=False)
NO_NODE = "MPS has no such node"


def _losses(
    boxes: np.ndarray,
    target: np.ndarray,
    type: str = "giou",
    *,
    reduction: str = "none",
    epsilon: float = 1e-7,
    **_: Any,
) -> Any:
    return losses.reduced(1 - oracle.overlaps(boxes, target, type, epsilon), reduction)


# What is measured ---------------------------------------------------------------------------------------


def measured(title: str, shape: tuple[int, ...], of_x: int, features: int, *given: str) -> Benchmark:
    """A row, in float32 alone."""
    return Benchmark(
        *("pointwise", of_x, 1, given),
        title=title,
        features=features,
        cpu=(Measured(targets=LEVEL, dtypes=FLOAT32, shape=shape),),
    )


_ROWS, _FEWER = (16384, 4), (1024, 4)

# Wrong calls, and the records ---------------------------------------------------------------------------

SOME, ROW = numbers((3, 4)), numbers((3,))


def _wrong_values(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        ("boxes are not (x1, y1, x2, y2)", lambda: function(numbers((3, 5)), numbers((3, 5)))),
        ("boxes are not (x1, y1, x2, y2)", lambda: function(mx.array(1.0), mx.array(1.0))),
        ("unknown type", lambda: function(SOME, SOME, "eiou")),
    )


def _wrong_losses(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        *_wrong_values(function),
        ("target does not fit boxes", lambda: function(SOME, SOME[:1])),
        ("unknown reduction", lambda: function(SOME, SOME, reduction="average")),
        ("unknown type", lambda: function(SOME, SOME, "mean")),
        ("epsilon is out of range", lambda: function(SOME, SOME, epsilon=-1e-9)),
    )


def _wrong_types(function: Callable[..., Any], other: str) -> tuple[Wrong, ...]:
    return (
        ("boxes is not an array", lambda: function([[0, 0, 1, 1]], SOME)),
        (f"{other} is not an array", lambda: function(SOME, np.ones((3, 4)))),
        (f"{other} has no floating dtype", lambda: function(SOME, SOME.astype(mx.int32))),
        (f"{other} and boxes differ in dtype", lambda: function(SOME, SOME.astype(mx.float16))),
        ("type is not a name", lambda: function(SOME, SOME, None)),
    )


def _wrong_loss_types(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        *_wrong_types(function, "target"),
        ("reduction is not a name", lambda: function(SOME, SOME, reduction=None)),
        ("epsilon is not a number", lambda: function(SOME, SOME, epsilon="0")),
        ("exact is not a bool", lambda: function(SOME, SOME, exact=1)),
    )


OPS = (
    OpInfo(
        name="box_iou",
        launches=False,
        samples={
            "": call("box_iou", SEVERAL, Array((3, 8, 4))),
            **{kind: call("box_iou", SEVERAL, TARGET, kind) for kind in KINDS},
            "of all pairs": call("box_iou", Array((5, 1, 4)), Array((6, 4)), "ciou"),
            "of many boxes": Sample(call("box_iou", MORE, Array((40, 4)), "giou"), in_matrix=False),
        },
        reference=oracle.overlaps,
        slack=64,
        wrong_values=(
            *_wrong_values(mf.box_iou),
            ("others are not (x1, y1, x2, y2)", lambda: mf.box_iou(SOME, numbers((4, 3)))),
            ("boxes and others do not broadcast", lambda: mf.box_iou(SOME, numbers((2, 4)))),
        ),
        wrong_types=_wrong_types(mf.box_iou, "others"),
        benchmarks={
            "box_iou": measured("box_iou, giou", _ROWS, 2, 1, "boxes", "truth"),
            "box_iou_pairs": measured("box_iou, all pairs", _FEWER, 2, _FEWER[0], "boxes", "truth"),
        },
        no_node=NO_NODE,
    ),
    OpInfo(
        name="box_iou_loss",
        launches=False,
        samples={
            **{kind: call("box_iou_loss", SEVERAL, TARGET, kind, exact=True, epsilon=1e-3) for kind in KINDS},
            "summed": call("box_iou_loss", SEVERAL, TARGET, "ciou", reduction="sum", exact=True, epsilon=0.25),
            "a mean": call("box_iou_loss", SEVERAL, Array((3, 8, 4)), "diou", reduction="mean"),
            "of a constant": Sample(call("box_iou_loss", SEVERAL, TARGET, "ciou"), in_matrix=False),
        },
        reference=_losses,
        slack=64,
        wrong_values=_wrong_losses(mf.box_iou_loss),
        wrong_types=_wrong_loss_types(mf.box_iou_loss),
        benchmarks={"box_iou_loss": measured("box_iou_loss, ciou", _ROWS, 2, 0, "boxes", "truth")},
        no_node=NO_NODE,
    ),
    OpInfo(
        name="box_iou_loss_grad",
        launches=False,
        samples={
            **{kind: call("box_iou_loss_grad", SEVERAL, TARGET, kind, exact=True, epsilon=1e-3) for kind in KINDS},
            "a mean": call("box_iou_loss_grad", SEVERAL, TARGET, "giou", reduction="mean", epsilon=0.25),
        },
        compared="losses/test_boxes.py",
        wrong_values=_wrong_losses(mf.box_iou_loss_grad),
        wrong_types=_wrong_loss_types(mf.box_iou_loss_grad),
        benchmarks={"box_iou_loss_grad": measured("box_iou_loss_grad, ciou", _ROWS, 3, 0, "boxes", "truth")},
    ),
    OpInfo(
        name="nms",
        differentiable=False,
        samples={
            "": call("nms", BOXES, SCORES, 0.2),
            "of classes": call("nms", BOXES, SCORES, 0.1, classes=Fixed([i % 3 for i in range(40)], "int32")),
            "of images": call("nms", Array((2, 30, 4), moves=False), Array((2, 30), moves=False), 0.3, max_outputs=9),
        },
        compared="losses/test_suppression.py",
        wrong_values=(
            ("boxes are not (x1, y1, x2, y2)", lambda: mf.nms(numbers((3, 5)), ROW, 0.5)),
            ("boxes are not (x1, y1, x2, y2)", lambda: mf.nms(SOME[0], ROW, 0.5)),
            ("too many boxes", lambda: mf.nms(mx.zeros((2**15 + 1, 4)), mx.zeros(2**15 + 1), 0.5)),
            ("scores do not belong to boxes", lambda: mf.nms(SOME, ROW[:2], 0.5)),
            ("classes do not belong to boxes", lambda: mf.nms(SOME, ROW, 0.5, classes=mx.array([1]))),
            ("iou_threshold is out of range", lambda: mf.nms(SOME, ROW, 1.5)),
            ("max_outputs is out of range", lambda: mf.nms(SOME, ROW, 0.5, max_outputs=-1)),
        ),
        wrong_types=(
            ("boxes is not an array", lambda: mf.nms([[0, 0, 1, 1]], ROW, 0.5)),
            ("scores has no floating dtype", lambda: mf.nms(SOME, ROW.astype(mx.int32), 0.5)),
            ("iou_threshold is not a number", lambda: mf.nms(SOME, ROW, None)),
            ("classes is not an array", lambda: mf.nms(SOME, ROW, 0.5, classes=[0, 1, 2])),
            ("classes has no integer dtype", lambda: mf.nms(SOME, ROW, 0.5, classes=ROW)),
            ("max_outputs is not an int", lambda: mf.nms(SOME, ROW, 0.5, max_outputs=1.5)),
        ),
        benchmarks={"nms": measured("nms", _FEWER, 1, 1, "boxes", "scores")},
        no_node=NO_NODE,
    ),
)
