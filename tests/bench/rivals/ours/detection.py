"""mpsfunc's detection: overlaps of boxes and their losses, suppression, and the YOLO loss."""

from __future__ import annotations

from types import SimpleNamespace

import mpsfunc as mf

from ...problems import ANCHORS, OVERLAPPING, Problem
from .. import Call


def box_iou(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.box_iou(a.boxes, a.truth, "giou")]


def box_iou_pairs(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.box_iou(a.boxes[:, None], a.truth)]


def box_iou_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.box_iou_loss(a.boxes, a.truth, "ciou", "mean")]


def box_iou_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.box_iou_loss_grad(a.boxes, a.truth, "ciou", "mean")]


def nms(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [*mf.nms(a.boxes, a.scores, OVERLAPPING)]


def yolo_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.yolo_loss(a.x, a.cells, ANCHORS)]


def yolo_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    """The value and its gradient, as a training step needs them."""

    def call() -> list[object]:
        value, state = mf.yolo_loss_fwd(a.x, a.cells, ANCHORS)
        return [value, mf.yolo_loss_grad(a.x, state)]

    return call


def yolo_boxes(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [*mf.yolo_boxes(a.x, ANCHORS)]
