"""The loss of a YOLO detector: ``MPSCNNYOLOLoss`` with ``MPSCNNYOLOLossDescriptor``, and the boxes that it trains.

Thin over the kernels of `loss` and MLX's operations: predictions of a grid are small beside the images of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import yolo_arguments, yolo_parts
from mpsfunc.losses.yolo_arguments import REDUCTIONS, ClassLossName, DistanceName, Given, YoloReductionName
from mpsfunc.losses.yolo_parts import Compared, Part

_NONE, _SUM, _MEAN = REDUCTIONS


@printing.printed
class YoloLossState(NamedTuple):
    """What predictions were compared with, which is all that the gradient needs besides them.

    Fields:
        target: What each channel is compared with, of y's shape: x and y within the cell, ``log(w / anchor)`` and
            ``log(h / anchor)``, the confidence, the classes; 0 where there is no object. float32 or float64.
        weights: The weight of each channel, of the same shape: a scale, or 0.
        op: "yolo_loss".
        reduction: Of the loss.
        anchors: How many there are.
        xy_loss: The loss of positions.
        wh_loss: The loss of sizes.
        class_loss: The loss of classes.
        delta: Of "huber".
    """

    target: mx.array
    weights: mx.array
    op: str
    reduction: str
    anchors: int
    xy_loss: str
    wh_loss: str
    class_loss: str
    delta: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The target and the weights."""
        return self.target, self.weights

    def with_arrays(self, arrays: Sequence[mx.array]) -> YoloLossState:
        """This state with another target and other weights."""
        target, weights = checks.arrays_of("YoloLossState", arrays, 2)
        return self._replace(target=target, weights=weights)


def yolo_loss(
    y: mx.array,
    target: mx.array,
    anchors: Sequence[tuple[float, float]],
    reduction: YoloReductionName = "sum",
    *,
    xy_loss: DistanceName = "mean_squared_error",
    wh_loss: DistanceName = "huber",
    class_loss: ClassLossName = "softmax_cross_entropy",
    delta: float = 1.0,
    scale_xy: float = 10.0,
    scale_wh: float = 10.0,
    scale_no_object: float = 5.0,
    scale_object: float = 100.0,
    scale_class: float = 2.0,
    min_iou_for_object_presence: float | None = None,
    max_iou_for_object_absence: float | None = None,
    rescore: bool = True,
    epsilon: float = 1e-5,
    stream: StreamLike = None,
) -> mx.array:
    """The loss of a YOLO detector, of boxes around anchors in the cells of a grid.

    The channels of y are x, y, w, h, a confidence and the classes, anchor by anchor. With s the sigmoid, the centre of
    a predicted box is ``(s(x), s(y))`` within its cell, its size ``(exp(w), exp(h))`` times the anchor's. In a cell
    with an object one anchor is responsible for it. This anchor has losses of position, size and classes; every anchor
    has a loss of its confidence:

    =========== ====================== ============================ ============================================
    channels    compared               with                         by, times
    =========== ====================== ============================ ============================================
    x, y        ``s(x)``, ``s(y)``     the label's                  ``xy_loss``, ``scale_xy``
    w, h        w, h                   ``log(label / anchor + e)``  ``wh_loss``, ``scale_wh``
    confidence  the logit              IOU of prediction and label, sigmoid cross-entropy, ``scale_object``; 0 and
                                       1 without ``rescore``        ``scale_no_object`` of other anchors
    classes     the logits             the label's                  ``class_loss``, ``scale_class``
    =========== ====================== ============================ ============================================

    Targets are constants in derivatives, also the IOU; for constant targets derivatives of every order with respect to
    y are exact. Labels have no derivatives.

    Source: ``MPSCNNYOLOLoss``. Apple documents the channels, the sigmoid of x and y alone, the four losses and the
    scales. The rest is not documented, and is here as in Apple's Turi Create, or where that does not say, our choice:

    - the label of a cell is the position of the centre in the cell, the size in cells, 1, and a probability for each
      class; a cell whose confidence is not above 0 has no object. The unit of anchors is a cell;
    - responsible is the anchor whose shape has the largest IOU with the label's, of several the first (ours);
    - the target of w and h, of confidence, and that it is a constant. ``epsilon``, e above, is Turi Create's;
    - MPS's .7 and .3 of ``min_iou_for_object_presence`` and ``max_iou_for_object_absence``: the default here is
      neither. With numbers, in cells with an object, anchors whose shapes have at least the former are responsible too,
      and others have a loss of their confidence only up to the latter, as in another version of Turi Create;
    - "mean" divides by ``h * w * c``, as `loss` does.

    Args:
        y: Predictions (n, h, w, (5 + classes) * anchors), of a grid of h by w cells; float32, float16, bfloat16, or
            float64 on the CPU.
        target: Labels (n, h, w, 5 + classes), one for each cell, of y's dtype or float32. Or of y's shape, repeated for
            each anchor as in MPS, of which the first is read.
        anchors: (width, height) of each anchor, in cells.
        reduction: "none", the loss of every element; "sum", of each image; "mean", that over ``h * w * c``.
            Default "sum".
        xy_loss: "mean_absolute_error", "mean_squared_error" or "huber", as in `loss`. Default
            "mean_squared_error".
        wh_loss: One of these. Default "huber".
        class_loss: "softmax_cross_entropy" or "sigmoid_cross_entropy". Default "softmax_cross_entropy".
        delta: Of "huber", above 0. Default 1.
        scale_xy: Of positions; 0 leaves this part out, as do the other scales. Default 10.
        scale_wh: Of sizes. Default 10.
        scale_no_object: Of confidences where there is no object. Default 5.
        scale_object: Of confidences of objects. Default 100.
        scale_class: Of classes. Default 2.
        min_iou_for_object_presence: IOU from which an anchor is responsible in addition to the best one. Default: none
            is.
        max_iou_for_object_absence: IOU up to which an anchor that is not responsible has a loss of its confidence.
            Default: all have one.
        rescore: Whether the target of confidence is the IOU, else 1. Default True.
        epsilon: Added in the target of w and h. Default 1e-5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        (n, 1, 1, 1), float32 (float64 for float64); for "none" an array of y's shape and dtype.

    Raises:
        TypeError: An argument has a type or a dtype that is not allowed.
        ValueError: Shapes do not fit each other or the anchors, a name is unknown, or a number is out of range.

    Example:
        >>> y = mx.zeros((1, 1, 1, 14))  # two anchors, two classes
        >>> label = mx.array([0.25, 0.75, 2, 1.5, 1, 1, 0]).reshape(1, 1, 1, 7)
        >>> round(yolo_loss(y, label, [(1, 1), (2, 2)], epsilon=0).item(), 4)
        75.8306
    """
    given = yolo_arguments.checked("yolo_loss", y, target, anchors, reduction, xy_loss, wh_loss, class_loss, delta,
                     (scale_xy, scale_wh, scale_no_object, scale_object, scale_class),
                     min_iou_for_object_presence, max_iou_for_object_absence, rescore, epsilon, stream)  # fmt: skip
    with mx.stream(given.stream):
        return _value(y, _state(y, target, given), given)


def yolo_loss_fwd(
    y: mx.array,
    target: mx.array,
    anchors: Sequence[tuple[float, float]],
    reduction: YoloReductionName = "sum",
    *,
    xy_loss: DistanceName = "mean_squared_error",
    wh_loss: DistanceName = "huber",
    class_loss: ClassLossName = "softmax_cross_entropy",
    delta: float = 1.0,
    scale_xy: float = 10.0,
    scale_wh: float = 10.0,
    scale_no_object: float = 5.0,
    scale_object: float = 100.0,
    scale_class: float = 2.0,
    min_iou_for_object_presence: float | None = None,
    max_iou_for_object_absence: float | None = None,
    rescore: bool = True,
    epsilon: float = 1e-5,
    stream: StreamLike = None,
) -> tuple[mx.array, YoloLossState]:
    """`yolo_loss`, and the state that its gradient needs. Arguments and errors are those of `yolo_loss`.

    Returns:
        The value, and the state.

    Example:
        >>> y = mx.zeros((1, 1, 1, 14))
        >>> label = mx.array([0.25, 0.75, 2, 1.5, 1, 1, 0]).reshape(1, 1, 1, 7)
        >>> _, state = yolo_loss_fwd(y, label, [(1, 1), (2, 2)])
        >>> state.weights.reshape(2, 7)
        array([[0, 0, 0, ..., 5, 0, 0],
               [10, 10, 10, ..., 100, 2, 2]], dtype=float32)
    """
    given = yolo_arguments.checked("yolo_loss", y, target, anchors, reduction, xy_loss, wh_loss, class_loss, delta,
                     (scale_xy, scale_wh, scale_no_object, scale_object, scale_class),
                     min_iou_for_object_presence, max_iou_for_object_absence, rescore, epsilon, stream)  # fmt: skip
    with mx.stream(given.stream):
        state = _state(y, target, given)
        return _value(y, state, given), state


def yolo_loss_grad(y: mx.array, state: YoloLossState, *, divided: bool = False, stream: StreamLike = None) -> mx.array:
    """Gradient of `yolo_loss` with respect to y, with which a backward pass starts.

    Args:
        y: The predictions.
        state: From `yolo_loss_fwd`.
        divided: Whether a "mean" divides the gradient, too, so that it is the derivative of the value. Default False,
            as in MPS. For the other reductions both are the same.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of y's shape and dtype: the derivative of the sum over images.

    Raises:
        TypeError: y is not a floating array, state is not a YoloLossState, or divided is not a bool.
        ValueError: y does not belong to the state, or the state is not one that `yolo_loss_fwd` makes.

    Example:
        >>> y = mx.zeros((1, 1, 1, 14))
        >>> label = mx.array([0.25, 0.75, 2, 1.5, 1, 1, 0]).reshape(1, 1, 1, 7)
        >>> _, state = yolo_loss_fwd(y, label, [(1, 1), (2, 2)], epsilon=0)
        >>> dy = yolo_loss_grad(y, state).reshape(2, 7)
        >>> [round(value, 4) for value in dy[1].tolist()], dy[0, 4].item()
        ([1.25, -1.25, 0.0, 2.8768, -10.0, -1.0, 1.0], 2.5)
    """
    op, stream = "yolo_loss_grad", launch.resolve(stream)
    checks.image(op, "y", y, stream=stream)
    parts = _check_state(op, y, state, stream)
    exact = checks.switch(op, "divided", divided)
    factor = _factor(y, state) if exact else 1.0
    with mx.stream(stream):
        made = yolo_parts.gradient(_compared(y, state), parts, factor, stream)
        return made.reshape(y.shape).astype(y.dtype)


def yolo_boxes(
    y: mx.array, anchors: Sequence[tuple[float, float]], *, stream: StreamLike = None
) -> tuple[mx.array, mx.array]:
    """Decodes predictions of a network trained with `yolo_loss` into boxes and the scores of their classes.

    The unit of boxes is a cell: multiply them by the size of a cell in pixels. `nms` removes all but one box of each
    object.

    Source: the formulas of `yolo_loss`; MPS has no such function.

    Args:
        y: Predictions (n, h, w, (5 + classes) * anchors), as for `yolo_loss`.
        anchors: (width, height) of each anchor, in cells.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Boxes (n, h * w * anchors, 4), each (x1, y1, x2, y2), in the order of cells; and scores
        (n, h * w * anchors, classes), the sigmoid of the confidence times the softmax of the classes. Both are float32
        (float64 for float64).

    Raises:
        TypeError: y is not a floating array, or anchors is not a list of pairs of numbers.
        ValueError: y is not NHWC, its channels do not fit the anchors, or an anchor is not above 0.

    Example:
        >>> boxes, scores = yolo_boxes(mx.zeros((1, 1, 2, 7)), [(2, 1)])
        >>> boxes
        array([[[-0.5, 0, 1.5, 1],
                [0.5, 0, 2.5, 1]]], dtype=float32)
        >>> scores[0, 0]
        array([0.25, 0.25], dtype=float32)
    """
    op, stream = "yolo_boxes", launch.resolve(stream)
    checks.image(op, "y", y, stream=stream)
    known = yolo_arguments.anchors_of(op, anchors)
    yolo_arguments.check_channels(op, y, len(known))
    with mx.stream(stream):
        made = yolo_parts.places(y, len(known))
        if made.size == 0:  # on CUDA reading MLX's gradient of slices of nothing ends the process
            return mx.zeros((*made.shape[:2], 4), made.dtype), mx.zeros(
                (*made.shape[:2], made.shape[2] - 5), made.dtype
            )
        middle = yolo_parts.shown(made, stream)[..., :2]
        middle = middle + yolo_parts.cell_of(y.shape[1:3], len(known), made.dtype)
        half = 0.5 * yolo_parts.sizes(made[..., 2:4], known, stream)
        return mx.concatenate([middle - half, middle + half], axis=-1), yolo_parts.scores(made, stream)


# What the functions share ------------------------------------------------------------------------------


def _state(y: mx.array, target: mx.array, given: Given) -> YoloLossState:
    """What y is compared with."""
    n, h, w, c = y.shape
    count = len(given.rules.anchors)
    channels = c // count
    seen = mx.stop_gradient(yolo_parts.places(y, count))
    label = mx.stop_gradient(target[..., :channels].astype(seen.dtype)).reshape(n, h * w, channels)
    made, weights = yolo_parts.assigned(seen, label, given.rules, given.stream)
    arrays = made.reshape(y.shape), weights.reshape(y.shape)
    return YoloLossState(*arrays, "yolo_loss", given.reduction, count, *given.names, given.delta)


def _check_state(op: str, y: mx.array, state: Any, stream: mx.Stream) -> tuple[Part, ...]:
    """The parts of the loss that a state has, which may have been made by hand."""
    checks.state(op, state, YoloLossState, stream=stream)
    wide = launch.accumulator(y.dtype)
    for name, array in zip(("target", "weights"), state.arrays, strict=True):
        checks.array(op, f"state.{name}", array, stream=stream)
        checks.shape(op, "y", y, tuple(array.shape), "y does not belong to this state")
        if array.dtype != wide:
            raise TypeError(
                f"{op}: state.{name} has another dtype; got state.{name}.dtype={array.dtype}, expected {wide}"
            )
    yolo_arguments.check_channels(op, y, checks.whole(op, "state.anchors", state.anchors, 1, yolo_arguments.MOST))
    checks.choice(op, "state.reduction", state.reduction, REDUCTIONS)
    xy = checks.choice(op, "state.xy_loss", state.xy_loss, yolo_arguments.DISTANCES)
    wh = checks.choice(op, "state.wh_loss", state.wh_loss, yolo_arguments.DISTANCES)
    classes = checks.choice(op, "state.class_loss", state.class_loss, yolo_arguments.CLASS_LOSSES)
    return yolo_parts.parts_of(xy, wh, classes, checks.number(op, "state.delta", state.delta, yolo_arguments.LEAST))


def _factor(y: mx.array, state: YoloLossState) -> float:
    """Of the sum of an image."""
    _, h, w, c = y.shape
    return 1 / (h * w * c) if state.reduction == _MEAN else 1.0


def _compared(y: mx.array, state: YoloLossState) -> Compared:
    return Compared(*(yolo_parts.places(a, state.anchors) for a in (y, *state.arrays)))


def _value(y: mx.array, state: YoloLossState, given: Given) -> mx.array:
    of, parts = _compared(y, state), yolo_parts.parts_of(*given.names, given.delta)
    if state.reduction == _NONE:
        return yolo_parts.elements(of, parts, given.stream).reshape(y.shape).astype(y.dtype)
    return yolo_parts.value(of, parts, _factor(y, state), given.stream).reshape(y.shape[0], 1, 1, 1)
