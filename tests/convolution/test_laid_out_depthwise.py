"""Depthwise convolutions of bfloat16 with weights that were laid out ahead, by sets that multiply it as it is."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from convolution.test_depthwise import WINDOWS, square
from support import close, exact, numbers, same_bits, same_bits_for_threads
from support.bfloat16_case import Windows, defined
from support.convolution_case import Case, _primitives, axis

from mpsfunc.channels.activation_spec import RELU, SILU, Activation
from mpsfunc.convolution import laid_out

pytestmark = pytest.mark.usefixtures("on_cpu")

SIZES = {
    **WINDOWS,
    "a line": (axis(1, 1, 1, 1, 1, 0), axis(200, 200, 3, 1, 1, 1)),
    "seven columns": square(9, 21, 7, 1, 3),
    "three apart": square(9, 30, 3, 3, 1),
    "four columns two apart": (axis(8, 8, 3, 1, 1, 1), axis(20, 10, 4, 2, 1, 1)),
    "sixteen rows": (axis(20, 20, 16, 1, 1, 8), axis(9, 9, 3, 1, 1, 1)),
}
CHANNELS = 16, 35, 64, 300  # half of a vector, a rest, whole ones, and more than whose weights stay near


def laid(k: Case, *added: mx.array) -> mx.array:
    """The convolution by weights that are laid out."""
    found = laid_out.lay_out(lambda: k.w, k.groups)
    assert found is not None and int(found.words[2].item()) == 1
    return k.run("conv_laid_out", [k.x, found.words, k.b, *added], k._params, k.dy)[0]


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("windows", SIZES.values(), ids=SIZES.keys())
def test_every_window(used: str, windows: Windows, channels: int) -> None:
    k, expected = defined(windows, (channels, 1, 1), 2)
    got = laid(k)
    close(got, *expected[0])
    touching = k.cols.dilation == 1 and k.cols.stride == 1 and k.cols.size in (1, 2, 3, 4, 5, 7)
    if touching or (k.cols.dilation == 1 and k.cols.stride == 2 and k.cols.size in (3, 5)):
        assert same_bits(got, k.conv())
    assert same_bits(laid(k._replace(neuron=Activation(RELU))), mx.maximum(got, 0))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("windows", (square(9, 21, 3, 1, 1), square(9, 21, 5, 2, 2), square(9, 9, 3, 3, 1)), ids=str)
def test_what_comes_behind_is_of_sums_that_are_not_rounded(used: str, windows: Windows, channels: int) -> None:
    """A large bias and its opposite as images leave what rounding in between would have lost."""
    k, expected = defined(windows, (channels, 1, 1), 2)
    more = numbers(k.dy.shape, mx.bfloat16, seed=7)
    value, size = expected[0]
    close(laid(k, more), value + exact(more), size + abs(exact(more)))
    far = k._replace(b=k.b + 1024)
    close(laid(far, mx.full(k.dy.shape, -1024, mx.bfloat16)), value, size + 1024)
    z = value + exact(more)
    want = z / (1 + np.exp(-z))
    close(laid(k._replace(neuron=Activation(SILU, 1.0)), more), want, size + abs(exact(more)))


def test_bits_do_not_depend_on_threads(used: str, threads: Callable[[int], None]) -> None:
    k = defined(square(40, 21, 5, 1, 2), (300, 1, 1), 2)[0]
    same_bits_for_threads(threads, lambda: [laid(k)])


def words(shape: tuple[int, ...], groups: int, dtype: mx.Dtype = mx.bfloat16) -> int:
    return int(_primitives.conv_layout_words(_primitives.isa_number(), dtype, shape, groups))


def test_which_are_laid_out(used: str) -> None:
    assert words((64, 3, 3, 1), 64) == 16 + 2 * 2 * 3 * 2 * 32 // 2  # blocks, pairs of rows, columns, pairs of lanes
    assert words((16, 3, 3, 1), 16) > 0 == words((15, 3, 3, 1), 15)  # of which most lanes would be empty
    assert words((64, 16, 3, 1), 64) > 0 == words((64, 17, 3, 1), 64)
    assert words((64, 3, 3, 1), 32) == 0  # two outputs a channel
    assert words((64, 3, 3, 1), 64, mx.float32) == 0
