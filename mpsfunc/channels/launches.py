"""How the four kernels over images and vectors run on a GPU.

Images (n, h, w, c) come in sets that follow one another, n / sets images each; vectors (sets, c), or (c,) where there
is one set, have an entry for each channel of a set. The activation is of ``(x - mean) * scale + shift``; without one
nobody hands ``scale`` and ``shift`` over. What one operation's stages read is counted as for `Stage.reads`.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.core import grids, launch
from mpsfunc.core.launch import Stage

# Where the results of `normalized` and `gradients` are among the arrays that their stages read and make.
NORMALIZED = (7, 5, 6)
GRADIENTS = (14, 9, 10)
# Pixels for which a thread reads its channels' numbers once, by bytes of a number; more where a grid got too high.
_SHARE = {4: 4, 2: 8}
# Bytes of images that a GPU's L2 holds beside all else; of an H200's 50 MB.
_CACHED = 30 * 10**6


def moments(x: mx.array, sets: int) -> tuple[Stage, ...]:
    """Mean and population variance (sets, c) of x; the last stage wants x again, as ``finally_with=[x]``."""
    n, height, width, channels = x.shape
    per_thread, grid, group = _columns(x, sets)
    parts, shares = grid[1] // group[1], _shares(x, sets, grid)
    part, result = ((parts, sets * channels), mx.float32), ((sets, channels), mx.float32)
    names = ("mean", "m2")
    params = (*group[:2], sets, _kept(x, sets, grid, 1), *shares)
    waiting = (("V", per_thread), ("W", 8 if shares[0] >= 16 else 4), (launch.RESIDENT, 2))
    merging, merger = grids.merging_threads(sets * channels, parts)
    outputs, results = ("out_mean", "out_var"), (result, result)
    of_parts = (*merger[:2], group[1], *shares, *launch.bits(1 / (n // sets * height * width)))
    return (
        Stage("bn_stats", ("x",), names, (part, part), grid, group, params, waiting),
        Stage("bn_stats_merge", (*names, "x"), outputs, results, merging, merger, of_parts),
    )


def sums(dy: mx.array, sets: int, act: Activation) -> tuple[Stage, ...]:
    """Sums of g and of g * (x - mean) over each channel, g = dy through the neuron, from dy, x, mean[, scale, shift].

    The result is flat: sets * c sums of g, then as many of the products.
    """
    first = _sums(dy, sets, act)
    parts, length = first.results[0][0]
    return first, launch.sum_partials(length, parts)


def affine(x: mx.array, sets: int, act: Activation) -> tuple[Stage, ...]:
    """``(x - mean) * scale + shift``, activated, from x, mean, scale, shift."""
    return (_normalize(x, sets, act, None, (0, 1, 2, 3, 1)),)


def normalized(x: mx.array, vector: launch.Output, act: Activation, eps: float) -> tuple[Stage, ...]:
    """Images normalized by their own statistics, from x, scale and shift; `NORMALIZED` says where y, mean and var are.

    ``vector``, of the statistics, is (c,), or (n, c) where each image has its own; scale and shift are (c,).
    """
    sets = _sets(vector)
    first, merge = moments(x, sets)
    merge = merge._replace(results=(vector, vector), reads=(3, 4, 0))
    return first._replace(reads=(0,)), merge, _normalize(x, sets, act, eps, (0, 5, 1, 2, 6))


def gradients(dy: mx.array, vector: launch.Output, act: Activation, count: float, eps: float) -> tuple[Stage, ...]:
    """The gradients of `normalized`, from dy, x, scale, shift, mean, var and the gradients of those two.

    `GRADIENTS` says where those of images, scale and shift are.
    """
    sets, channels = _sets(vector), dy.shape[3]
    reads = (0, 1, 4, 2, 3, 5) if act.kind else (0, 1, 4, 4, 4, 4)
    first = _sums(dy, sets, act, eps)._replace(reads=reads)
    grid, group = grids.merging_threads(sets * channels, first.results[0][0][0])
    inputs, outputs = ("partial", "gamma", "var", "dmean", "dvar"), ("dgamma", "dbeta", "a", "b", "d")
    params = (*group[:2], channels, *launch.bits(count), *launch.bits(eps))
    factors = Stage("bn_stats_grad_factors", inputs, outputs, (vector,) * 5, grid, group, params, reads=(8, 2, 5, 6, 7))
    last = _combine(dy, sets, act, shared=True)
    # The factor of dy is what the image less its mean is multiplied with, too.
    return first, factors, last._replace(reads=(0, 1, 4, 11, 12, 13, *((11, 3) if act.kind else (4, 4))))


def combine(dy: mx.array, sets: int, act: Activation) -> tuple[Stage, ...]:
    """``a * g + b * (x - mean) + d``, g = dy through the neuron, from dy, x, mean, a, b, d[, scale, shift]."""
    return (_combine(dy, sets, act, shared=False),)


def normalized_by(x: mx.array, act: Activation, eps: float) -> tuple[Stage, ...]:
    """Images normalized by a batch's statistics, from x, mean, var, gamma and beta, vectors (c,)."""
    return (_normalize(x, 1, act, eps, (0, 1, 3, 4, 2)),)


def grown(dy: mx.array, act: Activation, eps: float) -> tuple[Stage, ...]:
    """The gradients (c,) of a batch's scale and shift, grown by those of some images.

    From dy, x, mean, var, dgamma, dbeta[, gamma, beta].
    """
    channels, first = dy.shape[3], _sums(dy, 1, act, eps)
    grid, group = grids.merging_threads(channels, first.results[0][0][0])
    inputs, outputs = ("partial", "var", "dgamma", "dbeta"), ("new_dgamma", "new_dbeta")
    params, result = (*group[:2], *launch.bits(eps)), ((channels,), mx.float32)
    given = 8 if act.kind else 6
    first = first._replace(reads=(0, 1, 2, 6, 7, 3) if act.kind else (0, 1, 2, 2, 2, 2))
    merge = ("bn_stats_grad_merge", inputs, outputs, (result, result), grid, group, params)
    return first, Stage(*merge, reads=(given, 3, 4, 5))


def gradient_by(dy: mx.array, act: Activation, eps: float) -> tuple[Stage, ...]:
    """The gradient of images that a batch normalized, from dy, x, mean, var, dgamma, dbeta, gamma, count[, beta]."""
    channels = dy.shape[3]
    vector, made = ((channels,), mx.float32), 9 if act.kind else 8
    names = ("gamma", "var", "dgamma", "dbeta", "count"), ("a", "b", "d")
    grid, params = grids.pointwise_threads(channels), (channels, *launch.bits(eps))
    factors = Stage("bn_factors", *names, (vector,) * 3, *grid, params, reads=(6, 3, 4, 5, 7))
    of_neuron = (made, 8) if act.kind else (2, 2)  # a is what the image less its mean is multiplied with, too
    last = _combine(dy, 1, act, shared=True)
    return factors, last._replace(reads=(0, 1, 2, made, made + 1, made + 2, *of_neuron))


def _combine(dy: mx.array, sets: int, act: Activation, *, shared: bool) -> Stage:
    """`combine`, for sets that share the shift or have one each."""
    inputs = ("dy", "x", "mean", "a", "b", "d", "scale", "shift")
    stage = _pixelwise("bn_grad", inputs, "dx", dy, sets, act)
    return stage._replace(template=(*stage.template, ("R", int(shared))), reads=_reads(6, act))


def _sets(vector: launch.Output) -> int:
    shape, _ = vector
    return 1 if len(shape) == 1 else shape[0]


def _normalize(x: mx.array, sets: int, act: Activation, eps: float | None, reads: tuple[int, ...]) -> Stage:
    inputs = ("x", "mean", "scale", "shift", "var")
    stage = _pixelwise("bn_normalize", inputs, "y", x, sets, act, launch.bits(eps or 0))
    return stage._replace(template=(*stage.template, ("R", int(eps is not None))), reads=reads)


def _sums(dy: mx.array, sets: int, act: Activation, eps: float | None = None) -> Stage:
    """Partial sums side by side, a row for each part of the pixels."""
    per_thread, grid, group = _columns(dy, sets)
    parts = ((grid[1] // group[1], 2 * sets * dy.shape[3]), mx.float32)
    inputs = ("dy", "x", "mean", "scale", "shift", "var")
    template = (("V", per_thread), ("N", act.kind), ("R", int(bool(act.kind) and eps is not None)), ("W", 4))
    params = (*group[:2], sets, _kept(dy, sets, grid, 2), *_shares(dy, sets, grid), *launch.bits(eps or 0), *act.bits)
    reads = (*_reads(3, act), 2)
    return Stage("bn_stats_grad", inputs, ("partial",), (parts,), grid, group, params, template, reads)


def _reads(given: int, act: Activation) -> tuple[int, ...]:
    """Two inputs more than are given, for a neuron. Without it the mean, in place 2, stands in and is not read."""
    return tuple(range(given)) + ((given, given + 1) if act.kind else (2, 2))


def _columns(x: mx.array, sets: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]]:
    """Channels of a thread, and the grid and threadgroup that sum over the pixels of each set."""
    n, height, width, channels = x.shape
    per_thread = grids.lanes(x.dtype, channels, x.size)
    pixels = n // sets * height * width
    return per_thread, *grids.column_threads(channels // per_thread, pixels, sets, laden=True)


def _shares(x: mx.array, sets: int, grid: tuple[int, int, int]) -> tuple[int, int]:
    """Pixels of a thread at least, and how many rows of threads have one more."""
    n, height, width, _ = x.shape
    return divmod(n // sets * height * width, grid[1])


def _kept(x: mx.array, sets: int, grid: tuple[int, int, int], images: int) -> int:
    """The first of a thread's pixels that a cache holds until the next kernel, of so many images like x."""
    fewest, longer = _shares(x, sets, grid)
    turns = fewest + (longer > 0)
    return turns - min(turns, turns * _CACHED // max(images * x.nbytes, 1))


def _pixelwise(
    body: str,
    inputs: tuple[str, ...],
    made: str,
    x: mx.array,
    sets: int,
    act: Activation,
    told: tuple[int, ...] = (),
) -> Stage:
    n, height, width, channels = x.shape
    per_thread, pixels = grids.lanes(x.dtype, channels, x.size), n // sets * height * width
    (across, down, _), group = grids.threads(channels // per_thread, -(-pixels // _SHARE[x.dtype.size]))
    down = -(-down // group[1]) * group[1]
    grid = (across * sets, down, 1)
    template = (("V", per_thread), ("N", act.kind), ("W", 4))
    params = (sets, group[1], -(-pixels // down), *told, *act.bits)
    return Stage(body, inputs, (made,), ((tuple(x.shape), x.dtype),), grid, group, params, template)
