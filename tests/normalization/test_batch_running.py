"""Running statistics: moved a share of the way, in every dtype, mapped and differentiated."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits

import mpsfunc as mf
from mpsfunc.core import lazy as core_lazy


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
    wider = [1, math.nan, 2, 18 / 17] if unbiased else [1, math.nan, 1, 1]
    for i, count in enumerate(counts.tolist()):
        each = known[i], mean[i], var[i]
        alone = moved(*each, counts[i] + 0)  # which nobody knows yet
        assert all(mx.allclose(a[i], b, rtol=1e-14, equal_nan=True) for a, b in zip(together, alone, strict=True))
        assert mx.isnan(alone[1]).all().item() == (count == 1)

        def total(*arrays: mx.array, i: int = i) -> mx.array:
            a, b = moved(*arrays, counts[i] + 0)
            return a.sum() + b.sum()

        grads = mx.grad(total, argnums=(0, 1, 2))(*each)
        share = 0.25 if count else 0.0
        for grad, slope in zip(grads, (2 * (1 - share), share, share * wider[i]), strict=True):
            np.testing.assert_allclose(exact(grad), np.full(3, slope), rtol=1e-14)
        tangents = mx.jvp(lambda *a, i=i: moved(*a, counts[i] + 0), each, [mx.ones_like(a) for a in each])[1]
        for tangent, slope in zip(tangents, (1, 1 - share + share * wider[i]), strict=True):
            np.testing.assert_allclose(exact(tangent), np.full(3, slope), rtol=1e-14)


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


# One element has no variance ----------------------------------------------------------------------------

ALONE: dict[str, Any] = {
    "a batch of one": lambda: mf.bn_stats(mx.ones((1, 1, 1, 3))),
    "with an image": lambda: mf.batch_norm_fwd(mx.ones((1, 1, 1, 3)))[1],
    "merged with nothing": lambda: mf.bn_merge(
        mf.bn_reset(mf.bn_stats(mx.ones((1, 2, 2, 3)))), mf.bn_stats(mx.ones((1, 1, 1, 3)))
    ),
}


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("made", ALONE)
def test_a_count_of_one_is_refused(on_cpu: mx.Device, made: str, unbiased: bool) -> None:
    running = mf.bn_frozen(mx.zeros(3), mx.ones(3))

    def step(known: mx.array) -> mx.array:
        return mf.bn_running(running._replace(mean=known), ALONE[made](), unbiased=unbiased).mean.sum()

    for call, known in (
        *((call, mx.zeros(3)) for call in (step, mx.grad(step), mx.compile(step))),
        (mx.vmap(step), mx.zeros((2, 3))),
    ):
        with pytest.raises(ValueError, match="^bn_running: one element has no variance; got state.count=1, expected"):
            call(known)


def test_an_unknown_count_of_one_is_not_a_variance_of_zero(device: mx.Device) -> None:
    running, state = mf.bn_frozen(mx.zeros(3), mx.ones(3)), mf.bn_stats(numbers((1, 2, 2, 3)))

    def step(count: mx.array) -> tuple[mx.array, mx.array]:
        moved = mf.bn_running(running, state._replace(count=count))
        return moved.mean, moved.var

    mean, var = mx.compile(step)(mx.array(1, mx.int64))
    assert mx.isnan(var).all().item() and not mx.isnan(mean).any().item()
    mean, var = mx.compile(step)(mx.array(2, mx.int64))
    assert not mx.isnan(var).any().item()


@pytest.mark.needs_cpu_module
def test_counts_are_known_without_looking_at_images() -> None:
    with mx.stream(mx.cpu):
        parts = [mf.bn_stats(numbers((2, 3, 4, 3), seed=i)) for i in range(3)]
        whole = mf.bn_merge(mf.bn_merge(parts[0], parts[1]), parts[2])
        assert core_lazy.known_count(whole.count) == 72
        lazy = whole.count + 0
        assert core_lazy.known_count(lazy) is None
        mx.eval(lazy)
        assert core_lazy.known_count(lazy) == 72
        seen: list[int | None] = []

        def look(x: mx.array, count: mx.array) -> mx.array:
            seen.extend(core_lazy.known_count(c) for c in (mf.bn_stats(x).count, mf.batch_norm_fwd(x)[1].count, count))
            return x.sum() + count

        x, count = numbers((2, 3, 4, 3)), mx.array(5, mx.int64)
        mx.compile(look)(x, count)
        mx.grad(lambda x: look(x, count).astype(mx.float32))(x)
        mx.vmap(lambda x: look(x, count))(x[None])
        assert seen == [24, 24, None, 24, 24, 5, 24, 24, 5]


def test_errors_name_the_argument() -> None:
    state, frozen = mf.bn_stats(mx.ones((1, 2, 2, 3))), mf.bn_frozen(mx.zeros(3), mx.ones(3))
    torn = state._replace(eps=-1.0)
    nothing: Any = None
    for call, words in (
        (lambda: mf.bn_merge(nothing, state), "bn_merge: .*; got a of type NoneType, expected BatchNormState"),
        (lambda: mf.bn_merge(state, nothing), "bn_merge: .*; got b of type NoneType, expected BatchNormState"),
        (lambda: mf.bn_merge(state, frozen), "bn_merge: statistics are frozen; got b.frozen=True, expected "),
        (lambda: mf.bn_merge(torn, state), "bn_merge: a.eps is out of range; got a.eps=-1.0, expected "),
        (lambda: mf.bn_running(nothing, state), "bn_running: .*; got running of type NoneType, expected "),
        (lambda: mf.bn_running(frozen, nothing), "bn_running: .*; got state of type NoneType, expected "),
        (
            lambda: mf.bn_running(frozen._replace(summed=3), state),
            "bn_running: .*; got running.summed=3, expected a str",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{words}"):
            call()
