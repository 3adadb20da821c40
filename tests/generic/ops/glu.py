"""The gated linear unit: `glu`, and the kernels of its value and its gradient."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.activations import IMAGES, IN_FLOAT32, MANY, X
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE
from support import close, exact, numbers
from support.benchmarks import Benchmark
from support.oracle import activation as oracle

import mpsfunc as mf


def value(x: np.ndarray, axis: int = -1) -> np.ndarray:
    values, gates = np.split(x, 2, axis)
    return values * oracle.neuron(gates, "sigmoid")


def gradient(dy: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    values, gates = np.split(x, 2, axis)
    by_values, by_gates = dy * oracle.neuron(gates, "sigmoid"), dy * values * oracle.slope(gates, "sigmoid")
    return np.concatenate([by_values, by_gates], axis)


# Kernel cases, and what bodies load ----------------------------------------------------------------------


def _case(shape: tuple[int, ...], dtype: mx.Dtype, axis: int, crowded: bool = False) -> Case:
    """The value and the gradient."""

    def check() -> None:
        x = (numbers(shape) * 8).astype(dtype)
        x64 = exact(x)
        right = value(x64, axis)
        dy = numbers(right.shape, dtype, 1)
        close(mf.glu(x, axis), right, 4 + abs(right), slack=4)
        (dx,) = mx.vjp(lambda x: mf.glu(x, axis), [x], [dy])[1]
        right = gradient(exact(dy), x64, axis)
        close(dx, right, 4 + abs(right), slack=4)

    return Case(named("glu", shape, dtype, axis=axis), ("glu", "glu_grad"), check, crowded)


def _cases() -> Iterator[Case]:
    yield _case((2, 3, 16), mx.float32, -1)
    yield _case((3, 4, 5), mx.float32, 1)
    yield _case((2, 2, 3), mx.float32, 0)
    yield _case((1, 3, 2), mx.float32, 2)  # less than eight elements
    yield _case((5, 3, 6), mx.float16, -1)
    yield _case((2, 6, 8), mx.bfloat16, 1)
    yield _case((31, 301, 2), mx.float32, -1, crowded=True)


def _both() -> None:
    x, dy = numbers(LONG), numbers((*LONG[:-1], LONG[-1] // 2), seed=1)
    mx.vjp(mf.glu, [x], [dy])
    mf.glu(x)


_WHOLE, _HALF = (LONG_IMAGE, LONG_IMAGE), (LONG_IMAGE // 2, LONG_IMAGE // 2)

# The record ---------------------------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="glu",
        samples={
            "": call("glu", X),
            "along the first axis": call("glu", Array((4, 3)), 0),
            "between other axes": call("glu", Array((2, 2, 4, 3)), 2),
            "of eight channels": Sample(call("glu", MANY), in_matrix=False),
            "of halves that fill no vector": Sample(call("glu", Array((3, 7, 38))), in_matrix=False),
            "of halves of one": Sample(call("glu", Array((301, 2))), in_matrix=False),
        },
        reference=value,
        wrong_values=(
            ("axis is out of range", lambda: mf.glu(IMAGES, 4)),
            ("x has no axes", lambda: mf.glu(mx.array(1.0))),
            ("x has no halves", lambda: mf.glu(IMAGES, 2)),
        ),
        wrong_types=(
            ("axis is not an int", lambda: mf.glu(IMAGES, 1.0)),
            ("x is not an array", lambda: mf.glu([1.0, 2.0])),
            ("x has no floating dtype", lambda: mf.glu(mx.arange(4))),
        ),
        loads={
            "glu": Loads(_both, {"x": _WHOLE}),
            "glu_grad": Loads(_both, {"dy": _HALF, "x": _WHOLE}),
        },
        cases=_cases,
        benchmarks={
            "glu": Benchmark("pointwise", 1, 1, of_channels=0.5, **IN_FLOAT32),
            "glu_grad": Benchmark("pointwise", 2, 1, of_channels=0.5, title="glu by mx.vjp", **IN_FLOAT32),
        },
        no_node="MPS has no filter that halves its image so",
    ),
)
