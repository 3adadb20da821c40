"""Activations: values by hand, what is true at kinks and far out, and the definition in every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, close, exact, numbers, same_bits
from support.oracle import activation as oracle

import mpsfunc as mf

INF, NAN = math.inf, math.nan
Parameters = dict[str, float]
# Parameters that are nobody's default, and values for x: a center and a spread.
TYPES: dict[str, tuple[str, Parameters, float, float]] = {
    "none": ("none", {}, 0, 2),
    "relu": ("relu", {}, 0, 2),
    "relu leaking": ("relu", {"a": 0.25}, 0, 2),
    "relu turned": ("relu", {"a": -0.25}, 0, 2),
    "linear": ("linear", {"a": -1.5, "b": 0.25}, 0, 2),
    "sigmoid": ("sigmoid", {}, 0, 3),
    "hard_sigmoid": ("hard_sigmoid", {"a": 0.25, "b": 0.625}, 0, 3),
    "hard_sigmoid by default": ("hard_sigmoid", {}, 0, 3),
    "hard_sigmoid falling": ("hard_sigmoid", {"a": -0.25}, 0, 3),
    "tanh": ("tanh", {"a": 1.5, "b": 0.75}, 0, 2),
    "tanh by default": ("tanh", {}, 0, 2),
    "absolute": ("absolute", {}, 0, 2),
    "softplus": ("softplus", {"a": 0.5, "b": -1.5}, 0, 3),
    "softplus by default": ("softplus", {}, 0, 3),
    "softsign": ("softsign", {}, 0, 3),
    "elu": ("elu", {"a": 0.5}, 0, 2),
    "elu by default": ("elu", {}, 0, 2),
    "relun": ("relun", {"a": 0.5, "b": 1.5}, 0, 2),
    "relun by default": ("relun", {}, 3, 4),
    "power": ("power", {"a": 0.5, "b": 3.5, "c": 1.75}, 0, 1),
    "power of 3": ("power", {"a": -0.5, "b": 0.25, "c": 3}, 0, 2),
    "power by default": ("power", {}, 0, 2),
    "reciprocal": ("power", {"b": 6, "c": -1}, 0, 1),
    "exponential": ("exponential", {"a": 0.5, "b": -0.25}, 0, 2),
    "exponential to base 2": ("exponential", {"a": -0.5, "c": 2}, 0, 2),
    "exponential to base 0.3": ("exponential", {"c": 0.3}, 0, 1),
    "logarithm": ("logarithm", {"a": 0.5, "b": 4}, 0, 1),
    "logarithm to base 10": ("logarithm", {"b": 6, "c": 10}, 0, 1),
    "logarithm to base 0.5": ("logarithm", {"b": 6, "c": 0.5}, 0, 1),
    "gelu": ("gelu", {}, 0, 2),
    "silu": ("silu", {"a": 1.5}, 0, 3),
    "silu by default": ("silu", {}, 0, 3),
    "hard_swish": ("hard_swish", {}, 0, 3),
    "mish": ("mish", {}, 0, 3),
    "gelu_tanh": ("gelu_tanh", {}, 0, 2),
    "gelu_fast": ("gelu_fast", {}, 0, 2),
    "celu": ("celu", {"a": 0.75}, 0, 2),
    "selu": ("selu", {}, 0, 2),
    "hard_tanh": ("hard_tanh", {"a": -1.5, "b": 1.25}, 0, 2),
    "hard_shrink": ("hard_shrink", {"a": 0.75}, 0, 2),
    "soft_shrink": ("soft_shrink", {"a": 0.75}, 0, 2),
    "relu2": ("relu2", {}, 0, 2),
    "relu6": ("relu6", {}, 3, 4),
    "log_sigmoid": ("log_sigmoid", {}, 0, 3),
    "step": ("step", {"a": 0.25}, 0, 2),
}
each = pytest.mark.parametrize("name", TYPES)
SHAPES = [(2, 3, 5, 7), (33,), (2, 8, 4), (1, 1, 1, 1), ()]


def values(name: str, shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 0) -> mx.array:
    _, _, center, spread = TYPES[name]
    wide = mx.float64 if dtype == mx.float64 else mx.float32  # a GPU has no float64
    x = (numbers(shape, wide, seed) * spread + center).astype(dtype)
    # Whether a hard sigmoid of 2.5 is at its end depends on how 0.2 is rounded.
    return mx.where(mx.abs(x) == 2.5, mx.array(2.25, dtype), x)


def conditioned(x: np.ndarray, name: str) -> np.ndarray:
    """What a result's rounding errors are relative to: its size, and what those of a * x + b do to it."""
    type, told, *_ = TYPES[name]
    a, b = abs(told.get("a", 1)), abs(told.get("b", 0))
    f = oracle.slope(x, type, **told)
    return np.abs(oracle.neuron(x, type, **told)) + np.abs(f) * (np.abs(x) + b / max(a, 1e-3))


# The definition -------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_value_and_its_derivative_are_the_definition(
    device: mx.Device, dtype: mx.Dtype, name: str, shape: tuple[int, ...]
) -> None:
    check(name, values(name, shape, dtype), VIEWS["contiguous"])


def check(name: str, x: mx.array, turn: Callable[[mx.array], mx.array]) -> None:
    type, told, *_ = TYPES[name]
    dy = numbers(tuple(x.shape), x.dtype, 1)
    y, dx = mf.neuron(turn(x), type, **told), mf.neuron_grad(turn(dy), turn(x), type, **told)
    assert y.dtype == dx.dtype == x.dtype
    close(y, oracle.neuron(exact(x), type, **told), conditioned(exact(x), name), slack=3)
    slope, bent = (getattr(oracle, what)(exact(x), type, **told) for what in ("slope", "curvature"))
    scale = np.abs(exact(dy)) * (np.abs(slope) + np.abs(bent) * (np.abs(exact(x)) + 1) + 1e-3)
    close(dx, exact(dy) * slope, scale, slack=4)


@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    name=st.sampled_from(sorted(TYPES)),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    seed=st.integers(0, 9),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(shape: list[int], name: str, dtype: mx.Dtype, view: str, seed: int) -> None:
    with mx.stream(mx.cpu):
        check(name, values(name, tuple(shape), dtype, seed), VIEWS[view] if shape else VIEWS["contiguous"])


@each
def test_a_second_derivative_is_the_definition(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    type, told, *_ = TYPES[name]
    x, dy, u = values(name, (3, 5, 7), dtype), numbers((3, 5, 7), dtype, 1), numbers((3, 5, 7), dtype, 2)
    _, (ddy, dx) = mx.vjp(lambda dy, x: mf.neuron_grad(dy, x, type, **told), [dy, x], [u])
    assert same_bits(ddy, mf.neuron_grad(u, x, type, **told))
    bent, product = oracle.curvature(exact(x), type, **told), exact(u) * exact(dy)
    close(dx, product * bent, np.abs(product) * (np.abs(bent) + 1) * (np.abs(exact(x)) + 1), slack=8)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 8), (3,), (0, 4), (5, 1, 2, 3, 6)], ids=str)
def test_prelu_is_the_definition(device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    x, dy, slopes = numbers(shape, dtype), numbers(shape, dtype, 1), numbers(shape[-1:], mx.float32, 2)
    close(mf.prelu(x, slopes), oracle.neuron(exact(x), "prelu", a=exact(slopes)), 0)
    dx, dslopes = mf.prelu_grad(dy, x, slopes)
    close(dx, exact(dy) * oracle.slope(exact(x), "prelu", a=exact(slopes)), 0)
    close(dslopes, oracle.slopes_grad(exact(dy), exact(x)), -oracle.slopes_grad(np.abs(exact(dy)), -np.abs(exact(x))))
    assert same_bits(mf.neuron(x, "prelu", slopes), mf.prelu(x, slopes))
    assert same_bits(mf.neuron_grad(dy, x, "prelu", slopes), dx)


def test_sums_over_slopes_of_half_images_are_exact(device: mx.Device) -> None:
    """4096 products, whose sum float16 could not hold and which would stall halfway if it were added up in it."""
    x, dy = mx.full((4096, 3), -8.0, mx.float16), mx.full((4096, 3), 4.0, mx.float16)
    slopes = mx.zeros(3, mx.float16)
    assert mf.prelu_grad(dy, x, slopes)[1].tolist() == [-131072.0] * 3
    assert mf.prelu_grad(dy, x, slopes)[1].dtype == mx.float32


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("channels", [1, 4, 7, 8, 24])
def test_views(device: mx.Device, dtype: mx.Dtype, view: str, channels: int) -> None:
    shape, turn = (2, 3, 5, channels), VIEWS[view]
    x, dy, slopes = numbers(shape, dtype), numbers(shape, dtype, 1), numbers((channels,), mx.float32, 2)
    assert same_bits(mf.gelu(turn(x)), mf.gelu(x))
    assert same_bits(mf.neuron_grad(turn(dy), turn(x), "elu"), mf.neuron_grad(dy, x, "elu"))
    assert same_bits(mf.prelu(turn(x), turn(slopes)), mf.prelu(x, slopes))
    for a, b in zip(mf.prelu_grad(turn(dy), turn(x), slopes), mf.prelu_grad(dy, x, slopes), strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_nothing_gives_nothing(device: mx.Device, shape: tuple[int, ...]) -> None:
    x = mx.zeros(shape)
    assert mf.gelu(x).shape == shape and mf.neuron_grad(x, x, "tanh").shape == shape
    dx, dslopes = mf.prelu_grad(x, x, mx.ones(shape[-1]))
    assert dx.shape == shape and dslopes.tolist() == [0.0] * shape[-1]


# By hand --------------------------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[Callable[[mx.array], mx.array], list[float], list[float]]] = {
    "relu": (mf.relu, [-2, 0, 3], [0, 0, 3]),
    "relu with a slope": (lambda x: mf.relu(x, 0.5), [-2, 0, 3], [-1, 0, 3]),
    "linear": (lambda x: mf.linear(x, 2, 1), [-2, 0, 3], [-3, 1, 7]),
    "linear by default": (mf.linear, [-2, 0, 3], [-2, 0, 3]),
    "sigmoid": (mf.sigmoid, [-math.log(3), 0, math.log(3)], [0.25, 0.5, 0.75]),
    "hard_sigmoid": (mf.hard_sigmoid, [-3, -1, 0, 2, 3], [0, 0.3, 0.5, 0.9, 1]),
    "tanh, a outside and b inside": (lambda x: mf.tanh(x, 3, 0.5), [-2 * math.atanh(0.5), 0, 80], [-1.5, 0, 3]),
    "absolute": (mf.absolute, [-2, -0.0, 3], [2, 0, 3]),
    "softplus": (lambda x: mf.softplus(x, 2, 0.5), [0, 2 * math.log(3)], [2 * math.log(2), 2 * math.log(4)]),
    "softsign": (mf.softsign, [-1, 0, 3], [-0.5, 0, 0.75]),
    "elu is a * (e^x - 1), not a * e^x - 1": (lambda x: mf.elu(x, 2), [-math.log(4), 0, 3], [-1.5, 0, 3]),
    "relun": (lambda x: mf.relun(x, 0.5, 2), [-2, 0, 1, 2, 3], [-1, 0, 1, 2, 2]),
    "relun by default": (mf.relun, [-2, 5, 7], [-2, 5, 6]),
    "relu6": (lambda x: mf.relun(x, 0.0, 6.0), [-2, 5, 7], [0, 5, 6]),
    "power": (lambda x: mf.power(x, 2, 1, 3), [-2, 0, 1], [-27, 1, 27]),
    "power by default": (mf.power, [-2, 0, 1], [-2, 0, 1]),
    "exponential": (lambda x: mf.exponential(x, 2, 1, 2), [-1, 0, 1], [0.5, 2, 8]),
    "exponential by default": (mf.exponential, [0, math.log(5)], [1, 5]),
    "logarithm": (lambda x: mf.logarithm(x, 2, 1, 3), [0, 1, 4], [0, 1, 2]),
    "logarithm by default": (mf.logarithm, [1, math.e**2], [0, 2]),
    "gelu": (mf.gelu, [-1, 0, 1, 2], [-0.15865525, 0, 0.84134475, 1.95449974]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_values_by_hand(device: mx.Device, name: str) -> None:
    function, x, y = BY_HAND[name]
    np.testing.assert_allclose(exact(function(mx.array(x, mx.float32))), y, rtol=1e-6, atol=1e-6)


def slopes(x: list[float], type: str, *parameters: float) -> list[float]:
    at = mx.array(x, mx.float32)
    explicit = mf.neuron_grad(mx.ones_like(at), at, type, *parameters)
    pulled = mx.grad(lambda x: mf.neuron(x, type, *parameters).sum())(at)
    assert same_bits(explicit, pulled)
    return explicit.tolist()  # type: ignore[no-any-return]


def test_slopes_at_kinks(device: mx.Device) -> None:
    assert slopes([-1, -0.0, 0, 1], "relu", 0.25) == [0.25, 1, 1, 1]
    assert slopes([-1, -0.0, 0, 1], "relu") == [0, 1, 1, 1]
    assert slopes([-1, -0.0, 0, 1], "absolute") == [-1, 0, 0, 1]
    assert slopes([-0.0, 0, 1], "elu", 0.5) == [1, 1, 1]
    assert slopes([0], "softsign") == [1]
    assert slopes([-1, 0, 1, 2, 3], "relun", 0.25, 2) == [0.25, 1, 1, 0, 0]
    x, dy = mx.array([[-1.0], [0.0], [1.0]]), mx.ones((3, 1))
    dx, dslopes = mf.prelu_grad(dy, x, mx.array([0.25]))
    assert dx.reshape(-1).tolist() == [0.25, 1, 1] and dslopes.item() == -1


def test_the_slope_of_relun_is_0_from_b_on_where_a_header_prints_b(device: mx.Device) -> None:
    assert slopes([5.5, 6, 7], "relun") == [1, 0, 0]


def test_the_slope_of_hard_sigmoid_depends_on_a_x_plus_b_where_a_header_prints_x(device: mx.Device) -> None:
    """At x = -1 and 2 that header has a slope of 0, for x is not within 0 to 1; at 0.5 both have it."""
    assert slopes([-3, -2, -1, 0, 0.5, 2, 3], "hard_sigmoid", 0.25, 0.5) == [0, 0.25, 0.25, 0.25, 0.25, 0.25, 0]
    assert slopes([-2, 2], "hard_sigmoid", -0.25, 0.5) == [-0.25, -0.25]


def test_a_clamp_that_cuts_below_zero_has_the_slope_of_its_value(device: mx.Device) -> None:
    assert slopes([-2, -1, -0.5, 0, 1], "relun", 1, -1) == [1, 0, 0, 0, 0]
    assert slopes([-2, -0.5, 0, 0.5, 2], "relun", -1, 1) == [0, -1, 1, 1, 0]


def test_a_whole_power_has_all_its_derivatives_at_a_base_of_0(device: mx.Device) -> None:
    def derivatives(c: float) -> list[float]:
        made, f = [], lambda x: mf.power(x, 2, 0, c)
        for _ in range(4):
            made.append(f(mx.array(0.0)).item())
            f = mx.grad(f)
        return made  # type: ignore[return-value]

    assert derivatives(0) == [1, 0, 0, 0]
    assert derivatives(1) == [0, 2, 0, 0]
    assert derivatives(2) == [0, 0, 8, 0]
    assert derivatives(3) == [0, 0, 0, 48]


# Far out --------------------------------------------------------------------------------------------------

FAR: dict[str, tuple[tuple[Any, ...], list[float], list[float]]] = {
    # type and parameters; values at -60000, -90, 90, 60000; slopes there
    "sigmoid": (("sigmoid",), [0, 0, 1, 1], [0, 0, 0, 0]),
    "tanh": (("tanh", 2.0, 0.5), [-2, -2, 2, 2], [0, 0, 0, 0]),
    "softplus": (("softplus",), [0, 0, 90, 60000], [0, 0, 1, 1]),
    "softplus downwards": (("softplus", 1.0, -1.0), [60000, 90, 0, 0], [-1, -1, 0, 0]),
    "elu": (("elu", 0.5), [-0.5, -0.5, 90, 60000], [0, 0, 1, 1]),
    "gelu": (("gelu",), [0, 0, 90, 60000], [0, 0, 1, 1]),
    "softsign": (
        ("softsign",),
        [-60000 / 60001, -90 / 91, 90 / 91, 60000 / 60001],
        [60001**-2, 91**-2, 91**-2, 60001**-2],
    ),
    "hard_sigmoid": (("hard_sigmoid",), [0, 0, 1, 1], [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", FAR)
def test_nothing_overflows_far_out(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    how, y, slope = FAR[name]
    x = mx.array([-60000.0, -90.0, 90.0, 60000.0]).astype(dtype)
    at = exact(x)
    expected = np.where(np.abs(y) >= 90, np.abs(at), y)  # bfloat16 has no 60000
    close(mf.neuron(x, *how), expected, 0.01)
    dx = mf.neuron_grad(mx.ones_like(x), x, *how)
    close(dx, slope, 0.01)
    bent = mx.grad(lambda x: mf.neuron_grad(mx.ones_like(x), x, *how).sum())(x)
    np.testing.assert_allclose(exact(bent), 0, atol=1e-5)


@pytest.mark.parametrize("type", ["sigmoid", "softplus", "elu", "tanh", "gelu"])
def test_small_values_keep_their_digits(device: mx.Device, type: str) -> None:
    """Where ``e^x - 1`` or ``1 - tanh^2`` by their letters would lose all of them."""
    x = mx.array([-1e-6, -3e-5, 2e-7, 1e-4])
    close(mf.neuron(x, type), oracle.neuron(exact(x), type), 0, slack=2)
    low = mx.array([-5.0, -12.0, -20.0])
    if type in ("sigmoid", "softplus"):
        close(mf.neuron(low, type), oracle.neuron(exact(low), type), 0, slack=3)
        close(mf.neuron_grad(mx.ones(3), low, type), oracle.slope(exact(low), type), 0, slack=3)


INFINITE: dict[str, tuple[float, float]] = {
    "relu": (0, INF), "linear": (-INF, INF), "sigmoid": (0, 1), "hard_sigmoid": (0, 1), "tanh": (-1, 1),
    "absolute": (INF, INF), "softplus": (0, INF), "softsign": (-1, 1), "elu": (-1, INF), "relun": (-INF, 6),
    "exponential": (0, INF), "gelu": (0, INF),
}  # fmt: skip


@pytest.mark.parametrize("type", INFINITE)
def test_infinities(device: mx.Device, dtype: mx.Dtype, type: str) -> None:
    assert mf.neuron(mx.array([-INF, INF]).astype(dtype), type).tolist() == list(INFINITE[type])


# Where a parameter is 0, or a base 1: the formula is 0 times infinity, but for a slope of 0 below zero.
DEGENERATE: dict[str, tuple[str, Parameters, list[float]]] = {
    "linear": ("linear", {"a": 0}, [NAN, NAN]),
    "hard_sigmoid": ("hard_sigmoid", {"a": 0}, [NAN, NAN]),
    "power": ("power", {"a": 0, "b": 1, "c": 2}, [NAN, NAN]),
    "power of 0": ("power", {"c": 0}, [1, 1]),
    "exponential": ("exponential", {"a": 0}, [NAN, NAN]),
    "exponential of 1": ("exponential", {"c": 1}, [NAN, NAN]),
    "logarithm": ("logarithm", {"a": 0, "b": 1}, [NAN, NAN]),
    "tanh inside": ("tanh", {"b": 0}, [NAN, NAN]),
    "tanh": ("tanh", {"a": 0}, [0, 0]),
    "softplus inside": ("softplus", {"b": 0}, [NAN, NAN]),
    "softplus": ("softplus", {"a": 0}, [0, NAN]),
    "elu": ("elu", {"a": 0}, [0, INF]),
    "relu": ("relu", {"a": 0}, [0, INF]),
    "relun": ("relun", {"a": 0, "b": 6}, [0, 6]),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_infinities_times_0(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    type, told, right = DEGENERATE[name]
    np.testing.assert_array_equal(exact(mf.neuron(mx.array([-INF, INF]).astype(dtype), type, **told)), right)


def test_infinity_above_0_adds_nothing_to_the_gradient_of_a_slope(device: mx.Device) -> None:
    slopes, ones, x = mx.array([0.5]), mx.ones((2, 1)), mx.array([[INF], [-2.0]])
    assert mf.prelu_grad(ones, x, slopes)[1].tolist() == [-2]
    assert mx.grad(lambda s: mf.prelu(x, s).sum())(slopes).tolist() == [-2]
    assert mf.prelu_grad(mx.array([[INF], [1.0]]), mx.array([[3.0], [-2.0]]), slopes)[1].tolist() == [-2]
    pulled = mx.grad(lambda s: mf.prelu_grad(mx.array([[INF], [3.0]]), x, s)[0][1].sum())
    assert pulled(slopes).tolist() == [3]


def test_the_third_derivative_of_gelu_far_out_is_0(device: mx.Device) -> None:
    x = mx.array([-INF, -1e30, -2e19, -50.0, 0.0, 50.0, 2e19, 1e30, INF])

    def third(v: mx.array) -> mx.array:
        return mx.grad(lambda u: mx.grad(lambda w: mx.grad(lambda z: mf.gelu(z).sum())(w).sum())(u).sum())(v)

    assert third(x).tolist() == [0] * 9
    close(third(mx.array([1.0])), np.array([-3 * math.exp(-0.5) / math.sqrt(2 * math.pi)]), 1)


def test_a_base_near_1_keeps_its_digits(device: mx.Device) -> None:
    x = mx.array([0.5, 2.0, 30.0])
    close(mf.logarithm(x, c=1.0001), oracle.neuron(exact(x), "logarithm", c=1.0001), 0, slack=3)
    close(mf.exponential(x, 512, c=1.0001), oracle.neuron(exact(x), "exponential", a=512, c=1.0001), 0, slack=8)


@each
def test_nan_passes(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    type, told, *_ = TYPES[name]
    x = mx.array([NAN] * 9).astype(dtype)
    assert np.isnan(exact(mf.neuron(x, type, **told))).all()
    if oracle.slope(np.array([1.0]), type, **told).any():
        assert np.isnan(exact(mf.neuron_grad(x, mx.ones_like(x), type, **told))).all()
    if oracle.curvature(np.array([1.0]), type, **told).any():
        assert np.isnan(exact(mf.neuron_grad(mx.ones_like(x), x, type, **told))).all()


def test_nan_passes_a_prelu(device: mx.Device) -> None:
    x = mx.array([[NAN, 1.0], [-1.0, NAN]])
    assert np.isnan(exact(mf.prelu(x, mx.ones(2)))).tolist() == [[True, False], [False, True]]
    assert np.isnan(exact(mf.prelu(-mx.ones((1, 2)), mx.array([NAN, 1.0])))).tolist() == [[True, False]]


def test_powers_and_logarithms_where_they_are_not_defined(device: mx.Device) -> None:
    x = mx.array([-4.0, 0.0, 4.0])
    assert np.isnan(exact(mf.power(x, c=0.5))[0]) and exact(mf.power(x, c=0.5))[1:].tolist() == [0, 2]
    assert exact(mf.power(x, c=-2.0)).tolist() == [0.0625, INF, 0.0625]
    assert np.isnan(exact(mf.logarithm(x, c=2.0))[0]) and exact(mf.logarithm(x, c=2.0))[1:].tolist() == [-INF, 2]


# Transforms of what the matrix has not ------------------------------------------------------------------


def test_none_is_the_array_itself(device: mx.Device) -> None:
    x, dy = numbers((2, 3)), numbers((2, 3), seed=1)
    assert same_bits(mf.neuron(x, "none"), x) and same_bits(mf.neuron_grad(dy, x, "none"), dy)
    assert same_bits(mx.grad(lambda x: (dy * mf.neuron(x, "none")).sum())(x), dy)


@pytest.mark.parametrize("name", ["relu", "linear", "hard_sigmoid", "relun", "elu"])
def test_gradients_that_take_nan_for_a_large_number(device: mx.Device, name: str) -> None:
    x, dy = mx.array([NAN]), mx.array([3.0])
    above = mx.array([0.5])
    assert mf.neuron_grad(dy, x, name).item() == mf.neuron_grad(dy, above, name).item()
