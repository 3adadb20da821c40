"""The gradients of arithmetic on two operands: `arithmetic_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, OpInfo, Sample, call
from generic.ops.arithmetic import (
    CLAMPED,
    EIGHT_CHANNELS,
    EVEN,
    F16,
    F32,
    GEOMETRIES,
    IMAGE,
    IMAGES,
    NONE,
    ODD,
    ON_CPU,
    ROW,
    ROW_OF_EIGHT,
    SCALES,
    TOLD,
    Limits,
    Shape,
    X,
    by_oracle,
    operands,
    told,
)
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import PIXELWISE, Benchmark, Measured
from support.oracle import elementwise as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

OPERANDS = ("primary", "secondary")


def _of(operation: str, operand: str, dy: Array, x: Array, y: Array, **how: Any) -> Call:
    if operation == "divide":
        y = y._replace(of="positive")
    return call("arithmetic_grad", dy, x, y, operation, operand=operand, **how)


def _gradient(
    dy: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    operation: str,
    *,
    operand: str = "primary",
    clamp: bool = False,
    **how: Any,
) -> np.ndarray:
    which = OPERANDS.index(operand)
    return oracle.arithmetic_grad(dy, x, y, operation, which, *by_oracle(**how), clamp=clamp)


# Kernel cases -------------------------------------------------------------------------------------------


def _case(
    x_shape: Shape, y_shape: Shape, dtype: mx.Dtype, operation: str, limits: Limits, crowded: bool, which: int
) -> Case:
    def check() -> None:
        x, y = operands(x_shape, y_shape, dtype)
        dy = numbers(oracle.arithmetic(exact(x), exact(y), operation).shape, dtype, 2)
        values, clamp = [exact(a) for a in (dy, x, y)], limits != NONE
        right = oracle.arithmetic_grad(*values, operation, which, SCALES, limits, clamp=clamp)
        size = oracle.arithmetic_grad(*map(abs, values), operation, which, tuple(map(abs, SCALES)))
        made = mf.arithmetic_grad(dy, x, y, operation, operand=OPERANDS[which], clamp=clamp, **told(limits))
        close(made, right, abs(size), slack=4)

    lies, all_ = (x_shape, y_shape)[which], tuple(map(max, x_shape, y_shape))
    summed = lies != all_ and lies == (1, 1, 1, all_[3])
    bodies = ("arithmetic_grad", *(("conv_grad_bias", "sum_partials") if summed else ()))
    name = named("arithmetic_grad", x_shape, dtype, of=which, y=y_shape, op=operation, limits=limits)
    return Case(name, bodies, check, crowded)


def _scaled(shape: Shape, dtype: mx.Dtype, operation: str) -> Case:
    """The gradients of a sum and a difference, which read dy alone."""

    def check() -> None:
        x, dy = numbers(shape, dtype), numbers(shape, dtype, 1)
        for operand, scale in (("primary", 1.5), ("secondary", 0.75 if operation == "add" else -0.75)):
            made = mf.arithmetic_grad(dy, x, x, operation, operand=operand, primary_scale=1.5, secondary_scale=0.75)
            close(made, scale * exact(dy), abs(exact(dy)))

    return Case(named("arithmetic_grad", shape, dtype, op=operation), ("arithmetic_grad",), check)


def _cases() -> Iterator[Case]:
    for *geometry, operation, limits, crowded in GEOMETRIES:
        if limits != NONE or operation in ("multiply", "divide"):  # of others the kernel runs where a scale is not 1
            yield from (_case(*geometry, operation, limits, crowded, which) for which in (0, 1))
    yield _scaled(ODD, F32, "add")
    yield _scaled(EVEN, F16, "subtract")


# What bodies load ---------------------------------------------------------------------------------------


def _product() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    mf.arithmetic_grad(dy, x, x, "multiply")


# What is measured ---------------------------------------------------------------------------------------

MEASURED = {
    "multiply_grad": Benchmark(
        "pointwise",
        2,
        1,
        ("other",),
        title="arithmetic_grad multiply",
        cpu=ON_CPU,
        gpu=(Measured(targets=PIXELWISE),),
    ),
    "multiply_channels_grad": Benchmark(
        "pointwise",
        1,
        1,
        ("factors",),
        title="arithmetic_grad multiply by channel",
        cpu=ON_CPU,
        gpu=(Measured(),),
    ),
}

# Wrong calls, and the record ----------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="arithmetic_grad",
        takes_numbers=True,
        samples={
            "": _of("multiply", "secondary", X, X, ROW, **TOLD),
            "of a sum": _of("add", "secondary", X, X, ROW, **TOLD),
            "of a difference": _of("subtract", "secondary", X, X, X, **CLAMPED, clamp=True),
            "of a quotient": _of("divide", "primary", X, ROW, X, **CLAMPED, clamp=True),
            "of a divisor": _of("divide", "secondary", X, X, Array((1, 3, 1, 5)), **TOLD),
            "with strides": _of("multiply", "primary", X, X, X, secondary_stride=(0, 1, 0), **TOLD),
            "of entries that none reads": _of(
                "multiply", "primary", Array((2, 3, 1, 5)), Array(IMAGE), ROW, primary_stride=(1, 0, 1)
            ),
            **{
                f"of eight channels and a row, {operation}, {operand}": Sample(
                    _of(operation, operand, EIGHT_CHANNELS, EIGHT_CHANNELS, ROW_OF_EIGHT, **TOLD), in_matrix=False
                )
                for operation in oracle.OPERATIONS
                for operand in OPERANDS
            },
        },
        reference=_gradient,
        linear=(0,),
        wrong_values=(
            ("unknown operation", lambda: mf.arithmetic_grad(IMAGES, IMAGES, IMAGES, "modulo")),
            ("unknown operand", lambda: mf.arithmetic_grad(IMAGES, IMAGES, IMAGES, "add", operand="third")),
            (
                "dy does not belong to the operands",
                lambda: mf.arithmetic_grad(IMAGES[:1], IMAGES, IMAGES, "add"),
            ),
            ("operands do not fit", lambda: mf.arithmetic_grad(IMAGES, IMAGES, IMAGES[..., :3], "add")),
        ),
        wrong_types=(
            ("operand is not a name", lambda: mf.arithmetic_grad(IMAGES, IMAGES, IMAGES, "add", operand=1)),
            ("clamp is not a bool", lambda: mf.arithmetic_grad(IMAGES, IMAGES, IMAGES, "add", clamp=1)),
            ("dy is not an array", lambda: mf.arithmetic_grad(None, IMAGES, IMAGES, "add")),
            (
                "dy and x differ in dtype",
                lambda: mf.arithmetic_grad(IMAGES.astype(mx.float16), IMAGES, IMAGES, "add"),
            ),
        ),
        cases=_cases,
        loads={"arithmetic_grad": Loads(_product, {"dy": WHOLE, "x": (LONG_IMAGE, 0), "y": WHOLE})},
        benchmarks=MEASURED,
    ),
)
