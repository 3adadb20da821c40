"""The cases of `cases` that work element by element: dropout, arithmetic, comparison."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import elementwise as oracle

import mpsfunc as mf
from metal_host.case import Case, named
from mpsfunc.core import launch
from mpsfunc.elementwise import dropout_rules

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Shape = tuple[int, ...]
Strides = tuple[int, int, int]
KEYS = mx.array([[3, 7], [2**32 - 1, 5], [0, 1]], mx.uint32)


def _masked(shape: Shape, keep: float, keys: mx.array, stride: Strides) -> np.ndarray:
    """The masks of sets of images, one behind the other."""
    rows = [oracle.mask(shape, keep, key, stride) for key in np.array(keys)]
    return np.concatenate(rows)


def _dropout(
    shape: Shape,
    dtype: mx.Dtype,
    stride: Strides = (1, 1, 1),
    *,
    sets: int = 1,
    again: bool = False,
    keep: float = 0.6,
    crowded: bool = False,
) -> Case:
    """Sets of images with a key each; ``again`` has every set take the same images."""

    def check() -> None:
        x = numbers(shape if again else (sets * shape[0], *shape[1:]), dtype)
        h, w, c = (length if step else 1 for length, step in zip(shape[1:], stride, strict=True))
        spec = dropout_rules.Random(keep, shape[0], (h, w, c), launch.resolve(None))
        made = dropout_rules.by_key(x, KEYS[:sets], spec)
        images = np.concatenate([exact(x)] * sets) if again else exact(x)
        right = images * _masked(shape, keep, KEYS[:sets], stride) / keep
        close(made, right, abs(right))
        assert np.array_equal(exact(made) != 0, right != 0)

    return Case(named("dropout", shape, dtype, stride=stride, sets=sets, again=again), ("dropout",), check, crowded)


def _mask(shape: Shape, stride: Strides, *, sets: int = 1, keep: float = 0.6, crowded: bool = False) -> Case:
    def check() -> None:
        h, w, c = (length if step else 1 for length, step in zip(shape[1:], stride, strict=True))
        spec = dropout_rules.Random(keep, shape[0], (h, w, c), launch.resolve(None))
        made = dropout_rules.masks(KEYS[:sets], spec)
        assert np.array_equal(np.array(made), _masked(shape, keep, KEYS[:sets], stride))

    return Case(named("dropout_mask", shape, mx.uint8, stride=stride, sets=sets), ("dropout_mask",), check, crowded)


def _by_mask(shape: Shape, dtype: mx.Dtype, mask: Shape, *, crowded: bool = False) -> Case:
    def check() -> None:
        x, m = numbers(shape, dtype), numbers(mask, F32, 1) > 0
        right = exact(x) * exact(m) / 0.3
        close(mf.dropout(x, keep_probability=0.3, mask=m), right, abs(right))

    return Case(named("dropout_by_mask", shape, dtype, mask=mask), ("dropout_by_mask",), check, crowded)


def _arithmetic(
    x_shape: Shape,
    y_shape: Shape,
    dtype: mx.Dtype,
    operation: str,
    limits: tuple[float | None, float | None] = (None, None),
    *,
    crowded: bool = False,
) -> list[Case]:
    scales = (1.5, -0.75, 0.25)

    def operands() -> tuple[mx.array, mx.array]:
        y = numbers(y_shape, dtype, 1)
        return numbers(x_shape, dtype), mx.where(y < 0, y - 1, y + 1)

    def told() -> dict[str, Any]:
        names = ("primary_scale", "secondary_scale", "bias", "minimum", "maximum")
        return dict(zip(names, (*scales, *limits), strict=True))

    sums, terms = "add" if operation == "subtract" else operation, tuple(map(abs, scales))

    def value() -> None:
        x, y = operands()
        right = oracle.arithmetic(exact(x), exact(y), operation, scales, limits)
        size = oracle.arithmetic(abs(exact(x)), abs(exact(y)), sums, terms)
        close(mf.arithmetic(x, y, operation, **told()), right, size, slack=2)

    def grad(which: int) -> None:
        x, y = operands()
        dy = numbers(oracle.arithmetic(exact(x), exact(y), operation).shape, dtype, 2)
        values, clamp = [exact(a) for a in (dy, x, y)], limits != (None, None)
        right = oracle.arithmetic_grad(*values, operation, which, scales, limits, clamp=clamp)
        size = oracle.arithmetic_grad(*map(abs, values), operation, which, terms)
        operand = ("primary", "secondary")[which]
        made = mf.arithmetic_grad(dy, x, y, operation, operand=operand, clamp=clamp, **told())
        close(made, right, abs(size), slack=4)

    told_name = {"y": y_shape, "op": operation, "limits": limits}
    cases = [Case(named("arithmetic", x_shape, dtype, **told_name), ("arithmetic",), value, crowded)]
    for which in (0, 1):
        needs = limits != (None, None) or operation in ("multiply", "divide")
        if needs:
            lies, all_ = (x_shape, y_shape)[which], tuple(map(max, x_shape, y_shape))
            summed = lies != all_ and lies == (1, 1, 1, all_[3])
            bodies = ("arithmetic_grad", *(("conv_grad_bias", "sum_partials") if summed else ()))
            name = named("arithmetic_grad", x_shape, dtype, of=which, **told_name)
            cases.append(Case(name, bodies, lambda which=which: grad(which), crowded))
    return cases


def _scaled(shape: Shape, dtype: mx.Dtype, operation: str, *, crowded: bool = False) -> Case:
    """The gradients of a sum and a difference, which read dy alone."""

    def check() -> None:
        x, dy = numbers(shape, dtype), numbers(shape, dtype, 1)
        for operand, scale in (("primary", 1.5), ("secondary", 0.75 if operation == "add" else -0.75)):
            made = mf.arithmetic_grad(dy, x, x, operation, operand=operand, primary_scale=1.5, secondary_scale=0.75)
            close(made, scale * exact(dy), abs(exact(dy)))

    return Case(named("arithmetic_grad", shape, dtype, op=operation), ("arithmetic_grad",), check, crowded)


def _compare(
    x_shape: Shape, y_shape: Shape, dtype: mx.Dtype, comparison: str, threshold: float = 0.0, *, crowded: bool = False
) -> Case:
    def check() -> None:
        x, y = (mx.round(2 * numbers(shape, F32, seed)).astype(dtype) for seed, shape in enumerate((x_shape, y_shape)))
        if mx.issubdtype(dtype, mx.integer):
            values = np.array(x).astype(object), np.array(y).astype(object)
        else:
            values = exact(x), exact(y)
        right = oracle.COMPARISONS[comparison](*values)
        if threshold:
            right = (abs(values[0] - values[1]) <= threshold) == (comparison == "equal")
        made = mf.compare(x, y, comparison, threshold)
        assert made.dtype == dtype and np.array_equal(np.array(made.astype(F32)), right.astype(np.float32))

    name = named("compare", x_shape, dtype, y=y_shape, op=comparison, threshold=threshold)
    return Case(name, ("compare",), check, crowded)


def elementwise() -> list[Case]:
    odd, even, tiny = (2, 3, 5, 7), (2, 3, 4, 8), (1, 1, 2, 3)
    crowd = (3, 9, 8, 125)  # more than the threads of a crowded grid have under way, in images that do not merge
    row, column, pixel = (1, 1, 1, 8), (2, 3, 1, 1), (1, 3, 4, 1)
    return [
        *[_dropout(odd, F32, stride) for stride in ((1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0))],
        *[_dropout(even, F32, stride, sets=2) for stride in ((1, 1, 1), (0, 0, 1), (1, 1, 0), (0, 1, 0))],
        _dropout(even, F16, sets=3),
        _dropout(even, BF16, (0, 0, 1)),
        _dropout(odd, F16, (1, 1, 0), sets=2),
        _dropout(tiny, F32),
        _dropout(tiny, BF16, sets=3, again=True),
        _dropout(even, F32, (1, 0, 1), sets=3, again=True),
        _dropout((3, 5, 8, 84), F32, (1, 1, 0), sets=1, crowded=True),
        _dropout((5, 1, 1, 9001), F32, (0, 0, 1), sets=2, crowded=True),
        _mask(odd, (1, 1, 1), sets=3),
        _mask(even, (1, 1, 1), sets=2),
        _mask(even, (1, 1, 0)),
        _mask((1, 1, 1, 40000), (1, 1, 1), crowded=True),
        _mask((1, 1, 1, 9001), (1, 1, 1), sets=3, crowded=True),
        _by_mask(odd, F32, odd),
        _by_mask(even, F32, even),
        _by_mask(even, F32, row),
        _by_mask(even, F16, column),
        _by_mask(even, BF16, pixel),
        _by_mask(odd, F16, (2, 1, 5, 7)),
        _by_mask(tiny, F32, (1, 1, 1, 1)),
        _by_mask(crowd, F32, (3, 1, 8, 1), crowded=True),
        *[c for op in oracle.OPERATIONS for c in _arithmetic(odd, odd, F32, op)],
        *[c for op in oracle.OPERATIONS for c in _arithmetic(even, row, F32, op, (-0.5, 1.0))],
        *_arithmetic(even, even, F16, "multiply"),
        *_arithmetic(even, column, F16, "divide"),
        *_arithmetic(even, pixel, BF16, "multiply", (None, 1.0)),
        *_arithmetic(even, even, BF16, "divide", (-0.5, None)),
        *_arithmetic((2, 1, 5, 7), (1, 3, 5, 1), F32, "multiply"),
        *_arithmetic(tiny, tiny, F16, "multiply"),
        *_arithmetic((2, 1, 1, 3), (1, 1, 2, 1), F32, "divide"),
        *_arithmetic(crowd, (3, 1, 8, 1), F32, "multiply", (-1.0, 1.0), crowded=True),
        _scaled(odd, F32, "add"),
        _scaled(even, F16, "subtract"),
        *[_compare(odd, odd, F32, op) for op in oracle.COMPARISONS],
        _compare(even, row, F16, "equal", 1.0),
        _compare(even, column, BF16, "not_equal", 1.0),
        _compare((2, 1, 5, 7), (1, 3, 5, 1), F32, "less"),
        _compare(tiny, tiny, F32, "greater"),
        _compare(even, even, mx.int32, "equal", 1.0),
        _compare(odd, odd, mx.uint8, "less_equal"),
        _compare(even, row, mx.int64, "greater_equal"),
        _compare(crowd, (3, 1, 8, 1), F32, "less", crowded=True),
    ]
