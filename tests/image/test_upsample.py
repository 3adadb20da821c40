"""Upsampling and resizing against worked numbers and dense matrices."""

from __future__ import annotations

import functools
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import BATCHES, DTYPES, VIEWS, close, exact, numbers, same_bits
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc.core import grids
from mpsfunc.image import rules
from mpsfunc.windows import sampling

ROW = [[1.0, 2.0], [3.0, 4.0]]
MODES: dict[str, dict[str, Any]] = {
    "asymmetric zero": {"coordinate": "asymmetric", "edge_mode": "zero"},
    "asymmetric clamp": {"coordinate": "asymmetric"},
    "half-pixel zero": {"edge_mode": "zero"},
    "half-pixel clamp": {},
    "align corners": {"align_corners": True},
}
each_mode = pytest.mark.parametrize("mode", MODES)
SIZES = [(5, 7), (1, 1), (3, 4), (6, 8), (9, 2), (4, 13)]


def picture(values: Any, dtype: mx.Dtype = mx.float32) -> mx.array:
    array = np.array(values)
    return mx.array(array.reshape(1, *array.shape, -1)[..., :1] if array.ndim == 2 else array[None]).astype(dtype)


def matrix(n_in: int, n_out: int, mode: str) -> np.ndarray:
    return oracle.bilinear(n_in, n_out, *ways(mode))


def ways(mode: str) -> tuple[str, str]:
    """Coordinate and edge."""
    how = MODES[mode]
    coordinate = "align_corners" if how.get("align_corners") else how.get("coordinate", "half_pixel")
    return coordinate, how.get("edge_mode", "clamp")


def check_bilinear(x: mx.array, out_size: tuple[int, int], mode: str) -> None:
    """Values and gradient."""
    y, state = mf.resize_bilinear_fwd(x, out_size, **MODES[mode])
    rows, cols = (matrix(x.shape[1 + i], out_size[i], mode) for i in (0, 1))
    assert y.dtype == x.dtype
    close(y, *(oracle.along(v, rows, cols) for v in (exact(x), abs(exact(x)))), slack=2)
    dy = numbers(tuple(y.shape), x.dtype, 1)
    definition = [oracle.along(v, rows.T, cols.T) for v in (exact(dy), abs(exact(dy)))]
    close(mf.resize_bilinear_grad(dy, state), *definition, slack=2)


def check_nearest(x: mx.array, out_size: tuple[int, int], coordinate: str) -> None:
    """Values to the bit, and gradient."""
    y, state = mf.resize_nearest_fwd(x, out_size, coordinate=coordinate)
    rows, cols = (oracle.nearest(x.shape[1 + i], out_size[i], coordinate) for i in (0, 1))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(exact(y), oracle.along(exact(x), rows, cols))
    dy = numbers(tuple(y.shape), x.dtype, 1)
    definition = [oracle.along(v, rows.T, cols.T) for v in (exact(dy), abs(exact(dy)))]
    close(mf.resize_nearest_grad(dy, state), *definition)


# Worked numbers -----------------------------------------------------------------------------------------

T = 1 / 3
FOUR_BY_FOUR: dict[str, list[list[float]]] = {
    "align corners": [[1, 1 + T, 2 - T, 2], [2 - T, 2, 2 + T, 3 - T], [2 + T, 3 - T, 3, 3 + T], [3, 3 + T, 4 - T, 4]],
    "asymmetric zero": [[1, 1.5, 2, 1], [2, 2.5, 3, 1.5], [3, 3.5, 4, 2], [1.5, 1.75, 2, 1]],
    "asymmetric clamp": [[1, 1.5, 2, 2], [2, 2.5, 3, 3], [3, 3.5, 4, 4], [3, 3.5, 4, 4]],
    "half-pixel clamp": [[1, 1.25, 1.75, 2], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3, 3.25, 3.75, 4]],
}
# The gradients of ones and of 0 to 15.
GRADIENTS: dict[str, tuple[list[list[float]], list[list[float]]]] = {
    "align corners": ([[4, 4], [4, 4]], [[13 + T, 20], [40, 47 - T]]),
    "asymmetric zero": ([[2.25, 3], [3, 4]], [[3.75, 10], [25, 40]]),
    "asymmetric clamp": ([[2.25, 3.75], [3.75, 6.25]], [[3.75, 13.25], [34.25, 68.75]]),
    "half-pixel clamp": ([[4, 4], [4, 4]], [[12.5, 19.5], [40.5, 47.5]]),
}


@pytest.mark.parametrize("mode", FOUR_BY_FOUR)
def test_two_by_two_pixels_twice_as_large(device: mx.Device, dtype: mx.Dtype, mode: str) -> None:
    y, state = mf.upsample_bilinear_fwd(picture(ROW, dtype), 2, **MODES[mode])
    close(y[0, :, :, 0], FOUR_BY_FOUR[mode], 4)
    for dy, right in zip((np.ones((4, 4)), np.arange(16.0).reshape(4, 4)), GRADIENTS[mode], strict=True):
        close(mf.upsample_bilinear_grad(picture(dy, dtype), state)[0, :, :, 0], right, 60)


def test_what_macos_was_seen_to_make(device: mx.Device) -> None:
    """10.14 is asymmetric with zeros behind the edge, and 10.13.6 was half-pixel with zeros."""
    x = picture([[[3, 4], [6, 10]], [[9, 10], [12, 16]]])
    y = mf.upsample_bilinear(x, 2, **MODES["asymmetric zero"])
    assert y[0, 0].tolist() == [[3, 4], [4.5, 7], [6, 10], [3, 5]]
    assert y[0, 1, :3].tolist() == [[6, 7], [7.5, 10], [9, 13]]
    y = mf.upsample_bilinear(x, 2, **MODES["half-pixel zero"])
    assert y[0, 0].tolist() == [[1.6875, 2.25], [2.8125, 4.125], [3.9375, 6.375], [3.375, 5.625]]


def test_blocks_are_summed(device: mx.Device, dtype: mx.Dtype) -> None:
    """The header of MPS draws two entries of its picture wrong; its formulas are sums of whole blocks, not means."""
    state = mf.upsample_nearest_state((1, 2, 2, 1), 2)
    assert mf.upsample_nearest_grad(picture(np.arange(16.0).reshape(4, 4), dtype), state)[0, :, :, 0].tolist() == [
        [10, 18],
        [42, 50],
    ]


def test_pixels_are_repeated(device: mx.Device, dtype: mx.Dtype) -> None:
    y = mf.upsample_nearest(picture(ROW, dtype), (1, 3))
    assert y[0, :, :, 0].tolist() == [[1, 1, 1, 2, 2, 2], [3, 3, 3, 4, 4, 4]]


# The definition -----------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("out_size", SIZES, ids=str)
def test_bilinear_to_every_size(device: mx.Device, dtype: mx.Dtype, out_size: tuple[int, int], mode: str) -> None:
    for channels in (3, 16):
        check_bilinear(numbers((2, 3, 4, channels), dtype), out_size, mode)
    check_bilinear(numbers((2, 1, 1, 3), dtype), out_size, mode)


@pytest.mark.parametrize("coordinate", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("out_size", SIZES, ids=str)
def test_nearest_to_every_size(device: mx.Device, dtype: mx.Dtype, out_size: tuple[int, int], coordinate: str) -> None:
    for channels in (3, 16):
        check_nearest(numbers((2, 3, 4, channels), dtype), out_size, coordinate)


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_width_and_view(device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, view: str) -> None:
    x = numbers((batch, 4, 3, channels), dtype)
    check_bilinear(VIEWS[view](x), (8, 6), "half-pixel clamp")
    check_nearest(VIEWS[view](x), (8, 6), "asymmetric")


@pytest.mark.parametrize("scale", [1, 2, 3, (2, 4), (5, 1)], ids=str)
def test_a_scale_is_a_size(device: mx.Device, dtype: mx.Dtype, scale: Any) -> None:
    x, (sy, sx) = numbers((2, 3, 4, 5), dtype), scale if isinstance(scale, tuple) else (scale, scale)
    size = 3 * sy, 4 * sx
    assert same_bits(mf.upsample_nearest(x, scale), mf.resize_nearest(x, size))
    assert same_bits(mf.upsample_nearest(x, scale), mx.repeat(mx.repeat(x, sy, 1), sx, 2))
    for how in MODES.values():
        assert same_bits(mf.upsample_bilinear(x, scale, **how), mf.resize_bilinear(x, size, **how))
        dy = numbers((2, *size, 5), dtype, 1)
        states = mf.upsample_bilinear_state(x.shape, scale, **how), mf.resize_bilinear_state(x.shape, size, **how)
        assert same_bits(mf.upsample_bilinear_grad(dy, states[0]), mf.resize_bilinear_grad(dy, states[1]))


@each_mode
def test_scale_one_is_a_copy(device: mx.Device, dtype: mx.Dtype, mode: str) -> None:
    x = numbers((2, 3, 4, 5), dtype)
    y, state = mf.upsample_bilinear_fwd(x, 1, **MODES[mode])
    assert same_bits(y, x) and same_bits(mf.upsample_bilinear_grad(x, state), x)
    assert same_bits(mf.upsample_nearest(x, 1), x)


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32, mx.int64, mx.uint64])
def test_nearest_moves_integers(device: mx.Device, dtype: mx.Dtype) -> None:
    """Of every size, to the last bit."""
    x = (mx.random.randint(-(2**31), 2**31 - 1, (2, 3, 4, 5)).astype(mx.int64) * 2**33 + 7).astype(dtype)
    y = mf.resize_nearest(x, (5, 7))
    rows, cols = sampling.picked(_axis(3, 5)), sampling.picked(_axis(4, 7))
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.array(y), np.array(x)[:, rows][:, :, cols])


def _axis(n_in: int, n_out: int) -> sampling.Resized:
    return sampling.Resized(n_in, n_out, "nearest", "asymmetric", "clamp")


@each_mode
def test_adjoint(device: mx.Device, mode: str) -> None:
    """``<f(x), dy>`` and ``<x, f_grad(dy)>`` are one number."""
    for out_size in SIZES:
        x, dy = numbers((2, 3, 4, 5)), numbers((2, *out_size, 5), seed=1)
        for name, how in (("resize_bilinear", MODES[mode]), ("resize_nearest", {})):
            y, state = getattr(mf, f"{name}_fwd")(x, out_size, **how)
            dx = getattr(mf, f"{name}_grad")(dy, state)
            left, right = (exact(y) * exact(dy)).sum(), (exact(x) * exact(dx)).sum()
            assert abs(left - right) <= 1e-5 * (abs(exact(y) * exact(dy)).sum() + 1)


@given(
    sizes=st.tuples(*[st.integers(1, 9)] * 4),
    mode=st.sampled_from(sorted(MODES)),
    dtype=st.sampled_from(DTYPES),
    channels=st.integers(1, 20),
    view=st.sampled_from(sorted(VIEWS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    sizes: tuple[int, int, int, int], mode: str, dtype: mx.Dtype, channels: int, view: str
) -> None:
    with mx.stream(mx.cpu):
        x = VIEWS[view](numbers((2, *sizes[:2], channels), dtype))
        check_bilinear(x, sizes[2:], mode)
        check_nearest(x, sizes[2:], "half_pixel" if "half" in mode else "asymmetric")


# Where it lies ------------------------------------------------------------------------------------------


def test_a_position_is_exact_where_floats_are_not() -> None:
    """A ratio that float32 rounds down puts a position one pixel ahead, as it does in PyTorch."""
    wrong = [(a, b) for a in range(1, 60) for b in range(1, 60) if _floats(a, b) != _whole(a, b)]
    assert wrong  # or this would show nothing
    for n_in, n_out in wrong[:20]:
        assert sampling.picked(_axis(n_in, n_out)).tolist() == _whole(n_in, n_out)


def _floats(n_in: int, n_out: int) -> list[int]:
    ratio = np.float32(n_in) / np.float32(n_out)
    return [min(int(np.float32(j) * ratio), n_in - 1) for j in range(n_out)]


def _whole(n_in: int, n_out: int) -> list[int]:
    return [j * n_in // n_out for j in range(n_out)]


@each_mode
def test_the_weights_of_a_position_are_one_or_fade(mode: str) -> None:
    zero = mode.endswith("zero")
    for n_in, n_out in ((1, 1), (1, 5), (3, 7), (7, 3), (4, 8), (5, 1), (1000, 999)):
        axis = sampling.Resized(n_in, n_out, "bilinear", *ways(mode))
        begins, indices, weights = sampling.reads(axis)
        sums = np.add.reduceat(weights, begins[:-1])
        assert (weights > 0).all() and (np.diff(begins) <= 2).all() and (np.diff(begins) >= 1).all()
        assert (sums <= 1 + 1e-15).all() and (zero or (sums >= 1 - 1e-15).all())
        assert indices.min() >= 0 and indices.max() < n_in


@each_mode
def test_infinity_and_nan_go_where_they_have_weight(device: mx.Device, dtype: mx.Dtype, mode: str) -> None:
    for value in (np.inf, np.nan):
        x = np.ones((1, 4, 4, 4))
        x[0, 2, 1, 3] = value
        y, state = mf.resize_bilinear_fwd(mx.array(x, mx.float32).astype(dtype), (8, 7), **MODES[mode])
        rows, cols = matrix(4, 8, mode), matrix(4, 7, mode)
        reached = oracle.along((~np.isfinite(x)).astype(float), rows, cols) > 0
        np.testing.assert_array_equal(~np.isfinite(exact(y)), reached)
        dy = np.ones(y.shape)
        dy[0, 3, 4, 2] = value
        dx = mf.resize_bilinear_grad(mx.array(dy, mx.float32).astype(dtype), state)
        reached = oracle.along((~np.isfinite(dy)).astype(float), rows.T, cols.T) > 0
        np.testing.assert_array_equal(~np.isfinite(exact(dx)), reached)


def test_tiles_are_the_lists_of_neighbours() -> None:
    """However neighbours are put together, each reads what it read."""
    for mode in MODES:
        for n_in, n_out in ((3, 6), (6, 3), (4, 9), (1, 3), (5, 1)):
            axis = sampling.Resized(n_in, n_out, "bilinear", *ways(mode))
            for found, dense in (
                (sampling.reads(axis), matrix(n_in, n_out, mode)),
                (sampling.readers(axis), matrix(n_in, n_out, mode).T),
            ):
                for size in (1, 2, 3, 4):
                    tiles = sampling.best_tiles(found, size)
                    again = np.zeros((len(dense) + 2 * size, dense.shape[1]))
                    for t in range(len(tiles.begins) - 1):
                        for e in range(tiles.begins[t], tiles.begins[t + 1]):
                            top = t * size - tiles.ahead + size
                            again[top : top + size, tiles.indices[e]] += tiles.weights[e]
                    np.testing.assert_allclose(again[size : size + len(dense)], dense, rtol=0, atol=1e-15)
                    assert not again[:size].any() and not again[size + len(dense) :].any()


def test_tiles_of_a_gpu_are_as_large_as_the_page_says() -> None:
    def sizes(method: str, factor: int, back: bool = False) -> tuple[int, int]:
        axis = sampling.Resized(56, factor * 56, method, "half_pixel", "clamp")
        return rules._tiled(axis, back, 4).size, rules._tiled(axis, back, 2).size

    assert (sizes("bilinear", 2), sizes("bilinear", 4), sizes("bicubic", 2)) == ((2, 2), (4, 4), (4, 2))
    assert (sizes("bilinear", 2, back=True), sizes("bicubic", 2, back=True)) == ((2, 2), (4, 2))
    half = sampling.Resized(56, 28, "bilinear", "half_pixel", "clamp")
    assert rules._tiled(half, False, 4).size == rules._tiled(half, False, 2).size == 1


@pytest.mark.parametrize(("back", "columns"), [(False, 4), (True, 10)])
def test_a_gpu_keeps_the_columns_of_cubic_images_at_hand(back: bool, columns: int) -> None:
    axis = sampling.Resized(56, 112, "bicubic", "half_pixel", "clamp")
    down, across = rules._tiled(axis, back, 4), rules._tiled(axis, back, 2)
    launch = rules._mixing((8, 56, 56, 64), mx.float32, down, across, 4)
    assert dict(launch.template)["K"] == dict(launch.template)["U"] == columns and launch.threadgroup == (64, 1, 1)
    linear = rules._tiled(axis._replace(method="bilinear"), False, 2)
    assert dict(rules._mixing((8, 56, 56, 64), mx.float32, linear, linear, 4).template)["K"] == 0


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "area", "mirror", "circular"])
def test_windows_are_the_lists_and_never_turn_back(method: str) -> None:
    """Also where a position between others reads one pixel, and where what positions read turns back."""
    if method in ("mirror", "circular"):
        axes: list[sampling.Axis] = [sampling.Padded(n, 2, 1, method) for n in (3, 8)]
    else:
        sizes = ((3, 9), (9, 3), (4, 9), (1, 3), (5, 1), (3, 17), (33, 17), (56, 112))
        ways = (False, True) if method != "area" else (False,)
        axes = [sampling.Resized(n, m, method, "half_pixel", "clamp", filtered) for n, m in sizes for filtered in ways]
    for axis in axes:
        lists = [(sampling.readers(axis), axis.n_out)]
        lists += [] if sampling.picks(axis) else [(sampling.reads(axis), axis.n_in)]
        for found, length in lists:
            if (np.diff(found.begins) == 0).any():
                continue
            dense = np.zeros((len(found.begins) - 1, length))
            dense[np.repeat(np.arange(len(dense)), np.diff(found.begins)), found.indices] = found.weights
            of = sampling.spans(found)
            firsts, weights = sampling.windows(found, of, length)
            again = np.zeros_like(dense)
            for i, first in enumerate(firsts):
                again[i, first : first + of.width] = weights[i]
                assert not dense[i, : of.begins[i]].any() and not dense[i, of.ends[i] :].any()
            np.testing.assert_array_equal(again, dense)
            assert all((np.diff(each) >= 0).all() for each in (firsts, *of))
            assert firsts.min() >= 0 and firsts.max() + of.width <= length


def test_a_gpu_walks_down_strips_where_pixels_are_read_by_many() -> None:
    def walked(method: str, n_in: int, n_out: int, back: bool = False, antialias: bool = False) -> tuple[int, ...]:
        axis = sampling.Resized(n_in, n_out, method, "half_pixel", "clamp", antialias)
        down, across = rules._walked(axis, back), rules._windowed(axis, back)
        return () if down is None or across is None else (down.kept, down.gathers, across.reads, across.ahead)

    assert walked("bicubic", 56, 112) == (4, True, 4, 1) and walked("bicubic", 56, 112, back=True) == (4, False, 8, 2)
    half = functools.partial(walked, n_in=56, n_out=28, antialias=True)
    assert half("bicubic") == (4, False, 8, 2) and half("bicubic", back=True) == (4, True, 4, 1)
    assert half("bilinear") == walked("bilinear", 56, 112) == walked("nearest", 7, 56, back=True) == ()
    assert walked("bicubic", 56, 28) == walked("bicubic", 56, 300, back=True) == ()  # read by two; too many to hold


@pytest.mark.parametrize("mode", ["mirror", "circular"])
def test_padding_takes_no_strips(mode: str) -> None:
    """Nor does it make tables that grow with the square of what it pads."""
    axis = sampling.Padded(2**16, 3, 3, mode)
    assert rules._walked(axis, True) is None and rules._windowed(axis, True) is None


def test_an_image_of_bicubic_pixels_may_begin_anywhere(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((1 + 6 * 7 * 4,), dtype)[1:].reshape(1, 6, 7, 4)
    y = mf.resize_bicubic(x, (12, 14))
    close(y, oracle.along(exact(x), oracle.bicubic(6, 12), oracle.bicubic(7, 14)), 4, slack=4)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((128, 112, 112, 64), 56), ((128, 28, 28, 64), 14), ((1, 21, 20, 8), 4), ((1, 2**24, 1, 4), 512)],
)
def test_strips_leave_a_gpu_enough_threads(shape: tuple[int, ...], rows: int) -> None:
    axis = sampling.Resized(56, 112, "bicubic", "half_pixel", "clamp")
    down, across = rules._walked(axis, False), rules._windowed(axis, False)
    assert down is not None and across is not None
    (launch,) = rules._in_strips((shape, mx.float32), math.prod(shape), down, across)
    assert launch.params == (*shape[1:3], rows) and launch.grid[1] == -(-shape[1] // rows) < 2**16


def test_more_strips_than_cuda_allows_are_an_error() -> None:
    with pytest.raises(ValueError, match="too many strips for a GPU; got 65536, expected at most 65535"):
        grids.strip_threads(1, 2**16, 1)
