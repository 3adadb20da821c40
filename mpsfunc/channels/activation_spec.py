"""What an activation is to the kernels, and the formulas that MLX's own operations compute."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import mlx.core as mx

NeuronName = Literal[
    "none", "relu", "linear", "sigmoid", "hard_sigmoid", "tanh", "absolute", "softplus", "softsign", "elu", "prelu",
    "relun", "power", "exponential", "logarithm", "gelu", "silu", "hard_swish", "mish", "gelu_tanh", "celu", "selu",
    "hard_tanh", "hard_shrink", "soft_shrink", "relu2", "step", "relu6", "log_sigmoid", "gelu_fast",
]  # fmt: skip
NAMES: tuple[NeuronName, ...] = get_args(NeuronName)
# Names of others with certain parameters; behind the names of the kinds, whose places are their numbers.
SYNONYMS: dict[NeuronName, tuple[NeuronName, float, float]] = {
    "relu6": ("relun", 0.0, 6.0),
    "log_sigmoid": ("softplus", -1.0, -1.0),
    "gelu_fast": ("silu", 1.702, 0.0),
}
(
    NONE, RELU, LINEAR, SIGMOID, HARD_SIGMOID, TANH, ABSOLUTE, SOFTPLUS, SOFTSIGN, ELU, PRELU, RELUN, POWER,
    EXPONENTIAL, LOGARITHM, GELU, SILU, HARD_SWISH, MISH, GELU_TANH, CELU, SELU, HARD_TANH, HARD_SHRINK, SOFT_SHRINK,
    RELU2, STEP,
) = range(len(NAMES) - len(SYNONYMS))  # fmt: skip


class ActivationParams(NamedTuple):
    """What a GPU's kernel is told of an activation: ``struct ActivationParams`` of ``metal/activation/params.h``."""

    a: float
    b: float
    c: float
    log_c: float


class Activation(NamedTuple):
    """An activation's number and parameters; those that it does not have are 0.

    A CPU's kernel gets it as it is, as the ``struct Activation`` of ``metal/activation/params.h``.

    Fields:
        kind: As MPS numbers them, behind its last those of other libraries.
        a: First parameter.
        b: Second parameter.
        c: Third parameter; -1 stands for e as a base.
    """

    kind: int
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0

    @property
    def gpu_params(self) -> ActivationParams:
        """What a GPU's kernel is told; the logarithm of a base, since that of a rounded one is another."""
        log_c = log_of(self.c) if self.kind in (EXPONENTIAL, LOGARITHM) else 0.0
        return ActivationParams(self.a, self.b, self.c, log_c)


NO_ACTIVATION = Activation(NONE)


def log_of(c: float) -> float:
    """The logarithm of a base, of which -1 is e."""
    return 1.0 if c == -1 else math.log(c)


def slope_from_output(act: Activation) -> bool:
    """Whether the slope of an activation follows from what it returns, without loss.

    A rounded result does not tell the slope of one that saturates: of a sigmoid in float32 it is 1 from 17 on.
    """
    return act.kind == NONE or (act.kind == RELU and act.a >= 0)


def fusable(act: Activation, on_cpu: bool) -> bool:
    """Whether the kernels of convolutions can apply an activation themselves: on a CPU any but one with slopes."""
    return act.kind != PRELU if on_cpu else act.kind in (NONE, RELU, SIGMOID, TANH, ELU)


def finished(z: mx.array, act: Activation) -> mx.array:
    """``f(z)`` of float32, by MLX's own operations, for an activation that is `fusable` on a GPU."""
    kind, a, b, _ = act
    if kind == RELU:
        return mx.where(z < 0, a * z if a else mx.zeros_like(z), z)
    if kind == ELU:
        return mx.where(z < 0, a * mx.expm1(z), z)
    if kind == TANH:
        return a * mx.tanh(b * z)
    return mx.sigmoid(z) if kind == SIGMOID else z
