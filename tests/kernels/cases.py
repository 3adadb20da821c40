"""Small calls of public functions that together reach every kernel body in every way that its text can go.

To add a body, add calls that launch it: odd and vector channel counts, each dtype, an input of fewer than eight
elements (which Metal keeps in another address space), and a ``crowded`` one, where few threads have much to do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
import oracle
from support import close, exact, numbers

import mpsfunc as mf
from mpsfunc import _launch

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


class Case(NamedTuple):
    """A call, the bodies that it may launch, and a check of its results."""

    name: str
    bodies: tuple[str, ...]
    check: Callable[[], None]
    crowded: bool = False

    def run(self) -> None:
        """Calls and checks. ``crowded`` lets the GPU have few threadgroups, so that every grid stride is taken."""
        with _few_threadgroups() if self.crowded else contextlib.nullcontext():
            self.check()


@contextlib.contextmanager
def _few_threadgroups() -> Iterator[None]:
    with mock.patch.object(_launch, "_BLOCKS_YZ", 1), mock.patch.object(_launch, "FILL", 1):
        yield


def _name(body: str, shape: tuple[int, ...], dtype: mx.Dtype, **options: Any) -> str:
    told = [f"{key}={value}".replace(" ", "") for key, value in options.items()]
    return " ".join([body, "x".join(map(str, shape)), str(dtype).rpartition(".")[2], *told])


# Pooling ------------------------------------------------------------------------------------------------


def _avg_pool(shape: tuple[int, ...], dtype: mx.Dtype, kernel: Any, crowded: bool = False, **placement: Any) -> Case:
    def check() -> None:
        x, state = numbers(shape, dtype), mf.avg_pool_state(shape, kernel, **placement)
        definition = [oracle.avg_pool(v, state.rows, state.cols) for v in (exact(x), abs(exact(x)))]
        close(mf.avg_pool(x, kernel, **placement), *definition)

    return Case(_name("avg_pool", shape, dtype, k=kernel, **placement), ("avg_pool",), check, crowded)


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
        _name("avg_pool_grad", shape, dtype, k=kernel, **placement), _grad_body(kernel, **placement), check, crowded
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
        _name("avg_pool_grad of infinity", shape, F32, k=kernel, **placement), _grad_body(kernel, **placement), check
    )


def _grad_body(kernel: Any, stride: Any = None, dilation: Any = 1, **_: Any) -> tuple[str]:
    """The body for the number of windows that span a pixel."""
    pairs = [v if isinstance(v, tuple) else (v, v) for v in (kernel, kernel if stride is None else stride, dilation)]
    spans = [math.ceil(((k - 1) * d + 1) / s) for k, s, d in zip(*pairs, strict=True)]
    return ("avg_pool_grad_few",) if max(spans) <= 3 else ("avg_pool_grad",)


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

    few = placement.get("edge_mode") != "clamp" and _grad_body(kernel, **placement) == ("avg_pool_grad_few",)
    bodies = ("max_pool", "max_pool_grad_few" if few else "max_pool_grad", "max_pool_take")
    kinds = bodies if mx.issubdtype(dtype, mx.floating) else bodies[:1]
    return Case(_name("max_pool", shape, dtype, k=kernel, **placement), kinds, check, crowded)


_CLAMP = {"edge_mode": "clamp"}
_POOLS: tuple[tuple[Any, ...], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 7, 6, 3), F32, 4, {"stride": 1, "padding": 1}),
    ((5, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **_CLAMP}),
    ((5, 6, 5, 8), F32, 2, {"stride": 1, "dilation": 2, "padding": 1, **_CLAMP}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", **_CLAMP, "zero_pad": 1}),
    ((1, 4, 5, 16), F16, 4, {"stride": 1, "padding": 2, **_CLAMP}),
    ((6, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full"}),
    ((3, 4, 5, 8), BF16, 5, {"stride": 1, "padding": 2}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **_CLAMP}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1}),
    ((1, 4, 4, 1), F32, 4, {"stride": 1}),
    ((2, 4, 5, 3), F32, 2, {"stride": 3, "offset": (-3, 4), "out_size": (4, 3), **_CLAMP}),
)


_MAX_POOLS: tuple[tuple[Any, ...], ...] = (
    ((2, 7, 6, 5), F32, 3, {"stride": 2, "padding": 1}),
    ((2, 6, 5, 8), F32, (2, 3), {"stride": 1, "dilation": 2, "padding": 2, **_CLAMP}),
    ((2, 6, 5, 8), F32, (3, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((5, 6, 5, 8), F32, (2, 2), {"stride": 1, "dilation": 2, "padding": 2}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1}),
    ((1, 3, 2, 1), F32, (2, 1), {"stride": 1, **_CLAMP}),
    ((2, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3)), **_CLAMP}),
    ((3, 6, 7, 4), F32, 3, {"stride": 2, "padding": 1, "window": ((1, 0), (1, 3))}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", "edge_mode": "exclude"}),
    ((2, 5, 4, 16), F16, 3, {"stride": 2, "padding": "same", **_CLAMP}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full"}),
    ((2, 4, 5, 8), BF16, 2, {"stride": 1, "padding": "full", **_CLAMP}),
    ((1, 3, 2, 1), F32, 2, {"stride": 1, "padding": 1}),
    ((1, 2, 3, 1), F16, 2, {"stride": 1, "padding": 1, **_CLAMP}),
    ((1, 17, 16, 4), F32, (16, 16), {"stride": 1}),  # more taps than a byte counts
    ((2, 4, 5, 3), F32, 2, {"stride": 3, "offset": (-3, 4), "out_size": (4, 3), **_CLAMP}),
    ((2, 5, 4, 4), mx.int32, 3, {"stride": 1, "padding": 1}),
    ((2, 5, 4, 16), mx.uint8, 2, {"stride": 2, "padding": 1}),
)


def _pooling() -> list[Case]:
    both = [make(*pool[:3], **pool[3]) for pool in _POOLS for make in (_avg_pool, _avg_pool_grad)]
    crowded = {"stride": 1, "padding": 1, "dilation": (1, 2), "crowded": True}
    return [
        *both,
        *[_max_pool(*pool[:3], **pool[3]) for pool in _MAX_POOLS],
        _max_pool((9, 70, 3, 4), F32, (2, 2), **crowded),
        _max_pool((9, 70, 3, 4), F32, (2, 2), edge_mode="clamp", **crowded),
        _avg_pool((9, 70, 3, 4), F32, (2, 2), **crowded),
        _avg_pool_grad((9, 70, 3, 4), F32, (2, 2), **crowded),
        _avg_pool_grad((9, 70, 3, 4), F32, (2, 3), **crowded),
        _avg_pool_grad((2, 6, 7, 4), F32, 3, stride=2, padding=1, window=((1, 0), (1, 3))),
        _avg_pool_grad_of_infinity((2, 5, 5, 4), 3, stride=2, padding=1),
    ]


# Batch normalization ------------------------------------------------------------------------------------


class _Norm(NamedTuple):
    """One batch and what its normalization and gradients are."""

    x: mx.array
    dy: mx.array
    gamma: mx.array
    beta: mx.array
    state: mf.BatchNormState
    expected: oracle.Norm

    @staticmethod
    def of(shape: tuple[int, ...], dtype: mx.Dtype) -> _Norm:
        channels = shape[3]
        x, dy = numbers(shape, dtype, 1) + 3, numbers(shape, dtype, 2)
        gamma, beta = numbers((channels,), F32, 3), numbers((channels,), F32, 4)
        expected = oracle.batch_norm(*(exact(a) for a in (x, dy, gamma, beta)), 1e-3)
        vectors = [mx.array(v).astype(F32) for v in (expected.mean, expected.var, expected.dgamma, expected.dbeta)]
        count = mx.array(x.size // channels, mx.int64)
        state = mf.BatchNormState(vectors[0], vectors[1], count, *vectors[2:], "batch_norm", 1e-3, False)
        return _Norm(x, dy, gamma, beta, state, expected)


def _norms(shape: tuple[int, ...], dtype: mx.Dtype, *, slack: float = 8, crowded: bool = False) -> list[Case]:
    def stats() -> None:
        n = _Norm.of(shape, dtype)
        state = mf.bn_stats(n.x, eps=1e-3)
        close(state.mean, n.expected.mean, abs(n.expected.mean), slack=slack)
        close(state.var, n.expected.var, n.expected.var, slack=slack)

    def normalize() -> None:
        n = _Norm.of(shape, dtype)
        close(mf.bn_normalize(n.x, n.state, n.gamma, n.beta), n.expected.y, abs(n.expected.y) + 3, slack=slack)

    def stats_grad() -> None:
        n = _Norm.of(shape, dtype)
        held = numbers((shape[3],), F32, 5), numbers((shape[3],), F32, 6)
        state = mf.bn_stats_grad(n.dy, n.x, n.state._replace(dgamma=held[0], dbeta=held[1]), n.gamma, n.beta)
        size = abs(exact(n.dy)).sum((0, 1, 2)) + 1
        close(state.dgamma, n.expected.dgamma + exact(held[0]), size, slack=slack)
        close(state.dbeta, n.expected.dbeta + exact(held[1]), size, slack=slack)

    def grad() -> None:
        n = _Norm.of(shape, dtype)
        close(mf.bn_grad(n.dy, n.x, n.state, n.gamma, n.beta), n.expected.dx, abs(n.expected.dx) + 3, slack=slack)

    return [
        Case(_name("bn_stats", shape, dtype), ("bn_stats", "bn_stats_merge"), stats, crowded),
        Case(_name("bn_normalize", shape, dtype), ("bn_normalize",), normalize, crowded),
        Case(_name("bn_stats_grad", shape, dtype), ("bn_stats_grad", "bn_stats_grad_merge"), stats_grad, crowded),
        Case(_name("bn_grad", shape, dtype), ("bn_grad",), grad, crowded),
    ]


def _normalization() -> list[Case]:
    return [
        *_norms((2, 5, 7, 5), F32),
        *_norms((1, 2, 3, 1), F32),
        *_norms((3, 3, 5, 24), F16),
        *_norms((2, 3, 3, 8), BF16),
        *_norms((1, 1, 3, 2), F16),
        *_norms((1, 1, 1, 12), F32),  # nothing behind the first pixel
        *_norms((1, 12, 48, 256), F32),  # more partial sums than a threadgroup takes at a time
        *_norms((1, 27, 37, 100), F32, crowded=True),  # more pixels a thread than it takes at a time
    ]


# Convolution --------------------------------------------------------------------------------------------


def _convs(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    out: int,
    kernel: tuple[int, int],
    groups: int = 1,
    crowded: bool = False,
    **placement: Any,
) -> list[Case]:
    w_shape = (out, *kernel, shape[3] // groups)

    def prepared() -> tuple[mf.ConvState, mx.array, mx.array, mx.array, mx.array]:
        state = mf.conv_state(shape, w_shape, groups=groups, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, out), dtype, 2)
        return state, numbers(shape, dtype), numbers(w_shape), numbers((out,)), dy

    def compare(actual: mx.array, definition: Callable[..., Any], *arrays: mx.array) -> None:
        values = [exact(a) for a in arrays]
        close(actual, definition(*values), definition(*map(abs, values)))

    def forward() -> None:
        state, x, w, b, _ = prepared()
        where = (state.rows, state.cols, groups)
        y = mf.conv(x, w, b, groups=groups, **placement)
        compare(y, lambda x, w, b: oracle.conv(x, w, b, *where), x, w, b)

    def grad_input() -> None:
        state, _, w, _, dy = prepared()
        where = (state.rows, state.cols, groups)
        dx = mf.conv_grad_input(dy, w, state)
        compare(dx, lambda dy, w: oracle.conv_grad_input(dy, w, *where), dy, w)

    def grad_weights() -> None:
        state, x, _, _, dy = prepared()
        where = (state.rows, state.cols, groups)
        made = mf.conv_grad_weights(dy, x, state)
        compare(made.dw, lambda dy, x: oracle.conv_grad_weights(dy, x, *where), dy, x)
        compare(made.db, oracle.conv_grad_bias, dy)

    told = {"out": out, "k": kernel, "groups": groups, **placement}
    both = ("conv_grad_weights", "conv_grad_bias", "sum_partials")
    return [
        Case(_name("conv", shape, dtype, **told), ("conv",), forward, crowded),
        Case(_name("conv_grad_input", shape, dtype, **told), ("conv_grad_input",), grad_input, crowded),
        Case(_name("conv_grad_weights", shape, dtype, **told), both, grad_weights, crowded),
    ]


def _convolution() -> list[Case]:
    return [
        *_convs((2, 5, 6, 3), F32, 5, (3, 2), stride=2, padding=1),
        *_convs((1, 6, 5, 8), F16, 4, (2, 3), groups=2, dilation=(2, 1), padding=(1, 2)),
        *_convs((2, 4, 3, 4), BF16, 8, (3, 3), groups=4, padding="same"),
        *_convs((1, 2, 3, 1), F32, 1, (1, 2)),
        *_convs((1, 2, 2, 1), F16, 2, (2, 1), stride=2, offset=(-2, 3), out_size=(3, 1)),
        *_convs((3, 14, 13, 2), F32, 70, (2, 1)),  # more than a tile of pixels, of outputs and of partial sums
        *_convs((2, 7, 5, 70), F32, 3, (1, 2), padding=(0, 1)),  # and of inputs
        *_convs((1, 23, 23, 1), F32, 100, (1, 1), crowded=True),
    ]


CASES = {case.name: case for case in (*_pooling(), *_normalization(), *_convolution())}
