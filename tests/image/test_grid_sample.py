"""`grid_sample` where its record says nothing: numbers worked by hand, places that are none, threads, speed's cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_host.cases import CASES
from support import DTYPES, exact, numbers, same_bits_for_threads
from support.oracle import sampling as oracle

import mpsfunc as mf
from mpsfunc import graph, nn

pytestmark = pytest.mark.usefixtures("on_cpu")
IMAGE = mx.arange(1.0, 10).reshape(1, 3, 3, 1)
MODES, EDGES = ("nearest", "bilinear", "bicubic"), ("zero", "border", "reflection")


def at(*places: tuple[float, float], dtype: mx.Dtype = mx.float32) -> mx.array:
    """A grid of one row."""
    return mx.array(places, dtype).reshape(1, 1, len(places), 2)


def sampled(grid: mx.array, coordinates: Any = "pixel", **how: Any) -> list[float]:
    made: list[float] = mf.grid_sample(IMAGE, grid, coordinates, **how).reshape(-1).tolist()
    return made


def test_worked_numbers(dtype: mx.Dtype) -> None:
    grid, x = at((0.5, 0.25), (1.75, 1.5), (2.5, 0)), IMAGE.astype(dtype)
    y, state = mf.grid_sample_fwd(x, grid, "pixel")
    assert y.dtype == dtype and exact(y).ravel().tolist() == [2.25, 7.25, 1.5]
    dy = mx.array([1.0, 2, 4], dtype).reshape(1, 1, 3, 1)
    dx = exact(mf.grid_sample_grad(dy, grid, state)).reshape(3, 3)
    np.testing.assert_array_equal(dx, [[0.375, 0.375, 2], [0.125, 0.375, 0.75], [0, 0.25, 0.75]])
    dgrid = mf.grid_sample_grad_grid(dy, x, grid, state)
    assert dgrid.dtype == mx.float32 and dgrid.reshape(3, 2).tolist() == [[1, 3], [2, 6], [-12, 6]]


def test_coordinates_of_every_kind() -> None:
    """The middle of the first pixel, and that of the last row's second."""
    assert sampled(at((-2 / 3, -2 / 3), (0, 2 / 3)), "normalized") == pytest.approx([1, 8])
    assert sampled(at((-1, -1), (0, 1)), "normalized", align_corners=True) == [1, 8]
    assert sampled(at((0, 0), (0, 2)), "offset") == [1, 8]


def test_nearest_takes_the_even_one_of_two() -> None:
    assert sampled(at((0.5, 0), (1.5, 0), (-0.5, 0), (2.5, 0), (1, 0.75)), mode="nearest") == [1, 3, 1, 3, 5]


@pytest.mark.parametrize("mode", MODES)
def test_on_pixels_and_borders(mode: Any) -> None:
    """Pixels are themselves, also at the border, and beyond zeros nothing is left."""
    grid = at(*((x, y) for y in range(3) for x in range(3)))
    for edge in EDGES:
        assert sampled(grid, mode=mode, edge_mode=edge) == list(range(1, 10))
    assert sampled(at((-2, 1), (4, 1), (1, -3), (1e30, 1), (1, -1e30)), mode=mode) == [0] * 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinates", ["normalized", "pixel", "offset"])
def test_places_that_are_none(mode: Any, coordinates: Any) -> None:
    """On the second row, or in the second column."""
    middle = 0.0 if coordinates == "normalized" else 1.0
    far, grid = [(np.nan, middle), (np.inf, middle), (-np.inf, middle)], []
    for x, y in far:
        grid += [(x, y), (y, x)]
    if coordinates == "offset":  # of six samples side by side in one row
        grid = [(x - i, y) for i, (x, y) in enumerate(grid)]
    places = at(*grid)
    right = {"zero": [0] * 6, "border": [4, 2, 6, 8, 4, 2], "reflection": [4, 2, 4, 2, 4, 2]}
    for edge, expected in right.items():
        how: dict[str, Any] = {"mode": mode, "edge_mode": edge}
        assert sampled(places, coordinates, **how) == pytest.approx(expected, rel=1e-6)
        state = mf.grid_sample_state(IMAGE.shape, coordinates, **how)
        dy = mx.ones((1, 1, 6, 1))
        dgrid = exact(mf.grid_sample_grad_grid(dy, IMAGE, places, state)).reshape(3, 2, 2)
        assert np.isfinite(dgrid).all() and not dgrid[:, 0, 0].any() and not dgrid[:, 1, 1].any()
        dx = exact(mf.grid_sample_grad(dy, places, state))
        assert dx.sum() == pytest.approx(0 if edge == "zero" else 6, rel=1e-6)


@pytest.mark.parametrize("edge", ["border", "reflection"])
def test_no_slope_from_the_outermost_pixels_on(edge: Any) -> None:
    grid, dy = at((0, 1), (2, 1), (-0.25, 1), (2.25, 1), (1, 1)), mx.ones((1, 1, 5, 1))
    state = mf.grid_sample_state(IMAGE.shape, "pixel", edge_mode=edge)
    dgrid = mf.grid_sample_grad_grid(dy, IMAGE, grid, state).reshape(5, 2)
    assert dgrid.tolist() == [[0, 3], [0, 3], [0, 3], [0, 3], [1, 3]]


def test_reflections_go_on() -> None:
    """At the outer edges 1 2 3 3 2 1 1 2 3, at the middles 1 2 3 2 1 2 3."""
    outer = sampled(at(*((x, 0) for x in range(-4, 9))), edge_mode="reflection", mode="nearest")
    assert outer == [3, 3, 2, 1, 1, 2, 3, 3, 2, 1, 1, 2, 3]
    middles = at(*((x - 1, -1) for x in range(-3, 6)))
    assert sampled(middles, "normalized", align_corners=True, edge_mode="reflection") == [2, 3, 2, 1, 2, 3, 2, 1, 2]


def test_an_image_of_one_pixel() -> None:
    x, grid = mx.full((1, 1, 1, 1), 5.0), at((-1, 0.5), (0, 0), (3, 2))
    for mode in MODES:
        made = mf.grid_sample(x, grid, mode=mode, align_corners=True, edge_mode="reflection")  # type: ignore[arg-type]
        np.testing.assert_allclose(exact(made).ravel(), 5, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 9, 3), (2, 33, 7, 20), (9, 5, 4, 1), (1, 4, 3, 70)], ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    x, grid = numbers(shape, dtype), 0.8 * numbers((shape[0], 60, 70, 2))
    dy = numbers((shape[0], 60, 70, shape[3]), dtype, 1)

    def compute() -> list[mx.array]:
        made = []
        for mode in MODES:
            y, state = mf.grid_sample_fwd(x, grid, mode=mode, edge_mode="border")  # type: ignore[arg-type]
            made += [y, mf.grid_sample_grad(dy, grid, state), mf.grid_sample_grad_grid(dy, x, grid, state)]
        return made

    same_bits_for_threads(threads, compute)


@pytest.mark.parametrize(
    ("images", "size", "channels"),
    [(1, (70, 62), 4), (3, (70, 62), 4), (40, (8, 36), 64), *((images, (5, 3), 4) for images in (1, 3, 40))],
    ids=str,
)
def test_bands_of_an_image_add_up_all(images: int, size: tuple[int, int], channels: int) -> None:
    """However many there are, of one image or of many, and however far the places of a line lie from each other."""
    shape = images, 50, 6, channels
    grid = mx.clip(0.6 * numbers((images, *size, 2), mx.float64), -2, 2)
    grid[:, ::2] = grid[:, ::2] * 0.01  # lines that few bands read
    dy = numbers((images, *size, channels), mx.float64, 1)
    for mode in ("bilinear", "bicubic"):
        state = mf.grid_sample_state(shape, mode=mode)  # type: ignore[arg-type]
        right = oracle.spread(exact(dy), *oracle.tables(exact(grid), shape, mode=mode))
        np.testing.assert_allclose(exact(mf.grid_sample_grad(dy, grid, state)), right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinates", ["normalized", "pixel", "offset"])
def test_lines_that_take_several_blocks(mode: Any, coordinates: Any) -> None:
    """With a sample's own position in each of them."""
    shape, size = (2, 5, 150, 3), (2, 3, 140)
    how: dict[str, Any] = {"mode": mode, "coordinates": coordinates, "edge_mode": "reflection"}
    grid, x = 0.9 * numbers((*size, 2), mx.float64), numbers(shape, mx.float64, 1)
    dy = numbers((*size, 3), mx.float64, 2)
    y, state = mf.grid_sample_fwd(x, grid, **how)
    tables = oracle.tables(exact(grid), shape, **how)
    np.testing.assert_allclose(exact(y), oracle.sample(exact(x), *tables), rtol=0, atol=1e-10)
    dx = mf.grid_sample_grad(dy, grid, state)
    np.testing.assert_allclose(exact(dx), oracle.spread(exact(dy), *tables), rtol=0, atol=1e-10)
    dgrid = mf.grid_sample_grad_grid(dy, x, grid, state)
    np.testing.assert_allclose(exact(dgrid), oracle.slopes(exact(dy), exact(x), exact(grid), **how), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("grid_sample")])
def test_what_gpus_are_asked(name: str) -> None:
    CASES[name].run()


def test_a_grid_of_float32_for_images_of_16_bits() -> None:
    """Places between which bfloat16 has none; gradients have the dtypes of what they are by."""
    x, grid = numbers((1, 64, 64, 4), mx.bfloat16), 0.9 * numbers((1, 8, 8, 2)) / 3
    y = mf.grid_sample(x, grid)
    right = oracle.sample(exact(x), *oracle.tables(exact(grid), x.shape))
    np.testing.assert_allclose(exact(y), right, rtol=8e-3, atol=1e-3)
    dx, dgrid = mx.grad(lambda x, grid: mf.grid_sample(x, grid).sum(), argnums=(0, 1))(x, grid)
    assert (dx.dtype, dgrid.dtype) == (mx.bfloat16, mx.float32)
    narrow = mf.grid_sample(x, grid.astype(mx.bfloat16))
    assert narrow.dtype == mx.bfloat16 and abs(exact(narrow) - right).max() > 0.1
    dgrid = mx.grad(lambda grid: mf.grid_sample(x, grid).astype(mx.float32).sum())(grid.astype(mx.bfloat16))
    assert dgrid.dtype == mx.bfloat16


def derivative(f: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
    def tangent(t: mx.array) -> mx.array:
        made: mx.array = mx.jvp(f, [t], [mx.ones_like(t)])[1][0]
        return made

    return tangent


def test_derivatives_beyond_the_last_are_zero() -> None:
    """And make no kernel run: a bilinear sample's by one coordinate twice, a bicubic one's four times."""
    grid = at((0.3, 1.2), (1.6, 0.4), dtype=mx.float64)
    x = numbers((1, 3, 3, 2), mx.float64)

    def along(times: int, mode: Any) -> mx.array:
        def f(t: mx.array) -> mx.array:
            moved = grid + t * mx.array([1.0, 0], mx.float64)
            return mf.grid_sample(x, moved, "pixel", mode=mode)

        for _ in range(times):
            f = derivative(f)
        return f(mx.array(0.0, mx.float64))

    for mode, last in (("nearest", 0), ("bilinear", 1), ("bicubic", 3)):
        assert abs(exact(along(last, mode))).max() > 0.1
        assert not exact(along(last + 1, mode)).any()


def test_the_layer_and_the_filter() -> None:
    x, grid = numbers((2, 5, 6, 3)), numbers((2, 4, 3, 2))
    how: dict[str, Any] = {"mode": "bicubic", "edge_mode": "reflection"}
    layer = nn.GridSample(align_corners=True, **how)
    assert mx.array_equal(layer(x, grid), mf.grid_sample(x, grid, align_corners=True, **how))
    assert not layer.parameters()
    node = graph.grid_sample(graph.ImageNode("x"), graph.ImageNode("grid"), **how)
    network = graph.compile(node)
    params, states = network.init(mx.random.key(0), {"x": x.shape, "grid": grid.shape})
    made = network(params, {"x": x, "grid": grid}, states)
    made = made[0] if isinstance(made, tuple) else made
    assert mx.array_equal(made, mf.grid_sample(x, grid, "pixel", **how))
