"""The activations' part of the matrix of transformations: each by itself, and fused into convolutions and norms."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support.matrix.entry import Arrays, Entry, entry

SHAPE, C = (3, 5, 4), (4,)
# A type, its parameters, and whether it wants what is more than 0.
KINDS: dict[str, tuple[mf.Neuron, bool]] = {
    "relu": (mf.Neuron("relu"), False),
    "relu with a slope": (mf.Neuron("relu", 0.3), False),
    "relu with a slope below 0": (mf.Neuron("relu", -0.3), False),
    "linear": (mf.Neuron("linear", -0.7, 0.4), False),
    "sigmoid": (mf.Neuron("sigmoid"), False),
    "hard_sigmoid": (mf.Neuron("hard_sigmoid", 0.4, 0.3), False),
    "tanh": (mf.Neuron("tanh", -1.3, 0.7), False),
    "absolute": (mf.Neuron("absolute"), False),
    "softplus": (mf.Neuron("softplus", 0.8, -1.4), False),
    "softsign": (mf.Neuron("softsign"), False),
    "elu": (mf.Neuron("elu", 0.6), False),
    "elu with a below 0": (mf.Neuron("elu", -0.6), False),
    "relun": (mf.Neuron("relun", 0.4, 0.8), False),
    "power": (mf.Neuron("power", 0.7, 0.4, 1.7), True),
    "power with a whole exponent": (mf.Neuron("power", 0.7, 0.4, 3), False),
    "power with a negative exponent": (mf.Neuron("power", 0.7, 0.9, -2), True),
    "exponential": (mf.Neuron("exponential", 0.6, 0.2), False),
    "exponential to base 2": (mf.Neuron("exponential", 0.6, 0.2, 2), False),
    "logarithm": (mf.Neuron("logarithm", 0.6, 0.9), True),
    "logarithm to base 3": (mf.Neuron("logarithm", 0.6, 0.9, 3), True),
    "gelu": (mf.Neuron("gelu"), False),
}
NAMED: dict[str, Any] = {
    "relu": lambda x: mf.relu(x, 0.2),
    "linear": lambda x: mf.linear(x, 0.5, 0.2),
    "sigmoid": lambda x: mf.sigmoid(x),
    "hard_sigmoid": lambda x: mf.hard_sigmoid(x, 0.3),
    "tanh": lambda x: mf.tanh(x, 1.2, 0.8),
    "absolute": lambda x: mf.absolute(x),
    "softplus": lambda x: mf.softplus(x, 1.2, 0.8),
    "softsign": lambda x: mf.softsign(x),
    "elu": lambda x: mf.elu(x),
    "relun": lambda x: mf.relun(x, 0.1, 0.5),
    "power": lambda x: mf.power(x, c=2.0),
    "exponential": lambda x: mf.exponential(x, 0.5),
    "logarithm": lambda x: mf.logarithm(x * x, 0.5, 1.0),
    "gelu": lambda x: mf.gelu(x),
}

IMAGE, WEIGHTS = (2, 3, 4, 3), (4, 2, 2, 3)
OUT = (2, 2, 3, 4)
# Told by the result, told by what is activated, and with a parameter that is not the default.
FUSED = [mf.Neuron("sigmoid"), mf.Neuron("relu", 0.3), mf.Neuron("tanh", -1.3, 0.7), mf.Neuron("elu", 0.6)]


def _value(how: mf.Neuron) -> Any:
    return lambda x: mf.neuron(x, *how)


def _grad(how: mf.Neuron) -> Any:
    return lambda dy, x: mf.neuron_grad(dy, x, *how)


def _single() -> dict[str, Entry]:
    made = {}
    for label, (how, positive) in KINDS.items():
        made[f"neuron {label}"] = entry(_value(how), SHAPE, positive=(0,) if positive else ())
        made[f"neuron_grad {label}"] = entry(_grad(how), SHAPE, SHAPE, positive=(1,) if positive else ())
    return made


def _conv(how: mf.Neuron) -> dict[str, Entry]:
    state = mf.conv_fwd(mx.zeros(IMAGE), mx.zeros(WEIGHTS), neuron=how)[1]
    back = mf.conv_transpose_fwd(mx.zeros(OUT), mx.zeros((3, 2, 2, 4)), neuron=how)[1]

    def grad(dy: mx.array, x: mx.array, w: mx.array, y: mx.array) -> Arrays:
        dx, grown = mf.conv_grad(dy, x, w, state._replace(y=y))
        assert dx is not None
        return dx, *grown.arrays[:2]

    def grad_back(dy: mx.array, x: mx.array, w: mx.array, y: mx.array) -> Arrays:
        dx, grown = mf.conv_transpose_grad(dy, x, w, back._replace(y=y))
        assert dx is not None
        return dx, *grown.arrays[:2]

    label = how.type if how.a is None else f"{how.type} {how.a}"
    return {
        f"conv and {label}": entry(lambda x, w, b: mf.conv(x, w, b, neuron=how), IMAGE, WEIGHTS, C),
        f"conv_grad behind {label}": entry(grad, OUT, IMAGE, WEIGHTS, OUT),
        f"conv_transpose and {label}": entry(
            lambda x, w, b: mf.conv_transpose(x, w, b, neuron=how), OUT, (3, 2, 2, 4), (3,)
        ),
        f"conv_transpose_grad behind {label}": entry(grad_back, IMAGE, OUT, (3, 2, 2, 4), IMAGE),
        f"fully_connected and {label}": entry(
            lambda x, w, b: mf.fully_connected(x, w, b, neuron=how), IMAGE, (2, *IMAGE[1:]), (2,)
        ),
    }


def _with_slopes() -> dict[str, Entry]:
    def grad(dy: mx.array, x: mx.array, w: mx.array, y: mx.array, slopes: mx.array) -> Arrays:
        state = mf.conv_state(IMAGE, WEIGHTS)._replace(neuron="prelu", y=y, slopes=slopes)
        dx, grown = mf.conv_grad(dy, x, w, state)
        assert dx is not None
        return dx, *grown.arrays[:2]

    def of(slopes: mx.array) -> mf.Neuron:
        return mf.Neuron("prelu", slopes)

    return {
        "neuron prelu": entry(lambda x, slopes: mf.neuron(x, "prelu", slopes), SHAPE, C),
        "neuron_grad prelu": entry(lambda dy, x, slopes: mf.neuron_grad(dy, x, "prelu", slopes), SHAPE, SHAPE, C),
        "prelu": entry(lambda x, slopes: mf.prelu(x, slopes), SHAPE, C),
        "prelu of one axis": entry(lambda x, slopes: mf.prelu(x, slopes), C, C),
        "prelu_grad": entry(lambda dy, x, slopes: mf.prelu_grad(dy, x, slopes), SHAPE, SHAPE, C),
        "conv and prelu": entry(
            lambda x, w, b, slopes: mf.conv(x, w, b, neuron=of(slopes)), IMAGE, WEIGHTS, C, C
        ),
        "conv_grad behind prelu": entry(grad, OUT, IMAGE, WEIGHTS, OUT, C),
        "batch_norm and prelu": entry(
            lambda x, gamma, beta, slopes: mf.batch_norm(x, gamma, beta, neuron=of(slopes)), OUT, C, C, C
        ),
        "bn_grad behind prelu": entry(
            lambda dy, x, gamma, slopes, *state: mf.bn_grad(dy, x, _state(*state), gamma, neuron=of(slopes)),
            *(OUT, OUT, C, C, C, C, C, C),
            positive=(5,),
        ),
    }  # fmt: skip


def _state(mean: mx.array, var: mx.array, dgamma: Any = None, dbeta: Any = None) -> mf.BatchNormState:
    zero = mx.zeros_like(mean)
    grads = [zero if g is None else g for g in (dgamma, dbeta)]
    return mf.BatchNormState(mean, var, mx.array(12, mx.int64), *grads, "batch_norm", 1e-2, False, "unknown")


def _norm(how: mf.Neuron) -> dict[str, Entry]:
    def stats_grad(dy: mx.array, x: mx.array, gamma: mx.array, beta: mx.array, *state: mx.array) -> Arrays:
        return mf.bn_stats_grad(dy, x, _state(*state), gamma, beta, neuron=how).arrays[3:]

    return {
        f"batch_norm and {how.type}": entry(
            lambda x, gamma, beta: mf.batch_norm(x, gamma, beta, neuron=how), OUT, C, C
        ),
        f"bn_normalize and {how.type}": entry(
            lambda x, mean, var, gamma, beta: mf.bn_normalize(x, _state(mean, var), gamma, beta, neuron=how),
            *(OUT, C, C, C, C),
            positive=(2,),
        ),
        f"bn_stats_grad behind {how.type}": entry(stats_grad, OUT, OUT, C, C, C, C, positive=(5,)),
        f"bn_grad behind {how.type}": entry(
            lambda dy, x, gamma, beta, *state: mf.bn_grad(dy, x, _state(*state), gamma, beta, neuron=how),
            *(OUT, OUT, C, C, C, C, C, C),
            positive=(5,),
        ),
    }  # fmt: skip


def _nothing(name: str) -> Any:
    return NAMED[name]


ACTIVATIONS: dict[str, Entry] = {
    **_single(),
    **{name: entry(_nothing(name), SHAPE) for name in NAMED},
    "gelu of five axes": entry(lambda x: mf.gelu(x), (1, 2, 1, 3, 2)),
    **_conv(mf.Neuron("gelu")),
    **_with_slopes(),
    **_norm(mf.Neuron("gelu")),
    **_norm(mf.Neuron("tanh", -1.3, 0.7)),
}
for _how in FUSED:
    ACTIVATIONS |= _conv(_how)
