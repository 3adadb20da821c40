"""Calls of the normalizations' C++ primitives by themselves."""

from __future__ import annotations

import struct

import mlx.core as mx
import pytest

from support import accumulator, numbers

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

# The `isa` of the fixture; the uppermost decorator's values take turns with all others the same.
each_isa = pytest.mark.parametrize("isa", _primitives.isas(), indirect=True)


def packed(*values: float) -> tuple[int, ...]:
    """Doubles as the words that a kernel is told."""
    return tuple(i for value in values for i in struct.unpack("2i", struct.pack("d", value)))


NEURONS = (0, *packed(0, 0, 0)), (1, *packed(0, 0, 0))  # none and a relu, as kernels are told


def run(op: str, arrays: list[mx.array], params: tuple[int, ...], *outputs: tuple[tuple[int, ...], mx.Dtype]) -> list:
    """What a primitive of this name returns."""
    shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
    return getattr(_primitives, op)(arrays, list(params), shapes, dtypes, mx.cpu)


def like(op: str, arrays: list[mx.array], params: tuple[int, ...]) -> mx.array:
    """An operation whose only output is like its first input."""
    return run(op, arrays, params, (arrays[0].shape, arrays[0].dtype))[0]


def norm(op: str, x: mx.array, size: int, *numbers: float) -> mx.array:
    """A normalization by windows."""
    return like(op, [x], (size, *packed(*numbers)))


def norm_grad(op: str, dy: mx.array, x: mx.array, size: int, *numbers: float) -> mx.array:
    """Its gradient."""
    return like(f"{op}_grad", [dy, x], (size, *packed(*numbers)))


def power(t: mx.array, exponent: float) -> mx.array:
    """Powers of an array."""
    return like("power", [t], packed(exponent))


def stats(x: mx.array, groups: int) -> list[mx.array]:
    """Mean and variance of groups of images."""
    return run("bn_stats", [x], (), *[((groups, x.shape[-1]), accumulator(x.dtype))] * 2)


def stats_grad(arrays: list[mx.array], neuron: int) -> list[mx.array]:
    """The sums that a gradient needs."""
    return run("bn_stats_grad", arrays, NEURONS[neuron], *[(arrays[2].shape, arrays[2].dtype)] * 2)


def vectors(count: int, shape: tuple[int, ...], dtype: mx.Dtype) -> list[mx.array]:
    """So many random vectors, in the accumulator's dtype."""
    return [numbers(shape, accumulator(dtype), seed=10 + i) for i in range(count)]
