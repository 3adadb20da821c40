"""Softmax: `softmax`, `softmax_grad`, `log_softmax` and `log_softmax_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, Node, OpInfo, Sample, Wrong, call
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, LEVEL_IN_NHWC, SHARE, Benchmark, Measured
from support.oracle import losses as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

LINES = (2, 3, 4)


def _larger(name: str, *of: str) -> dict[str, Sample]:
    """Calls on one array, or two, that reach other kernels: rows that threads share, and lines across them."""
    made = {}
    for label, shape, axis in (
        ("of eight channels", (2, 5, 4, 8), -1),
        ("of eight channels along the rows", (2, 5, 4, 8), 1),
        ("of long rows", (2, 3, 700), -1),
        ("of long columns", (2, 300, 3), 1),
    ):
        made[label] = Sample(call(name, *(Array(shape, kind) for kind in of), axis), in_matrix=False)
    return made


def _in_16_bits(a: np.ndarray) -> bool:
    """Whether float16 or bfloat16 has all of these numbers."""
    return bool((a.astype(np.float16) == a).all() or not (a.astype(np.float32).view(np.uint32) & 0xFFFF).any())


def _softmax_grad(dy: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    """In 16 bits dy is taken from its mean first, which shows where y does not add up to 1."""
    return oracle.softmax_grad(dy, y, axis, rounded=_in_16_bits(y))


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
_ROWS: tuple[tuple[tuple[int, ...], mx.Dtype, dict[str, Any]], ...] = (
    ((3, 5, 64), F32, {}),
    ((2, 3, 5), F32, {}),
    ((7, 100), F32, {"size": 60.0}),
    ((1, 3), F32, {}),
    ((6, 8), F32, {"size": 200.0}),
    ((5, 4), F32, {"size": 200.0}),
    ((2, 1, 3), F16, {}),
    ((3, 7), BF16, {}),
    ((9, 24), F16, {"size": 30.0}),
    ((5, 40), BF16, {}),
    ((2, 1000), F32, {}),
    ((3, 200), F32, {}),
    ((1100, 20), F32, {"crowded": True}),
)
# Lines that no simdgroup holds.
_STRIDED: tuple[tuple[tuple[int, ...], mx.Dtype, int, dict[str, Any]], ...] = (
    ((2, 1030), F32, -1, {}),
    ((2, 301), F32, -1, {"size": 60.0}),
    ((3, 10, 8), F32, 1, {"size": 60.0}),
    ((2, 37, 3), F32, 1, {}),
    ((3, 2), F32, 0, {}),
    ((9, 16), F16, 0, {}),
    ((2, 3, 7), BF16, 1, {}),
    ((5, 16), BF16, 0, {}),
    ((3, 2), F16, 0, {}),
    ((2, 3), BF16, 0, {}),
    ((70, 40), F32, 0, {"crowded": True}),
)


def _case(
    name: str,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    axis: int = -1,
    *,
    strided: bool = False,
    size: float = 1.0,
    crowded: bool = False,
) -> Case:
    """Both ways."""
    ending = "_strided" if strided else ""

    def check() -> None:
        forward, backward = getattr(mf, name), getattr(mf, f"{name}_grad")
        x, dy = numbers(shape, dtype) * size, numbers(shape, dtype, 1)
        y = forward(x, axis)
        expected = getattr(oracle, name)(exact(x), axis)
        far = abs(exact(x) - exact(x).max(axis, keepdims=True))
        close(y, expected, (1 + far) * (1e-30 + expected if name == "softmax" else 1) + abs(expected), slack=8)
        # A result of its own, so that the gradient's terms are not all small.
        came = mx.array(expected).astype(dtype) if size == 1 else y
        values, pulled = exact(came), exact(dy)
        by = values if name == "softmax" else np.exp(values)
        if name == "softmax":
            right = oracle.softmax_grad(pulled, values, axis, rounded=dtype != F32)
        else:
            right = oracle.log_softmax_grad(pulled, values, axis)
        scale = abs(pulled) + by * abs(pulled).sum(axis, keepdims=True)
        close(backward(dy, came, axis), right, scale, slack=8)

    bodies = (f"softmax{ending}", f"softmax_grad{ending}")
    return Case(named(name, shape, dtype, axis=axis, size=size), bodies, check, crowded)


def _cases(name: str) -> Iterator[Case]:
    yield from (_case(name, shape, dtype, **how) for shape, dtype, how in _ROWS)
    yield from (_case(name, shape, dtype, axis, strided=True, **how) for shape, dtype, axis, how in _STRIDED)


# What bodies load ---------------------------------------------------------------------------------------


def _both_ways() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    for axis in (-1, 1):
        mf.softmax_grad(dy, mf.softmax(x, axis), axis)


_TWICE = (LONG_IMAGE, 2 * LONG_IMAGE)  # to add up, and to divide

# What is measured ---------------------------------------------------------------------------------------


_IN_FLOAT32: dict[str, Any] = {
    "cpu": (Measured(targets=LEVEL, dtypes=FLOAT32),),
    "gpu": (Measured(targets=SHARE, dtypes=FLOAT32),),
}


def _measured(name: str, of_y: int) -> dict[str, Benchmark]:
    few = [(2, 256, 256, channels) for channels in range(1, 11)]
    on_cpu = (Measured(targets=LEVEL), *(Measured(targets=LEVEL_IN_NHWC, dtypes=FLOAT32, shape=each) for each in few))
    return {name: Benchmark("pointwise", 1, of_y, cpu=on_cpu, gpu=(Measured(targets=SHARE),))}


# Wrong calls, and the records ---------------------------------------------------------------------------

X, NUMBER = numbers(LINES), mx.array(1.0)
HUGE = (2**16, 2**15, 2)


def no_arrays(name: str, function: Callable[[Any], Any]) -> tuple[Wrong, ...]:
    """An argument that is nothing, a number, of NumPy, or of another dtype."""
    return (
        *((f"{name} is not an array", partial(function, other)) for other in (None, 3, np.ones((2, 4)))),
        *(
            (f"{name} has no floating dtype", partial(function, X.astype(t)))
            for t in (mx.int32, mx.bool_, mx.complex64)
        ),
    )


OPS = (
    OpInfo(
        name="softmax",
        samples={
            "": call("softmax", Array(LINES)),
            "along the first axis": call("softmax", Array((4, 3)), 0),
            **_larger("softmax", "numbers"),
        },
        reference=oracle.softmax,
        wrong_values=(
            ("axis is out of range", lambda: mf.softmax(X, 3)),
            ("axis is out of range", lambda: mf.softmax(X, -4)),
            ("x has no axes", lambda: mf.softmax(NUMBER)),
            ("too many lines for one axis", lambda: mf.softmax(mx.broadcast_to(mx.zeros((1, 1, 1)), HUGE))),
        ),
        wrong_types=(
            ("axis is not an int", lambda: mf.softmax(X, 1.0)),
            ("axis is not an int", lambda: mf.softmax(X, None)),
            *no_arrays("x", mf.softmax),
        ),
        cases=lambda: _cases("softmax"),
        loads={"softmax": Loads(_both_ways, {"x": WHOLE}), "softmax_strided": Loads(_both_ways, {"x": _TWICE})},
        benchmarks=_measured("softmax", 1),
        nodes={"": Node(graph.softmax, lambda p, x: mf.softmax(x))},
    ),
    OpInfo(
        name="softmax_grad",
        samples={
            "": call("softmax_grad", Array(LINES), Array(LINES, "shares"), 1),
            **_larger("softmax_grad", "numbers", "shares"),
        },
        reference=_softmax_grad,
        linear=(0,),
        wrong_values=(
            ("axis is out of range", lambda: mf.softmax_grad(X, X, 3)),
            ("dy does not belong to y", lambda: mf.softmax_grad(X[:1], X)),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.softmax_grad(None, X)),
            ("dy and y differ in dtype", lambda: mf.softmax_grad(X.astype(mx.float16), X)),
            *no_arrays("y", lambda y: mf.softmax_grad(X, y)),
        ),
        loads={
            "softmax_grad": Loads(_both_ways, dict.fromkeys(("dy", "y"), WHOLE)),
            "softmax_grad_strided": Loads(_both_ways, dict.fromkeys(("dy", "y"), _TWICE)),
        },
        benchmarks=_measured("softmax_grad", 2),
    ),
    OpInfo(
        name="softmin",
        samples={
            "": call("softmin", Array(LINES)),
            "of eight channels along the rows": Sample(call("softmin", Array((2, 5, 4, 8)), 1), in_matrix=False),
        },
        reference=lambda x, axis=-1: oracle.softmax(-x, axis),
        wrong_values=(
            ("axis is out of range", lambda: mf.softmin(X, 3)),
            ("x has no axes", lambda: mf.softmin(NUMBER)),
        ),
        wrong_types=(("axis is not an int", lambda: mf.softmin(X, 1.0)), *no_arrays("x", mf.softmin)),
        benchmarks={
            "softmin": Benchmark("pointwise", 1, 1, **_IN_FLOAT32),
            "softmin_grad": Benchmark("pointwise", 2, 3, title="softmin and its gradient", **_IN_FLOAT32),
        },
        no_node="MPS has none",
    ),
    OpInfo(
        name="log_softmax",
        samples={
            "": call("log_softmax", Array(LINES)),
            "along the middle": call("log_softmax", Array(LINES), 1),
            **_larger("log_softmax", "numbers"),
        },
        reference=oracle.log_softmax,
        wrong_values=(("axis is out of range", lambda: mf.log_softmax(X, 2**40)),),
        wrong_types=(("axis is not an int", lambda: mf.log_softmax(X, True)), *no_arrays("x", mf.log_softmax)),
        cases=lambda: _cases("log_softmax"),
        benchmarks=_measured("log_softmax", 1),
        nodes={"": Node(lambda x: graph.log_softmax(x, 1), lambda p, x: mf.log_softmax(x, 1))},
    ),
    OpInfo(
        name="log_softmax_grad",
        samples={
            "": call("log_softmax_grad", Array(LINES), Array(LINES)),
            **_larger("log_softmax_grad", "numbers", "numbers"),
        },
        reference=oracle.log_softmax_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to y", lambda: mf.log_softmax_grad(X.reshape(-1), X)),
            ("y has no axes", lambda: mf.log_softmax_grad(NUMBER, NUMBER)),
        ),
        wrong_types=(
            ("dy has no floating dtype", lambda: mf.log_softmax_grad(X.astype(mx.int32), X)),
            *no_arrays("y", lambda y: mf.log_softmax_grad(X, y)),
        ),
        benchmarks=_measured("log_softmax_grad", 2),
    ),
)
