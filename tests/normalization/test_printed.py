"""Gradients as Apple's headers print them, beside ours: the difference quotients of the definitions decide."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import exact
from support.oracle import normalization as oracle

import mpsfunc as mf

Array = np.ndarray
STEP = 1e-5


def quotients(loss: Callable[[Array], float], x: Array) -> Array:
    """The derivative of a loss by each element, by central differences."""
    made = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = STEP
        made[at] = (loss(x + step) - loss(x - step)) / (2 * STEP)
    return made


def decide(right: Array, ours: mx.array, printed: dict[str, Array]) -> None:
    """Ours is the derivative, and what is printed is off by more than a hundredth of it."""
    np.testing.assert_allclose(exact(ours), right, rtol=1e-7, atol=1e-7)
    for name, wrong in printed.items():
        assert abs(wrong - right).max() > 0.01 * abs(right).max(), name


def data(shape: tuple[int, ...]) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    return rng.normal(1, 2, shape), rng.normal(0, 1, shape)


@pytest.mark.parametrize(
    ("size", "values"),
    [
        (3, [0.20412415, -0.29870378, -0.56134825, -0.11279982]),
        (2, [-0.12649111, 0.19392853, -0.23136897, -0.07953577]),
    ],
)
def test_across_channels(on_cpu: mx.Device, size: int, values: list[float]) -> None:
    """The factor of the sum has no ``1 / size``; ``values`` are what the printed formula gives."""
    x, dy = (np.array(v).reshape(1, 1, 1, 4) for v in ([1.0, 2, 3, 4], [1.0, 0, -1, 2]))
    known = {"alpha": 3.0, "beta": 0.5, "delta": 1.0}
    alpha, beta, delta = known.values()
    base = delta + alpha / size * oracle.window_sum(x * x, -1, oracle.forward_shifts(size))
    pulled = oracle.window_sum(dy * x * base ** (-beta - 1), -1, oracle.adjoint_shifts(size))
    printed = dy * base**-beta - 2 * alpha * beta * x * pulled
    np.testing.assert_allclose(printed.ravel(), values, rtol=1e-7)
    right = quotients(lambda x: float((oracle.cross_channel_norm(x, size, **known) * dy).sum()), x)
    wide = mx.array(x, mx.float64)
    _, state = mf.cross_channel_norm_fwd(wide, size, **known)
    decide(right, mf.cross_channel_norm_grad(mx.array(dy, mx.float64), wide, state), {"no 1 / size": printed})


@pytest.mark.parametrize("size", [2, 3])
def test_spatial(on_cpu: mx.Device, size: int) -> None:
    """As printed, and by either slip alone: the base before the sum, and no ``1 / N``."""
    x, dy = data((1, 4, 5, 2))
    known = {"alpha": 1.7, "beta": 0.6, "delta": 1.1}
    alpha, beta, delta = known.values()
    area = size * size
    base = delta + alpha / area * oracle.square_sum(x * x, oracle.forward_shifts(size))
    outside = x * base ** (-beta - 1) * oracle.square_sum(dy * x, oracle.adjoint_shifts(size))
    inside = x * oracle.square_sum(dy * x * base ** (-beta - 1), oracle.adjoint_shifts(size))
    printed = {
        "as printed": dy * base**-beta - 2 * alpha * beta * outside,
        "base before the sum": dy * base**-beta - 2 * alpha * beta / area * outside,
        "no 1 / N": dy * base**-beta - 2 * alpha * beta * inside,
    }
    right = quotients(lambda x: float((oracle.spatial_norm(x, size, **known) * dy).sum()), x)
    wide = mx.array(x, mx.float64)
    _, state = mf.spatial_norm_fwd(wide, size, **known)
    decide(right, mf.spatial_norm_grad(mx.array(dy, mx.float64), wide, state), printed)


@pytest.mark.parametrize("size", [2, 3])
def test_local_contrast(on_cpu: mx.Device, size: int) -> None:
    """By both slips and by either alone: 1 in place of a window's mean, and the base before the sum."""
    x, dy = data((1, 4, 5, 2))
    known = {"alpha": 1.7, "beta": 0.6, "delta": 1.1, "p0": 0.9, "pm": 0.3, "ps": 1.4}
    alpha, beta, delta, p0, _, ps = known.values()
    area = size * size
    ahead, back = oracle.forward_shifts(size), oracle.adjoint_shifts(size)
    mean = oracle.square_sum(x, ahead) / area
    base = delta + alpha * (oracle.square_sum(x * x, ahead) / area - mean**2)
    a, off = dy * base**-beta, dy * (x - p0 * mean)
    b = off * base ** (-beta - 1)
    of_mean = a - p0 / area * oracle.square_sum(a, back)

    def gradient(sum_of_b: Array, sum_of_means: Array) -> Array:
        return ps * (of_mean - 2 * alpha * beta / area * (x * sum_of_b - sum_of_means))

    sums = oracle.square_sum(b, back), oracle.square_sum(b * mean, back)
    before = [base ** (-beta - 1) * oracle.square_sum(v, back) for v in (off, off * mean)]
    printed = {
        "both": gradient(before[0], before[0]),
        "1 for the mean": gradient(sums[0], sums[0]),
        "base before the sum": gradient(*before),
    }
    right = quotients(lambda x: float((oracle.local_contrast_norm(x, size, **known) * dy).sum()), x)
    np.testing.assert_allclose(gradient(*sums), right, rtol=1e-7, atol=1e-7)
    wide = mx.array(x, mx.float64)
    _, state = mf.local_contrast_norm_fwd(wide, size, **known)
    decide(right, mf.local_contrast_norm_grad(mx.array(dy, mx.float64), wide, state), printed)
