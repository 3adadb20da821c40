"""Comparison: `compare`."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import LONG, WHOLE
from support import exact, numbers
from support.oracle import elementwise as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

EIGHT, ROW_OF_EIGHT = Array((2, 5, 4, 8)), Array((1, 1, 1, 8), "positive")


def _compared(x: np.ndarray, y: np.ndarray, comparison: str, threshold: float = 0.0) -> np.ndarray:
    """With a threshold, near numbers are equal."""
    if threshold:
        return (abs(x - y) <= threshold) == (comparison == "equal")
    return oracle.COMPARISONS[comparison](x, y)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
ODD, EVEN, TINY = (2, 3, 5, 7), (2, 3, 4, 8), (1, 1, 2, 3)
Shape = tuple[int, ...]


def _case(
    x_shape: Shape, y_shape: Shape, dtype: mx.Dtype, comparison: str, threshold: float = 0.0, *, crowded: bool = False
) -> Case:
    def check() -> None:
        x, y = (mx.round(2 * numbers(shape, F32, seed)).astype(dtype) for seed, shape in enumerate((x_shape, y_shape)))
        if mx.issubdtype(dtype, mx.integer):
            values = np.array(x).astype(object), np.array(y).astype(object)
        else:
            values = exact(x), exact(y)
        right = _compared(*values, comparison, threshold)
        made = mf.compare(x, y, comparison, threshold)
        assert made.dtype == dtype and np.array_equal(np.array(made.astype(F32)), right.astype(np.float32))

    name = named("compare", x_shape, dtype, y=y_shape, op=comparison, threshold=threshold)
    return Case(name, ("compare",), check, crowded)


def _cases() -> Iterator[Case]:
    yield from (_case(ODD, ODD, F32, comparison) for comparison in oracle.COMPARISONS)
    yield _case(EVEN, (1, 1, 1, 8), F16, "equal", 1.0)
    yield _case(EVEN, (2, 3, 1, 1), BF16, "not_equal", 1.0)
    yield _case((2, 1, 5, 7), (1, 3, 5, 1), F32, "less")
    yield _case(TINY, TINY, F32, "greater")
    yield _case(EVEN, EVEN, mx.int32, "equal", 1.0)
    yield _case(ODD, ODD, mx.uint8, "less_equal")
    yield _case(EVEN, (1, 1, 1, 8), mx.int64, "greater_equal")
    # More than the threads of a crowded grid have under way, in images that do not merge.
    yield _case((3, 9, 8, 125), (3, 1, 8, 1), F32, "less", crowded=True)


# What bodies load ---------------------------------------------------------------------------------------


def _compare() -> None:
    mf.compare(numbers(LONG), numbers(LONG, seed=1))


# Wrong calls, and the record ----------------------------------------------------------------------------

X = numbers((2, 6, 5, 4))
OPS = (
    OpInfo(
        name="compare",
        takes_numbers=True,
        takes_integers=True,
        samples={
            "": call("compare", Array((2, 3, 4, 5)), Array((1, 1, 1, 5)), "less"),
            **{
                comparison: Sample(call("compare", EIGHT, ROW_OF_EIGHT, comparison), in_matrix=False)
                for comparison in oracle.COMPARISONS
            },
            "within a threshold": Sample(call("compare", EIGHT, ROW_OF_EIGHT, "equal", 0.7), in_matrix=False),
        },
        reference=_compared,
        wrong_values=(
            ("unknown comparison", lambda: mf.compare(X, X, "similar")),
            ("threshold is out of range", lambda: mf.compare(X, X, threshold=-1.0)),
            ("an ordering has no threshold", lambda: mf.compare(X, X, "less", 0.5)),
            ("operands do not fit", lambda: mf.compare(X, X[..., :3])),
        ),
        wrong_types=(
            ("x has no dtype of real numbers", lambda: mf.compare(X > 0, X > 0)),
            ("y is not an array", lambda: mf.compare(X, True)),
            ("x and y differ in dtype", lambda: mf.compare(X, X.astype(mx.int32))),
            ("comparison is not a name", lambda: mf.compare(X, X, 3)),
            ("threshold is not a number", lambda: mf.compare(X, X, "equal", "0.5")),
        ),
        cases=_cases,
        loads={"compare": Loads(_compare, {"x": WHOLE, "y": WHOLE})},
    ),
)
