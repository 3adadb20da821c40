"""Normalization by windows of pixels, `spatial_norm`, `spatial_norm_fwd` and `spatial_norm_grad`, and window sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, launched, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import COPY, FLOAT32, Benchmark, Measured, Target
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.normalization import window_launches

# Samples, and what they should give ----------------------------------------------------------------------

X, MANY = Array((2, 5, 4, 4)), Array((3, 7, 6, 8))
BY_SQUARES: dict[str, float] = {"alpha": 0.7, "beta": 0.6, "delta": 1.1}
# Powers that are made of roots.
BY_ROOTS: dict[int, dict[str, float]] = {
    3: {"alpha": 0.5, "beta": 0.75, "delta": 1.25},
    4: {"alpha": 0.5, "beta": 0.5, "delta": 1.25},
}


def _state(size: int, told: dict[str, float]) -> Call:
    return call("SpatialNormState", "spatial_norm", size, *told.values())


def _grad(dy: np.ndarray, x: np.ndarray, state: Call) -> np.ndarray:
    return oracle.spatial_norm_grad(dy, x, *state.args[1:])


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Image = Callable[[tuple[int, ...], mx.Dtype], mx.array]


def squared(
    op: str,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    size: int,
    told: tuple[float, float, float],
    *,
    crowded: bool = False,
    of: Image = numbers,
) -> Case:
    """Forward and backward of a normalization by sums of squares."""
    fused = op == "cross_channel_norm" and size <= window_launches._FEW
    by_sums = ("window_sum", "spatial_norm", "spatial_norm_weights", "spatial_norm_grad")

    def check() -> None:
        x, dy = of(shape, dtype), numbers(shape, dtype, 2)
        forward, backward = getattr(mf, f"{op}_fwd"), getattr(mf, f"{op}_grad")
        made, state = forward(x, size, **dict(zip(("alpha", "beta", "delta"), told, strict=True)))
        y = getattr(oracle, op)(exact(x), size, *told)
        dx = getattr(oracle, f"{op}_grad")(exact(dy), exact(x), size, *told)
        close(made, y, abs(y), slack=8)
        close(backward(dy, x, state), dx, abs(dx).max(), slack=8)

    return Case(named(op, shape, dtype, k=size, told=told), (op, f"{op}_grad") if fused else by_sums, check, crowded)


def _window_sum(
    shape: tuple[int, ...], dtype: mx.Dtype, axis: int, before: int, after: int, *, crowded: bool = False
) -> Case:
    def check() -> None:
        x = numbers(shape, dtype)
        made = launched({"x": x}, ((shape, F32),), window_launches.window_sum(x, axis, before, after))
        right, size = (oracle.window_sum(v, axis, range(-before, after + 1)) for v in (exact(x), abs(exact(x))))
        close(made[0], right, size)

    name = named("window_sum", shape, dtype, axis=axis, window=(before, after))
    return Case(name, ("window_sum",), check, crowded)


def _cases() -> Iterator[Case]:
    op = "spatial_norm"
    yield squared(op, (2, 7, 6, 5), F32, 3, (1.0, 0.5, 1.0))
    yield squared(op, (1, 6, 9, 8), F32, 4, (2.0, 5.0, 1.5))
    yield squared(op, (1, 3, 2, 1), F32, 2, (1.0, 1.0, 1.0))
    yield squared(op, (1, 5, 4, 8), F16, 5, (1.0, 1.25, 1.0))
    yield squared(op, (1, 4, 5, 16), BF16, 2**31 - 1, (1e18, 0.6, 1.0))
    yield squared(op, (1, 1, 3, 2), F16, 3, (1.0, 0.75, 1.0))
    yield squared(op, (1, 3, 1, 1), BF16, 3, (1.0, 0.75, 1.0))
    yield squared(op, (1, 19, 17, 20), F32, 7, (1.0, 2.0, 1.0), crowded=True)
    yield squared(op, (1, 91, 91, 1), F32, 2, (1.0, 0.5, 1.0), crowded=True)
    for axis in (1, 2, 3):
        yield _window_sum((2, 11, 9, 5), F32, axis, 2, 3)
    yield _window_sum((1, 3, 70, 4), F32, 2, 25, 24)
    yield _window_sum((1, 70, 2, 4), F32, 1, 0, 11, crowded=True)
    yield _window_sum((1, 1, 1, 2100), F32, 3, 1500, 40)


# What bodies load ---------------------------------------------------------------------------------------

# A run of three windows of three pixels loads the pixel that they share, those to the left of it twice, and those to
# the right: seven, less at the edges.
RUN = 147 / 64
RUNS = (LONG_IMAGE, RUN * LONG_IMAGE)


def _norm() -> None:
    mf.spatial_norm(numbers(LONG), 3, alpha=1.0, beta=0.75, delta=1.0)


def _norm_grad() -> None:
    state = mf.SpatialNormState("spatial_norm", 3, 1.0, 0.75, 1.0)
    mf.spatial_norm_grad(numbers(LONG, seed=1), numbers(LONG), state)


# What is measured ---------------------------------------------------------------------------------------


def around(size: int, exponent: float) -> dict[str, Any]:
    """A window of a `Problem`, and beta."""
    return {"kernel_size": size, "exponent": exponent}


_THREE_COPIES, _TWO_COPIES = (Target((COPY,), 1 / 3),), (Target((COPY,), 1 / 2),)
_ON_CPU = (
    Measured(around(5, 0.6), _THREE_COPIES),
    Measured(around(5, 5), _THREE_COPIES, FLOAT32),
    Measured(around(5, 0.5), _TWO_COPIES, FLOAT32),
    Measured(around(5, 1), _TWO_COPIES, FLOAT32),
    Measured(around(31, 0.6), (), FLOAT32),
)

# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
STATE = mf.spatial_norm_fwd(IMAGES, 3)[1]
WRONG_TYPES = (
    ("kernel_size is not an int", lambda: mf.spatial_norm(IMAGES, (3, 3))),
    ("alpha is not a number", lambda: mf.spatial_norm(IMAGES, 3, alpha=mx.array(1.0))),
)
OPS = (
    OpInfo(
        name="spatial_norm",
        samples={
            "": call("spatial_norm", X, 3, **BY_SQUARES),
            "as MPS has it": Sample(call("spatial_norm", MANY, 3), in_matrix=False),
            **{
                f"of {size} by {size}": Sample(call("spatial_norm", MANY, size, **told), in_matrix=False)
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=oracle.spatial_norm,
        wrong_values=(
            ("kernel_size is out of range", lambda: mf.spatial_norm(IMAGES, -3)),
            ("delta is out of range", lambda: mf.spatial_norm(IMAGES, 3, delta=float("nan"))),
        ),
        wrong_types=WRONG_TYPES,
        cases=_cases,
        loads={
            "window_sum": Loads(_norm, {"x": RUNS}),
            "spatial_norm": Loads(_norm, dict.fromkeys(("x", "squares"), WHOLE)),
        },
        benchmarks={"spatial_norm": Benchmark("normalization", 1, 1, cpu=_ON_CPU)},
        nodes={"": Node(lambda x: graph.spatial_norm(x, 3, beta=0.5), lambda p, x: mf.spatial_norm(x, 3, beta=0.5))},
    ),
    OpInfo(
        name="spatial_norm_fwd",
        samples={
            "": call("spatial_norm_fwd", X, 3, **BY_SQUARES),
            "of windows larger than images": call("spatial_norm_fwd", X, 12, **BY_SQUARES),
        },
        image="x",
        reference=oracle.spatial_norm,
    ),
    OpInfo(
        name="spatial_norm_grad",
        samples={
            "": call("spatial_norm_grad", X, X, _state(3, BY_SQUARES)),
            **{
                f"of {size} by {size}": Sample(
                    call("spatial_norm_grad", MANY, MANY, _state(size, told)), in_matrix=False
                )
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to x", lambda: mf.spatial_norm_grad(IMAGES[:1], IMAGES, STATE)),
            (
                "state.beta is out of range",
                lambda: mf.spatial_norm_grad(IMAGES, IMAGES, STATE._replace(beta=10.0**39)),
            ),
        ),
        loads={
            "spatial_norm_weights": Loads(_norm_grad, dict.fromkeys(("dy", "x", "squares"), WHOLE)),
            "spatial_norm_grad": Loads(_norm_grad, dict.fromkeys(("dy", "x", "squares", "sums"), WHOLE)),
        },
        benchmarks={
            "spatial_norm_grad": Benchmark(
                "normalization", 2, 1, cpu=(Measured(around(5, 0.6)), Measured(around(31, 0.6), (), FLOAT32))
            )
        },
    ),
)
