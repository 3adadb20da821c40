"""mpsfunc's activations, by name."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import mlx.core as mx

import mpsfunc as mf

from ...problems import Problem
from .. import Call


def _activation(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = getattr(mf, name)
    return lambda: [function(a.x)]


def _activation_grad(p: Problem, a: SimpleNamespace, name: str) -> Call:
    return lambda: [mf.neuron_grad(a.dy, a.x, name)]


def _by_vjp(p: Problem, a: SimpleNamespace, name: str) -> Call:
    function = getattr(mf, name)
    return lambda: mx.vjp(lambda x: [function(x)], [a.x], [a.dy])[1]


_NEURONS = (
    "sigmoid tanh softplus elu hard_swish mish gelu_tanh gelu_fast celu selu hard_tanh hard_shrink soft_shrink "
    "log_sigmoid relu2 relu6 step"
).split()
globals().update({name: partial(_activation, name=name) for name in (*_NEURONS, "glu", "softmin")})
globals().update({f"{name}_grad": partial(_activation_grad, name=name) for name in _NEURONS})
globals().update({f"{name}_grad": partial(_by_vjp, name=name) for name in ("glu", "softmin")})
