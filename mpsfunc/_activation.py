"""What an activation is to the kernels, and the formulas that MLX's own operations compute."""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc import _launch

NAMES = (
    "none", "relu", "linear", "sigmoid", "hard_sigmoid", "tanh", "absolute", "softplus", "softsign", "elu", "prelu",
    "relun", "power", "exponential", "logarithm", "gelu",
)  # fmt: skip
(
    NONE, RELU, LINEAR, SIGMOID, HARD_SIGMOID, TANH, ABSOLUTE, SOFTPLUS, SOFTSIGN, ELU, PRELU, RELUN, POWER,
    EXPONENTIAL, LOGARITHM, GELU,
) = range(len(NAMES))  # fmt: skip


class Activation(NamedTuple):
    """An activation's number and parameters; those that it does not have are 0.

    Fields:
        kind: As MPS numbers them.
        a: First parameter.
        b: Second parameter.
        c: Third parameter; -1 stands for e as a base.
    """

    kind: int
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0

    @property
    def told(self) -> tuple[int, ...]:
        """The ints that a CPU primitive takes."""
        return (self.kind, *_launch.doubles(self.a, self.b, self.c))


NO_ACTIVATION = Activation(NONE)


def value(z: mx.array, act: Activation) -> mx.array:
    """``f(z)`` for float32 or float64; NaN stays NaN."""
    kind, a, b, c = act
    if kind == RELU:
        return mx.where(z < 0, _scaled(z, a), z)
    if kind == LINEAR:
        return a * z + b
    if kind == SIGMOID:
        return mx.sigmoid(z)
    if kind == HARD_SIGMOID:
        u = a * z + b
        return mx.where(u < 0, 0, mx.where(u > 1, 1, u)).astype(z.dtype)
    if kind == TANH:
        return a * mx.tanh(b * z)
    if kind == ABSOLUTE:
        return mx.abs(z)
    if kind == SOFTPLUS:
        u = b * z
        return a * (mx.maximum(u, 0) + mx.log1p(mx.exp(-mx.abs(u))))
    if kind == SOFTSIGN:
        return z / (1 + mx.abs(z))
    if kind == ELU:
        return mx.where(z < 0, a * mx.expm1(z), z)
    if kind == RELUN:
        r = mx.where(z < 0, _scaled(z, a), z)
        return mx.where(r > b, b, r).astype(z.dtype)
    if kind == POWER:
        return mx.power(a * z + b, c)
    if kind == EXPONENTIAL:
        return mx.exp(log_of(c) * (a * z + b))
    if kind == LOGARITHM:
        return mx.log(a * z + b) / log_of(c)
    if kind == GELU:
        return z * (0.5 * (1 + mx.erf(z * math.sqrt(0.5))))
    return z


def slope(z: mx.array, act: Activation) -> mx.array:
    """``f'(z)``."""
    kind, a, b, c = act
    one, none = mx.ones_like(z), mx.zeros_like(z)
    if kind == RELU:
        return mx.where(z < 0, a * one, one)
    if kind == LINEAR:
        return a * one
    if kind == SIGMOID:
        return mx.sigmoid(z) * mx.sigmoid(-z)
    if kind == HARD_SIGMOID:
        u = a * z + b
        return mx.where(u < 0, none, mx.where(u > 1, none, a * one))
    if kind == TANH:
        return a * b / mx.square(mx.cosh(b * z))
    if kind == ABSOLUTE:
        return mx.sign(z)
    if kind == SOFTPLUS:
        return a * b * mx.sigmoid(b * z)
    if kind == SOFTSIGN:
        return 1 / mx.square(1 + mx.abs(z))
    if kind == ELU:
        return mx.where(z < 0, a * mx.exp(z), one)
    if kind == RELUN:
        r = mx.where(z < 0, _scaled(z, a), z)
        return mx.where(r >= b, none, mx.where(z < 0, a * one, one))
    if kind == POWER:
        return a * c * mx.power(a * z + b, c - 1) if a * c else none
    if kind == EXPONENTIAL:
        return a * log_of(c) * value(z, act)
    if kind == LOGARITHM:
        return a / (log_of(c) * (a * z + b))
    if kind == GELU:
        return 0.5 * (1 + mx.erf(z * math.sqrt(0.5))) + z * mx.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return one


def log_of(c: float) -> float:
    """The logarithm of a base, of which -1 is e."""
    return 1.0 if c == -1 else math.log(c)


def _scaled(z: mx.array, a: float) -> mx.array:
    return a * z if a else mx.zeros_like(z)


def slope_by_result(y: mx.array, act: Activation) -> mx.array:
    """``f'(z)`` told from ``y = f(z)``."""
    kind, a, b, _ = act
    if kind == SIGMOID:
        return y * (1 - y)
    if kind == TANH:
        return b * (a - y * y / a)
    if kind == ELU:
        return mx.where(y < 0, y + a, mx.ones_like(y))
    one = mx.ones_like(y)
    return mx.where(y >= 0 if a else y > 0, one, a * one)
