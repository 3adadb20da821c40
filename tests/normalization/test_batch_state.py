"""Gradients by the statistics of a batch, which the sums of a state imply."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits

import mpsfunc as mf

SHAPE, STEP = (3, 4, 5, 6), 1e-5


def quotients(of: Any, vector: mx.array) -> np.ndarray:
    """Central differences of a number, entry by entry."""
    found = []
    for i in range(vector.size):
        step = STEP * (mx.arange(vector.size) == i).astype(mx.float64)
        found.append((of(vector + step) - of(vector - step)).item() / (2 * STEP))
    return np.array(found)


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("neuron", [None, "tanh", "silu"])
@pytest.mark.parametrize("scaled", [False, True])
def test_difference_quotients_through_mean_and_variance(scaled: bool, neuron: str | None) -> None:
    with mx.stream(mx.cpu):
        x, dy = numbers(SHAPE, mx.float64), numbers(SHAPE, mx.float64, 1)
        gamma = numbers((6,), mx.float64, 2) if scaled else None
        beta = numbers((6,), mx.float64, 3) if scaled else None
        state = mf.bn_stats(x, eps=0.25)
        mean, var = state.mean, state.var

        def loss(mean: mx.array, var: mx.array) -> mx.array:
            given = mf.bn_frozen(mean, var, eps=0.25)
            return (mf.bn_normalize(x, given, gamma, beta, neuron=neuron) * dy).sum()

        for part in (slice(0, 1), slice(1, 3)):
            state = mf.bn_stats_grad(dy[part], x[part], state, gamma, beta, neuron=neuron)
        wanted = quotients(lambda m: loss(m, var), mean), quotients(lambda v: loss(mean, v), var)
        for found, right in zip((state.dmean, state.dvar), wanted, strict=True):
            assert found.dtype == mx.float64
            np.testing.assert_allclose(exact(found), right, rtol=0, atol=1e-8 * max(1, abs(right).max()))
        assert abs(wanted[0]).max() > 1 and abs(wanted[1]).max() > 0.1


def test_frozen_statistics_and_parameters_of_other_dtypes(device: mx.Device) -> None:
    x, dy = numbers(SHAPE), numbers(SHAPE, seed=1)
    gamma = mx.array([1.0, 2.0, 0.5, 4.0, -1.0, 0.0])
    frozen = mf.bn_frozen(mx.zeros(6), mx.ones(6), eps=0.0)
    for dtype in (mx.float32, mx.float16):
        state = mf.bn_stats_grad(dy, x, frozen, gamma.astype(dtype))
        assert state.gamma.dtype == mx.float32 and exact(state.gamma).tolist() == exact(gamma).tolist()
        close(state.dmean, -exact(gamma) * exact(state.dbeta), abs(exact(state.dbeta)) * 4)
        close(state.dvar, -exact(gamma) * exact(state.dgamma) / 2, abs(exact(state.dgamma)) * 4)


def test_states_without_gradients_are_refused() -> None:
    x = numbers(SHAPE)
    state = mf.bn_stats(x)
    summed = mf.bn_stats_grad(x, x, state, mx.full((6,), 2.0))
    rule = "got summed='', expected a state from bn_stats_grad"
    for name in ("dmean", "dvar"):
        for given in (state, mf.bn_reset(summed), mf.bn_merge(state, state)):
            with pytest.raises(ValueError, match=f"^BatchNormState.{name}: no gradients were taken; {rule}"):
                getattr(given, name)
    assert not exact(mf.bn_reset(summed).gamma).any()
    assert not exact(mf.bn_reset(summed._replace(frozen=True)).gamma).any()


def test_the_scale_stays_with_its_sums(device: mx.Device) -> None:
    x, gamma = numbers(SHAPE), numbers((6,), seed=1)
    new, summed = mf.bn_reset(mf.bn_stats(x)), mf.bn_stats_grad(x, x, mf.bn_stats(x), gamma)
    for a, b in ((new, summed), (summed, new)):
        merged = mf.bn_merge(a, b)
        assert same_bits(merged.gamma, gamma) and same_bits(merged.dmean, summed.dmean)
    saved = summed._replace(summed="unknown")  # as those of files of version 1
    others = saved._replace(gamma=mx.array([*gamma.tolist()[:5], 7.0]))
    for a, b, known in ((saved, new, 6), (new, saved, 6), (saved, saved, 6), (saved, others, 5)):
        found = exact(mf.bn_merge(a, b).gamma)
        assert found[:known].tolist() == exact(gamma)[:known].tolist() and np.isnan(found[known:]).all()
    without = saved._replace(count=mx.array(0, mx.int64), gamma=mx.full((6,), np.nan))
    assert same_bits(mf.bn_merge(without, summed).gamma, gamma)


def test_a_scale_that_is_no_vector_of_the_channels_is_refused() -> None:
    state = mf.bn_stats(numbers(SHAPE))
    for wrong, error in ((mx.ones(5), ValueError), (mx.ones(6, mx.int32), TypeError), (None, TypeError)):
        with pytest.raises(error, match="^bn_reset: .*state.gamma"):
            mf.bn_reset(state._replace(gamma=wrong))
