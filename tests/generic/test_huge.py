"""Arrays past 2**31 elements, 4.4 GB each: `pytest -m huge` on a machine with 16 GB, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from support import SMALLEST, close, exact, numbers, same_bits
from support.oracle import elementwise as oracle_elementwise

import mpsfunc as mf

pytestmark = pytest.mark.huge

IMAGES, HEIGHT, WIDTH, CHANNELS = 33, 256, 1024, 256
LAST = 4.0  # the last image is this multiple of all the others
SUM, SQUARES = IMAGES - 1 + LAST, IMAGES - 1 + LAST**2


@pytest.fixture(autouse=True)
def only_our_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")
    yield
    mx.clear_cache()


def batch(channels: int = CHANNELS) -> mx.array:
    """Equal images but for the last, which is LAST times as large."""
    image = numbers((1, HEIGHT, WIDTH, channels), mx.float16)
    x = image * mx.array([1.0] * (IMAGES - 1) + [LAST], mx.float16)[:, None, None, None]
    mx.eval(x)
    assert (x.size > 2**31) == (channels == CHANNELS)
    return x


def image_by_image(y: mx.array, first: mx.array) -> None:
    """The first image is right, and the others are multiples of it as those of the batch are."""
    mx.eval(y)
    assert same_bits(y[:1], first)
    assert same_bits(y[IMAGES // 2 : IMAGES // 2 + 1], first)
    assert mx.abs(y[-1:] - first * LAST).max().item() <= LAST * SMALLEST  # subnormal values round


def test_avg_pool(device: mx.Device) -> None:
    x = batch()
    image_by_image(mf.avg_pool(x, 2), mf.avg_pool(x[:1], 2))


def test_avg_pool_grad(device: mx.Device) -> None:
    dy = batch()
    state = mf.avg_pool_state(dy.shape, 1)
    image_by_image(mf.avg_pool_grad(dy, state), dy[:1])


def test_avg_pool_grad_of_many_windows(device: mx.Device) -> None:
    dy = batch()
    state = mf.avg_pool_state((1, HEIGHT + 3, WIDTH, CHANNELS), (4, 1), stride=1)
    image_by_image(mf.avg_pool_grad(dy, state), mf.avg_pool_grad(dy[:1], state))


def test_max_pool(device: mx.Device) -> None:
    x = batch()
    y, state = mf.max_pool_fwd(x, 1)
    image_by_image(y, x[:1])
    del x
    (dx,), (taken,) = mx.vjp(lambda dy: mf.max_pool_grad(dy, state), [y], [y])
    image_by_image(dx, y[:1])
    del dx
    image_by_image(taken, y[:1])


def test_l2_pool(device: mx.Device) -> None:
    x = batch()
    y, state = mf.l2_pool_fwd(x, 2)
    first, one = mf.l2_pool_fwd(x[:1], 2)
    image_by_image(y, first)
    image_by_image(mf.l2_pool_grad(y, x, state), mf.l2_pool_grad(first, x[:1], one))


def test_resampling(device: mx.Device) -> None:
    x = batch()
    image_by_image(mf.upsample_nearest(x, 1), x[:1])
    y, state = mf.resize_bilinear_fwd(x, (HEIGHT // 3, WIDTH // 5))
    image_by_image(y, mf.resize_bilinear(x[:1], (HEIGHT // 3, WIDTH // 5)))
    del x
    image_by_image(mf.resize_bilinear_grad(y, state), mf.resize_bilinear_grad(y[:1], state))


def test_batch_norm(device: mx.Device) -> None:
    x = batch()
    one, state = mf.bn_stats(x[:1]), mf.bn_stats(x)
    mean, square = exact(one.mean), exact(one.var) + exact(one.mean) ** 2
    assert state.count.item() == IMAGES * HEIGHT * WIDTH
    close(state.mean, mean * SUM / IMAGES, slack=4)
    close(state.var, square * SQUARES / IMAGES - (mean * SUM / IMAGES) ** 2, slack=8)
    frozen = mf.bn_frozen(mx.zeros(CHANNELS), mx.ones(CHANNELS), eps=0.0)
    image_by_image(mf.bn_normalize(x, frozen), x[:1])
    one, state = mf.bn_stats_grad(x[:1], x[:1], frozen), mf.bn_stats_grad(x, x, frozen)
    size = np.abs(exact(x[0])).sum((0, 1)) * SUM
    close(state.dbeta, exact(one.dbeta) * SUM, size)
    close(state.dgamma, exact(one.dgamma) * SQUARES, size)
    covering = state._replace(frozen=False, count=mx.array(IMAGES * HEIGHT * WIDTH, mx.int64), dbeta=mx.zeros(CHANNELS))
    image_by_image(mf.bn_grad(x, x, covering), mf.bn_grad(x[:1], x[:1], covering))


def test_convolution_of_a_huge_image(device: mx.Device) -> None:
    x, w = batch(), numbers((1, 1, 1, CHANNELS))
    y, state = mf.conv_fwd(x, w)
    image_by_image(y, mf.conv(x[:1], w))
    grown = mf.conv_grad_weights(y, x, state)
    one = mf.conv_grad_weights(y[:1], x[:1], state)
    close(grown.dw, exact(one.dw) * SQUARES, np.abs(exact(one.dw)).max() * SQUARES, slack=10)
    del x
    image_by_image(mf.conv_grad_input(y, w, state), mf.conv_grad_input(y[:1], w, state))


def test_convolution_to_a_huge_image(device: mx.Device) -> None:
    x, w = batch(1), numbers((CHANNELS, 1, 1, 1))
    y, state = mf.conv_fwd(x, w)
    image_by_image(y, mf.conv(x[:1], w))
    image_by_image(mf.conv_grad_input(y, w, state), mf.conv_grad_input(y[:1], w, state))
    grown, one = mf.conv_grad_weights(y, x, state), mf.conv_grad_weights(y[:1], x[:1], state)
    close(grown.dw, exact(one.dw) * SQUARES, np.abs(exact(one.dw)).max() * SQUARES, slack=10)
    close(grown.db, exact(one.db) * SUM, np.abs(exact(y[0])).sum((0, 1)) * SUM)


@pytest.mark.parametrize("stride", [(1, 1, 1), (0, 1, 1)], ids=str)
def test_dropout(device: mx.Device, stride: tuple[int, int, int]) -> None:
    """The words of the last pixel's elements, counted in the mask."""
    x = mx.broadcast_to(mx.array(1.0, mx.float16), (IMAGES, HEIGHT, WIDTH, CHANNELS))
    y = mf.dropout(x, keep_probability=0.5, key=mx.array([5, 6], mx.uint32), mask_stride=stride)
    end = IMAGES * (HEIGHT if stride[0] else 1) * WIDTH * CHANNELS
    calls = [oracle_elementwise.philox((i & 0xFFFFFFFF, i >> 32, 0, 0), (5, 6)) for i in range(end // 4 - 64, end // 4)]
    assert np.array_equal(exact(y[-1, -1, -1]) != 0, np.array(calls).reshape(-1) < 2**31)


def test_arithmetic(device: mx.Device) -> None:
    x = batch()
    row = numbers((1, 1, 1, CHANNELS), mx.float16)
    image_by_image(mf.multiply(x, row), mf.multiply(x[:1], row))
    image_by_image(mf.arithmetic_grad(x, x, row, "multiply"), mf.arithmetic_grad(x[:1], x[:1], row, "multiply"))
