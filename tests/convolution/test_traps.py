"""Where convolutions of MLX have gone wrong, ours: one test for each class of mistake."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers
from support.oracle import convolution as oracle

import mpsfunc as mf


def check(shape: tuple[int, ...], kernel: tuple[int, int], out: int, dtype: mx.Dtype, **how: Any) -> None:
    groups = how.get("groups", 1)
    x, w = numbers(shape, dtype), numbers((out, *kernel, shape[3] // groups), dtype, 1)
    y, state = mf.conv_fwd(x, w, **how)
    dy = numbers(tuple(y.shape), dtype, 2)
    dx, grown = mf.conv_grad(dy, x, w, state)
    assert dx is not None
    where = state.rows, state.cols, groups
    values = [exact(a) for a in (x, w, dy)]
    (ax, aw, ady), (sx, sw, sdy) = values, map(np.abs, values)
    close(y, oracle.conv(ax, aw, np.zeros(out), *where), oracle.conv(sx, sw, np.zeros(out), *where))
    close(dx, oracle.conv_grad_input(ady, aw, *where), oracle.conv_grad_input(sdy, sw, *where))
    close(grown.dw, oracle.conv_grad_weights(ady, ax, *where), oracle.conv_grad_weights(sdy, sx, *where))


@pytest.mark.parametrize(("groups", "out"), [(2, 8), (4, 4), (8, 8), (8, 16)])
@pytest.mark.parametrize("stride", [2, (1, 2), (3, 2)])
def test_grouped_and_strided(device: mx.Device, dtype: mx.Dtype, groups: int, out: int, stride: Any) -> None:
    """ml-explore/mlx#3800: gradients of images were wrong by factors where groups met strides."""
    check((2, 9, 8, 8), (3, 3), out, dtype, groups=groups, stride=stride, padding=1)
    check((2, 9, 8, 8), (2, 3), out, dtype, groups=groups, stride=stride, dilation=(2, 1), padding=1)


@pytest.mark.parametrize("over", [0, 1, 2, 30])
def test_windows_larger_than_the_image(device: mx.Device, over: int) -> None:
    """ml-explore/mlx#2504: the shape that a weight gradient has when it is written as a convolution."""
    size = 31
    check((2, size, size, 3), (size + over, size + over), 2, mx.float32, padding=(over + 1) // 2 + 1)


@pytest.mark.parametrize("padding", [((0, 1), (0, 1)), ((2, 0), (0, 3)), ((1, 2), (0, 0)), ((0, 0), (4, 1))])
def test_padding_that_differs_from_side_to_side(device: mx.Device, dtype: mx.Dtype, padding: Any) -> None:
    """ml-explore/mlx#2038: a backend read only the first number of each pair."""
    for stride in (1, 2):
        check((2, 6, 7, 4), (3, 4), 5, dtype, padding=padding, stride=stride)


def test_more_products_than_an_int32_counts(on_cpu: mx.Device) -> None:
    """ml-explore/mlx#3143 and others: 2.4e9 elements of unfolded patches. Nothing of theirs may be counted in int32."""
    side, channels, kernel = 1024, 16, 12
    x, w = mx.ones((1, side, side, channels)), mx.ones((1, kernel, kernel, channels))
    assert (side - kernel + 1) ** 2 * kernel**2 * channels > 2**31
    y, state = mf.conv_fwd(x, w)
    assert mx.min(y).item() == mx.max(y).item() == kernel**2 * channels
    dx, grown = mf.conv_grad(mx.ones_like(y), x, w, state)
    assert dx is not None
    inside = dx[:, kernel:-kernel, kernel:-kernel]
    assert mx.min(inside).item() == mx.max(inside).item() == kernel**2
    assert dx[0, 0, 0, 0].item() == 1 and dx[0, -1, -2, -1].item() == 2
    assert mx.min(grown.dw).item() == mx.max(grown.dw).item() == (side - kernel + 1) ** 2
