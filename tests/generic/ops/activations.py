"""The activations as functions of their own, each `neuron` with a type, whose file has the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, Wrong, call
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, PIXELWISE, Benchmark, Measured
from support.oracle import activation as oracle

import mpsfunc as mf
from mpsfunc import graph

X, MANY = Array((3, 5, 4)), Array((2, 5, 4, 8))
ABOVE, MANY_ABOVE = (a._replace(of="positive") for a in (X, MANY))
IMAGES = numbers((2, 6, 5, 4))
Told = tuple[float, ...]  # a, b and c, as many as are given
_MEASURED = Benchmark("pointwise", 1, 1, cpu=(Measured(targets=LEVEL),), gpu=(Measured(targets=PIXELWISE),))
# Of those beyond MPS only float32 is measured.
IN_FLOAT32: dict[str, Any] = {
    "cpu": (Measured(targets=LEVEL, dtypes=FLOAT32),),
    "gpu": (Measured(targets=PIXELWISE, dtypes=FLOAT32),),
}
BEYOND_MPS = (
    "hard_swish mish gelu_tanh gelu_fast celu selu hard_tanh hard_shrink soft_shrink log_sigmoid relu2 relu6 step"
).split()
OF_MPS = ("sigmoid", "tanh", "softplus", "elu")
ON_CPU: dict[str, Any] = {"cpu": IN_FLOAT32["cpu"]}
BENCHMARKS = {
    **dict.fromkeys(OF_MPS, Benchmark("pointwise", 1, 1, **ON_CPU)),
    **dict.fromkeys(("relu", "gelu", "silu"), _MEASURED),
    **dict.fromkeys(BEYOND_MPS, Benchmark("pointwise", 1, 1, **IN_FLOAT32)),
}


def _definition(name: str, x: np.ndarray, *told: float, **by_name: float) -> np.ndarray:
    return oracle.neuron(x, name, **dict(zip("abc", told, strict=False)), **by_name)


def _wrong_values(name: str, letters: str) -> Iterator[Wrong]:
    for letter in letters:
        for value in (float("inf"), float("nan"), 1e300):
            yield f"{letter} is out of range", partial(getattr(mf, name), IMAGES, **{letter: value})
    for letter, value, told in {
        "celu": (("a", 0.0, "a is not positive"), ("a", -1.0, "a is not positive")),
        "hard_shrink": (("a", -0.5, "a is negative"),),
        "soft_shrink": (("a", -0.5, "a is negative"),),
        "hard_tanh": (("a", 1.5, "a is more than b"), ("b", -1.5, "a is more than b")),
    }.get(name, ()):
        yield told, partial(getattr(mf, name), IMAGES, **{letter: value})
    for base in {"exponential": (0.0, -2.0), "logarithm": (1.0, -0.5)}.get(name, ()):
        yield "c is not a possible base", partial(getattr(mf, name), IMAGES, c=base)


def _wrong_types(name: str, letters: str) -> Iterator[Wrong]:
    yield "x is not an array", partial(getattr(mf, name), 1.0)
    yield "x has no floating dtype", partial(getattr(mf, name), mx.arange(3))
    for letter in letters:
        for value in ("1", True, mx.array(0.1)):
            yield f"{letter} is not a number", partial(getattr(mf, name), IMAGES, **{letter: value})


def _op(name: str, letters: str, plain: Call, many: Call, node: Told = (), *, above: bool = False) -> OpInfo:
    """The record of an activation.

    Args:
        name: Its own.
        letters: The parameters that it has.
        plain: A sample.
        many: A larger one.
        node: What its node is told.
        above: Whether its node is for positive numbers.
    """
    function, filter = getattr(mf, name), getattr(graph, name)
    five_axes = {"of five axes": call("gelu", Array((1, 2, 1, 3, 2)))} if name == "gelu" else {}
    return OpInfo(
        name=name,
        samples={"": plain, **five_axes, "of eight channels": Sample(many, in_matrix=False)},
        reference=partial(_definition, name),
        wrong_values=tuple(_wrong_values(name, letters)),
        wrong_types=tuple(_wrong_types(name, letters)),
        benchmarks={name: BENCHMARKS[name]} if name in BENCHMARKS else {},
        nodes={"": Node(lambda x: filter(x, *node), lambda p, x: function(x, *node), positive=above)},
    )


OPS = (
    _op("relu", "a", call("relu", X, 0.2), call("relu", MANY, 0.1), (0.25,)),
    _op("linear", "ab", call("linear", X, 0.5, 0.2), call("linear", MANY, 2.0, 1.0)),
    _op("sigmoid", "", call("sigmoid", X), call("sigmoid", MANY)),
    # Both ends of the larger one lie between -1 and 1.
    _op("hard_sigmoid", "ab", call("hard_sigmoid", X, 0.3), call("hard_sigmoid", MANY, 1.5, 0.5)),
    _op("tanh", "ab", call("tanh", X, 1.2, 0.8), call("tanh", MANY, 1.5, 0.5), (2.0, 0.5)),
    _op("absolute", "", call("absolute", X), call("absolute", MANY)),
    _op("softplus", "ab", call("softplus", X, 1.2, 0.8), call("softplus", MANY, 1.0, 2.0)),
    _op("softsign", "", call("softsign", X), call("softsign", MANY)),
    _op("elu", "a", call("elu", X), call("elu", MANY, 0.5), (0.5,)),
    _op("relun", "ab", call("relun", X, 0.1, 0.5), call("relun", MANY, 0.1, 0.75), (0.5, 1.0)),
    _op("power", "abc", call("power", X, c=2.0), call("power", MANY_ABOVE, 1.5), (1.0, 0.5, 2.5), above=True),
    _op("exponential", "abc", call("exponential", X, 0.5), call("exponential", MANY_ABOVE), (0.5, 0.25, 2.0)),
    _op(
        *("logarithm", "abc", call("logarithm", ABOVE, 0.5, 1.0), call("logarithm", MANY_ABOVE), (1.0, 0.5, 10.0)),
        above=True,
    ),
    _op("gelu", "", call("gelu", X), call("gelu", MANY)),
    _op("silu", "a", call("silu", X), call("silu", MANY, 1.5), (0.5,)),
    _op("hard_swish", "", call("hard_swish", X), call("hard_swish", MANY)),
    _op("mish", "", call("mish", X), call("mish", MANY)),
    _op("gelu_tanh", "", call("gelu_tanh", X), call("gelu_tanh", MANY)),
    _op("gelu_fast", "", call("gelu_fast", X), call("gelu_fast", MANY)),
    _op("celu", "a", call("celu", X, 0.75), call("celu", MANY, 2.0), (0.5,)),
    _op("selu", "", call("selu", X), call("selu", MANY)),
    _op("hard_tanh", "ab", call("hard_tanh", X, -0.4, 0.7), call("hard_tanh", MANY), (-0.5, 0.25)),
    _op("hard_shrink", "a", call("hard_shrink", X, 0.3), call("hard_shrink", MANY), (0.25,)),
    _op("soft_shrink", "a", call("soft_shrink", X, 0.3), call("soft_shrink", MANY), (0.25,)),
    _op("relu2", "", call("relu2", X), call("relu2", MANY)),
    _op("relu6", "", call("relu6", X), call("relu6", MANY)),
    _op("log_sigmoid", "", call("log_sigmoid", X), call("log_sigmoid", MANY)),
    _op("step", "a", call("step", X, 0.1), call("step", MANY), (0.25,)),
)
