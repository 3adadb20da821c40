"""Arithmetic on vectors with one entry per channel, between two passes over images: one launch each.

As a chain of MLX's own operations it would cost more than a small image. Each function takes its numbers one by one and
hands them, as one record, to the operation beneath it, whose name ends in ``_kernel``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

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
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import operation

Vector = mx.array  # (c,), or rows of such
ChannelVectors = mx.array  # (rows, c)


def inverse_root(var: Vector, eps: float) -> Vector:
    """``1 / sqrt(var + eps)``, whose derivatives divide by ``var + eps`` one step at a time.

    A factor with the root's cube would overflow float32 where that is below 2e-26.
    """
    shifted = var + eps
    root, known = mx.stop_gradient(mx.rsqrt(shifted)), mx.stop_gradient(shifted)
    # The second factor is one, with the derivatives; where the root is 0 or infinite, it is that too.
    return root * mx.rsqrt(shifted / mx.where((known == 0) | mx.isinf(known), 1, known))


# The slope ----------------------------------------------------------------------------------------------


class _SlopeSpec(NamedTuple):
    params: BnSlopeParams
    stream: mx.Stream


def slope(scale: Vector, var: Vector, eps: float, stream: mx.Stream) -> Vector:
    """What an image less its mean is multiplied with."""
    if launch.backend(stream) != "cpu":
        return _fused_slope(scale, var, eps)
    return slope_kernel(scale, var, _SlopeSpec(BnSlopeParams(eps), stream))


@operation("bn_slope")
def slope_kernel(scale: Vector, var: Vector, spec: _SlopeSpec) -> Vector:
    """`slope` on the CPU."""
    vectors, result = {"scale": scale, "var": var}, (tuple(scale.shape), scale.dtype)
    return launch.launch("bn_slope", vectors, spec.params, (result,), _no_kernels, spec.stream)[0]


@slope_kernel.decomposition
def _slope_by_formula(scale: Vector, var: Vector, spec: _SlopeSpec) -> Vector:
    return _scaled_root(scale, var, spec.params.eps)


def _scaled_root(scale: Vector, var: Vector, eps: float) -> Vector:
    return scale * inverse_root(var, eps)


_fused_slope: Callable[[Vector, Vector, float], Vector] = launch.fused(_scaled_root)


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("MLX makes this kernel")


# Factors of a gradient ----------------------------------------------------------------------------------


class _ComposedFactorsSpec(NamedTuple):
    params: BnComposedFactorsParams
    stream: mx.Stream


def composed_factors(
    gamma: Vector,
    var: Vector,
    dmean: Vector,
    dvar: Vector,
    dbeta: Vector,
    dot: Vector,
    count: float,
    eps: float,
    stream: mx.Stream,
) -> tuple[Vector, Vector, Vector, Vector]:
    """The scale's gradient, and a, b and d of `rules.bn_grad` where statistics have gradients of their own."""
    spec = _ComposedFactorsSpec(BnComposedFactorsParams(count, eps), stream)
    return composed_factors_kernel(gamma, var, dmean, dvar, dbeta, dot, spec)


@operation("bn_composed_factors")
def composed_factors_kernel(
    gamma: Vector,
    var: Vector,
    dmean: Vector,
    dvar: Vector,
    dbeta: Vector,
    dot: Vector,
    spec: _ComposedFactorsSpec,
) -> tuple[Vector, Vector, Vector, Vector]:
    """`composed_factors` in one launch."""
    vectors = {"gamma": gamma, "var": var, "dmean": dmean, "dvar": dvar, "dbeta": dbeta, "dot": dot}
    record = BnComposedFactorsLaunch(gamma.size, spec.params)
    dgamma, a, b, d = _by_entry("bn_composed_factors", vectors, ("dgamma", "a", "b", "d"), spec, record)
    return dgamma, a, b, d


@composed_factors_kernel.decomposition
def _composed_factors_by_formula(
    gamma: Vector,
    var: Vector,
    dmean: Vector,
    dvar: Vector,
    dbeta: Vector,
    dot: Vector,
    spec: _ComposedFactorsSpec,
) -> tuple[Vector, Vector, Vector, Vector]:
    count, eps = spec.params
    root = inverse_root(var, eps)
    dgamma, a = dot * root, gamma * root
    share = a / count  # at once, since sums over many elements may overflow otherwise
    return dgamma, a, 2 * dvar / count - share * (root * dgamma), dmean / count - share * dbeta


# Running statistics -------------------------------------------------------------------------------------


class _RunningSpec(NamedTuple):
    params: BnRunningParams
    stream: mx.Stream


def running(
    running_mean: Vector,
    running_var: Vector,
    mean: Vector,
    var: Vector,
    count: mx.array,
    share: float,
    unbiased: float,
    stream: mx.Stream,
) -> tuple[Vector, Vector]:
    """Running statistics, in their own dtype, after a batch of ``count`` elements; ``unbiased`` is 1 or 0.

    The variance is NaN after a batch of one element, which has none, and so is its derivative by that batch's.
    """
    spec = _RunningSpec(BnRunningParams(share, unbiased), stream)
    return running_kernel(running_mean, running_var, mean, var, count, spec)


@operation("bn_running")
def running_kernel(
    running_mean: Vector, running_var: Vector, mean: Vector, var: Vector, count: mx.array, spec: _RunningSpec
) -> tuple[Vector, Vector]:
    """`running` in one launch."""
    vectors = {"running_mean": running_mean, "running_var": running_var, "mean": mean, "var": var, "count": count}
    record = BnRunningLaunch(running_mean.size, spec.params)
    moved_mean, moved_var = _by_entry("bn_running", vectors, ("moved_mean", "moved_var"), spec, record)
    return moved_mean, moved_var


@running_kernel.decomposition
def _running_by_formula(
    running_mean: Vector, running_var: Vector, mean: Vector, var: Vector, count: mx.array, spec: _RunningSpec
) -> tuple[Vector, Vector]:
    share, unbiased = spec.params
    elements = count.astype(var.dtype)
    found = var * mx.where(count == 1, math.nan, elements / (elements - 1) if unbiased else mx.ones_like(elements))
    none = count == 0
    of_mean = mx.where(none, running_mean, running_mean + share * (mean - running_mean))
    of_var = mx.where(none, running_var, running_var + share * (found - running_var))
    return of_mean.astype(running_mean.dtype), of_var.astype(running_var.dtype)


# Groups of channels -------------------------------------------------------------------------------------


class _GroupSpec(NamedTuple):
    params: BnGroupParams
    stream: mx.Stream


def group_moments(
    mean: ChannelVectors, var: ChannelVectors, groups: float, stream: mx.Stream
) -> tuple[ChannelVectors, ChannelVectors]:
    """The moments of so many groups of neighbouring channels, from those of channels; for each channel its group's.

    Sums are of how far means are from the group's first, so that equal ones have no variance.
    """
    return group_moments_kernel(mean, var, _GroupSpec(BnGroupParams(groups), stream))


@operation("group_moments")
def group_moments_kernel(
    mean: ChannelVectors, var: ChannelVectors, spec: _GroupSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """`group_moments` in one launch."""
    return _by_group("group_moments", {"mean": mean, "var": var}, ("group_mean", "group_var"), spec)


@group_moments_kernel.decomposition
def _group_moments_by_formula(
    mean: ChannelVectors, var: ChannelVectors, spec: _GroupSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    groups = int(spec.params.groups)
    apart = (mean.shape[0], groups, mean.shape[1] // groups)
    means, variances = mean.reshape(apart), var.reshape(apart)
    pivot = mx.stop_gradient(means[..., :1])
    off = (means - pivot).mean(-1, keepdims=True)
    spread = (variances + (means - pivot - off) ** 2).mean(-1, keepdims=True)
    whole, wide = (mx.broadcast_to(a, apart).reshape(mean.shape) for a in (pivot + off, spread))
    return whole, wide


def group_sums(
    b: ChannelVectors, d: ChannelVectors, groups: float, stream: mx.Stream
) -> tuple[ChannelVectors, ChannelVectors]:
    """For each channel the sums over its group of neighbouring channels."""
    return group_sums_kernel(b, d, _GroupSpec(BnGroupParams(groups), stream))


@operation("bn_group_sums")
def group_sums_kernel(b: ChannelVectors, d: ChannelVectors, spec: _GroupSpec) -> tuple[ChannelVectors, ChannelVectors]:
    """`group_sums` in one launch."""
    return _by_group("bn_group_sums", {"b": b, "d": d}, ("group_b", "group_d"), spec)


@group_sums_kernel.decomposition
def _group_sums_by_formula(
    b: ChannelVectors, d: ChannelVectors, spec: _GroupSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    groups = int(spec.params.groups)
    apart = (b.shape[0], groups, b.shape[1] // groups)
    of_b, of_d = (mx.broadcast_to(a.reshape(apart).sum(-1, keepdims=True), apart).reshape(b.shape) for a in (b, d))
    return of_b, of_d


# Launches -----------------------------------------------------------------------------------------------


def _by_entry(
    op: str,
    vectors: dict[str, mx.array],
    writes: tuple[str, ...],
    spec: _ComposedFactorsSpec | _RunningSpec,
    on_gpu: BnComposedFactorsLaunch | BnRunningLaunch,
) -> list[Vector]:
    """Results like the first vector, of which every entry is a thread's; ``on_gpu`` is the kernel's record."""
    first = next(iter(vectors.values()))
    results = ((tuple(first.shape), first.dtype),) * len(writes)
    if launch.backend(spec.stream) != "cpu":  # where Metal would be handed a number instead of an array
        vectors = {name: v if v.ndim else v[None] for name, v in vectors.items()}

    def kernels() -> tuple[KernelLaunch, ...]:
        return (KernelLaunch(op, tuple(vectors), writes, results, *grids.pointwise_threads(first.size), on_gpu),)

    return launch.launch(op, vectors, spec.params, results, kernels, spec.stream)


def _by_group(
    op: str, rows: dict[str, ChannelVectors], writes: tuple[str, str], spec: _GroupSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """Two results like the rows, in which a group of channels is what up to 32 threads share."""
    first = next(iter(rows.values()))
    results = ((tuple(first.shape), first.dtype),) * 2

    def kernels() -> tuple[KernelLaunch, ...]:
        size = first.shape[1] // int(spec.params.groups)
        sharing = min(32, grids.power_of_two(size))
        grid, group = grids.sharing_threads(first.size // size, sharing)
        template = (("R", sharing),)
        return (KernelLaunch(op, tuple(rows), writes, results, grid, group, BnGroupLaunch(size), template),)

    of_first, of_second = launch.launch(op, rows, spec.params, results, kernels, spec.stream)
    return of_first, of_second


# Two sets together --------------------------------------------------------------------------------------


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
