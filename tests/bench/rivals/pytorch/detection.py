"""Detection in plain PyTorch, which has none of it but in torchvision; gradients are autograd's, forward pass included.

As torchvision writes overlaps, and suppression by a matrix of all overlaps, of which a loop reads the rows that are
kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.nn import functional

from ...problems import ANCHORS, OVERLAPPING, Problem
from .. import Call

_EPSILON = 1e-7
Tensors = tuple[torch.Tensor, torch.Tensor]


def box_iou(p: Problem, a: SimpleNamespace) -> Call:
    def call() -> list[torch.Tensor]:
        both, union = _areas(a.boxes, a.truth)
        wide, high = _around(a.boxes, a.truth)
        return [both / union - (wide * high - union) / (wide * high)]

    return call


def box_iou_pairs(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [torch.div(*_areas(a.boxes[:, None], a.truth))]


def box_iou_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_ciou_loss(a.boxes, a.truth)]


def box_iou_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_with_gradient(a.boxes, lambda boxes: _ciou_loss(boxes, a.truth))[1]]


def nms(p: Problem, a: SimpleNamespace) -> Call:
    def call() -> list[torch.Tensor]:
        order = a.scores.argsort(descending=True)
        boxes, count = a.boxes[order], len(order)
        suppresses = torch.div(*_areas(boxes[:, None], boxes)) > OVERLAPPING
        gone, kept = torch.zeros(count, dtype=torch.bool, device=boxes.device), []
        for i in range(count):
            if not gone[i]:
                kept.append(i)
                gone |= suppresses[i]
        indices = torch.full((count,), -1, device=boxes.device)
        indices[: len(kept)] = order[kept]
        return [indices, torch.tensor(len(kept))]

    return call


def yolo_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_yolo(a.x, a.cells)]


def yolo_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [*_with_gradient(a.x, lambda x: _yolo(x, a.cells))]


def yolo_boxes(p: Problem, a: SimpleNamespace) -> Call:
    def call() -> list[torch.Tensor]:
        y, (n, _, h, w) = _places(a.x), a.x.shape
        place = torch.arange(h * w, device=y.device)
        cell = torch.stack([place % w, place // w], dim=-1)[None, :, None]
        middle, half = y[..., :2].sigmoid() + cell, 0.5 * y[..., 2:4].exp() * _anchors(y)
        boxes = torch.cat([middle - half, middle + half], dim=-1)
        scores = y[..., 4:5].sigmoid() * y[..., 5:].softmax(-1)
        return [made.reshape(n, h * w * len(ANCHORS), -1).movedim(-1, 1) for made in (boxes, scores)]

    return call


def _with_gradient(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def _areas(a: torch.Tensor, b: torch.Tensor) -> Tensors:
    """Of the intersection and the union."""
    low, high = torch.max(a[..., :2], b[..., :2]), torch.min(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    return both, (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both


def _around(a: torch.Tensor, b: torch.Tensor) -> Tensors:
    """The sides of the smallest box around both."""
    wide, high = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).unbind(-1)
    return wide, high


def _ciou_loss(boxes: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    both, union = _areas(boxes, target)
    iou, (wide, high) = both / (union + _EPSILON), _around(boxes, target)
    apart = ((boxes[..., :2] + boxes[..., 2:] - target[..., :2] - target[..., 2:]) / 2).square().sum(-1)
    angles = [torch.atan(torch.div(*(box[..., 2:] - box[..., :2]).unbind(-1))) for box in (boxes, target)]
    turned = 4 / math.pi**2 * (angles[0] - angles[1]).square()
    with torch.no_grad():
        share = turned / (1 - iou + turned + _EPSILON)
    return (1 - iou + apart / (wide.square() + high.square() + _EPSILON) + share * turned).mean()


def _places(x: torch.Tensor) -> torch.Tensor:
    """(n, cells, anchors, channels) of (n, anchors * channels, h, w)."""
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).reshape(n, h * w, len(ANCHORS), c // len(ANCHORS))


def _anchors(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(ANCHORS, dtype=like.dtype, device=like.device)


def _yolo(x: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    y, anchors = _places(x), _anchors(x)
    label = cells.permute(0, 2, 3, 1).reshape(*y.shape[:2], 1, y.shape[-1])
    with torch.no_grad():
        size = label[..., 2:4]
        both = torch.min(size, anchors).prod(-1)
        alike = both / (size.prod(-1) + anchors.prod(-1) - both)
        chosen = functional.one_hot(alike.argmax(-1), len(ANCHORS)).bool() & (label[..., 4] > 0)
        half, middle = 0.5 * y[..., 2:4].exp() * anchors, y[..., :2].sigmoid()
        predicted = torch.cat([middle - half, middle + half], dim=-1)
        true = torch.cat([label[..., :2] - size / 2, label[..., :2] + size / 2], dim=-1)
        score = torch.where(chosen, torch.div(*_areas(predicted, true)), 0)
        stretched = torch.log(torch.where(chosen[..., None], size / anchors, 1) + 1e-5)
    places = 10 * (y[..., :2].sigmoid() - label[..., :2]).square().sum(-1)
    sizes = 10 * functional.huber_loss(y[..., 2:4], stretched, reduction="none").sum(-1)
    classes = -2 * (label[..., 5:] * y[..., 5:].log_softmax(-1)).sum(-1)
    confidence = functional.binary_cross_entropy_with_logits(y[..., 4], score, reduction="none")
    total = torch.where(chosen, places + sizes + classes + 100 * confidence, 5 * confidence)
    return total.sum((1, 2)).reshape(-1, 1, 1, 1)
