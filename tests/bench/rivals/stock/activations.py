"""Stock MLX's activations, by our names."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

from ...problems import Problem
from .. import Call
from .pointwise import Function


def _activation(p: Problem, a: SimpleNamespace, function: Function) -> Call:
    return lambda: [function(a.x)]


def _activation_grad(p: Problem, a: SimpleNamespace, function: Function) -> Call:
    return lambda: mx.vjp(lambda x: [function(x)], [a.x], [a.dy])[1]


_FUNCTIONS: dict[str, Function] = {
    "sigmoid": nn.sigmoid, "tanh": nn.tanh, "softplus": nn.softplus, "elu": nn.elu,
    "hard_swish": nn.hardswish, "mish": nn.mish, "gelu_tanh": nn.gelu_approx, "gelu_fast": nn.gelu_fast_approx,
    "celu": nn.celu, "selu": nn.selu, "hard_tanh": nn.hard_tanh, "hard_shrink": nn.hard_shrink,
    "soft_shrink": nn.softshrink, "log_sigmoid": nn.log_sigmoid, "relu2": nn.relu2, "relu6": nn.relu6, "step": nn.step,
    "glu": nn.glu, "softmin": nn.softmin,
}  # fmt: skip
globals().update({name: partial(_activation, function=each) for name, each in _FUNCTIONS.items()})
globals().update({f"{name}_grad": partial(_activation_grad, function=each) for name, each in _FUNCTIONS.items()})
