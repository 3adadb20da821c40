"""PyTorch's pooling."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from ...problems import Problem
from .. import Call

aten = torch.ops.aten


def avg_pool(p: Problem, a: SimpleNamespace) -> Call:
    counted = p.edge_mode == "zero"
    return lambda: [F.avg_pool2d(a.x, p.kernel_size, p.stride, p.padding, count_include_pad=counted)]


def avg_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    counted = p.edge_mode == "zero"
    return lambda: [aten.avg_pool2d_backward(a.dy, a.x, size, stride, padding, False, counted, None)]


def max_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.max_pool2d(a.x, p.kernel_size, p.stride, p.padding)]


def max_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    _, winners = aten.max_pool2d_with_indices(a.x, size, stride, padding)
    ones = [1, 1]
    return lambda: [aten.max_pool2d_with_indices_backward(a.dy, a.x, size, stride, padding, ones, False, winners)]


def l2_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_l2(p, a.x)]


def l2_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    y, area = _l2(p, a.x), p.kernel_size**2

    def call() -> list[torch.Tensor]:
        return [aten.avg_pool2d_backward(a.dy / y, a.x, size, stride, padding, False, True, None).mul_(a.x).mul_(area)]

    return call


def _l2(p: Problem, x: torch.Tensor) -> torch.Tensor:
    """What ``lp_pool2d`` is made of, but for its absolute value and the padding that it lacks."""
    return F.avg_pool2d(x * x, p.kernel_size, p.stride, p.padding).mul_(p.kernel_size**2).sqrt_()


def _pairs(p: Problem) -> tuple[list[int], list[int], list[int]]:
    return [p.kernel_size] * 2, [p.stride] * 2, [p.padding] * 2
