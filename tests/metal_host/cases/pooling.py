"""The cases of `cases` that pool."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from support import SMALLEST, TOLERANCE, close, exact, numbers
from support.oracle import pooling as oracle

import mpsfunc as mf
from metal_host.case import Case, named
from mpsfunc.pooling import launches
from mpsfunc.windows.axis import clamps_taps
from mpsfunc.windows.placement import restrict_outputs

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def _avg_pool(shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, **placement: Any) -> Case:
    def check() -> None:
        x, state = numbers(shape, dtype), mf.avg_pool_state(shape, kernel, **placement)
        definition = [oracle.avg_pool(v, state.rows, state.cols) for v in (exact(x), abs(exact(x)))]
        close(mf.avg_pool(x, kernel, **placement), *definition)

    return Case(named("avg_pool", shape, dtype, k=kernel, **placement), ("avg_pool",), check, crowded)


def _avg_pool_grad(
    shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, window: Any = None, **placement: Any
) -> Case:
    def check() -> None:
        state = mf.avg_pool_state(shape, kernel, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, shape[3]), dtype)
        kept = exact(dy)
        if window:
            (top, left), (height, width) = window
            kept = np.zeros_like(kept)
            part = np.s_[:, top : top + height, left : left + width]
            kept[part] = exact(dy)[part]
        definition = [oracle.avg_pool_grad(v, state.rows, state.cols) for v in (kept, abs(kept))]
        close(mf.avg_pool_grad(dy, state, source_window=window), *definition)

    return Case(
        named("avg_pool_grad", shape, dtype, k=kernel, **placement),
        _grad_body(shape, kernel, **placement),
        check,
        crowded,
    )


def _avg_pool_grad_of_infinity(shape: tuple[int, ...], kernel: Any, **placement: Any) -> Case:
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

    return Case(
        named("avg_pool_grad of infinity", shape, F32, k=kernel, **placement),
        _grad_body(shape, kernel, **placement),
        check,
    )


def _tiled(shape: tuple[int, ...], kernel: Any, **placement: Any) -> bool:
    """Whether the gradient runs on tiles."""
    state = mf.avg_pool_state(shape, kernel, **placement)
    return launches.tile(state.rows, state.cols) is not None


def _moves_taps(shape: tuple[int, ...], kernel: Any, **placement: Any) -> bool:
    return any(map(clamps_taps, mf.avg_pool_state(shape, kernel, **placement)[2:]))


def _grad_body(shape: tuple[int, ...], kernel: Any, **placement: Any) -> tuple[str]:
    return ("avg_pool_grad_tile",) if _tiled(shape, kernel, **placement) else ("avg_pool_grad",)


def _max_pool(
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
        if window:
            (top, left), (height, width) = window
            kept = np.full(at.shape, -1)
            part = np.s_[:, top : top + height, left : left + width]
            kept[part] = at[part]
            at = kept
        dy, tangent = numbers(tuple(y.shape), dtype, 1), numbers(shape, dtype, 2)
        definition = [oracle.max_pool_grad(v, at, *shape[1:3]) for v in (exact(dy), abs(exact(dy)))]
        (dx,), (pulled,) = mx.vjp(lambda dy: mf.max_pool_grad(dy, state, source_window=window), [dy], [tangent])
        close(dx, *definition)
        flat = np.concatenate([exact(tangent).reshape(shape[0], -1, shape[3]), np.zeros((shape[0], 1, shape[3]))], 1)
        read = np.take_along_axis(flat, at.reshape(shape[0], -1, shape[3]), 1)
        np.testing.assert_array_equal(exact(pulled), read.reshape(y.shape))

    where = placement | ({} if placement.get("edge_mode") == "clamp" else _ZERO)  # an average of the same windows
    tiled = _tiled(shape, kernel, **where) and not _moves_taps(shape, kernel, **where)
    bodies = ("max_pool", "max_pool_grad_tile" if tiled else "max_pool_grad", "max_pool_gather")
    kinds = bodies if mx.issubdtype(dtype, mx.floating) else bodies[:1]
    return Case(named("max_pool", shape, dtype, k=kernel, **placement), kinds, check, crowded)


def _l2_pool(
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

    tiled = _tiled(shape, kernel, **placement) and not _moves_taps(shape, kernel, **placement)
    bodies = ("l2_pool", "l2_pool_grad_tile" if tiled else "l2_pool_grad", "l2_pool_jvp")
    return Case(named("l2_pool", shape, dtype, k=kernel, **placement), bodies, check, crowded)


def _l2_pool_grad_of_infinity(shape: tuple[int, ...], kernel: Any, **placement: Any) -> Case:
    """An infinity reaches the pixels that its window reads, and spoils no other."""

    def check() -> None:
        x = numbers(shape)
        y, state = mf.l2_pool_fwd(x, kernel, **placement)
        first = np.zeros(y.shape)
        first[0, 0, 0] = 1
        dx = exact(mf.l2_pool_grad(mx.where(mx.array(first > 0), mx.inf, mx.ones_like(y)), x, state))
        read = oracle.avg_pool_grad(first, state.rows, state.cols) > 0
        assert np.isinf(dx[read]).all() and np.isfinite(dx[~read]).all()

    return Case(
        named("l2_pool_grad of infinity", shape, F32, k=kernel, **placement), ("l2_pool", "l2_pool_grad"), check
    )


def _l2_pool_grad_beside_infinity(shape: tuple[int, ...], kernel: Any, window: Any = None, **placement: Any) -> Case:
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


def _l2_pool_of_extremes(shape: tuple[int, ...], dtype: mx.Dtype, small: float, large: float) -> Case:
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


_CLAMP, _ZERO = {"edge_mode": "clamp"}, {"edge_mode": "zero"}
_POOLS: tuple[tuple[Any, ...], ...] = (
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
    ((2, 9, 10, 8), F16, "global", {}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


_MAX_POOLS: tuple[tuple[Any, ...], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1, **_ZERO}),
    ((2, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **_CLAMP}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2, **_ZERO}),
    ((5, 6, 5, 8), F32, (2, 2), {"stride": 1, "dilation": 2, "padding": 2, **_ZERO}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1, "dilation": 2}),
    ((2, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3)), **_CLAMP}),
    ((3, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, **_ZERO, "window": ((1, 0), (1, 3))}),
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same"}),
    ((2, 5, 4, 4), mx.int32, 3, {"stride": 1, "padding": 1}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", **_CLAMP}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **_ZERO}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **_CLAMP}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1, **_ZERO}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **_CLAMP}),
    ((1, 17, 16, 4), F32, (16, 16), {"stride": 1}),  # more taps than a byte counts
    ((2, 4, 5, 3), F32, 2, {"stride": 3, "offset": (-3, 4), "out_size": (4, 3), **_CLAMP}),
    ((2, 5, 4, 4), mx.int32, 3, {"stride": 1, "padding": 1, **_ZERO}),
    ((2, 5, 4, 16), mx.uint8, 2, {"stride": 2, "padding": 1, **_ZERO}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


_L2_POOLS: tuple[tuple[Any, ...], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **_CLAMP}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((2, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3)), **_CLAMP}),
    ((3, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3))}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same"}),
    ((2, 5, 4, 8), F16, 3, {"stride": 2, "padding": "same", **_CLAMP}),
    ((3, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full"}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **_CLAMP}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **_CLAMP}),
    ((2, 9, 10, 8), F32, "global", {}),
    ((2, 7, 5, 4), F32, "adaptive", {"out_size": (3, 8)}),
)


def pooling() -> list[Case]:
    both = [make(*pool[:3], **pool[3]) for pool in _POOLS for make in (_avg_pool, _avg_pool_grad)]
    crowded = {"stride": 1, "padding": 1, "dilation": (1, 2), "crowded": True}
    return [
        *both,
        *[_max_pool(*pool[:3], **pool[3]) for pool in _MAX_POOLS],
        *[_l2_pool(*pool[:3], **pool[3]) for pool in _L2_POOLS],
        _l2_pool((9, 70, 3, 4), F32, (2, 2), **crowded),
        *[make((5, 40, 30, 8), F32, (2, 2), stride=1, padding=1, crowded=True) for make in (_max_pool, _l2_pool)],
        _avg_pool_grad((5, 40, 30, 8), F32, (2, 2), stride=1, padding=1, crowded=True),
        _l2_pool_grad_of_infinity((1, 6, 6, 4), 2, stride=1, dilation=2),
        _l2_pool_grad_beside_infinity((1, 5, 5, 4), 2),
        _l2_pool_grad_beside_infinity((1, 6, 6, 4), 2, window=((1, 1), (1, 1))),
        _l2_pool_of_extremes((1, 4, 4, 12), F32, 1e-30, 1e30),
        _l2_pool_of_extremes((1, 4, 4, 9), BF16, 1e-30, 1e30),
        _l2_pool_of_extremes((1, 4, 4, 9), F16, 1e-7, 1e4),
        _max_pool((9, 70, 3, 4), F32, (2, 2), **crowded),
        _max_pool((9, 70, 3, 4), F32, (2, 2), edge_mode="zero", **crowded),
        _max_pool((9, 70, 3, 4), F32, (2, 2), edge_mode="clamp", **crowded),
        _avg_pool((9, 70, 3, 4), F32, (2, 2), **crowded),
        _avg_pool_grad((9, 70, 3, 4), F32, (2, 2), **crowded),
        _avg_pool_grad((9, 70, 3, 4), F32, (2, 3), **crowded),
        _avg_pool_grad((2, 6, 7, 4), F32, 3, stride=2, padding=1, window=((1, 0), (1, 3))),
        _avg_pool_grad_of_infinity((2, 5, 5, 4), 3, stride=2, padding=1),
    ]
