"""The C++ primitives by themselves: every instruction set, dtype and broken vector, and what the binding refuses."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, accumulator, close, exact, numbers, same_bits
from support.oracle import pooling as oracle

from mpsfunc.channels.activation_spec import NO_ACTIVATION, RELU, Activation
from mpsfunc.core.params import for_cpu
from mpsfunc.windows.axis import Axis

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its CPU module")

ISAS = _primitives.isas()
PLAIN = for_cpu(NO_ACTIVATION)
LIST = Path(__file__).parents[2] / "primitives" / "runtime" / "operations.h"
OPERATIONS = re.findall(r"^  X\((\w+)\)", LIST.read_text(), re.MULTILINE)

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
    images = 1 + 5 * 2**20 // dtype.size // (32 * 32 * channels)
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
    bits = []
    for count in (1, 2, 3, 2):
        threads(count)
        mean, var = stats(x)
        arrays = [mean, var, *stats_grad(x, x, mean), pool(x, side, side), pool_grad(dy, side, side)]
        mx.eval(arrays)
        bits.append(arrays)
    for other in bits[1:]:
        assert all(same_bits(a, b) for a, b in zip(bits[0], other, strict=True))


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


# The binding ----------------------------------------------------------------------------------------------

IMAGE, VECTOR = ((2, 7, 8, 3), mx.float32), ((3,), mx.float32)
POOLED = ((2, 4, 4, 3), mx.float32)
CONVOLVED, WEIGHTS = ((2, 4, 4, 5), mx.float32), ((5, 3, 3, 3), mx.float32)
NUMBERS = PLAIN[1:]  # parameters of an activation
GOOD = (*AXES["3x3 s2 p1"][0], *AXES["3x3 s2 p1"][1])


def _params(**changes: int) -> tuple[int, ...]:
    return (*AXES["3x3 s2 p1"][0]._replace(**changes), *AXES["3x3 s2 p1"][1])


# 7 * 8 * 3 entries of two images, in one line of each; behind that, operands alike and the operations' own params.
LINES, ALIKE, ROW = (2, 1, 56, 3), (2, 1, 1, 56, 3), (1, 2, 1, 1, 3)
KEYS, MASK = ((2, 2), mx.uint32), ((2, 7, 8, 3), mx.uint8)
DROP, NUMBERS = (*LINES, *ALIKE, *ALIKE), (0,) * 10
ELEMENTS: list[tuple[str, list, tuple[int, ...], list]] = [
    ("dropout", [IMAGE], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((2, 3), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((2, 2), mx.int32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((5, 2), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, ((0, 2), mx.uint32)], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout", [MASK, KEYS], (*DROP, 5, 0, 0), [MASK]),
    ("dropout", [IMAGE, KEYS], (*DROP, 5, 0), [IMAGE]),
    ("dropout", [IMAGE, KEYS], (*LINES, *ALIKE, *ROW, 5, 0, 0), [IMAGE]),
    ("dropout", [IMAGE, KEYS], (2, 1, 55, 3, *ALIKE, *ALIKE, 5, 0, 0), [IMAGE]),
    ("dropout", [POOLED, KEYS], (*DROP, 5, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, IMAGE], (*DROP, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, ((3,), mx.uint8)], (*DROP, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 3, 1, 1, 56, 3, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 2, 0, 1, 56, 3, 0, 0), [IMAGE]),
    ("dropout_by_mask", [IMAGE, MASK], (*LINES, *ALIKE, 2, 1, 1, 28, 3, 0, 0), [IMAGE]),
    ("dropout_mask", [((3, 2), mx.uint32)], (5,), [((4,), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((4,), mx.bool_)]),
    ("dropout_mask", [KEYS], (5,), [((4, *[1] * 8), mx.uint8)]),
    ("dropout_mask", [KEYS], (), [((4,), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**20, 2**20), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**31 - 1, 2**30, 2**30, 2**30), mx.uint8)]),
    ("dropout_mask", [KEYS], (5,), [((2**16,) * 4, mx.uint8)]),  # 2^64, which wraps to 0
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 4, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 0, 4, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (*LINES, *ALIKE, *ROW, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, ((2, 7, 8, 3), mx.float16)], (*LINES, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (0, 1, 56, 3, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic", [IMAGE, IMAGE], (2, 2**16, 2**15, 3, *ALIKE, *ALIKE, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 0, 1, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 2, 0, 0, 0, 1, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE, VECTOR], (*LINES, *ALIKE, *ALIKE, *ALIKE, 2, 0, 0, 0, 1, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 0, 1, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ALIKE, *ALIKE, *ALIKE, 0, 2, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("arithmetic_grad", [IMAGE], (*LINES, *ROW, *ALIKE, *ALIKE, 0, 0, 0, 0, 0, *NUMBERS), [IMAGE]),
    ("compare", [IMAGE, IMAGE], (*LINES, *ALIKE, *ALIKE, 6, 0, 0), [IMAGE]),
    ("compare", [MASK, MASK], (*LINES, *ALIKE, *ALIKE, 0, 0, 0), [MASK]),
    ("compare", [IMAGE, POOLED], (*LINES, *ALIKE, *ALIKE, 0, 0, 0), [IMAGE]),
]


@pytest.mark.parametrize(
    ("op", "inputs", "params", "outputs"),
    [
        ("avg_pool", [], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE, IMAGE], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD[1:], [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, []),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 4, 4), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((3, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 5, 3), mx.float32)]),
        ("avg_pool", [IMAGE], GOOD, [((2, 4, 4, 3), mx.float16)]),
        ("avg_pool", [((2, 7, 8), mx.float32)], GOOD, [((2, 4, 4), mx.float32)]),
        ("avg_pool", [((2, 7, 8, 3), mx.int32)], GOOD, [((2, 4, 4, 3), mx.int32)]),
        ("avg_pool", [IMAGE], _params(n_in=8), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(stride=0), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(dilation=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(size=0), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=2), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(end=5), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(pad=-(2**31)), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(stride=2**29), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=4), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad_after=-1), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad=2**30 - 7), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=1, zero_pad_after=2**30 - 7), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool", [IMAGE], _params(edge=3, size=2), [((2, 4, 4, 3), mx.float32)]),  # a window has three pixels
        ("avg_pool", [IMAGE], _params(edge=3, size=3, dilation=2), [((2, 4, 4, 3), mx.float32)]),
        ("avg_pool_grad", [IMAGE], GOOD, [((2, 4, 4, 3), mx.float32)]),
        ("max_pool", [IMAGE], _params(edge=3, size=2), [POOLED, ((2, 4, 4, 3), mx.uint8)]),
        ("l2_pool", [IMAGE], _params(edge=2), [POOLED]),
        ("l2_pool", [((2, 7, 8, 3), mx.float16)], GOOD, [((2, 4, 4, 3), mx.float16)]),
        ("l2_pool", [((2, 0, 8, 3), mx.float32)], _params(n_in=0, edge=1), [POOLED]),
        ("l2_pool_grad", [POOLED, IMAGE], GOOD, [IMAGE]),
        ("l2_pool_grad", [POOLED, IMAGE, IMAGE], GOOD, [IMAGE]),
        ("l2_pool_grad", [POOLED, IMAGE, ((2, 4, 4, 3), mx.float16)], GOOD, [IMAGE]),
        ("l2_pool_jvp", [IMAGE, POOLED, POOLED], GOOD, [POOLED]),
        ("conv", [IMAGE, WEIGHTS, ((4,), mx.float32)], (*GOOD, 1, 0, 1, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 0, 0, 1, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 2, 1, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, -1, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 15, 1, *NUMBERS), [CONVOLVED]),
        ("conv", [IMAGE, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1), [CONVOLVED]),
        ("conv_grad_input", [CONVOLVED, ((5, 3, 2, 3), mx.float32), VECTOR], (*GOOD, 1, 0, 1, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS], (*GOOD, 1, 0, 1, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, ((5,), mx.float32)], (*GOOD, 1, 0, 1, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, ((3,), mx.float16)], (*GOOD, 1, 0, 1, *NUMBERS), [IMAGE]),
        ("conv_grad_input", [CONVOLVED, WEIGHTS, VECTOR], (*GOOD, 1, 2, 1, *NUMBERS), [IMAGE]),
        ("conv_grad_weights", [((2, 4, 4, 4), mx.float32), IMAGE], (*GOOD, 3, 1), [((4, 3, 3, 1), mx.float32)]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 2), [WEIGHTS]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1), [WEIGHTS, VECTOR]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1), [WEIGHTS, ((5,), mx.float16)]),
        ("conv_grad_weights", [CONVOLVED, IMAGE], (*GOOD, 1, 1), []),
        ("neuron_grad_from_output", [IMAGE], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, POOLED], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, ((2, 7, 8, 3), mx.float16)], (1, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1, *NUMBERS), [((2, 7, 8, 3), mx.float16)]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1, *NUMBERS), [POOLED]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (0, *NUMBERS), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (1,), [IMAGE]),
        ("neuron_grad_from_output", [IMAGE, IMAGE], (), [IMAGE]),
        (
            "neuron_grad_from_output",
            [IMAGE, IMAGE],
            for_cpu(Activation(RELU, -1.0)),
            [IMAGE],
        ),  # both signs come out the same
        ("neuron_grad_from_output", [IMAGE, IMAGE], (15, *NUMBERS), [IMAGE]),  # a gelu's result does not tell
        (
            "neuron_grad_from_output",
            [IMAGE, IMAGE],
            (3, *NUMBERS),
            [IMAGE],
        ),  # nor does that of a sigmoid, once it is rounded
        ("neuron", [IMAGE], (16, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (-1, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (1,), [IMAGE]),
        ("neuron", [IMAGE, VECTOR], (1, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE], (10, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE, ((4,), mx.float32)], (10, *NUMBERS), [IMAGE]),
        ("neuron", [IMAGE, ((3,), mx.float16)], (10, *NUMBERS), [IMAGE]),
        ("neuron", [((), mx.float32), ((1,), mx.float32)], (10, *NUMBERS), [((), mx.float32)]),
        ("neuron_grad", [IMAGE, POOLED], (3, *NUMBERS), [IMAGE]),
        ("neuron_grad", [IMAGE, IMAGE], (10, *NUMBERS), [IMAGE]),
        ("neuron_grad_grad", [IMAGE, IMAGE], (3, *NUMBERS), [IMAGE]),
        ("neuron_grad_grad", [IMAGE, IMAGE, IMAGE], (10, *NUMBERS), [IMAGE]),
        ("bn_normalize", [IMAGE, *[((1, 3), mx.float32)] * 3], (0,), [IMAGE]),
        ("bn_normalize", [IMAGE, *[((1, 3), mx.float32)] * 3], (10, *NUMBERS), [IMAGE]),
        ("bn_grad", [IMAGE, IMAGE, *[((1, 3), mx.float32)] * 4], (3, *NUMBERS), [IMAGE]),
        ("conv_grad_bias", [IMAGE], (), [((4,), mx.float32)]),
        *ELEMENTS,
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: list, params: tuple[int, ...], outputs: list) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, *outputs)


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_operation_says_what_it_takes(op: str) -> None:
    """One without a case in check.cpp takes anything."""
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [], ())


@pytest.mark.parametrize("bad", ("x", [1.5], [2**40], None))
def test_wrong_types_are_refused(bad: object) -> None:
    with pytest.raises(TypeError):
        _primitives.avg_pool([mx.zeros((1, 1, 1, 1))], bad, [[1, 1, 1, 1]], [mx.float32], mx.cpu)


def test_equal_calls_are_merged_by_the_compiler() -> None:
    axes = AXES["3x3 s2 p1"]

    def twice(x: mx.array) -> mx.array:
        return pool(x, *axes) + pool(x, *axes) + pool(x, axes[0]._replace(edge=1), axes[1])

    graph = io.StringIO()
    mx.export_to_dot(graph, mx.compile(twice)(numbers((2, 7, 8, 3))))
    assert graph.getvalue().count('label ="avg_pool"') == 2


def test_a_shapeless_trace_refuses_other_shapes() -> None:
    axes = AXES["3x3 s2 p1"]
    pooled = mx.compile(lambda x: pool(x, *axes), shapeless=True)
    x = numbers((2, 7, 8, 3))
    assert same_bits(pooled(x), pool(x, *axes))
    with pytest.raises(ValueError, match="avg_pool: traced for other shapes"):
        mx.eval(pooled(numbers((3, 7, 8, 3))))
