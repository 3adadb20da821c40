"""mpsfunc."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx

import mpsfunc as mf

from ..problems import EPS, Problem
from . import Call


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


def bn_stats(p: Problem, a: SimpleNamespace) -> Call:
    def call() -> list[mx.array]:
        state = mf.bn_stats(a.x, eps=EPS)
        return [state.mean, state.var]

    return call


def bn_normalize(p: Problem, a: SimpleNamespace) -> Call:
    state = _statistics(a)
    return lambda: [mf.bn_normalize(a.x, state, a.gamma, a.beta)]


def bn_forward(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.bn_normalize(a.x, mf.bn_stats(a.x, eps=EPS), a.gamma, a.beta)]


def bn_stats_grad(p: Problem, a: SimpleNamespace) -> Call:
    before = _statistics(a)

    def call() -> list[mx.array]:
        state = mf.bn_stats_grad(a.dy, a.x, before, a.gamma, a.beta)
        return [state.dgamma, state.dbeta]

    return call


def bn_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.bn_stats_grad(a.dy, a.x, _statistics(a), a.gamma, a.beta)
    mx.eval(state.arrays)
    return lambda: [mf.bn_grad(a.dy, a.x, state, a.gamma, a.beta)]


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    before = _statistics(a)

    def call() -> list[mx.array]:
        state = mf.bn_stats_grad(a.dy, a.x, before, a.gamma, a.beta)
        return [mf.bn_grad(a.dy, a.x, state, a.gamma, a.beta), state.dgamma, state.dbeta]

    return call


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.conv(a.x, a.w, **_where(p))]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    state = _placement(p, a)
    return lambda: [mf.conv_grad_input(a.dy, a.w, state)]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    before = _placement(p, a)
    return lambda: [mf.conv_grad_weights(a.dy, a.x, before).dw]


def _statistics(a: SimpleNamespace) -> mf.BatchNormState:
    state = mf.bn_stats(a.x, eps=EPS)
    mx.eval(state.arrays)
    return state


def _where(p: Problem) -> dict[str, int]:
    return {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}


def _placement(p: Problem, a: SimpleNamespace) -> mf.ConvState:
    state = mf.conv_state(p.shape, a.w.shape, **_where(p))
    mx.eval(state.arrays)
    return state
