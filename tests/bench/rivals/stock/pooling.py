"""Stock MLX's pooling, of ``mlx.nn``."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

from ...problems import Problem
from .. import Call


def avg_pool(p: Problem, a: SimpleNamespace) -> Call | None:
    if p.edge_mode != "zero" and p.padding:
        return None
    pool = nn.AvgPool2d(p.kernel_size, p.stride, p.padding)
    return lambda: [pool(a.x)]


def avg_pool_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    if p.edge_mode != "zero" and p.padding:
        return None
    pool = nn.AvgPool2d(p.kernel_size, p.stride, p.padding)
    return lambda: mx.vjp(lambda x: [pool(x)], [a.x], [a.dy])[1]


def max_pool(p: Problem, a: SimpleNamespace) -> Call:
    pool = nn.MaxPool2d(p.kernel_size, p.stride, p.padding)
    return lambda: [pool(a.x)]


def max_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    pool = nn.MaxPool2d(p.kernel_size, p.stride, p.padding)
    return lambda: mx.vjp(lambda x: [pool(x)], [a.x], [a.dy])[1]
