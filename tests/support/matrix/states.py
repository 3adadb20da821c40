"""Every public function that takes or returns a state, for tests that map, compile and checkpoint its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

import mpsfunc as mf
from support import numbers
from support.matrix.entry import Arrays


class Stateful(NamedTuple):
    """A function of a state and of arrays; where it takes no state the state is None."""

    call: Callable[..., Any]
    given: Callable[[int], tuple[Any, Arrays]]  # values by their seed, of one shape


IMAGE, OUT, C = (2, 5, 4, 4), (2, 3, 2, 4), (4,)
POOL: dict[str, Any] = {"stride": 2, "padding": 1}
WEIGHTS, FULL = (4, 3, 3, 4), (3, 5, 4, 4)


def _images(*shapes: tuple[int, ...]) -> Callable[[int], Arrays]:
    return lambda seed: tuple(numbers(shape, mx.float64, 10 * seed + i) for i, shape in enumerate(shapes))


def _alone(call: Callable[..., Any], *shapes: tuple[int, ...]) -> Stateful:
    made = _images(*shapes)
    return Stateful(lambda _, *arrays: call(*arrays), lambda seed: (None, made(seed)))


def _with(state: Callable[[int], Any], call: Callable[..., Any], *shapes: tuple[int, ...]) -> Stateful:
    made = _images(*shapes)
    return Stateful(call, lambda seed: (state(seed), made(seed)))


def _bn(seed: int) -> mf.BatchNormState:
    x, dy, gamma = _images(IMAGE, IMAGE, C)(seed)
    state = mf.bn_stats_grad(dy, x, mf.bn_stats(x, eps=1e-2), gamma)
    return state._replace(count=mx.array(40 + seed, mx.int64))


def _saved(seed: int) -> mf.BatchNormState:
    """A state whose gradients may be nobody's, so that statistics may move."""
    return _bn(seed)._replace(summed="unknown")


def _two(call: Callable[[mf.BatchNormState, mf.BatchNormState], Any]) -> Stateful:
    return Stateful(lambda a, *b: call(a, a.with_arrays(b)), lambda seed: (_saved(seed), _saved(seed + 7).arrays))


def _conv(seed: int) -> mf.ConvState:
    x, w, dy, slopes = _images(IMAGE, WEIGHTS, OUT, C)(seed)
    state = mf.conv_fwd(x, w, neuron=mf.Neuron("prelu", slopes), **POOL)[1]
    return mf.conv_grad(dy, x, w, state)[1]


def _back(seed: int) -> mf.ConvTransposeState:
    x, w, dy = _images(OUT, WEIGHTS, IMAGE)(seed)
    state = mf.conv_transpose_fwd(x, w, output_padding=(0, 1), neuron="tanh", **POOL)[1]
    return mf.conv_transpose_grad(dy, x, w, state)[1]


def _connected(seed: int) -> mf.ConvState:
    x, w = _images(IMAGE, FULL)(seed)
    return mf.fully_connected_fwd(x, w, neuron="sigmoid")[1]


def _dropped(seed: int) -> mf.DropoutState:
    return mf.dropout_fwd(_images(IMAGE)(seed)[0], keep_probability=0.6, seed=seed)[1]


def _winners(seed: int) -> mf.MaxPoolState:
    return mf.max_pool_fwd(_images(IMAGE)(seed)[0], 3, **POOL)[1]


def _norms(seed: int) -> mf.L2PoolState:
    return mf.l2_pool_fwd(_images(IMAGE)(seed)[0], 3, **POOL)[1]


def _instance(seed: int) -> mf.InstanceNormState:
    return mf.instance_norm_fwd(*_images(IMAGE, C, C)(seed))[1]


def _group(seed: int) -> mf.GroupNormState:
    x, gamma, beta = _images(IMAGE, C, C)(seed)
    return mf.group_norm_fwd(x, 2, gamma, beta)[1]


def _constant(state: Any) -> Callable[[int], Any]:
    return lambda seed: state


AVERAGED, PADDED = mf.avg_pool_state(IMAGE, 3, **POOL), mf.pad_state(IMAGE, 1, 2, "mirror")
LARGE, SMALL = (2, 10, 8, 4), (2, 3, 6, 4)
CROSS = mf.CrossChannelNormState("cross_channel_norm", 3, 0.7, 0.6, 1.1)
SPATIAL = mf.SpatialNormState("spatial_norm", 3, 0.7, 0.6, 1.1)
LOCAL = mf.LocalContrastNormState("local_contrast_norm", 3, 0.7, 0.6, 1.1, 0.9, 0.2, 1.3)
SQUARES: dict[str, float] = {"alpha": 0.7, "beta": 0.6, "delta": 1.1}

STATEFUL: dict[str, Stateful] = {
    "avg_pool_fwd": _alone(lambda x: mf.avg_pool_fwd(x, 3, **POOL), IMAGE),
    "avg_pool_grad": _with(_constant(AVERAGED), lambda s, dy: mf.avg_pool_grad(dy, s), OUT),
    "max_pool_fwd": _alone(lambda x: mf.max_pool_fwd(x, 3, **POOL), IMAGE),
    "max_pool_grad": _with(_winners, lambda s, dy: mf.max_pool_grad(dy, s), OUT),
    "max_pool_indices": _with(_winners, lambda s: mf.max_pool_indices(s)),
    "max_unpool": _with(_winners, lambda s, y: mf.max_unpool(y, s), OUT),
    "l2_pool_fwd": _alone(lambda x: mf.l2_pool_fwd(x, 3, **POOL), IMAGE),
    "l2_pool_grad": _with(_norms, lambda s, dy, x: mf.l2_pool_grad(dy, x, s), OUT, IMAGE),
    "bn_frozen": _alone(lambda mean, root: mf.bn_frozen(mean, root * root + 0.5), C, C),
    "bn_merge": _two(lambda a, b: mf.bn_merge(a, b)),
    "bn_running": _two(lambda a, b: mf.bn_running(mf.bn_frozen(a.mean, a.var), b, 0.3)),
    "bn_reset": _with(_bn, lambda s: mf.bn_reset(s)),
    "bn_stats": _with(_saved, lambda s, x: mf.bn_stats(x, s), IMAGE),
    "bn_normalize": _with(_bn, lambda s, x, g, b: mf.bn_normalize(x, s, g, b, neuron="tanh"), IMAGE, C, C),
    "bn_stats_grad": _with(_bn, lambda s, dy, x, g: mf.bn_stats_grad(dy, x, s, g), IMAGE, IMAGE, C),
    "bn_grad": _with(_bn, lambda s, dy, x, g: mf.bn_grad(dy, x, s, g), IMAGE, IMAGE, C),
    "batch_norm_fwd": _alone(lambda x, g, b: mf.batch_norm_fwd(x, g, b), IMAGE, C, C),
    "conv_fwd": _alone(lambda x, w, b: mf.conv_fwd(x, w, b, neuron="tanh", **POOL), IMAGE, WEIGHTS, C),
    "conv_grad": _with(_conv, lambda s, dy, x, w: mf.conv_grad(dy, x, w, s), OUT, IMAGE, WEIGHTS),
    "conv_grad_input": _with(_conv, lambda s, dy, w: mf.conv_grad_input(dy, w, s), OUT, WEIGHTS),
    "conv_grad_weights": _with(_conv, lambda s, dy, x: mf.conv_grad_weights(dy, x, s), OUT, IMAGE),
    "conv_transpose": _with(_conv, lambda s, x, w: mf.conv_transpose(x, w, stride=2, state=s), OUT, WEIGHTS),
    "conv_transpose_fwd": _alone(lambda x, w, b: mf.conv_transpose_fwd(x, w, b, neuron="tanh"), OUT, WEIGHTS, C),
    "conv_transpose_grad": _with(_back, lambda s, dy, x, w: mf.conv_transpose_grad(dy, x, w, s), IMAGE, OUT, WEIGHTS),
    "conv_transpose_grad_input": _with(_back, lambda s, dy, w: mf.conv_transpose_grad_input(dy, w, s), IMAGE, WEIGHTS),
    "conv_transpose_grad_weights": _with(_back, lambda s, dy, x: mf.conv_transpose_grad_weights(dy, x, s), IMAGE, OUT),
    "fully_connected_fwd": _alone(lambda x, w: mf.fully_connected_fwd(x, w, neuron="sigmoid"), IMAGE, FULL),
    "fully_connected_grad": _with(
        _connected, lambda s, dy, x, w: mf.fully_connected_grad(dy, x, w, s), (2, 1, 1, 3), IMAGE, FULL
    ),
    "instance_norm_fwd": _alone(lambda x, g, b: mf.instance_norm_fwd(x, g, b), IMAGE, C, C),
    "instance_norm_grad": _with(_instance, lambda s, dy, x, g: mf.instance_norm_grad(dy, x, s, g), IMAGE, IMAGE, C),
    "group_norm_fwd": _alone(lambda x, g, b: mf.group_norm_fwd(x, 2, g, b), IMAGE, C, C),
    "group_norm_grad": _with(_group, lambda s, dy, x, g: mf.group_norm_grad(dy, x, s, g), IMAGE, IMAGE, C),
    "cross_channel_norm_fwd": _alone(lambda x: mf.cross_channel_norm_fwd(x, 3, **SQUARES), IMAGE),
    "cross_channel_norm_grad": _with(
        _constant(CROSS), lambda s, dy, x: mf.cross_channel_norm_grad(dy, x, s), IMAGE, IMAGE
    ),
    "spatial_norm_fwd": _alone(lambda x: mf.spatial_norm_fwd(x, 3, **SQUARES), IMAGE),
    "spatial_norm_grad": _with(_constant(SPATIAL), lambda s, dy, x: mf.spatial_norm_grad(dy, x, s), IMAGE, IMAGE),
    "local_contrast_norm_fwd": _alone(lambda x: mf.local_contrast_norm_fwd(x, 3, **SQUARES), IMAGE),
    "local_contrast_norm_grad": _with(
        _constant(LOCAL), lambda s, dy, x: mf.local_contrast_norm_grad(dy, x, s), IMAGE, IMAGE
    ),
    "dropout_fwd": _alone(lambda x, mask: mf.dropout_fwd(x, keep_probability=0.6, mask=mask), IMAGE, IMAGE),
    "dropout_grad": _with(_dropped, lambda s, dy: mf.dropout_grad(dy, s), IMAGE),
    "loss_fwd": _alone(lambda y, target: mf.loss_fwd(y, target, "huber", "mean"), IMAGE, IMAGE),
    "pad_fwd": _alone(lambda x: mf.pad_fwd(x, 1, 2, "mirror"), IMAGE),
    "pad_grad": _with(_constant(PADDED), lambda s, dy: mf.pad_grad(dy, s), mf.pad(mx.zeros(IMAGE), 1, 2).shape),
}
for _way, _made, _size in (("upsample", 2, LARGE), ("resize", (3, 6), SMALL)):
    for _kind in ("nearest", "bilinear"):
        _name, _how = f"{_way}_{_kind}", _made

        def _forward(x: mx.array, name: str = _name, how: Any = _how) -> Any:
            return getattr(mf, f"{name}_fwd")(x, how)

        def _gradient(state: mf.ResampleState, dy: mx.array, name: str = _name) -> mx.array:
            return getattr(mf, f"{name}_grad")(dy, state)

        STATEFUL[f"{_name}_fwd"] = _alone(_forward, IMAGE)
        STATEFUL[f"{_name}_grad"] = _with(_constant(getattr(mf, f"{_name}_state")(IMAGE, _how)), _gradient, _size)
