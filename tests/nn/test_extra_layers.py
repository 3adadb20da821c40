"""Layers that mlx.nn lacks."""

from __future__ import annotations

import pytest
from support import numbers, same_bits

import mpsfunc as mf
from mpsfunc import nn
from mpsfunc.nn.drop_in import DropIn

X = (3, 8, 6, 4)


def test_layers_that_mlx_lacks() -> None:
    x = numbers(X)
    for layer, want in (
        (nn.L2Pool2d(3, 2, 1), mf.l2_pool(x, 3, stride=2, padding=1)),
        (nn.AdaptiveAvgPool2d((3, None)), mf.avg_pool(x, "adaptive", out_size=(3, None))),
        (nn.AdaptiveMaxPool2d(2), mf.max_pool(x, "adaptive", out_size=2)),
        (nn.CrossChannelNorm(3, 0.5, 0.75, 2.0), mf.cross_channel_norm(x, 3, alpha=0.5, beta=0.75, delta=2.0)),
        (nn.SpatialNorm(3, 0.5, 0.75, 2.0), mf.spatial_norm(x, 3, alpha=0.5, beta=0.75, delta=2.0)),
        (
            nn.LocalContrastNorm(3, 0.5, 0.75, 2.0, 0.25, 0.5, 3.0),
            mf.local_contrast_norm(x, 3, alpha=0.5, beta=0.75, delta=2.0, p0=0.25, pm=0.5, ps=3.0),
        ),
    ):
        assert same_bits(layer(x), want)
        assert not layer.parameters() and not isinstance(layer, DropIn)


def test_unpooling() -> None:
    pool = nn.MaxPool2d(2)
    y, state = pool.with_state(numbers(X))
    assert same_bits(y, pool(numbers(X)))
    assert same_bits(nn.MaxUnpool2d()(y, state), mf.max_unpool(y, state))
    with pytest.raises(ValueError, match="MaxPool2d: no state; got windows that contain only padding"):
        nn.MaxPool2d(2, 2, 2).with_state(numbers(X))
