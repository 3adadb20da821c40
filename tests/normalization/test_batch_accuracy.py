"""How well statistics hold their digits, and derivatives through them their range."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers

import mpsfunc as mf
from mpsfunc.channels import vector_rules

TINY = float(np.finfo(np.float32).tiny)  # MPS's own eps
# On a GPU the C++ module holds the node that lets mx.vmap pass MLX's kernels.
MAPPED = pytest.param(True, marks=pytest.mark.needs_cpu_module, id="mapped")
maybe_mapped = pytest.mark.parametrize("mapped", [pytest.param(False, id="as it is"), MAPPED])


def applied(function: Callable[[mx.array], Any], x: mx.array, mapped: bool) -> Any:
    """``function(x)``, or as ``mx.vmap`` has it."""
    if not mapped:
        return function(x)
    y = mx.vmap(function)(x[None])
    return y[0] if isinstance(y, mx.array) else [a[0] for a in y]


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


@maybe_mapped
@pytest.mark.parametrize("pixels", [1, 7, 77, 515, 90_000])
def test_what_is_constant_has_no_variance(device: mx.Device, dtype: mx.Dtype, pixels: int, mapped: bool) -> None:
    """None at all: MPS's own eps, the smallest normal float, would make much of a little, and NaN of a negative one."""
    channel = numbers((19,), dtype) * mx.array(100, dtype)
    x = mx.contiguous(mx.broadcast_to(channel, (2, 1, pixels, 19)))
    state = mf.bn_stats(x)
    assert exact(state.var).tolist() == [0] * 19
    close(state.mean, exact(channel))
    for function in (mf.batch_norm, mf.instance_norm, lambda x, eps: mf.bn_normalize(x, mf.bn_stats(x, eps=eps))):
        assert np.all(exact(applied(functools.partial(function, eps=TINY), x, mapped)) == 0)
    for value in exact(channel)[:9]:
        x = mx.full((1, 1, pixels, 6), value.item(), dtype)
        assert np.all(exact(applied(functools.partial(mf.group_norm, groups=2, eps=TINY), x, mapped)) == 0)


BY_OWN_STATISTICS: dict[str, Any] = {
    "batch_norm": lambda x, gamma, beta: mf.batch_norm(x, gamma, beta, eps=TINY),
    "instance_norm": lambda x, gamma, beta: mf.instance_norm(x, gamma, beta, eps=TINY),
    "group_norm": lambda x, gamma, beta: mf.group_norm(x, 2, gamma, beta, eps=TINY),
    "bn_normalize": lambda x, gamma, beta: mf.bn_normalize(x, mf.bn_stats(x, eps=TINY), gamma, beta),
    "bn_normalize relu": lambda x, gamma, beta: mf.bn_normalize(
        x, mf.bn_stats(x, eps=TINY), gamma, beta, neuron="relu"
    ),
}
WITHOUT_UNIT: dict[str, Any] = {
    **BY_OWN_STATISTICS,
    "bn_stats_grad": lambda x, gamma, beta: mx.broadcast_to(by_hand(numbers((3, 5, 4, 4)), x, gamma)[1], x.shape),
    "bn_grad": lambda x, gamma, beta: by_hand(numbers((3, 5, 4, 4)), x, gamma)[0] * mx.stop_gradient(abs(x).max()),
}


def by_hand(dy: mx.array, x: mx.array, gamma: mx.array) -> tuple[mx.array, mx.array]:
    """The gradients of images and scale."""
    state = mf.bn_stats_grad(dy, x, mf.bn_stats(x, eps=TINY), gamma)
    return mf.bn_grad(dy, x, state, gamma), state.dgamma


def gradients(
    op: str, dy: mx.array, x: mx.array, gamma: mx.array, beta: mx.array, mapped: bool
) -> tuple[mx.array, mx.array]:
    """Likewise, of any of them."""

    def pulled(x: mx.array) -> tuple[mx.array, mx.array]:
        if op == "bn_grad":
            return by_hand(dy, x, gamma)
        _, (dx, dgamma, _) = mx.vjp(BY_OWN_STATISTICS[op], [x, gamma, beta], [dy])
        return dx, dgamma

    dx, dgamma = applied(pulled, x, mapped)
    return dx, dgamma


@pytest.mark.parametrize("op", WITHOUT_UNIT)
def test_derivatives_do_not_depend_on_the_unit_of_images(device: mx.Device, op: str) -> None:
    """The inverse root of such a variance has a cube that float32 does not hold, and no derivative needs it."""
    function, gamma, beta = WITHOUT_UNIT[op], mx.array([8.0, 1, -20, 3]), mx.array([0.5, 1, 2, 0])
    x, dy, t = (numbers((3, 5, 4, 4), seed=seed) for seed in range(3))

    def derivatives(unit: float) -> list[mx.array]:
        def pulled(x: mx.array) -> mx.array:
            return mx.vjp(lambda x: function(x, gamma, beta), [x], [dy])[1][0]

        _, (dx, dgamma, dbeta) = mx.vjp(function, [x * unit, gamma, beta], [dy])
        _, (tangent,) = mx.jvp(function, [x * unit, gamma, beta], [t * unit, beta, gamma])
        _, (second,) = mx.vjp(pulled, [x * unit], [t * unit])
        return [dx * unit, dgamma, dbeta, tangent, second * unit]

    for known, made in zip(derivatives(1.0), derivatives(2.0**-50), strict=True):
        close(made, exact(known), abs(exact(known)).max())


@maybe_mapped
@pytest.mark.parametrize("op", ["batch_norm", "instance_norm", "group_norm", "bn_grad"])
def test_gradients_of_many_pixels_do_not_depend_on_their_unit(device: mx.Device, op: str, mapped: bool) -> None:
    """The gradient of a scale grows with the pixels, and is not multiplied before it is divided by their number."""
    gamma, beta = mx.array([8.0, 1, -20, 3]), mx.array([0.5, 1, 2, 0])
    x, dy = numbers((1, 64, 64, 4)), 2**20 * numbers((1, 64, 64, 4), seed=1)

    known, made = (gradients(op, dy, x * unit, gamma, beta, mapped)[0] * unit for unit in (1, 2.0**-50))
    close(made, exact(known), abs(exact(known)).max())


@maybe_mapped
@pytest.mark.parametrize("op", [*BY_OWN_STATISTICS, "bn_grad"])
def test_gradients_where_an_image_is_constant(device: mx.Device, op: str, mapped: bool) -> None:
    """By MPS's own eps they are large, not infinite: the slope times what dy has beside its mean."""
    gamma, beta = mx.array([8.0, 1, -200, 3]), mx.array([0.5, 1, 2, 1])
    dy, x = numbers((1, 5, 4, 4)), mx.full((1, 5, 4, 4), 0.3)
    dx, dgamma = gradients(op, dy, x, gamma, beta, mapped)
    g = exact(dy) * exact(gamma)
    apart = g.reshape((1, 5, 4, 2, 2) if op == "group_norm" else (1, 5, 4, 4, 1))
    right = (apart - apart.mean((1, 2, 4), keepdims=True)).reshape(g.shape) / TINY**0.5
    close(dx, right, abs(g).max() / TINY**0.5)
    assert not exact(dgamma).any()


@maybe_mapped
@pytest.mark.parametrize("op", BY_OWN_STATISTICS)
def test_where_the_variance_overflows_an_image_is_its_shift(device: mx.Device, op: str, mapped: bool) -> None:
    beta, x = mx.array([0.5, 1, 2, 0]), numbers((1, 5, 4, 4)) * 1e30
    y = applied(lambda x: BY_OWN_STATISTICS[op](x, mx.ones(4), beta), x, mapped)
    assert np.array_equal(exact(y), np.broadcast_to(exact(beta), x.shape))


def test_inverse_root_has_the_limits_of_a_root(device: mx.Device) -> None:
    var = mx.array([0, 1e-30, 4, np.inf, np.nan])
    root = functools.partial(vector_rules.inverse_root, eps=0.0)
    np.testing.assert_allclose(exact(root(var)), [np.inf, 1e15, 0.5, 0, np.nan], rtol=3e-7)
    _, (slope,) = mx.vjp(root, [var], [mx.array([1.0, 1e-9, 1, 1, 1])])
    np.testing.assert_allclose(exact(slope), [-np.inf, -0.5e36, -0.0625, 0, np.nan], rtol=1e-6)


def test_long_sums_stay_accurate(device: mx.Device) -> None:
    """More elements than a running float32 sum of ones can count."""
    x = mx.ones((17, 1024, 1024, 1), mx.float16)
    assert mf.bn_stats(x).mean.item() == 1
    done = mf.bn_stats_grad(x, x, mf.bn_frozen(mx.zeros(1), mx.ones(1), eps=0.0))
    close(done.dbeta, [x.size])
    close(done.dgamma, [x.size])
