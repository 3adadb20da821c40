"""Moving images: side by side, in parts, with something around them; and their means."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import BATCHES, DTYPES, VIEWS, close, exact, numbers, same_bits
from support.oracle import image as oracle

import mpsfunc as mf

MODES = ("constant", "zero", "clamp", "mirror", "mirror_with_edge", "circular")
INTEGERS = (mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32, mx.int64, mx.uint64)
each_mode = pytest.mark.parametrize("mode", MODES)


def matrices(state: mf.PadState) -> list[np.ndarray]:
    return [oracle.padded(*axis) for axis in (state.rows, state.cols, state.channels)]


def check_pad(x: mx.array, before: Any, after: Any, mode: str) -> None:
    """Values to the bit, and gradient."""
    value = -1.5 if mode == "constant" else 0
    y, state = mf.pad_fwd(x, before, after, mode, value)
    made = matrices(state)
    nothing = oracle.along(np.ones(x.shape), *made) == 0
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(exact(y), oracle.along(exact(x), *made) + value * nothing)
    dy = numbers(tuple(y.shape), x.dtype, 1)
    definition = [oracle.along(v, *(m.T for m in made)) for v in (exact(dy), abs(exact(dy)))]
    close(mf.pad_grad(dy, state), *definition, slack=2)


def row(*values: float, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(values).astype(dtype).reshape(1, 1, len(values), 1)


# Padding ------------------------------------------------------------------------------------------------


def test_every_source_pixel_receives_the_sum_of_its_copies(device: mx.Device, dtype: mx.Dtype) -> None:
    d = [2.0**i for i in range(8)]
    clamp = mf.pad_grad(row(*d, dtype=dtype), mf.pad_state((1, 1, 5, 1), (0, 2), (0, 1), "clamp"))
    assert clamp.reshape(-1).tolist() == [d[0] + d[1] + d[2], d[3], d[4], d[5], d[6] + d[7]]
    mirror = mf.pad_grad(row(*d, dtype=dtype), mf.pad_state((1, 1, 3, 1), (0, 4), (0, 1), "mirror"))
    assert mirror.reshape(-1).tolist() == [d[0] + d[4], d[1] + d[3] + d[5] + d[7], d[2] + d[6]]
    circle = mf.pad_grad(row(*d, dtype=dtype), mf.pad_state((1, 1, 3, 1), (0, 4), (0, 1), "circular"))
    assert circle.reshape(-1).tolist() == [d[1] + d[4] + d[7], d[2] + d[5], d[0] + d[3] + d[6]]


@pytest.mark.parametrize(
    ("mode", "right"),
    [
        ("constant", [9, 9, 9, 9, 1, 2, 3, 9, 9]),
        ("clamp", [1, 1, 1, 1, 1, 2, 3, 3, 3]),
        ("mirror", [1, 2, 3, 2, 1, 2, 3, 2, 1]),
        ("mirror_with_edge", [3, 3, 2, 1, 1, 2, 3, 3, 2]),
        ("circular", [3, 1, 2, 3, 1, 2, 3, 1, 2]),
    ],
)
def test_a_row_with_four_before_and_two_after(device: mx.Device, dtype: mx.Dtype, mode: str, right: list[int]) -> None:
    value = 9 if mode == "constant" else 0
    x = row(1, 2, 3, dtype=dtype)
    assert mf.pad(x, (0, 4), (0, 2), mode, value).reshape(-1).tolist() == right
    assert mf.pad(x.reshape(1, 3, 1, 1), (4, 0), (2, 0), mode, value).reshape(-1).tolist() == right
    assert mf.pad(x.reshape(1, 1, 1, 3), (0, 0, 4), (0, 0, 2), mode, value).reshape(-1).tolist() == right


@each_mode
@pytest.mark.parametrize(
    ("before", "after"),
    [(0, 0), (1, 2), ((0, 3), (2, 0)), ((9, 1), (0, 14)), ((1, 0, 2), (0, 1, 5)), ((0, 0, 1), 0)],
    ids=str,
)
def test_pad(device: mx.Device, dtype: mx.Dtype, before: Any, after: Any, mode: str) -> None:
    for shape in ((2, 3, 4, 5), (1, 2, 1, 16), (2, 1, 3, 1)):
        check_pad(numbers(shape, dtype), before, after, mode)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("replicate", "clamp"), ("edge", "clamp"), ("reflect", "mirror"), ("symmetric", "mirror_with_edge")),
        ("wrap", "circular"),
    ],
)
def test_other_names_are_the_same(device: mx.Device, name: str, mode: str) -> None:
    """Also in the state, which keeps ours."""
    x = numbers((2, 3, 4, 5))
    (y, state), (right, known) = (mf.pad_fwd(x, (4, 1, 1), (0, 5, 2), each) for each in (name, mode))
    assert same_bits(y, right) and state == known and state.rows.mode == mode
    assert mf.pad_state(x.shape, (4, 1, 1), (0, 5, 2), name) == known
    if name != "replicate":
        np.testing.assert_array_equal(exact(y), np.pad(exact(x), ((0, 0), (4, 0), (1, 5), (1, 2)), name))


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
@pytest.mark.parametrize("view", VIEWS)
def test_pad_every_width_and_view(device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, view: str) -> None:
    for mode in ("constant", "mirror"):
        check_pad(VIEWS[view](numbers((batch, 3, 4, channels), dtype)), (1, 2), (3, 0), mode)


@each_mode
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_pad_moves_integers(device: mx.Device, dtype: mx.Dtype, mode: str) -> None:
    """With a constant of either sign, as far as the dtype has it."""
    x = (mx.arange(24).reshape(1, 2, 3, 4).astype(mx.int64) * 2**57 // 24 + 3).astype(dtype)
    signed = mx.issubdtype(dtype, mx.signedinteger)
    extreme = -(2 ** (8 * dtype.size - 1)) if signed else 2 ** (8 * dtype.size) - 1
    value = extreme if mode == "constant" else 0
    y = mf.pad(x, (1, 2, 1), (2, 1, 0), mode, value)
    modes: dict[str, dict[str, Any]] = {
        "constant": {"mode": "constant", "constant_values": value},
        "zero": {"mode": "constant"},
        "clamp": {"mode": "edge"},
        "mirror": {"mode": "reflect"},
        "mirror_with_edge": {"mode": "symmetric"},
        "circular": {"mode": "wrap"},
    }
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.array(y), np.pad(np.array(x), ((0, 0), (1, 2), (2, 1), (1, 0)), **modes[mode]))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e300])
def test_a_constant_may_be_any_float(device: mx.Device, dtype: mx.Dtype, value: float) -> None:
    y = exact(mf.pad(row(1, dtype=dtype), (0, 1), (0, 1), value=value)).reshape(-1)
    held = value if dtype == mx.float64 or not np.isfinite(value) else np.inf
    np.testing.assert_array_equal(y, [held, 1, held])


def test_a_constant_zero_has_a_sign(device: mx.Device, dtype: mx.Dtype) -> None:
    """Whatever was padded with before."""
    for value in (0.0, -0.0, 0.0, -0.0, 0):
        y = exact(mf.pad(row(1, dtype=dtype), (0, 1), (0, 1), value=value)).reshape(-1)
        assert np.signbit(y[[0, 2]]).tolist() == [np.signbit(value)] * 2


@pytest.mark.needs_cpu_module
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    sizes=st.tuples(*[st.integers(0, 9)] * 6),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
)
def test_pad_anywhere(
    shape: tuple[int, int, int], sizes: tuple[int, ...], mode: str, dtype: mx.Dtype, view: str
) -> None:
    with mx.stream(mx.cpu):
        check_pad(VIEWS[view](numbers((2, *shape), dtype)), sizes[:3], sizes[3:], mode)


@each_mode
def test_pad_adjoint(device: mx.Device, mode: str) -> None:
    x = numbers((2, 3, 4, 5))
    y, state = mf.pad_fwd(x, (5, 1, 2), (0, 7, 1), mode)
    dy = numbers(tuple(y.shape), seed=1)
    left, right = (exact(y) * exact(dy)).sum(), (exact(x) * exact(mf.pad_grad(dy, state))).sum()
    assert abs(left - right) <= 1e-5 * abs(exact(y) * exact(dy)).sum()


# Side by side -------------------------------------------------------------------------------------------


def test_concatenate_by_fours(device: mx.Device) -> None:
    """MPS's graph puts two images of one channel at channels 0 and 4 of eight."""
    a, b = mx.full((1, 1, 1, 1), 5.0), mx.full((1, 1, 1, 1), 7.0)
    y = mf.concatenate([a, b], pad_to_multiple=4)
    assert y.reshape(-1).tolist() == [5, 0, 0, 0, 7, 0, 0, 0]
    assert mf.concatenate([a, b]).reshape(-1).tolist() == [5, 7]


@pytest.mark.parametrize("multiple", [1, 2, 4, 7])
def test_concatenate_and_back(device: mx.Device, dtype: mx.Dtype, multiple: int) -> None:
    counts = (3, 4, 1, 8)
    images = [numbers((2, 3, 4, c), dtype, c) for c in counts]
    y = mf.concatenate(images, pad_to_multiple=multiple)
    assert y.dtype == dtype and y.shape == (2, 3, 4, sum(c + -c % multiple for c in counts))
    parts = mf.concatenate_grad(y, counts, pad_to_multiple=multiple)
    assert all(same_bits(a, b) for a, b in zip(parts, images, strict=True))
    filled = mf.concatenate([mx.zeros_like(i) for i in images], pad_to_multiple=multiple) + 1
    total = sum((abs(exact(g)) > 0).sum() for g in mf.concatenate_grad(filled, counts, pad_to_multiple=multiple))
    assert total == 24 * sum(counts)
    rest = exact(y)
    start = 0
    for c in counts:  # what lies between is zero
        start += c
        end = start + -start % multiple if multiple > 1 else start
        assert not rest[..., start:end].any()
        start = end


def test_slices_and_concatenation_are_each_others_gradients(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = numbers((2, 3, 4, 6), dtype), numbers((2, 3, 4, 3), dtype, 1)
    y, pull = mf.slice_channels(x, 1, 4), mf.slice_channels_grad(dy, 1, 6)
    assert same_bits(y, x[..., 1:4]) and pull.shape == x.shape and pull.dtype == dtype
    assert same_bits(mf.slice_channels(pull, 1, 4), dy)
    assert not exact(pull)[..., [0, 4, 5]].any()
    _, (through,) = mx.vjp(lambda x: mf.slice_channels(x, 1, 4), [x], [dy])
    assert same_bits(through, pull)
    a, b = x[..., :2], x[..., 2:]
    _, pulled = mx.vjp(lambda a, b: mf.concatenate([a, b], pad_to_multiple=4), [a, b], [numbers((2, 3, 4, 8), dtype)])
    parts = mf.concatenate_grad(numbers((2, 3, 4, 8), dtype), (2, 4), pad_to_multiple=4)
    assert all(same_bits(p, q) for p, q in zip(pulled, parts, strict=True))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_moved(device: mx.Device, dtype: mx.Dtype) -> None:
    x = mx.arange(24).reshape(1, 2, 3, 4).astype(dtype)
    y = mf.concatenate([x, x[..., :1]], pad_to_multiple=2)
    assert y.dtype == dtype and mx.array_equal(mf.slice_channels(y, 0, 4), x)
    assert mx.array_equal(mf.slice_channels_grad(x, 1, 6)[..., 1:5], x)


def test_empty_batches(device: mx.Device, dtype: mx.Dtype) -> None:
    x = mx.zeros((0, 3, 4, 5), dtype)
    assert mf.concatenate([x, x], pad_to_multiple=4).shape == (0, 3, 4, 16)
    assert [dx.shape for dx in mf.concatenate_grad(x, (2, 3))] == [(0, 3, 4, 2), (0, 3, 4, 3)]
    assert mf.slice_channels(x, 1, 3).shape == (0, 3, 4, 2)
    assert mf.slice_channels_grad(x, 1, 8).shape == (0, 3, 4, 8)
    assert mf.spatial_mean(x).shape == (0, 1, 1, 5)
    assert mf.spatial_mean_grad(mx.zeros((0, 1, 1, 5), dtype), x.shape).shape == x.shape
    y, state = mf.pad_fwd(x, (1, 1, 1), 0, "mirror")
    assert y.shape == (0, 4, 5, 6) and mf.pad_grad(y, state).shape == x.shape


# Means --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
def test_spatial_mean(device: mx.Device, dtype: mx.Dtype, batch: int, channels: int) -> None:
    x = numbers((batch, 5, 3, channels), dtype)
    close(mf.spatial_mean(x), exact(x).mean((1, 2), keepdims=True), abs(exact(x)).mean((1, 2), keepdims=True))
    dy = numbers((batch, 1, 1, channels), dtype, 1)
    right = np.broadcast_to(exact(dy) / 15, x.shape)
    close(mf.spatial_mean_grad(dy, x.shape), right, abs(right), slack=2)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_autodiff_of_pad_rounds_once(device: mx.Device, dtype: mx.Dtype) -> None:
    how: Any = ((1, 0, 1), (1, 0, 2), "clamp")
    dy = numbers((2, 6, 3, 8), dtype) * 100
    _, (dx,) = mx.vjp(lambda x: mf.pad(x, *how), [mx.zeros((2, 4, 3, 5), dtype)], [dy])
    assert same_bits(dx, mf.pad_grad(dy, mf.pad_state((2, 4, 3, 5), *how)))
