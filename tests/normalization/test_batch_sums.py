"""Batch normalization's gradient refuses sums that were never taken, or behind another activation."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers
from support.trees import same_tree

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
        frozen = mf.bn_stats_grad(DY, X, mf.bn_frozen(state.mean, state.var), neuron=BEHIND[told])
        with pytest.raises(ValueError, match="^bn_grad: the sums are of another activation"):
            mf.bn_grad(DY, X, frozen, neuron=neuron)


@pytest.mark.parametrize("neuron", [None, "relu"])
def test_statistics_do_not_move_below_their_sums(on_cpu: mx.Device, neuron: str | None) -> None:
    more = mf.bn_stats(X + 1)
    with pytest.raises(ValueError, match="^bn_stats: sums of gradients belong .* got state.summed=.*bn_reset returns"):
        mf.bn_stats(X + 1, summed(neuron))
    for name, pair in (("a", (summed(neuron), more)), ("b", (more, summed(neuron))), ("a", (summed(neuron),) * 2)):
        with pytest.raises(ValueError, match=f"^bn_merge: sums of gradients belong .* got {name}.summed="):
            mf.bn_merge(*pair)
    with pytest.raises(ValueError, match="^bn_merge: sums of gradients belong"):  # those were taken with nothing
        mf.bn_merge(mf.bn_stats_grad(DY, X, mf.bn_reset(more), neuron=neuron), more)
    again = mf.bn_stats_grad(DY, X, mf.bn_stats(X, mf.bn_reset(summed(neuron))), neuron=neuron)
    assert same_tree(again, summed(neuron))


def test_nothing_merges_with_sums(on_cpu: mx.Device) -> None:
    state, nothing = summed("relu"), mf.bn_reset(mf.bn_stats(X))
    for merged in (mf.bn_merge(state, nothing), mf.bn_merge(nothing, state), mx.compile(mf.bn_merge)(state, nothing)):
        assert same_tree(merged, state)
    for counted in (mx.compile(mf.bn_merge)(state, mf.bn_stats(X)), mx.compile(mf.bn_merge)(mf.bn_stats(X), state)):
        assert mx.isnan(counted.dgamma).all() and mx.isnan(counted.dbeta).all()  # a count that is not known yet


def test_sums_of_a_saved_state_may_be_behind_any(on_cpu: mx.Device) -> None:
    state = summed("relu")._replace(summed="unknown")
    assert mf.bn_grad(DY, X, state, neuron="gelu").shape == X.shape
    assert mf.bn_stats_grad(DY, X, state, neuron="gelu").summed == "unknown"
    assert mf.bn_merge(state, mf.bn_stats(X)).summed == mf.bn_stats(X, state).summed == "unknown"
    for field, value in (("summed", 3), ("frozen", "")):
        with pytest.raises(TypeError, match=f"^bn_grad: .*got state.{field}={value!r}, expected "):
            mf.bn_grad(DY, X, state._replace(**{field: value}))


def test_sums_leave_a_transformation_as_arrays(on_cpu: mx.Device) -> None:
    """The recipe of docs/conventions.md: `with_arrays` of a state that `bn_stats_grad` returned."""
    dys, state = numbers((3, 2, 3, 3, 4), seed=2), mf.bn_stats(X)
    sums = mx.vmap(lambda dy: mf.bn_stats_grad(dy, X, state, neuron="gelu").arrays[3:5])(dys)
    done = mf.bn_stats_grad(dys[0], X, state, neuron="gelu")

    def gradient(dy: mx.array, *sums: mx.array) -> mx.array:
        return mf.bn_grad(dy, X, done.with_arrays([*done.arrays[:3], *sums, done.gamma]), neuron="gelu")

    for dy, dx in zip(dys, mx.vmap(gradient)(dys, *sums), strict=True):
        by_hand = mf.bn_grad(dy, X, mf.bn_stats_grad(dy, X, state, neuron="gelu"), neuron="gelu")
        np.testing.assert_allclose(exact(dx), exact(by_hand), rtol=1e-5, atol=1e-6)
    _, dbeta = mx.grad(lambda *sums: gradient(DY, *sums).sum(), argnums=(0, 1))(*done.arrays[3:5])
    np.testing.assert_allclose(exact(dbeta), -1 / np.sqrt(exact(state.var) + 1e-5), rtol=1e-5)
    with pytest.raises(ValueError, match="^bn_grad: the state has no sums of gradients"):
        mf.bn_grad(DY, X, state.with_arrays(done.arrays))


def test_parameters_are_compared_by_value(on_cpu: mx.Device) -> None:
    plain = summed("relu")
    for neuron in (mf.Neuron("relu", -0.0), mf.Neuron("relu", 0)):
        assert summed(neuron).summed == "relu(0.0)"
        assert mx.array_equal(mf.bn_grad(DY, X, plain, neuron=neuron), mf.bn_grad(DY, X, plain, neuron="relu"))
