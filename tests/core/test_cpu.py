"""The C++ primitives by themselves: every instruction set, dtype and broken vector."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, accumulator, close, exact, numbers, same_bits, same_bits_for_threads
from support.oracle import pooling as oracle

import mpsfunc as mf
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.core.params import for_cpu
from mpsfunc.windows.axis import Axis

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

ISAS = _primitives.isas()
PLAIN = for_cpu(NO_ACTIVATION)

# Pixels and channels: single lanes, broken vectors of every width, more pixels than a block, a rest of a row.
PIXELS = ((1, 1), (3, 3), (130, 1), (37, 8), (5, 16), (300, 65), (17, 130), (2, 1030), (1000, 7))
AXES = {
    "3x3 s2 p1": (
        Axis(7, 4, 3, 2, 1, 1, edge=0, zero_pad=0, begin=0, end=4, zero_pad_after=0),
        Axis(8, 4, 3, 2, 1, 1, edge=0, zero_pad=0, begin=0, end=4, zero_pad_after=0),
    ),
    "shrinks at the edge": (
        Axis(5, 5, 4, 1, 1, 2, edge=1, zero_pad=0, begin=0, end=5, zero_pad_after=0),
        Axis(4, 3, 3, 2, 1, 1, edge=1, zero_pad=1, begin=0, end=3, zero_pad_after=1),
    ),
    "dilated": (
        Axis(9, 5, 3, 2, 4, 3, edge=0, zero_pad=0, begin=0, end=5, zero_pad_after=0),
        Axis(8, 4, 2, 4, 6, 5, edge=1, zero_pad=0, begin=0, end=4, zero_pad_after=0),
    ),
    "selected": (
        Axis(6, 5, 2, 1, 1, 0, edge=0, zero_pad=0, begin=1, end=3, zero_pad_after=0),
        Axis(6, 4, 3, 3, 1, 4, edge=1, zero_pad=2, begin=2, end=4, zero_pad_after=5),
    ),
    "outside": (
        Axis(3, 3, 2, 4, 1, 5, edge=1, zero_pad=0, begin=0, end=3, zero_pad_after=0),
        Axis(2, 2, 1, 9, 1, -1, edge=0, zero_pad=0, begin=0, end=2, zero_pad_after=0),
    ),
}


def run(op: str, arrays: list[mx.array], params: tuple[int, ...], *outputs: tuple[tuple[int, ...], mx.Dtype]) -> list:
    shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
    return getattr(_primitives, op)(arrays, list(params), shapes, dtypes, mx.cpu)


def pool(x: mx.array, rows: Axis, cols: Axis) -> mx.array:
    n, _, _, c = x.shape
    return run("avg_pool", [x], (*rows, *cols), ((n, rows.n_out, cols.n_out, c), x.dtype))[0]


def pool_grad(dy: mx.array, rows: Axis, cols: Axis) -> mx.array:
    n, _, _, c = dy.shape
    return run("avg_pool_grad", [dy], (*rows, *cols), ((n, rows.n_in, cols.n_in, c), dy.dtype))[0]


def stats(x: mx.array) -> list[mx.array]:
    vector = ((1, x.shape[-1]), accumulator(x.dtype))
    return [v[0] for v in run("bn_stats", [x], (), vector, vector)]


def stats_grad(dy: mx.array, x: mx.array, mean: mx.array) -> list[mx.array]:
    vector = ((1, x.shape[-1]), accumulator(x.dtype))
    return [v[0] for v in run("bn_stats_grad", [dy, x, mean[None]], PLAIN, vector, vector)]


def vectors(count: int, channels: int, dtype: mx.Dtype) -> list[mx.array]:
    return [numbers((channels,), accumulator(dtype), seed=10 + i) for i in range(count)]


# Values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES.keys())
@pytest.mark.parametrize("channels", (1, 3, 16, 65))
def test_average(isa: str, axes: tuple[Axis, Axis], channels: int, dtype: mx.Dtype) -> None:
    rows, cols = axes
    x = numbers((2, rows.n_in, cols.n_in, channels), dtype)
    dy = numbers((2, rows.n_out, cols.n_out, channels), dtype, seed=1)
    close(pool(x, *axes), oracle.avg_pool(exact(x), *axes), oracle.avg_pool(abs(exact(x)), *axes))
    close(pool_grad(dy, *axes), oracle.avg_pool_grad(exact(dy), *axes), oracle.avg_pool_grad(abs(exact(dy)), *axes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", PIXELS, ids=str)
def test_channel_sums(isa: str, shape: tuple[int, int], dtype: mx.Dtype) -> None:
    x, dy, (at,) = numbers(shape, dtype), numbers(shape, dtype, seed=1), vectors(1, shape[1], dtype)
    mean, var = stats(x)
    close(mean, exact(x).mean(0), abs(exact(x)).mean(0))
    close(var, exact(x).var(0))
    total, dot = stats_grad(dy, x, at)
    terms = exact(dy) * (exact(x) - exact(at))
    close(total, exact(dy).sum(0), abs(exact(dy)).sum(0))
    close(dot, terms.sum(0), abs(terms).sum(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", PIXELS, ids=str)
def test_affine_maps(isa: str, shape: tuple[int, int], dtype: mx.Dtype) -> None:
    x, dy = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    mean, a, b, d = vectors(4, shape[1], dtype)
    x64, dy64, mean64, a64, b64, d64 = (exact(v) for v in (x, dy, mean, a, b, d))
    scale = 3 + abs(a64 * x64) + abs(b64 * x64) + abs(a64 * dy64) + abs(b64 * mean64)
    (y,) = run("bn_normalize", [x, mean[None], a[None], b[None]], PLAIN, (shape, dtype))
    close(y, (x64 - mean64) * a64 + b64, scale)
    (dx,) = run("bn_grad", [dy, x, *(v[None] for v in (mean, a, b, d))], PLAIN, (shape, dtype))
    close(dx, a64 * dy64 + b64 * (x64 - mean64) + d64, scale)


@pytest.mark.parametrize("channels", (1, 5, 64))
def test_statistics_far_from_zero(isa: str, channels: int) -> None:
    x = numbers((2**18 // channels, channels)) + 1e4
    mean, var = stats(x)
    np.testing.assert_allclose(exact(mean), exact(x).mean(0), rtol=1e-7)
    np.testing.assert_allclose(exact(var), exact(x).var(0), rtol=1e-5)


def test_sums_longer_than_float32_counts(isa: str) -> None:
    x = mx.broadcast_to(mx.array(1.0), (2**24 + 4, 1))
    total, dot = stats_grad(x, x, mx.array([-1.0]))
    assert total.item() == 2**24 + 4
    assert dot.item() == 2**25 + 8
    mean, var = stats(x)
    assert (mean.item(), var.item()) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16), ids=str)
def test_every_sixteen_bit_value_survives(isa: str, dtype: mx.Dtype) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    x = mx.array(bits).view(dtype).reshape(-1, 16)
    zeros, ones = mx.zeros((1, 16)), mx.ones((1, 16))
    (y,) = run("bn_normalize", [x, zeros, ones, zeros], PLAIN, (x.shape, dtype))
    assert mx.array_equal(x, y, equal_nan=True)


@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16), ids=str)
def test_rounding_to_sixteen_bits(isa: str, dtype: mx.Dtype) -> None:
    # Halves between neighbours, at every exponent: subnormal, normal, the overflow to infinity.
    edges = np.arange(0x7C00 if dtype == mx.float16 else 0x7F80, dtype=np.uint16)
    grid = exact(mx.array(edges).view(dtype))
    middle = (grid[:-1] + grid[1:]) / 2
    top = np.float64(65520 if dtype == mx.float16 else 3.3961775e38)
    below = np.nextafter(np.float32(middle), np.float32(0))
    shift = mx.array(np.concatenate([middle, -middle, below, [top, -top]]).astype(np.float32))
    (y,) = run(
        "bn_normalize",
        [mx.zeros((1, shift.size), dtype), *[mx.zeros((1, shift.size))] * 2, shift[None]],
        PLAIN,
        ((1, shift.size), dtype),
    )
    assert mx.array_equal(y.reshape(-1), shift.astype(dtype))


# Layouts, threads, empty arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views(isa: str, view: Callable[[mx.array], mx.array], dtype: mx.Dtype) -> None:
    axes = AXES["3x3 s2 p1"]
    x, dy = numbers((2, 7, 8, 35), dtype), numbers((2, 4, 4, 35), dtype)
    assert same_bits(pool(view(x), *axes), pool(x, *axes))
    assert same_bits(pool_grad(view(dy), *axes), pool_grad(dy, *axes))
    for seen, plain in zip(stats(view(x)), stats(x), strict=True):
        assert same_bits(seen, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (7, 64))
def test_results_that_are_stored_past_the_caches(isa: str, channels: int, dtype: mx.Dtype) -> None:
    shape = (5 * 2**20 // dtype.size // channels, channels)
    x, vector = numbers(shape, dtype), [v[None] for v in vectors(3, channels, dtype)]
    part = 3 * 448  # whole rows; small enough to go through the caches
    for _ in range(3):  # at the latest the second result lies in memory that was used before
        (y,) = run("bn_normalize", [x, *vector], PLAIN, (shape, dtype))
        mx.eval(y)
        for rows in (slice(0, part), slice(shape[0] - part, shape[0])):
            (expected,) = run("bn_normalize", [x[rows], *vector], PLAIN, ((part, channels), dtype))
            assert same_bits(y[rows], expected)
        del y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (7, 64))
def test_a_pooling_gradient_that_is_stored_past_the_caches(isa: str, channels: int, dtype: mx.Dtype) -> None:
    images = 1 + 2**24 // dtype.size // (32 * 32 * channels)
    side = Axis(32, 16, 3, 2, 1, 1, edge=0, zero_pad=0, begin=0, end=16, zero_pad_after=0)
    dy = numbers((images, 16, 16, channels), dtype)
    for _ in range(3):
        dx = pool_grad(dy, side, side)
        mx.eval(dx)
        for i in (0, images - 1):
            assert same_bits(dx[i : i + 1], pool_grad(dy[i : i + 1], side, side))  # small: through the caches
        del dx


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_threads(isa: str, dtype: mx.Dtype, threads: Callable[[int], None]) -> None:
    side = Axis(56, 28, 3, 2, 1, 1, edge=1, zero_pad=0, begin=0, end=28, zero_pad_after=0)
    x, dy = numbers((2, 56, 56, 24), dtype), numbers((2, 28, 28, 24), dtype)

    def everything() -> list[mx.array]:
        mean, var = stats(x)
        return [mean, var, *stats_grad(x, x, mean), pool(x, side, side), pool_grad(dy, side, side)]

    same_bits_for_threads(threads, everything)


@pytest.mark.parametrize("shape", ((0, 7, 8, 4), (2, 7, 8, 0)), ids=str)
def test_empty(isa: str, shape: tuple[int, ...]) -> None:
    n, _, _, c = shape
    axes = AXES["3x3 s2 p1"]
    x, zeros = mx.zeros(shape), mx.zeros((c,))
    assert pool(x, *axes).shape == (n, 4, 4, c)
    assert pool_grad(mx.zeros((n, 4, 4, c)), *axes).shape == shape
    for vector in (*stats(x), *stats_grad(x, x, zeros)):
        assert mx.array_equal(vector, zeros)
    assert run("bn_normalize", [x, *[zeros[None]] * 3], PLAIN, (shape, mx.float32))[0].shape == shape
    assert run("bn_grad", [x, x, *[zeros[None]] * 4], PLAIN, (shape, mx.float32))[0].shape == shape


def test_an_image_without_rows_averages_to_zero(isa: str) -> None:
    rows = Axis(0, 2, 3, 1, 1, 1, edge=0, zero_pad=0, begin=0, end=2, zero_pad_after=0)
    cols = Axis(4, 4, 1, 1, 1, 0, edge=0, zero_pad=0, begin=0, end=4, zero_pad_after=0)
    assert mx.array_equal(pool(mx.zeros((1, 0, 4, 3)), rows, cols), mx.zeros((1, 2, 4, 3)))


@pytest.mark.parametrize("height", [16, 64, 65])
def test_flipped_images_are_read_as_they_lie(height: int, on_cpu: mx.Device) -> None:
    """Of many bytes, which all threads copy; of a part of a longer array, too."""
    x = numbers((1, height + 70, 64, 4))
    mx.eval(x)
    for part in (slice(None), slice(2, height)):
        for flipped in (x[:, part, ::-1], x[:, part][:, ::-1], x[:, part][:, ::-1, ::-1], x[:, part][..., ::-1]):
            np.testing.assert_array_equal(np.array(mf.max_pool(flipped, 1)), np.array(flipped))
