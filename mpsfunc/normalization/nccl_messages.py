"""What processes tell each other by NCCL, which a GPU runs like a kernel: a sum between two small kernels.

A gather is a sum, too, of what is 0 in the rows of others: mx.vmap has a right rule for sums, and walks through here
behind the rules of our operations. Launches are few, since such small vectors take less time than a launch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.numpy_later import np
from mpsfunc.normalization.params import BnMessagesMergeLaunch

Vector = mx.array


def are_sent(stream: mx.Stream) -> bool:
    """Whether the GPU itself communicates, in the order of its stream: by NCCL, and not by a ring between CPUs."""
    by_nccl = "NCCL_HOST_IP" in os.environ and not os.environ.get("MLX_HOSTFILE")  # MLX asks for both, the ring first
    return by_nccl and launch.backend(stream) == "cuda"


# Moments ------------------------------------------------------------------------------------------------

_HALF = 2**16  # counts travel as two float32, each exact: so many times this, and the rest


def moments(mean: Vector, var: Vector, count: mx.array, rank: int, size: int) -> mx.array:
    """Four rows like the mean for each process: this one's mean, variance and count, and 0 for the others."""
    return _fused_moments(mean, var, count, _rows_of(rank, size, mean.ndim))


def first_counts(counts: mx.array, like: mx.array) -> mx.array:
    """A count for all entries that it belongs to, which hold it all."""
    first = tuple(slice(0, n) for n in ((1,) * (counts.ndim - like.ndim) + tuple(like.shape)))
    return counts[first].reshape(like.shape)


def merged_rows(rows: mx.array, like: Vector, stream: mx.Stream) -> tuple[Vector, Vector, mx.array]:
    """Mean, variance and counts, from four rows like one vector of each process, one process after the other."""
    vector = tuple(like.shape)
    outputs = ((vector, like.dtype), (vector, like.dtype), (vector, mx.int64))

    def kernels() -> tuple[KernelLaunch, ...]:
        grid, params = grids.pointwise_threads(like.size), BnMessagesMergeLaunch(like.size, rows.shape[0] // 4)
        writes = ("whole_mean", "whole_var", "counts")
        return (KernelLaunch("bn_messages_merge", ("rows",), writes, outputs, *grid, params),)

    mean, var, counts = launch.launch(merged_rows.__name__, {"rows": rows}, None, outputs, kernels, stream)
    return mean, var, counts


def _moments_in_one(mean: Vector, var: Vector, count: mx.array, row: mx.array) -> mx.array:
    """Mean, variance and count below each other, as one kernel, where ``row`` is 0, 1, 2, 3; 0 where it is -1."""
    high, low = (count // _HALF).astype(mean.dtype), (count % _HALF).astype(mean.dtype)
    rest = mx.where(row == 2, high, mx.where(row == 3, low, 0.0))
    return mx.where(row == 0, mean, mx.where(row == 1, var, rest))


_fused_moments: Callable[[Vector, Vector, mx.array, mx.array], mx.array] = launch.fused(_moments_in_one)


@functools.lru_cache
def _rows_of(rank: int, size: int, axes: int) -> mx.array:
    """0, 1, 2, 3 at the rows of a process along the first axis, and -1 at those of the others."""
    rows = np.full((size, 4), -1, np.float32)
    rows[rank] = range(4)
    return mx.array(rows.reshape(4 * size, *(1,) * axes))


# Sums ---------------------------------------------------------------------------------------------------


def in_one(first: Vector, second: Vector) -> mx.array:
    """Two vectors (c,) below each other."""
    return _fused_in_one(first, second, _two_rows())


def _in_one(first: Vector, second: Vector, row: mx.array) -> mx.array:
    """Two vectors below each other, as one kernel."""
    return mx.where(row == 0, first, second)


_fused_in_one: Callable[[Vector, Vector, mx.array], mx.array] = launch.fused(_in_one)


@functools.lru_cache
def _two_rows() -> mx.array:
    return mx.array([[0.0], [1.0]])
