"""Activations by name: `neuron`, `neuron_grad`, and the kernels of all activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.activations import BEYOND_MPS, IN_FLOAT32, OF_MPS, ON_CPU
from metal_host.case import Case, launched, like, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import LEVEL, PIXELWISE, Benchmark, Measured
from support.oracle import activation as oracle

import mpsfunc as mf
from mpsfunc.channels import activation_launches
from mpsfunc.channels.activation_spec import GELU, NAMES, RELU, Activation

# Samples, and what they should give ----------------------------------------------------------------------

X, C = Array((3, 5, 4)), Array((4,))
ABOVE = X._replace(of="positive")
ODD, STEEP = Array((3, 7, 5)), Array((2, 5, 4, 8))
# What is activated, the type, and its parameters.
KINDS: dict[str, tuple[Any, ...]] = {
    "relu": (X, "relu"),
    "relu with a slope": (X, "relu", 0.3),
    "relu with a slope below 0": (X, "relu", -0.3),
    "linear": (X, "linear", -0.7, 0.4),
    "sigmoid": (X, "sigmoid"),
    "hard_sigmoid": (X, "hard_sigmoid", 0.4, 0.3),
    "tanh": (X, "tanh", -1.3, 0.7),
    "absolute": (X, "absolute"),
    "softplus": (X, "softplus", 0.8, -1.4),
    "softsign": (X, "softsign"),
    "elu": (X, "elu", 0.6),
    "elu with a below 0": (X, "elu", -0.6),
    "relun": (X, "relun", 0.4, 0.8),
    "power": (ABOVE, "power", 0.7, 0.4, 1.7),
    "power with a whole exponent": (X, "power", 0.7, 0.4, 3),
    "power with a negative exponent": (ABOVE, "power", 0.7, 0.9, -2),
    "exponential": (X, "exponential", 0.6, 0.2),
    "exponential to base 2": (X, "exponential", 0.6, 0.2, 2),
    "logarithm": (ABOVE, "logarithm", 0.6, 0.9),
    "logarithm to base 3": (ABOVE, "logarithm", 0.6, 0.9, 3),
    "gelu": (X, "gelu"),
    "silu": (X, "silu"),
    "silu of a steeper sigmoid": (X, "silu", 1.7),
    "hard_swish": (X, "hard_swish"),
    "mish": (X, "mish"),
    "gelu_tanh": (X, "gelu_tanh"),
    "celu": (X, "celu", 0.6),
    "selu": (X, "selu"),
    "hard_tanh": (X, "hard_tanh", -0.4, 0.7),
    "hard_shrink": (X, "hard_shrink", 0.3),
    "soft_shrink": (X, "soft_shrink", 0.3),
    "relu2": (X, "relu2"),
    "step": (X, "step", 0.1),
    "prelu": (X, "prelu", C),
}
MORE: dict[str, tuple[Any, ...]] = {
    "of an odd length": (ODD, "gelu"),
    "hard_sigmoid that is steep": (STEEP, "hard_sigmoid", 1.5, 0.5),  # both of its ends between -1 and 1
}


def _value(x: np.ndarray, type: str, a: Any = None, b: Any = None, c: Any = None) -> np.ndarray:
    return oracle.neuron(x, type, a=a, b=b, c=c)


def _grad(dy: np.ndarray, x: np.ndarray, type: str, a: Any = None, b: Any = None, c: Any = None) -> np.ndarray:
    return dy * oracle.slope(x, type, a=a, b=b, c=c)


# Wrong calls --------------------------------------------------------------------------------------------

IMAGES, FLAT = numbers((2, 6, 5, 4)), mx.ones(4)
INF = float("inf")
WRONG_VALUES = (
    ("unknown neuron", lambda: mf.neuron(IMAGES, "maxout")),
    ("sigmoid has no parameter a", lambda: mf.neuron(IMAGES, "sigmoid", 1.0)),
    ("relu has no parameter b", lambda: mf.neuron(IMAGES, "relu", 0.1, 6.0)),
    ("relun has no parameter c", lambda: mf.neuron(IMAGES, "relun", c=0)),
    ("none has no parameter a", lambda: mf.neuron(IMAGES, "none", 1.0)),
    ("a is out of range", lambda: mf.neuron(IMAGES, "relu", INF)),
    ("x has no channels", lambda: mf.neuron(mx.array(1.0), "prelu", FLAT)),
    ("the slopes do not fit the channels", lambda: mf.neuron(IMAGES, "prelu", mx.ones(3))),
    ("prelu has no parameter b", lambda: mf.neuron(IMAGES, "prelu", FLAT, 1.0)),
)
WRONG_TYPES = (
    ("x is not an array", lambda: mf.neuron([1.0], "relu")),
    ("x has no floating dtype", lambda: mf.neuron(mx.arange(3), "relu")),
    ("type is not a name", lambda: mf.neuron(IMAGES, 1)),
    ("type is not a name", lambda: mf.neuron(IMAGES, mf.Neuron("relu"))),
    ("a is not a number", lambda: mf.neuron(IMAGES, "relu", mx.array(0.1))),
    ("the slopes of prelu are not an array", lambda: mf.neuron(IMAGES, "prelu")),
    ("the slopes of prelu are not an array", lambda: mf.neuron(IMAGES, "prelu", 0.25)),
)

# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Told = tuple[float, ...]  # a, b and c, as many as there are

# Each activation with parameters that floats hold exactly, and two where one of its ways is another.
EVERY: tuple[tuple[str, Told], ...] = (
    ("none", ()),
    ("relu", (0.25,)),
    ("relu", (0.0,)),
    ("linear", (1.5, -0.75)),
    ("sigmoid", ()),
    ("hard_sigmoid", (0.25, 0.5)),
    ("tanh", (1.5, 0.75)),
    ("absolute", ()),
    ("softplus", (1.5, -0.75)),
    ("softsign", ()),
    ("elu", (1.25,)),
    ("relun", (0.25, 1.5)),
    ("power", (0.5, 0.25, 3.0)),
    ("power", (0.5, 8.0, -1.75)),
    ("power", (2.0, 0.25, 2.0)),
    ("exponential", (0.5, 0.25, -1.0)),
    ("exponential", (0.5, 0.25, 10.0)),
    ("exponential", (1024.0, 16.0, 1.0001)),  # bases that a float does not tell
    ("logarithm", (0.5, 16.0, -1.0)),
    ("logarithm", (0.5, 16.0, 2.0)),
    ("logarithm", (0.5, 16.0, 1.0001)),
    ("gelu", ()),
    ("silu", (1.5,)),
    ("hard_swish", ()),
    ("mish", ()),
    ("gelu_tanh", ()),
    ("celu", (0.75,)),
    ("selu", ()),
    ("hard_tanh", (-1.5, 1.25)),
    ("hard_shrink", (0.5,)),
    ("soft_shrink", (0.5,)),
    ("relu2", ()),
    ("step", (0.5,)),
)


def activation(name: str, told: Told) -> Activation:
    return Activation(NAMES.index(name), *told)


def _known(told: Told) -> dict[str, float]:
    return dict(zip("abc", told, strict=False))


def spread(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Normal values, among them zeros, the corners of the activations above, and some that are large."""
    values = exact(numbers(shape)).ravel()
    corners = [0.0, -0.0, 1.5, -2.0, 2.0, 25.0, -14.0, 1e-3]
    values[::3] = np.resize(corners, values[::3].size)
    return mx.array(values.reshape(shape).astype(np.float32)).astype(dtype)


def _each(name: str, told: Told, shape: tuple[int, ...], dtype: mx.Dtype, crowded: bool = False) -> Case:
    """The value and the two derivatives of an activation."""

    def check() -> None:
        x, dy, u = spread(shape, dtype), numbers(shape, dtype, 1), numbers(shape, dtype, 2)
        act, known, x64 = activation(name, told), _known(told), exact(x)
        # An exponent is rounded, and a value that is a sum has the size of its terms.
        size = 4 + abs(oracle.neuron(x64, name, **known)) * (1 + abs(x64))
        (y,) = launched({"x": x}, like(x), activation_launches.neuron(x, act))
        close(y, oracle.neuron(x64, name, **known), size, slack=4)
        (dx,) = launched({"dy": dy, "x": x}, like(x), activation_launches.grad(x, act))
        right = exact(dy) * oracle.slope(x64, name, **known)
        close(dx, right, abs(exact(dy)) * (4 + abs(right) * (1 + abs(x64))), slack=4)
        (bent,) = launched({"u": u, "dy": dy, "x": x}, like(x), activation_launches.neuron_grad_grad(x, act))
        both = exact(u) * exact(dy)
        right = both * oracle.curvature(x64, name, **known)
        close(bent, right, abs(both) * (4 + abs(right) * (1 + abs(x64))), slack=4)

    bodies = "neuron", "neuron_grad", "neuron_grad_grad"
    return Case(named(name, shape, dtype, told=told), bodies, check, crowded)


def _from_output(a: float, shape: tuple[int, ...], dtype: mx.Dtype, crowded: bool = False) -> Case:
    """The gradient of a relu with this slope below 0, told by what the relu returned."""

    def check() -> None:
        dy = numbers(shape, dtype, 1)
        y = mx.array(oracle.neuron(exact(spread(shape, F32)), "relu", a=a).astype(np.float32)).astype(dtype)
        act = activation("relu", (a,))
        (dz,) = launched({"dy": dy, "y": y}, like(dy), activation_launches.neuron_grad_from_output(dy, act))
        slope = np.where(exact(y) < 0 if a else exact(y) <= 0, a, 1)
        close(dz, exact(dy) * slope, abs(exact(dy)), slack=4)

    body = "neuron_grad_from_output"
    return Case(named(body, shape, dtype, of="relu", told=(a,)), (body,), check, crowded)


def _cases() -> Iterator[Case]:
    yield from (_each(name, told, (2, 3, 8), F32) for name, told in EVERY)
    yield _each("gelu", (), (3, 7, 5), F32)
    yield _each("sigmoid", (), (1, 1, 2, 3), F32)
    yield _each("gelu", (), (5, 3, 3), F16)
    yield _each("softplus", (1.0, 1.0), (2, 3, 4, 4), BF16)
    yield _each("softsign", (), (1, 31, 301, 1), F32, crowded=True)


def _grad_cases() -> Iterator[Case]:
    yield _from_output(0.0, (2, 3, 5, 8), F32)
    yield _from_output(0.25, (2, 3, 5, 8), F32)
    yield _from_output(0.0, (1, 5, 3, 3), F16)
    yield _from_output(0.5, (2, 3, 4, 4), BF16)
    yield _from_output(0.25, (1, 1, 2, 3), F32)
    yield _from_output(0.0, (1, 31, 301, 1), F32, crowded=True)


# What bodies load ---------------------------------------------------------------------------------------

_NO_SLOPES = {"slopes": (LONG_IMAGE, 0)}  # the image stands in for them


def _neuron() -> None:
    mf.neuron(numbers(LONG), "gelu")


def _neuron_grad() -> None:
    mf.neuron_grad(numbers(LONG, seed=1), numbers(LONG), "gelu")


def _further() -> None:
    """What only derivatives, and functions with an activation of their own, launch."""
    x, dy, u = (numbers(LONG, seed=seed) for seed in range(3))
    launched({"u": u, "dy": dy, "x": x}, like(x), activation_launches.neuron_grad_grad(x, Activation(GELU)))
    launched({"dy": dy, "y": x}, like(x), activation_launches.neuron_grad_from_output(x, Activation(RELU)))


# What is measured, and the records ----------------------------------------------------------------------

_GRADIENT = Benchmark("pointwise", 1, 2, cpu=(Measured(targets=LEVEL),), gpu=(Measured(targets=PIXELWISE),))
_IN_FLOAT32 = Benchmark("pointwise", 1, 2, **IN_FLOAT32)
OPS = (
    OpInfo(
        name="neuron",
        samples={
            **{label: call("neuron", *given) for label, given in KINDS.items()},
            **{label: Sample(call("neuron", *given), in_matrix=False) for label, given in MORE.items()},
        },
        reference=_value,
        wrong_values=WRONG_VALUES,
        wrong_types=WRONG_TYPES,
        cases=_cases,
        loads={"neuron": Loads(_neuron, {"x": WHOLE, **_NO_SLOPES})},
        no_node="each activation has a node of its own",
    ),
    OpInfo(
        name="neuron_grad",
        samples={
            **{label: call("neuron_grad", X, *given) for label, given in KINDS.items()},
            **{
                label: Sample(call("neuron_grad", Array(given[0].shape), *given), in_matrix=False)
                for label, given in MORE.items()
            },
        },
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("unknown neuron", lambda: mf.neuron_grad(IMAGES, IMAGES, "")),
            ("c is not a possible base", lambda: mf.neuron_grad(IMAGES, IMAGES, "logarithm", c=0)),
            ("dy does not belong to x", lambda: mf.neuron_grad(IMAGES[:1], IMAGES, "relu")),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.neuron_grad(1.0, IMAGES, "relu")),
            ("dy and x differ in dtype", lambda: mf.neuron_grad(IMAGES.astype(F16), IMAGES, "relu")),
        ),
        cases=_grad_cases,
        loads={
            "neuron_grad": Loads(_neuron_grad, {"dy": WHOLE, "x": WHOLE, **_NO_SLOPES}),
            "neuron_grad_grad": Loads(_further, dict.fromkeys(("u", "dy", "x"), WHOLE)),
            "neuron_grad_from_output": Loads(_further, dict.fromkeys(("dy", "y"), WHOLE)),
        },
        benchmarks={
            **dict.fromkeys(("relu_grad", "gelu_grad", "silu_grad"), _GRADIENT),
            **{f"{name}_grad": _IN_FLOAT32 for name in BEYOND_MPS if name != "step"},  # whose gradient is 0
            **{f"{name}_grad": Benchmark("pointwise", 1, 2, **ON_CPU) for name in OF_MPS},
        },
    ),
)
