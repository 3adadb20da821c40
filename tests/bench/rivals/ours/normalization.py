"""mpsfunc's normalizations."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import mlx.core as mx

import mpsfunc as mf

from ...problems import EPS, Problem
from .. import Call


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
    _evaluate_statistics(before)

    def call() -> list[mx.array]:
        dx, state = mf.instance_norm_grad(a.dy, a.x, before, a.gamma)
        return [dx, state.dgamma, state.dbeta]

    return call


def group_norm(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    return lambda: [mf.group_norm(a.x, p.groups, a.gamma, a.beta, eps=EPS, neuron=neuron)]


def group_norm_grad(p: Problem, a: SimpleNamespace, neuron: str | None = None) -> Call:
    _, before = mf.group_norm_fwd(a.x, p.groups, a.gamma, a.beta, eps=EPS)
    _evaluate_statistics(before)

    def call() -> list[mx.array]:
        dx, state = mf.group_norm_grad(a.dy, a.x, before, a.gamma, a.beta, neuron=neuron)
        return [dx, state.dgamma.sum(0), state.dbeta.sum(0)]  # the other libraries have no gradient for each image

    return call


group_norm_silu = partial(group_norm, neuron="silu")
group_norm_silu_grad = partial(group_norm_grad, neuron="silu")


def layer_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.layer_norm(a.x, a.gamma, a.beta, eps=EPS)]


def layer_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: list(mf.layer_norm_grad(a.dy, a.x, a.gamma, eps=EPS))


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


def _statistics(a: SimpleNamespace) -> mf.BatchNormState:
    state = mf.bn_stats(a.x, eps=EPS)
    _evaluate_statistics(state)
    return state


def _evaluate_statistics(state: mf.BatchNormState | mf.InstanceNormState | mf.GroupNormState) -> None:
    # Its gradients stay zeros yet to be made, as between the passes of a step: instance and group norm then add theirs
    # to nothing, as rivals do. Batch norm's kernel makes them at its first call, and adds to them at each.
    mx.eval(state.mean, state.var)
