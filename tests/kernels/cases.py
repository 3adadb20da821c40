"""Small calls of public functions that together reach every kernel body in every way that its text can go.

To add a body, add calls that launch it: odd and vector channel counts, each dtype, an input of fewer than eight
elements (which Metal keeps in another address space), and a ``crowded`` one, where few threads have much to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import oracle
from support import close, exact, numbers

import mpsfunc as mf
from kernels.case import Case, named
from kernels.depthwise_cases import depthwise
from kernels.pooling_cases import pooling

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


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
        Case(named("bn_stats", shape, dtype), ("bn_stats", "bn_stats_merge"), stats, crowded),
        Case(named("bn_normalize", shape, dtype), ("bn_normalize",), normalize, crowded),
        Case(named("bn_stats_grad", shape, dtype), ("bn_stats_grad", "bn_stats_grad_merge"), stats_grad, crowded),
        Case(named("bn_grad", shape, dtype), ("bn_grad",), grad, crowded),
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
        Case(named("conv", shape, dtype, **told), ("conv",), forward, crowded),
        Case(named("conv_grad_input", shape, dtype, **told), ("conv_grad_input",), grad_input, crowded),
        Case(named("conv_grad_weights", shape, dtype, **told), both, grad_weights, crowded),
    ]


def _convolution() -> list[Case]:
    return [
        *_convs((2, 5, 6, 3), F32, 5, (3, 2), stride=2, padding=1),
        *_convs((1, 6, 5, 8), F16, 4, (2, 3), groups=2, dilation=(2, 1), padding=(1, 2)),
        *_convs((2, 4, 3, 4), BF16, 8, (3, 3), groups=2, padding="same"),
        *_convs((1, 2, 3, 1), F32, 1, (1, 2)),
        *_convs((1, 2, 2, 1), F16, 2, (2, 1), stride=2, offset=(-2, 3), out_size=(3, 1)),
        *_convs((3, 14, 13, 2), F32, 70, (2, 1)),  # more than a tile of pixels, of outputs and of partial sums
        *_convs((2, 7, 5, 70), F32, 3, (1, 2), padding=(0, 1)),  # and of inputs
        *_convs((2, 4, 5, 12), F32, 20, (3, 3), padding=1, stride=(1, 2)),  # whole matrices, and four channels a load
        *_convs((1, 23, 23, 1), F32, 100, (1, 1), crowded=True),
    ]


CASES = {case.name: case for case in (*pooling(), *_normalization(), *_convolution(), *depthwise())}
