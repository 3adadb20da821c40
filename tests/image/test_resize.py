"""Resizing by cubic curves, by areas, through filters and by factors: worked numbers, dense matrices, extremes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, close, exact, numbers, same_bits
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc.windows import sampling

# In each way a function, its arguments, and the matrix of an axis.
SYMMETRIC: dict[str, Any] = {"coordinate": "half_pixel_symmetric"}
WAYS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "bilinear": ("resize_bilinear", {}, lambda n, m, s: oracle.bilinear(n, m, "half_pixel", "clamp", s)),
    "bilinear, symmetric": (
        "resize_bilinear",
        SYMMETRIC,
        lambda n, m, s: oracle.bilinear(n, m, "half_pixel_symmetric", "clamp", s),
    ),
    "bilinear, filtered": (
        "resize_bilinear",
        {"antialias": True},
        lambda n, m, s: oracle.filtered(n, m, False, factor=s),
    ),
    "bicubic": ("resize_bicubic", {}, lambda n, m, s: oracle.bicubic(n, m, factor=s)),
    "bicubic, symmetric": (
        "resize_bicubic",
        SYMMETRIC,
        lambda n, m, s: oracle.bicubic(n, m, "half_pixel_symmetric", s),
    ),
    "bicubic, corners": (
        "resize_bicubic",
        {"align_corners": True},
        lambda n, m, s: oracle.bicubic(n, m, "align_corners", s),
    ),
    "bicubic, filtered": ("resize_bicubic", {"antialias": True}, lambda n, m, s: oracle.filtered(n, m, True, factor=s)),
    "bicubic, filtered, symmetric": (
        "resize_bicubic",
        {"antialias": True, **SYMMETRIC},
        lambda n, m, s: oracle.filtered(n, m, True, "half_pixel_symmetric", s),
    ),
    "area": ("resize_area", {}, lambda n, m, s: oracle.area(n, m)),
    "nearest": ("resize_nearest", {}, lambda n, m, s: oracle.nearest(n, m, "asymmetric", s)),
    "nearest, half-pixel": (
        "resize_nearest",
        {"coordinate": "half_pixel"},
        lambda n, m, s: oracle.nearest(n, m, "half_pixel", s),
    ),
}
each_way = pytest.mark.parametrize("way", WAYS)
SIZES = [(5, 7), (1, 1), (3, 4), (6, 8), (9, 2), (4, 13)]
FACTORS = [1.5, (0.5, 2.3), 3.7, (1.4, 0.3), (0.4, 2)]


def check(x: mx.array, way: str, **size: Any) -> None:
    """Values and gradient."""
    name, how, matrix = WAYS[way]
    y, state = getattr(mf, f"{name}_fwd")(x, **size, **how)
    scale = size.get("scale")
    factors = (None, None) if scale is None else scale if isinstance(scale, tuple) else (scale, scale)
    rows, cols = (matrix(n, m, s) for n, m, s in zip(x.shape[1:3], y.shape[1:3], factors, strict=True))
    assert y.dtype == x.dtype
    close(y, oracle.along(exact(x), rows, cols), oracle.along(abs(exact(x)), abs(rows), abs(cols)), slack=3)
    dy = numbers(tuple(y.shape), x.dtype, 1)
    sums = oracle.along(abs(exact(dy)), abs(rows).T, abs(cols).T)
    close(getattr(mf, f"{name}_grad")(dy, state), oracle.along(exact(dy), rows.T, cols.T), sums, slack=3)
    assert state == getattr(mf, f"{name}_state")(x.shape, **size, **how)


# The definition -----------------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("out_size", SIZES, ids=str)
def test_every_size(device: mx.Device, dtype: mx.Dtype, out_size: tuple[int, int], way: str) -> None:
    for channels in (3, 16):
        check(numbers((2, 3, 4, channels), dtype), way, out_size=out_size)
    check(numbers((2, 1, 1, 3), dtype), way, out_size=out_size)


@each_way
@pytest.mark.parametrize("scale", FACTORS, ids=str)
def test_every_factor(device: mx.Device, dtype: mx.Dtype, scale: Any, way: str) -> None:
    check(numbers((2, 7, 8, 5), dtype), way, scale=scale)


@each_way
def test_much_smaller_and_much_larger(device: mx.Device, dtype: mx.Dtype, way: str) -> None:
    """Lists of many entries, and of many positions that read one pixel."""
    for channels in (1, 3, 16):
        check(numbers((1, 40, 33, channels), dtype), way, out_size=(5, 3))
        check(numbers((1, 5, 3, channels), dtype), way, out_size=(40, 33))


@given(
    sizes=st.tuples(*[st.integers(1, 12)] * 4),
    way=st.sampled_from(sorted(WAYS)),
    dtype=st.sampled_from(DTYPES),
    channels=st.integers(1, 20),
    view=st.sampled_from(sorted(VIEWS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    sizes: tuple[int, int, int, int], way: str, dtype: mx.Dtype, channels: int, view: str
) -> None:
    with mx.stream(mx.cpu):
        check(VIEWS[view](numbers((2, *sizes[:2], channels), dtype)), way, out_size=sizes[2:])


@given(n=st.integers(1, 40), hundredths=st.integers(3, 700), way=st.sampled_from(sorted(WAYS)))
@pytest.mark.needs_cpu_module
def test_any_factor(n: int, hundredths: int, way: str) -> None:
    """But where PyTorch's rules say otherwise: a copy of as many pixels, and asymmetric twice as many."""
    scale = hundredths / 100
    size = math.floor(n * scale)
    if size == 0 or size == n or (way == "nearest" and size == 2 * n):
        return
    with mx.stream(mx.cpu):
        check(numbers((1, n, 4, 3), mx.float64), way, scale=(scale, 1))


# Worked numbers -----------------------------------------------------------------------------------------


def row(*values: float) -> mx.array:
    return mx.array(values, mx.float32).reshape(1, 1, -1, 1)


def test_cubic_curves_go_through_pixels_and_over_edges(device: mx.Device) -> None:
    """A quarter away from a pixel the four weights are -27, 225, 67 and -9 in 256ths."""
    y = exact(mf.resize_bicubic(row(0, 0, 0, 256, 0, 0, 0), scale=(1, 2))).reshape(-1)
    assert y.tolist() == [0, 0, 0, -9, -27, 67, 225, 225, 67, -27, -9, 0, 0, 0]


def test_a_filter_is_as_wide_as_positions_are_apart(device: mx.Device) -> None:
    """Of half the size: 1/4, 3/4, 3/4, 1/4 over 2 inside, and at the edge what is in the image."""
    y = mf.resize_bilinear(mx.eye(8).reshape(8, 1, 8, 1), (1, 4), antialias=True)
    matrix = exact(y).reshape(8, 4).T
    np.testing.assert_allclose(matrix[1], np.array([0, 1, 3, 3, 1, 0, 0, 0]) / 8, atol=1e-7)
    np.testing.assert_allclose(matrix[0], np.array([3, 3, 1, 0, 0, 0, 0, 0]) / 7, atol=1e-7)


def test_a_filter_of_a_larger_image_is_a_sharper_curve(device: mx.Device) -> None:
    """Keys' a = -1/2, of which the weights a quarter away are -9, 111, 29, -3 in 128ths; clamping is none."""
    y = exact(mf.resize_bicubic(row(0, 0, 0, 128, 0, 0, 0), (1, 14), antialias=True)).reshape(-1)
    np.testing.assert_allclose(y[3:11], [-3, -9, 29, 111, 111, 29, -9, -3], atol=2e-5)
    plain, filtered = (mf.resize_bilinear(row(1, 2, 4), (1, 7), antialias=a) for a in (False, True))
    np.testing.assert_allclose(exact(plain), exact(filtered), rtol=1e-6)


def test_mlx_s_nearest_pixels_are_those_of_its_layer(device: mx.Device) -> None:
    """Of 5 pixels that become 15 halves, and of many others; its rounding is part of it."""
    for n in (*range(1, 24), 97):
        for hundredths in (31, 60, 130, 150, 190, 250, 333, 700):
            if n * hundredths < 100:
                continue
            x, scale = mx.arange(float(n)).reshape(1, 1, n, 1), (1.0, hundredths / 100)
            right = stock.Upsample(scale)(x)
            assert mx.array_equal(mf.resize_nearest(x, scale=scale, coordinate="mlx"), right), (n, scale)
    halves = mf.resize_nearest(row(0, 1, 2, 3), (1, 6), coordinate="mlx").reshape(-1).tolist()
    assert halves == [0, 0, 1, 2, 2, 3] and mf.resize_nearest(row(0, 1, 2, 3), (1, 6), coordinate="half_pixel")[
        0, 0, :, 0
    ].tolist() == [0, 1, 1, 2, 3, 3]


def test_an_area_is_adaptive_pooling(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((2, 9, 8, 5), dtype)
    for size in ((4, 3), (1, 8), (9, 1), (13, 4)):
        ours, pooled = mf.resize_area(x, size), mf.avg_pool(x, "adaptive", out_size=size)
        close(ours, exact(pooled), exact(mf.resize_area(mx.abs(x), size)), slack=4)


@each_way
def test_the_same_size_is_a_copy(device: mx.Device, dtype: mx.Dtype, way: str) -> None:
    name, how, _ = WAYS[way]
    x = numbers((2, 3, 4, 5), dtype)
    for size in ({"out_size": (3, 4)}, {"scale": 1}, {"scale": (1.0, 1)}):
        y, state = getattr(mf, f"{name}_fwd")(x, **size, **how)
        assert same_bits(y, x) and same_bits(getattr(mf, f"{name}_grad")(x, state), x)


def test_a_factor_near_1_is_a_copy_where_it_is_in_pytorch(device: mx.Device) -> None:
    x = numbers((1, 5, 5, 3))
    for name, how, copied in (
        ("resize_bilinear", {}, True),
        ("resize_bilinear", {"antialias": True}, True),
        ("resize_bilinear", SYMMETRIC, False),
        ("resize_bicubic", {}, False),
        ("resize_bicubic", {"antialias": True}, True),
        ("resize_area", {}, True),
        ("resize_nearest", {}, True),
    ):
        assert same_bits(getattr(mf, name)(x, scale=1.1, **how), x) == copied, (name, how)
    assert mf.resize_area_state(x.shape, scale=1.1) == mf.resize_area_state(x.shape, 5)
    corners = [mf.resize_bicubic_state(x.shape, align_corners=True, **to) for to in ({"scale": 1.5}, {"out_size": 7})]
    assert corners[0] == corners[1]


@each_way
def test_a_whole_factor_is_a_size(device: mx.Device, dtype: mx.Dtype, way: str) -> None:
    name, how, _ = WAYS[way]
    x = numbers((2, 4, 6, 5), dtype)
    for scale, size in ((2, (8, 12)), ((0.5, 3), (2, 18)), ((1.5, 0.5), (6, 3))):
        state = getattr(mf, f"{name}_state")(x.shape, scale=scale, **how)
        assert state == getattr(mf, f"{name}_state")(x.shape, size, **how)
        assert same_bits(getattr(mf, name)(x, scale=scale, **how), getattr(mf, name)(x, size, **how))


# Where positions lie ------------------------------------------------------------------------------------


def axis(n_in: int, factor: float, method: str = "nearest", coordinate: str = "asymmetric") -> sampling.Resized:
    return sampling.Resized(n_in, math.floor(n_in * factor), method, coordinate, "clamp", False, factor)


@pytest.mark.parametrize("factor", [0.1, 0.3, 0.37, 0.7, 1 / 3, 1.1, 2.7, 1e-3, 10.1, 123.457])
def test_a_factor_is_the_fraction_that_was_meant(factor: float) -> None:
    """A tenth of a float is a little more than a tenth, and would put positions one pixel ahead."""
    meant = Fraction(1, 3) if factor == 1 / 3 else Fraction(str(factor))
    assert Fraction(*sampling.step(axis(10_000, factor))) == 1 / meant
    right = [int(j / meant) for j in range(math.floor(10_000 * factor))]
    assert sampling.picked(axis(10_000, factor)).tolist() == right


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "area"])
def test_long_axes_and_odd_factors_stay_inside(method: str) -> None:
    """Products of positions with fractions stay within 63 bits."""
    for n_in, factor in (
        (3, 2**20 + 0.1),
        (2**20, 2**-20 * 3.000001),
        (2**18, 1.0000001),
        (2**18, 0.99999),
        (1, math.pi),
    ):
        for coordinate in ("half_pixel", "asymmetric", "half_pixel_symmetric"):
            if method == "nearest" and coordinate == "half_pixel_symmetric":
                continue
            made = axis(n_in, factor, method, coordinate)
            found = sampling.reads(made)
            assert found.indices.min() >= 0 and found.indices.max() < n_in
            np.testing.assert_allclose(np.add.reduceat(found.weights, found.begins[:-1]), 1, rtol=1e-12)
            middles = found.indices[found.begins[:-1]]
            assert (np.diff(middles) >= 0).all()


@pytest.mark.parametrize("coordinate", ["half_pixel", "asymmetric", "half_pixel_symmetric"])
def test_places_of_millions_of_pixels_do_not_wrap(coordinate: str) -> None:
    """Whatever fraction a factor is."""
    for n_in, factor in ((2**22, 0.98765432101234), (2**10, 4096.0123456789)):
        over, under = sampling._places(axis(n_in, factor, "bilinear", coordinate))
        assert (np.diff(over) > 0).all() and under > 0
        assert n_in - 2 / min(factor, 1) <= over[-1] / under <= n_in


@each_way
def test_no_pixel_is_listed_twice(way: str) -> None:
    """Tiles of the lists would take one entry for the other."""
    name, how, _ = WAYS[way]
    for size in SIZES:
        state = getattr(mf, f"{name}_state")((1, 3, 4, 1), size, **how)
        for found in (sampling.reads(state.rows), sampling.reads(state.cols), sampling.readers(state.cols)):
            for begin, end in zip(found.begins[:-1], found.begins[1:], strict=True):
                listed = found.indices[begin:end].tolist()
                assert len(set(listed)) == len(listed)


@each_way
def test_infinity_and_nan_go_where_they_have_weight(device: mx.Device, dtype: mx.Dtype, way: str) -> None:
    name, how, matrix = WAYS[way]
    rows, cols = matrix(6, 9, None), matrix(6, 4, None)
    for value in (np.inf, np.nan):
        x = np.ones((1, 6, 6, 4))
        x[0, 2, 1, 3] = value
        y, state = getattr(mf, f"{name}_fwd")(mx.array(x, mx.float32).astype(dtype), (9, 4), **how)
        reached = oracle.along((~np.isfinite(x)).astype(float), rows != 0, cols != 0) > 0
        np.testing.assert_array_equal(~np.isfinite(exact(y)), reached)
        dy = np.ones(y.shape)
        dy[0, 3, 1, 2] = value
        dx = getattr(mf, f"{name}_grad")(mx.array(dy, mx.float32).astype(dtype), state)
        reached = oracle.along((~np.isfinite(dy)).astype(float), (rows != 0).T, (cols != 0).T) > 0
        np.testing.assert_array_equal(~np.isfinite(exact(dx)), reached)


def test_a_saved_state_has_all_of_it(tmp_path: Any, on_cpu: mx.Device) -> None:
    state = mf.resize_bilinear_state((1, 9, 7, 3), scale=0.35, antialias=True)
    mf.save(tmp_path / "state", state)
    loaded = mf.load(tmp_path / "state")
    assert loaded == state and (state.rows.factor, state.cols.antialias) == (0.35, True)
    dy = numbers((2, state.rows.n_out, state.cols.n_out, 3))
    assert same_bits(mf.resize_bilinear_grad(dy, loaded), mf.resize_bilinear_grad(dy, state))


def test_a_size_that_is_known_lets_no_other_pass(on_cpu: mx.Device) -> None:
    """What equals a size that was asked for before, and is none, is refused all the same."""
    x = numbers((1, 3, 3, 2))
    same: dict[str, Any] = {"align_corners": False, "antialias": False}
    assert mf.resize_bilinear(x, (1, 2), **same).shape == mf.resize_bilinear(x, [1, 2], **same).shape == (1, 1, 2, 2)
    assert mf.resize_bilinear(x, 1, **same).shape == mf.resize_bilinear(x, scale=1 / 3, **same).shape
    for size in (True, 1.0, (True, 2), (1.0, 2), (1, 2.0)):
        with pytest.raises(TypeError, match="out_size is not"):
            mf.resize_bilinear(x, size, **same)  # type: ignore[arg-type]  # what is refused
    for name in same:
        with pytest.raises(TypeError, match=name):
            mf.resize_bilinear(x, (1, 2), **same | {name: 0})
    assert mf.resize_nearest(x, scale=1).shape == x.shape
    with pytest.raises(TypeError, match="scale is not"):
        mf.resize_nearest(x, scale=True)


@pytest.mark.parametrize("fill", [0, 0.0, -0.0])
def test_zeros_that_pixels_are_filled_with_keep_their_sign(on_cpu: mx.Device, fill: float) -> None:
    for _ in range(2):
        y = mf.pad(mx.ones((1, 1, 1, 1)), 1, 1, value=fill)
        assert math.copysign(1, y[0, 0, 0, 0].item()) == math.copysign(1, fill)


def test_a_state_that_was_right_vouches_for_no_other(on_cpu: mx.Device) -> None:
    """Those that were found right are not looked at again."""
    state, dy = mf.resize_nearest_state((1, 4, 4, 2), 2), mx.ones((1, 2, 2, 2))
    for _ in range(2):
        assert mf.resize_nearest_grad(dy, state).shape == (1, 4, 4, 2)
        with pytest.raises(ValueError, match=r"^resize_bilinear_grad: a state of another operation; got state\.op="):
            mf.resize_bilinear_grad(dy, state)
        equal = state._replace(rows=tuple(state.rows))
        assert equal == state
        with pytest.raises(TypeError, match=r"^resize_nearest_grad: the state holds no axis; got state\.rows="):
            mf.resize_nearest_grad(dy, equal)
        with pytest.raises(ValueError, match="^resize_nearest_grad: dy does not belong to this state"):
            mf.resize_nearest_grad(mx.ones((1, 2, 3, 2)), state)
