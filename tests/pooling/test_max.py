"""Maximum pooling against its definition, tap by tap."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import BATCHES, DTYPES, VIEWS, close, exact, geometries, numbers, same_bits, same_bits_for_threads
from support.oracle import pooling as oracle
from support.oracle.windows import reads
from support.strategies import pairs, placements

import mpsfunc as mf
from mpsfunc.windows.placement import place

GEOMETRIES = geometries(mf.PaddingPolicy)
EDGES = ("zero", "clamp", "exclude")


def picture(values: Any, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.array(values)[None, ..., None]).astype(dtype)


def check(x: mx.array, y: mx.array, state: mf.MaxPoolState, seed: int = 0) -> None:
    """Values, winners and gradient, to the bit where nothing is added."""
    expected, at = oracle.max_pool(exact(x), state.rows, state.cols)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(exact(y), expected)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), at)
    dy = numbers(tuple(y.shape), x.dtype, seed)
    definition = [oracle.max_pool_grad(v, at, *x.shape[1:3]) for v in (exact(dy), abs(exact(dy)))]
    close(mf.max_pool_grad(dy, state), *definition)


# Worked numbers -----------------------------------------------------------------------------------------


def test_a_negative_image_under_zeros_and_under_its_own_edge(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = picture([[-1, -2, -3], [-4, -5, -6], [-7, -8, -9]], dtype), picture([[1, 2], [3, 4]], dtype)
    y, state = mf.max_pool_fwd(x, 2, offset=0, out_size=2)
    assert y[0, :, :, 0].tolist() == [[0, 0], [0, -5]]
    assert mf.max_pool_grad(dy, state)[0, :, :, 0].tolist() == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]
    assert mf.max_pool_indices(state)[0, :, :, 0].tolist() == [[-1, -1], [-1, 4]]
    for edge_mode in ("clamp", "exclude"):
        y, state = mf.max_pool_fwd(x, 2, offset=0, out_size=2, edge_mode=edge_mode)
        assert y[0, :, :, 0].tolist() == [[-1, -2], [-4, -5]]
        assert mf.max_pool_grad(dy, state)[0, :, :, 0].tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]


def test_the_first_of_equal_taps_wins(device: mx.Device) -> None:
    x, dy = picture([[2, 2, 1], [2, 0, 1]]), picture([[10, 20]])
    _, state = mf.max_pool_fwd(x, 2, stride=1, offset=1, out_size=(1, 2))
    assert mf.max_pool_grad(dy, state)[0, :, :, 0].tolist() == [[10, 20, 0], [0, 0, 0]]


def test_a_dilated_row(device: mx.Device) -> None:
    x, dy = picture([[5, 1, 4, 2, 8, 3]]), picture([[1, 2, 3]])
    y, state = mf.max_pool_fwd(x, (1, 2), stride=1, dilation=3, offset=(0, 2), out_size=(1, 3))
    assert y.reshape(-1).tolist() == [5, 8, 4]
    assert mf.max_pool_grad(dy, state).reshape(-1).tolist() == [1, 0, 3, 0, 2, 0]


def test_a_dilated_tap_outside_reads_the_edge_or_nothing(device: mx.Device) -> None:
    """Taps -1, 2 and 5 of a row of four: clamped they read pixels 0, 2 and 3."""
    x, how = picture([[9, 1, 2, 7]]), {"dilation": 3, "stride": 1, "offset": (0, 2), "out_size": 1}
    y, state = mf.max_pool_fwd(x, (1, 3), edge_mode="clamp", **how)
    assert y.item() == 9 and mf.max_pool_indices(state).item() == 0
    y, state = mf.max_pool_fwd(x, (1, 3), edge_mode="exclude", **how)
    assert y.item() == 2 and mf.max_pool_indices(state).item() == 2


def test_a_pixel_of_zero_wins_over_a_zero_of_the_padding(device: mx.Device, dtype: mx.Dtype) -> None:
    x = picture([[-1, 0], [-2, -3]], dtype)
    y, state = mf.max_pool_fwd(x, 3, stride=1, padding=1, edge_mode="zero")
    assert not exact(y).any()
    assert mf.max_pool_indices(state).reshape(-1).tolist() == [1, 1, 1, 1]
    minus, state = mf.max_pool_fwd(-mx.zeros_like(x), 3, stride=1, padding=1, edge_mode="zero")
    assert not exact(minus).any() and mf.max_pool_indices(state).reshape(-1).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("edge_mode", EDGES)
def test_a_nan_wins_and_the_first_one_stays(device: mx.Device, dtype: mx.Dtype, edge_mode: str) -> None:
    x = picture([[1, float("nan"), float("inf")], [float("nan"), 5, 2], [0, 0, 0]], dtype)
    y, state = mf.max_pool_fwd(x, 2, stride=1, padding=1, edge_mode=edge_mode)
    expected, at = oracle.max_pool(exact(x), state.rows, state.cols)
    np.testing.assert_array_equal(exact(y), expected)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), at)
    assert np.isnan(exact(y)[0, 1, 1, 0]) and at[0, 1, 1, 0] == 1


# What is read outside unless somebody says --------------------------------------------------------------

DEFAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "pixels": ({"padding": 1}, "exclude"),
    "pixels of each axis": ({"padding": (1, 0)}, "exclude"),
    "pixels of each side": ({"padding": ((0, 1), (2, 0))}, "exclude"),
    "no padding": ({}, "exclude"),
    "ceil mode": ({"stride": 2, "padding": 1, "ceil_mode": True}, "exclude"),
    "same": ({"padding": "same"}, "exclude"),
    "full": ({"padding": "full"}, "exclude"),
    "valid": ({"padding": "valid"}, "exclude"),
    "dilated": ({"padding": 1, "dilation": 2}, "exclude"),
    "policy": ({"padding": mf.PaddingPolicy()}, "zero"),
    "full policy": ({"padding": mf.PaddingPolicy(size="full")}, "zero"),
    "offset": ({"offset": 0, "out_size": 5}, "zero"),
    "offset that misses the image": ({"offset": -9, "out_size": 5}, "zero"),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_read_outside_unless_somebody_says(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    """Nothing, as in PyTorch; or 0, as in MPS, where windows are placed as MPS places them."""
    how, edge_mode = {"stride": 1, **DEFAULTS[name][0]}, DEFAULTS[name][1]
    x = -abs(numbers((2, 5, 6, 3), dtype)) - 1
    y, state = mf.max_pool_fwd(x, 3, **how)
    expected, told = mf.max_pool_fwd(x, 3, edge_mode=edge_mode, **how)
    assert same_bits(y, expected) and same_bits(mf.max_pool(x, 3, **how), expected)
    assert state[1:] == told[1:] and same_bits(state.winners, told.winners)
    dy = numbers(tuple(y.shape), dtype, 1)
    assert same_bits(mf.max_pool_grad_from_source(dy, x, 3, **how), mf.max_pool_grad(dy, told))
    hangs_over = name not in ("no padding", "valid")
    assert bool((mf.max_pool_indices(state) < 0).any()) == (hangs_over and edge_mode == "zero")
    assert bool((y == 0).any()) == (hangs_over and edge_mode == "zero")


def test_a_border_of_negative_numbers_stays_negative(device: mx.Device, dtype: mx.Dtype) -> None:
    x = picture([[-5, -6], [-7, -8]], dtype)
    assert mf.max_pool(x, 2, stride=1, padding=1)[0, :, :, 0].tolist() == [[-5, -5, -6], [-5, -5, -6], [-7, -7, -8]]
    zeros = [[0, 0, 0], [0, -5, 0], [0, 0, 0]]
    assert mf.max_pool(x, 2, stride=1, padding=1, edge_mode="zero")[0, :, :, 0].tolist() == zeros
    assert mf.max_pool(x, 2, stride=1, offset=0, out_size=3)[0, :, :, 0].tolist() == zeros


@pytest.mark.parametrize(
    "how", [{"padding": 2}, {"padding": ((2, 0), (0, 0))}, {"padding": 2, "edge_mode": "exclude"}], ids=str
)
def test_a_window_without_a_pixel_is_told_what_to_do(device: mx.Device, how: dict[str, Any]) -> None:
    x = mx.ones((1, 4, 4, 1))
    words = (
        r"^max_pool: a window contains no pixel; got edge_mode='exclude', expected less padding, or edge_mode='zero' "
        r"\(0 there\) or 'clamp' \(the nearest pixel\)$"
    )
    for call in (mf.max_pool, mf.max_pool_fwd):
        with pytest.raises(ValueError, match=words):
            call(x, 2, **how)
    for edge_mode, outside in (("zero", 0), ("clamp", 1)):
        assert mf.max_pool(x, 2, **{**how, "edge_mode": edge_mode})[0, 0, 0].item() == outside


# The definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_mode", EDGES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_definition_in_every_geometry(device: mx.Device, dtype: mx.Dtype, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    for batch, channels in ((2, 3), (1, 16)):
        x = numbers((batch, *image, channels), dtype)
        rows, cols = place("max_pool", image, kernel, edge_modes=EDGES, edge_mode=edge_mode, **placement)
        if edge_mode == "exclude" and not (reads(rows).any((1, 2)).all() and reads(cols).any((1, 2)).all()):
            with pytest.raises(ValueError, match="^max_pool: a window contains no pixel; got edge_mode='exclude'"):
                mf.max_pool(x, kernel, edge_mode=edge_mode, **placement)
            continue
        check(x, *mf.max_pool_fwd(x, kernel, edge_mode=edge_mode, **placement))


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_width_and_view(
    device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, view: str
) -> None:
    x = numbers((batch, 6, 5, channels), dtype)
    for edge_mode in ("zero", "exclude"):
        y, state = mf.max_pool_fwd(VIEWS[view](x), 3, stride=2, padding=1, edge_mode=edge_mode)
        check(x, y, state)
        dy = numbers(tuple(y.shape), dtype, 3)
        seen = state._replace(winners=mx.contiguous(state.winners[::-1])[::-1])
        assert same_bits(mf.max_pool_grad(VIEWS[view](dy), seen), mf.max_pool_grad(dy, state))


@pytest.mark.parametrize("channels", (3, 40))
@pytest.mark.parametrize("edge_mode", EDGES)
def test_an_image_of_many_lines(device: mx.Device, dtype: mx.Dtype, channels: int, edge_mode: str) -> None:
    """Threads share an image, and windows cross the borders between them."""
    x = numbers((1, 230, 37, channels), dtype)
    check(x, *mf.max_pool_fwd(x, (5, 3), stride=(2, 1), padding=(2, 1), dilation=(1, 2), edge_mode=edge_mode))


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 2, 5, 8, 17])),
    kernel=pairs,
    placement=placements,
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    few=st.booleans(),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], kernel: tuple[int, int], placement: dict[str, Any], dtype: mx.Dtype, view: str, few: bool
) -> None:
    with mx.stream(mx.cpu):
        x = numbers(shape, dtype)
        x = mx.round(x) if few else x  # many ties
        y, state = mf.max_pool_fwd(VIEWS[view](x), kernel, **placement)
        check(x, y, state)


@pytest.mark.parametrize("edge_mode", ("zero", "clamp"))
@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradient_is_the_adjoint_of_the_tangent(on_cpu: mx.Device, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    x, tangent = numbers((2, *image, 3), mx.float64), numbers((2, *image, 3), mx.float64, 1)
    y, state = mf.max_pool_fwd(x, kernel, edge_mode=edge_mode, **placement)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    _, (pushed,) = mx.jvp(lambda x: mf.max_pool(x, kernel, edge_mode=edge_mode, **placement), [x], [tangent])
    close((pushed * dy).sum(), exact((tangent * mf.max_pool_grad(dy, state)).sum()), exact((x * x).sum()))


def test_source_window_keeps_only_its_outputs(device: mx.Device) -> None:
    x = numbers((2, 7, 8, 4))
    for edge_mode in EDGES:
        y, state = mf.max_pool_fwd(x, 3, stride=2, padding=1, edge_mode=edge_mode)
        dy = numbers(tuple(y.shape), seed=1)
        for (top, left), (height, width) in (((1, 0), (2, 3)), ((-1, 2), (3, 9)), ((0, 0), (0, 4)), ((9, 9), (2, 2))):
            kept = np.zeros(dy.shape)
            part = np.s_[:, max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
            kept[part] = exact(dy)[part]
            _, at = oracle.max_pool(exact(x), state.rows, state.cols)
            expected = oracle.max_pool_grad(kept, at, 7, 8)
            close(mf.max_pool_grad(dy, state, source_window=((top, left), (height, width))), expected, abs(expected))


def test_the_gradient_from_the_source_is_that_of_the_state(device: mx.Device) -> None:
    x, how = numbers((2, 7, 8, 4)), {"stride": 2, "padding": 1, "edge_mode": "clamp"}
    y, state = mf.max_pool_fwd(x, 3, **how)
    dy = numbers(tuple(y.shape), seed=1)
    window = ((1, 0), (2, 3))
    for given_window in (None, window):
        found = mf.max_pool_grad_from_source(dy, x, 3, source_window=given_window, **how)
        assert same_bits(found, mf.max_pool_grad(dy, state, source_window=given_window))


# Integers -----------------------------------------------------------------------------------------------

INTEGERS = (mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64)


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("edge_mode", EDGES)
def test_integers_of_every_size(device: mx.Device, integer: mx.Dtype, edge_mode: str) -> None:
    kind = np.dtype(str(integer).rpartition(".")[2])
    limits = np.iinfo(kind)
    values = np.random.default_rng(0).integers(limits.min, limits.max, (2, 5, 6, 5), kind, endpoint=True)
    values[0, :2, :2] = limits.min
    values[1, 3:, 3:] = limits.max
    y, state = mf.max_pool_fwd(mx.array(values), 2, stride=2, padding=1, edge_mode=edge_mode)
    expected, at = oracle.max_pool(values, state.rows, state.cols)
    assert y.dtype == integer
    np.testing.assert_array_equal(np.array(y), expected)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), at)


def test_booleans_and_complex_numbers_are_refused() -> None:
    for dtype in (mx.bool_, mx.complex64):
        with pytest.raises(TypeError, match=r"^max_pool: x has no dtype of real numbers; got x.dtype="):
            mf.max_pool(mx.zeros((1, 2, 2, 1), dtype), 2)


# States -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dtype"), [((15, 17), mx.uint8), ((16, 16), mx.uint16), ((255, 257), mx.uint16), ((256, 256), mx.uint32)]
)
def test_winners_take_the_fewest_bytes(device: mx.Device, kernel: tuple[int, int], dtype: mx.Dtype) -> None:
    x = mx.arange(kernel[0] * kernel[1], dtype=mx.float32).reshape(1, *kernel, 1)
    x = mx.broadcast_to(x, (1, *kernel, 21))
    for image, winner in ((x, kernel[0] * kernel[1] - 1), (-x - 1, 0)):
        y, state = mf.max_pool_fwd(image, kernel)
        assert state.winners.dtype == dtype
        assert np.all(exact(y) == image.max().item()) and np.all(np.array(mf.max_pool_indices(state)) == winner)
        dx = exact(mf.max_pool_grad(mx.ones_like(y), state)).reshape(-1, 21)
        assert np.all(dx[winner] == 1) and dx.sum() == 21


def test_a_state_is_taken_apart_and_put_together(device: mx.Device) -> None:
    y, state = mf.max_pool_fwd(numbers((2, 6, 5, 3)), 2)
    assert state.op == "max_pool" and state.arrays == (state.winners,)
    other = state.with_arrays([state.winners[:1]])
    assert mf.max_pool_grad(y[:1], other).shape == (1, 6, 5, 3)
    with pytest.raises(ValueError, match="^MaxPoolState: wrong number of arrays; got 0 "):
        state.with_arrays([])


def test_winners_that_no_window_has_read_nothing(device: mx.Device) -> None:
    """Whatever a user writes into a state stays inside the image."""
    y, state = mf.max_pool_fwd(numbers((1, 4, 4, 8)), 2, stride=1, padding=1)
    for code in (4, 100, 254, 255):
        forged = state._replace(winners=mx.full(state.winners.shape, code, mx.uint8))
        assert not exact(mf.max_pool_grad(y, forged)).any()
        assert not exact(mx.grad(lambda dy, s=forged: (mf.max_pool_grad(dy, s) ** 2).sum())(y)).any()
        assert mf.max_pool_indices(forged).max().item() == -1


@pytest.mark.parametrize("channels", (2, 40))
def test_a_tap_that_cannot_win_is_nobodys_winner(device: mx.Device, channels: int) -> None:
    """Clamped taps share a pixel, and a state that names a later one of them has no winner there, on either way."""
    y, state = mf.max_pool_fwd(numbers((1, 3, 3, channels)), 3, stride=1, padding=1, edge_mode="clamp")
    forged = state._replace(winners=mx.full(state.winners.shape, 8, mx.uint8))
    u, dy = numbers((1, 3, 3, channels), seed=1), numbers(tuple(y.shape), seed=2)
    (dx,), (taken,) = mx.vjp(lambda dy: mf.max_pool_grad(dy, forged), [dy], [u])
    close((dx * u).sum(), exact((taken * dy).sum()), 100)


def test_integers_have_no_derivative(device: mx.Device) -> None:
    def rounded(x: mx.array) -> mx.array:
        return mf.max_pool(x.astype(mx.int32), 2).astype(mx.float32)

    x = 4 * numbers((1, 4, 4, 3))
    _, (tangent,) = mx.jvp(rounded, [x], [mx.ones_like(x)])
    assert not exact(tangent).any()


def test_a_large_gradient_of_a_reused_buffer(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((1 + 2**24 // dtype.size // (32 * 32 * 64), 32, 32, 64), dtype)
    y, state = mf.max_pool_fwd(x, 3, stride=2, padding=1)
    first = state.with_arrays([state.winners[:1]])
    for _ in range(3):
        dx = mf.max_pool_grad(y, state)
        assert same_bits(dx[:1], mf.max_pool_grad(y[:1], first))
        del dx


TORN: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "shape": (ValueError, "a wrong state; got state.winners.shape", {"winners": mx.zeros((2, 3, 3, 3), mx.uint8)}),
    "dtype": (TypeError, "a wrong state; got state.winners.dtype", {"winners": mx.zeros((2, 3, 2, 3), mx.int32)}),
    "no array": (TypeError, "the state holds no array", {"winners": None}),
}


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("name", TORN)
def test_torn_states_are_refused(name: str) -> None:
    error, words, change = TORN[name]
    with mx.stream(mx.cpu):
        y, state = mf.max_pool_fwd(numbers((2, 6, 5, 3)), 2)
        for call in (mf.max_pool_grad, mf.max_unpool):
            with pytest.raises(error, match=f"^{call.__name__}: {words}"):
                call(y, state._replace(**change))
        with pytest.raises(error, match=f"^max_pool_indices: {words}"):
            mf.max_pool_indices(state._replace(**change))


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("max_pool_grad: dy does not belong to this state", lambda y, s: mf.max_pool_grad(y[:1], s)),
        ("max_pool_grad: not a state of this operation", lambda y, s: mf.max_pool_grad(y, s[0])),
        ("max_pool_grad: kernel_offset has no meaning", lambda y, s: mf.max_pool_grad(y, s, kernel_offset=(0, 0))),
        ("max_unpool: y does not belong to this state", lambda y, s: mf.max_unpool(y[:, :1], s)),
        ("max_pool: unknown edge_mode", lambda y, s: mf.max_pool(y, 2, edge_mode="mirror")),
        ("max_pool: exclude_edges is for averages", lambda y, s: mf.max_pool(y, 2, padding=EXCLUDED)),
        ("max_pool: window does not fit", lambda y, s: mf.max_pool(y, 9)),
        ("max_pool: not an image batch", lambda y, s: mf.max_pool(y[0], 2)),
    ],
)
@pytest.mark.needs_cpu_module
def test_bad_input(words: str, call: Any) -> None:
    with mx.stream(mx.cpu):
        y, state = mf.max_pool_fwd(numbers((2, 6, 5, 3)), 2)
        with pytest.raises((TypeError, ValueError), match=f"^{words}"):
            call(y, state)


EXCLUDED = mf.PaddingPolicy(exclude_edges=True)


# Nothing, and bits --------------------------------------------------------------------------------------


def test_an_empty_batch(device: mx.Device) -> None:
    y, state = mf.max_pool_fwd(mx.zeros((0, 6, 5, 3)), 2)
    assert y.shape == (0, 3, 2, 3) and mf.max_pool_grad(y, state).shape == (0, 6, 5, 3)
    assert mf.max_pool_indices(state).shape == mf.max_pool(y, 1).shape == y.shape
    assert mf.max_unpool(y, state).shape == (0, 6, 5, 3)


@pytest.mark.parametrize("shape", ((3, 17, 19, 24), (2, 300, 40, 3)))
def test_same_bits_every_time_and_with_any_threads(on_cpu: mx.Device, threads: Any, shape: tuple[int, ...]) -> None:
    def everything() -> list[mx.array]:
        y, state = mf.max_pool_fwd(numbers(shape), 3, stride=2, padding=1)
        return [y, state.winners, mf.max_pool_grad(y, state)]

    same_bits_for_threads(threads, everything)
