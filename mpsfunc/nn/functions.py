"""Functions of MLX that are activations, and the activation that a call of one computes."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf

FUNCTIONS: dict[Any, mf.Neuron] = {
    stock.relu: mf.Neuron("relu"),
    stock.relu2: mf.Neuron("relu2"),
    stock.relu6: mf.Neuron("relu6"),
    stock.leaky_relu: mf.Neuron("relu", 0.01),
    stock.elu: mf.Neuron("elu", 1.0),
    stock.gelu: mf.Neuron("gelu"),
    stock.gelu_approx: mf.Neuron("gelu_tanh"),
    stock.gelu_fast_approx: mf.Neuron("gelu_fast"),
    stock.silu: mf.Neuron("silu"),
    stock.hardswish: mf.Neuron("hard_swish"),
    stock.mish: mf.Neuron("mish"),
    stock.celu: mf.Neuron("celu"),
    stock.selu: mf.Neuron("selu"),
    stock.hard_tanh: mf.Neuron("hard_tanh"),
    stock.hard_shrink: mf.Neuron("hard_shrink"),
    stock.softshrink: mf.Neuron("soft_shrink"),
    stock.log_sigmoid: mf.Neuron("log_sigmoid"),
    stock.sigmoid: mf.Neuron("sigmoid"),
    stock.tanh: mf.Neuron("tanh"),
    stock.softplus: mf.Neuron("softplus"),
    stock.softsign: mf.Neuron("softsign"),
    mx.sigmoid: mf.Neuron("sigmoid"),
    mx.tanh: mf.Neuron("tanh"),
}

# The number that a function takes besides, and the least and the greatest of it with which ours is MLX's.
_NUMBERS: dict[Any, tuple[str, float, float]] = {
    stock.leaky_relu: ("negative_slope", -math.inf, 1.0),
    stock.elu: ("alpha", -math.inf, math.inf),
    stock.celu: ("alpha", 5e-324, math.inf),
    stock.softshrink: ("lambd", 0.0, math.inf),
    stock.hard_shrink: ("lambd", 0.0, math.inf),
}


def is_known(each: Any) -> bool:
    """Whether a function is an activation, or is one with some arguments."""
    return function(each) is not None or each is mx.maximum


def function(each: Any) -> mf.Neuron | None:
    """What a function is; None if it is not known."""
    try:
        return FUNCTIONS.get(each)
    except TypeError:  # not hashable
        return None


def called(each: Any) -> str:
    """What a function of MLX is called in the code of others."""
    name = str(each.__name__)
    return f"nn.{name}" if getattr(stock, name, None) is each else f"mx.{name}"


def applied(each: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[mx.array, mf.Neuron] | None:
    """The array and the activation of it that a call of a known function is; None if it is none of ours."""
    if each is mx.maximum:
        arrays = [a for a in args if type(a) is mx.array]
        zeros = [a for a in args if (type(a) is int or type(a) is float) and a == 0]
        fits = len(args) == 2 and len(arrays) == len(zeros) == 1 and not kwargs
        return (arrays[0], FUNCTIONS[stock.relu]) if fits else None
    if not args or type(args[0]) is not mx.array:
        return None
    neuron = FUNCTIONS[each]
    if len(args) == 1 and not kwargs:
        return args[0], neuron
    name, least, greatest = _NUMBERS.get(each, ("", 0.0, 0.0))
    given = (*args[1:], *(value for key, value in kwargs.items() if key == name))
    if not name or len(given) != 1 or len(args) - 1 + len(kwargs) != 1:
        return None
    number: Any = given[0]
    if not (type(number) is int or type(number) is float) or not least <= number <= greatest:
        return None
    return (args[0], mf.Neuron(neuron.type, float(number))) if abs(number) <= mx.finfo(mx.float32).max else None
