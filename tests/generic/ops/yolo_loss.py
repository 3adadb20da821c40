"""The loss of a YOLO detector: `yolo_loss`, `yolo_loss_fwd` and `yolo_loss_grad`; and what it trains, `yolo_boxes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, OpInfo, Sample, Wrong, call
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import detection as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

ANCHORS = ((1.0, 1.5), (2.0, 0.75))
ROWS = (
    ((0.25, 0.75, 2.0, 1.5, 1, 1, 0), (0, 0, 0, 0, 0, 0.5, 0.5)),
    ((0.5, 0.125, 0.75, 1.25, 1, 0, 1), (0.9, 0.4, 3.0, 0.5, 1, 0.25, 0.75)),
)
LABELS = Fixed((ROWS, ROWS[::-1]))  # of two images of two by two cells
REPEATED = Fixed(tuple(tuple(tuple(cell * 2 for cell in row) for row in image) for image in (ROWS, ROWS[::-1])))
Y = Array((2, 2, 2, 14))
# Without the overlap, which is a constant that differences see.
HOW: dict[str, dict[str, Any]] = {
    "": {"rescore": False},
    "of elements": {"reduction": "none", "rescore": False},
    "a mean of other losses": {
        **{"reduction": "mean", "xy_loss": "huber", "wh_loss": "mean_squared_error", "delta": 0.3},
        **{"class_loss": "sigmoid_cross_entropy", "rescore": False, "scale_xy": 3.0, "scale_class": 0.5},
    },
    "with limits": {
        **{"min_iou_for_object_presence": 0.4, "max_iou_for_object_absence": 0.2, "rescore": False},
        **{"scale_object": 7.0, "scale_no_object": 0.5, "epsilon": 0.0, "scale_wh": 2.0},
    },
}
RESCORED: dict[str, Any] = {"xy_loss": "mean_absolute_error", "wh_loss": "mean_absolute_error"}
_LOSSES = ("xy_loss", "wh_loss", "class_loss", "delta")
_SCALES = {"scale_xy": 10, "scale_wh": 10, "scale_no_object": 5, "scale_object": 100, "scale_class": 2}


def _targets(y: np.ndarray, target: np.ndarray, anchors: Any, reduction: str = "sum", **how: Any) -> tuple[Any, Any]:
    """What each channel is compared with, and what it counts."""
    named = ("min_iou_for_object_presence", None), ("max_iou_for_object_absence", None), ("rescore", True)
    scales = tuple(how.get(name, usual) for name, usual in _SCALES.items())
    rest = (how.get(name, usual) for name, usual in (*named, ("epsilon", 1e-5)))
    return oracle.yolo_targets(y, target, anchors, scales, *rest)


def _losses(how: dict[str, Any]) -> dict[str, Any]:
    return {name: how[name] for name in _LOSSES if name in how}


def _loss(y: np.ndarray, target: np.ndarray, anchors: Any, reduction: str = "sum", **how: Any) -> np.ndarray:
    value, _ = oracle.yolo_elements(y, *_targets(y, target, anchors, **how), len(anchors), **_losses(how))
    if reduction == "none":
        return value
    made: np.ndarray = value.sum((1, 2, 3), keepdims=True) / (value[0].size if reduction == "mean" else 1)
    return made


def _gradient(y: np.ndarray, state: Call, *, divided: bool = False) -> np.ndarray:
    targets, anchors = _targets(*state.args, **state.how), state.args[2]
    _, slope = oracle.yolo_elements(y, *targets, len(anchors), **_losses(state.how))
    return slope / (slope[0].size if divided and state.how.get("reduction") == "mean" else 1)


def _state(**how: Any) -> Call:
    """Of other predictions, which without the overlap do not matter."""
    return call("yolo_loss_fwd", Array(Y.shape, moves=False), LABELS, ANCHORS, take=1, **how)


# What is measured ---------------------------------------------------------------------------------------


def _measured(title: str, of_x: int, *given: str) -> dict[str, Benchmark]:
    """A row of a grid of 13 by 13 cells, three anchors and twenty classes, in float32 alone."""
    name = title.split()[0]
    row = Measured(targets=LEVEL, dtypes=FLOAT32, shape=(8, 13, 13, 75))
    return {name: Benchmark("pointwise", of_x, 0, given, title=title, cpu=(row,))}


# Wrong calls, and the records ---------------------------------------------------------------------------

SEEN, CELLS = numbers((2, 2, 2, 14)), numbers((2, 2, 2, 7))
_STATE = mf.yolo_loss_fwd(SEEN, CELLS, ANCHORS)[1]
_OF_FLOAT64 = mf.yolo_loss_fwd(numbers((2, 2, 2, 14), mx.float64), CELLS, ANCHORS, stream=mx.cpu)[1]


def _wrong_values(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        ("not an image batch", lambda: function(SEEN[0], CELLS, ANCHORS)),
        ("an image has no elements", lambda: function(SEEN[:, :0], CELLS, ANCHORS)),
        ("the channels are not those of the anchors", lambda: function(SEEN, CELLS, [(1, 1)] * 3)),
        ("the channels are not those of the anchors", lambda: function(SEEN[..., :10], CELLS, ANCHORS)),
        ("target does not fit y", lambda: function(SEEN, CELLS[..., :6], ANCHORS)),
        ("target does not fit y", lambda: function(SEEN, CELLS[:1], ANCHORS)),
        ("not an anchor", lambda: function(SEEN, CELLS, [(1, 1), (0, 1)])),
        ("not an anchor", lambda: function(SEEN, CELLS, [(1, 1), (float("inf"), 1)])),
        ("not an anchor", lambda: function(SEEN, CELLS, [(1, 1), (1, 1, 1)])),
        ("not an anchor", lambda: function(SEEN, CELLS, [1, 1])),
        ("too many anchors", lambda: function(SEEN, CELLS, [(1, 1)] * (2**16 + 1))),
        ("unknown reduction", lambda: function(SEEN, CELLS, ANCHORS, "sum_by_non_zero_weights")),
        ("unknown xy_loss", lambda: function(SEEN, CELLS, ANCHORS, xy_loss="hinge")),
        ("unknown wh_loss", lambda: function(SEEN, CELLS, ANCHORS, wh_loss="l1")),
        ("unknown class_loss", lambda: function(SEEN, CELLS, ANCHORS, class_loss="huber")),
        ("delta is out of range", lambda: function(SEEN, CELLS, ANCHORS, delta=-1)),
        ("delta is out of range", lambda: function(SEEN, CELLS, ANCHORS, delta=0)),
        *(
            (f"scale_{part} is out of range", lambda part=part: function(SEEN, CELLS, ANCHORS, **{f"scale_{part}": -1}))
            for part in ("xy", "wh", "no_object", "object", "class")
        ),
        ("epsilon is out of range", lambda: function(SEEN, CELLS, ANCHORS, epsilon=float("nan"))),
        ("scale_xy is out of range", lambda: function(SEEN, CELLS, ANCHORS, scale_xy=float("inf"))),
        (
            "min_iou_for_object_presence is out of range",
            lambda: function(SEEN, CELLS, ANCHORS, min_iou_for_object_presence=1.5),
        ),
        (
            "max_iou_for_object_absence is out of range",
            lambda: function(SEEN, CELLS, ANCHORS, max_iou_for_object_absence=-0.5),
        ),
    )


def _wrong_types(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        ("y is not an array", lambda: function([[0.0]], CELLS, ANCHORS)),
        ("target is not an array", lambda: function(SEEN, [[0.0]], ANCHORS)),
        ("target has no floating dtype", lambda: function(SEEN, CELLS.astype(mx.int32), ANCHORS)),
        ("target and y differ in dtype", lambda: function(SEEN, CELLS.astype(mx.float16), ANCHORS)),
        ("anchors is not a list of anchors", lambda: function(SEEN, CELLS, [])),
        ("anchors is not a list of anchors", lambda: function(SEEN, CELLS, mx.ones((2, 2)))),
        ("reduction is not a name", lambda: function(SEEN, CELLS, ANCHORS, None)),
        ("xy_loss is not a name", lambda: function(SEEN, CELLS, ANCHORS, xy_loss=None)),
        ("scale_object is not a number", lambda: function(SEEN, CELLS, ANCHORS, scale_object=None)),
        ("rescore is not a bool", lambda: function(SEEN, CELLS, ANCHORS, rescore=1)),
        (
            "min_iou_for_object_presence is not a number",
            lambda: function(SEEN, CELLS, ANCHORS, min_iou_for_object_presence="0.7"),
        ),
    )


def _refused(y: mx.array = SEEN, state: Any = None, **fields: Any) -> mx.array:
    return mf.yolo_loss_grad(y, (_STATE if state is None else state)._replace(**fields))


OPS = (
    OpInfo(
        name="yolo_loss",
        samples={
            **{label: call("yolo_loss", Y, LABELS, ANCHORS, **how) for label, how in HOW.items()},
            "of repeated labels": call("yolo_loss", Y, REPEATED, ANCHORS, **HOW[""]),
            "rescored": Sample(call("yolo_loss", Y, LABELS, ANCHORS, **RESCORED), in_matrix=False),
        },
        reference=_loss,
        slack=64,
        benchmarks=_measured("yolo_loss", 1, "cells"),
        wrong_values=_wrong_values(mf.yolo_loss),
        wrong_types=_wrong_types(mf.yolo_loss),
        nodes={},
    ),
    OpInfo(
        name="yolo_loss_fwd",
        samples={label: Sample(call("yolo_loss_fwd", Y, LABELS, ANCHORS, **how), (0,)) for label, how in HOW.items()},
        reference=_loss,
        slack=64,
        wrong_values=_wrong_values(mf.yolo_loss_fwd),
        wrong_types=_wrong_types(mf.yolo_loss_fwd),
    ),
    OpInfo(
        name="yolo_loss_grad",
        samples={
            **{label: call("yolo_loss_grad", Y, _state(**how)) for label, how in HOW.items()},
            "divided": call("yolo_loss_grad", Y, _state(**HOW["a mean of other losses"]), divided=True),
        },
        reference=_gradient,
        slack=64,
        benchmarks=_measured("yolo_loss_grad and _fwd", 2, "cells"),
        wrong_values=(
            ("y does not belong to this state", lambda: _refused(SEEN[:1])),
            ("not an image batch", lambda: _refused(SEEN[0])),
            ("the channels are not those of the anchors", lambda: _refused(anchors=3)),
            ("state.anchors is out of range", lambda: _refused(anchors=0)),
            ("unknown state.xy_loss", lambda: _refused(xy_loss="hinge")),
            ("unknown state.reduction", lambda: _refused(reduction="all")),
            ("state.delta is out of range", lambda: _refused(delta=-1.0)),
            ("state.delta is out of range", lambda: _refused(delta=0.0)),
        ),
        wrong_types=(
            ("y is not an array", lambda: _refused(None)),
            ("not a state of this operation", lambda: mf.yolo_loss_grad(SEEN, SEEN)),
            ("the state holds no array", lambda: _refused(target=None)),
            ("state.target has another dtype", lambda: _refused(state=_OF_FLOAT64)),
            ("state.weights has no floating dtype", lambda: _refused(weights=mx.ones(SEEN.shape, mx.int32))),
            ("divided is not a bool", lambda: mf.yolo_loss_grad(SEEN, _STATE, divided=1)),
        ),
    ),
    OpInfo(
        name="yolo_boxes",
        samples={
            "": call("yolo_boxes", Y, ANCHORS),
            "of one anchor": call("yolo_boxes", Array((2, 3, 1, 9)), ((0.5, 2.0),)),
        },
        reference=oracle.yolo_boxes,
        slack=64,
        benchmarks=_measured("yolo_boxes", 2),
        wrong_values=(
            ("not an image batch", lambda: mf.yolo_boxes(SEEN[0], ANCHORS)),
            ("the channels are not those of the anchors", lambda: mf.yolo_boxes(SEEN, [(1, 1)] * 3)),
            ("not an anchor", lambda: mf.yolo_boxes(SEEN, [(1, 1), (0, 1)])),
        ),
        wrong_types=(
            ("y is not an array", lambda: mf.yolo_boxes(None, ANCHORS)),
            ("anchors is not a list of anchors", lambda: mf.yolo_boxes(SEEN, 2)),
        ),
        no_node="MPS has no such node",
    ),
)
