"""The cases of `cases` that apply activations, straight from the launches of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import activation as oracle_activation

from metal_host.case import Case, launched, like, named
from mpsfunc.channels import activation_launches
from mpsfunc.channels.activation_spec import NAMES, PRELU, Activation

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Array = np.ndarray
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
)
SLOPE_FROM_OUTPUT: tuple[tuple[str, Told], ...] = (("relu", (0.0,)), ("relu", (0.25,)))


def activation(name: str, told: Told) -> Activation:
    return Activation(NAMES.index(name), *told)


def _known(told: Told) -> dict[str, float]:
    return dict(zip("abc", told, strict=False))


def spread(shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 0) -> mx.array:
    """Normal values, among them zeros, the corners of the activations above, and some that are large."""
    values = exact(numbers(shape, seed=seed)).ravel()
    corners = [0.0, -0.0, 1.5, -2.0, 2.0, 25.0, -14.0, 1e-3]
    values[::3] = np.resize(corners, values[::3].size)
    return mx.array(values.reshape(shape).astype(np.float32)).astype(dtype)


def slope_of_result(y: Array, a: float) -> Array:
    """f'(x) of a relu, where y = f(x)."""
    return np.where(y < 0 if a else y <= 0, a, 1)


def _each(
    name: str, told: Told, shape: tuple[int, ...], dtype: mx.Dtype, orders: Sequence[int] = (0, 1, 2), **how: Any
) -> Case:
    """The value and the two derivatives of an activation, or some of them."""

    def check() -> None:
        x, dy, u = spread(shape, dtype), numbers(shape, dtype, 1), numbers(shape, dtype, 2)
        act, known, x64 = activation(name, told), _known(told), exact(x)
        # An exponent is rounded, and a value that is a sum has the size of its terms.
        size = 4 + abs(oracle_activation.neuron(x64, name, **known)) * (1 + abs(x64))
        if 0 in orders:
            (y,) = launched({"x": x}, like(x), activation_launches.neuron(x, act))
            close(y, oracle_activation.neuron(x64, name, **known), size, slack=4)
        if 1 in orders:
            (dx,) = launched({"dy": dy, "x": x}, like(x), activation_launches.grad(x, act))
            right = exact(dy) * oracle_activation.slope(x64, name, **known)
            close(dx, right, abs(exact(dy)) * (4 + abs(right) * (1 + abs(x64))), slack=4)
        if 2 in orders:
            (bent,) = launched({"u": u, "dy": dy, "x": x}, like(x), activation_launches.neuron_grad_grad(x, act))
            both = exact(u) * exact(dy)
            right = both * oracle_activation.curvature(x64, name, **known)
            close(bent, right, abs(both) * (4 + abs(right) * (1 + abs(x64))), slack=4)

    bodies = [body for i, body in enumerate(("neuron", "neuron_grad", "neuron_grad_grad")) if i in orders]
    return Case(named(name, shape, dtype, told=told, orders=tuple(orders)), tuple(bodies), check, **how)


def _prelu(shape: tuple[int, ...], dtype: mx.Dtype, **how: Any) -> Case:
    def check() -> None:
        x, dy, slopes = spread(shape, dtype), numbers(shape, dtype, 1), numbers(shape[-1:], seed=3)
        act, a = Activation(PRELU), exact(slopes)
        (y,) = launched({"x": x, "slopes": slopes}, like(x), activation_launches.neuron(x, act, slopes=True))
        close(y, np.where(exact(x) < 0, a, 1) * exact(x))
        (dx,) = launched({"dy": dy, "x": x, "slopes": slopes}, like(x), activation_launches.grad(x, act, slopes=True))
        close(dx, np.where(exact(x) < 0, a, 1) * exact(dy))

    return Case(named("prelu", shape, dtype), ("neuron", "neuron_grad"), check, **how)


def _from_output(name: str, told: Told, shape: tuple[int, ...], dtype: mx.Dtype, **how: Any) -> Case:
    def check() -> None:
        dy = numbers(shape, dtype, 1)
        y = mx.array(oracle_activation.neuron(exact(spread(shape, F32)), name, **_known(told)).astype(np.float32))
        y = y.astype(dtype)
        (dz,) = launched(
            {"dy": dy, "y": y}, like(dy), activation_launches.neuron_grad_from_output(dy, activation(name, told))
        )
        close(dz, exact(dy) * slope_of_result(exact(y), *told), abs(exact(dy)), slack=4)

    return Case(
        named("neuron_grad_from_output", shape, dtype, of=name, told=told), ("neuron_grad_from_output",), check, **how
    )


def activations() -> list[Case]:
    return [
        *[_each(name, told, (2, 3, 8), F32) for name, told in EVERY],
        _each("gelu", (), (3, 7, 5), F32),
        _each("sigmoid", (), (1, 1, 2, 3), F32),
        _each("gelu", (), (5, 3, 3), F16),
        _each("softplus", (1.0, 1.0), (2, 3, 4, 4), BF16),
        _each("softsign", (), (1, 31, 301, 1), F32, crowded=True),
        _prelu((2, 5, 8), F32),
        _prelu((8, 3), F32),  # packs that begin at any channel
        _prelu((3, 7, 5), F32),
        _prelu((2, 3), F32),
        _prelu((1, 3, 5, 24), F16),
        _prelu((12,), BF16),
        _prelu((3, 37, 45, 6), F32, crowded=True),
        *[_from_output(name, told, (2, 3, 5, 8), F32) for name, told in SLOPE_FROM_OUTPUT],
        _from_output("relu", (0.0,), (1, 5, 3, 3), F16),
        _from_output("relu", (0.5,), (2, 3, 4, 4), BF16),
        _from_output("relu", (0.25,), (1, 1, 2, 3), F32),
        _from_output("relu", (0.0,), (1, 31, 301, 1), F32, crowded=True),
    ]
