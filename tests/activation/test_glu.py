"""The gated linear unit on the CPU: every dtype and instruction set, views, threads, and the ends of the range."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from generic.ops.glu import gradient as slopes
from generic.ops.glu import value
from support import DTYPES, close, exact, numbers, same_bits, same_bits_for_threads

import mpsfunc as mf
from mpsfunc.activation import glu_rules
from mpsfunc.core import launch

INF, NAN = float("inf"), float("nan")
# A half of one, of fewer than a vector, of vectors and a rest, of whole ones; several chunks of each kind.
SHAPES = (((301, 2), -1), ((60, 313, 6), -1), ((7, 38), -1), ((90, 301, 64), -1), ((2, 41, 37), 0), ((5, 8, 7), 1))


def gradient(x: mx.array, dy: mx.array, axis: int = -1) -> mx.array:
    (dx,) = mx.vjp(lambda x: mf.glu(x, axis), [x], [dy])[1]
    return dx


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_definition(isa: str, on_cpu: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...], axis: int) -> None:
    x = (numbers(shape) * 8).astype(dtype)
    right = value(exact(x), axis)
    dy = numbers(right.shape, dtype, 1)
    close(mf.glu(x, axis), right, abs(right) + 1e-3, slack=4)
    slope = slopes(exact(dy), exact(x), axis)
    close(gradient(x, dy, axis), slope, abs(slope) + 1e-3, slack=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_that_start_one_element_in(isa: str, on_cpu: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = numbers((7 * 96 + 1,), dtype), numbers((7 * 48 + 1,), dtype, 1)
    moved, by = x[1:].reshape(7, 96), dy[1:].reshape(7, 48)
    whole, of_whole = (mx.array(exact(a), dtype) for a in (moved, by))
    assert same_bits(mf.glu(moved), mf.glu(whole))
    assert same_bits(gradient(moved, by), gradient(whole, of_whole))


def test_threads_do_not_change_bits(on_cpu: mx.Device, threads: Callable[[int], None]) -> None:
    xs = [(numbers(shape), axis) for shape, axis in SHAPES]
    dys = [mf.glu(x, axis) for x, axis in xs]
    same_bits_for_threads(
        threads,
        lambda: [mf.glu(*x) for x in xs] + [gradient(x, dy, axis) for (x, axis), dy in zip(xs, dys, strict=True)],
        (1, 2, 5),
    )


def test_ends_of_the_range(device: mx.Device, dtype: mx.Dtype) -> None:
    """A gate that is shut passes nothing of a number, and NaN stays where it is."""
    v, g = [2.0, -3.0, 2.0, INF, INF, NAN, 1.0, 0.0], [INF, -INF, 200.0, 200.0, -INF, 0.0, NAN, 5.0]
    x, ones = mx.array([*v, *g], dtype), mx.ones(8, dtype)
    assert np.array_equal(exact(mf.glu(x)), [2, 0, 2, INF, NAN, NAN, NAN, 0], equal_nan=True)
    by_v, by_g = np.split(exact(gradient(x, ones)), 2)
    assert np.array_equal(by_v[:4], [1, 0, 1, 1]) and by_v[5] == 0.5 and np.isnan(by_v[6])
    assert np.array_equal(by_g[:2], [0, 0]) and by_g[2] < 1e-30 and np.isnan(by_g[5:7]).all()


def test_small_slopes_keep_their_digits(on_cpu: mx.Device) -> None:
    """At a gate of 30 or of -30 its slope is e ** -30, not the rounding of what is left of 1."""
    x = mx.array([1.0, 1.0, 30.0, -30.0])
    np.testing.assert_allclose(exact(gradient(x, mx.ones(2)))[2:], np.exp(-30.0), rtol=1e-6)


def test_no_copies_of_halves(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One operation a direction, which is handed x as it is."""
    x, seen, made = numbers((4, 6, 8)), [], launch.launch

    def watched(op: str, arrays: dict[str, mx.array], *rest: object) -> list[mx.array]:
        seen.append((op, sorted(arrays), arrays["x"].size))
        return made(op, arrays, *rest)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(launch, "launch", watched)
    mx.eval(gradient(x, numbers((4, 6, 4), seed=1)))
    assert seen == [("glu", ["x"], x.size), ("glu_grad", ["dy", "x"], x.size)]


X, HALF, F32 = (2, 2, 3, 4), (2, 3, 4), mx.float32
MALFORMED: tuple[tuple[str, list[tuple[int, ...]], tuple[int, ...], list[tuple[int, ...]]], ...] = (
    ("glu", [], (), [HALF]),
    ("glu", [X], (0,), [HALF]),
    ("glu", [X], (), [X]),
    ("glu", [(2, 3, 3, 4)], (), [HALF]),
    ("glu", [(4, 3, 4)], (), [HALF]),
    ("glu", [X], (), [HALF, HALF]),
    ("glu_grad", [X], (), [X]),
    ("glu_grad", [X, X], (), [X]),
    ("glu_grad", [HALF, (2, 2, 3, 5)], (), [X]),
    ("glu_grad", [HALF, X], (), [HALF]),
)


@pytest.mark.parametrize(("op", "inputs", "params", "outputs"), MALFORMED)
def test_malformed_calls_are_refused(
    on_cpu: mx.Device,
    op: str,
    inputs: list[tuple[int, ...]],
    params: tuple[int, ...],
    outputs: list[tuple[int, ...]],
) -> None:
    kernel = getattr(launch.module(op), op)
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        kernel([mx.zeros(shape) for shape in inputs], params, outputs, [F32] * len(outputs), mx.cpu)
    with pytest.raises(ValueError, match=f"^{op}: expected "):
        right = {"glu": ([X], [HALF]), "glu_grad": ([HALF, X], [X])}[op]
        kernel([mx.zeros(shape) for shape in right[0]], (), right[1], [mx.float16], mx.cpu)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^glu: x is too large; got x.shape=\(65536, 65536, 2\), expected products"):
        glu_rules.halves((65536, 65536, 2), 2)
    assert glu_rules.halves((65536, 65538, 7), 1) == (65536, 2, 32769, 7)  # more than 2 ** 31 elements
