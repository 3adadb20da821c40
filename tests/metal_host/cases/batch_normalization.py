"""The cases of `cases` that normalize batches."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
from support import close, exact, numbers
from support.oracle import normalization as oracle

import mpsfunc as mf
from metal_host.case import Case, named

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


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
        state = mf.BatchNormState(vectors[0], vectors[1], count, *vectors[2:], "batch_norm", 1e-3, False, "unknown")
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

    def whole() -> None:
        n = _Norm.of(shape, dtype)
        arrays = [n.x, n.gamma, n.beta]
        (y,), (dx, dgamma, dbeta) = mx.vjp(lambda x, g, b: mf.batch_norm(x, g, b, eps=1e-3), arrays, [n.dy])
        size = abs(exact(n.dy)).sum((0, 1, 2)) + 1
        close(y, n.expected.y, abs(n.expected.y) + 3, slack=2 * slack)
        close(dx, n.expected.dx, abs(n.expected.dx) + 3, slack=2 * slack)
        close(dgamma, n.expected.dgamma, size, slack=2 * slack)
        close(dbeta, n.expected.dbeta, size, slack=2 * slack)

    forward = ("bn_stats", "bn_stats_merge", "bn_normalize")
    backward = ("bn_stats_grad", "bn_stats_grad_factors", "bn_grad")
    return [
        Case(named("batch_norm", shape, dtype), (*forward, *backward), whole, crowded),
        Case(named("bn_stats", shape, dtype), ("bn_stats", "bn_stats_merge"), stats, crowded),
        Case(named("bn_normalize", shape, dtype), ("bn_normalize",), normalize, crowded),
        Case(named("bn_stats_grad", shape, dtype), ("bn_stats_grad", "bn_stats_grad_merge"), stats_grad, crowded),
        Case(named("bn_grad", shape, dtype), ("bn_grad_coefficients", "bn_grad"), grad, crowded),
    ]


def batch_normalization() -> list[Case]:
    return [
        *_norms((2, 5, 7, 5), F32),
        *_norms((1, 2, 3, 1), F32),
        *_norms((3, 3, 5, 24), F16),
        *_norms((2, 3, 3, 8), BF16),
        *_norms((1, 1, 3, 2), F16),
        *_norms((1, 1, 1, 12), F32),  # nothing behind the first pixel
        *_norms((1, 7, 43, 255), F32),  # more partial sums than a threadgroup takes at a time
        *_norms((1, 27, 37, 100), F32, crowded=True),  # more pixels a thread than it takes at a time
    ]
