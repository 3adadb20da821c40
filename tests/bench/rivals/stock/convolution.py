"""Stock MLX's convolutions and products."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx

from ...problems import Problem
from .. import Call


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mx.conv2d(a.x, a.w, p.stride, p.padding, p.dilation, p.groups)]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [mx.conv2d(x, a.w, p.stride, p.padding, p.dilation, p.groups)], [a.x], [a.dy])[1]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    return widened(conv_grad_weights_vjp(p, a))


def conv_grad_weights_vjp(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda w: [mx.conv2d(a.x, w, p.stride, p.padding, p.dilation, p.groups)], [a.w], [a.dy])[1]


def widened(call: Call) -> Call:
    """The same results in float32, as states hold them."""
    return lambda: [dw.astype(mx.float32) for dw in call()]


def fully_connected(p: Problem, a: SimpleNamespace) -> Call:
    x, w = a.x.reshape(p.shape[0], -1), a.w.reshape(p.outs, -1)
    return lambda: [(x @ w.T)[:, None, None]]


def fully_connected_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    dy, w = a.dy.reshape(p.shape[0], -1), a.w.reshape(p.outs, -1)
    return lambda: [(dy @ w).reshape(a.x.shape)]


def fully_connected_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    dy, x = a.dy.reshape(p.shape[0], -1), a.x.reshape(p.shape[0], -1)
    return lambda: [(dy.T @ x).reshape(a.w.shape)]
