"""mpsfunc's functions of sequences (n, l, c), whose gradients are `mx.vjp`'s."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

import mpsfunc as mf

from ...problems import EPS, Problem
from .. import Call

Function = Callable[..., mx.array]


def _convolution(p: Problem, name: str) -> Function:
    return partial(getattr(mf, name), stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups)


def _conv(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = _convolution(p, name)
    return lambda: [function(a.x, a.w)]


def _conv_grad_input(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = _convolution(p, name)
    return lambda: mx.vjp(lambda x: [function(x, a.w)], [a.x], [a.dy])[1]


def _conv_grad_weights(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = _convolution(p, name)
    return lambda: mx.vjp(lambda w: [function(a.x, w)], [a.w], [a.dy])[1]


def _pooling(p: Problem, name: str) -> Function:
    function: Any = getattr(mf, name)
    return lambda x: function(x, p.kernel_size, stride=p.stride, padding=p.padding)


def _pool(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = _pooling(p, name)
    return lambda: [function(a.x)]


def _pool_both(p: Problem, a: SimpleNamespace, name: str) -> Call:
    return _both(_pooling(p, name), [a.x], a.dy)


def avg_pool1d_grad(p: Problem, a: SimpleNamespace) -> Call:
    function = _pooling(p, "avg_pool1d")
    return lambda: mx.vjp(lambda x: [function(x)], [a.x], [a.dy])[1]


def _norming(p: Problem, name: str) -> Function:
    function: Any = getattr(mf, name)
    groups = (p.groups,) if name == "group_norm1d" else ()
    return lambda x, gamma, beta: function(x, *groups, gamma, beta, eps=EPS)


def _norm(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = _norming(p, name)
    return lambda: [function(a.x, a.gamma, a.beta)]


def _norm_both(p: Problem, a: SimpleNamespace, name: str) -> Call:
    return _both(_norming(p, name), [a.x, a.gamma, a.beta], a.dy)


def _both(function: Function, given: list[mx.array], dy: mx.array) -> Call:
    """The result and its gradients, for which it is needed."""

    def call() -> list[mx.array]:
        made, gradients = mx.vjp(lambda *each: [function(*each)], given, [dy])
        return [*made, *gradients]

    return call


conv1d, conv1d_grad_input, conv1d_grad_weights = (
    partial(each, name="conv1d") for each in (_conv, _conv_grad_input, _conv_grad_weights)
)
conv_transpose1d, conv_transpose1d_grad_input, conv_transpose1d_grad_weights = (
    partial(each, name="conv_transpose1d") for each in (_conv, _conv_grad_input, _conv_grad_weights)
)
avg_pool1d, max_pool1d, l2_pool1d = (partial(_pool, name=f"{kind}_pool1d") for kind in ("avg", "max", "l2"))
max_pool1d_grad, l2_pool1d_grad = (partial(_pool_both, name=f"{kind}_pool1d") for kind in ("max", "l2"))
batch_norm1d, instance_norm1d, group_norm1d = (
    partial(_norm, name=f"{kind}_norm1d") for kind in ("batch", "instance", "group")
)
batch_norm1d_grad, instance_norm1d_grad, group_norm1d_grad = (
    partial(_norm_both, name=f"{kind}_norm1d") for kind in ("batch", "instance", "group")
)
