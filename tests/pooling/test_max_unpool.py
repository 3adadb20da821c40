"""Maxima put back where they were."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers

import mpsfunc as mf


def test_unpooling_puts_the_maxima_back(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((2, 6, 7, 5), dtype)
    for how in ({}, {"stride": 1, "padding": 1, "edge_mode": "clamp"}):
        y, state = mf.max_pool_fwd(x, 2, **how)
        won = np.zeros((2, 42, 5), bool)
        np.put_along_axis(won, np.array(mf.max_pool_indices(state)).reshape(2, -1, 5), True, axis=1)
        expected = np.where(won.reshape(x.shape), exact(x), 0)
        close(mf.max_unpool(y, state), expected, abs(expected))


def test_unpooling_is_linear_where_windows_share_a_winner(device: mx.Device) -> None:
    y, state = mf.max_pool_fwd(mx.array([1.0, 9.0, 2.0]).reshape(1, 1, 3, 1), (1, 2), stride=1)
    assert mf.max_unpool(mx.array([4.0, 6.0]).reshape(1, 1, 2, 1), state).reshape(-1).tolist() == [0, 5, 0]


@pytest.mark.parametrize("power", [125, -125])
def test_unpooling_near_the_ends_of_the_range(on_cpu: mx.Device, power: int) -> None:
    """All windows share one winner; neither their sum nor a share of a value stands in the way of the mean."""
    state = mf.max_pool_fwd(mx.zeros((1, 1, 1, 1)), 3, padding=300, stride=1, edge_mode="clamp")[1]
    y, scale = mx.full(state.winners.shape, math.pi), 2.0**power
    expected = mf.max_unpool(y, state).item()
    np.testing.assert_allclose(mf.max_unpool(y * scale, state).item(), expected * scale, rtol=3e-7)
