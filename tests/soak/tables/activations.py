"""Tables of activations: by type, as functions of their own, and prelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numbers, numpy, of, pick, rounded

_erfc = np.vectorize(math.erfc, otypes=[float])


def _softplus(u: np.ndarray) -> np.ndarray:
    return np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


# By type: the function of x and the parameters, and their defaults.
NEURONS: dict[str, tuple[Callable[..., np.ndarray], tuple[float, ...]]] = {
    "relu": (lambda x, a: np.where(x >= 0, x, a * x), (0.0,)),
    "linear": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "sigmoid": (sigmoid, ()),
    "hard_sigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "tanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "absolute": (np.abs, ()),
    "softplus": (lambda x, a, b: a * _softplus(b * x), (1.0, 1.0)),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), (1.0,)),
    "relun": (lambda x, a, b: np.minimum(np.where(x >= 0, x, a * x), b), (1.0, 6.0)),
    "power": (lambda x, a, b, c: (a * x + b) ** c, (1.0, 0.0, 1.0)),
    "exponential": (lambda x, a, b, c: np.exp((a * x + b) * (1 if c == -1 else math.log(c))), (1.0, 0.0, -1.0)),
    "logarithm": (lambda x, a, b, c: np.log(a * x + b) / (1 if c == -1 else math.log(c)), (1.0, 0.0, -1.0)),
    "gelu": (lambda x: x * _erfc(-x / math.sqrt(2)) / 2, ()),
    "silu": (lambda x, a: x * sigmoid(a * x), (1.0,)),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, ()),
    "mish": (lambda x: x * np.tanh(_softplus(x)), ()),
    "gelu_tanh": (lambda x: x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)), ()),
    "gelu_fast": (lambda x: x * sigmoid(1.702 * x), ()),
    "celu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0) / a)), (1.0,)),
    "selu": (lambda x: 1.0507009873554805 * np.where(x >= 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))), ()),
    "hard_tanh": (lambda x, a, b: np.clip(x, a, b), (-1.0, 1.0)),
    "hard_shrink": (lambda x, a: np.where(np.abs(x) > a, x, 0), (0.5,)),
    "soft_shrink": (lambda x, a: x - np.clip(x, -a, a), (0.5,)),
    "relu2": (lambda x: np.square(np.maximum(x, 0)), ()),
    "relu6": (lambda x: np.clip(x, 0, 6), ()),
    "log_sigmoid": (lambda x: -_softplus(-x), ()),
    "step": (lambda x, a: np.where(x >= a, 1.0, 0.0), (0.0,)),
}


def given(rng: Rng, name: str) -> tuple[float, ...]:
    """Parameters, which float32 holds; for powers and logarithms such that positive numbers are right."""
    if rng.random() < 0.3:
        return NEURONS[name][1]
    made = [float(np.float32(abs(v) + 0.1)) for v in rng.standard_normal(len(NEURONS[name][1]))]
    if name in ("relu", "elu", "relun", "linear", "tanh"):
        made[0] = float(np.float32(rng.uniform(-1, 1))) if name != "relun" else made[0]
    if name == "hard_tanh":
        made[0] = -made[0]
    if name == "power":
        made[2] = float(pick(rng, 1, 2, 3, 0.5, 2.5))
    if name in ("exponential", "logarithm"):
        made[2] = float(pick(rng, -1, 2, 10))
    return tuple(made)


def _neuron(name: str) -> Row:
    function, _ = NEURONS[name]

    def sample(rng: Rng) -> Case:
        kind, how = dtype(rng), given(rng, name)
        x = numbers(rng, rng.integers(1, 7, rng.integers(1, 5)), kind, wide=name not in ("power", "exponential"))
        if name in ("power", "logarithm"):
            x = rounded(np.abs(x) + 0.0625, kind)
        how_many = int(rng.integers(len(how) + 1)) if how == NEURONS[name][1] else len(how)

        def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
            return {0: of.neuron_grad(dy, x, name, *how[:how_many])}

        def more(x: mx.array) -> Iterator[str]:
            if not np.array_equal(numpy(of.neuron(x, name, *how[:how_many])), numpy(call(x)), equal_nan=True):
                yield "neuron(x, type) is something else"

        def call(x: mx.array) -> mx.array:
            return getattr(of, name)(x, *how[:how_many])

        def size(x: np.ndarray) -> np.ndarray:
            y, step = function(x, *how), 1e-5
            near = np.maximum(np.abs(function(x * (1 + step), *how) - y), np.abs(function(x * (1 - step), *how) - y))
            inner = sum(abs(v) for v in how) if name in ("linear", "hard_sigmoid", "softplus") else 0.0
            if name in ("power", "exponential", "logarithm"):  # a x + b is rounded
                u = np.abs(how[0] * x) + abs(how[1])
                slope = (function(x + step, *how) - function(x - step, *how)) / (2 * step) / how[0]
                return np.abs(y) + np.abs(slope) * u
            return np.abs(y) + near / step + inner

        return Case(f"{how[:how_many]}", [x], kind, call, lambda x: function(x, *how), size, pulled=pulled, more=more)

    return Row((name, "neuron", "neuron_grad"), sample)


def _prelu(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, wide=True)
    other = pick(rng, kind, mx.float32 if kind != mx.float64 else kind)
    slopes = numbers(rng, x.shape[-1:], other)

    def pulled(dy: mx.array, x: mx.array, a: mx.array) -> dict[int, mx.array]:
        return dict(enumerate(of.prelu_grad(dy, x, a)))

    def result(x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.where(x >= 0, x, a * x)

    return Case("", [x, slopes], kind, of.prelu, result, moving=(0, 1), dtypes=(kind, other), pulled=pulled)


ROWS = {**{name: _neuron(name) for name in NEURONS}, "prelu": Row(family("prelu", "grad"), _prelu)}
