"""`crop_and_resize` where its record says nothing: numbers worked by hand, boxes that are none, threads, the filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_host.cases import CASES
from support import DTYPES, exact, numbers, same_bits_for_threads
from support.oracle import boxes as oracle

import mpsfunc as mf
from mpsfunc import graph

pytestmark = pytest.mark.usefixtures("on_cpu")
IMAGE, FIRST = mx.arange(1.0, 10).reshape(1, 3, 3, 1), mx.array([0])
NAN, INF = float("nan"), float("inf")


def cropped(box: Any, size: Any = 2, **how: Any) -> list[float]:
    made: list[float] = mf.crop_and_resize(IMAGE, mx.array([box], mx.float32), FIRST, size, **how).reshape(-1).tolist()
    return made


def test_worked_numbers(dtype: mx.Dtype) -> None:
    boxes, x = mx.array([[0.25, 0, 1.25, 0.75]]), IMAGE.astype(dtype)
    y, state = mf.crop_and_resize_fwd(x, boxes, FIRST, (3, 2))
    assert y.dtype == dtype and exact(y).ravel().tolist() == [2.5, 4, 5.5, 7, 0, 0]
    dy = mx.arange(1.0, 7).astype(dtype).reshape(y.shape)
    dx = exact(mf.crop_and_resize_grad(dy, boxes, FIRST, state)).reshape(3, 3)
    np.testing.assert_array_equal(dx, [[0.5, 0.5, 0.5], [2, 1.5, 1.5], [1.5, 1, 1]])
    # The rows lie at 0.5, 1.5 and outside, the columns at 0 and 1.5; a row further is 3 more, a column 1.
    dboxes = mf.crop_and_resize_grad_boxes(dy, x, boxes, FIRST, state)
    assert dboxes.dtype == mx.float32 and dboxes.tolist() == [[6 * (3 + 7 / 2), 2 * 4, 6 * 7 / 2, 2 * 6]]


def test_the_whole_image_is_itself() -> None:
    """For sizes whose steps no float32 has, too: nothing is outside by a rounding."""
    assert cropped((0, 0, 1, 1), 3) == list(range(1, 10))
    for length in range(2, 60):
        x = mx.arange(1.0, length + 1).reshape(1, 1, length, 1)
        for size in (7, 50):
            row = mf.crop_and_resize(x, mx.array([[0.0, 0, 0, 1]]), FIRST, (1, size), extrapolation_value=-9)
            np.testing.assert_allclose(exact(row).ravel(), np.linspace(1, length, size), rtol=1e-5)


def test_flipped_boxes_and_one_sample() -> None:
    assert cropped((1, 1, 0, 0), 3) == list(range(9, 0, -1))
    assert cropped((0, 0.5, 1, 1), 1) == [5.5]  # in the middle of the box
    assert cropped((0.5, 0, 0.5, 1), (2, 1)) == [5, 5]


def test_nearest_takes_the_right_one_of_two() -> None:
    assert cropped((0, 0.25, 0, 0.75), (1, 2), method="nearest") == [2, 3]
    assert cropped((0.2, 0, 0.3, 0), (2, 1), method="nearest") == [1, 4]


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_what_is_outside(method: Any) -> None:
    how: dict[str, Any] = {"method": method, "extrapolation_value": -7.0}
    assert cropped((-0.5, 0, 0, 0), **how) == [-7, -7, 1, 1]
    assert cropped((1, 1, 1, 1.001), **how) == [9, -7, 9, -7]
    for box in ((NAN, 0, 1, 1), (0, INF, 1, 1), (0, 0, -INF, 1), (1e30, 0, 2e30, 1), (3, 3, 4, 4)):
        made = cropped(box, **how)
        assert made.count(-7) >= 2 and np.isfinite(made).all(), box
    assert cropped((NAN, NAN, NAN, NAN), **how) == [-7] * 4


@pytest.mark.parametrize("box", [(NAN, 0, 1, 1), (0, -INF, 1, INF), (-1e38, 0, 1e38, 1), (9, 9, 9, 9)], ids=str)
def test_gradients_of_boxes_that_are_none(box: Any) -> None:
    boxes, dy = mx.array([box], mx.float32), mx.ones((1, 2, 2, 1))
    state = mf.crop_and_resize_state(IMAGE.shape, 2)
    dx = exact(mf.crop_and_resize_grad(dy, boxes, FIRST, state))
    assert np.isfinite(dx).all() and dx.sum() == (exact(mf.crop_and_resize(IMAGE, boxes, FIRST, 2)) != 0).sum()
    assert np.isfinite(exact(mf.crop_and_resize_grad_boxes(dy, IMAGE, boxes, FIRST, state))).all()


@pytest.mark.parametrize("index", [-1, 2, 2**31 - 1, -(2**31)])
def test_images_that_are_none(index: int) -> None:
    """Also where several batches are one: a box reads no image of another."""
    x, boxes, of = 1 + abs(numbers((2, 3, 4, 2))), mx.array([[0.0, 0, 1, 1]] * 2), mx.array([index, 1])
    y, state = mf.crop_and_resize_fwd(x, boxes, of, 2, extrapolation_value=5)
    assert (exact(y)[0] == 5).all() and not (exact(y)[1] == 5).any()
    dy = mx.ones(y.shape)
    dx = exact(mf.crop_and_resize_grad(dy, boxes, of, state))
    assert not dx[0].any() and dx[1].sum() == 8
    dboxes = exact(mf.crop_and_resize_grad_boxes(dy, x, boxes, of, state))
    assert not dboxes[0].any() and dboxes[1].any()
    several = mx.stack([x, 2 * x, 3 * x])
    mapped = mx.vmap(lambda x: mf.crop_and_resize(x, boxes, of, 2, extrapolation_value=5))(several)
    assert mx.array_equal(
        mapped, mx.stack([mf.crop_and_resize(x, boxes, of, 2, extrapolation_value=5) for x in several])
    )
    back = mx.vmap(lambda dy: mf.crop_and_resize_grad(dy, boxes, of, state))(mx.stack([dy, 2 * dy]))
    assert mx.array_equal(back, mx.stack([mx.array(dx, mx.float32), 2 * mx.array(dx, mx.float32)]))


def test_no_boxes_and_no_images() -> None:
    none, of = mx.zeros((0, 4)), mx.zeros(0, mx.int32)
    y, state = mf.crop_and_resize_fwd(IMAGE, none, of, 2)
    assert y.shape == (0, 2, 2, 1)
    assert mx.array_equal(mf.crop_and_resize_grad(y, none, of, state), mx.zeros(IMAGE.shape))
    assert mf.crop_and_resize_grad_boxes(y, IMAGE, none, of, state).shape == (0, 4)
    y = mf.crop_and_resize(mx.zeros((0, 3, 3, 1)), mx.ones((2, 4)), mx.array([0, 0]), 2, extrapolation_value=3)
    assert mx.array_equal(y, mx.full((2, 2, 2, 1), 3.0))


def test_slopes_at_pixels_are_those_to_the_right_but_on_the_last() -> None:
    x, dy = mx.array([1.0, 2, 4]).reshape(1, 1, 3, 1), mx.ones((1, 1, 1, 1))
    state = mf.crop_and_resize_state(x.shape, 1)
    for at, slope in ((0, 1), (0.5, 2), (1, 2), (0.25, 1), (1.001, 0), (-0.001, 0)):
        dboxes = mf.crop_and_resize_grad_boxes(dy, x, mx.array([[0, at, 0, at]], mx.float32), FIRST, state)
        assert dboxes.tolist() == [[0, slope, 0, slope]], at  # half of it each, of two pixels that 1 is


def test_an_image_of_one_pixel() -> None:
    x, boxes = mx.full((1, 1, 1, 1), INF), mx.array([[0.0, -3, 0.7, 5]])
    y, state = mf.crop_and_resize_fwd(x, boxes, FIRST, 2)
    assert (exact(y) == INF).all()
    assert not exact(mf.crop_and_resize_grad_boxes(mx.ones(y.shape), x, boxes, FIRST, state)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 9, 3), (2, 33, 7, 20), (9, 5, 4, 1), (1, 30, 20, 70)], ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    x, boxes = numbers(shape, dtype), 0.5 + 0.5 * numbers((60, 4))
    of, dy = mx.arange(60) % shape[0], numbers((60, 9, 7, shape[3]), dtype, 1)

    def compute() -> list[mx.array]:
        y, state = mf.crop_and_resize_fwd(x, boxes, of, (9, 7))
        back = mf.crop_and_resize_grad(dy, boxes, of, state)
        return [y, back, mf.crop_and_resize_grad_boxes(dy, x, boxes, of, state)]

    same_bits_for_threads(threads, compute)


@pytest.mark.parametrize("images", [1, 3, 40])
@pytest.mark.parametrize("count", [1, 50])
def test_bands_of_an_image_add_up_all(images: int, count: int) -> None:
    shape, boxes, of = (images, 50, 6, 4), 0.5 + 0.4 * numbers((count, 4), mx.float64), mx.arange(count) % images
    dy = numbers((count, 20, 5, 4), mx.float64, 1)
    state = mf.crop_and_resize_state(shape, (20, 5))
    right = oracle.spread(exact(dy), of.tolist(), oracle.crop_sides(shape, exact(boxes), (20, 5)), shape)
    made = mf.crop_and_resize_grad(dy, boxes, of, state)
    np.testing.assert_allclose(exact(made), right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in CASES if "box_sample" in name])
def test_what_gpus_are_asked(name: str) -> None:
    CASES[name].run()


def test_boxes_of_float32_for_images_of_16_bits() -> None:
    """Places between which bfloat16 has none; gradients have the dtypes of what they are by."""
    x, boxes, of = numbers((1, 64, 64, 4), mx.bfloat16), mx.array([[0.5003, 0.1234, 0.9876, 0.7531]]), FIRST
    right = oracle.sample(exact(x), [0], oracle.crop_sides(x.shape, exact(boxes), 9))
    np.testing.assert_allclose(exact(mf.crop_and_resize(x, boxes, of, 9)), right, rtol=8e-3, atol=1e-3)
    narrow = boxes.astype(mx.bfloat16)
    assert abs(exact(mf.crop_and_resize(x, narrow, of, 9)) - right).max() > 0.1
    for given in (boxes, narrow):
        dx, dboxes = mx.grad(lambda x, b: mf.crop_and_resize(x, b, of, 9).sum(), argnums=(0, 1))(x, given)
        assert (dx.dtype, dboxes.dtype) == (mx.bfloat16, given.dtype)


def test_derivatives_beyond_the_last_are_zero() -> None:
    """Twice by one axis; once by each there is one."""
    x, boxes = numbers((1, 3, 3, 2), mx.float64), mx.array([[0.1, 0.2, 0.8, 0.9]], mx.float64)

    def at(down: mx.array, across: mx.array) -> mx.array:
        moved = boxes + down * mx.array([1.0, 0, 0, 0], mx.float64) + across * mx.array([0, 1.0, 0, 0], mx.float64)
        return mf.crop_and_resize(x, moved, FIRST, 2).sum()

    zero = mx.array(0.0, mx.float64)
    mixed = mx.grad(lambda across: mx.grad(at)(zero, across))(zero)
    assert abs(mixed.item()) > 0.1
    assert mx.grad(lambda down: mx.grad(at)(down, zero))(zero).item() == 0


def test_the_filter_cuts_regions_out_of_each_image() -> None:
    x = numbers((2, 5, 6, 3))
    node = graph.crop_and_resize(graph.ImageNode("x"), [(0.1, 0.2, 0.5, 0.25)], 3, method="nearest")
    network = graph.compile(node)
    params, states = network.init(mx.random.key(0), {"x": x.shape})
    made: Any = network(params, {"x": x}, states)
    boxes = mx.array([[0.2, 0.1, 0.45, 0.6]] * 2)
    right = mf.crop_and_resize(x, boxes, mx.array([0, 1]), 3, method="nearest")
    assert mx.array_equal(made[0] if isinstance(made, tuple) else made, right)


@pytest.mark.parametrize("regions", [[], 3, [(0, 0, 1)], [(0, 0, 1, None)], [(0, 0, 1, NAN)]])
def test_wrong_regions_of_the_filter(regions: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^crop_and_resize: crop_and_resize: (no list of|not a) region"):
        graph.compile(graph.crop_and_resize(graph.ImageNode("x"), regions, 2)).shapes({"x": (1, 4, 4, 1)})
