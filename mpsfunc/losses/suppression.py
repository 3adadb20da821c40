"""Non-maximum suppression: of boxes that overlap, the one with the highest score. MPS and MLX have none.

The shapes do not depend on values, so it can be compiled and mapped. On a CPU a kernel compares each box that is kept
with those after it. Elsewhere, and without the C++ module, it is made of MLX's operations: boxes are taken in blocks by
descending score, what kept boxes of earlier blocks suppress is one product of matrices, and in a block the answer is
the fixed point of "is kept if no box before it that is kept suppresses it", which as many steps as boxes find, since
each makes one more box certain. A block is compared with those before it when it comes to it, so that no array holds
all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.operation import Arrays, Gradients, Tangents, operation, over_batches
from mpsfunc.core.printing import describe
from mpsfunc.losses import overlaps
from mpsfunc.losses.params import NmsParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BLOCK = 64
_MOST = 2**15  # boxes: some hundred operations of MLX for each 64 of them


class Spec(NamedTuple):
    """What is suppressed, how many boxes may be left, and where everything runs."""

    threshold: float
    most: int
    stream: mx.Stream


def nms(
    boxes: mx.array,
    scores: mx.array,
    iou_threshold: float,
    *,
    classes: mx.array | None = None,
    max_outputs: int | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, mx.array]:
    """Non-maximum suppression: keeps boxes that no kept box with a higher score overlaps by more than a threshold.

    Boxes are taken by descending score, of equal scores the first one first, and one is kept if its IOU with each that
    was kept before it is at most the threshold. A score of -inf or NaN means that there is no box, so images with
    different numbers of boxes fit into one batch. A NaN in a box counts as no overlap.

    The shape of the result does not depend on values: as many indices as there are boxes, or ``max_outputs`` if that is
    less, of which the first ``count`` are kept boxes and the rest -1. So it can be compiled and mapped;
    ``indices[:count.item()]`` is what torchvision returns. It has no derivative. Time grows with the square of the
    number of boxes, memory with their number: choose a thousand or so by their scores first.

    Source: torchvision's ``nms``, and with ``classes`` its ``batched_nms``; they keep boxes of all scores, and return
    an array whose length is the count. MPS and MLX have none.

    Args:
        boxes: Boxes (r, 4), each (x1, y1, x2, y2), or (n, r, 4) of several images; float32, float16, bfloat16, or
            float64 on the CPU. The IOU is that of `box_iou` before it is rounded to 16 bits.
        scores: (r,) or (n, r), of a floating dtype.
        iou_threshold: From 0 to 1, rounded to float32 if the boxes are not float64.
        classes: Integers (r,) or (n, r): boxes of different classes do not suppress each other. Default: all boxes are
            of one class.
        max_outputs: How many boxes are kept at most. Default: all.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Indices, int32 (k,) or (n, k), in the order of scores; and the count, int32 () or (n,).

    Raises:
        TypeError: An array has a dtype that is not allowed, or another argument is not a number.
        ValueError: Shapes do not fit, there are more than 32,768 boxes, or a number is out of range.

    Example:
        >>> boxes = mx.array([[0.0, 0, 2, 2], [0, 0, 2, 1.8], [3, 3, 4, 4]])
        >>> indices, count = nms(boxes, mx.array([0.6, 0.9, 0.3]), 0.5)
        >>> indices, count.item()
        (array([1, 2, -1], dtype=int32), 2)
        >>> nms(boxes, mx.array([0.6, 0.9, 0.3]), 0.5, classes=mx.array([0, 1, 0]))[0]
        array([1, 0, 2], dtype=int32)
    """
    op, stream = "nms", launch.resolve(stream)
    checks.array(op, "boxes", boxes, stream=stream)
    if boxes.ndim not in (2, 3) or boxes.shape[-1] != 4:
        raise ValueError(
            f"{op}: boxes are not (x1, y1, x2, y2); got boxes.shape={tuple(boxes.shape)}, expected (r, 4) or (n, r, 4)"
        )
    if boxes.shape[-2] > _MOST:
        raise ValueError(
            f"{op}: too many boxes; got boxes.shape={tuple(boxes.shape)}, expected at most {_MOST} of an image"
        )
    checks.array(op, "scores", scores, stream=stream)
    checks.shape(op, "scores", scores, tuple(boxes.shape[:-1]), "scores do not belong to boxes")
    threshold = checks.number(op, "iou_threshold", iou_threshold, 0.0, 1.0)
    if classes is not None:
        _check_classes(op, classes, boxes)
    count = boxes.shape[-2]
    most = count if max_outputs is None else min(count, checks.whole(op, "max_outputs", max_outputs, 0))
    spec = Spec(threshold, most, stream)
    with mx.stream(stream):
        arrays = [mx.stop_gradient(a) for a in (boxes, scores, *(() if classes is None else (classes,)))]
        if boxes.ndim == 3:
            return kept(*arrays, spec)
        indices, total = kept(*[a[None] for a in arrays], spec)
        return indices[0], total[0]


def _check_classes(op: str, classes: Any, boxes: mx.array) -> None:
    if not is_a(classes, mx.array):
        raise TypeError(f"{op}: classes is not an array; got classes={describe(classes)}, expected an mx.array")
    if not mx.issubdtype(classes.dtype, mx.integer):
        raise TypeError(
            f"{op}: classes has no integer dtype; got classes.dtype={classes.dtype}, expected an integer dtype"
        )
    checks.shape(op, "classes", classes, tuple(boxes.shape[:-1]), "classes do not belong to boxes")


@operation("nms")
def kept(*args: Unpack[tuple[Unpack[Arrays], Spec]]) -> tuple[mx.array, mx.array]:
    """Indices and counts, of images with boxes (n, r, 4), scores (n, r) and perhaps classes (n, r)."""
    boxes, scores, *classes = args[:-1]
    spec: Spec = args[-1]
    n, count, _ = boxes.shape
    if n == 0 or count == 0:
        return mx.zeros((n, spec.most), mx.int32), mx.zeros((n,), mx.int32)
    there = scores > -mx.inf  # not of NaN
    order = mx.argsort(-mx.where(there, scores, mx.full(scores.shape, -mx.inf, dtype=scores.dtype)), axis=1)
    boxes = mx.take_along_axis(boxes.astype(launch.accumulator(boxes.dtype)), order[..., None], axis=1)
    free = mx.take_along_axis(there, order, axis=1)
    named = mx.take_along_axis(classes[0], order, axis=1) if classes else None
    sides = mx.stack([mx.stack(list(side)) for side in overlaps.sides(boxes)])
    if _by_kernel(spec.stream):
        found = {"sides": sides, "free": free.astype(sides.dtype), "order": order}
        if named is not None:
            found["classes"] = named.astype(mx.int64)
        results = ((n, spec.most), mx.uint32), ((n,), mx.uint32)
        params = NmsParams(spec.most, spec.threshold)
        indices, total = launch.launch("nms", found, params, results, tuple, spec.stream)
        return indices.view(mx.int32), total.view(mx.int32)
    keeps = _in_order(free.astype(mx.float32)[:, None], _Ranked(sides, named, spec.threshold)) > 0
    place = mx.arange(count)
    places = mx.argsort(mx.where(keeps, place, place + count), axis=1)[:, : spec.most]
    total = mx.minimum(keeps.sum(1), spec.most).astype(mx.int32)
    indices = mx.take_along_axis(order, places, axis=1).astype(mx.int32)
    return mx.where(mx.arange(spec.most) < total[:, None], indices, -1), total


@kept.vjp
def _kept_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (None,) * len(arrays)


@kept.jvp
def _kept_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> tuple[mx.array, mx.array]:
    indices, total = kept(*arrays, spec)
    return mx.zeros_like(indices), mx.zeros_like(total)


kept.vmap(over_batches(kept))


def _by_kernel(stream: mx.Stream) -> bool:
    return launch.backend(stream) == "cpu" and launch.optional_module() is not None


class _Ranked(NamedTuple):
    """Boxes by descending score, of both axes all that `overlaps.Side` has (2, 4, n, r); their classes, if any."""

    sides: mx.array
    named: mx.array | None
    threshold: float

    def suppresses(self, start: int, end: int, before: Sequence[mx.array]) -> mx.array:
        """Which boxes before `end` (n, end, 1) suppress which later ones from `start` on (n, end, end - start)."""
        rows, cols = self.sides[..., :end, None], self.sides[..., None, start:end]
        for found in before:  # so that pairs are not made ahead, which all would be in memory at once
            cols = mx.where(found[..., :1] >= 0, cols, cols)
        made = overlaps.iou(_taken(rows), _taken(cols)) > self.threshold
        if self.named is not None:
            made = mx.logical_and(made, self.named[:, :end, None] == self.named[:, None, start:end])
        return mx.logical_and(made, mx.arange(end)[:, None] < mx.arange(start, end)).astype(mx.float32)


def _taken(both: mx.array) -> list[overlaps.Side]:
    return [overlaps.Side(*(both[axis, i] for i in range(4))) for axis in range(2)]


def _in_order(free: mx.array, ranked: _Ranked) -> mx.array:
    """Which boxes (n, r) are kept, of those that are there (n, 1, r)."""
    count = free.shape[-1]
    done: list[mx.array] = []
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        suppresses, open_ = ranked.suppresses(start, end, done[-1:]), free[..., start:end]
        if done:
            open_ = mx.where(mx.concatenate(done, axis=-1) @ suppresses[:, :start] > 0, 0.0, open_)
        within, found = suppresses[:, start:], open_
        for _ in range(end - start - 1):
            found = mx.where(found @ within > 0, 0.0, open_)
        done.append(found)
    return mx.concatenate(done, axis=-1)[:, 0]
