"""Sums that leave out zeros which nobody has looked at.

A state's gradients begin with zeros. Adding the first gradient to them would cost a pass over all weights, and on a GPU
a launch.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc import _launch


def grown(before: mx.array, more: mx.array) -> mx.array:
    """``before + more`` in the accumulator's dtype; ``more`` alone where ``before`` is an ``mx.zeros`` yet to be made.

    Zeros that have been made might have been written to, through a view.
    """
    if _launch.unmade_zeros(before) and before.dtype in (mx.float32, mx.float64):
        return more.astype(mx.float64 if mx.float64 in (before.dtype, more.dtype) else mx.float32)
    total: mx.array = _added(before, more)
    return total


@_launch.fused
def _added(before: mx.array, more: mx.array) -> mx.array:
    return before + more.astype(_launch.accumulator(more.dtype))
