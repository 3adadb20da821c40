"""Activations behind convolutions and batch normalization: what comes out, what states keep, what gradients are."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import TOLERANCE, accumulator, close, exact, numbers, primitives, same_bits
from support.oracle import activation as oracle_activation
from support.oracle import convolution as oracle

import mpsfunc as mf

HOW: dict[str, Any] = {"stride": (2, 1), "padding": 1, "groups": 2}
SLOPES = mx.array([0.25, -0.5, 0.0, 1.0, 2.0, 0.125])
# Every type, with parameters that are not its own; sums below are less than 40.
NEURONS: dict[str, mf.Neuron] = {
    "none": mf.Neuron("none"),
    "relu": mf.Neuron("relu"),
    "leaking": mf.Neuron("relu", 0.25),
    "turned": mf.Neuron("relu", -0.25),
    "linear": mf.Neuron("linear", -1.5, 0.25),
    "sigmoid": mf.Neuron("sigmoid"),
    "hard_sigmoid": mf.Neuron("hard_sigmoid", 0.125),
    "tanh": mf.Neuron("tanh", 1.5, 0.25),
    "no tanh": mf.Neuron("tanh", 0.0, 0.25),
    "absolute": mf.Neuron("absolute"),
    "softplus": mf.Neuron("softplus", 0.5, -0.5),
    "softsign": mf.Neuron("softsign"),
    "elu": mf.Neuron("elu", 0.5),
    "no elu": mf.Neuron("elu", 0.0),
    "elu below": mf.Neuron("elu", -0.5),
    "prelu": mf.Neuron("prelu", SLOPES),
    "relun": mf.Neuron("relun", 0.5, 2.0),
    "power": mf.Neuron("power", 0.5, 0.25, 3),
    "exponential": mf.Neuron("exponential", 0.0625, -0.25),
    "logarithm": mf.Neuron("logarithm", 0.0625, 4.0, 2),
    "gelu": mf.Neuron("gelu"),
}
TOLD = {"relu", "leaking"}
each = pytest.mark.parametrize("name", NEURONS)


def arrays(dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    return numbers((2, 7, 6, 8), dtype), numbers((6, 3, 3, 4), dtype, 1), numbers((6,), dtype, 2)


def parameters(how: mf.Neuron) -> dict[str, Any]:
    return {"a": exact(how.a) if isinstance(how.a, mx.array) else how.a, "b": how.b, "c": how.c}


@each
def test_a_convolution_activates(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    how, (x, w, b) = NEURONS[name], arrays(dtype)
    y, state = mf.conv_fwd(x, w, b, neuron=how, **HOW)
    where = state.rows, state.cols, state.groups
    z = oracle.conv(exact(x), exact(w), exact(b), *where)
    sizes = oracle.conv(*(np.abs(exact(a)) for a in (x, w, b)), *where)
    expected, slope = (f(z, how.type, **parameters(how)) for f in (oracle_activation.neuron, oracle_activation.slope))
    once = 0 if name in TOLD else TOLERANCE[dtype] / TOLERANCE[accumulator(dtype)] * np.abs(z)  # rounded in between
    bound = (np.abs(slope) + 0.1) * (sizes + once) + np.abs(expected) + 1
    close(y, expected, bound, slack=3)


@each
def test_values_do_not_depend_on_who_looks_on(on_cpu: mx.Device, dtype: mx.Dtype, name: str) -> None:
    """The convolution's kernel applies an activation alone, and another one for who differentiates or keeps a state."""
    how, (x, w, b) = NEURONS[name], arrays(dtype)
    x[0, :2, :3] = mx.array([np.nan, np.inf, -np.inf]).astype(dtype)[:, None]
    whole = numbers((6, 7, 6, 8), dtype, 1)
    for function, forward, weights, more in (
        (mf.conv, mf.conv_fwd, w, HOW),
        (mf.conv_transpose, mf.conv_transpose_fwd, w, HOW),
        (mf.fully_connected, mf.fully_connected_fwd, whole, {}),
    ):

        def activated(x: mx.array, function: Any = function, weights: mx.array = weights, more: Any = more) -> mx.array:
            y: mx.array = function(x, weights, b, neuron=how, **more)
            return y

        y = activated(x)
        assert same_bits(forward(x, weights, b, neuron=how, **more)[0], y)
        assert same_bits(mx.compile(activated)(x), y)
        assert same_bits(mx.vjp(activated, [x], [mx.ones_like(y)])[0][0], y)


@each
def test_gradients_undo_the_activation(on_cpu: mx.Device, name: str) -> None:
    """The explicit pair, autodiff, and the operations one after the other, which are the same but for roundings."""
    how, (x, w, b) = NEURONS[name], arrays(mx.float64)
    y, state = mf.conv_fwd(x, w, b, neuron=how, **HOW)
    dy = numbers(tuple(y.shape), mx.float64, 3)

    def apart(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return mf.neuron(mf.conv(x, w, b, **HOW), *how)

    dx, grown = mf.conv_grad(dy, x, w, state)
    assert dx is not None
    for function in (apart, lambda *a: mf.conv(*a, neuron=how, **HOW)):
        (out,), pulled = mx.vjp(function, [x, w, b], [dy])
        for a, e in zip((y, dx, grown.dw, grown.db), (out, *pulled), strict=True):
            np.testing.assert_allclose(exact(a), exact(e), rtol=1e-11, atol=1e-11)
    assert same_bits(dx, mf.conv_grad_input(dy, w, state))
    assert same_bits(grown.dw, mf.conv_grad_weights(dy, x, state).dw)


@each
def test_gradients_of_transposed_and_connected_layers_undo_it(on_cpu: mx.Device, name: str) -> None:
    how = NEURONS[name]
    x, b = numbers((2, 4, 3, 4), mx.float64), numbers((6,), mx.float64, 2)
    taps, whole = numbers((6, 3, 2, 4), mx.float64, 1), numbers((6, 4, 3, 4), mx.float64, 3)
    for function, forward, backward, w in (
        (mf.conv_transpose, mf.conv_transpose_fwd, mf.conv_transpose_grad, taps),
        (mf.fully_connected, mf.fully_connected_fwd, mf.fully_connected_grad, whole),
    ):
        y, state = forward(x, w, b, neuron=how)
        plain = function(x, w, b)
        np.testing.assert_allclose(exact(y), exact(mf.neuron(plain, *how)), rtol=1e-11, atol=1e-11)
        dy = numbers(tuple(y.shape), mx.float64, 4)
        dx, grown = backward(dy, x, w, state)
        _, pulled = mx.vjp(lambda *a, f=function: f(*a, neuron=how), [x, w, b], [dy])
        for a, e in zip((dx, grown.dw, grown.db), pulled, strict=True):
            np.testing.assert_allclose(exact(a), exact(e), rtol=1e-11, atol=1e-11)


# States ---------------------------------------------------------------------------------------------------


@each
def test_a_state_keeps_one_image_that_tells_the_slope(on_cpu: mx.Device, name: str) -> None:
    how, (x, w, b) = NEURONS[name], arrays(mx.float32)
    y, state = mf.conv_fwd(x, w, b, neuron=how, **HOW)
    if name == "none":
        assert state.y.size == 0 and state.neuron == ""
        return
    assert (state.y is y) == (name in TOLD)
    if name not in TOLD:
        assert same_bits(state.y, mf.conv(x, w, b, **HOW))
    assert state.neuron == how.type
    known = [v for v in how[1:] if v is not None and not isinstance(v, mx.array)]
    assert [state.a, state.b, state.c][: len(known)] == known
    assert all(type(v) is float for v in (state.a, state.b, state.c))
    if name == "prelu":
        assert state.slopes is SLOPES
    else:
        assert state.slopes.size == 0


def test_a_name_means_the_defaults_of_its_type(on_cpu: mx.Device) -> None:
    x, w, b = arrays(mx.float32)
    for name in ("relun", "hard_sigmoid", "tanh", "gelu"):
        assert same_bits(mf.conv(x, w, b, neuron=name, **HOW), mf.conv(x, w, b, neuron=mf.Neuron(name), **HOW))
        assert same_bits(mf.batch_norm(x, neuron=name), mf.batch_norm(x, neuron=mf.Neuron(name)))
    _, state = mf.conv_fwd(x, w, neuron="relun", **HOW)
    assert (state.a, state.b, state.c) == (1.0, 6.0, 0.0)


def test_a_compiled_gradient_follows_the_parameters_of_a_state(on_cpu: mx.Device) -> None:
    x, w, _ = arrays(mx.float32)
    grad = mx.compile(mf.conv_grad_input)
    for how in (mf.Neuron("tanh", 2.0), mf.Neuron("tanh", 3.0), mf.Neuron("tanh", 3.0, 0.5), mf.Neuron("relu")):
        y, state = mf.conv_fwd(x, w, neuron=how, **HOW)
        np.testing.assert_allclose(
            exact(grad(mx.ones_like(y), w, state)),
            exact(mf.conv_grad_input(mx.ones_like(y), w, state)),
            rtol=1e-5,
            atol=1e-5,
        )


# What runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["relu", "sigmoid", "tanh", "elu", mf.Neuron("tanh", 0.0), mf.Neuron("elu", -0.5)], ids=str
)
def test_without_derivatives_the_convolution_activates(on_cpu: mx.Device, how: Any) -> None:
    x, w, b = arrays(mx.float32)
    assert "neuron" not in primitives(mf.conv(x, w, b, neuron=how, **HOW))
    assert "neuron" not in primitives(mf.conv_transpose(x, w, b, neuron=how, **HOW))
    assert "neuron" not in primitives(mf.fully_connected(x, numbers((6, 7, 6, 8)), b, neuron=how))


KERNELS = {"conv", "conv_grad_input", "neuron", "neuron_grad", "neuron_grad_from_output"}


@pytest.mark.parametrize(
    ("how", "forward", "backward"),
    [
        ("none", {"conv"}, {"conv_grad_input"}),
        ("relu", {"conv"}, {"conv_grad_input", "neuron_grad_from_output"}),
        ("sigmoid", {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
        (mf.Neuron("elu", 0.5), {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
        (mf.Neuron("elu", -0.5), {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
        (mf.Neuron("relu", -0.5), {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
        ("gelu", {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
        (mf.Neuron("prelu", SLOPES), {"conv", "neuron"}, {"conv_grad_input", "neuron_grad"}),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, mf.Neuron)) else "",
)
def test_what_a_result_tells_needs_no_kernel_of_its_own(
    on_cpu: mx.Device, how: Any, forward: set[str], backward: set[str]
) -> None:
    x, w, b = arrays(mx.float32)
    y, state = mf.conv_fwd(x, w, b, neuron=how, **HOW)
    assert primitives(y) & KERNELS == forward
    mx.eval(y, *state.arrays)
    assert primitives(mf.conv_grad_input(mx.ones_like(y), w, state)) & KERNELS == backward


# Slopes that are learned ----------------------------------------------------------------------------------


def test_slopes_get_a_gradient_from_autodiff_and_from_the_state(on_cpu: mx.Device) -> None:
    x, w, b = arrays(mx.float64)
    y, state = mf.conv_fwd(x, w, b, neuron=mf.Neuron("prelu", SLOPES), **HOW)
    dy = numbers(tuple(y.shape), mx.float64, 3)
    _, (dslopes,) = mx.vjp(lambda s: mf.conv(x, w, b, neuron=mf.Neuron("prelu", s), **HOW), [SLOPES], [dy])
    explicit = mf.prelu_grad(dy, state.y, state.slopes)[1]
    assert dslopes.dtype == mx.float32 and explicit.dtype == mx.float64
    np.testing.assert_allclose(exact(explicit), oracle_activation.slopes_grad(exact(dy), exact(state.y)), rtol=1e-12)
    np.testing.assert_allclose(exact(dslopes), exact(explicit), rtol=1e-6)


def test_mapped_slopes_of_a_convolution(on_cpu: mx.Device) -> None:
    x, w, b = arrays(mx.float64)
    many = mx.stack([SLOPES, 2 * SLOPES, SLOPES - 1]).astype(mx.float64)

    def run(slopes: mx.array) -> mx.array:
        return mf.conv(x, w, b, neuron=mf.Neuron("prelu", slopes), **HOW)

    y = mx.vmap(run)(many)
    for i in range(3):
        np.testing.assert_allclose(exact(y[i]), exact(run(many[i])), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["sigmoid", mf.Neuron("relu", 0.3), mf.Neuron("tanh", 1.3), "elu"], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_mapped_bias_is_rounded_behind_the_neuron(
    on_cpu: mx.Device, dtype: mx.Dtype, how: Any, transposed: bool
) -> None:
    function = mf.conv_transpose if transposed else mf.conv
    x, w = mx.zeros((1, 2, 2, 1), dtype), mx.ones((1, 1, 1, 1), dtype)
    b = -1 - mx.arange(64).reshape(64, 1) / 2**13  # of which sixteen bits have a few
    y = mx.vmap(lambda b: function(x, w, b, neuron=how))(b)
    assert same_bits(y, mx.stack([function(x, w, row, neuron=how) for row in b]))


def test_a_mapped_bias_finds_the_slope_of_a_relu_at_zero(on_cpu: mx.Device) -> None:
    x, w = mx.zeros((1, 2, 2, 1)), mx.ones((1, 1, 1, 1))
    for function in (mf.conv, mf.conv_transpose):
        mapped = mx.vmap(lambda b, f=function: f(x, w, b, neuron="relu"))
        assert mx.grad(lambda b, f=mapped: f(b).sum())(mx.array([[-1.0], [0.0], [1.0]])).tolist() == [[0], [0], [4]]


# Batch normalization --------------------------------------------------------------------------------------


@each
def test_batch_norm_activates(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    how, x = NEURONS[name], numbers((3, 5, 4, 6), dtype)
    dy, gamma, beta = numbers((3, 5, 4, 6), dtype, 1), numbers((6,), seed=2), numbers((6,), seed=3)
    state = mf.bn_stats(x.astype(accumulator(dtype)), eps=0.1)
    mean, var = exact(state.mean), exact(state.var)
    z = (exact(x) - mean) / np.sqrt(var + 0.1) * exact(gamma) + exact(beta)
    f, g, bent = (
        getattr(oracle_activation, what)(z, how.type, **parameters(how)) for what in ("neuron", "slope", "curvature")
    )
    off = (TOLERANCE[dtype] / TOLERANCE[accumulator(dtype)] if name == "prelu" else 1) * (np.abs(z) + 4)
    y = mf.bn_normalize(x, state, gamma, beta, neuron=how)
    close(y, f, (np.abs(g) + 0.1) * off + np.abs(f), slack=3)
    done = mf.bn_stats_grad(dy, x, state, gamma, beta, neuron=how)
    dz, xhat = exact(dy) * g, (exact(x) - mean) / np.sqrt(var + 0.1)
    each = np.abs(exact(dy)) * (np.abs(g) * (off if name == "prelu" else 4) + np.abs(bent) * 4)
    close(done.dbeta, dz.sum((0, 1, 2)), each.sum((0, 1, 2)), slack=3)
    close(done.dgamma, (dz * xhat).sum((0, 1, 2)), (each * (np.abs(xhat) + 1)).sum((0, 1, 2)), slack=3)
    count = 60
    dx = exact(gamma) / np.sqrt(var + 0.1) * (dz - exact(done.dbeta) / count - xhat * exact(done.dgamma) / count)
    scale = np.abs(exact(gamma)) / np.sqrt(var + 0.1) * (each + 2 * (each.sum((0, 1, 2)) / count) * (1 + np.abs(xhat)))
    close(mf.bn_grad(dy, x, done, gamma, beta, neuron=how), dx, scale, slack=3)


@each
def test_batch_norm_is_the_operations_one_after_the_other(on_cpu: mx.Device, name: str) -> None:
    how, x = NEURONS[name], numbers((3, 5, 4, 6), mx.float64)
    gamma, beta, dy = numbers((6,), mx.float64, 2), numbers((6,), mx.float64, 3), numbers((3, 5, 4, 6), mx.float64, 4)
    (y,), pulled = mx.vjp(lambda *a: mf.batch_norm(*a, neuron=how), [x, gamma, beta], [dy])
    (out,), apart = mx.vjp(lambda *a: mf.neuron(mf.batch_norm(*a), *how), [x, gamma, beta], [dy])
    for a, e in zip((y, *pulled), (out, *apart), strict=True):
        np.testing.assert_allclose(exact(a), exact(e), rtol=1e-10, atol=1e-10)
    state = mf.bn_stats_grad(dy, x, mf.bn_stats(x), gamma, beta, neuron=how)
    explicit = mf.bn_grad(dy, x, state, gamma, beta, neuron=how), state.dgamma, state.dbeta
    for a, e in zip(explicit, pulled, strict=True):
        np.testing.assert_allclose(exact(a), exact(e), rtol=1e-10, atol=1e-10)


def test_the_slope_at_a_kink_is_that_of_the_activation_itself(device: mx.Device) -> None:
    """But for a plain relu behind a convolution, which has only its result to go by."""
    x, one = mx.array([0.0]).reshape(1, 1, 1, 1), mx.ones((1, 1, 1, 1))
    frozen = mf.bn_frozen(mx.zeros(1), mx.ones(1), eps=0.0)
    for how, slope in (("relu", 1), (mf.Neuron("relu", 0.5), 1), ("elu", 1), ("absolute", 0), ("relun", 1)):
        convolved = mx.grad(lambda x, how=how: mf.conv(x, one, neuron=how).sum())(x).item()
        normalized = mx.grad(lambda x, how=how: mf.bn_normalize(x, frozen, neuron=how).sum())(x).item()
        assert normalized == slope
        assert convolved == (0 if how == "relu" else slope)


@pytest.mark.parametrize("a", [1e-25, 1e-15, 1e15, 1e30, -1e25])
def test_a_tanh_of_any_height_has_its_slope(on_cpu: mx.Device, a: float) -> None:
    """What is squared to tell a slope from a result must not leave float32."""
    x, w = mx.full((1, 1, 1, 1), 0.5), mx.ones((1, 1, 1, 1))
    how = mf.Neuron("tanh", a, 1.0)
    slope = mx.grad(lambda x: mf.conv(x, w, neuron=how).sum())(x).item()
    np.testing.assert_allclose(slope, a / np.cosh(0.5) ** 2, rtol=1e-6)
    y, state = mf.conv_fwd(x, w, neuron=how)
    np.testing.assert_allclose(mf.conv_grad_input(mx.ones_like(y), w, state).item(), slope, rtol=1e-6)
