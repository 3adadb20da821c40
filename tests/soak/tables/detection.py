"""Rows of overlaps of boxes, their suppression, and the loss of a YOLO detector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.activations import sigmoid
from tests.soak.tables.case import Case, Rng, Row, array, dtype, family, numbers, numpy, of, pick, rounded

_KINDS = "iou", "giou", "diou", "ciou"
_WIDE = (mx.float32, mx.float64)


def _boxes(rng: Rng, count: int) -> np.ndarray:
    """Of sixteenths, at times one that has no area."""
    low = rng.integers(0, 48, (count, 2)) / 16
    return np.concatenate([low, low + rng.integers(-1 if rng.random() < 0.2 else 8, 32, (count, 2)) / 16], 1)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, a / np.where(b == 0, 1, b))


def _overlap(a: np.ndarray, b: np.ndarray, kind: str, epsilon: float = 0.0) -> np.ndarray:
    ends = [np.split(box, 2, -1) for box in (a, b)]
    sizes = [np.maximum(high - low, 0) for low, high in ends]
    common = np.minimum(ends[0][1], ends[1][1]) - np.maximum(ends[0][0], ends[1][0])
    both = np.maximum(common, 0).prod(-1) * (common > 0).all(-1)
    union = sizes[0].prod(-1) + sizes[1].prod(-1) - both
    iou = _ratio(both, union + epsilon)
    around = np.maximum(np.maximum(ends[0][1], ends[1][1]) - np.minimum(ends[0][0], ends[1][0]), 0)
    if kind == "iou":
        return iou
    if kind == "giou":
        return iou - _ratio(around.prod(-1) - union, around.prod(-1) + epsilon)
    apart = ((sum(ends[0]) - sum(ends[1])) / 2) ** 2
    far: np.ndarray = iou - _ratio(apart.sum(-1), (around**2).sum(-1) + epsilon)
    v = 4 / np.pi**2 * (np.arctan2(*np.moveaxis(sizes[0], -1, 0)) - np.arctan2(*np.moveaxis(sizes[1], -1, 0))) ** 2
    return far - _ratio(v * v, 1 - iou + v + epsilon) if kind == "ciou" else far


def _overlaps(rng: Rng) -> Case:
    kind, count, name = dtype(rng), int(rng.integers(0, 6)), str(pick(rng, *_KINDS))
    a, b = (rounded(_boxes(rng, count), kind) for _ in range(2))
    reduction, epsilon = str(pick(rng, "none", "sum", "mean")), float(pick(rng, 0.25, 2.0**-10))
    how: dict[str, Any] = {"reduction": reduction, "epsilon": epsilon, "exact": True}

    def lost(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        each = 1 - _overlap(a, b, name, epsilon)
        return each if reduction == "none" else np.asarray(each.sum() / (max(count, 1) if reduction == "mean" else 1))

    def pulled(dy: mx.array, a: mx.array, b: mx.array) -> dict[int, mx.array]:
        gradient = of.box_iou_loss_grad(a, b, name, **how)
        by = dy[..., None] if reduction == "none" else dy
        return {0: gradient * by.astype(gradient.dtype)} if kind in _WIDE else {}

    def more(a: mx.array, b: mx.array) -> Iterator[str]:
        made, right = of.box_iou(a[:, None], b, name), _overlap(numpy(a)[:, None], numpy(b), name)
        # The result is rounded to the boxes' dtype, and differences of areas lose digits of the accumulator.
        if not np.allclose(numpy(made), right, rtol=1e-2 if kind == mx.bfloat16 else 1e-3, atol=1e-5):
            yield f"box_iou of all pairs is {numpy(made).tolist()}, expected {right.tolist()}"

    return Case(f"{name} {how}", [a, b], kind, lambda a, b: of.box_iou_loss(a, b, name, **how), lost,
        lambda *_: np.asarray(1e3 * max(count, 1)), terms=64, moving=(0, 1), pulled=pulled, more=more)  # fmt: skip


_THRESHOLDS = 0.1 * np.pi, 0.05 * np.pi, 0.2 * np.e  # which no ratio of sixteenths is


def _suppressed(rng: Rng) -> Case:
    kind, count = dtype(rng), int(rng.integers(1, 90))
    boxes, scores = _boxes(rng, count), rng.integers(0, 33, count) / 32
    scores[rng.random(count) < 0.1] = -np.inf
    threshold, classes = float(pick(rng, *_THRESHOLDS)), rng.integers(0, 3, count)
    most, apart = int(rng.integers(0, count + 3)), bool(rng.integers(2))
    how: dict[str, Any] = {"max_outputs": most} | ({"classes": mx.array(classes)} if apart else {})

    def kept(boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        found: list[int] = []
        for i in np.argsort(-scores, kind="stable"):
            rivals = [j for j in found if not apart or classes[i] == classes[j]]
            worse = _overlap(boxes[i], boxes[rivals], "iou").max(initial=0) > threshold
            found += [] if worse or scores[i] == -np.inf else [int(i)]
        length = min(most, count)
        return np.array([*found, *[-1] * count][: min(len(found), length)] + [-1] * max(length - len(found), 0), float)

    return Case(f"{threshold} {how}", [boxes, scores], kind, lambda b, s: of.nms(b, s, threshold, **how)[0], kept,
        moving=(), exact=True)  # fmt: skip


def _detector(rng: Rng) -> Case:
    kind, classes, count = dtype(rng), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    n, h, w = (int(v) for v in rng.integers(1, 4, 3))
    channels = 5 + classes
    y = rounded(np.clip(numbers(rng, (n, h, w, count * channels), kind), -6, 6), kind)
    anchors = [tuple(rng.integers(2, 13, 2) / 4) for _ in range(count)]
    label = rng.integers(1, 32, (n, h, w, channels)) / 16
    label[..., 4] = rng.random((n, h, w)) < 0.6
    label[..., 5:] = np.eye(classes)[rng.integers(0, classes, (n, h, w))]
    reduction, rescore = str(pick(rng, "none", "sum", "mean")), bool(rng.integers(2))
    how: dict[str, Any] = {"rescore": rescore, "scale_object": float(pick(rng, 100, 3)), "scale_class": 4.0}
    given = array(label, mx.float64 if kind == mx.float64 else mx.float32)

    def elements(y: np.ndarray) -> np.ndarray:
        raw, sizes = y.reshape(n, h, w, count, channels), np.array(anchors)
        own = label[..., None, :]
        common = np.minimum(own[..., 2:4], sizes).prod(-1)
        alike = common / (own[..., 2:4].prod(-1) + sizes.prod(-1) - common)
        responsible = (np.arange(count) == alike.argmax(-1)[..., None]) & (own[..., 4] > 0)
        middle, half = sigmoid(raw[..., :2]), np.exp(raw[..., 2:4]) * sizes / 2
        seen = np.concatenate([middle - half, middle + half], -1)
        truth = np.concatenate([own[..., :2] - own[..., 2:4] / 2, own[..., :2] + own[..., 2:4] / 2], -1)
        score = responsible * (_overlap(seen, truth, "iou") if rescore else 1)
        off = np.abs(raw[..., 2:4] - np.log(own[..., 2:4] / sizes + 1e-5))
        logit, z = raw[..., 4], raw[..., 5:] - raw[..., 5:].max(-1, keepdims=True)
        logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
        entropy = np.maximum(logit, 0) - logit * score + np.log1p(np.exp(-np.abs(logit)))
        made = np.concatenate([
            10 * responsible[..., None] * (middle - own[..., :2]) ** 2,
            10 * responsible[..., None] * np.where(off <= 1, off**2 / 2, off - 0.5),
            (np.where(responsible, how["scale_object"], 5) * entropy)[..., None],
            -how["scale_class"] * responsible[..., None] * own[..., 5:] * logs,
        ], -1)  # fmt: skip
        return made.reshape(y.shape)

    def result(y: np.ndarray) -> np.ndarray:
        each = elements(y)
        if reduction == "none":
            return each
        made: np.ndarray = each.sum((1, 2, 3), keepdims=True) / (each[0].size if reduction == "mean" else 1)
        return made

    def size(y: np.ndarray) -> np.ndarray:
        return 8 * (result(y) + how["scale_object"] * 8 * (1 if reduction == "none" else h * w * count))

    def pulled(dy: mx.array, y: mx.array) -> dict[int, mx.array]:
        state = of.yolo_loss_fwd(y, given, anchors, reduction, **how)[1]
        gradient = of.yolo_loss_grad(y, state, divided=True)
        return {0: gradient * dy.astype(gradient.dtype)} if reduction != "none" and kind in _WIDE else {}

    def more(y: mx.array) -> Iterator[str]:
        boxes, scores = (numpy(a) for a in of.yolo_boxes(y, anchors))
        raw = numpy(y).reshape(n, h, w, count, channels)
        rows, cols = np.meshgrid(np.arange(h), np.arange(w), indexing="ij")
        middle = sigmoid(raw[..., :2]) + np.stack([cols, rows], -1)[..., None, :]
        right = np.concatenate([middle + s * np.exp(raw[..., 2:4]) * np.array(anchors) / 2 for s in (-1, 1)], -1)
        shares = np.exp(raw[..., 5:]) / np.exp(raw[..., 5:]).sum(-1, keepdims=True) * sigmoid(raw[..., 4:5])
        for got, want in ((boxes, right), (scores, shares)):
            if not np.allclose(got.ravel(), want.ravel(), rtol=1e-4, atol=1e-4):
                yield "yolo_boxes are others"

    return Case(f"{anchors} of {label.tolist()}, {reduction} {how}", [y], kind,
        lambda y: of.yolo_loss(y, given, anchors, reduction, **how), result, size, terms=64,
        moving=() if rescore else (0,), pulled=None if rescore else pulled, more=more,
        first=lambda y: of.yolo_loss_fwd(y, given, anchors, reduction, **how)[0])  # fmt: skip


ROWS = {
    "box_iou": Row(("box_iou", *family("box_iou_loss", "grad")), _overlaps),
    "nms": Row(("nms",), _suppressed),
    "yolo_loss": Row(("yolo_boxes", *family("yolo_loss", "fwd", "grad")), _detector),
}
