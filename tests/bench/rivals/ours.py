"""mpsfunc."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

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


def bn_normalize(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    state = _statistics(a)
    return lambda: [mf.bn_normalize(a.x, state, a.gamma, a.beta, neuron=neuron)]


def bn_forward(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    return lambda: [mf.bn_normalize(a.x, mf.bn_stats(a.x, eps=EPS), a.gamma, a.beta, neuron=neuron)]


def bn_stats_grad(p: Problem, a: SimpleNamespace) -> Call:
    before = _statistics(a)

    def call() -> list[mx.array]:
        state = mf.bn_stats_grad(a.dy, a.x, before, a.gamma, a.beta)
        return [state.dgamma, state.dbeta]

    return call


def bn_grad(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    state = mf.bn_stats_grad(a.dy, a.x, _statistics(a), a.gamma, a.beta, neuron=neuron)
    mx.eval(state.arrays)
    return lambda: [mf.bn_grad(a.dy, a.x, state, a.gamma, a.beta, neuron=neuron)]


def bn_backward(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    before = _statistics(a)

    def call() -> list[mx.array]:
        state = mf.bn_stats_grad(a.dy, a.x, before, a.gamma, a.beta, neuron=neuron)
        return [mf.bn_grad(a.dy, a.x, state, a.gamma, a.beta, neuron=neuron), state.dgamma, state.dbeta]

    return call


bn_relu_normalize = partial(bn_normalize, neuron="relu")
bn_relu_forward = partial(bn_forward, neuron="relu")
bn_relu_grad = partial(bn_grad, neuron="relu")
bn_relu_backward = partial(bn_backward, neuron="relu")


def instance_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.instance_norm(a.x, a.gamma, a.beta, eps=EPS)]


def instance_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, before = mf.instance_norm_fwd(a.x, a.gamma, a.beta, eps=EPS)
    mx.eval(before.arrays)

    def call() -> list[mx.array]:
        dx, state = mf.instance_norm_grad(a.dy, a.x, before, a.gamma)
        return [dx, state.dgamma, state.dbeta]

    return call


def group_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.group_norm(a.x, p.groups, a.gamma, a.beta, eps=EPS)]


def group_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, before = mf.group_norm_fwd(a.x, p.groups, a.gamma, a.beta, eps=EPS)
    mx.eval(before.arrays)

    def call() -> list[mx.array]:
        dx, state = mf.group_norm_grad(a.dy, a.x, before, a.gamma)
        return [dx, state.dgamma.sum(0), state.dbeta.sum(0)]  # the other libraries have no gradient for each image

    return call


def cross_channel_norm(p: Problem, a: SimpleNamespace) -> Call:
    given = p.window_parameters
    return lambda: [mf.cross_channel_norm(a.x, p.kernel_size, **given)]


def cross_channel_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.cross_channel_norm_fwd(a.x, p.kernel_size, **p.window_parameters)
    return lambda: [mf.cross_channel_norm_grad(a.dy, a.x, state)]


def spatial_norm(p: Problem, a: SimpleNamespace) -> Call:
    given = p.window_parameters
    return lambda: [mf.spatial_norm(a.x, p.kernel_size, **given)]


def spatial_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.spatial_norm_fwd(a.x, p.kernel_size, **p.window_parameters)
    return lambda: [mf.spatial_norm_grad(a.dy, a.x, state)]


def local_contrast_norm(p: Problem, a: SimpleNamespace) -> Call:
    given = p.window_parameters
    return lambda: [mf.local_contrast_norm(a.x, p.kernel_size, **given)]


def local_contrast_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.local_contrast_norm_fwd(a.x, p.kernel_size, **p.window_parameters)
    return lambda: [mf.local_contrast_norm_grad(a.dy, a.x, state)]


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.conv(a.x, a.w, **_windows(p))]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    state = _placement(p, a)
    return lambda: [mf.conv_grad_input(a.dy, a.w, state)]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    before = _placement(p, a)
    return lambda: [mf.conv_grad_weights(a.dy, a.x, before).dw]


def fully_connected(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.fully_connected(a.x, a.w)]


def fully_connected_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    state = _placement(p, a)
    return lambda: [mf.fully_connected_grad(a.dy, a.x, a.w, state, option="data")[0]]


def fully_connected_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    before = _placement(p, a)
    return lambda: [mf.fully_connected_grad(a.dy, a.x, a.w, before, option="weights_and_bias")[1].dw]


def _statistics(a: SimpleNamespace) -> mf.BatchNormState:
    state = mf.bn_stats(a.x, eps=EPS)
    mx.eval(state.arrays)
    return state


def _placement(p: Problem, a: SimpleNamespace) -> mf.ConvState:
    state = mf.conv_state(p.shape, a.w.shape, **_windows(p))
    mx.eval(state.arrays)
    return state


def _windows(p: Problem) -> dict[str, Any]:
    return {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
