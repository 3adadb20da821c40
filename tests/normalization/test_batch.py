"""Batch normalization: statistics, normalization, both gradients and their state."""

from __future__ import annotations

import functools
import itertools
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, TOLERANCE, VIEWS, accumulator, close, exact, numbers, same_bits
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc.core import grids

# The two images [1, 3] and [2, 6] of the worked example, with gamma 2, beta 0.5 and eps 1.
GAMMA, BETA, EPS = 2.0, 0.5, 1.0
ROOT = 3.5 + EPS


def row(values: list[float], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(values, dtype).reshape(-1, 1, 2, 1)


def worked(dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    acc = accumulator(dtype)
    return row([1, 3, 2, 6], dtype), row([1, -2, 3, 2], dtype), mx.array([GAMMA], acc), mx.array([BETA], acc)


def shape_of(a: mx.array) -> tuple[int, ...]:
    return tuple(a.shape)


# Worked numbers -----------------------------------------------------------------------------------------


def eight_digits(actual: mx.array, expected: list[float]) -> None:
    few = max(1e-8, 4 * TOLERANCE[actual.dtype])
    np.testing.assert_allclose(exact(actual).ravel(), expected, rtol=few, atol=few)


def test_worked_example(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy, gamma, beta = worked(dtype)
    state = mf.bn_stats(x, eps=EPS)
    eight_digits(state.mean, [3])
    eight_digits(state.var, [3.5])
    assert state.count.item() == 4 and state.count.dtype == mx.int64
    eight_digits(mf.bn_normalize(x, state, gamma, beta), [-1.38561808, 0.5, -0.44280904, 3.32842712])
    first = mf.bn_stats_grad(dy[:1], x[:1], state, gamma, beta)  # the images of the batch one by one
    eight_digits(first.dgamma, [-0.94280904])
    eight_digits(first.dbeta, [-1])
    state = mf.bn_stats_grad(dy[1:], x[1:], first, gamma, beta)
    eight_digits(state.dgamma - first.dgamma, [1.41421356])
    eight_digits(state.dbeta - first.dbeta, [5])
    eight_digits(state.dgamma, [0.47140452])
    eight_digits(state.dbeta, [4])
    dx = [0.10475656, -2.82842712, 1.93799636, 0.7856742]
    eight_digits(mf.bn_grad(dy, x, state, gamma), dx)
    for i in (0, 1):  # each image alone, from the state of both
        eight_digits(mf.bn_grad(dy[i : i + 1], x[i : i + 1], state, gamma), dx[2 * i : 2 * i + 2])


def test_worked_example_of_frozen_statistics(device: mx.Device) -> None:
    x, dy, gamma, beta = worked(mx.float32)
    state = mf.bn_frozen(mx.array([3.0]), mx.array([3.5]), eps=EPS)
    assert state.frozen and state.count.item() == 0
    y = mf.bn_normalize(x, state, gamma, beta)
    eight_digits(y, [-1.38561808, 0.5, -0.44280904, 3.32842712])
    state = mf.bn_stats_grad(dy, x, state, gamma, beta)
    eight_digits(state.dgamma, [0.47140452])
    dx = mf.bn_grad(dy, x, state, gamma)
    eight_digits(dx, [0.94280904, -1.88561808, 2.82842712, 1.88561808])


def test_worked_example_with_a_fused_relu(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy, gamma, beta = worked(dtype)
    state = mf.bn_stats(x, eps=EPS)
    eight_digits(mf.bn_normalize(x, state, gamma, beta, neuron="relu"), [0, 0.5, 0, 3.32842712])
    for part in (slice(0, 1), slice(1, 2)):
        state = mf.bn_stats_grad(dy[part], x[part], state, gamma, beta, neuron="relu")
    eight_digits(state.dgamma, [2.82842712])
    eight_digits(state.dbeta, [0])
    dx = [0.62853936, -1.88561808, 0.31426968, 0.94280904]
    eight_digits(mf.bn_grad(dy, x, state, gamma, beta, neuron="relu"), dx)
    composed = lambda x: mf.batch_norm(x, gamma, beta, eps=EPS, neuron="relu")  # noqa: E731
    eight_digits(mx.vjp(composed, [x], [dy])[1][0], dx)
    frozen = state._replace(frozen=True)
    eight_digits(mf.bn_grad(dy, x, frozen, gamma, beta, neuron="relu"), [0, -1.88561808, 0, 1.88561808])


def test_the_slope_of_a_fused_relu_at_zero_is_that_of_mps(device: mx.Device) -> None:
    """1, whoever asks."""
    x, none, one = mx.array([2.0, 3.0, 1.0]).reshape(1, 1, 3, 1), mx.zeros(1), mx.ones(1)
    state, dy = mf.bn_frozen(mx.full((1,), 2.0), one, eps=0.0), mx.ones_like(x)
    normalized = lambda x: mf.bn_normalize(x, state, one, none, neuron="relu")  # noqa: E731
    assert mf.bn_grad(dy, x, state, neuron="relu").reshape(-1).tolist() == [1, 1, 0]
    assert mx.vjp(normalized, [x], [dy])[1][0].reshape(-1).tolist() == [1, 1, 0]
    assert mx.jvp(normalized, [x], [dy])[1][0].reshape(-1).tolist() == [1, 1, 0]
    for pulled in (lambda dy: mf.bn_grad(dy, x, state, neuron="relu"), lambda dy: mx.vjp(normalized, [x], [dy])[1][0]):
        assert mx.jvp(pulled, [dy], [dy])[1][0].reshape(-1).tolist() == [1, 1, 0]
    done = mf.bn_stats_grad(dy, x, state, neuron="relu")
    assert (done.dbeta.item(), done.dgamma.item()) == (2, 1)


def test_a_convolution_has_the_other_slope_at_zero(device: mx.Device) -> None:
    """Its state holds outputs, which do not tell 0 from less; so it has PyTorch's slope there."""
    x, w = mx.zeros((1, 1, 1, 1)), mx.ones((1, 1, 1, 1))
    assert mx.grad(lambda x: mf.conv(x, w, neuron="relu").sum())(x).item() == 0
    frozen = mf.bn_frozen(mx.zeros(1), mx.ones(1), eps=0.0)
    assert mx.grad(lambda x: mf.bn_normalize(x, frozen, neuron="relu").sum())(x).item() == 1


def test_a_fused_relu_hides_no_nan(device: mx.Device) -> None:
    x = mx.array([1.0, float("nan")]).reshape(1, 1, 2, 1)
    y = mf.bn_normalize(x, mf.bn_frozen(mx.zeros(1), mx.ones(1)), neuron="relu")
    assert np.isnan(exact(y).ravel()).tolist() == [False, True]


def test_the_state_carries_the_gradients_of_the_statistics(on_cpu: mx.Device) -> None:
    x, dy, gamma, beta = worked(mx.float64)
    state = mf.bn_stats(x, eps=EPS)

    def loss(mean: mx.array, var: mx.array) -> mx.array:
        return (mf.bn_normalize(x, state._replace(mean=mean, var=var), gamma, beta) * dy).sum()

    dmean, dvar = mx.grad(loss, argnums=(0, 1))(state.mean, state.var)
    done = mf.bn_stats_grad(dy, x, state, gamma, beta)
    close(dmean, exact(-gamma * done.dbeta / ROOT**0.5), 10)
    close(dvar, exact(-gamma * done.dgamma / (2 * ROOT)), 10)
    eight_digits(mx.concatenate([dmean, dvar]), [-3.77123617, -0.10475656])


# The definition -----------------------------------------------------------------------------------------


def check(
    x: mx.array, *, eps: float = 1e-3, seed: int = 0, view: str = "contiguous", neuron: str | None = None
) -> None:
    """All functions against the definition; the images come as a view."""
    channels, acc, seen = x.shape[3], accumulator(x.dtype), VIEWS[view]
    dy = numbers(shape_of(x), x.dtype, seed + 1)
    gamma, beta = numbers((channels,), acc, seed + 2), numbers((channels,), acc, seed + 3)
    truth = oracle.batch_norm(*[exact(a) for a in (x, dy, gamma, beta)], eps)
    if neuron:
        dy = mx.where(mx.array(np.abs(truth.y) < 1e-3), 0, dy)  # rounding may take these over the kink
        behind = exact(dy) * (truth.y > 0)
        truth = oracle.batch_norm(exact(x), behind, exact(gamma), exact(beta), eps)
        truth = truth._replace(y=np.maximum(truth.y, 0))
    root, pixels = np.sqrt(truth.var + eps), (0, 1, 2)
    xhat = np.abs(exact(x) - truth.mean) / root
    wide = np.abs(exact(gamma)) / root * np.abs(exact(x)).max(pixels)  # cancels where x is near the mean
    sums = (np.abs(exact(dy)) * (xhat + 1)).sum(pixels) * (1 + 1 / root)
    steep = np.abs(exact(gamma)) / root * (np.abs(exact(dy)) + (1 + xhat) * (1 + 1 / root) * sums[None])

    state = mf.bn_stats(seen(x), eps=eps)
    close(state.mean, truth.mean, np.abs(exact(x)).mean(pixels))
    close(state.var, truth.var, (exact(x) ** 2).mean(pixels))
    assert state.count.item() == x.size // channels
    y = mf.bn_normalize(seen(x), state, gamma, beta, neuron=neuron)
    close(y, truth.y, 4 * wide + np.abs(truth.y) + 1)
    done = mf.bn_stats_grad(seen(dy), seen(x), state, gamma, beta, neuron=neuron)
    close(done.dgamma, truth.dgamma, 2 * sums)
    close(done.dbeta, truth.dbeta, np.abs(exact(dy)).sum(pixels))
    dx = mf.bn_grad(seen(dy), seen(x), done, gamma, beta, neuron=neuron)
    close(dx, truth.dx, 4 * steep)
    frozen = mf.bn_grad(seen(dy), seen(x), done._replace(frozen=True), gamma, beta, neuron=neuron)
    close(frozen, truth.dx_frozen, np.abs(truth.dx_frozen))
    assert y.dtype == dx.dtype == x.dtype
    assert all(a.dtype == acc for a in (done.mean, done.var, done.dgamma, done.dbeta))

    composed = lambda x, gamma, beta: mf.batch_norm(x, gamma, beta, eps=eps, neuron=neuron)  # noqa: E731
    (again,), (gx, ggamma, gbeta) = mx.vjp(composed, [seen(x), gamma, beta], [dy])
    close(again, truth.y, 4 * wide + np.abs(truth.y) + 1)
    close(gx, truth.dx, 4 * steep)
    close(ggamma, truth.dgamma, 2 * sums)
    close(gbeta, truth.dbeta, np.abs(exact(dy)).sum(pixels))


@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 16, 65])
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_width_and_view(device: mx.Device, dtype: mx.Dtype, channels: int, view: str) -> None:
    check(numbers((3, 5, 4, channels), dtype), view=view)
    check(numbers((3, 5, 4, channels), dtype), view=view, neuron="relu")


@pytest.mark.parametrize("shape", [(1, 1, 1, 3), (1, 1, 7, 5), (9, 1, 1, 8), (2, 40, 30, 6), (1, 3, 2, 300)])
def test_definition_for_every_shape(device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    check(numbers(shape, dtype) * 2 + 1)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 5, 8, 17])),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    eps=st.sampled_from([1e-5, 1e-3, 1.0]),
    neuron=st.sampled_from([None, "relu"]),
    seed=st.integers(0, 9),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], dtype: mx.Dtype, view: str, eps: float, neuron: str | None, seed: int
) -> None:
    with mx.stream(mx.cpu):
        check(numbers(shape, dtype, seed), view=view, eps=eps, seed=seed, neuron=neuron)


def test_every_threadgroup_of_statistics_has_pixels_and_every_thread_four() -> None:
    """The kernels of a GPU lean on that: the first row of threads of each is what the others are compared with."""
    for lanes, stat_groups in itertools.product((1, 2, 3, 8, 16, 100, 256, 300), (1, 2, 7, 300)):
        for pixels in (*range(1, 600), 3136, 401408):
            grid, group = grids.column_threads(lanes, pixels, stat_groups, register_heavy=True)
            assert pixels // grid[1] >= min(4, pixels) and grid[1] % group[1] == 0


def test_broadcast_views(device: mx.Device) -> None:
    check(mx.broadcast_to(numbers((1, 4, 1, 6)), (3, 4, 5, 6)))


@pytest.mark.parametrize("neuron", [None, "relu"])
def test_a_gradient_that_is_missing_is_said_to_be(neuron: str | None) -> None:
    x = mx.ones((1, 2, 2, 3))
    state, nothing = mf.bn_stats(x), None
    for function in (mf.bn_grad, mf.bn_stats_grad):
        with pytest.raises(TypeError, match=f"{function.__name__}: dy is not an array; got dy=None"):
            function(cast(mx.array, nothing), x, state, neuron=neuron)


def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype) -> None:
    x, dy = numbers((5, 37, 41, 10), dtype), numbers((5, 37, 41, 10), dtype, 1)

    def everything() -> list[mx.array]:
        state = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
        return [*state.arrays, mf.bn_normalize(x, state), mf.bn_grad(dy, x, state)]

    first = everything()
    assert all(same_bits(a, b) for _ in range(5) for a, b in zip(everything(), first, strict=True))


# Accumulation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(1,), (2, 3), (1, 2, 3, 4, 5, 6)])
def test_parts_of_a_batch_give_its_statistics(device: mx.Device, dtype: mx.Dtype, cuts: tuple[int, ...]) -> None:
    x, dy = numbers((7, 5, 6, 9), dtype) + 3, numbers((7, 5, 6, 9), dtype, 1)
    parts = [slice(a, b) for a, b in zip((0, *cuts), (*cuts, 7), strict=True)]
    whole = mf.bn_stats(x, eps=0.1)

    def by_parts() -> mf.BatchNormState:
        state: mf.BatchNormState | None = None
        for part in parts:
            state = mf.bn_stats(x[part], state, eps=0.1)
        for part in parts:
            state = mf.bn_stats_grad(dy[part], x[part], state)
        assert state is not None
        return state

    merged, done = by_parts(), mf.bn_stats_grad(dy, x, whole)
    assert merged.count.item() == whole.count.item() == 210
    close(merged.mean, exact(whole.mean), 4)
    close(merged.var, exact(whole.var), 16)
    close(merged.dgamma, exact(done.dgamma), 400)
    close(merged.dbeta, exact(done.dbeta), 400)
    assert all(same_bits(a, b) for a, b in zip(merged.arrays, by_parts().arrays, strict=True))


@given(
    owners=st.lists(st.integers(0, 3), min_size=2, max_size=9),
    order=st.permutations(range(4)),
    offset=st.sampled_from([0.0, 100.0]),
    leftwards=st.booleans(),
)
@pytest.mark.needs_cpu_module
def test_any_partition_gives_the_statistics_of_the_batch(
    owners: list[int], order: list[int], offset: float, leftwards: bool
) -> None:
    """Images to four owners, in any order, merged in a row from either end."""
    with mx.stream(mx.cpu):
        x = numbers((len(owners), 3, 4, 5)) + offset
        parts = [
            mf.bn_stats(x[mx.array(mine)])
            for owner in order
            if (mine := [i for i, o in enumerate(owners) if o == owner])
        ]
        merged = functools.reduce(mf.bn_merge, parts if leftwards else parts[::-1])
        values = exact(x)
        assert merged.count.item() == values.size // 5
        np.testing.assert_allclose(exact(merged.mean), values.mean((0, 1, 2)), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(exact(merged.var), values.var((0, 1, 2)), rtol=2e-5)


@pytest.mark.parametrize("neuron", [None, "relu"])
def test_micro_batches_give_the_gradients_of_the_whole_batch(
    device: mx.Device, dtype: mx.Dtype, neuron: str | None
) -> None:
    x, dy = numbers((7, 5, 6, 9), dtype) + 3, numbers((7, 5, 6, 9), dtype, 1)
    gamma, beta = numbers((9,), accumulator(dtype), 2), numbers((9,), accumulator(dtype), 3)
    whole = lambda *args: mf.batch_norm(*args, neuron=neuron)  # noqa: E731
    (y,), (dx, dgamma, dbeta) = mx.vjp(whole, [x, gamma, beta], [dy])
    parts, state = (slice(0, 2), slice(2, 3), slice(3, 7)), None
    for part in parts:
        state = mf.bn_stats(x[part], state)
    assert state is not None
    made = [mf.bn_normalize(x[part], state, gamma, beta, neuron=neuron) for part in parts]
    for part in parts:
        state = mf.bn_stats_grad(dy[part], x[part], state, gamma, beta, neuron=neuron)
    pulled = [mf.bn_grad(dy[part], x[part], state, gamma, beta, neuron=neuron) for part in parts]
    close(mx.concatenate(made), exact(y), 20)
    close(mx.concatenate(pulled), exact(dx), 100)
    close(state.dgamma, exact(dgamma), 1000)
    close(state.dbeta, exact(dbeta), 1000)


def test_merging_is_associative_up_to_rounding_and_has_a_zero(device: mx.Device) -> None:
    a, b, c = (mf.bn_stats(numbers((n, 3, 4, 5)) * n + n) for n in (1, 2, 3))
    left, right = mf.bn_merge(mf.bn_merge(a, b), c), mf.bn_merge(a, mf.bn_merge(b, c))
    other = mf.bn_merge(mf.bn_merge(c, a), b)
    for first, second, third in zip(left.arrays, right.arrays, other.arrays, strict=True):
        np.testing.assert_allclose(exact(first), exact(second), rtol=2e-6)
        np.testing.assert_allclose(exact(first), exact(third), rtol=2e-6)
    x = numbers((1, 3, 4, 5))
    a = mf.bn_stats_grad(x, x, a)
    for merged in (mf.bn_merge(mf.bn_reset(a), a), mf.bn_merge(a, mf.bn_reset(a))):
        assert all(same_bits(m, o) for m, o in zip(merged.arrays, a.arrays, strict=True))


def test_counting_goes_past_what_float32_counts(device: mx.Device) -> None:
    state = mf.bn_stats(mx.full((1, 1, 1, 2), 3.0))
    state = state._replace(count=mx.array(2**40 + 1, mx.int64))
    once_more = mf.bn_stats(mx.full((1, 1, 1, 2), 3.0), state)
    assert once_more.count.item() == 2**40 + 2
    assert once_more.mean.tolist() == [3, 3]


def test_reset(device: mx.Device) -> None:
    x = numbers((2, 3, 3, 4))
    state = mf.bn_reset(mf.bn_stats_grad(x, x, mf.bn_stats(x, eps=0.5)))
    assert state.count.item() == 0 and state.eps == 0.5
    assert not any(exact(a).any() for a in state.arrays)
    assert all(
        same_bits(a, b) for a, b in zip(mf.bn_stats(x, state).arrays, mf.bn_stats(x, eps=0.5).arrays, strict=True)
    )
    frozen = mf.bn_reset(mf.bn_stats_grad(x, x, mf.bn_frozen(mx.full((4,), 2.0), mx.ones(4))))
    assert frozen.frozen and frozen.mean.tolist() == [2] * 4
    assert not exact(frozen.dgamma).any() and not exact(frozen.dbeta).any()


def test_states(device: mx.Device) -> None:
    y, state = mf.batch_norm_fwd(numbers((2, 3, 3, 4)), eps=0.25)
    assert state.op == "batch_norm" and state.eps == 0.25 and not state.frozen
    assert all(
        same_bits(a, b) for a, b in zip(state.arrays, mf.bn_stats(numbers((2, 3, 3, 4)), eps=0.25).arrays, strict=True)
    )
    other = [a + 1 for a in state.arrays]
    assert state.with_arrays(other) == mf.BatchNormState(*other, "batch_norm", 0.25, False, "")
    with pytest.raises(ValueError, match="^BatchNormState: wrong number of arrays; got 2 "):
        state.with_arrays(other[:2])


def test_defaults_of_gamma_and_beta(device: mx.Device) -> None:
    x, dy, ones, zeros = numbers((2, 3, 3, 4)), numbers((2, 3, 3, 4), seed=1), mx.ones(4), mx.zeros(4)
    state = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
    assert same_bits(mf.batch_norm(x), mf.batch_norm(x, ones, zeros))
    assert same_bits(mf.bn_normalize(x, state), mf.bn_normalize(x, state, ones, zeros))
    shift = numbers((4,), seed=2)
    assert same_bits(mf.batch_norm(x, beta=shift), mf.batch_norm(x, ones, shift))
    assert same_bits(mf.bn_normalize(x, state, beta=shift), mf.bn_normalize(x, state, ones, shift))
    assert same_bits(mf.bn_grad(dy, x, state), mf.bn_grad(dy, x, state, ones, zeros))


def test_derivatives_have_the_dtypes_of_their_arguments(device: mx.Device) -> None:
    x, gamma, beta = numbers((2, 3, 3, 4), mx.float16), mx.ones(4, mx.bfloat16), mx.zeros(4)
    loss = lambda *args: (mf.batch_norm(*args).astype(mx.float32) ** 3).sum()  # noqa: E731
    grads = mx.grad(loss, argnums=(0, 1, 2))(x, gamma, beta)
    assert [g.dtype for g in grads] == [mx.float16, mx.bfloat16, mx.float32]
