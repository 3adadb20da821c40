"""How the four kernels over images and vectors run on a GPU.

Images (n, h, w, c) come in statistics groups that follow one another, n / stat_groups images each; vectors
(stat_groups, c), or (c,) where there is one group, have an entry for each channel of a group. The activation is of
``(x - mean) * scale + shift``; without one
nobody hands ``scale`` and ``shift`` over. Arrays have the names that the functions here tell.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.channels.params import (
    BnGradCoefficientsLaunch,
    BnGradLaunch,
    BnNormalizeLaunch,
    BnStatsGradFactorsLaunch,
    BnStatsGradLaunch,
    BnStatsGradMergeLaunch,
    BnStatsLaunch,
    BnStatsMergeLaunch,
)
from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch, Name
from mpsfunc.core.params import Threadgroup

# Pixels for which a thread reads its channels' numbers once, by bytes of a number; more where a grid got too high.
_SHARE = {4: 4, 2: 8}
# Bytes of images that a GPU's L2 holds beside all else; of an H200's 50 MB.
_CACHED = 30 * 10**6
_BY_PARAMETERS = ("scale", "gamma"), ("shift", "beta")  # which all statistics groups share


def bn_stats(x: mx.array, stat_groups: int) -> tuple[KernelLaunch, ...]:
    """Population variance ``var`` and ``mean`` (stat_groups, c) of x."""
    n, height, width, channels = x.shape
    per_thread, grid, group = _columns(x, stat_groups)
    parts, shares = grid[1] // group[1], _shares(x, stat_groups, grid)
    part, result = ((parts, stat_groups * channels), mx.float32), ((stat_groups, channels), mx.float32)
    of_parts = ("mean", "part_mean"), ("m2", "part_m2")
    params = BnStatsLaunch(Threadgroup(*group[:2]), stat_groups, _kept(x, stat_groups, grid, 1), *shares)
    waiting = (("V", per_thread), ("W", 8 if shares[0] >= 16 else 4), (grids.RESIDENT, 2))
    merging, merger = grids.merging_threads(stat_groups * channels, parts)
    share = 1 / (n // stat_groups * height * width)
    merge_params = BnStatsMergeLaunch(Threadgroup(*merger[:2]), group[1], *shares, share)
    writes = ("out_mean", "mean"), ("out_var", "var")
    return (
        KernelLaunch("bn_stats", ("x",), of_parts, (part, part), grid, group, params, waiting),
        KernelLaunch("bn_stats_merge", (*of_parts, "x"), writes, (result, result), merging, merger, merge_params),
    )


def bn_stats_grad(dy: mx.array, stat_groups: int, act: Activation) -> tuple[KernelLaunch, ...]:
    """Sums of g and of g * (x - mean) over each channel, g = dy through the neuron, from dy, x, mean[, scale, shift].

    The result is flat: stat_groups * c sums of g, then as many of the products.
    """
    first = _bn_stats_grad(dy, stat_groups, act)
    parts, length = first.results[0][0]
    return first, launch.sum_partials(length, parts)


def bn_normalize(x: mx.array, stat_groups: int, act: Activation, *, adds: bool = False) -> tuple[KernelLaunch, ...]:
    """``y = (x - mean) * scale + shift``, to which ``added`` may be, activated, from x[, added], mean, scale, shift."""
    return (_bn_normalize(x, stat_groups, act, None, ("scale", "shift", ("var", "mean")), adds),)


def batch_norm(
    x: mx.array, vector: launch.Output, act: Activation, eps: float, *, adds: bool = False
) -> tuple[KernelLaunch, ...]:
    """Images normalized by their own statistics: y, mean and var, from x[, added], gamma and beta.

    ``vector``, of the statistics, is (c,), or (n, c) where each image has its own; gamma and beta are (c,).
    """
    stat_groups = _stat_groups(vector)
    first, merge = bn_stats(x, stat_groups)
    merge = merge._replace(results=(vector, vector))
    return first, merge, _bn_normalize(x, stat_groups, act, eps, (*_BY_PARAMETERS, "var"), adds)


def batch_norm_grad(
    dy: mx.array, vector: launch.Output, act: Activation, count: float, eps: float
) -> tuple[KernelLaunch, ...]:
    """The gradients dx, dgamma and dbeta of `batch_norm`.

    From dy, x, gamma, beta, mean, var and the gradients dmean and dvar of those two.
    """
    stat_groups, channels = _stat_groups(vector), dy.shape[3]
    first = _bn_stats_grad(dy, stat_groups, act, eps)
    grid, group = grids.merging_threads(stat_groups * channels, first.results[0][0][0])
    reads, writes = ("partial", "gamma", "var", "dmean", "dvar"), ("dgamma", "dbeta", "a", "b", "d")
    params = BnStatsGradFactorsLaunch(Threadgroup(*group[:2]), channels, count, eps)
    factors = KernelLaunch("bn_stats_grad_factors", reads, writes, (vector,) * 5, grid, group, params)
    return first, factors, _bn_grad(dy, stat_groups, act, shared=True)


def bn_grad(dy: mx.array, stat_groups: int, act: Activation) -> tuple[KernelLaunch, ...]:
    """``dx = a * g + b * (x - mean) + d``, g = dy through the neuron, from dy, x, mean, a, b, d[, scale, shift]."""
    return (_bn_grad(dy, stat_groups, act, shared=False),)


def bn_normalize_by(x: mx.array, act: Activation, eps: float) -> tuple[KernelLaunch, ...]:
    """Images y normalized by a batch's statistics, from x, mean, var, gamma and beta, vectors (c,)."""
    return (_bn_normalize(x, 1, act, eps, (*_BY_PARAMETERS, "var")),)


def bn_stats_grad_by(dy: mx.array, act: Activation, eps: float) -> tuple[KernelLaunch, ...]:
    """The gradients (c,) of a batch's scale and shift, grown by those of some images.

    From dy, x, mean, var, dgamma, dbeta[, gamma, beta].
    """
    channels, first = dy.shape[3], _bn_stats_grad(dy, 1, act, eps)
    grid, group = grids.merging_threads(channels, first.results[0][0][0])
    reads, writes = ("partial", "var", "dgamma", "dbeta"), ("new_dgamma", "new_dbeta")
    params, result = BnStatsGradMergeLaunch(Threadgroup(*group[:2]), eps), ((channels,), mx.float32)
    return first, KernelLaunch("bn_stats_grad_merge", reads, writes, (result, result), grid, group, params)


def bn_grad_by(dy: mx.array, act: Activation, eps: float) -> tuple[KernelLaunch, ...]:
    """The gradient dx of images that a batch normalized.

    From dy, x, mean, var, dgamma, dbeta, gamma, count[, beta].
    """
    channels = dy.shape[3]
    vector = ((channels,), mx.float32)
    names = ("gamma", "var", "dgamma", "dbeta", "count"), ("a", "b", "d")
    params = BnGradCoefficientsLaunch(channels, eps)
    coefficients = KernelLaunch(
        "bn_grad_coefficients", *names, (vector,) * 3, *grids.pointwise_threads(channels), params
    )
    return coefficients, _bn_grad(dy, 1, act, shared=True)


def _bn_grad(dy: mx.array, stat_groups: int, act: Activation, *, shared: bool) -> KernelLaunch:
    """`bn_grad`, for statistics groups that share the shift or have one each."""
    # Where they share it, the factor of g is what the image less its mean is multiplied with, too.
    neuron: tuple[Name, ...] = (("scale", "a"), ("shift", "beta")) if shared else ("scale", "shift")
    reads = ("dy", "x", "mean", "a", "b", "d", *_of_neuron(act, neuron))
    grid, group, share, constants = _by_pixel(dy, stat_groups, act)
    params = BnGradLaunch(stat_groups, group[1], share, act.gpu_params)
    return KernelLaunch("bn_grad", reads, ("dx",), (_like(dy),), grid, group, params, (*constants, ("R", int(shared))))


def _stat_groups(vector: launch.Output) -> int:
    shape, _ = vector
    return 1 if len(shape) == 1 else shape[0]


def _bn_normalize(
    x: mx.array, stat_groups: int, act: Activation, eps: float | None, vectors: tuple[Name, ...], adds: bool = False
) -> KernelLaunch:
    grid, group, share, constants = _by_pixel(x, stat_groups, act)
    params = BnNormalizeLaunch(stat_groups, group[1], share, eps or 0.0, act.gpu_params)
    constants = (*constants, ("R", int(eps is not None)), ("A", int(adds)))
    reads = ("x", "added" if adds else ("added", "x"), "mean", *vectors)  # x stands in
    return KernelLaunch("bn_normalize", reads, ("y",), (_like(x),), grid, group, params, constants)


def _bn_stats_grad(dy: mx.array, stat_groups: int, act: Activation, eps: float | None = None) -> KernelLaunch:
    """Partial sums side by side, a row for each part of the pixels.

    From dy, x, mean[, scale, shift], or with ``eps`` from dy, x, mean[, gamma, beta, var].
    """
    per_thread, grid, group = _columns(dy, stat_groups)
    parts = ((grid[1] // group[1], 2 * stat_groups * dy.shape[3]), mx.float32)
    given: tuple[Name, ...] = ("scale", "shift", ("var", "mean")) if eps is None else (*_BY_PARAMETERS, "var")
    reads = ("dy", "x", "mean", *_of_neuron(act, given))
    template = (("V", per_thread), ("N", act.kind), ("R", int(bool(act.kind) and eps is not None)), ("W", 4))
    shares, kept = _shares(dy, stat_groups, grid), _kept(dy, stat_groups, grid, 2)
    params = BnStatsGradLaunch(Threadgroup(*group[:2]), stat_groups, kept, *shares, eps or 0.0, act.gpu_params)
    return KernelLaunch("bn_stats_grad", reads, ("partial",), (parts,), grid, group, params, template)


def _of_neuron(act: Activation, names: tuple[Name, ...]) -> tuple[Name, ...]:
    """What a body reads for a neuron only. Without one the mean stands in and is not read."""
    return names if act.kind else tuple((name if isinstance(name, str) else name[0], "mean") for name in names)


def _columns(x: mx.array, stat_groups: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]]:
    """Channels of a thread, and the grid and threadgroup that sum over the pixels of each statistics group."""
    n, height, width, channels = x.shape
    per_thread = grids.vector_width(x.dtype, channels, x.size)
    pixels = n // stat_groups * height * width
    return per_thread, *grids.column_threads(channels // per_thread, pixels, stat_groups, register_heavy=True)


def _shares(x: mx.array, stat_groups: int, grid: tuple[int, int, int]) -> tuple[int, int]:
    """Pixels of a thread at least, and how many rows of threads have one more."""
    n, height, width, _ = x.shape
    return divmod(n // stat_groups * height * width, grid[1])


def _kept(x: mx.array, stat_groups: int, grid: tuple[int, int, int], images: int) -> int:
    """The first of a thread's pixels that a cache holds until the next kernel, of so many images like x."""
    fewest, longer = _shares(x, stat_groups, grid)
    turns = fewest + (longer > 0)
    return turns - min(turns, turns * _CACHED // max(images * x.nbytes, 1))


def _by_pixel(
    x: mx.array, stat_groups: int, act: Activation
) -> tuple[tuple[int, int, int], tuple[int, int, int], int, tuple[tuple[str, int], ...]]:
    """Grid and threadgroup for some channels of some pixels of a group, how many pixels those are, and constants."""
    n, height, width, channels = x.shape
    per_thread, pixels = grids.vector_width(x.dtype, channels, x.size), n // stat_groups * height * width
    (across, down, _), group = grids.threads(channels // per_thread, -(-pixels // _SHARE[x.dtype.size]))
    down = -(-down // group[1]) * group[1]
    return (across * stat_groups, down, 1), group, -(-pixels // down), (("V", per_thread), ("N", act.kind), ("W", 4))


def _like(x: mx.array) -> launch.Output:
    return tuple(x.shape), x.dtype
