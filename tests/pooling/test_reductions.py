"""Reductions: numbers worked by hand, ties, NaNs and infinities, integers, long sums, threads and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, close, exact, numbers, primitives, same_bits, same_bits_for_threads
from support.oracle.reductions import AXES, place, placed

import mpsfunc as mf
from mpsfunc.pooling import reduction_rules

# Lines, rows of few and of many channels, those that are cut for threads, and tiles.
SHAPES = {
    "few": (2, 3, 5, 3),
    "a pixel": (1, 1, 1, 1),
    "long rows": (1, 2, 300, 3),
    "long columns": (2, 140, 2, 20),
    "large": (1, 90, 110, 16),
    "a long line": (1, 70, 90, 1),
    "a very long line": (1, 130, 131, 1),
    "wide": (2, 3, 2, 1500),
    "very wide": (1, 2, 3, 5000),
    "rest of a vector": (3, 9, 7, 37),
}
EXTREMES: list[tuple[str, bool]] = [("max", True), ("min", False)]
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
over_each = pytest.mark.parametrize("over", AXES)


def picture(values: Any, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.array(values, np.float32)[None, ..., None]).astype(dtype)


def found(name: str, *args: Any, **how: Any) -> list[float]:
    return getattr(mf, f"reduce_{name}")(*args, **how).reshape(-1).tolist()  # type: ignore[no-any-return]  # by name


def test_a_picture_by_hand(device: mx.Device, dtype: mx.Dtype) -> None:
    x = picture([[1, 3, 3], [2, 0, -1]], dtype)
    assert found("max", x, "rows") == [3, 2] and found("argmax", x, "rows") == [1, 0]
    assert found("min", x, "columns") == [1, 0, -1] and found("argmin", x, "columns") == [0, 1, 1]
    assert found("sum", x, "space") == [8] and found("mean", x, "columns") == [1.5, 1.5, 1]
    assert found("argmin", x, "space") == [5] and found("max", x, "channels") == [1, 3, 3, 2, 0, -1]
    weights = picture([[1, 0, 2], [0, 0, 0]], dtype)
    assert found("weighted_sum", x, weights, "rows") == [7, 0]
    assert found("weighted_sum", x, weights, "rows", by_nonzero=True) == [3.5, 0]


def test_the_first_of_equal_ones_has_the_gradient(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = picture([[1, 3, 3], [2, -1, -1]], dtype), picture([[5], [7]], dtype)
    assert mf.reduce_max_grad(dy, x, "rows")[0, :, :, 0].tolist() == [[0, 5, 0], [7, 0, 0]]
    assert mf.reduce_min_grad(dy, x, "rows")[0, :, :, 0].tolist() == [[5, 0, 0], [0, 7, 0]]
    for name in ("max", "min"):
        f: Callable[..., mx.array] = getattr(mf, f"reduce_{name}")
        (slope,) = mx.vjp(lambda x, f=f: [f(x, "rows")], [x], [dy])[1]
        assert same_bits(slope, getattr(mf, f"reduce_{name}_grad")(dy, x, "rows"))


@over_each
@shapes
@pytest.mark.parametrize(("name", "largest"), EXTREMES)
def test_extremes_of_many_ties(name: str, largest: bool, shape: tuple[int, ...], over: str, device: mx.Device,
                               dtype: mx.Dtype) -> None:  # fmt: skip
    """By value, place and gradient: `reduce_argmax` and `reduce_argmin` have their definition here."""
    x = mx.round(2 * numbers(shape, dtype)).astype(dtype)
    at = place(exact(x), over, largest=largest)
    got = getattr(mf, f"reduce_arg{name}")(x, over)
    assert got.dtype == mx.uint32 and tuple(got.shape) == at.shape
    np.testing.assert_array_equal(np.array(got), at)
    y = getattr(mf, f"reduce_{name}")(x, over)
    np.testing.assert_array_equal(exact(y), (np.max if largest else np.min)(exact(x), AXES[over], keepdims=True))
    dy = numbers(tuple(y.shape), dtype, 1)
    made = getattr(mf, f"reduce_{name}_grad")(dy, x, over)
    np.testing.assert_array_equal(exact(made), placed(exact(dy), exact(x), over, largest=largest))


@over_each
@shapes
@pytest.mark.parametrize(("name", "largest"), EXTREMES)
def test_a_nan_is_before_all_numbers_and_the_first_stays(
    name: str, largest: bool, shape: tuple[int, ...], over: str, device: mx.Device, dtype: mx.Dtype
) -> None:
    values = exact(numbers(shape, dtype))
    chosen = np.random.default_rng(3).random(shape)
    values[chosen < 0.02] = np.nan
    values[(chosen > 0.02) & (chosen < 0.06)] = np.inf
    values[(chosen > 0.06) & (chosen < 0.1)] = -np.inf
    x = mx.array(values, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)
    y = exact(getattr(mf, f"reduce_{name}")(x, over))
    np.testing.assert_array_equal(y, (np.max if largest else np.min)(values, AXES[over], keepdims=True))
    at = getattr(mf, f"reduce_arg{name}")(x, over)
    np.testing.assert_array_equal(np.array(at), place(values, over, largest=largest))


@over_each
@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (1, 2, 30, 3), (3, 1, 1, 1)], ids=str)
def test_what_a_gpu_makes_of_mlx_is_the_same(
    shape: tuple[int, ...], over: str, on_cpu: mx.Device, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = exact(mx.round(2 * numbers(shape, dtype)))
    values[np.random.default_rng(3).random(shape) < 0.05] = np.nan
    values[np.random.default_rng(4).random(shape) < 0.1] = np.inf
    x, w = mx.array(values, dtype), numbers(shape, dtype, 1)
    dy = numbers(tuple(mf.reduce_sum(w, over).shape), dtype, 2)

    def made() -> list[mx.array]:
        several = [getattr(mf, f"reduce_{name}")(x, over) for name in ("max", "min", "argmax", "argmin")]
        several += [mf.reduce_max_grad(dy, x, over), mf.reduce_weighted_sum_grad(dy, w, w, over)]
        return several + mx.vjp(lambda x: [mf.reduce_min(x, over)], [x], [dy])[1]

    expected = made()
    sums = [f(w, over) for f in (mf.reduce_sum, mf.reduce_mean)] + [mf.reduce_weighted_sum(w, w, over)]
    mx.eval(expected, sums)
    monkeypatch.setattr(reduction_rules, "_on_cpu", lambda spec: False)
    assert all(same_bits(a, b) for a, b in zip(made(), expected, strict=True))
    others = [f(w, over) for f in (mf.reduce_sum, mf.reduce_mean)] + [mf.reduce_weighted_sum(w, w, over)]
    for a, b in zip(others, sums, strict=True):
        close(a, exact(b), 20)


@over_each
@pytest.mark.parametrize("value", [np.inf, -np.inf, 0.0])
def test_all_alike(value: float, over: str, device: mx.Device, dtype: mx.Dtype) -> None:
    x = mx.full((2, 5, 3, 19), value).astype(dtype)
    for name in ("max", "min"):
        assert set(found(name, x, over)) == {value} and set(found(f"arg{name}", x, over)) == {0}


@over_each
@shapes
def test_sums_of_long_and_wide_images(shape: tuple[int, ...], over: str, device: mx.Device, dtype: mx.Dtype) -> None:
    x, w = numbers(shape, dtype), numbers(shape, dtype, 1)
    values, weights = exact(x), exact(w)
    for name, definition in (("sum", np.sum), ("mean", np.mean)):
        made = getattr(mf, f"reduce_{name}")(x, over)
        close(made, definition(values, AXES[over], keepdims=True), definition(abs(values), AXES[over], keepdims=True))
    products = values * weights
    sizes = abs(products).sum(AXES[over], keepdims=True)
    close(mf.reduce_weighted_sum(x, w, over), products.sum(AXES[over], keepdims=True), sizes)
    shared = exact(w[:1, :1, :1])
    of_channels = (values * shared).sum(AXES[over], keepdims=True)
    sizes = abs(values * shared).sum(AXES[over], keepdims=True)
    close(mf.reduce_weighted_sum(x, w[:1, :1, :1], over), of_channels, sizes)
    dy = numbers(of_channels.shape, dtype, 2)
    close(mf.reduce_weighted_sum_grad(dy, x, w, over), exact(dy) * weights)
    close(mf.reduce_weighted_sum_grad(dy, x, w[:1, :1, :1], over), exact(dy) * np.broadcast_to(shared, shape))


@over_each
def test_sums_are_rounded_once(over: str, device: mx.Device) -> None:
    """In float16 a running sum would stay at 2048, and a mean of large numbers be infinite."""
    x = mx.ones((1, 70, 70, 4), mx.float16)
    want = {"rows": 70, "columns": 70, "channels": 4, "space": 4900}[over]
    assert set(found("sum", x, over)) == {float(np.float16(want))}
    assert set(found("mean", 60000 * x, over)) == {60000.0}


@pytest.mark.parametrize("integer", [mx.int8, mx.uint8, mx.int32, mx.uint32, mx.int64], ids=str)
def test_integers_are_compared_exactly(integer: mx.Dtype, device: mx.Device) -> None:
    top = 127 if integer == mx.int8 else 200 if integer == mx.uint8 else 2**24 + 1
    x = mx.array(np.array([[top - 1, top, top], [3, 0, 2]], np.int64)[None, ..., None]).astype(integer)
    y = mf.reduce_max(x, "rows")
    assert y.dtype == integer and y.reshape(-1).tolist() == [top, 3]
    assert found("argmax", x, "rows") == [1, 0] and found("min", x, "columns") == [3, 0, 2]


@over_each
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "argmax", "weighted_sum", "max_grad"])
@pytest.mark.parametrize("shape", [(2, 300, 9, 20), (1, 90, 110, 16), (1, 80, 90, 1), (1, 3, 5, 3000)], ids=str)
def test_threads_change_no_bit(
    shape: tuple[int, ...], name: str, over: str, on_cpu: mx.Device, threads: Callable[[int], None]
) -> None:
    x = numbers(shape)
    more = (x,) if name == "weighted_sum" else ()
    dy = (numbers(tuple(mf.reduce_max(x, over).shape), seed=1),) if name == "max_grad" else ()
    same_bits_for_threads(threads, lambda: [getattr(mf, f"reduce_{name}")(*dy, x, *more, over)])


@over_each
def test_views_give_the_same_bits(over: str, on_cpu: mx.Device) -> None:
    base = numbers((7, 5, 6, 9))
    for x in (base[1:], base[::2], base.transpose(0, 2, 1, 3), base[..., 1:6], mx.broadcast_to(base[:1], base.shape)):
        whole = mx.contiguous(x)
        for name in ("sum", "mean", "max", "argmin"):
            f = getattr(mf, f"reduce_{name}")
            assert same_bits(f(x, over), f(whole, over))


@over_each
def test_places_are_found_where_a_derivative_may_ask_for_them(over: str, on_cpu: mx.Device) -> None:
    """Then the derivative looks at the images no more."""
    x = numbers((2, 6, 5, 4))
    dy = numbers(tuple(mf.reduce_max(x, over).shape), seed=1)
    (slope,) = mx.vjp(lambda x: [mf.reduce_max(x, over)], [x], [dy])[1]
    np.testing.assert_array_equal(exact(slope), placed(exact(dy), exact(x), over, largest=True))
    (tangent,) = mx.jvp(lambda x: [mf.reduce_max(x, over)], [x], [x])[1]
    assert same_bits(tangent, mf.reduce_max(x, over))


@over_each
def test_a_place_has_no_derivative(over: str, device: mx.Device) -> None:
    x = numbers((2, 3, 4, 5))
    for name in ("argmax", "argmin"):
        f = getattr(mf, f"reduce_{name}")
        slope = mx.grad(lambda x, f=f: (f(x, over).astype(mx.float32) * x).sum())(x)
        assert same_bits(slope, mx.broadcast_to(f(x, over).astype(mx.float32), x.shape))
        assert mx.vmap(lambda x, f=f: f(x, over))(x[None]).tolist() == [f(x, over).tolist()]


@over_each
def test_the_gradient_of_a_sum_copies_nothing(over: str, on_cpu: mx.Device) -> None:
    dy = numbers(tuple(mf.reduce_sum(mx.zeros((4, 64, 64, 64)), over).shape))
    mx.eval(dy)
    made = mf.reduce_sum_grad(dy, (4, 64, 64, 64), over)
    before = mx.get_active_memory()
    mx.eval(made)
    assert mx.get_active_memory() - before < made.nbytes // 8
    assert not {name for name in primitives(made) if "Copy" in name or "Contiguous" in name}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@over_each
def test_weights_that_are_shared_get_sums(over: str, dtype: mx.Dtype, on_cpu: mx.Device) -> None:
    """By autodiff as by the explicit gradient."""
    x = numbers((2, 3, 4, 5), dtype)
    dy = numbers(tuple(mf.reduce_sum(x, over).shape), dtype, 1)
    for shape in ((1, 1, 1, 5), (1, 3, 1, 1), (2, 1, 4, 1), (1, 1, 1, 1), (1, 3, 4, 5), (2, 3, 4, 5)):
        w = numbers(shape, dtype, 2)
        _, (by_x, by_w) = mx.vjp(lambda x, w: [mf.reduce_weighted_sum(x, w, over)], [x, w], [dy])
        axes = tuple(i for i in range(4) if shape[i] != x.shape[i])
        close(by_w, (exact(dy) * exact(x)).sum(axes, keepdims=True), 40, slack=8)
        close(by_x, exact(dy) * np.broadcast_to(exact(w), x.shape), 10, slack=2)
        explicit = mf.reduce_weighted_sum_grad(dy, x, w, over, operand="secondary")
        close(explicit, (exact(dy) * exact(x)).sum(axes, keepdims=True), 40, slack=8)


@over_each
def test_what_repeated_weights_add_up_is_rounded_once(over: str, device: mx.Device) -> None:
    """By autodiff, too, of the sum and of its gradient by images: beside the same in float32."""
    for dtype in (mx.float16, mx.bfloat16):
        x, u = numbers((2, 20, 30, 4), dtype), numbers((2, 20, 30, 4), dtype, 1)
        dy = numbers(tuple(mf.reduce_sum(x, over).shape), dtype, 2)
        for shape in ((1, 1, 1, 4), (1, 1, 1, 1), (2, 1, 30, 4), (2, 20, 1, 1)):
            w = numbers(shape, dtype, 3)
            for images, made in (
                (x, mx.vjp(lambda w, x=x: mf.reduce_weighted_sum(x, w, over), [w], [dy])[1][0]),
                (u, mx.vjp(lambda w, x=x, dy=dy: mf.reduce_weighted_sum_grad(dy, x, w, over), [w], [u])[1][0]),
            ):
                wide = [a.astype(mx.float32) for a in (dy, images, w)]
                right = mf.reduce_weighted_sum_grad(*wide, over, operand="secondary").astype(dtype)
                assert same_bits(made, right)
