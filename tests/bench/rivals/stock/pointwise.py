"""Stock MLX's activations, softmax, dropout, upsampling and cross-entropy, of ``mlx.nn`` where it has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

from ...problems import KEEP, Problem
from .. import Call

Function = Callable[[mx.array], mx.array]


def relu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [nn.relu(a.x)]


def relu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(nn.relu, a)


def gelu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [nn.gelu(a.x)]


def silu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [nn.silu(a.x)]


def silu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(nn.silu, a)


def gelu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(nn.gelu, a)


def softmax(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [nn.softmax(a.x)]


def softmax_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(nn.softmax, a)


def log_softmax(p: Problem, a: SimpleNamespace) -> Call | None:
    return None if _of_one(p) else lambda: [nn.log_softmax(a.x)]


def log_softmax_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    return None if _of_one(p) else _pulled_back(nn.log_softmax, a)


def _of_one(p: Problem) -> bool:
    """Whether there is one channel, of which MLX's logsumexp may end the process."""
    return p.shape[-1] == 1


def dropout(p: Problem, a: SimpleNamespace) -> Call:
    layer = nn.Dropout(1 - KEEP)
    return lambda: [layer(a.x)]


def dropout_grad(p: Problem, a: SimpleNamespace) -> Call:
    """With the mask of a forward pass, as the other libraries have it."""
    mask = mx.random.bernoulli(KEEP, a.x.shape)
    y = _masked(a.x, mask)
    mx.eval(mask, y)
    return lambda: [_masked(a.dy, mask), y]


def dropout_masked(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_masked(a.x, a.mask)]


def dropout_masked_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_masked(a.dy, a.mask)]


def upsample_bilinear(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_bilinear(p, a.x)]


def upsample_bilinear_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(partial(_bilinear, p), a)


def resize_bicubic(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_bicubic(p, a.x)]


def resize_bicubic_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(partial(_bicubic, p), a)


def upsample_nearest(p: Problem, a: SimpleNamespace) -> Call:
    layer = nn.Upsample(p.scale, mode="nearest")
    return lambda: [layer(a.x)]


def upsample_nearest_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _pulled_back(nn.Upsample(p.scale, mode="nearest"), a)


def cross_entropy(p: Problem, a: SimpleNamespace) -> Call | None:
    return None if _of_one(p) else _loss(a.x, a.labels)


def cross_entropy_dense(p: Problem, a: SimpleNamespace) -> Call:
    return _loss(a.x, a.targets)


def add(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x + a.other]


def multiply(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x * a.other]


def multiply_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.dy * a.other]


def multiply_channels(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x * a.factors]


def multiply_channels_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [(a.dy * a.x).sum((0, 1, 2), keepdims=True)]


def _pulled_back(function: Function, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda x: [function(x)], [a.x], [a.dy])[1]


def _masked(x: mx.array, mask: mx.array) -> mx.array:
    return mask * x * (1 / KEEP)


def _bilinear(p: Problem, x: mx.array) -> mx.array:
    return nn.Upsample(p.scale, mode="linear")(x).astype(x.dtype)


def _bicubic(p: Problem, x: mx.array) -> mx.array:
    return nn.Upsample(p.scale, mode="cubic")(x).astype(x.dtype)


def _loss(logits: mx.array, labels: mx.array) -> Call:
    ones = mx.ones((len(logits), 1), logits.dtype)

    def forward(x: mx.array) -> list[mx.array]:
        return [nn.losses.cross_entropy(x, labels)[:, None]]

    def call() -> list[mx.array]:
        (value,), (gradient,) = mx.vjp(forward, [logits], [ones])
        return [value, gradient]

    return call
