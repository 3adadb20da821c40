"""A shortcut that is added before the activation of a batch normalization."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, nodes, numbers, same_bits

import mpsfunc as mf

SHAPE = (2, 5, 6, 4)
Function = Callable[[mx.array, mx.array], mx.array]


def of_the_batch(x: mx.array, shortcut: mx.array) -> mx.array:
    return mf.batch_norm(x, add=shortcut, neuron="relu")


def of_a_state(x: mx.array, shortcut: mx.array) -> mx.array:
    state = mf.bn_frozen(mx.zeros(4), mx.ones(4), eps=0.0)
    return mf.bn_normalize(x, state, add=shortcut, neuron="relu")


def test_a_relu_is_flat_at_zero_and_below(on_cpu: mx.Device) -> None:
    x = mx.array([-3.0, -1.0, 1.0, 2.0]).reshape(1, 1, 1, 4)
    shortcut = mx.array([1.0, 1.0, -1.0, float("nan")]).reshape(1, 1, 1, 4)  # -2, 0, 0 and NaN
    (y,), (dx, ds) = mx.vjp(of_a_state, [x, shortcut], [mx.full(x.shape, 3.0)])
    assert np.array_equal(exact(y).ravel(), [0, 0, 0, np.nan], equal_nan=True)
    assert exact(dx).ravel().tolist() == exact(ds).ravel().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("neuron", ["none", "relu", "gelu", "tanh"])
def test_the_explicit_gradients_take_what_comes_through_the_activation(neuron: str, on_cpu: mx.Device) -> None:
    x, shortcut, dy = (numbers(SHAPE, seed=seed) for seed in range(3))
    gamma, beta = numbers((4,), seed=3), numbers((4,), seed=4)

    def function(x: mx.array, shortcut: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
        return mf.batch_norm(x, gamma, beta, add=shortcut, neuron=neuron)

    _, right = mx.vjp(function, [x, shortcut, gamma, beta], [dy])
    state = mf.bn_stats(x)
    dz = mf.neuron_grad(dy, mf.bn_normalize(x, state, gamma, beta, add=shortcut), neuron)
    state = mf.bn_stats_grad(dz, x, state, gamma, beta)
    made = [mf.bn_grad(dz, x, state, gamma, beta), dz, state.dgamma, state.dbeta]
    for one, other in zip(made, right, strict=True):
        close(one, exact(other), abs(exact(other)) + 1, slack=8)


@pytest.mark.parametrize("function", [of_the_batch, of_a_state])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_a_sum_is_rounded_once(function: Function, dtype: mx.Dtype, on_cpu: mx.Device) -> None:
    x, shortcut = numbers(SHAPE, dtype, 1), numbers(SHAPE, dtype, 2)
    right = function(x.astype(mx.float32), shortcut.astype(mx.float32)).astype(dtype)
    assert same_bits(function(x, shortcut), right)


def test_a_step_reads_the_images_in_as_few_passes_as_it_can(on_cpu: mx.Device) -> None:
    x, shortcut, dy = (numbers(SHAPE, seed=seed) for seed in range(3))
    mx.eval(x, shortcut, dy)
    assert nodes(mf.batch_norm(x, add=shortcut, neuron="relu")) == {"batch_norm_add": 1}
    _, gradients = mx.vjp(of_the_batch, [x, shortcut], [dy])
    made = nodes(*gradients)
    ours = {name: made[name] for name in made if name.startswith(("batch_norm", "bn_", "neuron"))}
    assert ours == {"batch_norm_add": 1, "neuron_grad_from_output": 1, "batch_norm_grad": 1}
    assert "Add" not in made


@pytest.mark.parametrize("function", [of_the_batch, of_a_state])
def test_a_shortcut_may_be_the_images_themselves(function: Function, on_cpu: mx.Device) -> None:
    x, dy = numbers(SHAPE, seed=1), numbers(SHAPE, seed=2)
    mx.eval(x)
    other = mx.array(x)
    _, apart = mx.vjp(function, [x, other], [dy])
    _, (both,) = mx.vjp(lambda x: function(x, x), [x], [dy])
    close(both, exact(apart[0]) + exact(apart[1]), abs(exact(apart[0])) + abs(exact(apart[1])))
    assert same_bits(function(x, x), function(x, other))


def test_of_no_images(on_cpu: mx.Device) -> None:
    none = mx.zeros((0, 2, 2, 4))
    assert of_a_state(none, none).shape == none.shape
