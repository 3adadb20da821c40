"""Zeros that cost nothing: sums that leave out those which nobody has looked at, and vectors that need not be made.

A state's gradients begin with zeros. Adding the first gradient to them would cost a pass over all weights, and on a GPU
a launch. An ``mx.zeros`` of a vector that a kernel only reads costs MLX some three nodes of a graph.
"""

from __future__ import annotations

import functools

import mlx.core as mx

from mpsfunc.core import launch, lazy
from mpsfunc.core.numpy_later import np


def accumulate(before: mx.array, more: mx.array) -> mx.array:
    """``before + more`` in the accumulator's dtype; ``more`` alone where ``before`` is an ``mx.zeros`` yet to be made.

    Zeros that have been made might have been written to, through a view.
    """
    if lazy.is_lazy_zeros(before) and before.dtype in (mx.float32, mx.float64):
        return more.astype(mx.float64 if mx.float64 in (before.dtype, more.dtype) else mx.float32)
    total: mx.array = _added(before, more)
    return total


@launch.fused
def _added(before: mx.array, more: mx.array) -> mx.array:
    return before + more.astype(launch.accumulator(more.dtype))


@functools.lru_cache(maxsize=256)
def constant(value: float, length: int, dtype: mx.Dtype) -> mx.array:
    """A vector with its values at hand, as a constant of every stream: for kernels to read, not for users."""
    return mx.array(np.full(length, value), dtype)
