"""Few pixels, whose weights the CPU reads where they lie, and weights as a transposed convolution has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, exact, numbers, same_bits
from support.bfloat16_case import as_transposed as narrow_as_transposed
from support.bfloat16_case import check as check_narrow
from support.bfloat16_case import defined as narrow_defined
from support.convolution_case import axis, case, check, each_isa

import mpsfunc as mf
from mpsfunc.windows.axis import Axis

Windows = tuple[Axis, Axis]
Channels = tuple[int, int, int]

ONE, DOUBLED = axis(1, 1, 1, 1, 1, 0), axis(8, 4, 4, 2, 1, 1)

# Windows of the convolution, its channels and outputs, and images. Rests of tiles in pixels, channels and outputs;
# sums over several taps at once, over one, and over parts of one; as many pixels as make dots, and one more.
FEW: dict[str, tuple[Windows, Channels, int]] = {
    "doubled": ((DOUBLED, DOUBLED), (1, 20, 520), 1),
    "doubled, short sums": ((DOUBLED, DOUBLED), (1, 40, 33), 1),
    "doubled, three images": ((DOUBLED, axis(6, 3, 4, 2, 1, 1)), (1, 17, 257), 3),
    "parts of a tap": ((axis(3, 2, 3, 2, 1, 1), axis(4, 2, 3, 2, 1, 1)), (1, 18, 1100), 1),
    "pixels by themselves": ((axis(4, 1, 4, 1, 1, 0), axis(4, 1, 4, 1, 1, 0)), (1, 70, 100), 3),
    "pixels by themselves, beside others": ((axis(3, 1, 3, 2, 1, 1), axis(2, 1, 5, 1, 1, 2)), (1, 33, 40), 2),
    "one window, dilated": ((axis(5, 1, 3, 1, 2, 0), axis(4, 1, 2, 3, 3, 0)), (1, 20, 17), 1),
    "one pixel": ((ONE, ONE), (1, 1100, 1), 1),
    "13 pixels": ((ONE, axis(13, 13, 1, 1, 1, 0)), (1, 600, 35), 1),
    "16 pixels": ((ONE, axis(16, 16, 1, 1, 1, 0)), (1, 31, 16), 1),
    "17 pixels": ((ONE, axis(17, 17, 1, 1, 1, 0)), (1, 31, 16), 1),
    "64 pixels": ((axis(8, 8, 3, 1, 1, 1), axis(8, 8, 3, 1, 1, 1)), (1, 130, 49), 1),
    "65 pixels": ((axis(5, 5, 3, 1, 1, 1), axis(13, 13, 3, 1, 1, 1)), (1, 130, 49), 1),
    "128 pixels": ((axis(8, 8, 3, 1, 1, 1), axis(16, 16, 3, 1, 1, 1)), (1, 130, 49), 1),
    "129 pixels": ((axis(3, 3, 3, 1, 1, 1), axis(43, 43, 3, 1, 1, 1)), (1, 130, 49), 1),
    "dilated": ((axis(9, 5, 2, 2, 3, 2), axis(12, 4, 4, 3, 2, 2)), (1, 50, 300), 1),
    "selected": ((axis(6, 5, 2, 1, 1, 0, 1, 3), axis(7, 5, 3, 2, 1, 2, 2, 5)), (1, 180, 200), 1),
    "some taps of no pixel": ((axis(3, 4, 2, 3, 1, 4), axis(4, 5, 1, 2, 1, 2)), (1, 40, 50), 1),
}


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FEW)
def test_few_pixels(isa: str, name: str, dtype: mx.Dtype) -> None:
    windows, channels, images = FEW[name]
    check(windows, channels, dtype, images)


@pytest.mark.parametrize("name", FEW)
def test_few_pixels_of_pairs(used: str, name: str) -> None:
    windows, channels, images = FEW[name]
    check_narrow(windows, channels, images)


OF_ANY_THREADS = pytest.mark.parametrize("name", ("doubled", "pixels by themselves", "64 pixels", "selected"))


def same_for_any_threads(make: Callable[[], list[mx.array]], threads: Callable[[int], None]) -> None:
    threads(1)
    expected = make()
    mx.eval(expected)
    for count in (2, 3):
        threads(count)
        for got, one in zip(make(), expected, strict=True):
            assert same_bits(got, one)


@OF_ANY_THREADS
def test_same_bits_for_any_number_of_threads(isa: str, threads: Callable[[int], None], name: str) -> None:
    windows, channels, images = FEW[name]
    k = case(windows, channels, images=images)
    same_for_any_threads(lambda: [*k.all(), *k.as_transposed().all()], threads)


@OF_ANY_THREADS
def test_pairs_have_the_same_bits_for_any_number_of_threads(
    used: str, threads: Callable[[int], None], name: str
) -> None:
    k, _ = narrow_defined(*FEW[name])
    same_for_any_threads(lambda: [k.conv(), *narrow_as_transposed(k)], threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_stays_where_it_is(isa: str, dtype: mx.Dtype) -> None:
    k = case((DOUBLED, DOUBLED), (1, 20, 520), dtype).as_transposed()
    spoiled = np.array(k.dy.astype(mx.float32))
    spoiled[1, 2, 3, 519] = np.nan
    k = k._replace(dy=mx.array(spoiled).astype(dtype))
    expected = np.zeros(k.x.shape, bool)
    expected[1, 3:7, 5:8] = True
    assert np.array_equal(np.isnan(exact(k.grad_input())), expected)


def test_pixels_do_not_depend_on_their_neighbours(isa: str) -> None:
    k = case((DOUBLED, DOUBLED), (1, 20, 520), images=3).as_transposed()
    one = k._replace(x=k.x[1:2], dy=k.dy[1:2])
    assert same_bits(k.grad_input()[1:2], one.grad_input())


# Weights as they are given --------------------------------------------------------------------------------


def step(x: mx.array, w: mx.array) -> list[mx.array]:
    """A transposed convolution and both of its gradients."""
    y = mf.conv_transpose(x, w, stride=2, padding=1)
    return [y, *mx.vjp(lambda x, w: mf.conv_transpose(x, w, stride=2, padding=1), [x, w], [mx.ones_like(y)])[1]]


def test_nothing_copies_weights(on_cpu: mx.Device, tmp_path: Path) -> None:
    x, w = numbers((1, 4, 4, 48)), numbers((20, 4, 4, 48), seed=1)
    mx.eval(x, w)
    mx.export_to_dot(str(tmp_path / "step.dot"), *step(x, w))
    text = (tmp_path / "step.dot").read_text()
    assert all(name in text for name in ("conv_grad_input", "conv_grad_weights"))
    assert "Transpose" not in text  # MLX copies what it turned, on one thread


@pytest.mark.parametrize("view", VIEWS)
def test_weights_of_any_layout(on_cpu: mx.Device, isa: str, view: str) -> None:
    x, w = numbers((1, 4, 4, 48)), numbers((20, 4, 4, 48), seed=1)
    for seen, plain in zip(step(VIEWS[view](x), VIEWS[view](w)), step(x, w), strict=True):
        assert same_bits(seen, plain)


def test_maps_over_images_and_weights(on_cpu: mx.Device) -> None:
    x, w = numbers((3, 2, 4, 4, 18)), numbers((3, 20, 4, 4, 18), seed=1)
    mapped = mx.vmap(step)(x, w)
    for i in range(3):
        for together, alone in zip(mapped, step(x[i], w[i]), strict=True):
            assert mx.allclose(together[i], alone, rtol=1e-5, atol=1e-4)
