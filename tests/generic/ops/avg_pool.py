"""Average pooling: `avg_pool`, `avg_pool_fwd`, `avg_pool_grad` and `avg_pool_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, ON_TILES, SHAPE
from support import close, exact, numbers
from support.benchmarks import BOTH, COPY, FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import pooling as oracle
from support.oracle.windows import within

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.pooling import launches

# Samples, and what they should give ----------------------------------------------------------------------

X, DY = Array((2, 5, 4, 4)), Array((2, 3, 2, 4))
POOL: dict[str, Any] = {"stride": 2, "padding": 1, "edge_mode": "clamp"}
STATE = call("avg_pool_state", X.shape, 3, **POOL, zero_pad=((1, 0), (0, 1)))


def _axes(shape: tuple[int, ...], *args: Any, **how: Any) -> Any:
    """Where windows sit, which tests/windows compares with MPS's rules."""
    return mf.avg_pool_state(shape, *args, **how)[2:]


def _pooled(x: np.ndarray, *args: Any, **how: Any) -> np.ndarray:
    return oracle.avg_pool(x, *_axes(x.shape, *args, **how))


def _grad(dy: np.ndarray, state: Call, source_window: Any = None) -> np.ndarray:
    return oracle.avg_pool_grad(within(dy, source_window), *_axes(*state.args, **state.how))


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
_CLAMP: dict[str, Any] = {"edge_mode": "clamp"}
GEOMETRIES: tuple[tuple[tuple[int, ...], mx.Dtype, Any, dict[str, Any]], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 7, 6, 3), F32, 4, {"stride": 1, "padding": 1}),
    ((5, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **_CLAMP}),
    ((5, 6, 5, 8), F32, 2, {"stride": 1, "dilation": 2, "padding": 1, **_CLAMP}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", **_CLAMP, "zero_pad": 1}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": 2, **_CLAMP, "zero_pad": ((2, 0), (0, 1))}),
    ((2, 5, 6, 4), F32, 2, {"stride": 2, "dilation": 2, "padding": 2, **_CLAMP, "zero_pad": ((0, 2), (1, 0))}),
    ((1, 4, 5, 16), F16, 4, {"stride": 1, "padding": 2, **_CLAMP}),
    ((6, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full"}),
    ((3, 4, 5, 8), BF16, 5, {"stride": 1, "padding": 2}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **_CLAMP}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1}),
    ((1, 4, 4, 1), F32, 4, {"stride": 1}),
    ((2, 4, 5, 3), F32, 2, {"stride": 3, "offset": (-3, 4), "out_size": (4, 3), **_CLAMP}),
    ((3, 7, 6, 4), F32, (2, 3), {"stride": (1, 2), "padding": ((0, 1), (2, 0))}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": 1, "divisor_override": 7}),
    ((2, 5, 6, 4), F32, 2, {"stride": 1, "dilation": 2, "padding": 1, "divisor_override": 3}),
    ((2, 9, 10, 8), F16, "global", {}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


def _case(shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, **placement: Any) -> Case:
    def check() -> None:
        x, state = numbers(shape, dtype), mf.avg_pool_state(shape, kernel, **placement)
        definition = [oracle.avg_pool(v, state.rows, state.cols) for v in (exact(x), abs(exact(x)))]
        close(mf.avg_pool(x, kernel, **placement), *definition)

    return Case(named("avg_pool", shape, dtype, k=kernel, **placement), ("avg_pool",), check, crowded)


def _grad_case(
    shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, window: Any = None, **placement: Any
) -> Case:
    def check() -> None:
        state = mf.avg_pool_state(shape, kernel, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, shape[3]), dtype)
        of = call("avg_pool_state", shape, kernel, **placement)
        definition = [_grad(v, of, window) for v in (exact(dy), abs(exact(dy)))]
        close(mf.avg_pool_grad(dy, state, source_window=window), *definition)

    name = named("avg_pool_grad", shape, dtype, k=kernel, **placement)
    return Case(name, _grad_body(shape, kernel, **placement), check, crowded)


def _grad_of_infinity(shape: tuple[int, ...], kernel: Any, **placement: Any) -> Case:
    """An infinity reaches the pixels that its window reads, and spoils no other."""

    def check() -> None:
        state = mf.avg_pool_state(shape, kernel, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, shape[3]))
        first = np.zeros(dy.shape)
        first[0, 0, 0] = 1
        dx = exact(mf.avg_pool_grad(mx.where(mx.array(first > 0), mx.inf, dy), state))
        read = oracle.avg_pool_grad(first, state.rows, state.cols) > 0
        assert (dx[read] == np.inf).all()
        expected = oracle.avg_pool_grad(exact(dy), state.rows, state.cols)
        np.testing.assert_allclose(dx[~read], expected[~read], rtol=1e-5, atol=1e-5)

    name = named("avg_pool_grad of infinity", shape, F32, k=kernel, **placement)
    return Case(name, _grad_body(shape, kernel, **placement), check)


def _grad_body(shape: tuple[int, ...], kernel: Any, **placement: Any) -> tuple[str]:
    tiled = launches.tile(*_axes(shape, kernel, **placement)) is not None
    return ("avg_pool_grad_tile",) if tiled else ("avg_pool_grad",)


_CROWDED: dict[str, Any] = {"stride": 1, "padding": 1, "dilation": (1, 2), "crowded": True}


def _cases() -> Iterator[Case]:
    yield from (_case(*pool[:3], **pool[3]) for pool in GEOMETRIES)
    yield _case((9, 70, 3, 4), F32, (2, 2), **_CROWDED)


def _grad_cases() -> Iterator[Case]:
    yield from (_grad_case(*pool[:3], **pool[3]) for pool in GEOMETRIES)
    yield _grad_case((5, 40, 30, 8), F32, (2, 2), stride=1, padding=1, crowded=True)
    yield _grad_case((9, 70, 3, 4), F32, (2, 2), **_CROWDED)
    yield _grad_case((9, 70, 3, 4), F32, (2, 3), **_CROWDED)
    yield _grad_case((2, 6, 7, 4), F32, 3, stride=2, padding=1, window=((1, 0), (1, 3)))
    yield _grad_of_infinity((2, 5, 5, 4), 3, stride=2, padding=1)


# What bodies load ---------------------------------------------------------------------------------------


def _pool() -> None:
    mf.avg_pool(numbers(SHAPE), 3, stride=2, padding=1)


def _pool_grad() -> None:
    mf.avg_pool_grad(numbers((2, 6, 6, 16)), mf.avg_pool_state(SHAPE, 3, stride=2, padding=1))


def _pool_grad_of_many() -> None:
    mf.avg_pool_grad(numbers(SHAPE), mf.avg_pool_state(SHAPE, 5, stride=1, padding=2))


# What is measured ---------------------------------------------------------------------------------------

WINDOW = {"kernel_size": 3, "stride": 2, "padding": 1}
APART = {"kernel_size": 2, "stride": 2}
OTHER_SHAPES = ((8, 112, 112, 32), (8, 56, 56, 3), (8, 56, 56, 8), (8, 56, 56, 65))
_ON_CPU = (
    *(Measured(window, LEVEL, BOTH) for window in (WINDOW, APART)),
    Measured({**WINDOW, **_CLAMP}, LEVEL, FLOAT32),
    *(
        Measured({**window, **_CLAMP}, LEVEL, FLOAT32, shape=shape)
        for window in (WINDOW, APART)
        for shape in OTHER_SHAPES
    ),
)

# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, POOLED = numbers((2, 6, 5, 4)), mx.ones((2, 3, 2, 4))
WINDOWS = mf.avg_pool_state(IMAGES.shape, 2)
_WRONG_WINDOWS = (
    ("window does not fit", lambda: mf.avg_pool(IMAGES, 7)),
    ("unknown edge_mode", lambda: mf.avg_pool(IMAGES, 2, edge_mode="mirror")),
    ("divisor_override is out of range", lambda: mf.avg_pool(IMAGES, 2, divisor_override=0)),
    ("divisor_override is out of range", lambda: mf.avg_pool(IMAGES, 2, divisor_override=2**24 + 1)),
    (
        "adaptive windows have divisors of their own",
        lambda: mf.avg_pool(IMAGES, "adaptive", out_size=2, divisor_override=4),
    ),
    ("an image is too large", lambda: mf.avg_pool(IMAGES, 1, offset=0, out_size=2**15)),
    ("windows reach too far", lambda: mf.avg_pool(IMAGES, 2, stride=2**29, offset=0, out_size=9)),
)
OPS = (
    OpInfo(
        name="avg_pool",
        samples={
            "": call("avg_pool", X, 3, **POOL, zero_pad=((1, 0), (0, 1))),
            "by a divisor": call("avg_pool", X, 3, **POOL, zero_pad=1, divisor_override=5),
            "globally": call("avg_pool", X, "global"),
            "adaptively": call("avg_pool", X, "adaptive", out_size=(2, 3)),
            "of three channels": Sample(call("avg_pool", Array((2, 9, 8, 3)), 3, stride=2, padding=1), in_matrix=False),
            "of eight channels": Sample(
                call("avg_pool", Array((2, 9, 8, 8)), 3, stride=2, offset=0, out_size=(5, 4)), in_matrix=False
            ),
        },
        image="x",
        reference=_pooled,
        linear=(0,),
        wrong_values=_WRONG_WINDOWS,
        wrong_types=(("divisor_override is not an int", lambda: mf.avg_pool(IMAGES, 2, divisor_override=4.0)),),
        cases=_cases,
        loads={"avg_pool": Loads(_pool, {"x": (IMAGE, 17**2 / 12**2 * IMAGE)})},  # every tap inside once
        benchmarks={
            "avg_pool": Benchmark("pooling", 1, 1, cpu=_ON_CPU, gpu=(Measured(WINDOW, (Target((COPY,), 0.7),), BOTH),))
        },
        nodes={
            "": Node(
                lambda x: graph.avg_pool(x, 3),
                lambda p, x: mf.avg_pool(x, 3, padding=mf.PaddingPolicy(), edge_mode="clamp"),
            )
        },
    ),
    OpInfo(
        name="avg_pool_fwd",
        samples={
            "": call("avg_pool_fwd", X, (2, 3), dilation=(2, 1)),
            "by a divisor": call("avg_pool_fwd", X, "global", divisor_override=3),
        },
        image="x",
        reference=_pooled,
        linear=(0,),
    ),
    OpInfo(
        name="avg_pool_grad",
        samples={
            "": call("avg_pool_grad", DY, STATE),
            "by a divisor": call("avg_pool_grad", DY, call("avg_pool_state", X.shape, 3, **POOL, divisor_override=5)),
            "of a source window": call("avg_pool_grad", DY, STATE, source_window=((1, 0), (2, 1))),
            "of eight channels": Sample(
                call(
                    "avg_pool_grad", Array((2, 5, 4, 8)), call("avg_pool_state", (2, 9, 8, 8), 3, stride=2, padding=1)
                ),
                in_matrix=False,
            ),
        },
        image="dy",
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to this state", lambda: mf.avg_pool_grad(mx.ones((2, 3, 3, 4)), WINDOWS)),
            ("dy does not belong to this state", lambda: mf.avg_pool_grad(mx.ones((2, 3, 2, 5)), WINDOWS)),
            ("kernel_offset has no meaning here", lambda: mf.avg_pool_grad(POOLED, WINDOWS, kernel_offset=(0, 0))),
        ),
        cases=_grad_cases,
        loads={
            "avg_pool_grad": Loads(_pool_grad_of_many, {"dy": (IMAGE, (5 * 12 - 6) ** 2 / 12**2 * IMAGE)}),  # likewise
            "avg_pool_grad_tile": Loads(_pool_grad, {"dy": (IMAGE // 4, ON_TILES * IMAGE / 4)}),
        },
        benchmarks={
            "avg_pool_grad": Benchmark(
                "pooling",
                1,
                1,
                cpu=_ON_CPU,
                gpu=(Measured(WINDOW, (Target((COPY,), 0.7), Target(PYTORCH, 5)), BOTH),),
            )
        },
    ),
    OpInfo(
        name="avg_pool_state",
        differentiable=False,
        compared="pooling/test_average.py",
        samples={"": STATE},
        wrong_values=(
            ("not an image batch", lambda: mf.avg_pool_state((6, 5, 4), 2)),
            ("not an image batch", lambda: mf.avg_pool_state((1, 6, 5.0, 4), 2)),
            ("an image is too large", lambda: mf.avg_pool_state((1, 2**16, 2**15, 1), 2)),
        ),
    ),
)
