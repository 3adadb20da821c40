"""Boxes and YOLO losses in NumPy float64, box by box and cell by cell."""

from __future__ import annotations

from math import atan, exp, inf, isnan, log, nan, pi
from typing import Any

import numpy as np

from support.oracle import losses

Array = np.ndarray[Any, Any]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole != 0 else 0.0


def _extent(low: float, high: float) -> float:
    return high - low if isnan(high - low) else max(high - low, 0.0)


def _angle(wide: float, high: float) -> float:
    return 0.0 if wide == 0 else pi / 2 if high == 0 else atan(wide / high)


def overlap(a: Array, b: Array, kind: str, epsilon: float = 0.0) -> float:
    """Of two boxes (4,)."""
    if np.isnan(a).any() or np.isnan(b).any():
        return nan
    (w, h), (u, v) = ([_extent(box[i], box[i + 2]) for i in (0, 1)] for box in (a, b))
    common = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1)]
    both = common[0] * common[1] if min(common) > 0 else 0.0
    union = w * h + u * v - both
    iou = _ratio(both, union + epsilon)
    around = [_extent(min(a[i], b[i]), max(a[i + 2], b[i + 2])) for i in (0, 1)]
    if kind == "giou":
        area = around[0] * around[1]
        return iou - _ratio(area - union, area + epsilon)
    if kind == "iou":
        return iou
    apart = sum(((a[i] + a[i + 2] - b[i] - b[i + 2]) / 2) ** 2 for i in (0, 1))
    far = iou - _ratio(apart, around[0] ** 2 + around[1] ** 2 + epsilon)
    turned = 4 / pi**2 * (_angle(w, h) - _angle(u, v)) ** 2
    return far - _ratio(turned, 1 - iou + turned + epsilon) * turned if kind == "ciou" else far


def overlaps(a: Array, b: Array, kind: str = "iou", epsilon: float = 0.0) -> Array:
    """By rows, with leading axes that broadcast."""
    a, b = np.broadcast_arrays(a, b)
    pairs = zip(a.reshape(-1, 4), b.reshape(-1, 4), strict=True)
    return np.array([overlap(*pair, kind, epsilon) for pair in pairs]).reshape(a.shape[:-1])


def kept(boxes: Array, scores: Array, threshold: float, classes: Array | None = None) -> list[int]:
    """The boxes (r, 4) that suppression keeps, by descending score."""
    made: list[int] = []
    for i in np.argsort(np.where(np.isnan(scores), inf, -scores), kind="stable"):
        rivals = [j for j in made if classes is None or classes[i] == classes[j]]
        if scores[i] > -inf and not any(overlap(boxes[i], boxes[j], "iou") > threshold for j in rivals):
            made.append(int(i))
    return made


def yolo_boxes(y: Array, anchors: Any) -> tuple[Array, Array]:
    """Boxes in cells, and scores of classes."""
    n, h, w, c = y.shape
    places = y.reshape(n, h, w, len(anchors), c // len(anchors))
    boxes, scores = [], []
    for at in np.ndindex(places.shape[:4]):
        x1, y1, wide, high, confidence, *classes = places[at]
        _, row, col, k = at
        middle = np.array([col + 1 / (1 + exp(-x1)), row + 1 / (1 + exp(-y1))])
        half = np.array([exp(wide) * anchors[k][0], exp(high) * anchors[k][1]]) / 2
        boxes.append(np.concatenate([middle - half, middle + half]))
        shares = np.exp(np.array(classes) - max(classes))
        scores.append(shares / shares.sum() / (1 + exp(-confidence)))
    count = h * w * len(anchors)
    return np.array(boxes).reshape(n, count, 4), np.array(scores).reshape(n, count, -1)


def yolo_targets(
    y: Array,
    target: Array,
    anchors: Any,
    scales: tuple[float, ...] = (10, 10, 5, 100, 2),
    presence: float | None = None,
    absence: float | None = None,
    rescore: bool = True,
    epsilon: float = 1e-5,
) -> tuple[Array, Array]:
    """What each channel is compared with, and what it counts, of y's shape."""
    n, h, w, c = y.shape
    channels = c // len(anchors)
    made, weights = (np.zeros((n, h, w, len(anchors), channels)) for _ in range(2))
    xy, wh, no_object, has_object, of_class = scales
    for at in np.ndindex(n, h, w):
        label = target[at][:channels]
        raw = y[at].reshape(len(anchors), channels)
        shapes = [overlap(np.array([0, 0, *anchor]), np.array([0, 0, *label[2:4]]), "iou") for anchor in anchors]
        best = shapes.index(max(shapes))
        for k, anchor in enumerate(anchors):
            chosen = label[4] > 0 and (k == best or (presence is not None and shapes[k] >= presence))
            if not chosen:
                counted = absence is None or label[4] <= 0 or shapes[k] <= absence
                weights[at][k, 4] = no_object if counted else 0
                continue
            own = np.concatenate([label[:2] - label[2:4] / 2, label[:2] + label[2:4] / 2])
            middle, size = 1 / (1 + np.exp(-raw[k, :2])), np.exp(raw[k, 2:4]) * anchor
            seen = np.concatenate([middle - size / 2, middle + size / 2])
            stretched = [log(label[2 + i] / anchor[i] + epsilon) for i in (0, 1)]
            made[at][k] = [*label[:2], *stretched, overlap(seen, own, "iou") if rescore else 1, *label[5:]]
            weights[at][k] = [xy, xy, wh, wh, has_object, *[of_class] * (channels - 5)]
    return made.reshape(y.shape), weights.reshape(y.shape)


def yolo_elements(
    y: Array,
    made: Array,
    weights: Array,
    anchors: int,
    xy_loss: str = "mean_squared_error",
    wh_loss: str = "huber",
    class_loss: str = "softmax_cross_entropy",
    delta: float = 1.0,
) -> tuple[Array, Array]:
    """The loss of every element, and the derivative of their sum."""
    n, h, w, c = y.shape
    apart = n, h * w * anchors, c // anchors
    raw, t, weight = (a.reshape(apart) for a in (y, made, weights))
    value, slope = np.zeros(apart), np.zeros(apart)
    parts = (slice(0, 2), xy_loss), (slice(2, 4), wh_loss), (slice(4, 5), "sigmoid_cross_entropy")
    for channels, kind in (*parts, (slice(5, None), class_loss)):
        seen = raw[..., channels]
        shown = 1 / (1 + np.exp(-seen)) if channels.start == 0 else seen
        how: dict[str, Any] = {"weights": weight[..., channels]} | ({"delta": delta} if kind == "huber" else {})
        value[..., channels], _, derived = losses.loss(shown, t[..., channels], kind, "none", **how)
        slope[..., channels] = derived * (shown * (1 - shown) if channels.start == 0 else 1)
    return value.reshape(y.shape), slope.reshape(y.shape)
