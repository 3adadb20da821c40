"""Pooling by the L2 norm: `l2_pool`, `l2_pool_fwd` and `l2_pool_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from generic.ops.avg_pool import IMAGES, POOL, POOLED, WINDOW
from generic.ops.max_pool import CHANNELS, CLAMP, ON_CPU, WAYS, larger
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, ON_TILES, SHAPE
from support import SMALLEST, TOLERANCE, close, exact, numbers
from support.benchmarks import BOTH, COPY, Benchmark, Measured, Target
from support.oracle import pooling as oracle
from support.oracle.windows import within

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.pooling import launches
from mpsfunc.windows.axis import clamps_taps
from mpsfunc.windows.placement import restrict_outputs

# Samples, and what they should give ----------------------------------------------------------------------

X, DY = Array((2, 5, 4, 4)), Array((2, 3, 2, 4))
NORMS = Array(DY.shape, "positive", wide=True)
# A state whose norms are arguments of their own. Its windows sit where an average's do.
AXES = (call("avg_pool_state", X.shape, 3, **POOL, take=2), call("avg_pool_state", X.shape, 3, **POOL, take=3))
STATE = call("L2PoolState", NORMS, "l2_pool", *AXES)


def _larger_grad() -> dict[str, Sample]:
    made = {}
    for label, (out, size, how) in WAYS.items():
        for count, c in CHANNELS.items():
            x, dy = Array((2, 9, 8, c)), Array((2, *out, c))
            sample = call("l2_pool_grad", dy, x, call("l2_pool_fwd", x, size, **how, take=1))
            made[f"{label} of {count} channels"] = Sample(sample, in_matrix=False)
    return made


def _axes(shape: tuple[int, ...], *args: Any, **how: Any) -> Any:
    """Where windows sit, which tests/windows compares with MPS's rules."""
    return mf.avg_pool_state(shape, *args, **how)[2:]


def _pooled(x: np.ndarray, *args: Any, **how: Any) -> np.ndarray:
    return oracle.l2_pool(x, *_axes(x.shape, *args, **how))


def _grad(dy: np.ndarray, x: np.ndarray, state: Call, source_window: Any = None) -> np.ndarray:
    if state.function == "L2PoolState":
        norms, _, of_axes, _ = state.args
        axes = _axes(*of_axes.args, **of_axes.how)
    else:
        norms, axes = _pooled(*state.args, **state.how), _axes(x.shape, *state.args[1:], **state.how)
    return oracle.l2_pool_grad(within(dy, source_window), x, norms, *axes)


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
GEOMETRIES: tuple[tuple[tuple[int, ...], mx.Dtype, Any, dict[str, Any]], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **CLAMP}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same"}),
    ((2, 5, 4, 8), F16, 3, {"stride": 2, "padding": "same", **CLAMP}),
    ((3, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full"}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **CLAMP}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **CLAMP}),
    ((2, 9, 10, 8), F32, "global", {}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


def _case(
    shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, window: Any = None, **placement: Any
) -> Case:
    """Forward, backward and the tangent, which is the derivative of backward by dy; ``window`` is of backward."""

    def check() -> None:
        x = numbers(shape, dtype)
        y, state = mf.l2_pool_fwd(x, kernel, **placement)
        norms = oracle.l2_pool(exact(x), state.rows, state.cols)
        close(y, norms, norms, slack=4)
        dy, tangent = numbers(tuple(y.shape), dtype, 1), numbers(shape, dtype, 2)
        rows, cols = state.rows, state.cols
        if window:
            rows, cols = restrict_outputs("l2_pool_grad", (rows, cols), window)
        (dx,), (pulled,) = mx.vjp(lambda dy: mf.l2_pool_grad(dy, x, state, source_window=window), [dy], [tangent])
        where = (exact(x), norms, rows, cols)
        size = abs(exact(x)), norms, rows, cols
        close(dx, oracle.l2_pool_grad(exact(dy), *where), oracle.l2_pool_grad(abs(exact(dy)), *size), slack=4)
        close(
            pulled,
            oracle.l2_pool_jvp(exact(tangent), *where),
            oracle.l2_pool_jvp(abs(exact(tangent)), *size),
            slack=4,
        )

    rows, cols = _axes(shape, kernel, **placement)
    tiled = launches.tile(rows, cols) is not None and not (clamps_taps(rows) or clamps_taps(cols))
    bodies = ("l2_pool", "l2_pool_grad_tile" if tiled else "l2_pool_grad", "l2_pool_jvp")
    return Case(named("l2_pool", shape, dtype, k=kernel, **placement), bodies, check, crowded)


def _of_infinity(shape: tuple[int, ...], kernel: Any, **placement: Any) -> Case:
    """An infinity reaches the pixels that its window reads, and spoils no other."""

    def check() -> None:
        x = numbers(shape)
        y, state = mf.l2_pool_fwd(x, kernel, **placement)
        first = np.zeros(y.shape)
        first[0, 0, 0] = 1
        dx = exact(mf.l2_pool_grad(mx.where(mx.array(first > 0), mx.inf, mx.ones_like(y)), x, state))
        read = oracle.avg_pool_grad(first, state.rows, state.cols) > 0
        assert np.isinf(dx[read]).all() and np.isfinite(dx[~read]).all()

    name = named("l2_pool_grad of infinity", shape, F32, k=kernel, **placement)
    return Case(name, ("l2_pool", "l2_pool_grad"), check)


def _beside_infinity(shape: tuple[int, ...], kernel: Any, window: Any = None, **placement: Any) -> Case:
    """Pixels that no selected window reads stay without a gradient, whatever they hold."""

    def check() -> None:
        state = mf.l2_pool_fwd(numbers(shape), kernel, **placement)[1]
        axes = restrict_outputs("l2_pool_grad", (state.rows, state.cols), window)
        read = oracle.avg_pool_grad(np.ones(state.norms.shape), *axes) > 0
        x = mx.where(mx.array(read), numbers(shape), mx.inf)
        state = mf.l2_pool_fwd(x, kernel, **placement)[1]
        dx = exact(mf.l2_pool_grad(mx.ones_like(state.norms), x, state, source_window=window))
        assert not dx[~read].any() and not read.all()

    name = named("l2_pool_grad beside infinity", shape, F32, k=kernel, window=window, **placement)
    return Case(name, ("l2_pool", "l2_pool_grad_tile"), check)


def _of_extremes(shape: tuple[int, ...], dtype: mx.Dtype, small: float, large: float) -> Case:
    """Values whose squares a float cannot hold, beside such as it can."""

    def check() -> None:
        sizes = np.resize([small, 1.0, large], shape[3])
        x = (numbers(shape) * mx.array(sizes, mx.float32)).astype(dtype)
        y, state = mf.l2_pool_fwd(x, 2)
        norms = oracle.l2_pool(exact(x), state.rows, state.cols)
        np.testing.assert_allclose(exact(y), norms, rtol=4 * TOLERANCE[dtype], atol=SMALLEST if dtype == F16 else 0)
        dy = numbers(tuple(y.shape), dtype, 1)
        definition = oracle.l2_pool_grad(exact(dy), exact(x), norms, state.rows, state.cols)
        np.testing.assert_allclose(
            exact(mf.l2_pool_grad(dy, x, state)), definition, rtol=4 * TOLERANCE[dtype], atol=1e-6
        )

    return Case(named("l2_pool of extremes", shape, dtype), ("l2_pool", "l2_pool_grad_tile"), check)


def _cases() -> Iterator[Case]:
    yield from (_case(*pool[:3], **pool[3]) for pool in GEOMETRIES)
    yield _case((9, 70, 3, 4), F32, (2, 2), stride=1, padding=1, dilation=(1, 2), crowded=True)
    yield _case((5, 40, 30, 8), F32, (2, 2), stride=1, padding=1, crowded=True)
    yield _of_extremes((1, 4, 4, 12), F32, 1e-30, 1e30)
    yield _of_extremes((1, 4, 4, 9), BF16, 1e-30, 1e30)
    yield _of_extremes((1, 4, 4, 9), F16, 1e-7, 1e4)


def _grad_cases() -> Iterator[Case]:
    """Besides those of `l2_pool`, which go backward too."""
    how: dict[str, Any] = {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3))}
    yield _case((2, 6, 7, 4), F32, 3, **how, **CLAMP)
    yield _case((3, 6, 7, 4), F32, 3, **how)
    yield _of_infinity((1, 6, 6, 4), 2, stride=1, dilation=2)
    yield _beside_infinity((1, 5, 5, 4), 2)
    yield _beside_infinity((1, 6, 6, 4), 2, window=((1, 1), (1, 1)))


# What bodies load ---------------------------------------------------------------------------------------


def _forward_and_back() -> None:
    """With the tangent."""
    x, dy = numbers(SHAPE), numbers((2, 6, 6, 16))
    _, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1)
    mx.eval(mx.vjp(lambda dy: mf.l2_pool_grad(dy, x, state), [dy], [x]))


def _edges() -> None:
    x = numbers(SHAPE)
    y, state = mf.l2_pool_fwd(x, 3, stride=2, padding=1, edge_mode="clamp")
    mf.l2_pool_grad(y, x, state)


# Wrong calls, and the records ---------------------------------------------------------------------------


def _state(**change: Any) -> mf.L2PoolState:
    """Of a pooling by twos, changed."""
    return mf.l2_pool_fwd(IMAGES, 2)[1]._replace(**change)


def _refused(dy: mx.array = POOLED, x: mx.array = IMAGES, state: Any = None, **how: Any) -> mx.array:
    return mf.l2_pool_grad(dy, x, _state() if state is None else state, **how)


HALVES = POOLED.astype(mx.float16), IMAGES.astype(mx.float16)
OPS = (
    OpInfo(
        name="l2_pool",
        samples={
            "": call("l2_pool", X, 3, **POOL),
            "adaptively": call("l2_pool", X, "adaptive", out_size=(2, 3)),
            "globally": Sample(call("l2_pool", Array((2, 9, 10, 8)), "global"), in_matrix=False),
            **larger("l2_pool"),
        },
        image="x",
        reference=_pooled,
        wrong_values=(
            ("window does not fit", lambda: mf.l2_pool(IMAGES, 9)),
            ("unknown edge_mode", lambda: mf.l2_pool(IMAGES, 2, edge_mode="exclude")),
            ("an image is too large", lambda: mf.l2_pool(IMAGES, 1, offset=0, out_size=2**15)),
        ),
        cases=_cases,
        loads={
            "l2_pool": Loads(_forward_and_back, {"x": (IMAGE, 17**2 / 12**2 * IMAGE)}),  # every tap inside once
            "l2_pool_jvp": Loads(
                _forward_and_back,
                {**dict.fromkeys(("x", "t"), (IMAGE, 17**2 / 12**2 * IMAGE)), "norms": (IMAGE // 4, IMAGE // 4)},
            ),
        },
        benchmarks={"l2_pool": Benchmark("pooling", 1, 1, cpu=ON_CPU, gpu=(Measured(WINDOW, dtypes=BOTH),))},
        nodes={
            "": Node(
                lambda x: graph.l2_pool(x, 3),
                lambda p, x: mf.l2_pool(x, 3, padding=mf.PaddingPolicy(), edge_mode="clamp"),
            )
        },
    ),
    OpInfo(
        name="l2_pool_fwd",
        # Without the norms, which are one array with y in float64, and MLX's vmap moves the axis of such twice.
        samples={
            "": Sample(call("l2_pool_fwd", X, (2, 3), dilation=(2, 1)), outputs=(0,)),
            "strided": Sample(call("l2_pool_fwd", X, 3, stride=2, padding=1), outputs=(0,)),
            "norms": call("l2_pool_fwd", X, 3, stride=2, padding=1, take=1),
        },
        image="x",
        reference=_pooled,
    ),
    OpInfo(
        name="l2_pool_grad",
        samples={
            "": call("l2_pool_grad", DY, X, STATE),
            "of a source window": call("l2_pool_grad", DY, X, STATE, source_window=((1, 0), (2, 1))),
            "strided": call("l2_pool_grad", DY, X, call("l2_pool_fwd", X, 3, stride=2, padding=1, take=1)),
            **_larger_grad(),
        },
        image="x",
        reference=_grad,
        linear=(0, 1),
        wrong_values=(
            ("dy does not belong to x and this state", lambda: _refused(POOLED[:1])),
            ("x does not belong to this state", lambda: _refused(x=IMAGES[:, 1:])),
            ("the state does not belong to x", lambda: _refused(POOLED[:1], IMAGES[:1])),
            ("kernel_offset has no meaning here", lambda: _refused(kernel_offset=(0, 0))),
            ("source_window is not two pairs", lambda: _refused(source_window=(1, 2, 3))),
        ),
        wrong_types=(
            ("dy is not an array", lambda: _refused(3)),
            ("dy and x differ in dtype", lambda: _refused(HALVES[0])),
            ("the state does not belong to x", lambda: _refused(state=_state(norms=mx.ones((2, 3, 2, 4), mx.float16)))),
            ("not a state of this operation", lambda: _refused(state=mf.avg_pool_state(IMAGES.shape, 2))),
        ),
        cases=_grad_cases,
        loads={
            "l2_pool_grad": Loads(  # as often as windows read a pixel
                _edges,
                {"x": (IMAGE, IMAGE), **dict.fromkeys(("dy", "norms"), (IMAGE // 4, 18**2 / 12**2 * IMAGE))},
            ),
            "l2_pool_grad_tile": Loads(
                _forward_and_back,
                {"x": (IMAGE, IMAGE), **dict.fromkeys(("dy", "norms"), (IMAGE // 4, ON_TILES * IMAGE / 4))},
            ),
        },
        benchmarks={
            "l2_pool_grad": Benchmark(
                "pooling", 2, 1, state=4, cpu=ON_CPU, gpu=(Measured(WINDOW, (Target((COPY,), 0.7),), BOTH),)
            )
        },
    ),
)
