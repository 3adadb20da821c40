"""Sub-pixels, folded batch normalization, and weights from bytes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import VIEWS, close, exact, numbers

import mpsfunc as mf

ANY_DTYPE = [mx.float32, mx.float16, mx.bfloat16, mx.uint8, mx.int32, mx.int64, mx.bool_, mx.complex64]


# Sub-pixels ---------------------------------------------------------------------------------------------


def test_eight_channels_of_one_pixel(device: mx.Device) -> None:
    y = mf.depth_to_space(mx.arange(8).reshape(1, 1, 1, 8), 2)
    assert y.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]


@pytest.mark.parametrize("dtype", ANY_DTYPE, ids=str)
@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("view", VIEWS)
def test_depth_to_space_by_its_formula(device: mx.Device, dtype: mx.Dtype, r: int, view: str) -> None:
    n, h, w, c = 2, 3, 2, 5
    x = (mx.arange(n * h * w * c * r * r) % 251).reshape(n, h, w, c * r * r).astype(dtype)
    y = mf.depth_to_space(VIEWS[view](x) if mx.issubdtype(dtype, mx.floating) else x, r)
    assert y.shape == (n, h * r, w * r, c) and y.dtype == dtype
    values, from_ = np.array(y.astype(mx.float32)), np.array(x.astype(mx.float32))
    for row, col in np.ndindex(h * r, w * r):
        first = (r * (row % r) + col % r) * c
        np.testing.assert_array_equal(values[:, row, col], from_[:, row // r, col // r, first : first + c])
    back = mf.space_to_depth(y, r)
    assert bool(mx.array_equal(back, x).item())


def test_each_is_the_gradient_of_the_other(device: mx.Device) -> None:
    x, dy = numbers((2, 3, 4, 8)), numbers((2, 6, 8, 2), seed=1)
    _, (dx,) = mx.vjp(lambda x: mf.depth_to_space(x, 2), [x], [dy])
    assert bool(mx.array_equal(dx, mf.space_to_depth(dy, 2)).item())
    _, (dz,) = mx.vjp(lambda y: mf.space_to_depth(y, 2), [dy], [x])
    assert bool(mx.array_equal(dz, mf.depth_to_space(x, 2)).item())


@pytest.mark.parametrize(
    ("kind", "complaint", "call"),
    [
        (ValueError, "depth_to_space: the channels make", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 6)), 2)),
        (ValueError, "space_to_depth: squares do not part", lambda: mf.space_to_depth(mx.zeros((1, 2, 3, 6)), 2)),
        (ValueError, "depth_to_space: block_size is too small", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 4)), 0)),
        (TypeError, "depth_to_space: block_size is not", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 4)), 2.0)),
        (TypeError, "depth_to_space: x is not an array", lambda: mf.depth_to_space(3, 2)),
        (ValueError, "space_to_depth: not an image batch", lambda: mf.space_to_depth(mx.zeros((2, 2, 4)), 2)),
    ],
)  # fmt: skip
def test_sub_pixel_refusals(kind: type[Exception], complaint: str, call: Any) -> None:
    with pytest.raises(kind, match=f"^{complaint}.*; got .*expected "):
        call()


# Folding ------------------------------------------------------------------------------------------------


def test_the_example_of_folding(device: mx.Device) -> None:
    vectors = [mx.array([v]) for v in (0.5, 3.0, 0.1, 0.2, 4.0)]
    w, b = mf.fold_batch_norm(mx.full((1, 1, 1, 1), 2.0), *vectors, eps=0.0)
    close(w, [[[[3.0]]]])
    close(b, [0.55])


@pytest.mark.parametrize("absent", [(), ("b",), ("gamma", "beta"), ("b", "gamma", "beta")])
def test_folded_weights_normalize(device: mx.Device, absent: tuple[str, ...]) -> None:
    x, w = numbers((2, 6, 6, 3)), numbers((4, 3, 3, 3), seed=1)
    given = {name: numbers((4,), seed=2 + i) for i, name in enumerate(("b", "gamma", "beta", "mean"))}
    parts: dict[str, Any] = {**given, "var": abs(numbers((4,), seed=9)) + 0.1, **dict.fromkeys(absent)}
    folded, bias = mf.fold_batch_norm(w, **parts, eps=1e-3)
    y = mf.conv(x, w, parts["b"])
    frozen = mf.bn_frozen(parts["mean"], parts["var"], eps=1e-3)
    expected = mf.bn_normalize(y, frozen, parts["gamma"], parts["beta"])
    close(mf.conv(x, folded, bias), exact(expected), 60)
    assert folded.dtype == w.dtype and bias.dtype == mx.float32


def test_folding_keeps_the_weights_dtype(device: mx.Device) -> None:
    one = mx.ones(2)
    w, b = mf.fold_batch_norm(mx.ones((2, 1, 1, 1), mx.float16), None, None, None, one, one)
    assert w.dtype == mx.float16 and b.dtype == mx.float32


@pytest.mark.parametrize(
    ("kind", "complaint", "how"),
    [
        (ValueError, "eps is no variance", {"eps": -1.0}),
        (ValueError, "eps is no variance", {"eps": float("nan")}),
        (TypeError, "eps is not a number", {"eps": "0"}),
        (ValueError, "a vector does not fit", {"gamma": mx.ones(3)}),
        (TypeError, "var is not an array", {"var": None}),
        (TypeError, "mean has no floating dtype", {"mean": mx.ones(2, mx.int32)}),
    ],
)
def test_folding_refusals(kind: type[Exception], complaint: str, how: dict[str, Any]) -> None:
    fine = {"b": None, "gamma": None, "beta": None, "mean": mx.ones(2), "var": mx.ones(2)}
    with pytest.raises(kind, match=f"^fold_batch_norm: {complaint}"):
        mf.fold_batch_norm(mx.ones((2, 1, 1, 1)), **{**fine, **how})


# Bytes --------------------------------------------------------------------------------------------------

BYTES = mx.array(np.random.default_rng(0).integers(0, 256, (3, 2, 5, 4)), mx.uint8)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_bytes_by_range_and_by_table(device: mx.Device, dtype: mx.Dtype) -> None:
    low, high, table = numbers((3,)), numbers((3,), seed=1), numbers((3, 256), seed=2)
    q, each = np.array(BYTES), (slice(None), None, None, None)
    w = mf.dequantize_weights(BYTES, low=low, high=high, dtype=dtype)
    span = exact(high) - exact(low)
    close(w, q / 255 * span[each] + exact(low)[each], 2 + 0 * q)
    looked_up = mf.dequantize_weights(BYTES, table=table, dtype=dtype)
    close(looked_up, exact(table)[np.arange(3)[each], q])
    assert w.dtype == looked_up.dtype == dtype


def test_the_ends_of_a_range(device: mx.Device) -> None:
    q = mx.array([0, 255], mx.uint8).reshape(1, 1, 1, 2)
    w = mf.dequantize_weights(q, low=mx.array([-0.3]), high=mx.array([0.7]))
    close(w.reshape(-1), [-0.3, 0.7])


@pytest.mark.parametrize(
    ("kind", "complaint", "how"),
    [
        (ValueError, "not one way to read a byte", {}),
        (ValueError, "not one way to read a byte", {"low": mx.zeros(3)}),
        (ValueError, "not one way to read a byte", {"low": mx.zeros(3), "table": mx.zeros((3, 256))}),
        (ValueError, "not one way", {"low": mx.zeros(3), "high": mx.zeros(3), "table": mx.zeros((3, 256))}),
        (ValueError, "low does not fit", {"low": mx.zeros(2), "high": mx.zeros(3)}),
        (ValueError, "table does not fit", {"table": mx.zeros((3, 255))}),
        (TypeError, "no dtype of weights", {"table": mx.zeros((3, 256)), "dtype": mx.int32}),
        (TypeError, "q does not hold bytes", {"q": mx.zeros((3, 1, 1, 1)), "table": mx.zeros((3, 256))}),
        (ValueError, "weights have four axes", {"q": mx.zeros((3,), mx.uint8), "table": mx.zeros((3, 256))}),
    ],
)
def test_byte_refusals(kind: type[Exception], complaint: str, how: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^dequantize_weights: {complaint}.*; got .*expected "):
        mf.dequantize_weights(**{"q": BYTES, **how})
