"""Local contrast normalization: `local_contrast_norm`, `local_contrast_norm_fwd` and `local_contrast_norm_grad`."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from generic.ops.spatial_norm import BY_ROOTS, BY_SQUARES, RUN, RUNS, Image, around
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import Benchmark, Measured
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

X, MANY = Array((2, 5, 4, 4)), Array((3, 7, 6, 8))
USUAL: dict[str, float] = {"alpha": 0.0, "beta": 0.5, "delta": 1 / 1024, "p0": 1.0, "pm": 0.0, "ps": 1.0}
CONTRAST: dict[str, float] = {**BY_SQUARES, "p0": 0.9, "pm": 0.2, "ps": 1.3}


def _state(size: int, told: dict[str, float]) -> Call:
    return call("LocalContrastNormState", "local_contrast_norm", size, *(USUAL | told).values())


def _grad(dy: np.ndarray, x: np.ndarray, state: Call) -> np.ndarray:
    _, size, alpha, beta, delta, p0, pm, ps = state.args
    return oracle.local_contrast_norm_grad(dy, x, size, alpha, beta, delta, p0, pm, ps)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
STEEP = dict(zip(USUAL, (1.5, 0.75, 0.5, 0.9, 0.25, 2.0), strict=True))


def _case(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    size: int,
    told: dict[str, float],
    *,
    crowded: bool = False,
    of: Image = numbers,
    kind: str = "local_contrast_norm",
) -> Case:
    """Forward and backward."""

    def check() -> None:
        x, dy = of(shape, dtype), numbers(shape, dtype, 2)
        made, state = mf.local_contrast_norm_fwd(x, size, **told)
        y = oracle.local_contrast_norm(exact(x), size, **told)
        dx = oracle.local_contrast_norm_grad(exact(dy), exact(x), size, **told)
        close(made, y, abs(y) + told["ps"], slack=16)
        close(mf.local_contrast_norm_grad(dy, x, state), dx, abs(dx).max(), slack=16)

    op = "local_contrast_norm"
    bodies = ("window_moments", op, f"{op}_weights", "window_slopes", f"{op}_grad")
    return Case(named(kind, shape, dtype, k=size, told=tuple(told.values())), bodies, check, crowded)


def _high(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """A deviation of 1 about 1e4."""
    return numbers(shape, dtype) + 1e4


def _one_apart(row: int, column: int) -> Image:
    """One pixel that dwarfs the others, whose digits windows without it must keep."""

    def image(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        pixel = np.zeros(shape, np.float32)
        pixel[:, row, column] = 1e6
        return (numbers(shape) + mx.array(pixel)).astype(dtype)

    return image


def _cases() -> Iterator[Case]:
    yield _case((2, 7, 6, 5), F32, 3, STEEP)
    yield _case((1, 6, 9, 8), F32, 4, STEEP)
    yield _case((1, 5, 4, 3), F32, 1, USUAL | {"alpha": 1.0, "p0": 0.5})
    yield _case((1, 3, 2, 1), F32, 2, USUAL)
    yield _case((1, 5, 4, 8), F16, 5, STEEP)
    yield _case((1, 4, 5, 16), BF16, 11, STEEP)
    yield _case((1, 1, 3, 2), F16, 3, STEEP)
    yield _case((1, 3, 1, 1), BF16, 2, STEEP)
    yield _case((3, 7, 5, 4), F32, 5, STEEP, crowded=True)
    yield _case((1, 14, 64, 4), F32, 3, STEEP, crowded=True)
    yield _case((1, 1, 1100, 1), F32, 1500, STEEP)  # as many chunks as there are
    of_variance = USUAL | {"alpha": 1.0}
    yield _case((1, 11, 12, 4), F32, 5, of_variance, of=_high, kind="high contrast")
    yield _case((1, 24, 25, 4), F32, 21, of_variance, of=_high, kind="high contrast")
    yield _case((1, 9, 12, 4), F32, 3, of_variance, of=_one_apart(0, 0), kind="one apart")
    # Which a whole run's windows hold.
    yield _case((1, 5, 30, 4), F32, 9, STEEP, of=_one_apart(3, 4), kind="one apart")


# What bodies load ---------------------------------------------------------------------------------------

# Beside its windows a run loads the pixel that they share as a pivot, and the middle of each; of slopes, three pixels
# for each of the 22 runs' pivots.
_PIVOTED = (LONG_IMAGE, (RUN + (22 + 64) / 64) * LONG_IMAGE)
_THREE_PIVOTS = (LONG_IMAGE, (RUN + (3 * 22 + 64) / 64) * LONG_IMAGE)


def _norm() -> None:
    mf.local_contrast_norm(numbers(LONG), 3, alpha=1.0, beta=0.75, delta=1.0)


def _norm_grad() -> None:
    state = mf.LocalContrastNormState("local_contrast_norm", 3, 1.0, 0.75, 1.0, 1.0, 0.0, 1.0)
    mf.local_contrast_norm_grad(numbers(LONG, seed=1), numbers(LONG), state)


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
STATE = mf.local_contrast_norm_fwd(IMAGES, 3)[1]
_MEASURED = (Measured(around(5, 0.5)),)
OPS = (
    OpInfo(
        name="local_contrast_norm",
        samples={
            "": call("local_contrast_norm", X, 3, **CONTRAST),
            "as MPS has it": Sample(call("local_contrast_norm", MANY, 3), in_matrix=False),
            **{
                f"of {size} by {size}": Sample(call("local_contrast_norm", MANY, size, **told), in_matrix=False)
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=oracle.local_contrast_norm,
        wrong_values=(
            ("ps is out of range", lambda: mf.local_contrast_norm(IMAGES, 3, ps=1e300)),
            ("kernel_size is out of range", lambda: mf.local_contrast_norm(IMAGES, 0)),
        ),
        wrong_types=(("p0 is not a number", lambda: mf.local_contrast_norm(IMAGES, 3, p0=None)),),
        cases=_cases,
        loads={
            "window_moments": Loads(_norm, {"x": _PIVOTED, **dict.fromkeys(("mean", "m2"), (LONG_IMAGE, 0))}),
            "window_slopes": Loads(_norm_grad, {"x": _THREE_PIVOTS, **dict.fromkeys("abc", RUNS)}),
            "local_contrast_norm": Loads(_norm, dict.fromkeys(("x", "mean", "m2"), WHOLE)),
        },
        benchmarks={"local_contrast_norm": Benchmark("normalization", 1, 1, cpu=_MEASURED)},
        nodes={
            "": Node(lambda x: graph.local_contrast_norm(x, 3), lambda p, x: mf.local_contrast_norm(x, 3, alpha=1.0))
        },
    ),
    OpInfo(
        name="local_contrast_norm_fwd",
        samples={
            "": call("local_contrast_norm_fwd", X, 3, **BY_SQUARES),
            "of windows larger than images": call("local_contrast_norm_fwd", X, 12, **CONTRAST),
        },
        image="x",
        reference=oracle.local_contrast_norm,
    ),
    OpInfo(
        name="local_contrast_norm_grad",
        samples={
            "": call("local_contrast_norm_grad", X, X, _state(3, CONTRAST)),
            "of 4 by 4": call("local_contrast_norm_grad", X, X, _state(4, CONTRAST)),
            **{
                f"of {size} by {size} and eight channels": Sample(
                    call("local_contrast_norm_grad", MANY, MANY, _state(size, told)), in_matrix=False
                )
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to x", lambda: mf.local_contrast_norm_grad(IMAGES[:1], IMAGES, STATE)),
            (
                "state.delta is out of range",
                lambda: mf.local_contrast_norm_grad(IMAGES, IMAGES, STATE._replace(delta=float("nan"))),
            ),
        ),
        wrong_types=(
            (
                "state.pm is not a number",
                lambda: mf.local_contrast_norm_grad(IMAGES, IMAGES, STATE._replace(pm="0")),
            ),
        ),
        loads={
            "local_contrast_norm_weights": Loads(_norm_grad, dict.fromkeys(("dy", "x", "mean", "m2"), WHOLE)),
            "local_contrast_norm_grad": Loads(_norm_grad, dict.fromkeys(("a", "sum_a", "sum_c"), WHOLE)),
        },
        benchmarks={"local_contrast_norm_grad": Benchmark("normalization", 2, 1, cpu=_MEASURED)},
    ),
)
