"""Means over what each pixel covers: `resize_area`, with `_fwd`, `_grad` and `_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from generic.ops.resize import EIGHT, F16, F32, IMAGES, LARGE, OTHER, SMALLER, X, axes, backward, forward, mixed
from metal_host.case import Case
from support.benchmarks import Benchmark
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc import graph


def means(shape: tuple[int, ...], out_size: Any = None, scale: Any = None) -> tuple[np.ndarray, ...]:
    return tuple(oracle.area(n, m) for n, m, _ in axes(shape, out_size, scale))


def _cases() -> Iterator[Case]:
    """For the body of `resize_bilinear`."""
    yield mixed("resize_area", means((2, 9, 7, 4), (2, 3)), (2, 9, 7, 4), F32, (2, 3))
    yield mixed("resize_area", means((1, 4, 6, 16), (6, 4)), (1, 4, 6, 16), F16, (6, 4))


_NEAREST, _STATE = mf.resize_nearest_state(IMAGES.shape, 3), mf.resize_area_state(IMAGES.shape, 3)
OPS = (
    OpInfo(
        name="resize_area",
        benchmarks={"resize_area": Benchmark("pointwise", 1, 1, **SMALLER)},
        samples={
            "": call("resize_area", X, (5, 2)),
            "smaller": Sample(call("resize_area", EIGHT, scale=(0.5, 0.3)), in_matrix=False),
            "lower and wider": Sample(call("resize_area", EIGHT, (3, 7)), in_matrix=False),
        },
        image="x",
        reference=forward(means),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("no size", lambda: mf.resize_area(IMAGES)),
            ("out_size is too small", lambda: mf.resize_area(IMAGES, 0)),
        ),
        wrong_types=(("x has no floating dtype", lambda: mf.resize_area(IMAGES.astype(mx.int32), 3)),),
        cases=_cases,
        nodes={
            "": Node(lambda x: graph.resize_area(x, scale=(0.5, 1.7)), lambda p, x: mf.resize_area(x, scale=(0.5, 1.7)))
        },
    ),
    OpInfo(
        name="resize_area_fwd",
        samples={
            "": call("resize_area_fwd", X, (1, 7)),
            "lower and wider": call("resize_area_fwd", OTHER, scale=(0.6, 1.7)),
        },
        image="x",
        reference=forward(means),
        slack=2,
        linear=(0,),
    ),
    OpInfo(
        name="resize_area_grad",
        benchmarks={"resize_area_grad": Benchmark("pointwise", 1, 1, **SMALLER)},
        samples={
            "": call("resize_area_grad", Array((2, 5, 2, 4)), call("resize_area_state", X.shape, (5, 2))),
            "lower and wider": call(
                "resize_area_grad", Array((2, 3, 6, 4)), call("resize_area_state", OTHER.shape, (3, 6))
            ),
            "of eight channels": Sample(
                call("resize_area_grad", Array((2, 2, 3, 8)), call("resize_area_state", EIGHT.shape, (2, 3))),
                in_matrix=False,
            ),
        },
        image="dy",
        reference=backward(means),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: mf.resize_area_grad(LARGE, _NEAREST)),
            ("dy does not belong to this state", lambda: mf.resize_area_grad(LARGE, _STATE)),
        ),
        wrong_types=(("not a state of this operation", lambda: mf.resize_area_grad(LARGE, None)),),
    ),
    OpInfo(
        name="resize_area_state",
        differentiable=False,
        compared="image/test_resize.py",
        samples={"": call("resize_area_state", X.shape, (5, 2))},
        wrong_values=(("scale leaves no pixels", lambda: mf.resize_area_state(IMAGES.shape, scale=0.01)),),
    ),
)
