"""Convolutions of bfloat16 by instructions that multiply it as it is, where a processor has AVX512-BF16 or AMX."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest
from support import VIEWS, close, exact, numbers, same_bits, same_bits_for_threads
from support.bfloat16_case import EVERY, LEVELS, OF_PAIRS, Channels, Windows, check, defined, grad_both, level, narrow
from support.convolution_case import WINDOWS, Case, _primitives, axis, case

import mpsfunc as mf


def everything(k: Case) -> list[mx.array]:
    return [k.conv(), k.grad_input(), *grad_both(k)]


# Values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", EVERY, ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_window(used: str, windows: Windows, channels: Channels) -> None:
    check(windows, channels)


ONE = axis(1, 1, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("windows", "channels", "images"),
    (
        ((axis(24, 24, 1, 1, 1, 0), axis(41, 41, 1, 1, 1, 0)), (1, 64, 70), 2),
        ((axis(9, 5, 1, 2, 1, 0), axis(230, 115, 1, 2, 1, 0)), (1, 2048, 33), 1),  # rows that meet in the cache
        ((ONE, axis(29, 29, 1, 1, 1, 0)), (1, 4100, 40), 1),  # sums that are cut, also with an odd unit
        ((ONE, axis(29, 29, 1, 1, 1, 0)), (1, 4101, 40), 1),
        ((axis(7, 7, 3, 1, 1, 1), axis(7, 7, 3, 1, 1, 1)), (1, 514, 70), 3),
        ((axis(12, 12, 3, 1, 1, 1), axis(230, 230, 3, 1, 1, 1)), (1, 32, 64), 2),
        ((axis(40, 20, 7, 2, 1, 3), axis(230, 115, 7, 2, 1, 3)), (1, 3, 64), 2),
        ((axis(2, 2, 3, 1, 1, 1), axis(3, 3, 3, 1, 1, 1)), (1, 6, 20), 90),
        ((ONE, axis(5, 5, 1, 1, 1, 0)), (1, 96, 9000), 1),  # more weights than are laid out at once
        ((axis(91, 91, 1, 1, 1, 0), axis(97, 97, 1, 1, 1, 0)), (1, 6, 35), 1),
        ((axis(4, 4, 3, 1, 1, 1), axis(3, 3, 3, 1, 1, 1)), (1, 604, 207), 3),
        ((axis(120, 120, 1, 1, 1, 0), axis(120, 120, 1, 1, 1, 0)), (1, 2, 3), 1),
    ),
    ids=str,
)
def test_sizes(used: str, windows: Windows, channels: Channels, images: int) -> None:
    check(windows, channels, images)


def test_weight_gradient_of_a_large_image_rounds_little(used: str) -> None:
    # Equal terms round alike, the worst case: n of them in a row lose up to n halves of 2**-23.
    one = axis(1000, 1000, 1, 1, 1, 0)
    k = case((one, one), (1, 2, 3), mx.bfloat16, images=1)
    k = k._replace(x=mx.full(k.x.shape, 1.1, mx.bfloat16), dy=mx.full(k.dy.shape, 1.3, mx.bfloat16))
    dw, db = k.grad_both()
    x, dy = exact(k.x)[0, 0, 0, 0], exact(k.dy)[0, 0, 0, 0]
    np.testing.assert_allclose(exact(dw), np.full(dw.shape, x * dy * 1e6), rtol=256 * 2.0**-24)
    np.testing.assert_allclose(exact(db), np.full(db.shape, dy * 1e6), rtol=256 * 2.0**-24)


# Numbers at the edges -------------------------------------------------------------------------------------


def test_nan_and_infinity_stay(used: str) -> None:
    k = defined(WINDOWS["3x3 p1"], (1, 32, 40), 2)[0]
    x = exact(k.x)
    x[1, 2, 3, 5], x[0, 2, 9, 7] = np.nan, np.inf
    spoiled = k._replace(x=mx.array(x.astype(np.float32)).astype(mx.bfloat16))
    y, dw = exact(spoiled.conv()), exact(grad_both(spoiled)[0])
    expected = np.zeros(y.shape, bool)
    expected[1, 1:4, 2:5] = expected[0, 1:4, 8:11] = True
    assert np.array_equal(~np.isfinite(y), expected)
    assert np.isnan(dw[..., 5]).all() and not np.isfinite(dw[..., 7]).any() and np.isfinite(dw[..., 6]).all()


def test_terms_that_do_not_exist_do_not_count(used: str) -> None:
    k = narrow(case(WINDOWS["selected"], (1, 32, 7), mx.bfloat16))
    spoiled = np.full(k.dy.shape, np.nan, np.float32)
    taken = np.s_[:, k.rows.begin : k.rows.end, k.cols.begin : k.cols.end]
    spoiled[taken] = exact(k.dy)[taken]
    other = k._replace(dy=mx.array(spoiled).astype(mx.bfloat16))
    assert same_bits(other.grad_input(), k.grad_input())
    assert same_bits(grad_both(other)[0], grad_both(k)[0])


LEAST = 2.0**-126  # of normal numbers


def test_subnormal_numbers_that_are_read_are_zeros(used: str) -> None:
    k = narrow(case(WINDOWS["3x3 p1"], (1, 32, 40), mx.bfloat16))
    zeros, tiny, small = (mx.full(k.x.shape, value, mx.bfloat16) for value in (0, LEAST / 2, LEAST))
    huge = k._replace(w=2.0**100 * k.w, dy=2.0**100 * k.dy, b=mx.zeros_like(k.b))
    of_zeros = huge._replace(x=zeros)
    assert same_bits(huge._replace(x=tiny).conv(), of_zeros.conv())
    assert not same_bits(huge._replace(x=small).conv(), of_zeros.conv())
    assert not np.any(exact(grad_both(huge._replace(x=tiny))[0]))
    assert np.all(exact(grad_both(huge._replace(x=small))[0]))
    _primitives.set_isa("avx512")
    assert not same_bits(huge._replace(x=tiny).conv(), of_zeros.conv())
    assert np.all(exact(grad_both(huge._replace(x=tiny))[0]))


def test_subnormal_results_are_zeros(used: str) -> None:
    one = narrow(case((ONE, ONE), (1, 2, 1), mx.bfloat16, images=1))
    k = one._replace(x=mx.array([[[[0.5, 0]]]], mx.bfloat16), b=mx.zeros_like(one.b))
    for weight, result in ((2 * LEAST, LEAST), (LEAST, 0)):
        assert exact(k._replace(w=mx.full(k.w.shape, weight, mx.bfloat16)).conv()).item() == result
    _primitives.set_isa("avx512")
    assert exact(k._replace(w=mx.full(k.w.shape, LEAST, mx.bfloat16)).conv()).item() == LEAST / 2


# Whatever the layout, the threads and the neighbours ------------------------------------------------------


@pytest.mark.parametrize("channels", ((1, 7, 5), (1, 32, 40)), ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_any_layout(used: str, view: str, channels: Channels) -> None:
    k = narrow(case(WINDOWS["4x4 s3,2"], channels, mx.bfloat16))
    seen = k._replace(**{name: VIEWS[view](getattr(k, name)) for name in ("x", "w", "b", "dy", "back")})
    for got, expected in zip(everything(seen), everything(k), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("channels", ((1, 64, 70), (1, 3, 20), (2, 40, 33)), ids=str)
@pytest.mark.parametrize("windows", ((axis(19, 10, 3, 2, 1, 1), axis(40, 40, 3, 1, 1, 1)), WINDOWS["1x1"]), ids=str)
def test_same_bits_for_any_number_of_threads(
    used: str, threads: Callable[[int], None], windows: Windows, channels: Channels
) -> None:
    k = narrow(case(windows, channels, mx.bfloat16, images=3))
    same_bits_for_threads(threads, lambda: everything(k))


@pytest.mark.parametrize("images, channels", ((0, (1, 32, 4)), (2, (2, 0, 3)), (2, (1, 3, 0)), (1, (3, 1, 0))), ids=str)
def test_empty(used: str, images: int, channels: Channels) -> None:
    k = narrow(case(WINDOWS["3x3 s2 p1"], channels, mx.bfloat16, images=images))
    close(k.conv(), np.broadcast_to(exact(k.b), k.dy.shape))
    close(k.grad_input(), np.broadcast_to(exact(k.back), k.x.shape))
    assert not np.any(exact(grad_both(k)[0]))


@pytest.mark.parametrize(
    "channels", ((1, 64, 128), (1, 64, 80), (1, 64, 90), (144, 1, 1), (128, 1, 1), (90, 1, 1)), ids=str
)
@pytest.mark.parametrize("size", (1, 3))
def test_results_stored_past_the_caches(used: str, channels: Channels, size: int) -> None:
    """Outputs of more than 4 MB in memory that was used before: what image by image gives, where they are small."""
    one = axis(56, 56, size, 1, 1, size // 2)
    k = narrow(case((one, one), channels, mx.bfloat16, images=12))
    parts = [
        (part.conv(), part.grad_input())
        for part in (k._replace(x=k.x[i : i + 1], dy=k.dy[i : i + 1]) for i in range(12))
    ]
    for _ in range(3):
        for whole, which in ((k.conv(), 0), (k.grad_input(), 1)):
            assert same_bits(whole, mx.concatenate([part[which] for part in parts]))
            spoiled = mx.full(whole.shape, float("nan"), whole.dtype)
            mx.eval(spoiled)
            del whole, spoiled


# Who takes these instructions -----------------------------------------------------------------------------


def both_ways(k: Case, used: str) -> Iterator[tuple[list[mx.array], list[mx.array]]]:
    for run in (Case.conv, Case.grad_input):
        made = run(k)
        mx.eval(made)
        _primitives.set_isa("avx512")
        wide = run(k)
        mx.eval(wide)
        _primitives.set_isa(used)
        yield made, wide


@pytest.mark.parametrize("channels", OF_PAIRS, ids=str)
def test_wider_weights_are_not_rounded(used: str, channels: Channels) -> None:
    for made, wide in both_ways(case(WINDOWS["3x3 p1"], channels, mx.bfloat16), used):
        assert same_bits(made, wide)


@pytest.mark.parametrize("dtype", (mx.float32, mx.float16, mx.float64), ids=str)
def test_other_dtypes_are_as_with_avx512(used: str, dtype: mx.Dtype) -> None:
    for made, wide in both_ways(narrow(case(WINDOWS["3x3 p1"], (1, 64, 64), dtype)), used):
        assert same_bits(made, wide)


@pytest.mark.parametrize("channels", ((65, 1, 1), (4, 4, 4)), ids=str)
def test_channels_by_themselves_and_in_small_groups_are_as_with_avx512(used: str, channels: Channels) -> None:
    for made, wide in both_ways(narrow(case(WINDOWS["3x3 p1"], channels, mx.bfloat16)), used):
        assert same_bits(made, wide)


def test_sums_are_in_another_order() -> None:
    """Else the tests above would compare a set with itself."""
    used = next((name for name in LEVELS if name in _primitives.isas()), LEVELS[0])
    before = _primitives.isa()
    _primitives.set_isa(level(used))
    try:
        k = narrow(case(WINDOWS["3x3 p1"], (1, 256, 64), mx.bfloat16))
        assert not any(same_bits(made, wide) for made, wide in both_ways(k, used))
    finally:
        _primitives.set_isa(before)


def test_layers_take_them(used: str) -> None:
    x, w = numbers((5, 2, 3, 40), mx.bfloat16), numbers((30, 2, 3, 40), mx.bfloat16, seed=1)
    with mx.stream(mx.cpu):
        y = mf.fully_connected(x, w)
        mx.eval(y)
        _primitives.set_isa("avx512")
        wide = mf.fully_connected(x, w)
        mx.eval(wide)
    expected, size = (f(exact(x)).reshape(5, 240) @ f(exact(w)).reshape(30, 240).T for f in (np.asarray, np.abs))
    for made in (y, wide):
        close(made.reshape(5, 30), expected, size)


def test_levels_stand_above_what_they_are_made_of() -> None:
    names = _primitives.isas()
    for name in LEVELS:
        if name in names:
            assert names.index(name) < names.index("avx512")
    assert names == sorted(names, key=["amx", "avx512_bf16", "avx512", "avx2", "neon", "baseline"].index)
