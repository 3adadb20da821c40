"""Softmax and its logarithm along every axis, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, TOLERANCE, VIEWS, accumulator, close, exact, numbers, same_bits, same_bits_for_threads
from support.oracle import losses as oracle

import mpsfunc as mf


class Kind(NamedTuple):
    forward: Callable[..., mx.array]
    backward: Callable[..., mx.array]
    define: Callable[..., np.ndarray]


KINDS = {
    "softmax": Kind(mf.softmax, mf.softmax_grad, oracle.softmax),
    "log_softmax": Kind(mf.log_softmax, mf.log_softmax_grad, oracle.log_softmax),
}
each = pytest.mark.parametrize("name", KINDS)


def defined_grad(name: str, dy: np.ndarray, y: np.ndarray, axis: int, dtype: mx.Dtype) -> np.ndarray:
    if name == "log_softmax":
        return oracle.log_softmax_grad(dy, y, axis)
    return oracle.softmax_grad(dy, y, axis, rounded=dtype != accumulator(dtype))


def check(name: str, x: mx.array, axis: int, *, view: str = "contiguous") -> None:
    """Both directions against the definition; the gradient from the y that came out."""
    kind, seen = KINDS[name], VIEWS[view]
    y = kind.forward(seen(x), axis)
    dy = numbers(tuple(x.shape), x.dtype, 1)
    dx = kind.backward(seen(dy), seen(y), axis)
    assert y.dtype == dx.dtype == x.dtype
    expected = kind.define(exact(x), axis)
    values = exact(x)
    far = abs(values - values.max(axis, keepdims=True))  # what is subtracted rounds, and so does what is tiny
    close(y, expected, (1 + far) * (1e-30 + expected if name == "softmax" else 1) + abs(expected), slack=4)
    pulled, came = exact(dy), exact(y)
    terms = came if name == "softmax" else 1
    size = abs(pulled) + abs(terms * pulled).sum(axis, keepdims=True)
    close(dx, defined_grad(name, pulled, came, axis, x.dtype), size, slack=4)


# Worked numbers -------------------------------------------------------------------------------------------


def digits(actual: mx.array, expected: list[float]) -> None:
    np.testing.assert_allclose(exact(actual).ravel(), expected, rtol=2e-6, atol=2e-7)


def test_worked_example(device: mx.Device) -> None:
    x, dy = mx.log(mx.array([1.0, 2, 5])).reshape(1, 1, 1, 3), mx.array([1.0, 0, 2]).reshape(1, 1, 1, 3)
    y = mf.softmax(x)
    digits(y, [0.125, 0.25, 0.625])
    digits(mf.softmax_grad(dy, y), [-0.046875, -0.34375, 0.390625])
    y = mf.log_softmax(x)
    digits(y, [-2.07944154, -1.38629436, -0.47000363])
    digits(mf.log_softmax_grad(dy, y), [0.625, -0.75, 0.125])


def test_one_channel(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = numbers((2, 3, 4, 1), dtype) * 9, numbers((2, 3, 4, 1), dtype, 1)
    assert mx.array_equal(mf.softmax(x), mx.ones_like(x))
    assert mx.array_equal(mf.softmax_grad(dy, mf.softmax(x)), mx.zeros_like(x))
    assert mx.array_equal(mf.log_softmax(x), mx.zeros_like(x))
    assert mx.array_equal(mf.log_softmax_grad(dy, mf.log_softmax(x)), mx.zeros_like(x))


# The definition -------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("channels", [*range(1, 18), 31, 32, 33, 48, 64, 65, 100, 128, 257, 1000])
def test_definition_for_every_width(device: mx.Device, dtype: mx.Dtype, name: str, channels: int) -> None:
    check(name, numbers((3, 5, channels), dtype) * 3, -1)


@each
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -2])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (9, 8, 1, 16), (1, 33, 40, 3), (17, 2, 6, 64), (40, 70, 1, 1)])
def test_definition_for_every_axis(
    device: mx.Device, dtype: mx.Dtype, name: str, axis: int, shape: tuple[int, ...]
) -> None:
    check(name, numbers(shape, dtype) * 3, axis)


@each
@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 1, 2, 3, 1, 2), (2,) * 9])
def test_any_rank(device: mx.Device, name: str, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        check(name, numbers(shape), axis)


@each
@pytest.mark.parametrize("shape", [(2, 5000), (1, 100_003), (3, 4999, 6), (1, 40_000, 3)])
def test_definition_for_long_lines(device: mx.Device, dtype: mx.Dtype, name: str, shape: tuple[int, ...]) -> None:
    kind = KINDS[name]
    x = numbers(shape, dtype)
    y = kind.forward(x, 1)
    expected = kind.define(exact(x), 1)
    close(y, expected, abs(expected) + (abs(exact(x)) if name == "log_softmax" else 0), slack=8)
    dy, came = numbers(shape, dtype, 1), exact(y)
    by = came if name == "softmax" else np.exp(came)
    if name == "softmax":
        pulled = exact(dy) - (0 if dtype == accumulator(dtype) else (exact(dy) * came).sum(1, keepdims=True))
        right = came * (pulled - (pulled * came).sum(1, keepdims=True))
    else:
        right = exact(dy) - by * exact(dy).sum(1, keepdims=True)
    total = abs(exact(dy)).sum(1, keepdims=True) * (by if name == "log_softmax" else by.max())
    close(kind.backward(dy, y, 1), right, abs(exact(dy)) + total, slack=8)


@each
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_view(device: mx.Device, dtype: mx.Dtype, name: str, view: str) -> None:
    for shape, axis in (((2, 3, 16), -1), ((5, 6, 8), 1), ((2, 3, 5), 0)):
        check(name, numbers(shape, dtype), axis, view=view)


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), min_size=1, max_size=4),
    which=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    name=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from([0.0, 1.0, 30.0]),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(shape: list[int], which: int, dtype: mx.Dtype, view: str, name: str, size: float) -> None:
    with mx.stream(mx.cpu):
        check(name, numbers(tuple(shape), dtype) * size, which % len(shape), view=view)


@each
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3), (0, 0)])
def test_arrays_without_elements(device: mx.Device, name: str, shape: tuple[int, ...]) -> None:
    x = mx.zeros(shape)
    for axis in range(len(shape)):
        y = KINDS[name].forward(x, axis)
        assert y.shape == KINDS[name].backward(x, y, axis).shape == shape


@each
def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    kind = KINDS[name]
    for shape, axis in (((700, 64), 1), ((5, 1000), 1), ((3, 300, 70), 1)):
        x, dy = numbers(shape, dtype), numbers(shape, dtype, 1)
        made = [(y := kind.forward(x, axis), kind.backward(dy, y, axis)) for _ in range(3)]
        assert all(same_bits(a, b) for pair in made[1:] for a, b in zip(pair, made[0], strict=True))


# The ends of the range ------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("shape", [(1, 16), (1, 37), (16, 2), (1, 1300)])
def test_large_arguments(device: mx.Device, dtype: mx.Dtype, name: str, shape: tuple[int, ...]) -> None:
    """Near the largest of the dtype nothing overflows."""
    axis = 1 if shape[0] == 1 else 0
    most = 6e4 if dtype == mx.float16 else 3e38
    values = np.where(np.arange(np.prod(shape)) % 5 == 2, most, -most).reshape(shape)
    x = mx.array(values, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)
    expected = KINDS[name].define(exact(x), axis)
    y = exact(KINDS[name].forward(x, axis))
    if dtype != mx.float64:  # what a float cannot hold
        expected = np.where(expected < -3.5e38, -np.inf, expected)
        expected = np.where(expected < -65520, -np.inf, expected) if dtype == mx.float16 else expected
    np.testing.assert_allclose(y, expected, rtol=TOLERANCE[dtype] * 4)


@each
@pytest.mark.parametrize(("shape", "axis"), [((3, 16), 1), ((3, 37), 1), ((16, 3), 0), ((1100, 3), 0), ((3, 1500), 1)])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_infinity_or_nan_spoils_its_line_only(
    device: mx.Device, dtype: mx.Dtype, name: str, shape: tuple[int, ...], axis: int, bad: float
) -> None:
    values = exact(numbers(shape, dtype))
    at = (1, shape[1] - 1) if axis == 1 else (shape[0] - 1, 1)
    values[at] = bad
    x = mx.array(values, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)
    y = exact(KINDS[name].forward(x, axis))
    spoilt = np.isnan(np.moveaxis(y, axis, 1)).all(1)
    assert spoilt.tolist() == [False, True, False]
    assert np.isnan(np.moveaxis(y, axis, 1)).any(1).tolist() == [False, True, False]


@each
def test_minus_infinity_has_no_share(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    values = exact(numbers((4, 20), dtype))
    values[:, 3:] = np.where(np.arange(17) % 2, -np.inf, values[:, 3:])
    values[2] = -np.inf
    x = mx.array(values, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)
    for view, axis in ((x, 1), (x.T, 0)):
        y = exact(KINDS[name].forward(view, axis))
        y = y if axis else y.T
        assert np.isnan(y[2]).all() and not np.isnan(y[[0, 1, 3]]).any()
        assert (y[[0, 1, 3]][:, 4::2] == (0 if name == "softmax" else -np.inf)).all()
        expected = KINDS[name].define(values)[[0, 1, 3], :3]
        np.testing.assert_allclose(y[[0, 1, 3], :3], expected, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


def test_a_small_probability_keeps_its_logarithm(device: mx.Device) -> None:
    """The softmax of -200 is 0 in float32, its logarithm is not."""
    np.testing.assert_allclose(exact(mf.log_softmax(mx.array([0.0, -200.0])))[1], -200, rtol=1e-7)


# Derivatives ----------------------------------------------------------------------------------------------


@each
def test_the_derivative_is_the_gradient(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    """One kernel is behind mx.vjp, mx.jvp and the explicit function of softmax, for every dtype."""
    kind = KINDS[name]
    for shape, axis in (((3, 4, 24), -1), ((3, 10, 8), 1)):
        x, dy = numbers(shape, dtype), numbers(shape, dtype, 1)
        (y,), (dx,) = mx.vjp(lambda x, axis=axis: kind.forward(x, axis), [x], [dy])
        assert same_bits(dx, kind.backward(dy, y, axis))
        if name == "softmax":
            assert same_bits(mx.jvp(lambda x, axis=axis: kind.forward(x, axis), [x], [dy])[1][0], dx)


@each
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_derivatives_of_nothing(device: mx.Device, dtype: mx.Dtype, name: str, shape: tuple[int, int]) -> None:
    x = mx.zeros(shape, dtype)
    for made in (mx.vjp(KINDS[name].forward, [x], [x]), mx.jvp(KINDS[name].forward, [x], [x])):
        assert made[1][0].shape == shape


def test_the_derivative_where_a_cotangent_is_not_finite(device: mx.Device) -> None:
    """Infinity or NaN anywhere spoils the sum: nothing of the line is finite, and other lines do not know of it."""
    for far in (float("inf"), float("nan")):
        for at in (0, 1):
            x = mx.array([[3.0, 1, 2], [0, 0, 1]], mx.float16)
            dy = mx.array([[far if i == at else 1.0 for i in range(3)], [0, 1, 0]], mx.float16)
            (dx,) = mx.vjp(mf.softmax, [x], [dy])[1]
            assert not np.isfinite(exact(dx)[0]).any() and np.isfinite(exact(dx)[1]).all()


def test_the_jacobian_of_softmax_is_symmetric(on_cpu: mx.Device) -> None:
    """The gradient is its own derivative by dy, and the tangent: <u, grad(v)> = <v, grad(u)>."""
    x, u, v = (numbers((2, 5, 6), mx.float64, seed) for seed in range(3))
    y = mf.softmax(x)
    there, back = ((a * mf.softmax_grad(b, y)).sum().item() for a, b in ((u, v), (v, u)))
    np.testing.assert_allclose(there, back, rtol=1e-12)
    _, (tangent,) = mx.jvp(mf.softmax, [x], [u])
    assert same_bits(tangent, mf.softmax_grad(u, y))


@each
def test_second_order_in_every_dtype(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    kind = KINDS[name]
    shape = (2, 3, 20)
    x, dy, u = (numbers(shape, dtype, seed) for seed in range(3))
    y = kind.forward(x)
    _, (_, by_y) = mx.vjp(kind.backward, [dy, y], [u])
    a, g, p = (exact(v) for v in (u, dy, y))
    if name == "softmax":
        right = a * (g - (g * p).sum(-1, keepdims=True)) - g * (a * p).sum(-1, keepdims=True)
    else:
        right = -a * np.exp(p) * g.sum(-1, keepdims=True)
    close(by_y, right, abs(a) * abs(g).sum(-1, keepdims=True) + abs(g) * abs(a).sum(-1, keepdims=True), slack=8)


def test_sums_of_long_lines_are_accurate(device: mx.Device) -> None:
    """A million equal entries: adding floats one by one would be off in the fourth digit."""
    x = mx.zeros((1, 1_000_000))
    np.testing.assert_allclose(exact(mf.softmax(x)), 1e-6, rtol=3e-7)
    np.testing.assert_allclose(exact(mf.softmax(x.T, 0)), 1e-6, rtol=3e-7)
    np.testing.assert_allclose(exact(mf.log_softmax(x)), -np.log(1e6), rtol=3e-7)


def test_float64_is_float64(on_cpu: mx.Device) -> None:
    x = numbers((4, 50), mx.float64) * 5
    assert accumulator(x.dtype) == mx.float64
    for kind in KINDS.values():
        np.testing.assert_allclose(exact(kind.forward(x)), kind.define(exact(x)), rtol=1e-14)


@each
def test_threads_do_not_change_bits(on_cpu: mx.Device, name: str, threads: Any) -> None:
    kind, x = KINDS[name], numbers((3000, 70))

    def both() -> list[mx.array]:
        y = kind.forward(x)
        return [y, kind.backward(x, y)]

    same_bits_for_threads(threads, both, (1, 2, 5))


@each
def test_every_instruction_set(on_cpu: mx.Device, isa: str, name: str) -> None:
    for dtype in DTYPES:
        for shape, axis in (((5, 64), 1), ((3, 77), 1), ((20, 37), 0), ((30, 130), 0)):
            check(name, numbers(shape, dtype), axis)
