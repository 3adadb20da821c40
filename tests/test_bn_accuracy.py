"""How well the statistics of batch normalization hold their digits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers

import mpsfunc as mf


@pytest.mark.parametrize("shape", [(4, 32, 32, 3), (4, 96, 96, 64)], ids=("few", "many"))
@pytest.mark.parametrize(
    ("dtype", "mean", "deviation"),
    [(mx.float32, 1e4, 1), (mx.bfloat16, 100, 4), (mx.float16, 1e3, 4)],
    ids=("float32", "bfloat16", "float16"),
)
def test_variance_survives_a_large_mean(
    device: mx.Device, dtype: mx.Dtype, mean: float, deviation: float, shape: tuple[int, ...]
) -> None:
    """Against the statistics of what rounding to the dtype left."""
    x = (numbers(shape) * deviation + mean).astype(dtype)
    values = exact(x)
    parts = mf.bn_stats(x[1:], mf.bn_stats(x[:1]))
    for state in (mf.bn_stats(x), parts):
        np.testing.assert_allclose(exact(state.mean), values.mean((0, 1, 2)), rtol=2e-7)
        np.testing.assert_allclose(exact(state.var), values.var((0, 1, 2)), rtol=2e-5)


@pytest.mark.parametrize(("mean", "far", "spread"), [(1e4, 4, 1), (1e4, 30, 1), (0.3, 1000, 0), (0.3, -7, 0)])
def test_variance_survives_blocks_that_begin_with_outliers(
    device: mx.Device, mean: float, far: float, spread: float
) -> None:
    """A CPU takes 128 pixels at a time, and how far they are from the mean of the first of them."""
    outlying = mx.arange(4096).reshape(4, 32, 32, 1) % 128 < 8
    x = mean + spread * numbers((4, 32, 32, 64)) + mx.where(outlying, far * mx.arange(1, 65) / 64, 0)
    values = exact(x)
    np.testing.assert_allclose(exact(mf.bn_stats(x).var), values.var((0, 1, 2)), rtol=2e-5)


@pytest.mark.parametrize("pixels", [1, 7, 77, 515, 90_000])
def test_what_is_constant_has_no_variance(device: mx.Device, dtype: mx.Dtype, pixels: int) -> None:
    """None at all: MPS's own eps, the smallest normal float, would make much of a little, and NaN of a negative one."""
    channel = numbers((19,), dtype) * mx.array(100, dtype)
    x = mx.contiguous(mx.broadcast_to(channel, (2, 1, pixels, 19)))
    state = mf.bn_stats(x)
    assert exact(state.var).tolist() == [0] * 19
    close(state.mean, exact(channel))
    tiny = float(np.finfo(np.float32).tiny)
    for y in (mf.batch_norm(x, eps=tiny), mf.instance_norm(x, eps=tiny), mf.bn_normalize(x, mf.bn_stats(x, eps=tiny))):
        assert np.all(exact(y) == 0)
    for value in exact(channel)[:9]:
        y = mf.group_norm(mx.full((1, 1, pixels, 6), value.item(), dtype), 2, eps=tiny, stream=mx.cpu)
        assert np.all(exact(y) == 0)


def test_long_sums_stay_accurate(device: mx.Device) -> None:
    """More elements than a running float32 sum of ones can count."""
    x = mx.ones((17, 1024, 1024, 1), mx.float16)
    assert mf.bn_stats(x).mean.item() == 1
    done = mf.bn_stats_grad(x, x, mf.bn_frozen(mx.zeros(1), mx.ones(1), eps=0.0))
    close(done.dbeta, [x.size])
    close(done.dgamma, [x.size])
