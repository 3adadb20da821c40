"""Maximum pooling: `max_pool`, `max_pool_fwd`, `max_pool_indices` and `max_unpool`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from generic.ops.avg_pool import APART, IMAGES, OTHER_SHAPES, POOL, POOLED, WINDOW
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, SHAPE
from support import close, exact, numbers
from support.benchmarks import BOTH, FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import pooling as oracle
from support.oracle.windows import within

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.pooling import launches
from mpsfunc.windows.axis import MAX_EDGE_MODES, clamps_taps
from mpsfunc.windows.placement import place

# Samples, and what they should give ----------------------------------------------------------------------

X, DY = Array((2, 5, 4, 4)), Array((2, 3, 2, 4))
# Windows on images of 9 x 8 pixels: how many there are, their size, and how they are placed.
WAYS: dict[str, tuple[tuple[int, int], Any, dict[str, Any]]] = {
    "strided": ((5, 4), 3, {"stride": 2, "padding": 1}),
    "dilated": ((4, 2), (2, 3), {"dilation": (2, 1)}),
    "by offset": ((5, 4), 3, {"stride": 2, "offset": 0, "out_size": (5, 4)}),
}
CHANNELS = {"eight": 8, "three": 3}
MANY: tuple[Any, ...] = (Array((1, 16, 21, 3)), (15, 20))  # taps, more than a byte counts
STATE = call("max_pool_fwd", X, 3, **POOL, take=1)


def larger(name: str) -> dict[str, Sample]:
    """A pooling of each way, for kernels of vectors and of single channels."""
    return {
        f"{label} of {count} channels": Sample(call(name, Array((2, 9, 8, c)), size, **how), in_matrix=False)
        for label, (_, size, how) in WAYS.items()
        for count, c in CHANNELS.items()
    }


def axes(shape: tuple[int, ...], *args: Any, **how: Any) -> Any:
    """Where windows sit, which tests/windows compares with MPS's rules."""
    edge = "zero" if "offset" in how else "exclude"  # unless somebody says
    return place("max_pool", shape[1:3], *args, edge_modes=MAX_EDGE_MODES, **{"edge_mode": edge, **how})


def winners(x: np.ndarray, *args: Any, source_window: Any = None, **how: Any) -> np.ndarray:
    """Where they lie, -1 for none, as of outputs outside a source window."""
    return within(oracle.max_pool(x, *axes(x.shape, *args, **how))[1], source_window, -1)


def _pooled(x: np.ndarray, *args: Any, **how: Any) -> np.ndarray:
    return oracle.max_pool(x, *axes(x.shape, *args, **how))[0]


def _unpooled(y: np.ndarray, state: Call) -> np.ndarray:
    """The mean of what windows with one winner have for it."""
    at, size = winners(*state.args, **state.how), state.args[0].shape[1:3]
    return oracle.max_pool_grad(y, at, *size) / np.maximum(oracle.max_pool_grad(np.ones(y.shape), at, *size), 1)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
CLAMP: dict[str, Any] = {"edge_mode": "clamp"}
ZERO: dict[str, Any] = {"edge_mode": "zero"}
GEOMETRIES: tuple[tuple[tuple[int, ...], mx.Dtype, Any, dict[str, Any]], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1, **ZERO}),
    ((2, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **CLAMP}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2, **ZERO}),
    ((5, 6, 5, 8), F32, (2, 2), {"stride": 1, "dilation": 2, "padding": 2, **ZERO}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1, "dilation": 2}),
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same"}),
    ((2, 5, 4, 4), mx.int32, 3, {"stride": 1, "padding": 1}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", **CLAMP}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **ZERO}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **CLAMP}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1, **ZERO}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **CLAMP}),
    ((1, 17, 16, 4), F32, (16, 16), {"stride": 1}),  # more taps than a byte counts
    ((2, 4, 5, 3), F32, 2, {"stride": 3, "offset": (-3, 4), "out_size": (4, 3), **CLAMP}),
    ((2, 5, 4, 4), mx.int32, 3, {"stride": 1, "padding": 1, **ZERO}),
    ((2, 5, 4, 16), mx.uint8, 2, {"stride": 2, "padding": 1, **ZERO}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


def case(
    shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, window: Any = None, **placement: Any
) -> Case:
    """Forward, backward and the tangent, which is the derivative of backward; ``window`` is of backward."""

    def check() -> None:
        x = (4 * numbers(shape)).astype(dtype)  # ties where the dtype is small
        y, state = mf.max_pool_fwd(x, kernel, **placement)
        expected, at = oracle.max_pool(exact(x), state.rows, state.cols)
        np.testing.assert_array_equal(exact(y), expected)
        np.testing.assert_array_equal(np.array(mf.max_pool_indices(state, stream=mx.cpu)), at)
        if not mx.issubdtype(dtype, mx.floating):
            return
        at = winners(exact(x), kernel, source_window=window, **placement)
        dy, tangent = numbers(tuple(y.shape), dtype, 1), numbers(shape, dtype, 2)
        definition = [oracle.max_pool_grad(v, at, *shape[1:3]) for v in (exact(dy), abs(exact(dy)))]
        (dx,), (pulled,) = mx.vjp(lambda dy: mf.max_pool_grad(dy, state, source_window=window), [dy], [tangent])
        close(dx, *definition)
        flat = np.concatenate([exact(tangent).reshape(shape[0], -1, shape[3]), np.zeros((shape[0], 1, shape[3]))], 1)
        read = np.take_along_axis(flat, at.reshape(shape[0], -1, shape[3]), 1)
        np.testing.assert_array_equal(exact(pulled), read.reshape(y.shape))

    rows, cols = axes(shape, kernel, **placement)
    tiled = launches.tile(rows, cols) is not None and not (clamps_taps(rows) or clamps_taps(cols))
    bodies = ("max_pool", "max_pool_grad_tile" if tiled else "max_pool_grad", "max_pool_gather")
    kinds = bodies if mx.issubdtype(dtype, mx.floating) else bodies[:1]
    return Case(named("max_pool", shape, dtype, k=kernel, **placement), kinds, check, crowded)


_CROWDED: dict[str, Any] = {"stride": 1, "padding": 1, "dilation": (1, 2), "crowded": True}


def _cases() -> Iterator[Case]:
    yield from (case(*pool[:3], **pool[3]) for pool in GEOMETRIES)
    yield case((5, 40, 30, 8), F32, (2, 2), stride=1, padding=1, crowded=True)
    yield from (case((9, 70, 3, 4), F32, (2, 2), **edge, **_CROWDED) for edge in ({}, ZERO, CLAMP))


# What bodies load ---------------------------------------------------------------------------------------


def forward_and_back() -> None:
    """With the tangent."""
    dy = numbers((2, 6, 6, 16))
    _, state = mf.max_pool_fwd(numbers(SHAPE), 3, stride=2, padding=1)
    mx.eval(mx.vjp(lambda dy: mf.max_pool_grad(dy, state), [dy], [numbers(SHAPE)]))


# What is measured ---------------------------------------------------------------------------------------

ON_CPU = (
    *(Measured(window, LEVEL, BOTH) for window in (WINDOW, APART)),
    *(Measured(window, LEVEL, FLOAT32, shape=shape) for window in (WINDOW, APART) for shape in OTHER_SHAPES),
)

# Wrong calls, and the records ---------------------------------------------------------------------------

EXCLUDED = mf.PaddingPolicy(exclude_edges=True)


def state_of(**change: Any) -> mf.MaxPoolState:
    """Of a pooling by twos, changed."""
    return mf.max_pool_fwd(IMAGES, 2)[1]._replace(**change)


_OTHER_WINNERS, _INT_WINNERS = mx.zeros((2, 3, 3, 4), mx.uint8), mx.zeros((2, 3, 2, 4), mx.int32)
OPS = (
    OpInfo(
        name="max_pool",
        takes_integers=True,
        samples={
            "": call("max_pool", X, 3, **POOL),
            "adaptively": call("max_pool", X, "adaptive", out_size=(2, 3)),
            **larger("max_pool"),
            "of many taps": Sample(call("max_pool", *MANY, stride=1), in_matrix=False),
        },
        reference=_pooled,
        wrong_values=(
            ("unknown edge_mode", lambda: mf.max_pool(IMAGES, 2, edge_mode="mirror")),
            ("exclude_edges is for averages", lambda: mf.max_pool(IMAGES, 2, padding=EXCLUDED)),
            ("window does not fit", lambda: mf.max_pool(IMAGES, 9)),
            ("not an image batch", lambda: mf.max_pool(IMAGES[0], 2)),
            ("too many taps", lambda: mf.max_pool(IMAGES, (2**16, 2**15), offset=0, out_size=1)),
            ("a window contains no pixel", lambda: mf.max_pool(IMAGES, 1, padding=1)),
            ("an image is too large", lambda: mf.max_pool(IMAGES, 1, offset=0, out_size=2**15)),
        ),
        wrong_types=(
            ("x is not an array", lambda: mf.max_pool([[1.0]], 2)),
            ("x has no dtype of real numbers", lambda: mf.max_pool(IMAGES > 0, 2)),
            ("x has no dtype of real numbers", lambda: mf.max_pool(IMAGES.astype(mx.complex64), 2)),
        ),
        cases=_cases,
        loads={
            # Every tap inside once, and where a window begins outside one more in each row.
            "max_pool": Loads(forward_and_back, {"x": (IMAGE, 17 * 18 / 12**2 * IMAGE)}),
            "max_pool_gather": Loads(
                forward_and_back, {"x": (IMAGE, IMAGE // 4), "winners": (IMAGE // 16, IMAGE // 16)}
            ),
        },
        benchmarks={"max_pool": Benchmark("pooling", 1, 1, cpu=ON_CPU, gpu=(Measured(WINDOW, dtypes=BOTH),))},
        nodes={
            "": Node(
                lambda x: graph.max_pool(x, 3),
                lambda p, x: mf.max_pool(x, 3, padding=mf.PaddingPolicy(), edge_mode="clamp"),
            )
        },
    ),
    OpInfo(
        name="max_pool_fwd",
        takes_integers=True,
        samples={
            "": call("max_pool_fwd", X, (2, 3), dilation=(2, 1)),
            "strided": call("max_pool_fwd", X, 3, stride=2, padding=1),
        },
        reference=_pooled,
    ),
    OpInfo(
        name="max_pool_indices",
        differentiable=False,
        launches=False,
        compared="pooling/test_max.py",
        samples={
            "": call("max_pool_indices", call("max_pool_fwd", X, 3, stride=2, padding=1, take=1)),
            "of edges": call("max_pool_indices", STATE),
            "by offset": Sample(
                call("max_pool_indices", call("max_pool_fwd", Array((2, 9, 8, 3)), 3, **WAYS["by offset"][2], take=1)),
                in_matrix=False,
            ),
        },
        wrong_values=(("a wrong state", lambda: mf.max_pool_indices(state_of(winners=_OTHER_WINNERS[0]))),),
        wrong_types=(
            ("not a state of this operation", lambda: mf.max_pool_indices(mf.avg_pool_state(IMAGES.shape, 2))),
            ("a wrong state", lambda: mf.max_pool_indices(state_of(winners=_INT_WINNERS))),
            ("the state holds no array", lambda: mf.max_pool_indices(state_of(winners=None))),
        ),
    ),
    OpInfo(
        name="max_unpool",
        no_node="MPS has no node for it",
        samples={
            "": call("max_unpool", DY, STATE),
            "strided": call("max_unpool", DY, call("max_pool_fwd", X, 3, stride=2, padding=1, take=1)),
            "of windows apart": call("max_unpool", Array((2, 2, 2, 4)), call("max_pool_fwd", X, 2, take=1)),
            **{
                f"of {count} channels": Sample(
                    call(
                        "max_unpool",
                        Array((2, 5, 4, c)),
                        call("max_pool_fwd", Array((2, 9, 8, c)), 3, **WAYS["by offset"][2], take=1),
                    ),
                    in_matrix=False,
                )
                for count, c in CHANNELS.items()
            },
        },
        reference=_unpooled,
        linear=(0,),
        wrong_values=(
            ("y does not belong to this state", lambda: mf.max_unpool(POOLED[:, :1], state_of())),
            ("a wrong state", lambda: mf.max_unpool(POOLED, state_of(winners=_OTHER_WINNERS))),
        ),
        wrong_types=(
            ("y is not an array", lambda: mf.max_unpool(None, state_of())),
            ("a wrong state", lambda: mf.max_unpool(POOLED, state_of(winners=_INT_WINNERS))),
            ("the state holds no array", lambda: mf.max_unpool(POOLED, state_of(winners=None))),
        ),
    ),
)
