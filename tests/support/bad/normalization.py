"""The normalizations' part of generic/test_bad_input.py: calls that are wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from support import numbers

import mpsfunc as mf

X = numbers((2, 6, 5, 4))
NORM = mf.bn_frozen(mx.zeros(4), mx.ones(4))
_, INSTANCE = mf.instance_norm_fwd(X)
_, GROUP = mf.group_norm_fwd(X, 2)
_, CROSS = mf.cross_channel_norm_fwd(X)
_, SPATIAL = mf.spatial_norm_fwd(X, 3)
_, CONTRAST = mf.local_contrast_norm_fwd(X, 3)
# States with arrays that a GPU cannot hold if they are float64.
STATES = {"BatchNormState": NORM._replace(frozen=False), "InstanceNormState": INSTANCE, "GroupNormState": GROUP}


def _stats(**fields: Any) -> mf.BatchNormState:
    return mf.bn_stats(X)._replace(**fields)


IMAGES: dict[str, Callable[[Any], Any]] = {
    "bn_stats": lambda x: mf.bn_stats(x),
    "bn_normalize": lambda x: mf.bn_normalize(x, NORM),
    "bn_stats_grad": lambda x: mf.bn_stats_grad(X, x, NORM),
    "bn_grad": lambda x: mf.bn_grad(X, x, NORM),
    "batch_norm": lambda x: mf.batch_norm(x),
    "instance_norm": lambda x: mf.instance_norm(x),
    "instance_norm_grad": lambda x: mf.instance_norm_grad(X, x, INSTANCE),
    "group_norm": lambda x: mf.group_norm(x, 1),
    "group_norm_grad": lambda x: mf.group_norm_grad(X, x, GROUP),
    "cross_channel_norm": lambda x: mf.cross_channel_norm(x),
    "cross_channel_norm_grad": lambda x: mf.cross_channel_norm_grad(X, x, CROSS),
    "spatial_norm": lambda x: mf.spatial_norm(x, 3),
    "spatial_norm_grad": lambda x: mf.spatial_norm_grad(X, x, SPATIAL),
    "local_contrast_norm": lambda x: mf.local_contrast_norm(x, 3),
    "local_contrast_norm_grad": lambda x: mf.local_contrast_norm_grad(X, x, CONTRAST),
}
WRONG_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("bn_normalize: x does not belong to this state", lambda: mf.bn_normalize(X[..., :3], NORM)),
    ("bn_grad: dy does not belong to x", lambda: mf.bn_grad(X[:1], X, NORM)),
    ("batch_norm: gamma does not fit the channels", lambda: mf.batch_norm(X, mx.ones(3))),
    ("bn_normalize: beta does not fit the channels", lambda: mf.bn_normalize(X, NORM, None, mx.ones((4, 1)))),
    ("batch_norm: eps is out of range", lambda: mf.batch_norm(X, eps=-1e-5)),
    ("bn_stats: eps is out of range", lambda: mf.bn_stats(X, eps=float("nan"))),
    ("bn_frozen: eps is out of range", lambda: mf.bn_frozen(mx.ones(4), mx.ones(4), eps=float("inf"))),
    ("bn_stats: eps differs from the state's", lambda: mf.bn_stats(X, mf.bn_stats(X), eps=1e-3)),
    ("bn_stats: statistics are frozen", lambda: mf.bn_stats(X, NORM)),
    ("bn_stats: x does not belong to this state", lambda: mf.bn_stats(X[..., :3], mf.bn_stats(X))),
    ("bn_merge: statistics are frozen", lambda: mf.bn_merge(mf.bn_stats(X), NORM)),
    ("bn_merge: channels differ", lambda: mf.bn_merge(mf.bn_stats(X), mf.bn_stats(X[..., :3]))),
    ("bn_merge: eps differs", lambda: mf.bn_merge(mf.bn_stats(X), mf.bn_stats(X, eps=0.1))),
    ("bn_stats: no elements to take statistics of", lambda: mf.bn_stats(X[:0])),
    ("batch_norm: no elements to take statistics of", lambda: mf.batch_norm(X[:0])),
    ("bn_frozen: mean is not a vector", lambda: mf.bn_frozen(mx.ones((1, 4)), mx.ones(4))),
    ("bn_frozen: mean and var differ in length", lambda: mf.bn_frozen(mx.ones(4), mx.ones(3))),
    ("batch_norm: unknown neuron", lambda: mf.batch_norm(X, neuron="swish")),
    ("bn_running: running is not a state from bn_frozen", lambda: mf.bn_running(mf.bn_stats(X), mf.bn_stats(X))),
    ("bn_running: state is not a state from bn_stats", lambda: mf.bn_running(NORM, NORM)),
    ("bn_running: channels differ", lambda: mf.bn_running(NORM, mf.bn_stats(X[..., :3]))),
    ("bn_running: momentum is out of range", lambda: mf.bn_running(NORM, mf.bn_stats(X), 1.5)),
    ("bn_running: the state does not fit together", lambda: mf.bn_running(NORM, _stats(var=mx.ones((4, 4))))),
    ("bn_merge: the state does not fit together", lambda: mf.bn_merge(_stats(), _stats(dgamma=mx.ones(2)))),
    (
        "bn_normalize: the state does not fit together",
        lambda: mf.bn_normalize(X, _stats(**dict.fromkeys(("mean", "var", "dgamma", "dbeta"), mx.ones((1, 4))))),
    ),
    (
        "bn_merge: the state does not fit together",
        lambda: mf.bn_merge(_stats(count=mx.array([1, 2], mx.int64)), _stats()),
    ),
    ("bn_reset: the state does not fit together", lambda: mf.bn_reset(_stats(var=mx.ones(3)))),
    ("bn_normalize: state.eps is out of range", lambda: mf.bn_normalize(X, _stats(eps=-1.0))),
    ("bn_stats: state.eps is out of range", lambda: mf.bn_stats(X, _stats(eps=float("nan")))),
    ("group_norm_grad: state.eps is out of range", lambda: mf.group_norm_grad(X, X, GROUP._replace(eps=float("inf")))),
    ("bn_running: momentum is out of range", lambda: mf.bn_running(NORM, mf.bn_stats(X), float("nan"))),
    ("instance_norm: beta does not fit the channels", lambda: mf.instance_norm(X, None, mx.ones(3))),
    ("instance_norm: eps is out of range", lambda: mf.instance_norm(X, eps=-1.0)),
    ("instance_norm_grad: dy does not belong to x", lambda: mf.instance_norm_grad(X[:1], X, INSTANCE)),
    ("instance_norm_grad: x does not belong to this state", lambda: mf.instance_norm_grad(X[:1], X[:1], INSTANCE)),
    ("instance_norm_grad: gamma does not fit the channels", lambda: mf.instance_norm_grad(X, X, INSTANCE, mx.ones(3))),
    (
        "instance_norm_grad: x does not belong to this state",
        lambda: mf.instance_norm_grad(X, X, INSTANCE._replace(dgamma=mx.zeros((4,)))),
    ),
    (
        "instance_norm_grad: the state does not fit together",
        lambda: mf.instance_norm_grad(X, X, INSTANCE._replace(var=mx.zeros((2, 3)))),
    ),
    ("group_norm: groups is out of range", lambda: mf.group_norm(X, 0)),
    ("group_norm: groups do not divide the channels", lambda: mf.group_norm(X, 3)),
    (
        "group_norm_grad: x does not belong to this state",
        lambda: mf.group_norm_grad(X, X, GROUP._replace(mean=mx.zeros((2, 3)), var=mx.zeros((2, 3)))),
    ),
    ("group_norm_grad: x does not belong to this state", lambda: mf.group_norm_grad(X[..., :2], X[..., :2], GROUP)),
    ("cross_channel_norm: size is out of range", lambda: mf.cross_channel_norm(X, 0)),
    ("cross_channel_norm: size is out of range", lambda: mf.cross_channel_norm(X, 2**31)),
    ("cross_channel_norm: beta is out of range", lambda: mf.cross_channel_norm(X, beta=float("inf"))),
    ("cross_channel_norm_grad: dy does not belong to x", lambda: mf.cross_channel_norm_grad(X[..., :1], X, CROSS)),
    (
        "cross_channel_norm_grad: state.size is out of range",
        lambda: mf.cross_channel_norm_grad(X, X, CROSS._replace(size=-1)),
    ),
    ("spatial_norm: kernel_size is out of range", lambda: mf.spatial_norm(X, -3)),
    ("spatial_norm: delta is out of range", lambda: mf.spatial_norm(X, 3, delta=float("nan"))),
    (
        "spatial_norm_grad: state.beta is out of range",
        lambda: mf.spatial_norm_grad(X, X, SPATIAL._replace(beta=10.0**39)),
    ),
    ("local_contrast_norm: ps is out of range", lambda: mf.local_contrast_norm(X, 3, ps=1e300)),
]
WRONG_TYPES: list[tuple[str, Callable[[], Any]]] = [
    ("bn_grad: dy and x differ in dtype", lambda: mf.bn_grad(X.astype(mx.float16), X, NORM)),
    ("bn_stats_grad: gamma is not an array", lambda: mf.bn_stats_grad(X, X, NORM, 2.0)),
    ("bn_grad: gamma has no floating dtype", lambda: mf.bn_grad(X, X, NORM, mx.ones(4, mx.int32))),
    ("bn_stats: eps is not a number", lambda: mf.bn_stats(X, eps="1e-5")),
    ("bn_frozen: var is not an array", lambda: mf.bn_frozen(mx.ones(4), 1.0)),
    ("bn_normalize: neuron is no activation", lambda: mf.bn_normalize(X, NORM, neuron=1)),
    ("bn_grad: state.eps is not a number", lambda: mf.bn_grad(X, X, _stats(eps="1e-5"))),
    ("bn_normalize: state.mean has no floating dtype", lambda: mf.bn_normalize(X, _stats(mean=mx.ones(4, mx.int32)))),
    (
        "instance_norm_grad: state.var has no floating dtype",
        lambda: mf.instance_norm_grad(X, X, INSTANCE._replace(var=mx.ones((2, 4), mx.int32))),
    ),
    ("bn_reset: state.mean has no floating dtype", lambda: mf.bn_reset(_stats(mean=mx.ones(4, mx.int32)))),
    ("bn_reset: state.eps is not a number", lambda: mf.bn_reset(_stats(eps=None))),
    ("bn_running: momentum is not a number", lambda: mf.bn_running(NORM, mf.bn_stats(X), "0.1")),
    ("bn_running: unbiased is not a bool", lambda: mf.bn_running(NORM, mf.bn_stats(X), unbiased="a")),
    ("instance_norm_grad: dy and x differ in dtype", lambda: mf.instance_norm_grad(X.astype(mx.float16), X, INSTANCE)),
    ("group_norm: groups is not an int", lambda: mf.group_norm(X, 2.0)),
    ("group_norm: groups is not an int", lambda: mf.group_norm(X, True)),
    ("group_norm: groups is not an int", lambda: mf.group_norm(X, None)),
    ("group_norm: groups is not an int", lambda: mf.group_norm_fwd(X, None)),
    ("spatial_norm: kernel_size is not an int", lambda: mf.spatial_norm(X, (3, 3))),
    ("spatial_norm: alpha is not a number", lambda: mf.spatial_norm(X, 3, alpha=mx.array(1.0))),
    ("local_contrast_norm: p0 is not a number", lambda: mf.local_contrast_norm(X, 3, p0=None)),
    (
        "local_contrast_norm_grad: state.pm is not a number",
        lambda: mf.local_contrast_norm_grad(X, X, CONTRAST._replace(pm="0")),
    ),
]
OF_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bn_stats": ("BatchNormState", lambda state: mf.bn_stats(X, state)),
    "bn_normalize": ("BatchNormState", lambda state: mf.bn_normalize(X, state)),
    "bn_stats_grad": ("BatchNormState", lambda state: mf.bn_stats_grad(X, X, state)),
    "bn_grad": ("BatchNormState", lambda state: mf.bn_grad(X, X, state)),
    "bn_merge": ("BatchNormState", lambda state: mf.bn_merge(state, NORM)),
    "bn_reset": ("BatchNormState", lambda state: mf.bn_reset(state)),
    "bn_running": ("BatchNormState", lambda state: mf.bn_running(NORM, state)),
    "instance_norm_grad": ("InstanceNormState", lambda state: mf.instance_norm_grad(X, X, state)),
    "group_norm_grad": ("GroupNormState", lambda state: mf.group_norm_grad(X, X, state)),
    "cross_channel_norm_grad": ("CrossChannelNormState", lambda state: mf.cross_channel_norm_grad(X, X, state)),
    "spatial_norm_grad": ("SpatialNormState", lambda state: mf.spatial_norm_grad(X, X, state)),
    "local_contrast_norm_grad": ("LocalContrastNormState", lambda state: mf.local_contrast_norm_grad(X, X, state)),
}
