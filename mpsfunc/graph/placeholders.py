"""Arrays that go into a network: placeholders for shapes, and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from mpsfunc.core import arguments
from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe
from mpsfunc.graph.nodes import Shape, shown


def placeholders(inputs: Any) -> dict[str, mx.array]:
    """Arrays that nobody evaluates, of given shapes."""
    if not is_a(inputs, Mapping):
        raise TypeError(f"graph: inputs is not a dict; got {shown(inputs)}, expected names and shapes")
    return {name: _placeholder(name, given) for name, given in inputs.items()}


def _placeholder(name: str, given: Any) -> mx.array:
    if is_a(given, mx.array):
        return given
    shape, dtype = given, mx.float32
    pair = arguments.entries(given) or ()
    if len(pair) == 2 and is_a(pair[1], mx.Dtype):
        shape, dtype = pair
    known = arguments.entries(shape)
    sizes = [None] if known is None else [arguments.whole(size) for size in known]
    lengths = [size for size in sizes if size is not None and 0 <= size < 2**31]
    if len(lengths) != len(sizes):
        raise TypeError(
            f"graph: input {describe(name)} is not a shape; got {shown(given)}, "
            "expected a shape, (shape, dtype) or an mx.array"
        )
    return mx.zeros(lengths, dtype)


def first_value(name: str, shape: Shape, key: mx.array) -> mx.array:
    """A parameter before the first step."""
    if name == "w":
        return mx.random.normal(shape, scale=math.sqrt(2 / math.prod(shape[1:])), key=key)
    return mx.full(shape, {"gamma": 1.0, "slopes": 0.25}.get(name, 0.0))


def fitting(given: Any, shapes: dict[str, Shape]) -> dict[str, mx.array]:
    """Parameters of a node, if they are what it needs."""
    for name, shape in shapes.items():
        if not is_a(given, Mapping) or name not in given:
            known = list(given) if is_a(given, Mapping) else given
            raise ValueError(f"a parameter is missing; got {describe(known)}, expected {list(shapes)}")
        if not is_a(given[name], mx.array):
            raise TypeError(f"{name} is not an array; got {name}={shown(given[name])}, expected an mx.array")
        if tuple(given[name].shape) != shape:
            raise ValueError(f"{name} does not fit; got {name}.shape={tuple(given[name].shape)}, expected {shape}")
    return {name: given[name] for name in shapes}
