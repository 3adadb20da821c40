"""The activations' part of generic/test_bad_input.py: calls that are wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from support import numbers

import mpsfunc as mf

X, W = numbers((2, 6, 5, 4)), numbers((6, 3, 3, 4))
DY, WHOLE = mx.ones((2, 4, 3, 6)), mx.ones((3, 6, 5, 4))
FLAT = mx.ones(4)
NAN, INF = float("nan"), float("inf")
NORM = mf.bn_frozen(mx.zeros(4), mx.ones(4))
_, GELU = mf.conv_fwd(X, W, neuron="gelu")
_, SIGMOID = mf.conv_fwd(X, W, neuron="sigmoid")
_, PRELU = mf.conv_fwd(X, W, neuron=mf.Neuron("prelu", mx.ones(6)))


def _gradient(state: mf.ConvState, **fields: Any) -> Callable[[], Any]:
    return lambda: mf.conv_grad_input(DY, W, state._replace(**fields))


WRONG_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("neuron: unknown neuron", lambda: mf.neuron(X, "swish")),
    ("neuron_grad: unknown neuron", lambda: mf.neuron_grad(X, X, "")),
    ("neuron: sigmoid has no parameter a", lambda: mf.neuron(X, "sigmoid", 1.0)),
    ("neuron: relu has no parameter b", lambda: mf.neuron(X, "relu", 0.1, 6.0)),
    ("neuron: relun has no parameter c", lambda: mf.neuron(X, "relun", c=0)),
    ("neuron: none has no parameter a", lambda: mf.neuron(X, "none", 1.0)),
    ("neuron: a is out of range", lambda: mf.neuron(X, "relu", INF)),
    ("relu: a is out of range", lambda: mf.relu(X, NAN)),
    ("tanh: b is out of range", lambda: mf.tanh(X, 1.0, 1e300)),
    ("exponential: c is no base", lambda: mf.exponential(X, c=0.0)),
    ("exponential: c is no base", lambda: mf.exponential(X, c=-2.0)),
    ("logarithm: c is no base", lambda: mf.logarithm(X, c=1.0)),
    ("logarithm: c is no base", lambda: mf.logarithm(X, c=-0.5)),
    ("neuron_grad: c is no base", lambda: mf.neuron_grad(X, X, "logarithm", c=0)),
    ("neuron_grad: dy does not belong to x", lambda: mf.neuron_grad(X[:1], X, "relu")),
    ("neuron: x has no channels", lambda: mf.neuron(mx.array(1.0), "prelu", FLAT)),
    ("prelu: x has no channels", lambda: mf.prelu(mx.array(1.0), mx.ones(1))),
    ("prelu: the slopes do not fit the channels", lambda: mf.prelu(X, mx.ones(1))),
    ("prelu: the slopes do not fit the channels", lambda: mf.prelu(X, mx.ones((1, 4)))),
    ("prelu_grad: the slopes do not fit the channels", lambda: mf.prelu_grad(X, X, mx.ones(5))),
    ("prelu_grad: dy does not belong to x", lambda: mf.prelu_grad(X[:, 1:], X, FLAT)),
    ("neuron: the slopes do not fit the channels", lambda: mf.neuron(X, "prelu", mx.ones(3))),
    ("neuron: prelu has no parameter b", lambda: mf.neuron(X, "prelu", FLAT, 1.0)),
    ("conv: unknown neuron", lambda: mf.conv(X, W, neuron=mf.Neuron("swish"))),
    ("conv: gelu has no parameter a", lambda: mf.conv(X, W, neuron=mf.Neuron("gelu", 1.0))),
    ("conv: c is no base", lambda: mf.conv(X, W, neuron=mf.Neuron("exponential", c=0.0))),
    ("conv: the slopes do not fit the channels", lambda: mf.conv(X, W, neuron=mf.Neuron("prelu", FLAT))),
    ("conv_transpose: unknown neuron", lambda: mf.conv_transpose(X, W, neuron=mf.Neuron("swish"))),
    ("fully_connected: a is out of range", lambda: mf.fully_connected(X, WHOLE, neuron=mf.Neuron("elu", NAN))),
    ("batch_norm: the slopes do not fit the channels", lambda: mf.batch_norm(X, neuron=mf.Neuron("prelu", mx.ones(3)))),
    ("bn_grad: softsign has no parameter b", lambda: mf.bn_grad(X, X, NORM, neuron=mf.Neuron("softsign", b=2.0))),
    ("conv_grad_input: unknown neuron", _gradient(GELU, neuron="swish")),
    ("conv_grad_input: state.a is out of range", _gradient(GELU, a=NAN)),
    ("conv_grad_input: c is no base", _gradient(GELU, neuron="logarithm", a=1.0, c=0.0)),
    ("conv_grad_input: dy does not belong to this state", _gradient(GELU, y=GELU.y[:1])),
    ("conv_grad_input: dy does not belong to this state", _gradient(SIGMOID, y=SIGMOID.y[:, 1:])),
    ("conv_grad_input: the slopes do not fit the channels", _gradient(PRELU, slopes=mx.ones(5))),
    ("conv_grad_input: the slopes do not fit the channels", _gradient(GELU, neuron="prelu")),
]  # fmt: skip
WRONG_TYPES: list[tuple[str, Callable[[], Any]]] = [
    ("neuron: x is not an array", lambda: mf.neuron([1.0], "relu")),
    ("neuron: x has no floating dtype", lambda: mf.neuron(mx.arange(3), "relu")),
    ("relu: x has no floating dtype", lambda: mf.relu(mx.arange(3))),
    ("gelu: x is not an array", lambda: mf.gelu(1.0)),
    ("neuron: type is not a name", lambda: mf.neuron(X, 1)),
    ("neuron: type is not a name", lambda: mf.neuron(X, mf.Neuron("relu"))),
    ("neuron: a is not a number", lambda: mf.neuron(X, "relu", mx.array(0.1))),
    ("elu: a is not a number", lambda: mf.elu(X, "1")),
    ("linear: b is not a number", lambda: mf.linear(X, 1.0, True)),
    ("neuron_grad: dy is not an array", lambda: mf.neuron_grad(1.0, X, "relu")),
    ("neuron_grad: dy and x differ in dtype", lambda: mf.neuron_grad(X.astype(mx.float16), X, "relu")),
    ("neuron: the slopes of prelu are not an array", lambda: mf.neuron(X, "prelu")),
    ("neuron: the slopes of prelu are not an array", lambda: mf.neuron(X, "prelu", 0.25)),
    ("prelu: the slopes of prelu are not an array", lambda: mf.prelu(X, 0.25)),
    ("prelu: slopes has no floating dtype", lambda: mf.prelu(X, mx.arange(4))),
    ("prelu_grad: dy and x differ in dtype", lambda: mf.prelu_grad(X.astype(mx.float16), X, FLAT)),
    ("conv: neuron is no activation", lambda: mf.conv(X, W, neuron=1)),
    ("conv: neuron is no activation", lambda: mf.conv(X, W, neuron=("relu", 0.1, None, None))),
    ("conv: neuron.type is not a name", lambda: mf.conv(X, W, neuron=mf.Neuron(None))),
    ("conv: the slopes of prelu are not an array", lambda: mf.conv(X, W, neuron="prelu")),
    ("batch_norm: a is not a number", lambda: mf.batch_norm(X, neuron=mf.Neuron("tanh", "2"))),
    ("conv_grad_input: state.neuron is not a name", _gradient(GELU, neuron=15)),
    ("conv_grad_input: state.b is not a number", _gradient(GELU, b=None)),
    ("conv_grad_input: dy and state.y differ in dtype", _gradient(GELU, y=GELU.y.astype(mx.float16))),
    ("conv_grad_input: a has no floating dtype", _gradient(PRELU, slopes=mx.ones(6, mx.int32))),
]


_NAMED = (
    "relu", "linear", "sigmoid", "hard_sigmoid", "tanh", "absolute", "softplus", "softsign", "elu", "relun", "power",
    "exponential", "logarithm", "gelu",
)  # fmt: skip
# Arrays of any shape, so not among the functions that take images.
POINTWISE: dict[str, Callable[[Any], Any]] = {
    "neuron": lambda x: mf.neuron(x, "gelu"),
    "neuron_grad": lambda x: mf.neuron_grad(x, x, "gelu"),
    "prelu": lambda x: mf.prelu(x, FLAT),
    "prelu_grad": lambda x: mf.prelu_grad(x, x, FLAT),
    **{name: getattr(mf, name) for name in _NAMED},
}
