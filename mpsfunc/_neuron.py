"""The activations that a convolution can apply itself, and their slopes told from what they returned."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _launch
from mpsfunc._launch import Stage
from mpsfunc._rules import differentiable, over_batches

NONE, RELU = 0, 1  # as kernels number them
NAMES = {"relu": RELU}


class _On(NamedTuple):
    neuron: int
    stream: mx.Stream


def code(op: str, neuron: object) -> int:
    """The number of an activation by name; None is none."""
    if neuron is None:
        return NONE
    if not isinstance(neuron, str):
        raise TypeError(f"{op}: neuron is not a name; got neuron={neuron!r}, expected None or 'relu'")
    if neuron not in NAMES:
        raise ValueError(f"{op}: unknown neuron; got neuron={neuron!r}, expected None or 'relu'")
    return NAMES[neuron]


def name(neuron: int) -> str:
    """The name of an activation by its number."""
    return next(word for word, number in NAMES.items() if number == neuron)


def apply(z: mx.array, neuron: int) -> mx.array:
    """The activation of z by MLX's own operations; NaN stays NaN."""
    return mx.where(z <= 0, mx.zeros_like(z), z) if neuron else z


def activated(z: mx.array, neuron: int) -> mx.array:
    """`apply` with the slope of MPS at its kinks: the right one."""
    return mx.where(z < 0, mx.zeros_like(z), z) if neuron else z


def pull_by_source(dy: mx.array, z: mx.array, neuron: int) -> mx.array:
    """The gradient of what was activated, ``z``, from the gradient ``dy`` of what came out, as `activated` has it."""
    return mx.where(z < 0, mx.zeros_like(dy), dy) if neuron else dy


def pull(dy: mx.array, y: mx.array, neuron: int, stream: mx.Stream) -> mx.array:
    """The gradient of what was activated, from the gradient ``dy`` of what came out, ``y``."""
    dz: mx.array = _slope(dy, y, _On(neuron, stream)) if neuron else dy
    return dz


def _run(dy: mx.array, y: mx.array, on: _On) -> mx.array:
    result = (tuple(dy.shape), dy.dtype)

    def stages() -> tuple[Stage, ...]:
        per_thread = _launch.lanes(dy.dtype, dy.size, dy.size)
        grid, group = _launch.pointwise_threads(dy.size // per_thread)
        unroll = (("V", per_thread),)
        return (Stage("neuron_pull", ("dy", "y"), ("dz",), (result,), grid, group, (), unroll),)

    return _launch.launch("neuron_pull", [dy, y], (on.neuron,), (result,), stages, on.stream)[0]


def _vjp(arrays: Any, cotangents: Any, outputs: Any, on: _On) -> Any:
    (_, y), (u,) = arrays, cotangents
    return _slope(u, y, on), None  # the slope of a relu is flat


def _jvp(arrays: Any, tangents: Any, on: _On) -> Any:
    (dy, y), (t, _) = arrays, tangents
    return mx.zeros_like(dy) if t is None else _slope(t, y, on)


_slope: Any = differentiable("neuron_pull", _run, vjp=_vjp, jvp=_jvp, vmap=over_batches(lambda: _slope))
