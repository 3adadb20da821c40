"""PyTorch's activations, by our names; those that it has no operator for are made of the fewest that there are."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from ...problems import Problem
from .. import Call
from .pointwise import _channels, aten

_FAST = 1.702  # of gelu_fast, x * sigmoid(1.702 x)
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805  # of selu


def sigmoid(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.sigmoid(a.x)]


def sigmoid_grad(p: Problem, a: SimpleNamespace) -> Call:
    y = aten.sigmoid(a.x)
    return lambda: [aten.sigmoid_backward(a.dy, y)]


def tanh(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.tanh(a.x)]


def tanh_grad(p: Problem, a: SimpleNamespace) -> Call:
    y = aten.tanh(a.x)
    return lambda: [aten.tanh_backward(a.dy, y)]


def softplus(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.softplus(a.x)]


def softplus_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.softplus_backward(a.dy, a.x, 1.0, 20.0)]


def elu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.elu(a.x)]


def elu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.elu_backward(a.dy, 1.0, 1.0, 1.0, False, a.x)]


def hard_swish(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardswish(a.x)]


def hard_swish_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardswish_backward(a.dy, a.x)]


def mish(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.mish(a.x)]


def mish_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.mish_backward(a.dy, a.x)]


def gelu_tanh(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.gelu(a.x, approximate="tanh")]


def gelu_tanh_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.gelu_backward(a.dy, a.x, approximate="tanh")]


def gelu_fast(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.silu_(a.x * _FAST).div_(_FAST)]


def gelu_fast_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.silu_backward(a.dy, a.x * _FAST)]


def celu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.celu(a.x, 1.0)]


def celu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.elu_backward(a.dy, 1.0, 1.0, 1.0, False, a.x)]


def selu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.selu(a.x)]


def selu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.elu_backward(a.dy, _ALPHA, _SCALE, 1.0, False, a.x)]


def hard_tanh(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardtanh(a.x, -1.0, 1.0)]


def hard_tanh_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardtanh_backward(a.dy, a.x, -1.0, 1.0)]


def relu6(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardtanh(a.x, 0.0, 6.0)]


def relu6_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardtanh_backward(a.dy, a.x, 0.0, 6.0)]


def hard_shrink(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardshrink(a.x, 0.5)]


def hard_shrink_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.hardshrink_backward(a.dy, a.x, 0.5)]


def soft_shrink(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.softshrink(a.x, 0.5)]


def soft_shrink_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.softshrink_backward(a.dy, a.x, 0.5)]


def log_sigmoid(p: Problem, a: SimpleNamespace) -> Call:
    x, _, images = _channels(a.x)  # in whose other layout the operator would copy them
    return lambda: [images(aten.log_sigmoid(x))]


def log_sigmoid_grad(p: Problem, a: SimpleNamespace) -> Call:
    (x, _, images), dy = _channels(a.x), _channels(a.dy)[0]
    _, kept = aten.log_sigmoid_forward(x)
    return lambda: [images(aten.log_sigmoid_backward(dy, x, kept))]


def relu2(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.relu(a.x).square()]


def relu2_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.relu(a.x).mul_(a.dy).mul_(2)]


def step(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [(a.x >= 0).to(a.x.dtype)]


def glu(p: Problem, a: SimpleNamespace) -> Call:
    x, axis, images = _channels(a.x)
    return lambda: [images(aten.glu(x, axis))]


def glu_grad(p: Problem, a: SimpleNamespace) -> Call:
    (x, axis, images), dy = _channels(a.x), _channels(a.dy)[0]
    return lambda: [images(aten.glu_backward(dy, x, axis))]


def softmin(p: Problem, a: SimpleNamespace) -> Call:
    x, axis, images = _channels(a.x)
    return lambda: [images(aten._softmax(-x, axis, False))]


def softmin_grad(p: Problem, a: SimpleNamespace) -> Call:
    """With the forward pass, which the gradient of ours, `mx.vjp`, has too."""
    (x, axis, images), dy = _channels(a.x), _channels(a.dy)[0]

    def call() -> list[torch.Tensor]:
        y = aten._softmax(-x, axis, False)
        return [images(aten._softmax_backward_data(dy, y, axis, y.dtype).neg_())]

    return call
