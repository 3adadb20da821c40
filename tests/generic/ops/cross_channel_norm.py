"""Local response normalization: `cross_channel_norm`, `cross_channel_norm_fwd` and `cross_channel_norm_grad`."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from generic.ops.spatial_norm import BY_ROOTS, BY_SQUARES, around, squared
from metal_host.case import Case
from metal_host.geometry import LONG, LONG_IMAGE
from support import numbers
from support.benchmarks import DTYPES, PYTORCH, SHARE, Benchmark, Measured, Target
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

X, MANY = Array((2, 5, 4, 4)), Array((3, 7, 6, 8))


def _state(size: int, told: dict[str, float]) -> Call:
    return call("CrossChannelNormState", "cross_channel_norm", size, *told.values())


def _grad(dy: np.ndarray, x: np.ndarray, state: Call) -> np.ndarray:
    return oracle.cross_channel_norm_grad(dy, x, *state.args[1:])


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def _without_first(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """No window of any channel is 0, but one beside the first would be."""
    kept = np.arange(shape[3]) > 0
    return ((abs(numbers(shape)) + 1) * mx.array(kept.astype(np.float32))).astype(dtype)


def _cases() -> Iterator[Case]:
    op = "cross_channel_norm"
    yield squared(op, (2, 3, 5, 24), F32, 5, (1.0, 5.0, 1.0))
    yield squared(op, (1, 2, 3, 12), F32, 4, (2.0, 0.75, 1.5))
    yield squared(op, (1, 3, 2, 7), F32, 3, (3.0, 0.5, 1.0))
    yield squared(op, (1, 1, 3, 2), F32, 9, (1e-4, 0.6, 2.0))
    yield squared(op, (1, 2, 3, 24), F16, 5, (1.0, 0.75, 2.0))
    yield squared(op, (1, 2, 3, 8), BF16, 9, (1.0, 1.0, 1.0))
    yield squared(op, (1, 2, 3, 5), F16, 1, (1.0, 0.25, 1.0))
    yield squared(op, (2, 2, 3, 8), F32, 3, (1.0, 0.5, 0.0), of=_without_first)
    yield squared(op, (1, 9, 61, 16), F32, 5, (1.0, 0.75, 1.0), crowded=True)
    yield squared(op, (1, 2, 2, 43), F32, 16, (1.0, 0.75, 1.0))


# What bodies load ---------------------------------------------------------------------------------------


def _norm() -> None:
    mf.cross_channel_norm(numbers(LONG), 5, alpha=1.0, beta=0.75, delta=1.0)


def _norm_grad() -> None:
    state = mf.CrossChannelNormState("cross_channel_norm", 5, 1.0, 0.75, 1.0)
    mf.cross_channel_norm_grad(numbers(LONG, seed=1), numbers(LONG), state)


# What is measured ---------------------------------------------------------------------------------------

_ON_CPU = (Measured(around(5, 0.75), (Target(PYTORCH, 3.0),)),)
_ON_GPU = (Measured(around(5, 0.75), SHARE, targeted=DTYPES),)

# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
STATE = mf.cross_channel_norm_fwd(IMAGES)[1]
OPS = (
    OpInfo(
        name="cross_channel_norm",
        samples={
            "": call("cross_channel_norm", X, 3, **BY_SQUARES),
            "as MPS has it": Sample(call("cross_channel_norm", MANY), in_matrix=False),
            **{
                f"of {size}": Sample(call("cross_channel_norm", MANY, size, **told), in_matrix=False)
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=oracle.cross_channel_norm,
        wrong_values=(
            ("size is out of range", lambda: mf.cross_channel_norm(IMAGES, 0)),
            ("size is out of range", lambda: mf.cross_channel_norm(IMAGES, 2**31)),
            ("beta is out of range", lambda: mf.cross_channel_norm(IMAGES, beta=float("inf"))),
        ),
        cases=_cases,
        # A pack and those beside it, of four; of the gradient, two and those beside them.
        loads={"cross_channel_norm": Loads(_norm, {"x": (LONG_IMAGE, 10 / 4 * LONG_IMAGE)})},
        benchmarks={"cross_channel_norm": Benchmark("normalization", 1, 1, cpu=_ON_CPU, gpu=_ON_GPU)},
        nodes={
            "": Node(
                lambda x: graph.cross_channel_norm(x, 3, beta=0.5), lambda p, x: mf.cross_channel_norm(x, 3, beta=0.5)
            )
        },
    ),
    OpInfo(
        name="cross_channel_norm_fwd",
        samples={
            "": call("cross_channel_norm_fwd", X, 3, **BY_SQUARES),
            "of more channels than there are": call("cross_channel_norm_fwd", X, 12, **BY_SQUARES),
        },
        image="x",
        reference=oracle.cross_channel_norm,
    ),
    OpInfo(
        name="cross_channel_norm_grad",
        samples={
            "": call("cross_channel_norm_grad", X, X, _state(3, BY_SQUARES)),
            **{
                f"of {size}": Sample(call("cross_channel_norm_grad", MANY, MANY, _state(size, told)), in_matrix=False)
                for size, told in BY_ROOTS.items()
            },
        },
        image="x",
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to x", lambda: mf.cross_channel_norm_grad(IMAGES[..., :1], IMAGES, STATE)),
            (
                "state.size is out of range",
                lambda: mf.cross_channel_norm_grad(IMAGES, IMAGES, STATE._replace(size=-1)),
            ),
        ),
        loads={
            "cross_channel_norm_grad": Loads(_norm_grad, dict.fromkeys(("dy", "x"), (LONG_IMAGE, 6 / 4 * LONG_IMAGE)))
        },
        benchmarks={"cross_channel_norm_grad": Benchmark("normalization", 2, 1, cpu=_ON_CPU, gpu=_ON_GPU)},
    ),
)
