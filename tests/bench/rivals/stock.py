"""Stock MLX: the operations of ``mlx.nn`` and what ``mx.vjp`` makes of them."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

from ..problems import EPS, Problem
from . import Call


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


def bn_stats(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: list(_moments(a.x))


def bn_normalize(p: Problem, a: SimpleNamespace) -> Call:
    mean, var = _moments(a.x)
    mx.eval(mean, var)
    return lambda: [_normalized(a.x, mean, var, a.gamma, a.beta)]


def bn_forward(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_normalized(a.x, *_moments(a.x), a.gamma, a.beta)]


def bn_stats_grad(p: Problem, a: SimpleNamespace) -> Call:
    mean, var = _moments(a.x)
    root = mx.rsqrt(var + EPS)
    mx.eval(mean, root)
    return lambda: [(a.dy * (a.x - mean)).sum((0, 1, 2)) * root, a.dy.sum((0, 1, 2))]


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    def forward(x: mx.array, gamma: mx.array, beta: mx.array) -> list[mx.array]:
        return [_normalized(x, *_moments(x), gamma, beta)]

    return lambda: mx.vjp(forward, [a.x, a.gamma, a.beta], [a.dy])[1]


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_convolved(p, a.x, a.w)]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [_convolved(p, x, a.w)], [a.x], [a.dy])[1]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda w: [_convolved(p, a.x, w)], [a.w], [a.dy])[1]


def _convolved(p: Problem, x: mx.array, w: mx.array) -> mx.array:
    return mx.conv2d(x, w, p.stride, p.padding, p.dilation, p.groups)


def _moments(x: mx.array) -> tuple[mx.array, mx.array]:
    return mx.mean(x, (0, 1, 2)), mx.var(x, (0, 1, 2))


def _normalized(x: mx.array, mean: mx.array, var: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
    return ((x - mean) * mx.rsqrt(var + EPS) * gamma + beta).astype(x.dtype)
