"""The zeros with which a state's gradients begin, and sums that leave them out.

Adding the first gradient to them would cost a pass over all weights, and on a GPU a launch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import mlx.core as mx

from mpsfunc import _launch


def zeros(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Zeros of float32 or float64 that take no memory. `grown` knows them again, until they are changed in place."""
    none: mx.array = copy.copy(_known(tuple(shape), dtype))
    return none


def grown(before: mx.array, more: mx.array) -> mx.array:
    """``before + more`` in the accumulator's dtype."""
    double = mx.float64 in (before.dtype, more.dtype)
    if before.dtype in (mx.float32, mx.float64) and _launch.same(before, _known(tuple(before.shape), before.dtype)):
        return more.astype(mx.float64 if double else mx.float32)
    total: mx.array = _added(before, more)
    return total


@functools.lru_cache(maxsize=1024)
def _known(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """One zero, seen so often; with its value at hand, as a constant of every stream."""
    none = mx.broadcast_to(mx.array(0, dtype), shape, stream=mx.cpu)
    mx.eval(none)
    return none


@_launch.fused
def _added(before: mx.array, more: mx.array) -> mx.array:
    return before + more.astype(_launch.accumulator(more.dtype))
