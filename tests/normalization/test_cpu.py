"""The normalizations' C++ primitives by themselves: every instruction set's tails, groups, windows, refusals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, close, exact, numbers, same_bits, same_bits_for_threads
from support.normalization_case import (
    NEURONS,
    each_isa,
    like,
    norm,
    norm_grad,
    packed,
    power,
    run,
    stats,
    stats_grad,
    vectors,
)  # fmt: skip
from support.oracle import normalization as oracle

# Statistics groups, then images: single pixels, broken vectors, a rest of a row, several chunks of rows, many groups.
GROUPS = (
    (1, (2, 3, 5, 3)), (2, (2, 3, 5, 3)), (3, (6, 1, 1, 7)), (4, (4, 7, 7, 16)), (2, (4, 12, 11, 65)),
    (1, (3, 40, 11, 8)), (70, (140, 1, 2, 5)), (3, (3, 60, 50, 1)), (2, (2, 30, 31, 33)),
    (5, (5, 1, 1, 64)), (2, (2, 20, 20, 130)),
)  # fmt: skip
# Images for windows: one pixel, broken vectors around every width, parts of channels, parts of rows.
IMAGES = (
    (1, 1, 1, 1), (2, 3, 4, 3), (1, 7, 6, 8), (1, 5, 4, 15), (2, 4, 3, 16), (1, 4, 5, 17), (1, 6, 5, 33), (1, 5, 9, 65),
    (1, 40, 17, 64), (1, 130, 70, 1), (3, 24, 25, 34),
)  # fmt: skip
SIZES = (1, 2, 3, 5, 7, 8, 31, 2**31 - 1)
NORMS = {"cross_channel_norm": (), "spatial_norm": (), "local_contrast_norm": (0.9, 0.1, 1.5)}
# What a term of the size of the values may lose on its way through a window, a power and two products.
SLACK = 4.0

# Statistics groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("groups", "shape"), GROUPS, ids=str)
def test_moments_of_stat_groups(isa: str, groups: int, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    x = numbers(shape, dtype)
    mean, var = stats(x, groups)
    expected_mean, expected_var = oracle.moments(exact(x), groups)
    close(mean, expected_mean)
    close(var, expected_var)


@pytest.mark.parametrize("neuron", (0, 1))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("groups", "shape"), GROUPS, ids=str)
def test_maps_and_sums_of_groups(isa: str, groups: int, shape: tuple[int, ...], dtype: mx.Dtype, neuron: int) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    mean, a, b, d, scale, shift = vectors(6, (groups, shape[-1]), dtype)
    x64, dy64, mean64 = exact(x), exact(dy), exact(mean)
    z = oracle.affine(x64, mean64, exact(scale), exact(shift))
    # Where rounding decides on which side of 0 z lies, both answers are right, so nothing may depend on it.
    dy = mx.where(mx.array(abs(z) < 1e-4), mx.zeros_like(dy), dy)
    dy64 = exact(dy)
    size = 3 + 2 * abs(oracle.affine(abs(x64), -abs(mean64), abs(exact(scale)), abs(exact(shift))))
    y = like("bn_normalize", [x, mean, scale, shift], NEURONS[neuron])
    close(y, np.maximum(z, 0) if neuron else z, size)
    y = like("bn_normalize_add", [x, dy, mean, scale, shift], NEURONS[neuron])
    close(y, np.maximum(z + dy64, 0) if neuron else z + dy64, size + abs(dy64))

    with_neuron = [scale, shift] if neuron else []
    g = dy64 * (z >= 0) if neuron else dy64
    centred = oracle.affine(x64, mean64, np.ones_like(mean64), np.zeros_like(mean64))
    total, dot = stats_grad([dy, x, mean, *with_neuron], neuron)
    close(total, oracle.in_stat_groups(g, groups).sum(1), 1 + abs(oracle.in_stat_groups(g, groups)).sum(1))
    terms = oracle.in_stat_groups(g * centred, groups)
    close(dot, terms.sum(1), 1 + abs(terms).sum(1))

    dx = like("bn_grad", [dy, x, mean, a, b, d, *with_neuron], NEURONS[neuron])
    none = np.zeros_like(mean64)
    expected = oracle.affine(g, none, exact(a), none) + oracle.affine(x64, mean64, exact(b), exact(d))
    size = 3 + abs(oracle.affine(g, none, exact(a), none)) + 2 * abs(x64) * abs(exact(b)).max(initial=0) + 9
    close(dx, expected, size)


def test_the_neuron_at_its_edges(isa: str) -> None:
    x = mx.array([[-1.0], [-0.0], [0.0], [2.0], [float("nan")]])
    zero, one = mx.zeros((1, 1)), mx.ones((1, 1))
    y = like("bn_normalize", [x, zero, one, zero], NEURONS[1])
    assert np.array_equal(exact(y), [[0], [0], [0], [2], [np.nan]], equal_nan=True)
    dx = like("bn_grad", [mx.full((5, 1), 3.0), x, zero, one, zero, zero, one, zero], NEURONS[1])
    assert np.array_equal(exact(dx[:4]), [[0], [3], [3], [3]])  # from the right at 0
    assert stats_grad([mx.full((4, 1), 3.0), x[:4], zero, one, zero], 1)[0].item() == 9


def test_a_group_is_what_it_is_alone(isa: str) -> None:
    x = numbers((6, 9, 8, 24)) + 1e4
    for groups in (2, 3, 6):
        mean, var = stats(x, groups)
        for i, part in enumerate(mx.split(x, groups)):
            for all_groups, alone in zip((mean, var), oracle.moments(exact(part), 1), strict=True):
                np.testing.assert_allclose(exact(all_groups[i]), alone[0], rtol=1e-5)


# Powers ---------------------------------------------------------------------------------------------------

EXPONENTS = (-5.0, -1.7, -1.0, -0.75, -0.6, -0.5, 0.0, 0.3, 1.0, 2.0)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers(isa: str, exponent: float) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.exp(rng.uniform(-80, 80, 50001)), np.linspace(0.7, 1.5, 10000)])
    t = mx.array(values.astype(np.float32))
    with np.errstate(over="ignore", under="ignore"):
        expected = exact(t) ** exponent
        normal = (expected > 2.0**-126) & (expected < 2.0**127)
        ulps = abs(exact(power(t, exponent)) - expected)[normal] / np.spacing(expected[normal].astype(np.float32))
    assert ulps.max() < 2.5
    t = mx.array(values, mx.float64)
    normal &= values < 1e30
    np.testing.assert_allclose(exact(power(t, exponent))[normal], (values**exponent)[normal], rtol=1e-14)


@pytest.mark.parametrize("dtype", (mx.float32, mx.float64), ids=str)
@pytest.mark.parametrize("exponent", (*EXPONENTS, -2.0, -3.0, 3.0))
def test_powers_at_the_edges(isa: str, exponent: float, dtype: mx.Dtype) -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 1.0]
    got = np.array(power(mx.array(values, dtype), exponent))
    with np.errstate(all="ignore"):
        expected = np.power(np.array(values), exponent)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[known]), np.signbit(expected[known]))


def test_powers_of_any_shape(isa: str) -> None:
    assert power(mx.array(4.0), -0.5).item() == 0.5
    assert power(mx.zeros((0, 3)), 2.0).shape == (0, 3)


# Windows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (mx.float32, mx.float64), ids=str)
@pytest.mark.parametrize("axis", (1, 2, 3))
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_sums_over_windows(isa: str, shape: tuple[int, ...], axis: int, dtype: mx.Dtype) -> None:
    x = numbers(shape, dtype)
    edges = ((0, 0), (1, 0), (0, 1), (2, 2), (3, 1), (0, 6), (4, 4), (15, 16), (2**31 - 1, 0), (7, 2**31 - 1))
    for before, after in edges:
        shifts = range(-before, after + 1)
        expected = oracle.window_sum(exact(x), axis, shifts)
        close(like("window_sum", [x], (axis, before, after)), expected, oracle.window_sum(abs(exact(x)), axis, shifts))


# An exponent is given to sums that any window has made; spatial windows of 3, 5 and 7 take their powers themselves.
EVERY_POWER, BETAS = (3, 5, 7, 8), (0.6, 0.5, 1.0, 0.75, 5.0)
LARGE_SIZES = (1, 5, 31)


@functools.lru_cache(maxsize=1)
def norms_by_windows(op: str, shape: tuple[int, ...], dtype: mx.Dtype) -> list[tuple[Any, np.ndarray, np.ndarray]]:
    """Settings, and what the normalization and its gradient by them are to give."""
    x, dy = exact(numbers(shape, dtype)), exact(numbers(shape, dtype, seed=1))
    large, found = shape[1] > 20, []
    for size in LARGE_SIZES if large else SIZES:
        for beta in BETAS if size in EVERY_POWER and not large else BETAS[:1]:
            settings = (size, 1.3, beta, 0.7, *NORMS[op])
            found.append((settings, getattr(oracle, op)(x, *settings), getattr(oracle, f"{op}_grad")(dy, x, *settings)))
    return found


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("op", NORMS)
def test_norms_by_windows(isa: str, op: str, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    for settings, expected, pulled in norms_by_windows(op, shape, dtype):
        close(norm(op, x, *settings), expected, 1 + abs(expected), slack=SLACK)
        close(norm_grad(op, dy, x, *settings), pulled, 1 + abs(pulled).max(), slack=SLACK)


@pytest.mark.parametrize("channels", (1, 20, 64))
@pytest.mark.parametrize("size", (3, 5, 9, 25))
def test_contrast_far_from_zero(isa: str, size: int, channels: int) -> None:
    shape = (1, 40, 37, channels)
    x, dy = numbers(shape) + 1e4, numbers(shape, seed=1)
    settings = (size, 1.0, 0.5, 1e-3)
    inside = (slice(None), slice(size, 40 - size), slice(size, 37 - size)) if size < 18 else (slice(None),)
    y = exact(norm("local_contrast_norm", x, *settings, 1, 0, 1))
    expected = oracle.local_contrast_norm(exact(x), *settings)
    np.testing.assert_allclose(y[inside], expected[inside], rtol=1e-3, atol=1e-5)
    dx = exact(norm_grad("local_contrast_norm", dy, x, *settings, 1, 0, 1))
    pulled = oracle.local_contrast_norm_grad(exact(dy), exact(x), *settings)
    np.testing.assert_allclose(dx[inside], pulled[inside], rtol=1e-3, atol=1e-5)


def test_sums_do_not_cancel(isa: str) -> None:
    x = mx.array(np.where(np.arange(4096) % 2, 1e4, 1e-3).astype(np.float32)).reshape(1, 64, 64, 1)
    for axis in (1, 2):
        for size in (5, 31):
            expected = oracle.window_sum(exact(x), axis, range(-(size // 2), size // 2 + 1))
            got = exact(like("window_sum", [x], (axis, size // 2, size // 2)))
            np.testing.assert_allclose(got, expected, rtol=1e-6)  # also of windows of 1e-3 beside 1e4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", NORMS)
def test_base_of_zero_or_less(isa: str, op: str, dtype: mx.Dtype) -> None:
    x = numbers((1, 5, 6, 20), dtype)
    for beta in (0.5, 0.6, 1.0):
        settings = (3, 0.0, beta, -1.0, *NORMS[op])
        mx.eval(norm(op, x, *settings), norm_grad(op, x, x, *settings))
        if beta != 1:
            assert np.isnan(exact(norm(op, x, *settings))).all()
    assert np.isinf(exact(norm(op, x, 3, 0.0, 0.6, 0.0, *NORMS[op]))).all()


# Layouts, threads, empty arrays ---------------------------------------------------------------------------


def everything(x: mx.array, dy: mx.array, groups: int) -> list[mx.array]:
    six = vectors(6, (groups, x.shape[-1]), x.dtype)
    made = [*stats(x, groups), *stats_grad([dy, x, six[0]], 0), *stats_grad([dy, x, *six[:3]], 1)]
    made += [like("bn_normalize", [x, *six[:3]], neuron) for neuron in NEURONS]
    made += [like("bn_grad", [dy, x, *six[:4]], NEURONS[0]), like("bn_grad", [dy, x, *six], NEURONS[1])]
    for op, more in NORMS.items():
        for size in (5, 9):
            made += [norm(op, x, size, 1.0, 0.6, 1.0, *more), norm_grad(op, dy, x, size, 1.0, 0.6, 1.0, *more)]
    if x.dtype in (mx.float32, mx.float64):
        made += [like("window_sum", [x], (axis, before, 3)) for axis in (1, 2, 3) for before in (1, 6)]
        made += [power(abs(x), -0.6), power(abs(x), -0.5)]
    mx.eval(made)
    return made


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (7, 64))
def test_views(isa: str, view: Callable[[mx.array], mx.array], dtype: mx.Dtype, channels: int) -> None:
    x, dy = numbers((2, 11, 9, channels), dtype), numbers((2, 11, 9, channels), dtype, seed=1)
    for seen, plain in zip(everything(view(x), view(dy), 2), everything(x, dy, 2), strict=True):
        assert same_bits(seen, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((2, 56, 40, 64), (1, 180, 60, 3), (20, 7, 7, 40)), ids=str)
def test_bits_do_not_depend_on_threads(
    isa: str, dtype: mx.Dtype, shape: tuple[int, ...], threads: Callable[[int], None]
) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    same_bits_for_threads(threads, lambda: everything(x, dy, shape[0]), (1, 2, 3))


@pytest.mark.parametrize("op", NORMS)
def test_bits_of_windows_do_not_depend_on_the_batch(isa: str, op: str) -> None:
    x, dy = numbers((20, 50, 21, 34)), numbers((20, 50, 21, 34), seed=1)
    for size in (5, 12):
        settings = (size, 1.0, 0.6, 1.0, *NORMS[op])
        assert same_bits(norm(op, x, *settings)[3:4], norm(op, x[3:4], *settings))
        assert same_bits(norm_grad(op, dy, x, *settings)[3:4], norm_grad(op, dy[3:4], x[3:4], *settings))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (7, 64))
def test_results_that_are_stored_past_the_caches(isa: str, channels: int, dtype: mx.Dtype) -> None:
    images = 1 + 2**24 // dtype.size // (40 * 40 * channels)
    x = numbers((images, 40, 40, channels), dtype)
    some = slice(images // 2, images // 2 + 1)
    for op, more in NORMS.items():
        settings = (5, 1.0, 0.6, 1.0, *more)
        for _ in range(2):  # at the latest the second result lies in memory that was used before
            y, dx = norm(op, x, *settings), norm_grad(op, x, x, *settings)
            mx.eval(y, dx)
            assert same_bits(y[some], norm(op, x[some], *settings))
            assert same_bits(dx[some], norm_grad(op, x[some], x[some], *settings))
            del y, dx
    mean, scale, shift = vectors(3, (images, channels), dtype)
    for _ in range(2):
        y = like("bn_normalize", [x, mean, scale, shift], NEURONS[1])
        mx.eval(y)
        assert same_bits(y[some], like("bn_normalize", [x[some], mean[some], scale[some], shift[some]], NEURONS[1]))
        del y


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((0, 5, 6, 4), 1), ((0, 5, 6, 4), 0), ((0, 5, 6, 4), 3), ((2, 0, 6, 4), 2), ((2, 5, 0, 4), 1), ((2, 5, 6, 0), 2)],
)
def test_empty(isa: str, shape: tuple[int, ...], groups: int) -> None:
    x = mx.zeros(shape)
    for made in everything(x, x, groups):
        assert made.shape in (shape, (groups, shape[3]))
        assert mx.array_equal(made, mx.zeros(made.shape))


# The binding ----------------------------------------------------------------------------------------------

IMAGE, VECTOR = ((2, 7, 8, 3), mx.float32), ((1, 3), mx.float32)
OTHER, HALF = ((2, 7, 7, 3), mx.float32), ((2, 7, 8, 3), mx.float16)
FOUR, SEVEN = (5, *packed(1, 1, 1)), (5, *packed(1, 1, 1, 1, 0, 1))


@pytest.mark.parametrize(
    ("op", "inputs", "params", "outputs"),
    [
        ("bn_stats", [IMAGE], (), [((4,), mx.float32)] * 2),
        *[("bn_stats", [IMAGE], (), [(shape, mx.float32)] * 2) for shape in ((), (1, 1, 3))],
        ("bn_stats", [IMAGE], (), [((1, 4), mx.float32)] * 2),
        ("bn_stats", [IMAGE], (), [((3, 3), mx.float32)] * 2),  # two images are no three statistics groups
        ("bn_stats", [IMAGE], (), [((0, 3), mx.float32)] * 2),
        ("bn_stats", [IMAGE], (), [((1, 3), mx.float32), ((2, 3), mx.float32)]),
        ("bn_stats", [IMAGE], (), [((1, 3), mx.float16)] * 2),
        ("bn_stats", [IMAGE], (0,), [VECTOR, VECTOR]),
        ("bn_stats", [IMAGE], (), [VECTOR]),
        *[("bn_stats", [(shape, mx.float32)], (), [VECTOR, VECTOR]) for shape in ((3,), ())],
        ("bn_normalize", [IMAGE, *[VECTOR] * 3], (), [IMAGE]),
        ("bn_normalize", [IMAGE, *[VECTOR] * 3], (2,), [IMAGE]),
        ("bn_normalize", [IMAGE, *[VECTOR] * 2], NEURONS[0], [IMAGE]),
        ("bn_normalize", [IMAGE, *[((4,), mx.float32)] * 3], NEURONS[0], [IMAGE]),
        ("bn_normalize", [IMAGE, VECTOR, VECTOR, ((2, 3), mx.float32)], NEURONS[0], [IMAGE]),
        ("bn_normalize", [IMAGE, *[((0, 3), mx.float32)] * 3], NEURONS[0], [IMAGE]),
        ("bn_normalize", [IMAGE, *[VECTOR] * 3], NEURONS[0], [HALF]),
        ("bn_normalize_add", [IMAGE, *[VECTOR] * 3], NEURONS[0], [IMAGE]),
        ("bn_normalize_add", [IMAGE, OTHER, *[VECTOR] * 3], NEURONS[0], [IMAGE]),
        ("bn_normalize_add", [IMAGE, HALF, *[VECTOR] * 3], NEURONS[0], [IMAGE]),
        ("bn_stats_grad", [IMAGE, IMAGE, VECTOR], NEURONS[1], [VECTOR] * 2),
        ("bn_stats_grad", [IMAGE, IMAGE, *[VECTOR] * 3], NEURONS[0], [VECTOR] * 2),
        ("bn_stats_grad", [IMAGE, OTHER, VECTOR], NEURONS[0], [VECTOR] * 2),
        ("bn_stats_grad", [IMAGE, IMAGE, VECTOR], NEURONS[0], [((2, 3), mx.float32)] * 2),
        ("bn_grad", [IMAGE, IMAGE, *[VECTOR] * 4], NEURONS[1], [IMAGE]),
        ("bn_grad", [IMAGE, HALF, *[VECTOR] * 4], NEURONS[0], [IMAGE]),
        ("bn_grad", [IMAGE, IMAGE, *[VECTOR] * 6], (-1,), [IMAGE]),
        ("window_sum", [IMAGE], (0, 1, 1), [IMAGE]),
        ("window_sum", [IMAGE], (4, 1, 1), [IMAGE]),
        ("window_sum", [IMAGE], (1, -1, 1), [IMAGE]),
        ("window_sum", [IMAGE], (1, 1, -1), [IMAGE]),
        ("window_sum", [IMAGE], (1, 1), [IMAGE]),
        ("window_sum", [IMAGE], (1, 1, 1), [OTHER]),
        ("window_sum", [HALF], (1, 1, 1), [HALF]),
        ("window_sum", [((2, 7, 8), mx.float32)], (1, 1, 1), [((2, 7, 8), mx.float32)]),
        ("power", [HALF], packed(1), [HALF]),
        ("power", [IMAGE], (1,), [IMAGE]),
        ("power", [IMAGE], packed(1), [OTHER]),
        ("power", [((2,), mx.int32)], packed(1), [((2,), mx.int32)]),
        ("spatial_norm", [IMAGE], (0, *packed(1, 1, 1)), [IMAGE]),
        ("spatial_norm", [IMAGE], (-5, *packed(1, 1, 1)), [IMAGE]),
        ("spatial_norm", [IMAGE], FOUR[:-1], [IMAGE]),
        ("spatial_norm", [IMAGE], SEVEN, [IMAGE]),
        ("spatial_norm", [IMAGE], FOUR, [OTHER]),
        ("spatial_norm", [IMAGE], FOUR, [HALF]),
        ("spatial_norm", [((7, 8, 3), mx.float32)], FOUR, [((7, 8, 3), mx.float32)]),
        ("spatial_norm_grad", [IMAGE], FOUR, [IMAGE]),
        ("spatial_norm_grad", [IMAGE, OTHER], FOUR, [IMAGE]),
        ("spatial_norm_grad", [IMAGE, HALF], FOUR, [IMAGE]),
        ("cross_channel_norm", [IMAGE, IMAGE], FOUR, [IMAGE]),
        ("cross_channel_norm", [IMAGE], (0, *packed(1, 1, 1)), [IMAGE]),
        ("cross_channel_norm_grad", [IMAGE, OTHER], FOUR, [IMAGE]),
        ("cross_channel_norm_grad", [IMAGE, IMAGE], FOUR, []),
        ("local_contrast_norm", [IMAGE], FOUR, [IMAGE]),
        ("local_contrast_norm", [IMAGE], (0, *SEVEN[1:]), [IMAGE]),
        ("local_contrast_norm_grad", [IMAGE, HALF], SEVEN, [IMAGE]),
        ("local_contrast_norm_grad", [IMAGE, IMAGE], SEVEN, [OTHER]),
        *[
            (op, [((2, 6), mx.float32)] * 2, packed(groups), [((2, 6), mx.float32)] * 2)
            for op in ("group_moments", "bn_group_sums")
            for groups in (4, 0, -2, 12, 1e300, float("nan"))
        ],
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: list, params: tuple[int, ...], outputs: list) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, *outputs)


@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf"), 1e308))
def test_forged_numbers_do_no_harm(isa: str, value: float) -> None:
    x = numbers((1, 6, 7, 20))
    for op, more in NORMS.items():
        for at in range(3 + len(more)):
            settings = [1.0, 0.6, 1.0, *more]
            settings[at] = value
            assert norm(op, x, 3, *settings).shape == x.shape
            mx.eval(norm(op, x, 3, *settings), norm_grad(op, x, x, 3, *settings))
    mx.eval(power(x, value))
