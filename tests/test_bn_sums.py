"""Batch normalization's gradient refuses sums that were never taken, or behind another activation."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import pytest
from support import numbers

import mpsfunc as mf

X, DY = numbers((2, 3, 3, 4)), numbers((2, 3, 3, 4), seed=1)
BEHIND: dict[str, Any] = {
    "none": None,
    "relu(0.0)": "relu",
    "relu(0.25)": mf.Neuron("relu", 0.25),
    "gelu": "gelu",
    "relun(1.0, 6.0)": "relun",
    "prelu": mf.Neuron("prelu", mx.ones(4)),
}


@pytest.mark.parametrize(
    "made", [mf.bn_stats, lambda x: mf.batch_norm_fwd(x)[1], lambda x: mf.bn_reset(summed("relu"))]
)
def test_a_gradient_needs_its_sums(on_cpu: mx.Device, made: Any) -> None:
    state = made(X)
    assert state.summed == ""
    mf.bn_stats_grad(DY, X, state)  # whose result is not assigned
    for neuron in (None, "relu"):
        with pytest.raises(
            ValueError, match="^bn_grad: the state has no sums of gradients; .* that bn_stats_grad returned"
        ):
            mf.bn_grad(DY, X, state, neuron=neuron)
    assert mf.bn_grad(DY, X, mf.bn_stats_grad(DY, X, state)).shape == X.shape
    frozen = mf.bn_frozen(state.mean, state.var)
    assert mf.bn_grad(DY, X, frozen).shape == mf.bn_grad(DY, X, frozen, neuron="relu").shape == X.shape


def summed(neuron: Any) -> mf.BatchNormState:
    return mf.bn_stats_grad(DY, X, mf.bn_stats(X), neuron=neuron)


@pytest.mark.parametrize("told", BEHIND)
def test_both_gradients_are_behind_one_activation(on_cpu: mx.Device, told: str) -> None:
    state = summed(BEHIND[told])
    assert state.summed == told
    for other, neuron in BEHIND.items():
        if other == told:
            mf.bn_grad(DY, X, state, neuron=neuron)
            assert mf.bn_stats_grad(DY, X, state, neuron=neuron).summed == told
            continue
        with pytest.raises(ValueError, match=rf"^bn_grad: the sums are of another .* expected {re.escape(repr(told))}"):
            mf.bn_grad(DY, X, state, neuron=neuron)
        with pytest.raises(ValueError, match="^bn_stats_grad: the state's sums are of another activation; got neuron="):
            mf.bn_stats_grad(DY, X, state, neuron=neuron)
        with pytest.raises(ValueError, match="^bn_merge: the sums are of two activations; got b.summed="):
            mf.bn_merge(state, summed(neuron))
        frozen = mf.bn_stats_grad(DY, X, mf.bn_frozen(state.mean, state.var), neuron=BEHIND[told])
        with pytest.raises(ValueError, match="^bn_grad: the sums are of another activation"):
            mf.bn_grad(DY, X, frozen, neuron=neuron)


def test_sums_of_a_saved_state_may_be_behind_any(on_cpu: mx.Device) -> None:
    state = summed("relu")._replace(summed="unknown")
    assert mf.bn_grad(DY, X, state, neuron="gelu").shape == X.shape
    assert (
        mf.bn_stats_grad(DY, X, state, neuron="gelu").summed == mf.bn_merge(state, summed("relu")).summed == "unknown"
    )
    assert mf.bn_merge(summed("relu"), mf.bn_stats(X)).summed == mf.bn_stats(X, summed("relu")).summed == "relu(0.0)"
    for field, value in (("summed", 3), ("frozen", "")):
        with pytest.raises(TypeError, match=f"^bn_grad: .*got state.{field}={value!r}, expected "):
            mf.bn_grad(DY, X, state._replace(**{field: value}))


def test_parameters_are_compared_by_value(on_cpu: mx.Device) -> None:
    plain = summed("relu")
    for neuron in (mf.Neuron("relu", -0.0), mf.Neuron("relu", 0)):
        assert summed(neuron).summed == "relu(0.0)"
        assert mx.array_equal(mf.bn_grad(DY, X, plain, neuron=neuron), mf.bn_grad(DY, X, plain, neuron="relu"))
