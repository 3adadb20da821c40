"""The C++ primitives that gather and mix by themselves: every instruction set's tails, tables, threads, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, close, exact, numbers, same_bits, same_bits_for_threads

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

NOTHING = 2**32 - 1
# Broken vectors of every width, and few elements.
CHANNELS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100)
WORDS = (mx.uint8, mx.uint16, mx.uint32, mx.uint64)


def run(op: str, arrays: list[mx.array], params: tuple[int, ...], *outputs: tuple[tuple[int, ...], mx.Dtype]) -> list:
    shapes, dtypes = [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
    return getattr(_primitives, op)(arrays, list(params), shapes, dtypes, mx.cpu)


def table(values: Any) -> mx.array:
    return mx.array(np.array(values, np.uint32))


def gather(x: mx.array, rows: list[int], cols: list[int], fill: float = 0) -> mx.array:
    shape = x.shape[0], len(rows), len(cols), x.shape[3]
    return run("gather_pixels", [x, table(rows), table(cols), mx.array([fill], x.dtype)], (), (shape, x.dtype))[0]


def gathered(x: np.ndarray, rows: list[int], cols: list[int], fill: float = 0) -> np.ndarray:
    y = np.full((x.shape[0], len(rows), len(cols), x.shape[3]), fill, x.dtype)
    for j, row in enumerate(rows):
        for i, col in enumerate(cols):
            if row < x.shape[1] and col < x.shape[2]:
                y[:, j, i] = x[:, row, col]
    return y


def lists(matrix: np.ndarray) -> mx.array:
    """A matrix as the table of its entries that are not zero."""
    begins, entries = [0], []
    for line in matrix:
        for i in np.flatnonzero(line):
            entries += [int(i), *np.array([line[i]]).view(np.uint32).tolist()]
        begins.append(len(entries) // 3)
    return table([*begins, *entries])


def mix(x: mx.array, rows: np.ndarray, cols: np.ndarray) -> mx.array:
    shape = x.shape[0], len(rows), len(cols), x.shape[3]
    return run("resample", [x, lists(rows), lists(cols)], (), (shape, x.dtype))[0]


def sparse(n_out: int, n_in: int, most: int, seed: int) -> np.ndarray:
    """Up to so many weights for each output; some are 1, and some outputs have none."""
    rng = np.random.default_rng([seed, n_out, n_in])
    matrix = np.zeros((n_out, n_in))
    for line in matrix:
        at = rng.permutation(n_in)[: rng.integers(0, most + 1)]
        line[at] = rng.choice([1.0, 0.5, -0.25, 0.3], len(at))
    return matrix


ROWS, COLS = [2, 0, 0, NOTHING, 1, 7], [0, 0, 1, 2, NOTHING, NOTHING, 3, 3, 1, 2, 5]


@pytest.mark.parametrize("dtype", (*DTYPES, *WORDS), ids=str)
@pytest.mark.parametrize("channels", CHANNELS)
def test_gather_pixels(isa: str, channels: int, dtype: mx.Dtype) -> None:
    """Runs, repetitions, gaps, and positions that a table must not have."""
    x = (numbers((2, 3, 4, channels), mx.float32) * 60).astype(dtype)
    x = mx.abs(x) if dtype in WORDS else x
    right = gathered(exact(x), ROWS, COLS, 7)
    np.testing.assert_array_equal(exact(gather(x, ROWS, COLS, 7)), right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("most", (1, 2, 3, 4, 6))
def test_resample(isa: str, channels: int, dtype: mx.Dtype, most: int) -> None:
    """To a larger image, and to a smaller one, which short lists make in one step."""
    x = numbers((2, 6, 7, channels), dtype)
    for width in (9, 5):
        rows, cols = sparse(5, 6, most, 1), sparse(width, 7, most, 2)
        right, size = (
            np.einsum("jh,iw,nhwc->njic", r, c, v)
            for r, c, v in ((rows, cols, exact(x)), (abs(rows), abs(cols), abs(exact(x))))
        )
        close(mix(x, rows, cols), right, size, slack=2)


@pytest.mark.parametrize("channels", (1, 3, 20))
def test_neighbours_that_read_neighbours_are_one_run(isa: str, channels: int) -> None:
    x = numbers((2, 3, 50, channels), mx.float64)
    cols = 0.5 * np.eye(49, 50) + 0.25 * np.eye(49, 50, 1)
    close(mix(x, np.eye(3), cols), np.einsum("iw,nhwc->nhic", cols, exact(x)), 4)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views(isa: str, view: Callable[[mx.array], mx.array], dtype: mx.Dtype) -> None:
    x = numbers((2, 6, 7, 35), dtype)
    assert same_bits(gather(view(x), ROWS, COLS), gather(x, ROWS, COLS))
    rows, cols = sparse(5, 6, 3, 1), sparse(9, 7, 3, 2)
    assert same_bits(mix(view(x), rows, cols), mix(x, rows, cols))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (3, 7, 64))
def test_results_that_are_stored_past_the_caches(isa: str, channels: int, dtype: mx.Dtype) -> None:
    images = 1 + 2**24 // dtype.size // (32 * 32 * channels)
    x = numbers((images, 16, 16, channels), dtype)
    twice = np.repeat(np.eye(16), 2, 0)
    half = np.repeat(np.eye(32), 2, 1)
    places = [i // 2 for i in range(32)]
    wide = numbers((images, 64, 64, channels), dtype)
    for _ in range(2):  # at the latest the second result lies in memory that was used before
        results = gather(x, places, places), mix(x, twice / 3, twice), mix(wide, half, half)
        mx.eval(results)
        for i in (0, images - 1):
            one = x[i : i + 1]
            assert same_bits(results[0][i : i + 1], gather(one, places, places))  # small: through the caches
            assert same_bits(results[1][i : i + 1], mix(one, twice / 3, twice))
            assert same_bits(results[2][i : i + 1], mix(wide[i : i + 1], half, half))
        del results


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_threads(isa: str, dtype: mx.Dtype, threads: Callable[[int], None]) -> None:
    x = numbers((3, 30, 30, 24), dtype)
    rows, cols = sparse(50, 30, 4, 1), sparse(45, 30, 4, 2)
    same_bits_for_threads(threads, lambda: [gather(x, ROWS, COLS), mix(x, rows, cols)])


def test_empty(isa: str) -> None:
    assert gather(mx.zeros((0, 3, 4, 5)), ROWS, COLS).shape == (0, 6, 11, 5)
    assert gather(mx.zeros((2, 3, 4, 0)), ROWS, COLS).shape == (2, 6, 11, 0)
    assert mix(mx.zeros((0, 3, 4, 5)), np.eye(2, 3), np.eye(4)).shape == (0, 2, 4, 5)
    assert not exact(gather(mx.zeros((2, 0, 4, 5)), ROWS, COLS)).any()
    nothing = [mx.zeros((2, 0, 4, 5)), table([0, 0]), table([0, 1, 0, 0, 0])]
    assert not exact(run("resample", nothing, (), ((2, 1, 1, 5), mx.float32))[0]).any()


@pytest.mark.parametrize("seed", range(20))
def test_forged_tables_do_no_harm(isa: str, seed: int) -> None:
    """Whatever they say, nothing outside the image is read, and nothing grows past the table."""
    rng = np.random.default_rng(seed)
    x = mx.ones((1, 3, 4, 5))
    for span in (8, 2**32):
        rows, cols = (rng.integers(0, span, n).tolist() for n in (6, 5))
        mx.eval(gather(x, rows, cols))
        shape = ((1, 3, 4, 5), mx.float32)
        forged = [table(rng.integers(0, span, n + 1 + 3 * 9)) for n in (3, 4)]
        mx.eval(run("resample", [x, *forged], (), shape))
    backwards = [table([9, 5, 2, 0] + [0] * 27), table([0, 9, 0, 9, 0] + [0] * 27)]
    mx.eval(run("resample", [x, *backwards], (), ((1, 3, 4, 5), mx.float32)))


U32 = mx.uint32
X, Y = ((2, 3, 4, 5), mx.float32), ((2, 6, 8, 5), mx.float32)
ROW, COL, ONE = ((6,), U32), ((8,), U32), ((1,), mx.float32)
MANY, ALSO = ((7 + 3,), U32), ((9,), U32)
I32 = ((2, 3, 4, 5), mx.int32)


@pytest.mark.parametrize(
    ("op", "inputs", "params", "outputs"),
    [
        ("gather_pixels", [X, ROW, COL], (), [Y]),
        ("gather_pixels", [X, ROW, COL, ONE], (1,), [Y]),
        ("gather_pixels", [X, ROW, COL, ONE], (), []),
        ("gather_pixels", [X, COL, ROW, ONE], (), [Y]),
        ("gather_pixels", [X, ROW, COL, ((2,), mx.float32)], (), [Y]),
        ("gather_pixels", [X, ROW, COL, ((1,), mx.float16)], (), [Y]),
        ("gather_pixels", [X, ROW, ((8,), mx.int32), ONE], (), [Y]),
        ("gather_pixels", [X, ((6, 1), U32), COL, ONE], (), [Y]),
        ("gather_pixels", [X, ROW, COL, ONE], (), [((1, 6, 8, 5), mx.float32)]),
        ("gather_pixels", [X, ROW, COL, ONE], (), [((2, 6, 8, 4), mx.float32)]),
        ("gather_pixels", [X, ROW, COL, ONE], (), [((2, 6, 8), mx.float32)]),
        ("gather_pixels", [X, ROW, COL, ONE], (), [((2, 6, 8, 5), mx.float16)]),
        ("gather_pixels", [I32, ROW, COL, ((1,), mx.int32)], (), [((2, 6, 8, 5), mx.int32)]),
        ("resample", [X, MANY], (), [Y]),
        ("resample", [X, MANY, ALSO], (0,), [Y]),
        ("resample", [X, ((6,), U32), ALSO], (), [Y]),
        ("resample", [X, ((9,), U32), ALSO], (), [Y]),
        ("resample", [X, MANY, ((11,), U32)], (), [Y]),
        ("resample", [X, ((10,), mx.float32), ALSO], (), [Y]),
        ("resample", [((2, 3, 4, 5), U32), MANY, ALSO], (), [((2, 6, 8, 5), U32)]),
        ("resample", [X, MANY, ALSO], (), [((2, 6, 8, 5), mx.float64)]),
    ],
)
def test_malformed_calls_are_refused(op: str, inputs: list, params: tuple[int, ...], outputs: list) -> None:
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        run(op, [mx.zeros(shape, dtype) for shape, dtype in inputs], params, *outputs)
