"""Running statistics: moved a share of the way, in every dtype, mapped and differentiated."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits

import mpsfunc as mf


@pytest.mark.parametrize("unbiased", [True, False])
def test_running_statistics(device: mx.Device, unbiased: bool) -> None:
    running = mf.bn_frozen(mx.zeros(3), mx.ones(3))
    mean, var = np.zeros(3), np.ones(3)
    for step in range(4):
        x = numbers((2, 3, 4, 3), seed=step) * 2 + step
        running = mf.bn_running(running, mf.bn_stats(x), 0.25, unbiased=unbiased)
        values = exact(x).reshape(-1, 3)
        mean = 0.75 * mean + 0.25 * values.mean(0)
        var = 0.75 * var + 0.25 * values.var(0, ddof=int(unbiased))
    assert running.frozen and running.count.item() == 0
    close(running.mean, mean, 10)
    close(running.var, var, 10)
    unmoved = mf.bn_running(running, mf.bn_reset(mf.bn_stats(x)), 0.25)
    assert all(same_bits(a, b) for a, b in zip(unmoved.arrays, running.arrays, strict=True))
    alone = mf.bn_running(running, mf.bn_stats(mx.ones((1, 1, 1, 3))), 1.0)  # one element has no variance of its own
    assert alone.var.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtypes", [(mx.float16, mx.float16), (mx.bfloat16, mx.float32), (mx.float32, mx.float64)])
def test_running_statistics_keep_their_dtypes(on_cpu: mx.Device, dtypes: tuple[mx.Dtype, mx.Dtype]) -> None:
    x = numbers((2, 3, 4, 3)) * 2 + 1
    running = mf.bn_frozen(mx.zeros(3), mx.ones(3))
    held = running._replace(mean=running.mean.astype(dtypes[0]), var=running.var.astype(dtypes[1]))
    state = mf.bn_stats(x)
    moved = mf.bn_running(held, state, 0.25)
    assert (moved.mean.dtype, moved.var.dtype) == dtypes
    mean, var = 0.25 * exact(state.mean), 0.75 + 0.25 * exact(state.var) * 24 / 23
    close(moved.mean, mean, abs(mean), slack=2)
    close(moved.var, var, var, slack=2)


@pytest.mark.parametrize("unbiased", [True, False])
def test_running_statistics_mapped_and_differentiated(on_cpu: mx.Device, unbiased: bool) -> None:
    known, mean, var = (mx.array(numbers((4, 3), seed=seed)).astype(mx.float64) for seed in range(3))
    counts = mx.array([0, 1, 2, 18], mx.int64)

    def moved(known: mx.array, mean: mx.array, var: mx.array, count: mx.array) -> tuple[mx.array, mx.array]:
        state = mf.bn_stats(mx.zeros((1, 1, 1, 3), mx.float64))._replace(mean=mean, var=var, count=count)
        after = mf.bn_running(mf.bn_frozen(known, known + 2), state, 0.25, unbiased=unbiased)
        return after.mean, after.var

    together = mx.vmap(moved)(known, mean, var, counts)
    wider = [1, 2, 2, 18 / 17] if unbiased else [1, 1, 1, 1]
    for i, count in enumerate(counts.tolist()):
        each = known[i], mean[i], var[i]
        assert all(mx.allclose(a[i], b, rtol=1e-14) for a, b in zip(together, moved(*each, counts[i]), strict=True))

        def total(*arrays: mx.array, i: int = i) -> mx.array:
            a, b = moved(*arrays, counts[i])
            return a.sum() + b.sum()

        grads = mx.grad(total, argnums=(0, 1, 2))(*each)
        share = 0.25 if count else 0.0
        for grad, slope in zip(grads, (2 * (1 - share), share, share * wider[i]), strict=True):
            assert mx.allclose(grad, mx.full((3,), slope, dtype=mx.float64), rtol=1e-14)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_statistics_of_16_bits(device: mx.Device, dtype: mx.Dtype) -> None:
    """More elements than float16 can count."""
    running, state = mf.bn_frozen(mx.zeros(3), mx.ones(3)), mf.bn_stats(numbers((2, 3, 4, 3)) * 2 + 1)
    mean, var = (a.astype(dtype) for a in (state.mean, state.var))
    count = mx.array(131072, mx.int64)

    def moved(var: mx.array) -> mx.array:
        return mf.bn_running(running, state._replace(mean=mean, var=var, count=count), 0.25).var

    (after,), (tangent,) = mx.jvp(moved, [var], [mx.ones_like(var)])
    unbiased = 131072 / 131071
    close(after, 0.75 + 0.25 * unbiased * exact(var), 4)
    close(tangent, np.full(3, 0.25 * unbiased), 1)
    assert after.dtype == mx.float32
