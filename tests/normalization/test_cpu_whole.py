"""Normalization as a whole and by a state, one C++ primitive for each direction: the bits of what it is made of."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, accumulator, exact, nodes, numbers, same_bits
from support.normalization_case import NEURONS as PLAIN
from support.normalization_case import like, packed, run, stats, vectors

import mpsfunc as mf
from mpsfunc.channels.activation_spec import SIGMOID, Activation
from mpsfunc.core.params import for_cpu

EPS = 1e-3
NEURONS = (*PLAIN, for_cpu(Activation(SIGMOID)))
# Images, groups of channels, and whether each image has statistics of its own: one, few, many, small and large
# ones, broken vectors, a rest of a row, several chunks of rows.
WHOLE = (
    ((2, 3, 5, 3), 0, False), ((3, 40, 11, 8), 0, False), ((2, 30, 31, 33), 0, False), ((3, 5, 6, 6), 3, False),
    ((2, 3, 5, 3), 0, True), ((3, 60, 50, 1), 1, True), ((2, 30, 31, 33), 11, True), ((9, 20, 20, 130), 13, True),
    ((70, 3, 2, 5), 0, True), ((70, 3, 2, 6), 2, True), ((300, 1, 1, 16), 4, True), ((13, 28, 28, 64), 8, True),
)  # fmt: skip


def whole(op: str, arrays: list[mx.array], per_image: bool, groups: int, neuron: int) -> list[mx.array]:
    """`batch_norm` of x, gamma, beta; or its gradient, of dy, x, gamma, beta, mean, var, dmean and dvar."""
    x = arrays[0]
    n, h, w, channels = x.shape
    count = (1 if per_image else n) * h * w * (channels // groups if groups else 1)
    vector = ((n, channels) if per_image else (channels,), accumulator(x.dtype))
    params = (groups, *packed(EPS, count), *NEURONS[neuron])
    return run(op, arrays, params, (x.shape, x.dtype), vector, vector)


def in_parts(x: mx.array, given: list[mx.array], per_image: bool, groups: int, neuron: int) -> list[mx.array]:
    """What `batch_norm` is made of."""
    stat_groups = x.shape[0] if per_image else 1
    mean, var = stats(x, stat_groups)
    if groups:
        mean, var = run("group_moments", [mean, var], packed(groups), *[(mean.shape, mean.dtype)] * 2)
    gamma, beta = (mx.broadcast_to(v, mean.shape) for v in given)
    scale = like("bn_slope", [gamma, var], packed(EPS))
    return [like("bn_normalize", [x, mean, scale, beta], NEURONS[neuron]), mean, var]


def grad_in_parts(
    dy: mx.array, x: mx.array, given: list[mx.array], rows: list[mx.array], groups: int, neuron: int
) -> list[mx.array]:
    """What its gradient is made of."""
    mean, var, dmean, dvar = rows
    gamma, beta = (mx.broadcast_to(v, mean.shape) for v in given)
    behind = [like("bn_slope", [gamma, var], packed(EPS)), beta] if neuron else []
    total, dot = run("bn_stats_grad", [dy, x, mean, *behind], NEURONS[neuron], *[(mean.shape, mean.dtype)] * 2)
    count = x.size // mean.size * (x.shape[3] // groups if groups else 1)
    of_vectors = [gamma, var, dmean, dvar, total, dot]
    dgamma, a, b, d = run("bn_composed_factors", of_vectors, packed(count, EPS), *[(mean.shape, mean.dtype)] * 4)
    if groups:
        b, d = run("bn_group_sums", [b, d], packed(groups), *[(b.shape, b.dtype)] * 2)
    return [like("bn_grad", [dy, x, mean, a, b, d, *behind], NEURONS[neuron]), dgamma, total]


def by_rows(given: list[mx.array], mean: mx.array, var: mx.array) -> tuple[mx.array, mx.array]:
    """The factors of images less their mean, and what is added, as rows of one group."""
    gamma, beta = (v[None] for v in given)
    return like("bn_slope", [gamma, var[None]], packed(EPS)), beta


def check(x: mx.array, dy: mx.array, groups: int, per_image: bool, neuron: int) -> None:
    given = vectors(2, (x.shape[3],), x.dtype)
    y, mean, var = whole("batch_norm", [x, *given], per_image, groups, neuron)
    for made, part in zip((y, mean, var), in_parts(x, given, per_image, groups, neuron), strict=True):
        assert same_bits(made.reshape(part.shape), part)
    if not (groups or per_image):
        added, scale, rows = whole("batch_norm_add", [x, dy, *given], False, 0, neuron), *by_rows(given, mean, var)
        assert same_bits(added[0], like("bn_normalize_add", [x, dy, mean[None], scale, rows], NEURONS[neuron]))
        assert same_bits(added[1], mean) and same_bits(added[2], var)
    statistics = [mean, var, *vectors(2, mean.shape, x.dtype)]
    made = whole("batch_norm_grad", [dy, x, *given, *statistics], per_image, groups, neuron)
    rows = [v if per_image else v[None] for v in statistics]
    for one, part in zip(made, grad_in_parts(dy, x, given, rows, groups, neuron), strict=True):
        assert same_bits(one.reshape(part.shape), part)


@pytest.mark.parametrize("neuron", (0, 1, 2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "groups", "per_image"), WHOLE, ids=str)
def test_its_parts(
    isa: str, shape: tuple[int, ...], groups: int, per_image: bool, dtype: mx.Dtype, neuron: int
) -> None:
    check(numbers(shape, dtype), numbers(shape, dtype, seed=1), groups, per_image, neuron)


@pytest.mark.parametrize("threads_used", (1, 2, 3, 7))
@pytest.mark.parametrize(("shape", "groups", "per_image"), WHOLE, ids=str)
def test_its_parts_with_other_numbers_of_threads(
    shape: tuple[int, ...], groups: int, per_image: bool, threads_used: int, threads: Callable[[int], None]
) -> None:
    threads(threads_used)
    check(numbers(shape), numbers(shape, seed=1), groups, per_image, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "groups", "per_image"), WHOLE, ids=str)
def test_a_gradient_by_group_without_gradients_of_its_statistics(
    isa: str, shape: tuple[int, ...], groups: int, per_image: bool, dtype: mx.Dtype
) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    given = vectors(2, (shape[3],), dtype)
    _, mean, var = whole("batch_norm", [x, *given], per_image, groups, 1)
    by_channel = whole("batch_norm_grad", [dy, x, *given, mean, var, *[mx.zeros_like(mean)] * 2], per_image, groups, 1)
    if groups:
        mean, var = (v[..., :: shape[3] // groups] for v in (mean, var))
    for none in (mx.zeros_like(by_channel[1]), mx.zeros((0,), by_channel[1].dtype)):
        by_group = whole("batch_norm_grad", [dy, x, *given, mean, var, none, none], per_image, groups, 1)
        assert all(same_bits(a, b) for a, b in zip(by_channel, by_group, strict=True))


def test_an_explicit_call_is_one_node_of_a_graph(on_cpu: mx.Device) -> None:
    x, dy, vector = numbers((2, 5, 6, 8)), numbers((2, 5, 6, 8), seed=1), numbers((8,))
    mx.eval(x, dy, vector)
    for given in ((vector,), ()):
        stats = mf.bn_stats(x)
        assert nodes(stats.mean, stats.var) == {"bn_stats": 1}
        mx.eval(stats.mean, stats.var)
        assert nodes(mf.bn_normalize(x, stats, *given, *given)) == {"bn_normalize_by": 1}
        for forward, gradient in (
            (lambda: mf.instance_norm_fwd(x), mf.instance_norm_grad),
            (lambda: mf.group_norm_fwd(x, 4), mf.group_norm_grad),
        ):
            y, before = forward()
            assert nodes(y) == {"batch_norm": 1}
            mx.eval(before.mean, before.var)
            dx, after = gradient(dy, x, before, *given)
            assert nodes(dx, after.dgamma, after.dbeta) == {"batch_norm_grad": 1}
    _, gradients = mx.vjp(mf.batch_norm, [x, vector, vector], [dy])
    around = ("Contiguous", "Copy", "CustomTransforms", "StopGradient")
    made = {name: count for name, count in nodes(*gradients).items() if name not in around}
    assert made == {"batch_norm": 1, "batch_norm_grad": 1}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("per_image", (False, True))
def test_views(view: Callable[[mx.array], mx.array], per_image: bool) -> None:
    x, dy = numbers((2, 11, 9, 6)), numbers((2, 11, 9, 6), seed=1)
    given = vectors(2, (6,), x.dtype)
    made, plain = (whole("batch_norm", [a, *given], per_image, 2, 1) for a in (view(x), x))
    assert all(same_bits(a, b) for a, b in zip(made, plain, strict=True))
    more = [*given, *vectors(4, made[1].shape, x.dtype)]
    more[3] = abs(more[3])  # a variance
    made, plain = (whole("batch_norm_grad", [*a, *more], per_image, 2, 1) for a in ((view(dy), view(x)), (dy, x)))
    assert all(same_bits(a, b) for a, b in zip(made, plain, strict=True))


@pytest.mark.parametrize("dtype", (mx.float32, mx.bfloat16), ids=str)
@pytest.mark.parametrize("channels", (7, 64))
def test_results_that_are_stored_past_the_caches(isa: str, channels: int, dtype: mx.Dtype) -> None:
    images = 1 + 5 * 2**20 // dtype.size // (40 * 40 * channels)
    x, dy = numbers((images, 40, 40, channels), dtype), numbers((images, 40, 40, channels), dtype, seed=1)
    given = vectors(2, (channels,), dtype)
    some = slice(images // 2, images // 2 + 1)
    for _ in range(3):  # at the latest the second result lies in memory that was used before
        y, mean, var = whole("batch_norm", [x, *given], True, 0, 1)
        dx, *_ = whole("batch_norm_grad", [dy, x, *given, mean, var, mean, var], True, 0, 1)
        mx.eval(y, dx)
        # An image among many is cut into other pieces than one alone, so the bits of its sums may differ.
        alone = whole("batch_norm", [x[some], *given], True, 0, 1)[0].astype(mx.float32)
        assert mx.allclose(y[some].astype(mx.float32), alone, rtol=2**-7 if dtype == mx.bfloat16 else 1e-5, atol=1e-5)
        of_one = [a[some] for a in (mean, var, mean, var)]
        alone = whole("batch_norm_grad", [dy[some], x[some], *given, *of_one], True, 0, 1)[0].astype(mx.float32)
        assert mx.allclose(dx[some].astype(mx.float32), alone, rtol=2**-7 if dtype == mx.bfloat16 else 1e-5, atol=1e-5)
        del y, dx


@pytest.mark.parametrize("per_image", (False, True))
@pytest.mark.parametrize("shape", ((0, 5, 6, 4), (2, 0, 6, 4), (2, 5, 0, 4), (2, 5, 6, 0)))
def test_empty(isa: str, shape: tuple[int, ...], per_image: bool) -> None:
    x, given = mx.zeros(shape), [mx.ones((shape[3],))] * 2
    y, mean, var = whole("batch_norm", [x, *given], per_image, 0, 1)
    dx, dgamma, dbeta = whole("batch_norm_grad", [x, x, *given, mean, var, mean, var], per_image, 0, 1)
    for made in (y, dx):
        assert mx.array_equal(made, mx.zeros(shape))
    for made in (mean, var, dgamma, dbeta):
        assert mx.array_equal(made, mx.zeros(made.shape))


# By a state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron", (0, 1, 2))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((2, 3, 5, 3), (2, 30, 31, 33), (3, 40, 11, 64), (0, 3, 5, 4)), ids=str)
def test_the_parts_of_a_state(isa: str, shape: tuple[int, ...], dtype: mx.Dtype, neuron: int) -> None:
    x, dy, wide = numbers(shape, dtype), numbers(shape, dtype, seed=1), accumulator(dtype)
    channels, act = shape[3:], NEURONS[neuron]
    mean, var, gamma, beta, dgamma, dbeta = vectors(6, channels, dtype)
    var, count, told = abs(var) + 1, mx.array(77, mx.int64), (*packed(EPS), *act)
    slope = like("bn_slope", [gamma, var], packed(EPS))
    one, behind = [v[None] for v in (slope, beta)], [gamma, beta] if neuron else []

    y = run("bn_normalize_by", [x, mean, var, gamma, beta], told, (shape, dtype))[0]
    assert same_bits(y, like("bn_normalize", [x, mean[None], *one], act))

    statistics, vector = [mean, var, dgamma, dbeta], (channels, wide)
    made = run("bn_stats_grad_by", [dy, x, *statistics, *behind], told, vector, vector)
    sums = run("bn_stats_grad", [dy, x, mean[None], *(one if neuron else [])], act, *[((1, *channels), wide)] * 2)
    total, dot = (exact(v)[0] for v in sums)
    eps = 4 * np.finfo(np.float64 if wide == mx.float64 else np.float32).eps
    np.testing.assert_allclose(exact(made[1]), exact(dbeta) + total, eps, eps)
    grown = dot / np.sqrt(exact(var) + EPS)
    np.testing.assert_allclose(exact(made[0]), exact(dgamma) + grown, eps, eps * (1 + abs(grown).max()))

    given = [gamma, count, *behind[1:]]
    dx = run("bn_grad_by", [dy, x, *statistics, *given], told, (shape, dtype))[0]
    share = slope / 77
    root = like("bn_slope", [mx.ones_like(var), var], packed(EPS))
    factors = [v[None] for v in (slope, -share * (root * dgamma), -share * dbeta)]
    assert same_bits(dx, like("bn_grad", [dy, x, mean[None], *factors, *(one if neuron else [])], act))


# Refusals -----------------------------------------------------------------------------------------------

IMAGE, CHANNELS, ROWS = ((2, 7, 8, 6), mx.float32), ((6,), mx.float32), ((2, 6), mx.float32)
PARAMS = (0, *packed(1e-3, 112), *NEURONS[0])
GROUPS, NONE = ((2, 2), mx.float32), ((0,), mx.float32)
STATE, COUNT, HALF = (*packed(1e-3), *NEURONS[0]), ((), mx.int64), ((6,), mx.float16)


@pytest.mark.parametrize(
    ("op", "inputs", "params", "outputs"),
    [
        ("batch_norm", [IMAGE, CHANNELS], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm", [IMAGE, CHANNELS, ROWS], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], PARAMS, [IMAGE, CHANNELS]),
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], PARAMS, [IMAGE, CHANNELS, ROWS]),
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], PARAMS, [IMAGE, ((1, 6), mx.float32), ((1, 6), mx.float32)]),
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], PARAMS, [CHANNELS, CHANNELS, CHANNELS]),
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], PARAMS[:-1], [IMAGE, CHANNELS, CHANNELS]),
        *[
            ("batch_norm", [IMAGE, CHANNELS, CHANNELS], (groups, *PARAMS[1:]), [IMAGE, CHANNELS, CHANNELS])
            for groups in (-1, 4, 7, 12)
        ],
        ("batch_norm", [IMAGE, CHANNELS, CHANNELS], (*PARAMS[:5], 10, *PARAMS[6:]), [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm", [IMAGE, CHANNELS, ((6,), mx.float16)], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_grad", [IMAGE, IMAGE, *[CHANNELS] * 5, ROWS], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_grad", [IMAGE, IMAGE, *[CHANNELS] * 5], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_grad", [IMAGE, ((2, 7, 8, 6), mx.float16), *[CHANNELS] * 6], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_grad", [IMAGE, ((2, 7, 7, 6), mx.float32), *[CHANNELS] * 6], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_grad", [IMAGE, IMAGE, CHANNELS, CHANNELS, *[ROWS] * 4], PARAMS, [IMAGE, ROWS, CHANNELS]),
        *[
            ("batch_norm_grad", [IMAGE, IMAGE, CHANNELS, CHANNELS, *given], (2, *PARAMS[1:]), [IMAGE, ROWS, ROWS])
            for given in (
                [GROUPS, ROWS, ROWS, ROWS],
                [((2, 3), mx.float32)] * 2 + [ROWS] * 2,
                [((2, 2), mx.float64)] * 2 + [ROWS] * 2,
                [GROUPS, GROUPS, NONE, ROWS],
                [GROUPS, GROUPS, ROWS, NONE],
                [GROUPS, GROUPS, GROUPS, GROUPS],
                [GROUPS, GROUPS, ((0,), mx.float16), ((0,), mx.float16)],
                [NONE, NONE, NONE, NONE],
            )
        ],
        ("batch_norm_grad", [IMAGE, IMAGE, *[CHANNELS] * 2, *[GROUPS] * 2, *[ROWS] * 2], PARAMS, [IMAGE, ROWS, ROWS]),
        ("batch_norm_add", [IMAGE, *[CHANNELS] * 2], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_add", [IMAGE, ((2, 7, 7, 6), mx.float32), *[CHANNELS] * 2], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("batch_norm_add", [IMAGE, ((2, 7, 8, 6), mx.float16), *[CHANNELS] * 2], PARAMS, [IMAGE, CHANNELS, CHANNELS]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 3], STATE, [IMAGE]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 3, HALF], STATE, [IMAGE]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 3, ROWS], STATE, [IMAGE]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 4], STATE[:-1], [IMAGE]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 4], (*STATE[:2], 10, *STATE[3:]), [IMAGE]),
        ("bn_normalize_by", [IMAGE, *[CHANNELS] * 4], STATE, [CHANNELS]),
        ("bn_normalize_by", [CHANNELS, *[CHANNELS] * 4], STATE, [CHANNELS]),
        ("bn_stats_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 6], STATE, [CHANNELS, CHANNELS]),
        ("bn_stats_grad_by", [IMAGE, ((2, 7, 7, 6), mx.float32), *[CHANNELS] * 4], STATE, [CHANNELS, CHANNELS]),
        ("bn_stats_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 4], STATE, [CHANNELS]),
        ("bn_stats_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 4], STATE, [CHANNELS, ROWS]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 6], STATE, [IMAGE]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 5], STATE, [IMAGE]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 5, ((1,), mx.int64)], STATE, [IMAGE]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 5, ((), mx.int32)], STATE, [IMAGE]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 5, COUNT, CHANNELS], STATE, [IMAGE]),
        ("bn_grad_by", [IMAGE, IMAGE, *[CHANNELS] * 5, COUNT], STATE, [((2, 7, 8, 6), mx.float16)]),
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: list, params: tuple[int, ...], outputs: list) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, *outputs)
