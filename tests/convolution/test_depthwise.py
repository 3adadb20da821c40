"""Depthwise convolutions on CPUs: register tiles by window, lanes over pixels where channels are few, and the rest."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, close, exact, same_bits, same_bits_for_threads
from support.convolution_case import Case, axis, case, check, each_isa

from mpsfunc.windows.axis import Axis

# Tiles have seven outputs: lines shorter than one, whole ones, tiles with one output and with all but one.
WIDTHS = (1, 3, 6, 7, 8, 13, 14, 15, 30)


def square(height: int, width: int, size: int, stride: int, pad: int) -> tuple[Axis, Axis]:
    """Windows as wide as high, at least one in each direction."""
    outs = [max(1, (n + 2 * pad - size) // stride + 1) for n in (height, width)]
    return axis(height, outs[0], size, stride, 1, pad), axis(width, outs[1], size, stride, 1, pad)


@each_isa
@pytest.mark.parametrize("stride", (1, 2, 3))
@pytest.mark.parametrize("size", range(1, 9))
def test_tiles_of_every_window_and_width(isa: str, size: int, stride: int) -> None:
    """Vectors are whole, or the last one overlaps the one before; of 3 channels, several pixels share one."""
    for width in WIDTHS:
        for channels in (32, 37, 3):
            check(square(5, width, size, stride, size // 2), (channels, 1, 1), images=1)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (2, 3, 6, 8, 12, 16, 31, 48, 200))
def test_every_dtype_and_number_of_channels(isa: str, channels: int, dtype: mx.Dtype) -> None:
    for size, stride, pad in ((3, 1, 1), (3, 2, 1), (5, 2, 2), (7, 1, 3), (5, 1, 0)):
        check(square(9, 17, size, stride, pad), (channels, 1, 1), dtype)


WINDOWS = {
    "margins wider than windows": (axis(3, 10, 3, 1, 1, 5), axis(4, 12, 5, 1, 1, 6)),
    "margins of strides": (axis(5, 8, 5, 2, 1, 8), axis(6, 9, 3, 2, 1, 7)),
    "inside": (axis(9, 4, 3, 1, 1, -2), axis(20, 8, 5, 1, 1, -4)),
    "rows apart, columns side by side": (axis(11, 9, 3, 1, 3, 2), axis(16, 16, 3, 1, 1, 1)),
    "rows apart by more than a stride": (axis(13, 5, 3, 2, 3, 2), axis(16, 8, 3, 2, 1, 1)),
    "dilated": (axis(12, 12, 3, 1, 2, 2), axis(21, 21, 3, 1, 2, 2)),
    "dilated by the stride": (axis(12, 5, 3, 2, 2, 1), axis(21, 10, 5, 2, 2, 3)),
    "dilated by another number": (axis(14, 4, 3, 3, 2, 1), axis(23, 8, 7, 2, 3, 9)),
    "one row of taps": (axis(6, 6, 1, 1, 1, 0), axis(15, 15, 7, 1, 1, 3)),
    "two rows of taps": (axis(6, 5, 2, 1, 1, 0), axis(15, 15, 5, 1, 1, 2)),
    "nine rows of taps": (axis(12, 12, 9, 1, 1, 4), axis(15, 15, 3, 1, 1, 1)),
    "one column of taps": (axis(12, 12, 7, 1, 1, 3), axis(15, 15, 1, 1, 1, 0)),
    "a stride in one direction": (axis(11, 6, 3, 2, 1, 1), axis(15, 15, 3, 1, 1, 1)),
    "a stride in the other": (axis(11, 11, 5, 1, 1, 2), axis(15, 8, 5, 2, 1, 2)),
    "selected": (axis(9, 9, 3, 1, 1, 1, 2, 6), axis(20, 20, 3, 1, 1, 1, 3, 17)),
    "selected of strides": (axis(9, 5, 5, 2, 1, 2, 1, 4), axis(20, 10, 5, 2, 1, 2, 3, 9)),
    "none selected": (axis(9, 9, 3, 1, 1, 1, 4, 4), axis(20, 20, 3, 1, 1, 1)),
    "no column selected": (axis(9, 9, 3, 1, 1, 1), axis(20, 20, 3, 1, 1, 1, 5, 5)),
    "wholly outside": (axis(4, 3, 3, 1, 1, 20), axis(9, 9, 3, 1, 1, 30)),
    "a kernel larger than the image": (axis(2, 2, 7, 1, 1, 3), axis(3, 3, 7, 1, 1, 3)),
    "many lines for a ring of lines": (axis(40, 40, 5, 1, 1, 2), axis(9, 9, 3, 1, 1, 1)),
    "more lines than a ring holds": (axis(700, 2, 2, 1, 690, 0), axis(300, 300, 3, 1, 1, 1)),
}


@each_isa
@pytest.mark.parametrize("channels", (3, 4, 16, 35), ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_place(isa: str, windows: tuple[Axis, Axis], channels: int) -> None:
    check(windows, (channels, 1, 1))


@each_isa
@pytest.mark.parametrize("channels", (4, 16, 150), ids=str)
@pytest.mark.parametrize("images, height", ((1, 70), (2, 33), (20, 5)))
def test_bands_of_rows_and_blocks_of_channels(isa: str, images: int, height: int, channels: int) -> None:
    """As many rows, images and vectors as are several tasks; the gradient's parts have several bands."""
    for size, stride in ((3, 1), (5, 2)):
        check(square(height, 23, size, stride, size // 2), (channels, 1, 1), images=images)


@each_isa
@pytest.mark.parametrize("size", (3, 5, 7))
def test_lines_longer_than_sums_in_a_row(isa: str, size: int) -> None:
    check((axis(3, 3, 3, 1, 1, 1), axis(600, 600, size, 1, 1, size // 2)), (16, 1, 1), images=1)


def test_weight_gradients_of_images_round_little(isa: str) -> None:
    """Equal terms round alike: n of them in a row lose up to n halves of 2**-23, and no more than 256 are."""
    for size, height, width in ((3, 100, 90), (5, 100, 90), (7, 100, 90), (3, 8, 5000)):
        k = case(square(height, width, size, 1, 0), (16, 1, 1), images=3)
        k = k._replace(x=mx.full(k.x.shape, 0.1), dy=mx.full(k.dy.shape, 0.3))
        dw, db = k.grad_both()
        terms, one = float(np.float32(0.1)) * float(np.float32(0.3)), float(np.float32(0.3))
        np.testing.assert_allclose(exact(dw), k.dy.size / 16 * terms, rtol=256 * 2.0**-24)
        np.testing.assert_allclose(exact(db), k.dy.size / 16 * one, rtol=256 * 2.0**-24)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (3, 16, 41))
@pytest.mark.parametrize("view", VIEWS)
def test_any_layout(isa: str, view: str, channels: int, dtype: mx.Dtype) -> None:
    for size, stride in ((3, 1), (5, 2)):
        k = case(square(6, 17, size, stride, size // 2), (channels, 1, 1), dtype)
        seen = Case(k.rows, k.cols, k.groups, *(VIEWS[view](a) for a in (k.x, k.w, k.b, k.dy, k.back)))
        for got, expected in zip(seen.all(), k.all(), strict=True):
            assert same_bits(got, expected)


@pytest.mark.parametrize("channels", (3, 8, 16, 41, 300))
@pytest.mark.parametrize("size, stride", ((3, 1), (3, 2), (5, 1), (7, 1)))
def test_same_bits_for_any_number_of_threads(
    isa: str, threads: Callable[[int], None], size: int, stride: int, channels: int
) -> None:
    k = case(square(40, 21, size, stride, size // 2), (channels, 1, 1), images=2)
    same_bits_for_threads(threads, k.all)


@pytest.mark.parametrize("channels", (3, 8, 16, 40))
@pytest.mark.parametrize("stride", (1, 2))
def test_what_is_no_number_stays_with_those_who_read_it(isa: str, stride: int, channels: int) -> None:
    """Neighbours in a vector and outputs of the same tile have none of it."""
    k = case(square(7, 20, 3, stride, 1), (channels, 1, 1), images=1)
    spoiled = np.array(k.x)
    spoiled[0, 3, 8, 1] = np.nan
    at = np.abs(np.arange(k.dy.shape[1])[:, None] * stride - 3), np.abs(np.arange(k.dy.shape[2])[None] * stride - 8)
    expected = np.zeros(k.dy.shape, bool)
    expected[0, ..., 1] = (at[0] <= 1) & (at[1] <= 1)
    assert np.array_equal(np.isnan(exact(k._replace(x=mx.array(spoiled)).conv())), expected)


@pytest.mark.parametrize("size", (3, 5, 7))
def test_taps_outside_do_not_count(isa: str, size: int) -> None:
    """Infinities make no NaN of pixels that do not exist: all but the middle tap's."""
    k = case(square(1, 1, size, 1, size // 2), (40, 1, 1), images=1)
    middle, w = (slice(None), size // 2, size // 2), np.full(k.w.shape, np.inf, np.float32)
    w[middle] = 1
    close(k._replace(w=mx.array(w)).conv(), exact(k.x) + exact(k.b), np.abs(exact(k.x)) + np.abs(exact(k.b)))
    expected = np.zeros(k.w.shape, np.float32)
    expected[middle] = np.inf
    k = k._replace(x=mx.abs(k.x), dy=mx.full(k.dy.shape, float("inf")))
    assert np.array_equal(exact(k.grad_weights()), expected)


@pytest.mark.parametrize("size, stride", ((3, 1), (3, 2), (7, 1)))
def test_results_stored_past_the_caches(size: int, stride: int) -> None:
    """Outputs of more than 4 MB in memory that was used before: what image by image gives, where they are small."""
    k = case(square(60, 60, size, stride, size // 2), (96, 1, 1), images=12)
    parts = [
        (part.conv(), part.grad_input())
        for part in (k._replace(x=k.x[i : i + 1], dy=k.dy[i : i + 1]) for i in range(12))
    ]
    for _ in range(3):
        for whole, which in ((k.conv(), 0), (k.grad_input(), 1)):
            assert same_bits(whole, mx.concatenate([part[which] for part in parts]))
            spoiled = mx.full(whole.shape, float("nan"))
            mx.eval(spoiled)
            del whole, spoiled
