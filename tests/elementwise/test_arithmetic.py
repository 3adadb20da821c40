"""Arithmetic on two operands, its gradients, and comparison."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, close, exact, numbers, primitives, same_bits_for_threads
from support.oracle import elementwise as oracle

import mpsfunc as mf

OPERATIONS = tuple(oracle.OPERATIONS)
OPERANDS = ("primary", "secondary")
SCALES = (1.5, -0.75, 0.25)
NONE = (None, None)
PLAIN = ((1, 1, 1), (1, 1, 1))
each = pytest.mark.parametrize("operation", OPERATIONS)


def told(scales: Any = SCALES, limits: Any = NONE, strides: Any = PLAIN) -> dict[str, Any]:
    names = ("primary_scale", "secondary_scale", "bias", "minimum", "maximum", "primary_stride", "secondary_stride")
    return dict(zip(names, (*scales, *limits, *strides), strict=True))


def apart(y: mx.array) -> mx.array:
    """Away from 0, for it divides."""
    return mx.where(y < 0, y - 1, y + 1)


def check(
    x: mx.array,
    y: mx.array,
    operation: str,
    limits: Any = NONE,
    strides: Any = PLAIN,
    *,
    scales: Any = SCALES,
    view: str = "contiguous",
    slow: bool = True,
) -> None:
    """The value and both gradients against the definition."""
    seen, args = VIEWS[view], told(scales, limits, strides)
    right = oracle.arithmetic(exact(x), exact(y), operation, scales, limits, strides)
    made = mf.arithmetic(seen(x), seen(y), operation, **args)
    assert made.dtype == x.dtype
    sizes = [abs(exact(a)) for a in (x, y)]
    sums, terms = "add" if operation == "subtract" else operation, tuple(map(abs, scales))
    close(made, right, oracle.arithmetic(*sizes, sums, terms, strides=strides), slack=2)
    if not slow:
        return
    dy = numbers(right.shape, x.dtype, 2)
    for which, clamp in itertools.product((0, 1), (False, True)):
        args_of = (operation, which, scales, limits, strides)
        expected = oracle.arithmetic_grad(exact(dy), exact(x), exact(y), *args_of, clamp=clamp)
        grad = mf.arithmetic_grad(seen(dy), seen(x), seen(y), operation, operand=OPERANDS[which], clamp=clamp, **args)
        assert grad.dtype == x.dtype
        size = oracle.arithmetic_grad(abs(exact(dy)), *sizes, operation, which, terms, NONE, strides)
        close(grad, expected, abs(size), slack=4)


# Worked numbers -----------------------------------------------------------------------------------------

X = mx.arange(1.0, 9.0, stream=mx.cpu).reshape(1, 2, 2, 2, stream=mx.cpu)
Y = mx.array([10.0, 100.0]).reshape(1, 1, 1, 2, stream=mx.cpu)
WORKED = {
    ("multiply", "primary"): [10, 200, 30, 400, 50, 600, 70, 800],
    ("multiply", "secondary"): [84, 120],
    ("add", "primary"): [1, 2, 3, 4, 5, 6, 7, 8],
    ("add", "secondary"): [16, 20],
    ("subtract", "primary"): [1, 2, 3, 4, 5, 6, 7, 8],
    ("subtract", "secondary"): [-16, -20],
}


@pytest.mark.parametrize(("which", "expected"), WORKED.items(), ids=str)
def test_worked_gradients(device: mx.Device, which: tuple[str, str], expected: list[float]) -> None:
    made = mf.arithmetic_grad(X, X, Y, which[0], operand=which[1])
    assert made.reshape(-1).tolist() == expected


def test_worked_values(device: mx.Device) -> None:
    """Scales and a bias by hand, and limits on both sides."""
    x, y = mx.array([1.0, 2.0, -3.0]), mx.array([4.0, 0.5, 2.0])
    args = {"primary_scale": 2.0, "secondary_scale": -1.0, "bias": 0.5}
    assert mf.add(x, y, **args).tolist() == [-1.5, 4.0, -7.5]
    assert mf.subtract(x, y, **args).tolist() == [6.5, 5.0, -3.5]
    assert mf.multiply(x, y, **args).tolist() == [-7.5, -1.5, 12.5]
    assert mf.divide(x, y, **args).tolist() == [0.0, -7.5, 3.5]
    assert mf.divide(x, y, **args, minimum=-1.0, maximum=2.0).tolist() == [0.0, -1.0, 2.0]


def test_the_clamp_of_a_gradient_is_asked_for(device: mx.Device) -> None:
    """MPS leaves it out of the gradient kernel; the derivative of the value has it, and so has clamp=True."""
    x, y, dy = mx.array([1.0, 2.0, 3.0, 4.0]), mx.array([1.0, 1.0, 1.0, 1.0]), mx.array([1.0, 10.0, 100.0, 1000.0])
    limits = {"minimum": 2.0, "maximum": 4.0}  # r is 2, 3, 4, 5: only strictly between
    assert mf.arithmetic_grad(dy, x, y, "add", **limits).tolist() == [1, 10, 100, 1000]
    assert mf.arithmetic_grad(dy, x, y, "add", **limits, clamp=True).tolist() == [0, 10, 0, 0]
    assert mx.grad(lambda x: (mf.add(x, y, **limits) * dy).sum())(x).tolist() == [0, 10, 0, 0]


# The definition -----------------------------------------------------------------------------------------

SHAPES = {
    "alike": ((2, 3, 4, 5), (2, 3, 4, 5)),
    "whole vectors": ((2, 3, 4, 16), (2, 3, 4, 16)),
    "a channel": ((2, 3, 4, 5), (1, 1, 1, 5)),
    "a channel of each image": ((2, 3, 4, 16), (2, 1, 1, 16)),
    "a pixel": ((2, 3, 4, 5), (1, 3, 4, 1)),
    "a pixel of each image": ((2, 3, 4, 8), (2, 3, 4, 1)),
    "a number": ((2, 3, 4, 5), (1, 1, 1, 1)),
    "a row": ((2, 3, 4, 5), (1, 1, 4, 5)),
    "a column": ((2, 3, 4, 5), (2, 3, 1, 1)),
    "both": ((2, 1, 4, 1), (1, 3, 1, 5)),
    "both images": ((2, 1, 4, 5), (1, 3, 4, 5)),
    "the first": ((1, 1, 1, 8), (2, 3, 4, 8)),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1)),
}


@each
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_definition(device: mx.Device, dtype: mx.Dtype, operation: str, shapes: Any) -> None:
    x, y = numbers(shapes[0], dtype), apart(numbers(shapes[1], dtype, 1))
    check(x, y, operation)


@each
@pytest.mark.parametrize("limits", [(-0.5, None), (None, 0.75), (-1.0, 1.0), (0.25, 0.25)], ids=str)
def test_limits(device: mx.Device, operation: str, limits: Any) -> None:
    for shapes in (SHAPES["alike"], SHAPES["a channel"], SHAPES["both"]):
        check(numbers(shapes[0]), apart(numbers(shapes[1], seed=1)), operation, limits)


@each
def test_strides(device: mx.Device, operation: str) -> None:
    x, y = numbers((2, 3, 4, 5)), apart(numbers((2, 3, 4, 5), seed=1))
    for first, second in itertools.product([(1, 1, 1), (0, 1, 1), (1, 0, 0)], [(1, 1, 1), (0, 0, 1), (1, 1, 0)]):
        check(x, y, operation, strides=(first, second))


def test_a_stride_of_0_reads_the_first_entry(device: mx.Device) -> None:
    x = mx.arange(12.0).reshape(1, 2, 3, 2)
    y = mf.add(x, x, primary_stride=(0, 0, 0))
    assert mx.array_equal(y, x)  # x[0] is 0
    dx = mf.arithmetic_grad(mx.ones_like(x), x, x, "add", primary_stride=(0, 1, 0))
    assert dx.reshape(-1).tolist() == [4, 0, 4, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    narrow = mf.add(x, x, primary_stride=(0, 1, 1), secondary_stride=(0, 1, 1))
    assert narrow.shape == (1, 1, 3, 2)  # nobody goes along y


@each
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (2, 3, 2, 1, 4)], ids=str)
def test_any_shape(device: mx.Device, operation: str, shape: tuple[int, ...]) -> None:
    x, y = numbers(shape), apart(numbers(shape, seed=1))
    for limits in (NONE, (-1.0, 0.5)):
        check(x, y, operation, limits)


@each
@pytest.mark.parametrize("view", VIEWS)
def test_views(device: mx.Device, dtype: mx.Dtype, operation: str, view: str) -> None:
    for shapes in (SHAPES["whole vectors"], SHAPES["a channel"]):
        check(numbers(shapes[0], dtype), apart(numbers(shapes[1], dtype, 1)), operation, view=view)


@each
def test_plain_operations_are_mlx_own(device: mx.Device, dtype: mx.Dtype, operation: str) -> None:
    x, y = numbers((2, 9, 8, 5), dtype), apart(numbers((2, 9, 8, 5), dtype, 1))
    close(getattr(mf, operation)(x, y), exact(getattr(mx, operation)(x, y)))


def test_lines_longer_than_what_is_worked_on_at_a_time(device: mx.Device) -> None:
    for shapes in (
        ((2, 1, 2, 5000), (1, 1, 2, 1)), ((2, 3, 1, 4100), (2, 1, 1, 4100)), ((1, 2, 900, 7), (1, 2, 1, 7)),
        ((1, 2, 900, 7), (1, 2, 900, 1)), ((3, 1, 700, 3), (1, 1, 1, 3)), ((3, 1, 2500, 1), (3, 1, 1, 1)),
    ):  # fmt: skip
        x, y = numbers(shapes[0]), numbers(shapes[1], seed=1)
        check(x, y, "multiply", slow=False)
        check(y, x, "subtract", slow=False)


@each
def test_empty_batches(device: mx.Device, operation: str) -> None:
    x, y = mx.zeros((0, 3, 4, 5)), mx.ones((1, 1, 1, 5))
    assert getattr(mf, operation)(x, y).shape == x.shape
    assert mf.arithmetic_grad(x, x, y, operation).shape == x.shape
    assert mf.arithmetic_grad(x, x, y, operation, operand="secondary").tolist() == [[[[0] * 5]]]
    assert mx.grad(lambda y: getattr(mf, operation)(x, y).sum())(y).tolist() == [[[[0] * 5]]]


def test_doubles_are_computed_in_doubles(on_cpu: mx.Device) -> None:
    x, y = numbers((1, 4, 4, 3), mx.float64), apart(numbers((1, 1, 1, 3), mx.float64, 1))
    scales = (1 / 3, 1 / 7, 1 / 11)
    for operation in OPERATIONS:
        right = oracle.arithmetic(exact(x), exact(y), operation, scales)
        np.testing.assert_allclose(exact(mf.arithmetic(x, y, operation, **told(scales))), right, rtol=1e-14, atol=1e-15)


@given(
    lengths=st.tuples(st.integers(1, 3), *[st.integers(1, 5)] * 2, st.sampled_from([1, 2, 5, 8, 17])),
    ones=st.tuples(*[st.sampled_from(["neither", "first", "second"])] * 4),
    dtype=st.sampled_from(DTYPES),
    operation=st.sampled_from(OPERATIONS),
    limits=st.sampled_from([NONE, (-0.5, 1.5), (None, 0.1)]),
    view=st.sampled_from(sorted(VIEWS)),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(lengths: Any, ones: Any, dtype: mx.Dtype, operation: str, limits: Any, view: str) -> None:
    first, second = (
        tuple(1 if o == name else n for n, o in zip(lengths, ones, strict=True)) for name in ("first", "second")
    )
    with mx.stream(mx.cpu):
        check(numbers(first, dtype), apart(numbers(second, dtype, 1)), operation, limits, view=view)


# What is not finite -------------------------------------------------------------------------------------


def test_infinities_pass_without_limits_and_stop_at_them(device: mx.Device, dtype: mx.Dtype) -> None:
    x, y = mx.array([np.inf, -np.inf, np.nan, 1.0], dtype), mx.ones(4, dtype)
    assert np.array_equal(exact(mf.add(x, y)), [np.inf, -np.inf, np.nan, 2], equal_nan=True)
    assert np.array_equal(exact(mf.add(x, y, minimum=-3, maximum=3)), [3, -3, np.nan, 2], equal_nan=True)
    assert np.array_equal(exact(mf.add(x, y, maximum=3)), [3, -np.inf, np.nan, 2], equal_nan=True)
    assert np.array_equal(exact(mf.divide(y, 0 * y)), [np.inf] * 4)


def test_no_gradient_of_what_was_cut_off(device: mx.Device) -> None:
    x, dy = mx.array([np.inf, -np.inf, 1.0, 5.0]), mx.array([1.0, 2.0, 3.0, 4.0])
    for clamp, expected in ((True, [0, 0, 3, 0]), (False, [1, 2, 3, 4])):
        made = mf.arithmetic_grad(dy, x, mx.zeros(4), "add", minimum=-2.0, maximum=2.0, clamp=clamp)
        assert made.tolist() == expected
    only = mf.arithmetic_grad(dy, x, mx.zeros(4), "add", maximum=2.0, clamp=True)
    assert only.tolist() == [0, 2, 3, 0]


# Sums ---------------------------------------------------------------------------------------------------


def test_sums_of_narrow_floats_are_wide(device: mx.Device) -> None:
    """In float16 the sum of 2^16 ones would stop at 2048; here it leaves float16's range at the end only."""
    dy, y = mx.full((4, 64, 64, 3), 0.25, mx.float16), mx.ones((1, 1, 1, 3), mx.float16)
    for operation in ("add", "multiply"):
        made = mf.arithmetic_grad(dy, mx.ones_like(dy), y, operation, operand="secondary")
        assert made.reshape(-1).tolist() == [4096] * 3
    rows = mf.arithmetic_grad(dy, mx.ones_like(dy), mx.ones((1, 64, 1, 3), mx.float16), "multiply", operand="secondary")
    assert mx.array_equal(rows, mx.full((1, 64, 1, 3), 64.0, mx.float16))


@pytest.mark.parametrize("shape", [(1, 1, 1, 24), (1, 56, 1, 24), (3, 1, 1, 1)], ids=str)
def test_same_bits_every_time_and_with_any_threads(on_cpu: mx.Device, threads: Any, shape: tuple[int, ...]) -> None:
    x, dy, y = numbers((3, 56, 56, 24)), numbers((3, 56, 56, 24), seed=1), apart(numbers(shape, seed=2))

    def everything() -> list[mx.array]:
        grads = [mf.arithmetic_grad(dy, x, y, "divide", operand=o, maximum=2.0, clamp=True) for o in OPERANDS]
        return [mf.divide(x, y, bias=0.5, maximum=2.0), *grads]

    same_bits_for_threads(threads, everything)


def test_every_instruction_set(on_cpu: mx.Device, isa: str, dtype: mx.Dtype) -> None:
    for shapes in SHAPES.values():
        for operation in OPERATIONS:
            check(numbers(shapes[0], dtype), apart(numbers(shapes[1], dtype, 1)), operation, (-1.0, 1.0))


def test_results_that_are_stored_past_the_caches(on_cpu: mx.Device) -> None:
    x, y = numbers((25, 70, 70, 35)), numbers((1, 1, 1, 35), seed=1)
    expected = x * y
    for _ in range(3):  # at the latest the second result lies in memory that was used before
        made = mf.multiply(x, y)
        mx.eval(made)
        assert mx.array_equal(made, expected)
        del made


# Transformations beyond the matrix ----------------------------------------------------------------------


def test_a_gradient_that_nobody_asks_for_is_not_computed(on_cpu: mx.Device) -> None:
    x, y = numbers((2, 3, 4, 5)), numbers((1, 1, 1, 5), seed=1)
    only = mx.grad(lambda x: mf.multiply(x, y).sum())(x)
    assert "conv_grad_bias" not in primitives(only)


def test_nobody_is_copied_where_one_operand_is_mapped(on_cpu: mx.Device) -> None:
    x, y = mx.zeros((1, 64, 64, 64)), mx.ones((4, 1, 1, 1, 64))
    mx.eval(x, y)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mx.vmap(lambda y: mf.multiply(x, y))(y))
    assert mx.get_peak_memory() - before < 4.5 * x.nbytes


# Comparison ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comparison", oracle.COMPARISONS)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_comparisons(device: mx.Device, dtype: mx.Dtype, comparison: str, shapes: Any) -> None:
    x, y = (mx.round(numbers(shape, mx.float32, seed)).astype(dtype) for seed, shape in enumerate(shapes))
    made = mf.compare(x, y, comparison)
    assert made.dtype == dtype
    assert np.array_equal(exact(made), oracle.COMPARISONS[comparison](exact(x), exact(y)))


INTEGERS = (mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32, mx.int64, mx.uint64)


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("comparison", oracle.COMPARISONS)
def test_integers_are_compared_to_the_last_bit(device: mx.Device, kind: mx.Dtype, comparison: str) -> None:
    limits = np.iinfo(str(kind).rpartition(".")[2])
    values = [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max]
    pairs = np.array(list(itertools.product(values, values)), limits.dtype)
    x, y = mx.array(pairs[:, 0]), mx.array(pairs[:, 1])
    made = mf.compare(x, y, comparison)
    assert made.dtype == kind
    assert np.array_equal(np.array(made), oracle.COMPARISONS[comparison](pairs[:, 0], pairs[:, 1]))
    if comparison == "equal":
        wide = pairs.astype(object)
        for threshold in (1, 254, 2.5, 3e38):
            near = np.array(mf.compare(x, y, comparison, threshold))
            assert np.array_equal(near, (abs(wide[:, 0] - wide[:, 1]) <= threshold).astype(int)), threshold


def test_a_threshold(device: mx.Device, dtype: mx.Dtype) -> None:
    x, y = mx.array([1.0, 1.0, 1.0, 1.0, 1.0], dtype), mx.array([0.5, 0.75, 1.0, 1.25, 1.5], dtype)
    assert mf.compare(x, y, "equal", 0.25).tolist() == [0, 1, 1, 1, 0]
    assert mf.compare(x, y, "not_equal", 0.25).tolist() == [1, 0, 0, 0, 1]
    assert mf.compare(x, y, "less_equal").tolist() == [0, 0, 1, 1, 1]


def test_what_is_not_finite_compared(device: mx.Device, dtype: mx.Dtype) -> None:
    """Infinities are equal to themselves, whatever the threshold; a NaN to nothing."""
    x = mx.array([np.inf, np.inf, -np.inf, np.nan, np.nan, 0.0], dtype)
    y = mx.array([np.inf, -np.inf, -np.inf, np.nan, 1.0, -0.0], dtype)
    for threshold in (0.0, 5.0):
        assert mf.compare(x, y, "equal", threshold).tolist() == [1, 0, 1, 0, 0, 1]
        assert mf.compare(x, y, "not_equal", threshold).tolist() == [0, 1, 0, 1, 1, 0]
    assert mf.compare(x, y, "less_equal").tolist() == [1, 0, 1, 0, 0, 1]
    assert mf.compare(x, y, "greater").tolist() == [0, 1, 0, 0, 0, 0]


def test_comparison_with_strides_and_of_any_shape(device: mx.Device) -> None:
    x = numbers((2, 3, 4, 5))
    made = mf.compare(x, x, "less", secondary_stride=(0, 1, 0))
    assert np.array_equal(exact(made), exact(x) < exact(x)[:, :1, :, :1])
    for shape in ((), (3,), (2, 3), (0, 2, 2, 1)):
        assert mf.compare(mx.ones(shape), mx.ones(shape)).shape == shape


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_gradient_of_a_quotient_squares_no_divisor(device: mx.Device, size: float) -> None:
    v = mx.array([size])
    by_y = mf.arithmetic_grad(mx.ones(1), v, v, "divide", operand="secondary")
    np.testing.assert_allclose(by_y.item(), -1 / size, rtol=1e-6)
    np.testing.assert_allclose(mx.grad(lambda y: mf.divide(v, y).sum())(v).item(), -1 / size, rtol=1e-6)
