"""How the C++ weight gradient cuts weights and pixels into parts, and convolutions of few pixels and many weights."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest
from support import DTYPES, VIEWS, close, same_bits, same_bits_for_threads
from support.convolution_case import WINDOWS, axis, case, check, each_isa, weight_gradient

from mpsfunc.windows.axis import Axis

Windows = tuple[Axis, Axis]


def square(n: int, size: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> Windows:
    """The same for rows and columns."""
    one = axis(n, (n + 2 * pad - (size - 1) * dilation - 1) // stride + 1, size, stride, dilation, pad)
    return one, one


# Windows with groups, channels and outputs of each: parts across channels alone, outputs alone and both, with and
# without parts of the pixels; so many taps that a part has few outputs; windows that leave columns out; several groups.
CUTS = {
    "both ways": (square(4, 1), (1, 300, 701)),
    "outputs": (square(9, 1), (1, 20, 600)),
    "channels": (square(9, 1), (1, 600, 20)),
    "both ways and pixels": (square(41, 1), (1, 290, 151)),
    "many pixel blocks": (square(97, 1), (1, 261, 9)),
    "columns left out": (square(37, 1, 2), (1, 270, 75)),
    "many taps": (square(9, 5, 1, 2), (1, 265, 30)),
    "taps far apart": (square(14, 3, 3, 2, 2), (1, 70, 65)),
    "no channels": (square(97, 1), (1, 0, 20)),
    "groups": (square(30, 1), (3, 37, 45)),
    "groups with taps": (square(12, 3, 2, 1), (2, 40, 150)),
}


@each_isa
@pytest.mark.parametrize("dtype", DTYPES[:1] + DTYPES[2:], ids=str)
@pytest.mark.parametrize("cut", CUTS)
def test_weights_are_cut(isa: str, cut: str, dtype: mx.Dtype) -> None:
    windows, channels = CUTS[cut]
    k, (of_dw, of_db) = weight_gradient(windows, channels, dtype, images=1)
    dw, db = k.grad_both()
    close(dw, *of_dw)
    close(db, *of_db)
    assert same_bits(k.grad_weights(), dw)


@pytest.mark.parametrize("cut", CUTS)
def test_weights_are_cut_the_same_for_any_number_of_threads(isa: str, threads: Callable[[int], None], cut: str) -> None:
    k = case(*CUTS[cut], images=2)
    same_bits_for_threads(threads, k.grad_both, (1, 3))


# More than a megabyte of weights.
@each_isa
@pytest.mark.parametrize("windows", ("3x3 p1", "3x3 s2 p1", "4x4 s3,2", "dilated s2", "some outside", "selected"))
def test_few_pixels_of_many_taps(isa: str, windows: str) -> None:
    check(WINDOWS[windows], (1, 301, 307))


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", (1, 7, 20))
def test_few_pixels_of_many_taps_in_every_dtype(isa: str, side: int, dtype: mx.Dtype) -> None:
    check(square(side, 3, 1, 1), (1, 173, 176), dtype, images=1)


@each_isa
@pytest.mark.parametrize("channels", ((1, 40, 420), (1, 130, 129), (1, 700, 131)), ids=str)
@pytest.mark.parametrize("side", (3, 13, 29))
def test_few_pixels_by_themselves(isa: str, side: int, channels: tuple[int, int, int]) -> None:
    check(square(side, 1), channels, images=1)


@pytest.mark.parametrize("view", VIEWS)
def test_few_pixels_of_any_layout(isa: str, view: str) -> None:
    k = case(WINDOWS["3x3 s2 p1"], (1, 173, 176), images=1)
    seen = k._replace(**{name: VIEWS[view](getattr(k, name)) for name in ("x", "w", "b", "dy", "back")})
    for got, expected in zip(seen.all(), k.all(), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("channels", ((1, 173, 176), (1, 530, 520)), ids=str)
@pytest.mark.parametrize("size", (1, 3))
def test_few_pixels_have_the_same_bits_for_any_number_of_threads(
    isa: str, threads: Callable[[int], None], size: int, channels: tuple[int, int, int]
) -> None:
    k = case(square(7, size, 1, size // 2), channels)
    same_bits_for_threads(threads, k.all)
