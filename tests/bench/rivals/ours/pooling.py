"""mpsfunc's pooling."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx

import mpsfunc as mf

from ...problems import Problem
from .. import Call


def avg_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.avg_pool(a.x, p.kernel_size, stride=p.stride, padding=p.padding, edge_mode=p.edge_mode)]


def avg_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.avg_pool_state(p.shape, p.kernel_size, stride=p.stride, padding=p.padding, edge_mode=p.edge_mode)
    return lambda: [mf.avg_pool_grad(a.dy, state)]


def max_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.max_pool(a.x, p.kernel_size, stride=p.stride, padding=p.padding, edge_mode="exclude")]


def max_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.max_pool_fwd(a.x, p.kernel_size, stride=p.stride, padding=p.padding, edge_mode="exclude")
    mx.eval(state.arrays)
    return lambda: [mf.max_pool_grad(a.dy, state)]


def l2_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.l2_pool(a.x, p.kernel_size, stride=p.stride, padding=p.padding)]


def l2_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.l2_pool_fwd(a.x, p.kernel_size, stride=p.stride, padding=p.padding)
    mx.eval(state.arrays)
    return lambda: [mf.l2_pool_grad(a.dy, a.x, state)]
