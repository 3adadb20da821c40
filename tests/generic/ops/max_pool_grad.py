"""Gradients of maximum pooling: `max_pool_grad` and `max_pool_grad_from_source`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, OpInfo, Sample, call
from generic.ops.avg_pool import IMAGES, POOL, POOLED, WINDOW
from generic.ops.max_pool import (
    CHANNELS,
    CLAMP,
    DY,
    F32,
    MANY,
    ON_CPU,
    STATE,
    WAYS,
    ZERO,
    X,
    case,
    forward_and_back,
    state_of,
    winners,
)
from metal_host.case import Case
from metal_host.geometry import IMAGE, ON_TILES, SHAPE
from support import numbers
from support.benchmarks import BOTH, COPY, Benchmark, Measured, Target
from support.oracle import pooling as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

PART = ((1, 0), (2, 1))  # of the outputs


def _larger() -> dict[str, Sample]:
    return {
        f"{label} of {count} channels": Sample(
            call("max_pool_grad", Array((2, *out, c)), call("max_pool_fwd", Array((2, 9, 8, c)), size, **how, take=1)),
            in_matrix=False,
        )
        for label, (out, size, how) in WAYS.items()
        for count, c in CHANNELS.items()
    }


def _from_source(dy: np.ndarray, x: np.ndarray, *args: Any, **how: Any) -> np.ndarray:
    return oracle.max_pool_grad(dy, winners(x, *args, **how), *x.shape[1:3])


def _grad(dy: np.ndarray, state: Call, **how: Any) -> np.ndarray:
    return _from_source(dy, *state.args, **state.how, **how)


# Kernel cases -------------------------------------------------------------------------------------------


def _cases() -> Iterator[Case]:
    """Of part of the outputs; those of `max_pool` go backward too."""
    how: dict[str, Any] = {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3))}
    yield case((2, 6, 7, 4), F32, 3, **how, **CLAMP)
    yield case((3, 6, 7, 4), F32, 3, **how, **ZERO)


# What bodies load ---------------------------------------------------------------------------------------


def _edges() -> None:
    y, state = mf.max_pool_fwd(numbers(SHAPE), 3, stride=2, padding=1, edge_mode="clamp")
    mf.max_pool_grad(y, state)


# Wrong calls, and the records ---------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="max_pool_grad",
        samples={
            "": call("max_pool_grad", DY, STATE),
            "of a source window": call("max_pool_grad", DY, STATE, source_window=PART),
            "strided": call("max_pool_grad", DY, call("max_pool_fwd", X, 3, stride=2, padding=1, take=1)),
            **_larger(),
            "of many taps": Sample(
                call("max_pool_grad", Array((1, 2, 2, 3)), call("max_pool_fwd", *MANY, stride=1, take=1)),
                in_matrix=False,
            ),
        },
        image="dy",
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to this state", lambda: mf.max_pool_grad(POOLED[:1], state_of())),
            ("kernel_offset has no meaning here", lambda: mf.max_pool_grad(POOLED, state_of(), kernel_offset=(0, 0))),
            (
                "a wrong state",
                lambda: mf.max_pool_grad(POOLED, state_of(winners=mx.zeros((2, 3, 3, 4), mx.uint8))),
            ),
            (
                "source_window has a negative size",
                lambda: mf.max_pool_grad(POOLED, state_of(), source_window=((0, 0), (1, -1))),
            ),
        ),
        wrong_types=(
            ("not a state of this operation", lambda: mf.max_pool_grad(POOLED, state_of().winners)),
            (
                "a wrong state",
                lambda: mf.max_pool_grad(POOLED, state_of(winners=mx.zeros((2, 3, 2, 4), mx.int32))),
            ),
            ("the state holds no array", lambda: mf.max_pool_grad(POOLED, state_of(winners=None))),
        ),
        cases=_cases,
        loads={
            "max_pool_grad": Loads(  # as often as windows read a pixel
                _edges,
                {"dy": (IMAGE // 4, 18**2 / 12**2 * IMAGE), "winners": (IMAGE // 16, 18**2 / 12**2 * IMAGE / 4)},
            ),
            "max_pool_grad_tile": Loads(
                forward_and_back,
                {"dy": (IMAGE // 4, ON_TILES * IMAGE / 4), "winners": (IMAGE // 16, ON_TILES * IMAGE / 16)},
            ),
        },
        benchmarks={
            "max_pool_grad": Benchmark(
                "pooling", 1, 1, state=1, cpu=ON_CPU, gpu=(Measured(WINDOW, (Target((COPY,), 0.7),), BOTH),)
            )
        },
    ),
    OpInfo(
        name="max_pool_grad_from_source",
        samples={
            "": call("max_pool_grad_from_source", DY, X, 3, **POOL),
            "of a source window": call("max_pool_grad_from_source", DY, X, 3, **POOL, source_window=PART),
            "by offset": Sample(
                call("max_pool_grad_from_source", Array((2, 5, 4, 8)), Array((2, 9, 8, 8)), 3, **WAYS["by offset"][2]),
                in_matrix=False,
            ),
        },
        reference=_from_source,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to this state", lambda: mf.max_pool_grad_from_source(POOLED[:1], IMAGES, 2)),
            ("window does not fit", lambda: mf.max_pool_grad_from_source(POOLED, IMAGES, 9)),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: mf.max_pool_grad_from_source(POOLED.astype(mx.float16), IMAGES, 2)),
            ("x is not an array", lambda: mf.max_pool_grad_from_source(POOLED, None, 2)),
        ),
    ),
)
