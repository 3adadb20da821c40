"""Arithmetic on two operands: `add`, `subtract`, `multiply`, `divide` and `arithmetic`; gradients lie beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import LONG, WHOLE
from support import close, exact, numbers
from support.benchmarks import PIXELWISE, Benchmark, Measured
from support.oracle import elementwise as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

IMAGE, EIGHT = (2, 3, 4, 5), (2, 5, 4, 8)
X, ROW, COLUMN = Array(IMAGE), Array((1, 1, 1, 5)), Array((2, 3, 1, 1))
EIGHT_CHANNELS, ROW_OF_EIGHT = Array(EIGHT), Array((1, 1, 1, 8), "positive")
TOLD: dict[str, Any] = {"primary_scale": 1.5, "secondary_scale": -0.75, "bias": 0.25}
CLAMPED: dict[str, Any] = {**TOLD, "minimum": -0.6, "maximum": 0.9}
FIRST: dict[str, Any] = {"primary_stride": (1, 0, 1), "secondary_stride": (0, 1, 0)}


def _by_row(name: str) -> Sample:
    """Of eight channels and a row for all pixels."""
    return Sample(call(name, EIGHT_CHANNELS, ROW_OF_EIGHT), in_matrix=False)


def by_oracle(
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: tuple[int, ...] = (1, 1, 1),
    secondary_stride: tuple[int, ...] = (1, 1, 1),
) -> tuple[Any, Any, Any]:
    """Our options as the definition takes them: scales, limits and strides."""
    return (primary_scale, secondary_scale, bias), (minimum, maximum), (primary_stride, secondary_stride)


def _value(x: np.ndarray, y: np.ndarray, operation: str, **how: Any) -> np.ndarray:
    return oracle.arithmetic(x, y, operation, *by_oracle(**how))


def _value_of(operation: str) -> Callable[..., np.ndarray]:
    return lambda x, y, **how: _value(x, y, operation, **how)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
ODD, EVEN, TINY = (2, 3, 5, 7), (2, 3, 4, 8), (1, 1, 2, 3)
CROWD = (3, 9, 8, 125)  # more than the threads of a crowded grid have under way, in images that do not merge
SHARED_ROW, SHARED_COLUMN, SHARED_PIXEL = (1, 1, 1, 8), (2, 3, 1, 1), (1, 3, 4, 1)
SCALES = (1.5, -0.75, 0.25)
Shape = tuple[int, ...]
Limits = tuple[float | None, float | None]
NONE: Limits = (None, None)
# Shapes of both operands, dtype, operation, limits, and whether the grid is crowded.
GEOMETRIES: tuple[tuple[Shape, Shape, mx.Dtype, str, Limits, bool], ...] = (
    *((ODD, ODD, F32, operation, NONE, False) for operation in oracle.OPERATIONS),
    *((EVEN, SHARED_ROW, F32, operation, (-0.5, 1.0), False) for operation in oracle.OPERATIONS),
    (EVEN, EVEN, F16, "multiply", NONE, False),
    (EVEN, SHARED_COLUMN, F16, "divide", NONE, False),
    (EVEN, SHARED_PIXEL, BF16, "multiply", (None, 1.0), False),
    (EVEN, EVEN, BF16, "divide", (-0.5, None), False),
    ((2, 1, 5, 7), (1, 3, 5, 1), F32, "multiply", NONE, False),
    (TINY, TINY, F16, "multiply", NONE, False),
    ((2, 1, 1, 3), (1, 1, 2, 1), F32, "divide", NONE, False),
    (CROWD, (3, 1, 8, 1), F32, "multiply", (-1.0, 1.0), True),
)


def operands(x_shape: Shape, y_shape: Shape, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """The second is away from 0, for it divides."""
    y = numbers(y_shape, dtype, 1)
    return numbers(x_shape, dtype), mx.where(y < 0, y - 1, y + 1)


def told(limits: Limits) -> dict[str, Any]:
    """What the cases' functions are given."""
    names = ("primary_scale", "secondary_scale", "bias", "minimum", "maximum")
    return dict(zip(names, (*SCALES, *limits), strict=True))


def _case(x_shape: Shape, y_shape: Shape, dtype: mx.Dtype, operation: str, limits: Limits, crowded: bool) -> Case:
    def check() -> None:
        x, y = operands(x_shape, y_shape, dtype)
        right = oracle.arithmetic(exact(x), exact(y), operation, SCALES, limits)
        sums, terms = "add" if operation == "subtract" else operation, tuple(map(abs, SCALES))
        size = oracle.arithmetic(abs(exact(x)), abs(exact(y)), sums, terms)
        close(mf.arithmetic(x, y, operation, **told(limits)), right, size, slack=2)

    name = named("arithmetic", x_shape, dtype, y=y_shape, op=operation, limits=limits)
    return Case(name, ("arithmetic",), check, crowded)


def _cases() -> Iterator[Case]:
    yield from (_case(*geometry) for geometry in GEOMETRIES)


# What bodies load ---------------------------------------------------------------------------------------


def _quotient() -> None:
    mf.divide(numbers(LONG), numbers(LONG, seed=1), maximum=1.0)


# What is measured ---------------------------------------------------------------------------------------

ON_CPU = (Measured(),)


def _measured(of_x: int, given: str, **how: Any) -> Benchmark:
    return Benchmark("pointwise", of_x, 1, (given,), cpu=ON_CPU, gpu=(Measured(targets=PIXELWISE),), **how)


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
WIDE = mx.broadcast_to(mx.zeros((1, 1, 1, 4)), (1, 2**15, 2**14, 4))
TWO = ((2, 6, 5, 4), (2, 6, 5, 4))


def _samples(name: str, first: Call, **others: Call) -> dict[str, Any]:
    return {"": first, **others, "of eight channels and a row": _by_row(name)}


OPS = (
    OpInfo(
        name="add",
        takes_numbers=True,
        samples=_samples("add", call("add", X, X, **TOLD)),
        reference=_value_of("add"),
        wrong_values=(
            ("operands do not fit", lambda: mf.add(IMAGES, IMAGES[:, :2])),
            ("only images have strides", lambda: mf.add(IMAGES[0], IMAGES[0], secondary_stride=(0, 1, 1))),
            ("primary_stride is not a stride", lambda: mf.add(IMAGES, IMAGES, primary_stride=(1, 2, 1))),
            ("secondary_stride is not a stride", lambda: mf.add(IMAGES, IMAGES, secondary_stride=(1, 1, 1, 1))),
            ("primary_scale is out of range", lambda: mf.add(IMAGES, IMAGES, primary_scale=1e39)),
            ("secondary_scale is out of range", lambda: mf.add(IMAGES, IMAGES, secondary_scale=float("inf"))),
            ("bias is out of range", lambda: mf.add(IMAGES, IMAGES, bias=float("nan"))),
            ("minimum is out of range", lambda: mf.add(IMAGES, IMAGES, minimum=float("-inf"))),
            ("minimum is greater than maximum", lambda: mf.add(IMAGES, IMAGES, minimum=1.0, maximum=0.5)),
            ("an image is too large", lambda: mf.add(WIDE, WIDE)),
            ("an image is too large", lambda: mf.add(mx.zeros((1, 2**16, 1, 1)), mx.zeros((1, 1, 2**15, 1)))),
        ),
        wrong_types=(
            ("x is not an array", lambda: mf.add(1.0, 2.0)),
            ("y is not an array", lambda: mf.add(IMAGES, [1.0])),
        ),
        benchmarks={"add": _measured(2, "other")},
        nodes={
            "": Node(
                lambda x, y: graph.add(x, y, secondary_scale=-2.0, secondary_stride=(0, 0, 1)),
                lambda p, x, y: mf.add(x, y, secondary_scale=-2.0, secondary_stride=(0, 0, 1)),
                ((2, 6, 5, 4), (2, 1, 1, 4)),
            ),
            "within limits": Node(
                lambda x, y: graph.add(x, y, minimum=-0.5, maximum=0.5, clamp=True),
                lambda p, x, y: mf.add(x, y, minimum=-0.5, maximum=0.5),
                TWO,
            ),
        },
    ),
    OpInfo(
        name="subtract",
        takes_numbers=True,
        samples=_samples("subtract", call("subtract", X, ROW, **CLAMPED)),
        reference=_value_of("subtract"),
        wrong_values=(("operands do not fit", lambda: mf.subtract(IMAGES, IMAGES[0, :, :3])),),
        nodes={"": Node(graph.subtract, lambda p, x, y: mf.subtract(x, y), TWO)},
    ),
    OpInfo(
        name="multiply",
        takes_numbers=True,
        samples=_samples(
            "multiply",
            call("multiply", COLUMN, ROW, **TOLD),
            **{"with strides": call("multiply", X, X, **TOLD, **FIRST)},
        ),
        reference=_value_of("multiply"),
        wrong_values=(("operands do not fit", lambda: mf.multiply(IMAGES[0], mx.ones(3))),),
        wrong_types=(
            ("x has no floating dtype", lambda: mf.multiply(IMAGES.astype(mx.int32), IMAGES.astype(mx.int32))),
            ("x and y differ in dtype", lambda: mf.multiply(IMAGES, IMAGES.astype(mx.float16))),
        ),
        benchmarks={
            "multiply": _measured(2, "other"),
            "multiply_channels": _measured(1, "factors", title="multiply by channel"),
        },
        nodes={"": Node(lambda x, y: graph.multiply(x, y, bias=1.0), lambda p, x, y: mf.multiply(x, y, bias=1.0), TWO)},
    ),
    OpInfo(
        name="divide",
        takes_numbers=True,
        samples=_samples("divide", call("divide", X, Array((1, 3, 4, 5), "positive"), **CLAMPED)),
        reference=_value_of("divide"),
        wrong_values=(
            ("operands do not fit", lambda: mf.divide(IMAGES[:1], mx.zeros((3, 6, 5, 2)))),
            ("y is out of range", lambda: mf.divide(IMAGES, 1e39)),
        ),
        wrong_types=(
            ("primary_scale is not a number", lambda: mf.divide(IMAGES, IMAGES, primary_scale="2")),
            ("maximum is not a number", lambda: mf.divide(IMAGES, IMAGES, maximum="2")),
            ("primary_stride is not a stride", lambda: mf.divide(IMAGES, IMAGES, primary_stride=0)),
        ),
        nodes={"": Node(graph.divide, lambda p, x, y: mf.divide(x, y), TWO, positive=True)},
    ),
    OpInfo(
        name="arithmetic",
        takes_numbers=True,
        samples={
            "": call("arithmetic", COLUMN, Array(IMAGE, "positive"), "divide", **TOLD),
            "of vectors": call("arithmetic", Array((7,)), Array((7,)), "multiply", **CLAMPED),
            "of eight channels and a row": Sample(
                call("arithmetic", EIGHT_CHANNELS, ROW_OF_EIGHT, "multiply", **CLAMPED), in_matrix=False
            ),
        },
        reference=_value,
        wrong_values=(("unknown operation", lambda: mf.arithmetic(IMAGES, IMAGES, "power")),),
        wrong_types=(("operation is not a name", lambda: mf.arithmetic(IMAGES, IMAGES, 0)),),
        cases=_cases,
        loads={"arithmetic": Loads(_quotient, {"x": WHOLE, "y": WHOLE})},
        no_node="MPS has a node for each operation: add, subtract, multiply and divide.",
    ),
)
