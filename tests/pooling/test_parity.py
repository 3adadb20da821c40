"""PyTorch's poolings, where they are ours."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers
from support.parity import agree, backward, theirs

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]


POOLINGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": (2, 4), "stride": 3, "padding": (1, 2), "ceil_mode": True},
    {"kernel_size": 4, "stride": 1, "padding": 2},
    {"kernel_size": 2, "stride": 5, "padding": 1, "ceil_mode": True},  # a window that would start behind the image
]


@pytest.mark.parametrize("how", POOLINGS, ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["count_include_pad", "exclude"])
def test_avg_pool(how: dict[str, Any], image: tuple[int, int], counted: bool) -> None:
    """``count_include_pad`` is edge mode clamp, with the padding as zeros that count or without."""
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.avg_pool_fwd(x, **how, edge_mode="clamp", zero_pad=how.get("padding", 0) if counted else 0)
    source = theirs(x)
    output = torch.nn.functional.avg_pool2d(source, **how, count_include_pad=counted)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))


@pytest.mark.parametrize("how", POOLINGS, ids=str)
@pytest.mark.parametrize("divisor", [1, 3, 7])
@pytest.mark.parametrize("dtype", [mx.float64, mx.float16], ids=str)
def test_a_divisor_of_averages(how: dict[str, Any], divisor: int, dtype: mx.Dtype) -> None:
    """It stands in for every count, whatever the edge mode says; results of 16 bits are rounded once."""
    x = numbers((2, 9, 8, 3), dtype)
    source = theirs(x)
    output = torch.nn.functional.avg_pool2d(source, **how, divisor_override=divisor)
    dy = numbers(tuple(mf.avg_pool(x, **how).shape), dtype, 1)
    (slope,) = backward(output, dy, source)
    edges: tuple[dict[str, Any], ...] = ({}, {"edge_mode": "clamp", "zero_pad": 1})
    for edge in edges:
        y, state = mf.avg_pool_fwd(x, **how, divisor_override=divisor, **edge)
        assert state == mf.avg_pool_state(x.shape, **how, divisor_override=divisor, **edge)
        for mine, tensor in ((y, output), (mf.avg_pool_grad(dy, state), slope)):
            if dtype == mx.float64:
                agree(mine, tensor)
            else:
                want = tensor.detach().numpy().transpose(0, 2, 3, 1)
                np.testing.assert_allclose(exact(mine), want, rtol=2**-10.9, atol=2**-20)


def test_a_layer_of_averages_with_a_divisor() -> None:
    x = numbers((2, 9, 8, 3), mx.float64)
    expected = torch.nn.AvgPool2d(3, 2, 1, divisor_override=4)(theirs(x))
    agree(mf.nn.AvgPool2d(3, 2, 1, divisor_override=4)(x), expected)


@pytest.mark.parametrize("sides", [((2, 0), (0, 0)), ((1, 0), (2, 0)), ((0, 1), (0, 2)), ((2, 1), (1, 2))], ids=str)
@pytest.mark.parametrize("kernel", [2, (3, 4)], ids=str)
def test_avg_pool_of_an_image_padded_by_hand(sides: Any, kernel: Any) -> None:
    """Zeros that PyTorch puts around the image itself, more of them on one side, are zeros that count."""
    x, how = numbers((2, 7, 8, 3), mx.float64), {"stride": 2, "ceil_mode": not any(after for _, after in sides)}
    source = theirs(x)
    output = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(source, (*sides[1], *sides[0])), kernel, **how)
    y, state = mf.avg_pool_fwd(x, kernel, **how, padding=sides, edge_mode="clamp", zero_pad=sides)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))


@pytest.mark.parametrize("how", [h for h in POOLINGS if not h.get("ceil_mode")], ids=str)
def test_edge_mode_zero_counts_the_padding(how: dict[str, Any]) -> None:
    x = numbers((2, 9, 8, 3), mx.float64)
    agree(mf.avg_pool(x, **how), torch.nn.functional.avg_pool2d(theirs(x), **how))


MAX_POOLINGS = [
    *POOLINGS,
    {"kernel_size": (2, 3), "stride": 2, "padding": (1, 1), "dilation": (2, 1)},
    {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
]


@pytest.mark.parametrize("how", MAX_POOLINGS, ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
@pytest.mark.parametrize("few", [False, True], ids=["all differ", "many ties"])
def test_max_pool(how: dict[str, Any], image: tuple[int, int], few: bool) -> None:
    """PyTorch's padding is ours where nobody says what edges read, and its winners are."""
    x = numbers((2, *image, 3), mx.float64)
    x = mx.round(x) if few else x
    x = x - 3  # so that a zero of the padding would win
    y, state = mf.max_pool_fwd(x, **how)
    source = theirs(x)
    output, indices = torch.nn.functional.max_pool2d(source, **how, return_indices=True)
    agree(y, output)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), indices.numpy().transpose(0, 2, 3, 1))
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.max_pool_grad(dy, state), *backward(output, dy, source))


def test_max_unpool() -> None:
    x = numbers((2, 6, 8, 3), mx.float64)
    y, state = mf.max_pool_fwd(x, 2)
    output, indices = torch.nn.functional.max_pool2d(theirs(x), 2, return_indices=True)
    agree(mf.max_unpool(y, state), torch.nn.functional.max_unpool2d(output, indices, 2))


@pytest.mark.parametrize(
    "how", [{"kernel_size": 2}, {"kernel_size": (3, 2), "stride": (2, 3)}, {"kernel_size": 4, "stride": 1}], ids=str
)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
def test_l2_pool(how: dict[str, Any], image: tuple[int, int]) -> None:
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.l2_pool_fwd(x, **how)
    source = theirs(x)
    output = torch.nn.functional.lp_pool2d(source, 2.0, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.l2_pool_grad(dy, x, state), *backward(output, dy, source))


@pytest.mark.parametrize("out_size", [1, 3, (2, 5), (None, 4), (11, 13)], ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12), (1, 1)], ids=str)
def test_adaptive_pools(out_size: Any, image: tuple[int, int]) -> None:
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.avg_pool_fwd(x, "adaptive", out_size=out_size)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    source = theirs(x)
    output = torch.nn.functional.adaptive_avg_pool2d(source, out_size)
    agree(y, output)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))

    y, maxima = mf.max_pool_fwd(x, "adaptive", out_size=out_size)
    source = theirs(x)
    output, indices = torch.nn.functional.adaptive_max_pool2d(source, out_size, return_indices=True)
    agree(y, output)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(maxima)), indices.numpy().transpose(0, 2, 3, 1))
    agree(mf.max_pool_grad(dy, maxima), *backward(output, dy, source))


def test_global_pools() -> None:
    x = numbers((2, 5, 6, 3), mx.float64)
    agree(mf.avg_pool(x, "global"), torch.nn.functional.adaptive_avg_pool2d(theirs(x), 1))
    agree(mf.max_pool(x, "global"), torch.nn.functional.adaptive_max_pool2d(theirs(x), 1))
    agree(mf.l2_pool(x, "global"), torch.nn.functional.lp_pool2d(theirs(x), 2.0, (5, 6)))


def test_the_gradient_of_a_norm_of_zeros() -> None:
    x = mx.zeros((1, 2, 2, 1), mx.float64)
    source = theirs(x)
    output = torch.nn.functional.lp_pool2d(source, 2.0, 2)
    dy = mx.ones((1, 1, 1, 1), mx.float64)
    y, state = mf.l2_pool_fwd(x, 2)
    agree(mf.l2_pool_grad(dy, x, state), *backward(output, dy, source))
