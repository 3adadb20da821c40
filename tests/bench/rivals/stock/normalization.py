"""Normalizations made of stock MLX's operations."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

from ...problems import EPS, Problem
from .. import Call


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


def bn_relu_normalize(p: Problem, a: SimpleNamespace) -> Call:
    before = bn_normalize(p, a)
    return lambda: [nn.relu(y) for y in before()]


def bn_relu_forward(p: Problem, a: SimpleNamespace) -> Call:
    before = bn_forward(p, a)
    return lambda: [nn.relu(y) for y in before()]


def bn_relu_backward(p: Problem, a: SimpleNamespace) -> Call:
    def forward(x: mx.array, gamma: mx.array, beta: mx.array) -> list[mx.array]:
        return [nn.relu(_normalized(x, *_moments(x), gamma, beta))]

    return lambda: mx.vjp(forward, [a.x, a.gamma, a.beta], [a.dy])[1]


def instance_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_by_image(a.x, a.gamma, a.beta)]


def instance_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    given = [mx.broadcast_to(v, (p.shape[0], 1, 1, p.shape[3])) for v in (a.gamma, a.beta)]
    rows = (p.shape[0], p.shape[3])

    def call() -> list[mx.array]:
        dx, *of_images = mx.vjp(lambda *args: [_by_image(*args)], [a.x, *given], [a.dy])[1]
        return [dx, *(v.reshape(rows) for v in of_images)]

    return call


def group_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_by_group(p, a.x, a.gamma, a.beta)]


def group_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda *args: [_by_group(p, *args)], [a.x, a.gamma, a.beta], [a.dy])[1]


def group_norm_silu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [nn.silu(_by_group(p, a.x, a.gamma, a.beta))]


def group_norm_silu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda *args: [nn.silu(_by_group(p, *args))], [a.x, a.gamma, a.beta], [a.dy])[1]


def layer_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mx.fast.layer_norm(a.x, a.gamma, a.beta, EPS)]


def layer_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda *args: [mx.fast.layer_norm(*args, EPS)], [a.x, a.gamma, a.beta], [a.dy])[1]


def cross_channel_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_by_squares(p, a.x, (3,))]


def cross_channel_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [_by_squares(p, x, (3,))], [a.x], [a.dy])[1]


def spatial_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_by_squares(p, a.x, (1, 2))]


def spatial_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [_by_squares(p, x, (1, 2))], [a.x], [a.dy])[1]


def local_contrast_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_contrast(p, a.x)]


def local_contrast_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [_contrast(p, x)], [a.x], [a.dy])[1]


def _moments(x: mx.array) -> tuple[mx.array, mx.array]:
    return mx.mean(x, (0, 1, 2)), mx.var(x, (0, 1, 2))


def _normalized(x: mx.array, mean: mx.array, var: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
    return ((x - mean) * mx.rsqrt(var + EPS) * gamma + beta).astype(x.dtype)


def _by_image(x: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
    mean, var = (f(x, (1, 2), keepdims=True) for f in (mx.mean, mx.var))
    return _normalized(x, mean, var, gamma, beta)


def _by_group(p: Problem, x: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
    n, h, w, channels = x.shape
    groups = x.reshape(n, h, w, p.groups, channels // p.groups)
    mean, var = (f(groups, (1, 2, 4), keepdims=True) for f in (mx.mean, mx.var))
    unit = ((groups - mean) * mx.rsqrt(var + EPS)).reshape(x.shape)
    return (unit * gamma + beta).astype(x.dtype)


def _by_squares(p: Problem, x: mx.array, axes: Sequence[int]) -> mx.array:
    given = p.window_parameters
    return x * (given["delta"] + given["alpha"] * _window_mean(x * x, axes, p.kernel_size)) ** -given["beta"]


def _contrast(p: Problem, x: mx.array) -> mx.array:
    given = p.window_parameters
    mean, square = (_window_mean(v, (1, 2), p.kernel_size) for v in (x, x * x))
    base = given["delta"] + given["alpha"] * (square - mean * mean)
    return given["pm"] + given["ps"] * (x - given["p0"] * mean) * base ** -given["beta"]


def _window_mean(x: mx.array, axes: Sequence[int], size: int) -> mx.array:
    """Shifted images added up, an axis after the other."""
    for axis in axes:
        padded = mx.pad(x, [(size // 2, (size - 1) // 2) if i == axis else (0, 0) for i in range(x.ndim)])
        before, length = (slice(None),) * axis, x.shape[axis]
        total = padded[(*before, slice(length))]
        for i in range(1, size):
            total = total + padded[(*before, slice(i, i + length))]
        x = total / size
    return x
