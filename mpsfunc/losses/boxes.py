"""How much boxes overlap, and losses of that: IOU, GIOU, DIOU and CIOU.

Thin over MLX's operations, which fuse under ``mx.compile`` and have derivatives of every order. MPS has none of these.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import text
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.operation import operation
from mpsfunc.core.printing import describe
from mpsfunc.losses import overlaps
from mpsfunc.losses.focal import OVERALL, OverallName

OverlapName = Literal["iou", "giou", "diou", "ciou"]
OVERLAPS: tuple[OverlapName, ...] = get_args(OverlapName)
_NONE, _SUM, _MEAN = OVERALL


def box_iou(boxes: mx.array, others: mx.array, type: OverlapName = "iou", *, stream: StreamLike = None) -> mx.array:
    """How much boxes overlap with others, row by row or by broadcasting.

    A box is (x1, y1, x2, y2). With its area ``(x2 - x1) * (y2 - y1)``, the intersection I and the union U of two areas:

    ====== ===================================================================================================
    type   value
    ====== ===================================================================================================
    "iou"  ``I / U``, from 0 to 1
    "giou" ``I / U - (C - U) / C`` with the area C of the smallest box around both, from -1 to 1
    "diou" ``I / U - d / D`` with the squared distance d of the centres and the squared diagonal D of that box
    "ciou" "diou" minus ``v * v / (1 - I / U + v)`` with ``v = 4 / pi**2 * (difference of the angles)**2``, where
           the angle of a box is ``atan(width / height)``
    ====== ===================================================================================================

    Where the formulas are undefined: a box with ``x2 < x1`` or ``y2 < y1`` has a width or a height of 0; a ratio of 0
    to 0 is 0, so boxes without an area have an IOU of 0 with all boxes, even with themselves; the angle of a box
    without width and height is 0. A NaN in a box makes its values NaN.

    Derivatives of every order, with respect to both arguments, are exact. Where coordinates of two boxes are equal,
    both get half the slope, as in PyTorch, so that equal boxes have a derivative of 0. Boxes that only touch do not
    overlap.

    Source: torchvision's ``box_iou``, ``generalized_box_iou``, ``distance_box_iou`` and ``complete_box_iou``, which
    compare every box with every other: here ``box_iou(boxes[:, None], others)``. MPS has none.

    Args:
        boxes: Boxes (..., 4); float32, float16, bfloat16, or float64 on the CPU. 16-bit dtypes can represent few
            positions.
        others: Boxes (..., 4) of the same dtype, whose leading axes broadcast with those of boxes.
        type: One of the names above. Default "iou".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Values of the shape that the leading axes broadcast to, of the boxes' dtype.

    Raises:
        TypeError: An array is not floating, the dtypes differ, or type is not a string.
        ValueError: The last axis of an array does not have length 4, leading axes do not broadcast, or the type is
            unknown.

    Example:
        >>> boxes = mx.array([[0.0, 0, 2, 2], [0, 0, 1, 1]])
        >>> box_iou(boxes, mx.array([1.0, 0, 3, 2]))
        array([0.333333, 0], dtype=float32)
        >>> box_iou(boxes[:, None], boxes)
        array([[1, 0.25],
               [0.25, 1]], dtype=float32)
    """
    op, stream = "box_iou", launch.resolve(stream)
    _check(op, "boxes", boxes, stream)
    _check(op, "others", others, stream)
    checks.same_dtype(op, "others", others, "boxes", boxes.dtype)
    one, other = tuple(boxes.shape[:-1]), tuple(others.shape[:-1])
    longest = max(len(one), len(other))
    padded = [(1,) * (longest - len(s)) + s for s in (one, other)]
    if any(a != b and 1 not in (a, b) for a, b in zip(*padded, strict=True)):
        raise ValueError(
            f"{op}: boxes and others do not broadcast; got others.shape={tuple(others.shape)}, "
            f"expected leading axes that broadcast with {one}"
        )
    kind = checks.choice(op, "type", type, OVERLAPS)
    wide = launch.accumulator(boxes.dtype)
    with mx.stream(stream):
        made = overlaps.overlap(boxes.astype(wide), others.astype(wide), kind, 0.0, exact=True)
        return made.astype(boxes.dtype)


def box_iou_loss(
    boxes: mx.array,
    target: mx.array,
    type: OverlapName = "giou",
    reduction: OverallName = "none",
    *,
    epsilon: float = 1e-7,
    exact: bool = False,
    stream: StreamLike = None,
) -> mx.array:
    """1 minus `box_iou` of predicted boxes and true ones, row by row: a loss for boxes.

    The formulas are those of `box_iou`, but with ``epsilon`` added to each denominator, as in torchvision's losses. For
    two equal boxes without an area the loss is 1.

    The factor ``v / (1 - I / U + v)`` of "ciou" is a constant in derivatives, as in the paper and in torchvision; with
    ``exact`` it is differentiated too. Otherwise derivatives of every order, with respect to both arguments, are exact.

    Source: torchvision's ``generalized_box_iou_loss``, ``distance_box_iou_loss`` and ``complete_box_iou_loss``, which
    return float32 for boxes of 16 bits. Its boxes must have ``x1 < x2`` and ``y1 < y2``; `box_iou` says how others are
    treated here. MPS has none.

    Args:
        boxes: Predicted boxes (..., 4), each (x1, y1, x2, y2); float32, float16, bfloat16, or float64 on the CPU.
        target: True boxes of the same shape and dtype.
        type: "iou", "giou", "diou" or "ciou". Default "giou".
        reduction: "none", the loss of every box; "sum" or "mean" of all. Default "none".
        epsilon: At least 0. Default 1e-7.
        exact: Whether all of "ciou" is differentiated. Default False.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Losses (...) of the boxes' dtype for "none", else a number, float32 (float64 for float64). The mean of no boxes
        is 0, as in torchvision.

    Raises:
        TypeError: An array is not floating, the dtypes differ, or another argument has a wrong type.
        ValueError: the last axis of boxes does not have length 4, target has another shape, a name is unknown, or
            epsilon is below 0.

    Example:
        >>> boxes, target = mx.array([[0.0, 0, 2, 2]]), mx.array([[1.0, 0, 3, 2]])
        >>> for type in ("iou", "giou", "diou", "ciou"):
        ...     print(type, round(box_iou_loss(boxes, target, type).item(), 4))
        iou 0.6667
        giou 0.6667
        diou 0.7436
        ciou 0.7436
    """
    given = _checked("box_iou_loss", boxes, target, type, reduction, epsilon, exact, stream)
    with mx.stream(given.stream):
        made = given.losses(boxes, target)
        if given.reduction == _NONE:
            return made.astype(boxes.dtype)
        return made.sum() * given.share


def box_iou_loss_grad(
    boxes: mx.array,
    target: mx.array,
    type: OverlapName = "giou",
    reduction: OverallName = "sum",
    *,
    epsilon: float = 1e-7,
    exact: bool = False,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `box_iou_loss` with respect to boxes, with which a backward pass starts.

    Source: none in MPS.

    Args:
        boxes: As for `box_iou_loss`.
        target: As for `box_iou_loss`.
        type: As for `box_iou_loss`. Default "giou".
        reduction: "mean" divides by the number of boxes; "none" and "sum" do not. Default "sum".
        epsilon: As for `box_iou_loss`.
        exact: As for `box_iou_loss`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of the boxes' shape and dtype: the derivative of the value, or of the sum of its elements.

    Raises:
        TypeError: An array is not floating, the dtypes differ, or another argument has a wrong type.
        ValueError: the last axis of boxes does not have length 4, target has another shape, a name is unknown, or
            epsilon is below 0.

    Example:
        >>> boxes, target = mx.array([[0.0, 0, 2, 2]]), mx.array([[1.0, 0, 3, 2]])
        >>> mx.round(box_iou_loss_grad(boxes, target), 4) + 0
        array([[-0.1111, 0, -0.3333, 0]], dtype=float32)
    """
    given = _checked("box_iou_loss_grad", boxes, target, type, reduction, epsilon, exact, stream)
    return gradient(boxes, target, given)


class Spec(NamedTuple):
    """A loss of boxes, and where everything runs."""

    kind: OverlapName
    reduction: OverallName
    share: float  # of each box in a sum
    epsilon: float
    exact: bool
    stream: mx.Stream

    def losses(self, boxes: mx.array, target: mx.array) -> mx.array:
        """Of every box, in the accumulator's dtype."""
        wide = launch.accumulator(boxes.dtype)
        pair = boxes.astype(wide), target.astype(wide)
        return 1 - overlaps.overlap(*pair, self.kind, self.epsilon, exact=self.exact)


@operation("box_iou_loss_grad")  # which hides `mx.vjp` from gradients around it, that would be wrong
def gradient(boxes: mx.array, target: mx.array, spec: Spec) -> mx.array:
    """By boxes, in their dtype."""
    return _gradient(boxes, target, spec)


@gradient.decomposition
def _gradient(boxes: mx.array, target: mx.array, spec: Spec) -> mx.array:
    shares = mx.full(boxes.shape[:-1], spec.share, dtype=launch.accumulator(boxes.dtype))
    return mx.vjp(lambda boxes: spec.losses(boxes, target), [boxes], [shares])[1][0]


def _checked(
    op: str, boxes: Any, target: Any, type: Any, reduction: Any, epsilon: Any, exact: Any, stream: Any
) -> Spec:
    stream = launch.resolve(stream)
    _check(op, "boxes", boxes, stream)
    checks.array(op, "target", target, stream=stream)
    checks.shape(op, "target", target, tuple(boxes.shape), "target does not fit boxes")
    checks.same_dtype(op, "target", target, "boxes", boxes.dtype)
    if text(type) in OVERALL:
        raise ValueError(
            f"{op}: unknown type; got type={describe(type)}, expected one of {OVERLAPS}, or reduction={describe(type)}"
        )
    kind = checks.choice(op, "type", type, OVERLAPS)
    reduced = checks.choice(op, "reduction", reduction, OVERALL)
    least = checks.number(op, "epsilon", epsilon, 0.0)
    share = 4 / max(boxes.size, 1) if reduced == _MEAN else 1.0
    return Spec(kind, reduced, share, least, checks.switch(op, "exact", exact), stream)


def _check(op: str, name: str, value: Any, stream: mx.Stream) -> None:
    checks.array(op, name, value, stream=stream)
    if value.ndim == 0 or value.shape[-1] != 4:
        raise ValueError(
            f"{op}: {name} are not (x1, y1, x2, y2); got {name}.shape={tuple(value.shape)}, expected (..., 4)"
        )
