"""Gradients by the statistics of a batch, which the sums of a state imply."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers

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
        for found, right in zip((state.dmean(gamma), state.dvar(gamma)), wanted, strict=True):
            assert found.dtype == mx.float64
            np.testing.assert_allclose(exact(found), right, rtol=0, atol=1e-8 * max(1, abs(right).max()))
        assert abs(wanted[0]).max() > 1 and abs(wanted[1]).max() > 0.1


def test_frozen_statistics_and_parameters_of_other_dtypes(device: mx.Device) -> None:
    x, dy = numbers(SHAPE), numbers(SHAPE, seed=1)
    gamma = mx.array([1.0, 2.0, 0.5, 4.0, -1.0, 0.0])
    state = mf.bn_stats_grad(dy, x, mf.bn_frozen(mx.zeros(6), mx.ones(6), eps=0.0), gamma)
    close(state.dmean(gamma.astype(mx.float16)), -exact(gamma) * exact(state.dbeta), abs(exact(state.dbeta)) * 4)
    close(state.dvar(gamma), -exact(gamma) * exact(state.dgamma) / 2, abs(exact(state.dgamma)) * 4)


def test_what_they_cannot_be_made_of_is_refused() -> None:
    x = numbers(SHAPE)
    state = mf.bn_stats(x)
    rule = "got summed='', expected a state from bn_stats_grad"
    for name in ("dmean", "dvar"):
        with pytest.raises(ValueError, match=f"^BatchNormState.{name}: no gradients were taken; {rule}"):
            getattr(state, name)()
        with pytest.raises(ValueError, match="the scale does not fit the channels"):
            getattr(mf.bn_stats_grad(x, x, state), name)(mx.ones(5))
        with pytest.raises(TypeError, match="gamma is not an array"):
            getattr(mf.bn_stats_grad(x, x, state), name)(2.0)
