"""The normalizations' part of the matrix of transformations."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support.matrix.entry import Arrays, Entry, entry

IMAGE, C = (2, 5, 4, 4), (4,)
COUNT = 12  # elements behind the statistics that the states below are given


def _state(mean: mx.array, var: mx.array, dgamma: Any = None, dbeta: Any = None, **fields: Any) -> mf.BatchNormState:
    zero = mx.zeros_like(mean)
    grads = [zero if g is None else g for g in (dgamma, dbeta)]
    state = mf.BatchNormState(mean, var, mx.array(COUNT, mx.int64), *grads, "batch_norm", 1e-2, False, "unknown")
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


def _group(*arrays: mx.array) -> mf.GroupNormState:
    return mf.GroupNormState(*arrays, "group_norm", 1e-2)


def _instance(*arrays: mx.array) -> mf.InstanceNormState:
    return mf.InstanceNormState(*arrays, "instance_norm", 1e-2)


def _with_state(y: mx.array, state: Any) -> Arrays:
    return y, *state.arrays


def _fwd(y: mx.array, state: Any) -> Arrays:
    return y, *state.arrays[:2]  # the gradients are zeros


BY_SQUARES: dict[str, float] = {"alpha": 0.7, "beta": 0.6, "delta": 1.1}
CONTRAST: dict[str, float] = {**BY_SQUARES, "p0": 0.9, "pm": 0.2, "ps": 1.3}
CROSS = mf.CrossChannelNormState("cross_channel_norm", 3, *BY_SQUARES.values())
SPATIAL = mf.SpatialNormState("spatial_norm", 3, *BY_SQUARES.values())
LOCAL = mf.LocalContrastNormState("local_contrast_norm", 4, *CONTRAST.values())
N_C, N_G = (2, 4), (2, 2)

NORMALIZATIONS: dict[str, Entry] = {
    "bn_stats": entry(lambda x: mf.bn_stats(x).arrays[:2], IMAGE),
    "bn_stats onto a state": entry(
        lambda x, mean, var: mf.bn_stats(x, _state(mean, var)).arrays[:2], IMAGE, C, C, positive=(2,)
    ),
    "bn_frozen": entry(lambda mean, var: mf.bn_frozen(mean, var).arrays[:2], C, C, positive=(1,)),
    "bn_normalize": entry(
        lambda x, mean, var, gamma, beta: mf.bn_normalize(x, _state(mean, var), gamma, beta),
        *(IMAGE, C, C, C, C),
        positive=(2,),
    ),
    "bn_stats_grad": entry(_stats_grad, IMAGE, IMAGE, C, C, C, C, positive=(3,)),
    "bn_grad": entry(
        lambda dy, x, gamma, *state: mf.bn_grad(dy, x, _state(*state), gamma),
        *(IMAGE, IMAGE, C, C, C, C, C),
        positive=(4,),
    ),
    "bn_grad of frozen statistics": entry(
        lambda dy, x, gamma, *state: mf.bn_grad(dy, x, _state(*state, frozen=True), gamma),
        *(IMAGE, IMAGE, C, C, C),
        positive=(4,),
    ),
    "bn_merge": entry(_merge, C, C, C, C, C, C, C, C, positive=(1, 5)),
    "batch_norm": entry(lambda x, gamma, beta: mf.batch_norm(x, gamma, beta), IMAGE, C, C),
    "batch_norm_fwd": entry(_batch_norm_fwd, IMAGE, C, C),
    "bn_normalize and relu": entry(
        lambda x, mean, var, gamma, beta: mf.bn_normalize(x, _state(mean, var), gamma, beta, neuron="relu"),
        *(IMAGE, C, C, C, C),
        positive=(2,),
    ),
    "bn_stats_grad behind relu": entry(
        lambda dy, x, gamma, beta, *state: mf.bn_stats_grad(dy, x, _state(*state), gamma, beta, neuron="relu").arrays[
            3:
        ],
        *(IMAGE, IMAGE, C, C, C, C, C, C),
        positive=(5,),
    ),
    "bn_grad behind relu": entry(
        lambda dy, x, gamma, beta, *state: mf.bn_grad(dy, x, _state(*state), gamma, beta, neuron="relu"),
        *(IMAGE, IMAGE, C, C, C, C, C, C),
        positive=(5,),
    ),
    "bn_grad of frozen statistics behind relu": entry(
        lambda dy, x, gamma, beta, *state: mf.bn_grad(dy, x, _state(*state, frozen=True), gamma, beta, neuron="relu"),
        *(IMAGE, IMAGE, C, C, C, C),
        positive=(5,),
    ),
    "batch_norm and relu": entry(lambda x, gamma, beta: mf.batch_norm(x, gamma, beta, neuron="relu"), IMAGE, C, C),
    "bn_running": entry(
        lambda mean, var, *state: mf.bn_running(mf.bn_frozen(mean, var), _state(*state), 0.3).arrays[:2],
        *(C, C, C, C),
        positive=(1, 3),
    ),
    "instance_norm": entry(lambda x, gamma, beta: mf.instance_norm(x, gamma, beta, eps=1e-2), IMAGE, C, C),
    "instance_norm_fwd": entry(
        lambda x, gamma, beta: _fwd(*mf.instance_norm_fwd(x, gamma, beta, eps=1e-2)), IMAGE, C, C
    ),
    "instance_norm_grad": entry(
        lambda dy, x, gamma, *state: _with_state(*mf.instance_norm_grad(dy, x, _instance(*state), gamma)),
        *(IMAGE, IMAGE, C, N_C, N_C, N_C, N_C),
        positive=(4,),
    ),
    "group_norm": entry(lambda x, gamma, beta: mf.group_norm(x, 2, gamma, beta, eps=1e-2), IMAGE, C, C),
    "group_norm_fwd": entry(lambda x, gamma, beta: _fwd(*mf.group_norm_fwd(x, 2, gamma, beta, eps=1e-2)), IMAGE, C, C),
    "group_norm_grad": entry(
        lambda dy, x, gamma, *state: _with_state(*mf.group_norm_grad(dy, x, _group(*state), gamma)),
        *(IMAGE, IMAGE, C, N_G, N_G, N_C, N_C),
        positive=(4,),
    ),
    "cross_channel_norm": entry(lambda x: mf.cross_channel_norm(x, 3, **BY_SQUARES), IMAGE),
    "cross_channel_norm_fwd": entry(lambda x: mf.cross_channel_norm_fwd(x, 12, **BY_SQUARES)[0], IMAGE),
    "cross_channel_norm_grad": entry(lambda dy, x: mf.cross_channel_norm_grad(dy, x, CROSS), IMAGE, IMAGE),
    "spatial_norm": entry(lambda x: mf.spatial_norm(x, 3, **BY_SQUARES), IMAGE),
    "spatial_norm_fwd": entry(lambda x: mf.spatial_norm_fwd(x, 12, **BY_SQUARES)[0], IMAGE),
    "spatial_norm_grad": entry(lambda dy, x: mf.spatial_norm_grad(dy, x, SPATIAL), IMAGE, IMAGE),
    "local_contrast_norm": entry(lambda x: mf.local_contrast_norm(x, 3, **CONTRAST), IMAGE),
    "local_contrast_norm_fwd": entry(lambda x: mf.local_contrast_norm_fwd(x, 12, **CONTRAST)[0], IMAGE),
    "local_contrast_norm_grad": entry(lambda dy, x: mf.local_contrast_norm_grad(dy, x, LOCAL), IMAGE, IMAGE),
}
