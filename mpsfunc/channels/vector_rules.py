"""Arithmetic on vectors with one entry a channel, between two passes over images: one launch each.

As a chain of MLX's own operations it would cost more than a small image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels.params import (
    BnComposedFactorsLaunch,
    BnComposedFactorsParams,
    BnGroupLaunch,
    BnGroupParams,
    BnRunningLaunch,
    BnRunningParams,
    BnSlopeParams,
)
from mpsfunc.core import grids, launch, lazy
from mpsfunc.core.autodiff import with_decomposition
from mpsfunc.core.launch import KernelLaunch

Vector = mx.array  # (c,), or rows of such
ChannelVectors = mx.array  # (rows, c)


class _Spec(NamedTuple):
    params: Any  # a record of the function's numbers
    stream: mx.Stream


def _one_launch(
    op: str, reads: str, writes: str, params: Callable[..., Any], on_gpu: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes ``function(*vectors, *numbers, stream)`` one GPU kernel, or the CPU primitive ``op`` that computes it too.

    The function, of MLX's operations, gives the derivatives.

    Args:
        op: The operation, and where it has one its body.
        reads: Names of the vectors.
        writes: Names of the results.
        params: Makes a record of the numbers.
        on_gpu: Grid, threadgroup, parameters and constants of the body, from the first vector and that record. Default:
            there is no body; MLX makes one kernel of a chain that ends in one result.
    """
    inputs, outputs = tuple(reads.split()), tuple(writes.split())

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = mx.compile(function)

        def run(*arrays: Any) -> Any:
            *vectors, spec = arrays
            results = ((tuple(vectors[0].shape), vectors[0].dtype),) * len(outputs)

            def kernels() -> tuple[KernelLaunch, ...]:
                assert on_gpu is not None, "MLX makes this kernel"
                return (KernelLaunch(op, inputs, outputs, results, *on_gpu(vectors[0], spec.params)),)

            if launch.backend(spec.stream) != "cpu":  # where Metal would be handed a number instead of an array
                vectors = [v if v.ndim else v[None] for v in vectors]
            named = dict(zip(inputs, vectors, strict=True))
            made = launch.launch(op, named, spec.params, results, kernels, spec.stream)
            return tuple(made) if len(outputs) > 1 else made[0]

        rule = with_decomposition(op, run, lambda *args: function(*args[:-1], *args[-1].params))

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            *operands, stream = args
            if on_gpu is None and launch.backend(stream) != "cpu":
                return compiled(*operands)
            return rule(*operands[: len(inputs)], _Spec(params(*operands[len(inputs) :]), stream))

        return call

    return wrap


def _by_entry(record: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel in which every entry is a thread's, whose record is the number of entries and the parameters."""
    return lambda vector, params: (*grids.pointwise_threads(vector.size), record(vector.size, params))


def _by_group(rows: ChannelVectors, params: BnGroupParams) -> tuple[Any, ...]:
    """A kernel in which a group of channels is what up to 32 threads share."""
    size = rows.shape[1] // int(params.groups)
    sharing = min(32, grids.power_of_two(size))
    return *grids.sharing_threads(rows.size // size, sharing), BnGroupLaunch(size), (("R", sharing),)


def inverse_root(var: Vector, eps: float) -> Vector:
    """``1 / sqrt(var + eps)``, whose derivatives divide by ``var + eps`` one step at a time.

    A factor with the root's cube would overflow float32 where that is below 2e-26.
    """
    shifted = var + eps
    root, known = mx.stop_gradient(mx.rsqrt(shifted)), mx.stop_gradient(shifted)
    # The second factor is one, with the derivatives; where the root is 0 or infinite, it is that too.
    return root * mx.rsqrt(shifted / mx.where((known == 0) | mx.isinf(known), 1, known))


@_one_launch("bn_slope", "scale var", "slope", BnSlopeParams)
def slope(scale: Vector, var: Vector, eps: float) -> Vector:
    """What an image less its mean is multiplied with."""
    return scale * inverse_root(var, eps)


@_one_launch(
    *("bn_composed_factors", "gamma var dmean dvar dbeta dot", "dgamma a b d"),
    *(BnComposedFactorsParams, _by_entry(BnComposedFactorsLaunch)),
)
def composed_factors(
    gamma: Vector,
    var: Vector,
    dmean: Vector,
    dvar: Vector,
    dbeta: Vector,
    dot: Vector,
    count: float,
    eps: float,
) -> tuple[Vector, Vector, Vector, Vector]:
    """The scale's gradient, and `factors` where the statistics have gradients of their own."""
    root = inverse_root(var, eps)
    dgamma, a = dot * root, gamma * root
    share = a / count  # at once, since sums over many elements may overflow otherwise
    return dgamma, a, 2 * dvar / count - share * (root * dgamma), dmean / count - share * dbeta


@_one_launch(
    *("bn_running", "running_mean running_var mean var count", "moved_mean moved_var"),
    *(BnRunningParams, _by_entry(BnRunningLaunch)),
)
def running(
    running_mean: Vector,
    running_var: Vector,
    mean: Vector,
    var: Vector,
    count: mx.array,
    share: float,
    unbiased: float,
) -> tuple[Vector, Vector]:
    """Running statistics, in their own dtype, after a batch of ``count`` elements; ``unbiased`` is 1 or 0.

    The variance is NaN after a batch of one element, which has none, and so is its derivative by that batch's.
    """
    elements = count.astype(var.dtype)
    found = var * mx.where(count == 1, math.nan, elements / (elements - 1) if unbiased else mx.ones_like(elements))
    none = count == 0
    of_mean = mx.where(none, running_mean, running_mean + share * (mean - running_mean))
    of_var = mx.where(none, running_var, running_var + share * (found - running_var))
    return of_mean.astype(running_mean.dtype), of_var.astype(running_var.dtype)


@_one_launch("group_moments", "mean var", "group_mean group_var", BnGroupParams, _by_group)
def group_moments(mean: ChannelVectors, var: ChannelVectors, groups: float) -> tuple[ChannelVectors, ChannelVectors]:
    """The moments of so many groups of neighbouring channels, from those of channels; for each channel its group's.

    Sums are of how far means are from the group's first, so that equal ones have no variance.
    """
    apart = (mean.shape[0], int(groups), mean.shape[1] // int(groups))
    means, variances = mean.reshape(apart), var.reshape(apart)
    pivot = mx.stop_gradient(means[..., :1])
    off = (means - pivot).mean(-1, keepdims=True)
    spread = (variances + (means - pivot - off) ** 2).mean(-1, keepdims=True)
    whole, wide = (mx.broadcast_to(a, apart).reshape(mean.shape) for a in (pivot + off, spread))
    return whole, wide


@_one_launch("bn_group_sums", "b d", "group_b group_d", BnGroupParams, _by_group)
def group_sums(b: ChannelVectors, d: ChannelVectors, groups: float) -> tuple[ChannelVectors, ChannelVectors]:
    """For each channel the sums over its group of neighbouring channels."""
    apart = (b.shape[0], int(groups), b.shape[1] // int(groups))
    of_b, of_d = (mx.broadcast_to(a.reshape(apart).sum(-1, keepdims=True), apart).reshape(b.shape) for a in (b, d))
    return of_b, of_d


def joined(
    mean_a: Vector, var_a: Vector, count_a: mx.array, mean_b: Vector, var_b: Vector, count_b: mx.array
) -> tuple[Vector, Vector, mx.array]:
    """Mean, population variance and count of two sets together, by the pairwise rule; an empty set changes nothing."""
    a, b = lazy.known_count(count_a), lazy.known_count(count_b)
    count = count_a + count_b if a is None or b is None else mx.array(a + b, mx.int64)
    both = mx.maximum(count, 1).astype(mean_a.dtype)
    shares = count_a.astype(mean_a.dtype) / both, count_b.astype(mean_a.dtype) / both
    share_a, share_b = (mx.stop_gradient(share) for share in shares)
    apart = mean_b - mean_a
    return (
        mx.where(count_a == 0, mean_b, mean_a + apart * share_b),
        mx.where(count_a == 0, var_b, var_a * share_a + var_b * share_b + apart * apart * (share_a * share_b)),
        count,
    )
