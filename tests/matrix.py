"""Every public differentiable function as one of arrays only, for tests that treat them all alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from support import numbers

import mpsfunc as mf

Arrays = tuple[mx.array, ...]

# What differentiates nothing: it takes shapes or ints, is a type, or returns zeros.
NOT_DIFFERENTIABLE = {
    "AvgPoolState", "BatchNormState", "ConvState", "L2PoolState", "MaxPoolState", "PaddingPolicy",
    "max_pool_indices", "avg_pool_state", "conv_state", "bn_reset", "get_num_threads", "set_num_threads",
}  # fmt: skip


class Entry(NamedTuple):
    """A function from arrays to a tuple of arrays, and the shapes that it takes."""

    call: Callable[..., Arrays]
    shapes: tuple[tuple[int, ...], ...]
    positive: frozenset[int]  # arguments that are variances

    def inputs(self, dtype: mx.Dtype = mx.float64, *, seed: int = 0, batch: int | None = None) -> Arrays:
        """Values for the arguments, with a new leading axis of length ``batch``."""
        made = []
        for i, shape in enumerate(self.shapes):
            a = numbers(shape if batch is None else (batch, *shape), dtype, 100 * seed + i)
            made.append(abs(a) + 0.5 if i in self.positive else a)
        return tuple(made)

    def loss(self, *arrays: mx.array) -> mx.array:
        """A scalar of all outputs whose derivatives of every order exist and differ."""
        total = mx.array(0.0, arrays[0].dtype)
        for i, y in enumerate(self.call(*arrays)):
            weights = numbers(tuple(y.shape), y.dtype, 7 + i)
            total = total + (weights * (y + 0.3 * y * y + 0.1 * y * y * y)).sum()
        return total

    def square(self, *arrays: mx.array) -> mx.array:
        """A plainer scalar, for traces that MLX compiles."""
        return sum(((y * y).sum() for y in self.call(*arrays)), mx.array(0.0, arrays[0].dtype))


def _entry(call: Callable[..., Any], *shapes: tuple[int, ...], positive: tuple[int, ...] = ()) -> Entry:
    def flat(*arrays: mx.array) -> Arrays:
        out = call(*arrays)
        return (out,) if isinstance(out, mx.array) else tuple(out)

    return Entry(flat, shapes, frozenset(positive))


IMAGE, C = (2, 5, 4, 4), (4,)
POOL: dict[str, Any] = {"stride": 2, "padding": 1, "edge_mode": "clamp"}
POOLED = mf.avg_pool_state(IMAGE, 3, **POOL)
_ROWS, _COLS = POOLED[2:]  # a maximum's windows sit where an average's do
MAX_POOLED = mf.MaxPoolState(
    mx.where(numbers((2, 3, 2, 4)) > 0, 4, 5).astype(mx.uint8), "max_pool", _ROWS._replace(zero_pad=0), _COLS
)
L2_NORMS = (2, 3, 2, 4)


def _l2_state(norms: mx.array) -> mf.L2PoolState:
    wide = norms.astype(mx.float64 if norms.dtype == mx.float64 else mx.float32)
    return mf.L2PoolState(wide, "l2_pool", _ROWS._replace(zero_pad=0), _COLS)


CONV: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2)}
COUNT = 12  # elements behind the statistics that the states below are given


def _conv_entries(groups: int) -> dict[str, Entry]:
    w, dy, o = (6, 3, 2, 4 // groups), (2, 2, 5, 6), (6,)
    state = mf.conv_state(IMAGE, w, groups=groups, **CONV)
    label = "" if groups == 1 else f" in {groups} groups"
    how = {"groups": groups, **CONV}

    def grad_weights(dy: mx.array, x: mx.array, dw: mx.array, db: mx.array) -> Arrays:
        return mf.conv_grad_weights(dy, x, state.with_arrays((dw, db))).arrays

    return {
        f"conv{label}": _entry(lambda x, w, b: mf.conv(x, w, b, **how), IMAGE, w, o),
        f"conv_fwd{label}": _entry(lambda x, w: mf.conv_fwd(x, w, **how)[0], IMAGE, w),
        f"conv_grad_input{label}": _entry(lambda dy, w: mf.conv_grad_input(dy, w, state), dy, w),
        f"conv_grad_weights{label}": _entry(grad_weights, dy, IMAGE, w, o),
    }


def _state(mean: mx.array, var: mx.array, dgamma: Any = None, dbeta: Any = None, **fields: Any) -> mf.BatchNormState:
    zero = mx.zeros_like(mean)
    grads = [zero if g is None else g for g in (dgamma, dbeta)]
    state = mf.BatchNormState(mean, var, mx.array(COUNT, mx.int64), *grads, "batch_norm", 1e-2, False)
    return state._replace(**fields)


def _without_count(state: mf.BatchNormState) -> Arrays:
    mean, var, _, dgamma, dbeta = state.arrays
    return mean, var, dgamma, dbeta


def _merge(*arrays: mx.array) -> Arrays:
    return _without_count(mf.bn_merge(_state(*arrays[:4]), _state(*arrays[4:], count=mx.array(5, mx.int64))))


def _stats_grad(dy: mx.array, x: mx.array, *state: mx.array) -> Arrays:
    return mf.bn_stats_grad(dy, x, _state(*state)).arrays[3:]


def _batch_norm_fwd(x: mx.array, gamma: mx.array, beta: mx.array) -> Arrays:
    y, state = mf.batch_norm_fwd(x, gamma, beta, eps=1e-2)
    return y, state.mean, state.var


MATRIX: dict[str, Entry] = {
    "avg_pool": _entry(lambda x: mf.avg_pool(x, 3, **POOL), IMAGE),
    "avg_pool_fwd": _entry(lambda x: mf.avg_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "avg_pool_grad": _entry(lambda dy: mf.avg_pool_grad(dy, POOLED), (2, 3, 2, 4)),
    "avg_pool_grad of a source window": _entry(
        lambda dy: mf.avg_pool_grad(dy, POOLED, source_window=((1, 0), (2, 1))), (2, 3, 2, 4)
    ),
    "max_pool": _entry(lambda x: mf.max_pool(x, 3, **POOL), IMAGE),
    "max_pool_fwd": _entry(lambda x: mf.max_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "max_pool_grad": _entry(lambda dy: mf.max_pool_grad(dy, MAX_POOLED), (2, 3, 2, 4)),
    "max_pool_grad of a source window": _entry(
        lambda dy: mf.max_pool_grad(dy, MAX_POOLED, source_window=((1, 0), (2, 1))), (2, 3, 2, 4)
    ),
    "max_pool_grad_from_source": _entry(
        lambda dy: mf.max_pool_grad_from_source(dy, numbers(IMAGE, dy.dtype), 3, **POOL), (2, 3, 2, 4)
    ),
    "max_unpool": _entry(lambda y: mf.max_unpool(y, MAX_POOLED), (2, 3, 2, 4)),
    "avg_pool globally": _entry(lambda x: mf.avg_pool(x, "global"), IMAGE),
    "avg_pool adaptively": _entry(lambda x: mf.avg_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "max_pool adaptively": _entry(lambda x: mf.max_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "l2_pool": _entry(lambda x: mf.l2_pool(x, 3, **POOL), IMAGE),
    "l2_pool_fwd": _entry(lambda x: mf.l2_pool_fwd(x, (2, 3), dilation=(2, 1))[0], IMAGE),
    "l2_pool adaptively": _entry(lambda x: mf.l2_pool(x, "adaptive", out_size=(2, 3)), IMAGE),
    "l2_pool_grad": _entry(
        lambda dy, x, norms: mf.l2_pool_grad(dy, x, _l2_state(norms)), L2_NORMS, IMAGE, L2_NORMS, positive=(2,)
    ),
    "l2_pool_grad of a source window": _entry(
        lambda dy, x, norms: mf.l2_pool_grad(dy, x, _l2_state(norms), source_window=((1, 0), (2, 1))),
        *(L2_NORMS, IMAGE, L2_NORMS),
        positive=(2,),
    ),
    **_conv_entries(1),
    **_conv_entries(2),
    "bn_stats": _entry(lambda x: mf.bn_stats(x).arrays[:2], IMAGE),
    "bn_stats onto a state": _entry(
        lambda x, mean, var: mf.bn_stats(x, _state(mean, var)).arrays[:2], IMAGE, C, C, positive=(2,)
    ),
    "bn_frozen": _entry(lambda mean, var: mf.bn_frozen(mean, var).arrays[:2], C, C, positive=(1,)),
    "bn_normalize": _entry(
        lambda x, mean, var, gamma, beta: mf.bn_normalize(x, _state(mean, var), gamma, beta),
        *(IMAGE, C, C, C, C),
        positive=(2,),
    ),
    "bn_stats_grad": _entry(_stats_grad, IMAGE, IMAGE, C, C, C, C, positive=(3,)),
    "bn_grad": _entry(
        lambda dy, x, gamma, *state: mf.bn_grad(dy, x, _state(*state), gamma),
        *(IMAGE, IMAGE, C, C, C, C, C),
        positive=(4,),
    ),
    "bn_grad of frozen statistics": _entry(
        lambda dy, x, gamma, *state: mf.bn_grad(dy, x, _state(*state, frozen=True), gamma),
        *(IMAGE, IMAGE, C, C, C),
        positive=(4,),
    ),
    "bn_merge": _entry(_merge, C, C, C, C, C, C, C, C, positive=(1, 5)),
    "batch_norm": _entry(lambda x, gamma, beta: mf.batch_norm(x, gamma, beta), IMAGE, C, C),
    "batch_norm_fwd": _entry(_batch_norm_fwd, IMAGE, C, C),
}
