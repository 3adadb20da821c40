"""What every body loads and stores, counted in bytes over all threads, before caches: known before a Mac is.

"needed" is each input once. A bound is what the body's design costs and no more; results are stored once each, which
test_bodies.py asserts for every case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import mlx.core as mx
import pytest
from support import numbers

import mpsfunc as mf
from metal_host.case import launched
from metal_host.host import Run, metal_host, needs_clang
from metal_host.test_bodies import BODIES
from mpsfunc.channels import activation_launches, launches
from mpsfunc.channels.activation_spec import GELU, NO_ACTIVATION, PRELU, RELU, Activation
from mpsfunc.core import grids, launch
from mpsfunc.normalization import window_launches

pytestmark = needs_clang

SHAPE = (2, 12, 12, 16)
IMAGE, VECTOR = 2 * 12 * 12 * 16 * 4, 16 * 4
LONG = (1, 64, 64, 16)  # for sums, where a thread has 64 pixels to go over
LONG_IMAGE = 64 * 64 * 16 * 4
WEIGHTS = 16 * 3 * 3 * 16 * 4
# Times that 3x3 windows with stride 1 and padding 1 read an element of the image, edges included.
READS = (3 * 12 - 2) ** 2 / 12**2
READS_5 = (5 * 12 - 6) ** 2 / 12**2  # and 5x5 windows with padding 2


def _pool() -> None:
    mf.avg_pool(numbers(SHAPE), 3, stride=2, padding=1)


def _pool_grad() -> None:
    mf.avg_pool_grad(numbers((2, 6, 6, 16)), mf.avg_pool_state(SHAPE, 3, stride=2, padding=1))


def _pool_grad_of_many() -> None:
    mf.avg_pool_grad(numbers(SHAPE), mf.avg_pool_state(SHAPE, 5, stride=1, padding=2))


def _max_pool() -> None:
    dy = numbers((2, 6, 6, 16))
    _, state = mf.max_pool_fwd(numbers(SHAPE), 3, stride=2, padding=1)
    mx.eval(mx.vjp(lambda dy: mf.max_pool_grad(dy, state), [dy], [numbers(SHAPE)]))


def _max_pool_of_edges() -> None:
    y, state = mf.max_pool_fwd(numbers(SHAPE), 3, stride=2, padding=1, edge_mode="clamp")
    mf.max_pool_grad(y, state)


def _l2_pool() -> None:
    x, dy = numbers(SHAPE), numbers((2, 6, 6, 16))
    _, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1)
    mx.eval(mx.vjp(lambda dy: mf.l2_pool_grad(dy, x, state), [dy], [x]))


def _l2_pool_of_edges() -> None:
    x = numbers(SHAPE)
    y, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1, edge_mode="clamp")
    mf.l2_pool_grad(y, x, state)


def _norm() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    with mock.patch.object(grids, "FILL", 1):
        state = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
    mf.bn_normalize(x, state)
    mf.bn_grad(dy, x, state)


def _affine() -> None:
    x, rows = numbers(LONG), numbers((1, LONG[-1]))
    arrays = {"x": x, "mean": rows, "scale": rows, "shift": rows}
    launched(arrays, ((LONG, mx.float32),), launches.bn_normalize(x, 1, NO_ACTIVATION))


def _composed_norm() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    with mock.patch.object(grids, "FILL", 1):
        mx.eval(mx.vjp(lambda x: mf.batch_norm(x, neuron="relu"), [x], [dy]))


def _vectors() -> None:
    x, row = numbers(LONG), numbers(LONG[-1:])
    mf.bn_running(mf.bn_frozen(row, row), mf.bn_stats(x))
    mf.group_norm_grad(x, x, mf.group_norm_fwd(x, 2)[1])


def _windows() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    told = 1.0, 0.75, 1.0
    sizes = {"cross_channel_norm": (5,), "spatial_norm": (3,), "local_contrast_norm": (3, 1, 0, 1)}
    for op, (size, *rest) in sizes.items():
        forward, backward = (getattr(window_launches, name) for name in (op, f"{op}_grad"))
        launched({"x": x}, ((LONG, mx.float32),), forward(x, size, *told, *rest))
        launched({"dy": dy, "x": x}, ((LONG, mx.float32),), backward(dy, x, size, *told, *rest))


def _conv() -> None:
    x, w = numbers(SHAPE), numbers((16, 3, 3, 16))
    y, state = mf.conv_fwd(x, w, padding=1)
    mf.conv_grad_input(y, w, state)
    mf.conv_grad_weights(y, x, state)


def _conv_on_cuda() -> None:
    """By windows of few taps, and of many; and in 16 bits."""
    x, halves = numbers(SHAPE), numbers(SHAPE, mx.bfloat16)
    with mock.patch.object(launch, "backend", lambda stream: "cuda"):
        _conv()
        mf.conv_grad_weights(halves, halves, mf.conv_state(SHAPE, (16, 3, 3, 16), padding=1))
        mf.conv_grad_weights(x, x, mf.conv_state(SHAPE, (16, 5, 5, 16), padding=2))


def _depthwise() -> None:
    x, w = numbers(SHAPE), numbers((16, 3, 3, 1))
    y, state = mf.conv_fwd(x, w, padding=1, groups=16)
    mf.conv_grad_input(y, w, state)
    mf.conv_grad_weights(y, x, state)


def _neurons() -> None:
    x, dy, u = (numbers(LONG, seed=seed) for seed in range(3))
    act, like = Activation(GELU), ((LONG, mx.float32),)
    launched({"x": x}, like, activation_launches.neuron(x, act))
    launched({"dy": dy, "x": x}, like, activation_launches.grad(x, act))
    launched({"u": u, "dy": dy, "x": x}, like, activation_launches.neuron_grad_grad(x, act))
    launched({"dy": dy, "y": x}, like, activation_launches.neuron_grad_from_output(x, Activation(RELU)))


def _prelu() -> None:
    x, dy, slopes = numbers(LONG), numbers(LONG, seed=1), numbers(LONG[-1:], seed=2)
    act, like = Activation(PRELU), ((LONG, mx.float32),)
    launched({"x": x, "slopes": slopes}, like, activation_launches.neuron(x, act, slopes=True))
    launched({"dy": dy, "x": x, "slopes": slopes}, like, activation_launches.grad(x, act, slopes=True))


def _elements() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    mf.dropout(x, key=_KEY)
    mf.dropout_mask(LONG, key=_KEY)
    mf.dropout(x, mask=x > 0)
    mf.divide(x, dy, maximum=1.0)
    mf.arithmetic_grad(dy, x, x, "multiply")
    mf.compare(x, dy)


def _by_channels() -> None:
    x, dy, row = numbers(LONG), numbers(LONG, seed=1), numbers((1, 1, 1, 16))
    mf.dropout(x, mask=row > 0)
    mf.multiply(x, row)
    mf.arithmetic_grad(dy, x, row, "multiply", minimum=-1.0, clamp=True)
    mf.compare(x, row)


_KEY = mx.array([1, 2], mx.uint32)


def _twice_as_large() -> None:
    """Four images, which a thread of either body takes two or four at a time."""
    x = numbers(IMAGES)
    mf.upsample_nearest(x, 2)
    mf.upsample_bilinear(x, 2, coordinate="half_pixel", edge_mode="clamp")


def _softmax() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    for axis in (-1, 1):
        mf.softmax_grad(dy, mf.softmax(x, axis), axis)


def _losses() -> None:
    y, t = numbers(LONG), numbers(LONG, seed=1)
    for type in ("mean_squared_error", "softmax_cross_entropy"):
        mf.loss(y, t, type, "sum")
        mf.loss_grad(y, t, type)


class Row(NamedTuple):
    call: Callable[[], None]
    loads: dict[str, tuple[int, float]]  # bytes of each input: needed, and at most


# Times that tiles of two by two pixels, seven by seven of them, load a window of 3x3 taps: all but the first have two
# along an axis.
_ON_TILES = (2 * 6) ** 2 / 6**2
_CHANNEL_BY_CHANNEL = {"w": (9 * VECTOR, (3 * 12 - 2) / 12 * 3 * IMAGE / 4), "bias": (VECTOR, IMAGE)}
_PER_THREAD = (VECTOR, LONG_IMAGE / 4)  # vectors are loaded once for the four pixels of a thread
_NO_NEURON = dict.fromkeys(("scale", "shift"), (VECTOR, 0))
_WHOLE = (LONG_IMAGE, LONG_IMAGE)
# Four images of 12x12 pixels that become twice as large, and a table of them that has 24 entries or 13 lists of 24.
IMAGES = (4, 12, 12, 16)
_FOUR = 2 * IMAGE
_TABLE, _TILES = 24 * 4, (14 + 24 * 3) * 4
# A run of three windows of three pixels loads the pixel that they share, those to the left of it twice, and those to
# the right: seven, less at the edges. Beside that it loads the shared one as a pivot, and the middle of each window.
_RUNS = (LONG_IMAGE, 147 / 64 * LONG_IMAGE)
_PIVOTED = (LONG_IMAGE, (147 + 22 + 64) / 64 * LONG_IMAGE)
# Of slopes, three pixels for each of the 22 runs' pivots.
_THREE_PIVOTS = (LONG_IMAGE, (147 + 3 * 22 + 64) / 64 * LONG_IMAGE)
_TWICE = (LONG_IMAGE, 2 * LONG_IMAGE)
_NO_WEIGHTS = {"weights": (LONG_IMAGE, 0)}  # the image stands in
_NO_SCALES = {**_NO_WEIGHTS, "scales": (LONG_IMAGE, 0)}
TRAFFIC = {
    "avg_pool": Row(_pool, {"x": (IMAGE, 17**2 / 12**2 * IMAGE)}),  # every tap inside once
    "avg_pool_grad": Row(_pool_grad_of_many, {"dy": (IMAGE, (5 * 12 - 6) ** 2 / 12**2 * IMAGE)}),  # likewise
    "avg_pool_grad_tile": Row(_pool_grad, {"dy": (IMAGE // 4, _ON_TILES * IMAGE / 4)}),
    # Every tap inside once, and where a window begins outside one more in each row.
    "max_pool": Row(_max_pool, {"x": (IMAGE, 17 * 18 / 12**2 * IMAGE)}),
    "max_pool_grad": Row(  # as often as windows read a pixel
        _max_pool_of_edges,
        {"dy": (IMAGE // 4, 18**2 / 12**2 * IMAGE), "winners": (IMAGE // 16, 18**2 / 12**2 * IMAGE / 4)},
    ),
    "max_pool_grad_tile": Row(
        _max_pool, {"dy": (IMAGE // 4, _ON_TILES * IMAGE / 4), "winners": (IMAGE // 16, _ON_TILES * IMAGE / 16)}
    ),
    "max_pool_gather": Row(_max_pool, {"x": (IMAGE, IMAGE // 4), "winners": (IMAGE // 16, IMAGE // 16)}),
    "l2_pool": Row(_l2_pool, {"x": (IMAGE, 17**2 / 12**2 * IMAGE)}),  # every tap inside once
    "l2_pool_grad": Row(  # as often as windows read a pixel
        _l2_pool_of_edges,
        {"x": (IMAGE, IMAGE), **dict.fromkeys(("dy", "norms"), (IMAGE // 4, 18**2 / 12**2 * IMAGE))},
    ),
    "l2_pool_grad_tile": Row(
        _l2_pool, {"x": (IMAGE, IMAGE), **dict.fromkeys(("dy", "norms"), (IMAGE // 4, _ON_TILES * IMAGE / 4))}
    ),
    "l2_pool_jvp": Row(
        _l2_pool,
        {**dict.fromkeys(("x", "t"), (IMAGE, 17**2 / 12**2 * IMAGE)), "norms": (IMAGE // 4, IMAGE // 4)},
    ),
    "bn_stats": Row(_norm, {"x": (LONG_IMAGE, 66 / 64 * LONG_IMAGE)}),  # pivot and shift of a thread
    "bn_stats_merge": Row(_norm, {"x": (LONG_IMAGE, VECTOR), "mean": (VECTOR, 2 * VECTOR), "m2": (VECTOR, VECTOR)}),
    "bn_normalize": Row(
        _composed_norm,
        {"x": (LONG_IMAGE, LONG_IMAGE), **dict.fromkeys(("mean", "scale", "shift", "var"), _PER_THREAD)},
    ),
    "bn_stats_grad": Row(
        _norm,
        {
            "dy": (LONG_IMAGE, LONG_IMAGE),
            "x": (LONG_IMAGE, LONG_IMAGE),
            "mean": (VECTOR, LONG_IMAGE / 64),
            **_NO_NEURON,
            "var": (VECTOR, 0),  # nor anything to divide by its root
        },
    ),
    "bn_stats_grad_merge": Row(
        _norm, {"partial": (2 * VECTOR, 2 * VECTOR), **dict.fromkeys(("var", "dgamma", "dbeta"), (VECTOR, VECTOR))}
    ),
    "bn_stats_grad_factors": Row(
        _composed_norm,
        {"partial": (2 * VECTOR, 2 * VECTOR), **dict.fromkeys(("gamma", "var", "dmean", "dvar"), (VECTOR, VECTOR))},
    ),
    "bn_composed_factors": Row(
        _vectors, dict.fromkeys(("gamma", "var", "dmean", "dvar", "dbeta", "dot"), (VECTOR, VECTOR))
    ),
    # Means are read twice, and the first of a group by every thread, of which there are 256.
    "group_moments": Row(_vectors, {"mean": (VECTOR, 18 * VECTOR), "var": (VECTOR, VECTOR)}),
    "bn_group_sums": Row(_vectors, dict.fromkeys("bd", (VECTOR, VECTOR))),
    "bn_running": Row(
        _vectors,
        {**dict.fromkeys(("running_mean", "running_var", "mean", "var"), (VECTOR, VECTOR)), "count": (8, 256 * 8)},
    ),
    "bn_grad": Row(
        _norm,
        {
            "dy": (LONG_IMAGE, LONG_IMAGE),
            "x": (LONG_IMAGE, LONG_IMAGE),
            **dict.fromkeys(("mean", "a", "b", "d"), _PER_THREAD),
            **_NO_NEURON,
        },
    ),
    "bn_grad_coefficients": Row(
        _norm,
        {**dict.fromkeys(("gamma", "var", "dgamma", "dbeta"), (VECTOR, VECTOR)), "count": (8, VECTOR // 4 * 8)},
    ),
    # A pack and those beside it, of four; of the gradient, two and those beside them.
    "cross_channel_norm": Row(_windows, {"x": (LONG_IMAGE, 10 / 4 * LONG_IMAGE)}),
    "cross_channel_norm_grad": Row(_windows, dict.fromkeys(("dy", "x"), (LONG_IMAGE, 6 / 4 * LONG_IMAGE))),
    "window_sum": Row(_windows, {"x": _RUNS}),
    "window_moments": Row(_windows, {"x": _PIVOTED, **dict.fromkeys(("mean", "m2"), (LONG_IMAGE, 0))}),
    "window_slopes": Row(_windows, {"x": _THREE_PIVOTS, **dict.fromkeys("abc", _RUNS)}),
    "spatial_norm": Row(_windows, dict.fromkeys(("x", "squares"), _WHOLE)),
    "spatial_norm_weights": Row(_windows, dict.fromkeys(("dy", "x", "squares"), _WHOLE)),
    "spatial_norm_grad": Row(_windows, dict.fromkeys(("dy", "x", "squares", "sums"), _WHOLE)),
    "local_contrast_norm": Row(_windows, dict.fromkeys(("x", "mean", "m2"), _WHOLE)),
    "local_contrast_norm_weights": Row(_windows, dict.fromkeys(("dy", "x", "mean", "m2"), _WHOLE)),
    "local_contrast_norm_grad": Row(_windows, dict.fromkeys(("a", "sum_a", "sum_c"), _WHOLE)),
    # 288 pixels are five tiles, 144 weights of an output three.
    "conv": Row(_conv, {"x": (IMAGE, READS * IMAGE), "w": (WEIGHTS, 5 * WEIGHTS), "bias": (VECTOR, 288 * VECTOR)}),
    "conv_grad_input": Row(
        _conv, {"dy": (IMAGE, READS * IMAGE), "w": (WEIGHTS, 5 * WEIGHTS), "bias": (VECTOR, 288 * VECTOR)}
    ),
    "conv_grad_weights": Row(_conv, {"dy": (IMAGE, 3 * IMAGE), "x": (IMAGE, READS * IMAGE)}),
    # 400 weights of an output are seven tiles.
    "conv_grad_weights_simt": Row(_conv_on_cuda, {"dy": (IMAGE, 7 * IMAGE), "x": (IMAGE, READS_5 * IMAGE)}),
    # Lanes for dy and x are four by eight; what is loaded of a row serves all columns of its windows.
    "conv_grad_weights_registers": Row(
        _conv_on_cuda, {"dy": (IMAGE, 8 * IMAGE), "x": (IMAGE, 4 * (3 - 2 / 12) * IMAGE)}
    ),
    "conv_grad_weights_tensor_core": Row(_conv_on_cuda, dict.fromkeys(("dy", "x"), (IMAGE // 2, IMAGE / 2))),
    # A thread loads a channel's weights and bias for four pixels, and the taps of its rows that hit the image.
    "conv_depthwise": Row(_depthwise, _CHANNEL_BY_CHANNEL | {"x": (IMAGE, READS * IMAGE)}),
    "conv_depthwise_grad_input": Row(_depthwise, _CHANNEL_BY_CHANNEL | {"dy": (IMAGE, READS * IMAGE)}),
    # Nine taps are five and four.
    "conv_depthwise_grad_weights": Row(_depthwise, {"dy": (IMAGE, 2 * IMAGE), "x": (IMAGE, READS * IMAGE)}),
    "conv_grad_bias": Row(_conv, {"dy": (IMAGE, IMAGE)}),
    "neuron": Row(_neurons, {"x": _WHOLE, "slopes": (LONG_IMAGE, 0)}),  # the image stands in for slopes
    "neuron_grad": Row(_neurons, {**dict.fromkeys(("dy", "x"), _WHOLE), "slopes": (LONG_IMAGE, 0)}),
    "neuron_grad_grad": Row(_neurons, dict.fromkeys(("u", "dy", "x"), _WHOLE)),
    "neuron_grad_from_output": Row(_neurons, dict.fromkeys(("dy", "y"), _WHOLE)),
    # A key is loaded by each thread, of which each has four packs, or one of a mask of bytes.
    "dropout": Row(_elements, {"x": _WHOLE, "keys": (8, LONG_IMAGE / 16 / 4 * 8)}),
    "dropout_mask": Row(_elements, {"keys": (8, LONG_IMAGE / 4 / 16 / 4 * 8)}),
    "dropout_by_mask": Row(_elements, {"x": _WHOLE, "mask": (LONG_IMAGE // 4, LONG_IMAGE / 4)}),
    "arithmetic": Row(_elements, {"x": _WHOLE, "y": _WHOLE}),
    "arithmetic_grad": Row(_elements, {"dy": _WHOLE, "x": (LONG_IMAGE, 0), "y": _WHOLE}),
    "compare": Row(_elements, {"x": _WHOLE, "y": _WHOLE}),
    # Each of 24x24 threads for each of four packs reads its places, and one place of each image.
    "gather_pixels": Row(
        _twice_as_large,
        {"x": (_FOUR, 4 * _FOUR), **dict.fromkeys(("rows", "cols"), (_TABLE, 24 * 24 * 4 * 4)), "filling": (4, 0)},
    ),
    # Tiles of two by two pixels read two rows and columns and those at the edges one: 24 lines of 12 an axis. A thread
    # of 13x13 for each of four packs and two images reads where its lists begin and end, and their entries: of the
    # columns again in each row.
    "resample": Row(
        _twice_as_large,
        {
            "x": (_FOUR, 4 * _FOUR),
            "rows": (_TILES, 13 * (13 * 2 + 24 * 3) * 8 * 4),
            "cols": (_TILES, (13 * 13 * 2 + 24 * 24 * 3) * 8 * 4),
        },
    ),
    "softmax": Row(_softmax, {"x": _WHOLE}),
    "softmax_grad": Row(_softmax, dict.fromkeys(("dy", "y"), _WHOLE)),
    "softmax_strided": Row(_softmax, {"x": _TWICE}),  # to add up, and to divide
    "softmax_grad_strided": Row(_softmax, dict.fromkeys(("dy", "y"), _TWICE)),
    "loss": Row(_losses, {**dict.fromkeys(("y", "target"), _WHOLE), **_NO_WEIGHTS}),
    "loss_grad": Row(_losses, {**dict.fromkeys(("y", "target"), _WHOLE), **_NO_SCALES}),
    "softmax_cross_entropy": Row(_losses, {"y": _TWICE, "target": _WHOLE, **_NO_WEIGHTS}),
    # The targets are added up for a derivative.
    "softmax_cross_entropy_grad": Row(_losses, {**dict.fromkeys(("y", "target"), _TWICE), **_NO_SCALES}),
    "sum_partials": Row(_conv, {"partial": (WEIGHTS, WEIGHTS)}),
}


@functools.cache
def runs(call: Callable[[], None]) -> tuple[Run, ...]:
    with metal_host() as host:
        call()
    return tuple(host.runs)


@pytest.mark.parametrize("body", ["neuron", "neuron_grad"])
def test_slopes_are_loaded_once_an_element(body: str) -> None:
    run = next(run for run in runs(_prelu) if run.stage.body == body)
    assert run.outcome.traffic["slopes"].loaded <= LONG_IMAGE


def test_statistics_that_are_given_are_no_scales() -> None:
    """The scale comes divided already, and nobody loads the variance."""
    run = next(run for run in runs(_affine) if run.stage.body == "bn_normalize")
    loaded = {name: run.outcome.traffic[name].loaded for name in run.stage.inputs}
    assert loaded["var"] == 0 and loaded["x"] <= LONG_IMAGE
    assert max(loaded[name] for name in ("mean", "scale", "shift")) <= _PER_THREAD[1]


@pytest.mark.parametrize("body", BODIES)
def test_loads_stay_within_their_bounds(body: str) -> None:
    assert body in TRAFFIC, f"TRAFFIC has no row for {body}: what it may load of each input"
    row = TRAFFIC[body]
    run = next(run for run in runs(row.call) if run.stage.body == body)
    inputs = {buffer.name: buffer.bytes for buffer in run.job.buffers if buffer.name in run.stage.inputs}
    assert inputs == {name: needed for name, (needed, _) in row.loads.items()}
    for name, (_, bound) in row.loads.items():
        assert run.outcome.traffic[name].loaded <= bound + 0.5, name


@pytest.mark.parametrize("body", ["dropout_by_mask", "arithmetic", "arithmetic_grad", "compare"])
def test_what_pixels_share_is_loaded_beside_each_pack(body: str) -> None:
    """From a cache: as many bytes as the image has."""
    run = next(run for run in runs(_by_channels) if run.stage.body == body)
    for name in {"mask", "x", "y", "dy"} & set(run.stage.inputs):
        assert run.outcome.traffic[name].loaded <= LONG_IMAGE, name


# Windows that do not overlap: 13 pixels leave one behind them.
APART = (2, 12, 13, 16)


def _apart() -> None:
    dy = numbers((2, 6, 6, 16))
    x = numbers(APART)
    mf.avg_pool(x, 2)
    mf.avg_pool_grad(dy, mf.avg_pool_state(APART, 2))
    _, maxima = mf.max_pool_fwd(x, 2)
    mf.max_pool_grad(dy, maxima)
    _, norms = mf.l2_pool_fwd(x, 2)
    mf.l2_pool_grad(dy, x, norms)


@pytest.mark.parametrize(
    "body", ["avg_pool", "avg_pool_grad_tile", "max_pool", "max_pool_grad_tile", "l2_pool", "l2_pool_grad_tile"]
)
def test_windows_that_do_not_overlap_are_loaded_once(body: str) -> None:
    run = next(run for run in runs(_apart) if run.stage.body == body)
    for buffer in run.job.buffers:
        if buffer.name in run.stage.inputs:
            assert run.outcome.traffic[buffer.name].loaded <= buffer.bytes, buffer.name
