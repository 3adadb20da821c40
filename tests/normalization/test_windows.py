"""Cross-channel, spatial and local-contrast normalization, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, TOLERANCE, VIEWS, close, exact, numbers, same_bits
from support.oracle import normalization as oracle

import mpsfunc as mf


class Norm(NamedTuple):
    """A public norm with its gradient, the definitions of both, and parameters that all count."""

    fwd: Callable[..., tuple[mx.array, Any]]
    grad: Callable[..., mx.array]
    define: Callable[..., np.ndarray]
    define_grad: Callable[..., np.ndarray]
    params: dict[str, float]


BY_SQUARES = {"alpha": 1.7, "beta": 0.6, "delta": 1.1}
NORMS = {
    "cross_channel": Norm(
        mf.cross_channel_norm_fwd, mf.cross_channel_norm_grad, oracle.cross_channel_norm,
        oracle.cross_channel_norm_grad, BY_SQUARES,
    ),
    "spatial": Norm(
        mf.spatial_norm_fwd, mf.spatial_norm_grad, oracle.spatial_norm, oracle.spatial_norm_grad, BY_SQUARES
    ),
    "local_contrast": Norm(
        mf.local_contrast_norm_fwd, mf.local_contrast_norm_grad, oracle.local_contrast_norm,
        oracle.local_contrast_norm_grad, {**BY_SQUARES, "p0": 0.9, "pm": 0.3, "ps": 1.4},
    ),
}  # fmt: skip
each = pytest.mark.parametrize("name", NORMS)


def check(
    name: str, x: mx.array, size: int, *, seed: int = 1, view: str = "contiguous", slack: float = 8, **params: float
) -> None:
    """Both directions against the definition; the images come as a view."""
    norm, seen = NORMS[name], VIEWS[view]
    params = {**norm.params, **params}
    dy = numbers(tuple(x.shape), x.dtype, seed)
    values, pulled = exact(x), exact(dy)
    y, state = norm.fwd(seen(x), size, **params)
    dx = norm.grad(seen(dy), seen(x), state)
    assert y.dtype == dx.dtype == x.dtype
    expected, gradient = norm.define(values, size, **params), norm.define_grad(pulled, values, size, **params)
    close(y, expected, 1 + abs(expected) + abs(values), slack=slack)
    close(dx, gradient, 1 + abs(gradient) + abs(pulled).max(), slack=slack)


# Worked numbers -----------------------------------------------------------------------------------------


def digits(actual: mx.array, expected: list[float]) -> None:
    np.testing.assert_allclose(exact(actual).ravel(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "y", "dx"),
    [
        (
            3,
            [0.40824829, 0.51639778, 0.54772256, 0.78446454],
            [0.34020691, -0.09956793, -0.30883221, 0.22388824],
        ),
        (
            2,
            [0.63245553, 0.68599434, 0.66258916, 0.64465837],
            [0.25298221, 0.09696427, -0.22611601, 0.12139671],
        ),
    ],
)
def test_worked_example_across_channels(device: mx.Device, size: int, y: list[float], dx: list[float]) -> None:
    x, dy = (mx.array(v).reshape(1, 1, 1, 4) for v in ([1.0, 2, 3, 4], [1.0, 0, -1, 2]))
    made, state = mf.cross_channel_norm_fwd(x, size, alpha=3.0, beta=0.5)
    digits(made, y)
    digits(mf.cross_channel_norm_grad(dy, x, state), dx)


NINE = [float(n) for n in range(1, 10)]


@pytest.mark.parametrize(
    ("size", "base", "dx"),
    [
        (
            3,
            [6.1111, 11.1111, 9.2222, 18.6667, 32.6667, 25.3333, 18.1111, 31.1111, 23.8889],
            [-0.00297557, -0.00595114, -0.00892671, -0.01190228, 0.1600857, -0.01785342, -0.02082899, -0.02380457,
             -0.02678014],
        ),
        (
            2,
            [1.25, 2.25, 4.25, 5.25, 12.5, 19.5, 17.25, 39.5, 52.5],
            [-0.02828427, -0.05656854, 0, -0.11313708, 0.14142136, 0, 0, 0, 0],
        ),
    ],
)  # fmt: skip
def test_worked_example_of_spatial(device: mx.Device, size: int, base: list[float], dx: list[float]) -> None:
    x = mx.array(NINE).reshape(1, 3, 3, 1)
    y, state = mf.spatial_norm_fwd(x, size, beta=0.5)
    np.testing.assert_allclose(exact(y).ravel(), NINE / np.sqrt(base), rtol=1e-5)
    dy = mx.zeros_like(x).at[0, 1, 1, 0].add(1)
    digits(mf.spatial_norm_grad(dy, x, state), dx)


def test_worked_example_of_local_contrast(device: mx.Device) -> None:
    x = mx.array(NINE).reshape(1, 3, 3, 1)
    y, state = mf.local_contrast_norm_fwd(x, 3, alpha=1.0, delta=1.0)
    digits(y, [-0.16012815, -0.14002801, 0.49642305, 0.32163376, 0, 0.67671554, 1.30654916, 1.0440738, 1.56220566])
    dy = mx.zeros_like(x).at[0, 1, 1, 0].add(1)
    digits(mf.local_contrast_norm_grad(dy, x, state), [-0.04012862] * 4 + [0.32102894] + [-0.04012862] * 4)


def test_local_contrast_by_default_subtracts_the_mean_of_a_padded_window(device: mx.Device) -> None:
    x = mx.arange(1.0, 17.0).reshape(1, 4, 4, 1)
    np.testing.assert_allclose(mf.local_contrast_norm(x, 3)[0, 0, 0, 0].item(), (1 - 14 / 9) * 32, rtol=1e-6)


def test_defaults_are_those_of_mps() -> None:
    x = mx.ones((1, 2, 2, 3), stream=mx.cpu)
    assert mf.cross_channel_norm_fwd(x, stream=mx.cpu)[1] == ("cross_channel_norm", 5, 1.0, 5.0, 1.0)
    assert mf.spatial_norm_fwd(x, 3, stream=mx.cpu)[1] == ("spatial_norm", 3, 1.0, 5.0, 1.0)
    contrast = ("local_contrast_norm", 3, 0.0, 0.5, 1 / 1024, 1.0, 0.0, 1.0)
    assert mf.local_contrast_norm_fwd(x, 3, stream=mx.cpu)[1] == contrast


# The definition -----------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 10, 31, 1000, 2**31 - 1])
def test_definition_for_every_window(device: mx.Device, name: str, size: int) -> None:
    check(name, numbers((2, 7, 12, 20)), size)


@each
@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 16, 65])
def test_definition_for_every_width(device: mx.Device, dtype: mx.Dtype, name: str, channels: int) -> None:
    for size in (3, 12):
        check(name, numbers((2, 5, 6, channels), dtype), size)


@each
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_view(device: mx.Device, dtype: mx.Dtype, name: str, view: str) -> None:
    for size in (4, 11):
        check(name, numbers((2, 5, 6, 8), dtype), size, view=view)


@each
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 40, 1, 3), (1, 1, 50, 2), (9, 2, 2, 8), (1, 3, 2, 300), (1, 70, 33, 4)]
)
def test_definition_for_every_shape(device: mx.Device, name: str, shape: tuple[int, ...]) -> None:
    for size in (5, 16, 41):
        check(name, numbers(shape), size)


@each
@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, -0.5, -1.0])
def test_every_exponent(device: mx.Device, dtype: mx.Dtype, name: str, beta: float) -> None:
    check(name, numbers((1, 6, 5, 12), dtype), 3, beta=beta, slack=16)


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 5, 8, 17])),
    size=st.integers(1, 14),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    alpha=st.sampled_from([0.0, 0.3, 4.0]),
    beta=st.sampled_from([0.5, 0.9, 2.0]),
    name=st.sampled_from(sorted(NORMS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    name: str, shape: tuple[int, ...], size: int, dtype: mx.Dtype, view: str, alpha: float, beta: float
) -> None:
    with mx.stream(mx.cpu):
        check(name, numbers(shape, dtype), size, view=view, alpha=alpha, beta=beta, slack=16)


@each
def test_empty_batches(device: mx.Device, name: str) -> None:
    x = mx.zeros((0, 4, 5, 3))
    y, state = NORMS[name].fwd(x, 3)
    assert y.shape == NORMS[name].grad(x, x, state).shape == x.shape


@each
def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    x, dy = numbers((3, 21, 19, 10), dtype), numbers((3, 21, 19, 10), dtype, 1)
    norm = NORMS[name]
    for size in (3, 13):
        results = []
        for _ in range(4):
            y, state = norm.fwd(x, size, **norm.params)
            results.append((y, norm.grad(dy, x, state)))
        assert all(same_bits(a, b) for pair in results[1:] for a, b in zip(pair, results[0], strict=True))


# Accuracy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5, 31])
def test_contrast_survives_a_large_mean(device: mx.Device, size: int) -> None:
    """The variance of deviation 1 around 1e4: squares of float32 values would be off by several units."""
    x, dy = numbers((1, 40, 41, 3)) + 1e4, numbers((1, 40, 41, 3), seed=1)
    values, pulled, params = exact(x), exact(dy), {"alpha": 1.0, "delta": 1e-3}
    y, state = mf.local_contrast_norm_fwd(x, size, **params)
    inside = (slice(None), slice(size // 2, 40 - size // 2), slice(size // 2, 41 - size // 2))
    expected = oracle.local_contrast_norm(values, size, **params)
    np.testing.assert_allclose(exact(y)[inside], expected[inside], rtol=1e-3, atol=1e-3)
    dy_inside = np.zeros_like(pulled)  # windows over the border have deviations of thousands
    dy_inside[inside] = pulled[inside]
    dx = mf.local_contrast_norm_grad(mx.array(dy_inside, mx.float32), x, state)
    gradient = oracle.local_contrast_norm_grad(dy_inside, values, size, **params)
    np.testing.assert_allclose(exact(dx), gradient, rtol=1e-3, atol=1e-3 * abs(gradient).max())


@pytest.mark.parametrize("corner", [0.0, 255.0, 1e4])
def test_derivatives_of_contrast_survive_what_its_sums_must(device: mx.Device, corner: float) -> None:
    """Tangents and second derivatives around a large mean, and beside an outlier in one corner."""
    x, way = numbers((1, 16, 15, 3)) * 0.02 + 10, numbers((1, 16, 15, 3), seed=1)
    x[:, 0, 0] = x[:, 0, 0] + corner
    if corner and device != mx.Device(mx.cpu):
        pytest.skip("a GPU has no float64 for sums of squares of such pixels")
    params = {"alpha": 1.0, "delta": 1e-3}
    norm = lambda x: mf.local_contrast_norm(x, 3, **params)  # noqa: E731
    _, (tangent,) = mx.jvp(norm, [x], [way])
    step = 1e-6
    ahead, behind = (oracle.local_contrast_norm(exact(x) + sign * step * exact(way), 3, **params) for sign in (1, -1))
    expected = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(exact(tangent), expected, rtol=1e-3, atol=1e-3 * abs(expected).max())
    _, state = mf.local_contrast_norm_fwd(x, 3, **params)
    second = mx.grad(lambda x: (mf.local_contrast_norm_grad(way, x, state) * way).sum())(x)
    ahead, behind = (
        oracle.local_contrast_norm_grad(exact(way), exact(x) + sign * step * exact(way), 3, **params)
        for sign in (1, -1)
    )
    expected_sum = ((ahead - behind) / (2 * step) * exact(way)).sum()
    np.testing.assert_allclose((exact(second) * exact(way)).sum(), expected_sum, rtol=1e-3)


@pytest.mark.parametrize("level", [1e4 / 3, 7e3 / 9, 1e3 / 7])
def test_flat_parts_have_no_negative_variance(on_cpu: mx.Device, level: float) -> None:
    """Rounding would take it below 0, and a root of the base with it."""
    halves = mx.array(np.where(np.arange(12) < 6, 0, level), mx.float64)[None, None, :, None]
    x = mx.broadcast_to(halves, (1, 12, 12, 2))
    norm = lambda x: mf.local_contrast_norm(x, 3, alpha=1.0, delta=1e-20)  # noqa: E731
    _, (tangent,) = mx.jvp(norm, [x], [numbers((1, 12, 12, 2), mx.float64)])
    assert np.isfinite(exact(norm(x))).all() and np.isfinite(exact(tangent)).all()


@each
def test_an_exponent_of_0_needs_no_base(device: mx.Device, name: str) -> None:
    norm, x = NORMS[name], mx.zeros((1, 4, 4, 4))
    dy = numbers((1, 4, 4, 4))
    for params in ({**norm.params, "beta": 0.0, "delta": 0.0}, {**norm.params, "beta": 0.0, "delta": -1.0}):
        _, state = norm.fwd(x, 3, **params)
        expected = norm.define_grad(exact(dy), exact(x), 3, **{**params, "delta": 1.0})
        close(norm.grad(dy, x, state), expected, 4)
        _, (tangent,) = mx.jvp(lambda x, params=params: norm.fwd(x, 3, **params)[0], [x], [dy])
        assert np.isfinite(exact(tangent)).all()


@each
def test_sums_over_large_windows_stay_accurate(device: mx.Device, name: str) -> None:
    """A large value that a window has left leaves no trace, as it would in a running sum."""
    x = numbers((1, 30, 30, 40))
    x[:, 3, 4, 5] = 1e6
    check(name, x, 9, slack=64)
    check(name, x, 21, slack=64)
    norm = NORMS[name]
    y, _ = norm.fwd(x, 9, **norm.params)
    expected = norm.define(exact(x), 9, **norm.params)
    far = np.s_[:, 12:, 12:] if name != "cross_channel" else np.s_[..., 12:]
    np.testing.assert_allclose(exact(y)[far], expected[far], rtol=1e-5, atol=1e-6)


@each
def test_an_infinity_stays_within_its_windows(device: mx.Device, name: str) -> None:
    x = numbers((1, 30, 30, 40))
    spoilt = mx.array(x)
    spoilt[:, 3, 4, 5] = float("inf")
    norm = NORMS[name]
    for size in (5, 11):
        clean, dirty = (norm.fwd(v, size, **norm.params)[0] for v in (x, spoilt))
        far = np.s_[:, 15:, 15:] if name != "cross_channel" else np.s_[..., 18:]
        np.testing.assert_allclose(exact(dirty)[far], exact(clean)[far], rtol=1e-6, atol=1e-7)


@each
@pytest.mark.parametrize("beta", [0.6, 0.75])
@pytest.mark.parametrize("delta", [0.0, -1.0])
def test_a_base_that_is_not_positive_is_the_powers_business(
    device: mx.Device, name: str, delta: float, beta: float
) -> None:
    """MPS leaves it undefined: whatever the power says, and nothing crashes."""
    norm, x = NORMS[name], mx.zeros((1, 4, 4, 4))
    params = {**norm.params, "delta": delta, "beta": beta, "alpha": 0.5}
    y, state = norm.fwd(x, 3, **params)
    with np.errstate(all="ignore"):
        expected = norm.define(exact(x), 3, **params)
    assert np.array_equal(np.isnan(exact(y)), np.isnan(expected))
    mx.eval(norm.grad(mx.ones_like(x), x, state))


@pytest.mark.parametrize("beta", [0.25, 0.6, 0.75, 1.0])
def test_a_base_past_what_float_holds_leaves_nothing(device: mx.Device, beta: float) -> None:
    """Squares beyond 3.4e38 add up to infinity, a power of which is zero; quarters have no other way to see it."""
    x = 1e30 * mx.ones((1, 2, 2, 8))
    y, state = mf.cross_channel_norm_fwd(x, 5, alpha=1.0, beta=beta)
    assert np.array_equal(exact(y), np.zeros(x.shape))
    assert np.array_equal(exact(mf.cross_channel_norm_grad(mx.ones_like(x), x, state)), np.zeros(x.shape))


# States -------------------------------------------------------------------------------------------------


@each
def test_states(device: mx.Device, name: str) -> None:
    x = numbers((1, 3, 3, 4))
    _, state = NORMS[name].fwd(x, 3)
    assert state.arrays == () and state.with_arrays(()) is state
    with pytest.raises(ValueError, match="wrong number of arrays; got 1 arrays, expected 0"):
        state.with_arrays((x,))
    compiled = mx.compile(lambda dy, x: NORMS[name].grad(dy, x, state))
    assert mx.allclose(compiled(x, x), NORMS[name].grad(x, x, state))


@each
def test_the_derivative_is_the_gradient(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    """One kernel is behind mx.vjp and the explicit function, for every dtype; others behind higher orders."""
    norm, x, dy = NORMS[name], numbers((2, 5, 4, 6), dtype), numbers((2, 5, 4, 6), dtype, 1)
    _, state = norm.fwd(x, 3, **norm.params)
    (y,), (dx,) = mx.vjp(lambda x: norm.fwd(x, 3, **norm.params)[0], [x], [dy])
    assert same_bits(dx, norm.grad(dy, x, state))
    _, (tangent,) = mx.jvp(lambda x: norm.fwd(x, 3, **norm.params)[0], [x], [dy])
    assert tangent.dtype == y.dtype == dtype
    left, right = (exact(tangent) * exact(dy)).sum(), (exact(dx) * exact(dy)).sum()
    np.testing.assert_allclose(left, right, rtol=100 * TOLERANCE[dtype])
