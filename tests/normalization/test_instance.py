"""Instance and group normalization, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, accumulator, close, exact, numbers, same_bits

import mpsfunc as mf
from mpsfunc.channels import rules
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.normalization import composed

INSTANCE = 0  # groups; each channel is its own


def forward(x: mx.array, groups: int, *vectors: mx.array | None, eps: float = 1e-3) -> tuple[mx.array, Any]:
    if groups == INSTANCE:
        return mf.instance_norm_fwd(x, *vectors, eps=eps)
    return mf.group_norm_fwd(x, groups, *vectors, eps=eps)


def backward(dy: mx.array, x: mx.array, state: Any, gamma: mx.array | None = None) -> tuple[mx.array, Any]:
    return (mf.instance_norm_grad if state.op == "instance_norm" else mf.group_norm_grad)(dy, x, state, gamma)


# Worked numbers -----------------------------------------------------------------------------------------


def test_worked_example(device: mx.Device) -> None:
    """The numbers of mps-semantics 9: gamma 2, beta 0.5, eps 1, and each image alone."""
    x, dy = (mx.array(v).reshape(2, 1, 2, 1) for v in ([1.0, 3, 2, 6], [1.0, -2, 3, 2]))
    gamma, beta = mx.array([2.0]), mx.array([0.5])
    y, state = mf.instance_norm_fwd(x, gamma, beta, eps=1.0)
    roots = np.sqrt([2.0, 5.0])  # variances of 1 and 4, and eps
    np.testing.assert_allclose(
        exact(y).reshape(2, 2), 0.5 + 2 * np.array([[-1, 1], [-2, 2]]) / roots[:, None], rtol=1e-6
    )
    dx, state = mf.instance_norm_grad(dy, x, state, gamma)
    np.testing.assert_allclose(exact(state.dgamma), [[-2.12132034], [-0.89442719]], rtol=1e-6)
    np.testing.assert_allclose(exact(state.dbeta), [[-1], [5]], rtol=1e-6)
    expected = [1.06066017, -1.06066017, 0.08944272, -0.08944272]
    np.testing.assert_allclose(exact(dx).ravel(), expected, rtol=1e-6, atol=5e-7)  # terms are about 1


def test_worked_example_by_group(device: mx.Device) -> None:
    """The same numbers where two channels share statistics, so that images of one pixel have what rows of two had."""
    x, dy = (mx.array(v).reshape(2, 1, 1, 2) for v in ([1.0, 3, 2, 6], [1.0, -2, 3, 2]))
    gamma, beta = mx.array([2.0, 2.0]), mx.array([0.5, 0.5])
    y, state = mf.group_norm_fwd(x, 1, gamma, beta, eps=1.0)
    roots = np.sqrt([[2.0], [5.0]])
    np.testing.assert_allclose(exact(state.mean), [[2], [4]])
    np.testing.assert_allclose(exact(state.var), [[1], [4]])
    np.testing.assert_allclose(exact(y).reshape(2, 2), 0.5 + 2 * np.array([[-1, 1], [-2, 2]]) / roots, rtol=1e-6)
    dx, state = mf.group_norm_grad(dy, x, state, gamma)
    np.testing.assert_allclose(exact(state.dgamma), [[-1, -2], [-6, 4]] / roots, rtol=1e-6)
    np.testing.assert_allclose(exact(state.dbeta), [[1, -2], [3, 2]], rtol=1e-6)
    expected = [1.06066017, -1.06066017, 0.08944272, -0.08944272]
    np.testing.assert_allclose(exact(dx).ravel(), expected, rtol=1e-6, atol=5e-7)


# The definition -----------------------------------------------------------------------------------------


class Truth(NamedTuple):
    """The definition's values, and how large the terms were that each one sums."""

    y: np.ndarray
    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray
    of_y: np.ndarray
    of_dx: np.ndarray
    of_dgamma: np.ndarray
    of_dbeta: np.ndarray


def define(x: np.ndarray, dy: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int, eps: float) -> Truth:
    n, h, w, c = x.shape
    apart = (n, h, w, groups or c, c // (groups or c))

    def mean(a: np.ndarray) -> np.ndarray:
        return np.broadcast_to(a.reshape(apart).mean((1, 2, 4), keepdims=True), apart).reshape(x.shape)

    center = mean(x)
    root = np.sqrt(mean((x - center) ** 2) + eps)
    xhat, g = (x - center) / root, gamma * dy
    dx = (g - mean(g) - xhat * mean(g * xhat)) / root
    # What is rounded before it is divided by the root: x less its mean.
    near = 1 + abs(xhat) + mean(abs(x)) / root
    of_dx = (abs(g) + near * (mean(abs(g)) + mean(abs(g) * near))) / root
    pixels = (1, 2)
    return Truth(
        *(gamma * xhat + beta, dx, (dy * xhat).sum(pixels), dy.sum(pixels)),
        *(abs(gamma) * near + abs(beta), of_dx, (abs(dy) * near).sum(pixels), abs(dy).sum(pixels)),
    )


def check(x: mx.array, groups: int, *, eps: float = 1e-3, seed: int = 0, view: str = "contiguous") -> None:
    channels, acc, seen = x.shape[3], accumulator(x.dtype), VIEWS[view]
    dy = numbers(tuple(x.shape), x.dtype, seed + 1)
    gamma, beta = numbers((channels,), acc, seed + 2), numbers((channels,), acc, seed + 3)
    truth = define(*[exact(a) for a in (x, dy, gamma, beta)], groups, eps)
    y, state = forward(seen(x), groups, gamma, beta, eps=eps)
    dx, state = backward(seen(dy), seen(x), state, gamma)
    assert y.dtype == dx.dtype == x.dtype
    assert all(a.dtype == acc for a in state.arrays)
    close(y, truth.y, truth.of_y, slack=4)
    close(dx, truth.dx, truth.of_dx, slack=4)
    close(state.dgamma, truth.dgamma, truth.of_dgamma, slack=4)
    close(state.dbeta, truth.dbeta, truth.of_dbeta, slack=4)

    function = lambda *args: forward(args[0], groups, *args[1:], eps=eps)[0]  # noqa: E731
    (again,), (gx, ggamma, gbeta) = mx.vjp(function, [seen(x), gamma, beta], [seen(dy)])
    assert same_bits(again, y) and same_bits(gx, dx)
    close(ggamma, truth.dgamma.sum(0), truth.of_dgamma.sum(0), slack=4)
    close(gbeta, truth.dbeta.sum(0), truth.of_dbeta.sum(0), slack=4)


@pytest.mark.parametrize(("channels", "groups"), [(1, 0), (3, 3), (4, 2), (7, 1), (8, 0), (16, 4), (65, 5), (64, 32)])
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_width_and_view(
    device: mx.Device, dtype: mx.Dtype, channels: int, groups: int, view: str
) -> None:
    check(numbers((3, 5, 4, channels), dtype), groups, view=view)


@pytest.mark.parametrize("groups", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (5, 1, 7, 6), (70, 7, 7, 4), (2, 40, 30, 6), (1, 3, 2, 300)], ids=str)
def test_definition_for_every_shape(device: mx.Device, shape: tuple[int, ...], groups: int) -> None:
    check(numbers(shape) * 2 + 1, groups, eps=0.1)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([2, 6, 12, 34])),
    groups=st.sampled_from([0, 1, 2]),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    eps=st.sampled_from([1e-2, 1.0]),
    seed=st.integers(0, 9),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], groups: int, dtype: mx.Dtype, view: str, eps: float, seed: int
) -> None:
    with mx.stream(mx.cpu):
        check(numbers(shape, dtype, seed), groups, view=view, eps=eps, seed=seed)


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_variance_survives_a_large_mean(device: mx.Device, groups: int) -> None:
    x = numbers((3, 32, 32, 6)) + 1e4
    _, state = forward(x, groups)
    values = exact(x).reshape(3, 32 * 32, groups or 6, -1)
    np.testing.assert_allclose(exact(state.mean), values.mean((1, 3)), rtol=2e-7)
    np.testing.assert_allclose(exact(state.var), values.var((1, 3)), rtol=2e-5)


def test_one_image_is_a_batch_of_its_own(device: mx.Device, dtype: mx.Dtype) -> None:
    x, gamma, beta = numbers((3, 6, 5, 7), dtype), numbers((7,), seed=1), numbers((7,), seed=2)
    y = mf.instance_norm(x, gamma, beta)
    for i in range(3):
        close(y[i : i + 1], exact(mf.batch_norm(x[i : i + 1], gamma, beta)), 20)


def test_mapped_images_keep_to_their_own_vectors(on_cpu: mx.Device) -> None:
    """Two sets of vectors that nobody maps over, under images that somebody does."""
    on = rules.ActivationSpec(NO_ACTIVATION, mx.default_stream(mx.cpu))
    xs, rows = numbers((3, 4, 2, 5, 6)), [numbers((2, 6), seed=i) for i in range(3)]
    mapped = mx.vmap(lambda x: rules.bn_normalize(x, *rows, on))(xs)
    for x, y in zip(xs, mapped, strict=True):
        assert same_bits(y, rules.bn_normalize(x, *rows, on))


def test_group_norm_between_instance_norm_and_one_group(device: mx.Device) -> None:
    x = numbers((2, 4, 5, 6))
    close(mf.group_norm(x, 6), exact(mf.instance_norm(x)), 10)
    whole = exact(x).reshape(2, -1)
    expected = (whole - whole.mean(1, keepdims=True)) / np.sqrt(whole.var(1, keepdims=True) + 1e-5)
    close(mf.group_norm(x, 1), expected.reshape(x.shape), 10)


def test_what_a_gradient_means_takes_statistics_by_group(device: mx.Device) -> None:
    """With zeros of their shape, or none: a GPU is handed the former."""
    x, dy, given = numbers((3, 4, 5, 6)), numbers((3, 4, 5, 6), seed=1), [numbers((6,)), numbers((6,), seed=1)]
    _, state = mf.group_norm_fwd(x, 3, *given)
    spec = composed.Spec(True, 3, state.eps, NO_ACTIVATION, None, mx.default_stream(device))
    made = composed.gradients(dy, x, state.mean, state.var, (given[0], given[1]), spec)
    for none in (mx.zeros_like(state.mean), mx.zeros((0,))):
        parts = composed._batch_norm_grad_in_parts(dy, x, *given, state.mean, state.var, *[none] * 3, spec)
        for one, part in zip(made, parts, strict=True):
            close(one, exact(part), 10)


@pytest.mark.parametrize("groups", [0, 2])
def test_gradient_of_one_statistic_alone(device: mx.Device, groups: int) -> None:
    """Where nobody asked for the images' gradient, nor for the other statistic's."""
    x, v = numbers((3, 4, 5, 6)), numbers((3, groups or 6), seed=1)
    of_mean, of_var = (
        mx.grad(lambda x, name=name: (getattr(forward(x, groups)[1], name) * v).sum())(x) for name in ("mean", "var")
    )
    of_each, count = exact(x).reshape(3, 20, groups or 6, -1), 20 * (6 // groups if groups else 1)
    weights = np.broadcast_to(exact(v)[:, None, :, None] / count, of_each.shape)
    close(of_mean, weights.reshape(x.shape), 10)
    close(of_var, (2 * weights * (of_each - of_each.mean((1, 3), keepdims=True))).reshape(x.shape), 10)


# States -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [0, 2])
def test_states(device: mx.Device, groups: int) -> None:
    x, dy = numbers((3, 4, 5, 6)), numbers((3, 4, 5, 6), seed=1)
    _, state = forward(x, groups, eps=0.25)
    assert state.op == ("group_norm" if groups else "instance_norm") and state.eps == 0.25
    assert state.mean.shape == state.var.shape == (3, groups or 6)
    assert state.dgamma.shape == state.dbeta.shape == (3, 6) and not exact(state.dgamma).any()
    dx, once = backward(dy, x, state)
    again, twice = backward(dy, x, once)
    assert same_bits(dx, again)
    assert same_bits(twice.dbeta, once.dbeta + once.dbeta) and same_bits(twice.dgamma, once.dgamma + once.dgamma)
    other = [a + 1 for a in state.arrays]
    assert state.with_arrays(other).arrays == tuple(other)
    with pytest.raises(ValueError, match="State: wrong number of arrays; got 2 arrays, expected 4"):
        state.with_arrays(other[:2])


@pytest.mark.parametrize("groups", [0, 2])
def test_empty_batches(device: mx.Device, groups: int) -> None:
    x = mx.zeros((0, 4, 5, 6))
    y, state = forward(x, groups)
    dx, state = backward(x, x, state)
    assert y.shape == dx.shape == x.shape
    assert state.mean.shape == (0, groups or 6) and state.dgamma.shape == (0, 6)


@pytest.mark.parametrize("groups", [0, 2])
def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype, groups: int) -> None:
    x, dy = numbers((5, 37, 41, 10), dtype), numbers((5, 37, 41, 10), dtype, 1)

    def everything() -> list[mx.array]:
        y, state = forward(x, groups)
        dx, state = backward(dy, x, state)
        return [y, dx, *state.arrays]

    first = everything()
    assert all(same_bits(a, b) for _ in range(4) for a, b in zip(everything(), first, strict=True))


# With an activation behind ------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [INSTANCE, 2])
@pytest.mark.parametrize("neuron", ["relu", "silu", mf.Neuron("celu", 0.5), "gelu_tanh", "prelu"], ids=str)
def test_an_activation_behind_is_neuron_and_its_gradient(
    device: mx.Device, dtype: mx.Dtype, groups: int, neuron: Any
) -> None:
    if neuron == "prelu" and dtype in (mx.float16, mx.bfloat16):
        pytest.skip("what a prelu is given is rounded to 16 bits, and its sign near 0")
    x, dy = numbers((2, 5, 6, 8), dtype), numbers((2, 5, 6, 8), dtype, 1)
    gamma, beta = numbers((8,), accumulator(dtype), 2), numbers((8,), accumulator(dtype), 3)
    how = mf.Neuron("prelu", numbers((8,), accumulator(dtype), 4)) if neuron == "prelu" else neuron

    def norm(x: mx.array, gamma: mx.array, beta: mx.array, neuron: Any = None) -> mx.array:
        if groups == INSTANCE:
            return mf.instance_norm(x, gamma, beta, neuron=neuron)
        return mf.group_norm(x, groups, gamma, beta, neuron=neuron)

    def apart(x: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
        return mf.neuron(norm(x, gamma, beta), *(how if isinstance(how, mf.Neuron) else (how,)))

    wide = [a.astype(mx.float64 if device == mx.Device(mx.cpu) else mx.float32) for a in (x, gamma, beta, dy)]
    if isinstance(how, mf.Neuron) and isinstance(how.a, mx.array):
        how = how._replace(a=how.a.astype(wide[0].dtype))
    (y,), of = mx.vjp(apart, wide[:3], wide[3:])
    size = np.abs(exact(y)).max()
    close(norm(x, gamma, beta, how), exact(y), size, slack=4)
    fwd, grad = (mf.instance_norm_fwd, mf.instance_norm_grad) if groups == INSTANCE else (None, mf.group_norm_grad)
    _, state = fwd(x, gamma, beta, neuron=how) if fwd else mf.group_norm_fwd(x, groups, gamma, beta, neuron=how)
    dx, state = grad(dy, x, state, gamma, beta, neuron=how)
    close(dx, exact(of[0]), np.abs(exact(of[0])).max(), slack=16)
    for got, want in ((state.dgamma.sum(0), of[1]), (state.dbeta.sum(0), of[2])):
        close(got, exact(want), np.abs(exact(want)).max() + 1, slack=16)
    pulled = mx.grad(lambda *a: (norm(*a, how) * dy).sum(), argnums=(0, 1, 2))(x, gamma, beta)
    for got, want in zip(pulled, of, strict=True):
        close(got, exact(want), np.abs(exact(want)).max() + 1, slack=16)


def _pushed(x: mx.array, gamma: mx.array, beta: mx.array, neuron: str) -> mx.array:
    """The tangent of a gradient behind an activation."""

    def pull(x: mx.array) -> mx.array:
        return mx.grad(lambda x: mx.square(mf.group_norm(x, 2, gamma, beta, neuron=neuron)).sum())(x)

    return mx.jvp(pull, [x], [numbers(tuple(x.shape), x.dtype, 7)])[1][0]


@pytest.mark.parametrize("neuron", ["relu", "silu", "gelu"])
def test_forward_mode_of_a_gradient_behind_an_activation(on_cpu: mx.Device, neuron: str) -> None:
    x, gamma, beta = (numbers(shape, mx.float64, i) for i, shape in enumerate(((2, 3, 4, 8), (8,), (8,))))
    way, step = numbers((2, 3, 4, 8), mx.float64, 7), 1e-6
    pull = mx.grad(lambda x: mx.square(mf.group_norm(x, 2, gamma, beta, neuron=neuron)).sum())
    quotient = (exact(pull(x + step * way)) - exact(pull(x - step * way))) / (2 * step)
    np.testing.assert_allclose(exact(_pushed(x, gamma, beta, neuron)), quotient, rtol=1e-5, atol=1e-6)


@pytest.mark.xfail(raises=IndexError, strict=True, reason="MLX does not compile it; docs/conventions.md says so")
def test_forward_mode_of_a_gradient_behind_a_curved_activation_compiles(on_cpu: mx.Device) -> None:
    x, gamma, beta = (numbers(shape, mx.float64, i) for i, shape in enumerate(((2, 3, 4, 8), (8,), (8,))))
    compiled = mx.compile(lambda x: _pushed(x, gamma, beta, "silu"))
    np.testing.assert_allclose(exact(compiled(x)), exact(_pushed(x, gamma, beta, "silu")), rtol=1e-9)
