"""L2 pooling against its definition."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    BATCHES,
    DTYPES,
    SMALLEST,
    TOLERANCE,
    VIEWS,
    accumulator,
    close,
    exact,
    geometries,
    numbers,
    same_bits,
    same_bits_for_threads,
)
from support.oracle import pooling as oracle
from support.strategies import pairs, placements

import mpsfunc as mf
from mpsfunc.windows.placement import restrict_outputs

GEOMETRIES = geometries(mf.PaddingPolicy)
EDGES = ("zero", "clamp")
ROUNDINGS = 4  # of a square, a sum, a root and a quotient in a row


def row(values: list[float], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(values, dtype).reshape(1, 1, -1, 1)


def check(x: mx.array, y: mx.array, state: mf.L2PoolState, seed: int = 0) -> None:
    """Values, norms and gradient."""
    axes = state.rows, state.cols
    norms = oracle.l2_pool(exact(x), *axes)
    assert y.dtype == x.dtype and state.norms.dtype == accumulator(x.dtype)
    close(y, norms, norms, slack=ROUNDINGS)
    close(state.norms, norms, norms, slack=ROUNDINGS)
    dy = numbers(tuple(y.shape), x.dtype, seed)
    definition = [oracle.l2_pool_grad(f(exact(dy)), f(exact(x)), norms, *axes) for f in (np.asarray, abs)]
    close(mf.l2_pool_grad(dy, x, state), *definition, slack=ROUNDINGS)


# Worked numbers -----------------------------------------------------------------------------------------


def test_a_row_with_a_window_of_zeros(device: mx.Device, dtype: mx.Dtype) -> None:
    x = row([3, 4, 0, 0], dtype)
    y, state = mf.l2_pool_fwd(x, (1, 2), offset=(0, 1), out_size=(1, 2))
    assert y.reshape(-1).tolist() == [5, 0]
    close(mf.l2_pool_grad(mx.ones_like(y), x, state), np.array([0.6, 0.8, 0, 0]).reshape(1, 1, 4, 1))


def test_a_clamped_tap_counts_for_the_edge(device: mx.Device, dtype: mx.Dtype) -> None:
    """Taps -1, 0, 1 read pixels 0, 0, 1, so that y = sqrt(2 * 4 + 1) and its derivatives are 4 / 3 and 1 / 3."""
    x = row([2, 1], dtype)
    y, state = mf.l2_pool_fwd(x, (1, 3), stride=1, offset=(0, 0), out_size=1, edge_mode="clamp")
    assert y.item() == 3
    close(mf.l2_pool_grad(mx.ones_like(y), x, state), np.array([4 / 3, 1 / 3]).reshape(1, 1, 2, 1))
    y, state = mf.l2_pool_fwd(x, (1, 3), stride=1, offset=(0, 0), out_size=1)
    close(y, np.sqrt(5).reshape(1, 1, 1, 1))


# The definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_mode", EDGES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_definition_in_every_geometry(device: mx.Device, dtype: mx.Dtype, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    for batch, channels in ((2, 3), (1, 16)):
        x = numbers((batch, *image, channels), dtype)
        check(x, *mf.l2_pool_fwd(x, kernel, edge_mode=edge_mode, **placement))


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_width_and_view(
    device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, view: str
) -> None:
    x = numbers((batch, 6, 5, channels), dtype)
    y, state = mf.l2_pool_fwd(VIEWS[view](x), 3, stride=2, padding=1)
    check(x, y, state)
    dy = numbers(tuple(y.shape), dtype, 3)
    seen = state.with_arrays([VIEWS[view](a) for a in state.arrays])
    assert same_bits(mf.l2_pool_grad(VIEWS[view](dy), VIEWS[view](x), seen), mf.l2_pool_grad(dy, x, state))


@pytest.mark.parametrize("channels", (3, 40))
@pytest.mark.parametrize("edge_mode", EDGES)
def test_an_image_of_many_lines(device: mx.Device, dtype: mx.Dtype, channels: int, edge_mode: str) -> None:
    """Threads share an image, and windows cross the borders between them."""
    x = numbers((1, 230, 37, channels), dtype)
    check(x, *mf.l2_pool_fwd(x, (5, 3), stride=(2, 1), padding=(2, 1), dilation=(1, 2), edge_mode=edge_mode))


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 2, 5, 8, 17])),
    kernel=pairs,
    placement=placements,
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], kernel: tuple[int, int], placement: dict[str, Any], dtype: mx.Dtype, view: str
) -> None:
    with mx.stream(mx.cpu):
        x = numbers(shape, dtype)
        check(x, *mf.l2_pool_fwd(VIEWS[view](x), kernel, **placement))


@pytest.mark.parametrize("edge_mode", EDGES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradient_is_the_adjoint_of_the_tangent(on_cpu: mx.Device, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    x, tangent = numbers((2, *image, 3), mx.float64), numbers((2, *image, 3), mx.float64, 1)
    y, state = mf.l2_pool_fwd(x, kernel, edge_mode=edge_mode, **placement)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    _, (pushed,) = mx.jvp(lambda x: mf.l2_pool(x, kernel, edge_mode=edge_mode, **placement), [x], [tangent])
    close((pushed * dy).sum(), exact((tangent * mf.l2_pool_grad(dy, x, state)).sum()), exact((x * x).sum()))


def test_source_window_keeps_only_its_outputs(device: mx.Device) -> None:
    x = numbers((2, 7, 8, 4))
    for edge_mode in EDGES:
        y, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1, edge_mode=edge_mode)
        dy = numbers(tuple(y.shape), seed=1)
        norms = oracle.l2_pool(exact(x), state.rows, state.cols)
        for window in (((1, 0), (2, 3)), ((-1, 2), (3, 9)), ((0, 0), (0, 4)), ((9, 9), (2, 2))):
            axes = restrict_outputs("l2_pool_grad", (state.rows, state.cols), window)
            definition = [oracle.l2_pool_grad(f(exact(dy)), f(exact(x)), norms, *axes) for f in (np.asarray, abs)]
            close(mf.l2_pool_grad(dy, x, state, source_window=window), *definition, slack=ROUNDINGS)


# Sizes --------------------------------------------------------------------------------------------------

EXTREMES: list[tuple[mx.Dtype, float]] = [
    (mx.float16, 6e-8),
    (mx.float16, 1e-5),
    (mx.float16, 3e4),
    (mx.bfloat16, 1e-38),
    (mx.bfloat16, 1e38),
    (mx.float32, 1e-37),
    (mx.float32, 1e-20),
    (mx.float32, 1e19),
    (mx.float32, 1e38),
    (mx.float64, 1e-300),
    (mx.float64, 1e300),
]


@pytest.mark.parametrize(("kind", "size"), EXTREMES, ids=str)
@pytest.mark.parametrize("channels", (3, 16))
def test_squares_neither_overflow_nor_vanish(device: mx.Device, kind: mx.Dtype, size: float, channels: int) -> None:
    """Also beside channels of another size, and the derivatives are of size 1 whatever the values are."""
    if kind == mx.float64 and device != mx.Device(mx.cpu):
        pytest.skip("float64 runs on the CPU only")  # the other parameters run on both
    sizes = np.where(np.arange(channels) % 3 == 1, 1.0, size)
    values = np.random.default_rng(0).uniform(0.5, 1, (2, 4, 6, channels)) * sizes
    with mx.stream(mx.cpu):
        x = mx.array(values, mx.float64).astype(kind)
    y, state = mf.l2_pool_fwd(x, 2)
    unit = exact(x) / sizes  # NumPy's squares have their limits too
    norms = oracle.l2_pool(unit, state.rows, state.cols)
    few = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3, mx.float64: 1e-12}[kind]
    smallest = SMALLEST if kind == mx.float16 else 0
    np.testing.assert_allclose(exact(y), norms * sizes, rtol=2 * few, atol=smallest)
    dx = mf.l2_pool_grad(mx.ones_like(y), x, state)
    expected = oracle.l2_pool_grad(np.ones(y.shape), unit, norms, state.rows, state.cols)
    assert expected.min() > 0.2
    np.testing.assert_allclose(exact(dx), expected, rtol=2 * few)


def test_a_norm_beyond_float16_still_has_its_gradient(device: mx.Device) -> None:
    x = mx.full((1, 2, 2, 8), 6e4, mx.float16)
    y, state = mf.l2_pool_fwd(x, 2)
    assert np.isinf(exact(y)).all() and np.all(exact(mf.l2_pool_grad(mx.ones_like(y), x, state)) == 0.5)


def test_infinities_and_nans_stay_what_they_are(device: mx.Device, dtype: mx.Dtype) -> None:
    x = row([float("inf"), 1, float("nan"), 2, 3, 4], dtype)
    y = exact(mf.l2_pool(x, (1, 2))).reshape(-1)
    assert y[0] == np.inf and np.isnan(y[1]) and y[2] == 5


def test_zeros_have_gradient_zero_at_every_order(on_cpu: mx.Device) -> None:
    x = mx.zeros((1, 4, 4, 3))

    def loss(x: mx.array) -> mx.array:
        return mf.l2_pool(x, 2).sum() + (mf.l2_pool(x, 3, stride=1, padding=1) ** 2).sum()

    assert not exact(mx.grad(loss)(x)).any()
    assert not exact(mx.grad(lambda x: (mx.grad(loss)(x) ** 2).sum())(x)).any()
    _, (tangent,) = mx.jvp(lambda x: mf.l2_pool(x, 2), [x], [mx.ones_like(x)])
    assert not exact(tangent).any()


def test_a_window_of_zeros_propagates_nothing_at_all(device: mx.Device) -> None:
    x = row([0, 0, 3, 4, 0, 0])
    y, state = mf.l2_pool_fwd(x, (1, 2))
    dy, t = row([float("inf"), 1, float("nan")]), row([float("nan"), float("inf"), 1, 1, 0, 0])
    (dx,), (pushed,) = mx.vjp(lambda dy: mf.l2_pool_grad(dy, x, state), [dy], [t])
    close(dx, np.array([0, 0, 0.6, 0.8, 0, 0]).reshape(x.shape))
    close(pushed, np.array([0, 1.4, 0]).reshape(y.shape))


def test_a_norm_beyond_the_accumulator_propagates_nothing(device: mx.Device) -> None:
    x = mx.full((1, 2, 2, 4), 3e38)
    y, state = mf.l2_pool_fwd(x, 2)
    assert np.isinf(exact(y)).all() and not exact(mf.l2_pool_grad(mx.ones_like(y), x, state)).any()


def test_half_precision_has_a_hessian(on_cpu: mx.Device) -> None:
    """The second derivative in float16 is that in float64 of the same values."""
    x = numbers((1, 4, 4, 2), mx.float16)

    def curvature(x: mx.array) -> mx.array:
        return mx.grad(lambda x: (mx.grad(lambda x: (mf.l2_pool(x, 2) ** 3).sum())(x) ** 2).sum())(x)

    expected = exact(curvature(x.astype(mx.float64)))
    few = 4 * TOLERANCE[mx.float16]  # a rounding for each cotangent and gradient of two derivatives in a row
    np.testing.assert_allclose(exact(curvature(x)), expected, rtol=few, atol=few * abs(expected).max())


# States -------------------------------------------------------------------------------------------------


def test_a_state_is_taken_apart_and_put_together(device: mx.Device) -> None:
    x = numbers((2, 6, 5, 3))
    y, state = mf.l2_pool_fwd(x, 2)
    assert state.op == "l2_pool" and state.arrays == (state.norms,)
    assert mf.l2_pool_grad(y[:1], x[:1], state.with_arrays([state.norms[:1]])).shape == (1, 6, 5, 3)
    with pytest.raises(ValueError, match="^L2PoolState: wrong number of arrays; got 0 "):
        state.with_arrays([])


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("dy does not belong to x and this state", lambda dy, x, s: mf.l2_pool_grad(dy[:1], x, s)),
        ("dy does not belong to x and this state", lambda dy, x, s: mf.l2_pool_grad(dy, x[:1], s)),
        ("x does not belong to this state", lambda dy, x, s: mf.l2_pool_grad(dy, x[:, 1:], s)),
        ("the state does not belong to x", lambda dy, x, s: mf.l2_pool_grad(dy, x, s._replace(norms=s.norms[:1]))),
        ("the state does not belong to x", lambda dy, x, s: mf.l2_pool_grad(dy, x, _narrow(s))),
        ("dy and x differ in dtype", lambda dy, x, s: mf.l2_pool_grad(dy.astype(mx.float16), x, s)),
        ("the state holds no array", lambda dy, x, s: mf.l2_pool_grad(dy, x, s._replace(norms=None))),
        ("not a state of this operation", lambda dy, x, s: mf.l2_pool_grad(dy, x, s[0])),
        ("kernel_offset has no meaning here", lambda dy, x, s: mf.l2_pool_grad(dy, x, s, kernel_offset=(0, 0))),
    ],
)
@pytest.mark.needs_cpu_module
def test_bad_input(words: str, call: Any) -> None:
    with mx.stream(mx.cpu):
        x = numbers((2, 6, 5, 3))
        dy, state = mf.l2_pool_fwd(x, 2)
        with pytest.raises((TypeError, ValueError), match=f"^l2_pool_grad: {words}; got "):
            call(dy, x, state)


def _narrow(state: mf.L2PoolState) -> mf.L2PoolState:
    return state._replace(norms=state.norms.astype(mx.float16))


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("unknown edge_mode", {"edge_mode": "exclude"}),
        ("exclude_edges is for averages", {"padding": mf.PaddingPolicy(exclude_edges=True)}),
        ("offset needs out_size", {"offset": 1}),
    ],
)
def test_bad_placement(words: str, how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^l2_pool: {words}; got "):
        mf.l2_pool(mx.zeros((1, 4, 4, 1)), 2, **how)


def test_an_empty_batch(device: mx.Device) -> None:
    x = mx.zeros((0, 6, 5, 3))
    y, state = mf.l2_pool_fwd(x, 2)
    assert y.shape == (0, 3, 2, 3) and mf.l2_pool_grad(y, x, state).shape == (0, 6, 5, 3)


@pytest.mark.parametrize("shape", ((3, 17, 19, 24), (2, 300, 40, 3)))
def test_same_bits_every_time_and_with_any_threads(on_cpu: mx.Device, threads: Any, shape: tuple[int, ...]) -> None:
    x = numbers(shape)

    def everything() -> list[mx.array]:
        y, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1)
        return [y, mf.l2_pool_grad(y, x, state)]

    same_bits_for_threads(threads, everything)
