"""Convolutions that apply their neuron themselves, and the options of MPS's one gradient kernel."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, primitives, same_bits
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc.channels.activation_spec import NAMES
from mpsfunc.core import operation

HOW: dict[str, Any] = {"stride": (2, 1), "padding": 1, "groups": 2}
GRADIENTS = {"conv_grad_input", "conv_grad_weights", "conv_grad_bias", "neuron_grad_from_output"}


def arrays(dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    return numbers((2, 7, 6, 8), dtype), numbers((6, 3, 3, 4), dtype, 1), numbers((6,), dtype, 2)


@pytest.mark.parametrize("edge_mode", ["zero", "clamp"])
def test_a_relu_and_its_slope(device: mx.Device, dtype: mx.Dtype, edge_mode: str) -> None:
    x, w, b = arrays(dtype)
    y, state = mf.conv_fwd(x, w, b, neuron="relu", edge_mode=edge_mode, **HOW)
    where = state.rows, state.cols, state.groups
    z = oracle.conv(exact(x), exact(w), exact(b), *where)
    sizes = oracle.conv(*(np.abs(exact(a)) for a in (x, w, b)), *where)
    close(y, np.maximum(z, 0), sizes)
    dy = numbers(tuple(y.shape), dtype, 3)
    dz, scale = np.where(exact(y) > 0, exact(dy), 0), np.abs(exact(dy))
    grown = mf.conv_grad_weights(dy, x, state)
    close(
        mf.conv_grad_input(dy, w, state),
        oracle.conv_grad_input(dz, exact(w), *where),
        oracle.conv_grad_input(scale, np.abs(exact(w)), *where),
    )
    close(
        grown.dw,
        oracle.conv_grad_weights(dz, exact(x), *where),
        oracle.conv_grad_weights(scale, np.abs(exact(x)), *where),
    )
    close(grown.db, oracle.conv_grad_bias(dz), oracle.conv_grad_bias(scale))


def test_a_relu_keeps_nan_and_has_no_slope_at_zero(device: mx.Device) -> None:
    x = mx.array([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0]).reshape(7, 1, 1, 1)
    y, state = mf.conv_fwd(x, mx.ones((1, 1, 1, 1)), neuron="relu")
    np.testing.assert_array_equal(exact(y).ravel(), [np.nan, np.inf, 0, 0, 0, 1, 0])
    dx = exact(mf.conv_grad_input(mx.ones_like(y), mx.ones((1, 1, 1, 1)), state)).ravel()
    assert dx.tolist() == [0, 1, 0, 0, 0, 1, 0]


def test_autodiff_is_the_explicit_pair(on_cpu: mx.Device) -> None:
    x, w, b = arrays(mx.float64)
    y, state = mf.conv_fwd(x, w, b, neuron="relu", **HOW)
    dy = numbers(tuple(y.shape), mx.float64, 3)
    _, (dx, dw, db) = mx.vjp(lambda *a: mf.conv(*a, neuron="relu", **HOW), [x, w, b], [dy])
    explicit, grown = mf.conv_grad(dy, x, w, state)
    assert explicit is not None
    for a, e in ((explicit, dx), (grown.dw, dw), (grown.db, db)):
        np.testing.assert_allclose(exact(a), exact(e), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("images_mapped", [False, True])
def test_a_mapped_bias_is_rounded_once(
    on_cpu: mx.Device, dtype: mx.Dtype, images_mapped: bool, transposed: bool
) -> None:
    """What does not fit the image's dtype without its bias does so with it."""
    function = mf.conv_transpose if transposed else mf.conv
    x = mx.full((3, 1, 2, 2, 1) if images_mapped else (1, 2, 2, 1), 60000.0).astype(dtype)
    w, b = mx.full((1, 1, 1, 1), 2.0).astype(dtype), mx.array([[-80000.0], [-70000.0], [-61000.0]])
    axes = (0 if images_mapped else None, None, 0)
    y = mx.vmap(lambda x, w, b: function(x, w, b, neuron="relu"), in_axes=axes)(x, w, b)
    for i in range(3):
        assert same_bits(y[i], function(x[i] if images_mapped else x, w, b[i], neuron="relu"))


def test_the_state_keeps_the_result_and_no_copy_of_it() -> None:
    x, w, b = arrays(mx.float32)
    y, state = mf.conv_fwd(x, w, b, neuron="relu", **HOW)
    assert state.y is y and state.neuron == "relu"
    _, plain = mf.conv_fwd(x, w, b, **HOW)
    assert plain.y.size == 0 and plain.neuron == ""


# What runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "runs"),
    [
        ("data", {"neuron_grad_from_output", "conv_grad_input"}),
        ("weights_and_bias", {"neuron_grad_from_output", "conv_grad_weights"}),
        ("all", {"neuron_grad_from_output", "conv_grad_input", "conv_grad_weights"}),
    ],
)
def test_an_option_runs_what_it_names(on_cpu: mx.Device, option: str, runs: set[str]) -> None:
    x, w, b = arrays(mx.float32)
    y, state = mf.conv_fwd(x, w, b, neuron="relu", **HOW)
    mx.eval(y)
    dy = numbers(tuple(y.shape), seed=3)
    dx, grown = mf.conv_grad(dy, x, w, state, option=option)
    assert primitives(*([] if dx is None else [dx]), grown.dw, grown.db) & GRADIENTS == runs
    if option == "weights_and_bias":
        assert dx is None
    else:
        assert dx is not None and same_bits(dx, mf.conv_grad_input(dy, w, state))
    if option == "data":
        assert grown is state
    else:
        apart = mf.conv_grad_weights(dy, x, state)
        assert same_bits(grown.dw, apart.dw) and same_bits(grown.db, apart.db)


@pytest.mark.parametrize("neuron", [None, "relu"])
def test_a_first_layer_never_makes_the_gradient_of_its_images(on_cpu: mx.Device, neuron: str | None) -> None:
    """Two layers: of the second all three gradients run, of the first only those of its parameters."""
    x = numbers((2, 8, 8, 3))
    params = [
        numbers((4, 3, 3, 3), seed=1),
        numbers((4,), seed=2),
        numbers((4, 3, 3, 4), seed=3),
        numbers((4,), seed=4),
    ]

    def loss(w1: mx.array, b1: mx.array, w2: mx.array, b2: mx.array) -> mx.array:
        y = mf.conv(mf.conv(x, w1, b1, neuron=neuron), w2, b2, neuron=neuron)
        return (y * y).sum()

    counts = launches(*mx.grad(loss, argnums=(0, 1, 2, 3))(*params))
    slopes = 0 if neuron is None else 2
    assert counts == {
        "conv": 2, "conv_grad_input": 1, "conv_grad_weights": 2, "conv_grad_bias": 2, "neuron_grad_from_output": slopes,
    }  # fmt: skip


def launches(*outputs: mx.array) -> dict[str, int]:
    """How often evaluating the outputs would run each operation of convolutions."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    nodes = re.findall(r'label ?= ?"(\w+)"', dot.getvalue())
    return {name: nodes.count(name) for name in ("conv", *sorted(GRADIENTS))}


# Any activation -----------------------------------------------------------------------------------------

# Of x, w and groups, each for another kernel: many channels, few, single pixels many and few, depthwise by tiles,
# of two outputs a channel and of few channels, grouped, Winograd's algorithm.
KERNELS = {
    "product": ((2, 9, 7, 33), (50, 3, 1, 33), 1),
    "lines": ((2, 9, 11, 3), (20, 3, 3, 3), 1),
    "pixels": ((1, 40, 45, 24), (40, 1, 1, 24), 1),
    "few pixels": ((3, 1, 1, 520), (1000, 1, 1, 520), 1),
    "depthwise": ((2, 9, 11, 40), (40, 3, 3, 1), 40),
    "depthwise of two": ((2, 5, 6, 20), (40, 3, 2, 1), 20),
    "depthwise of few": ((2, 9, 11, 5), (5, 3, 3, 1), 5),
    "grouped": ((2, 6, 7, 8), (8, 3, 3, 4), 2),
    "winograd": ((2, 20, 20, 64), (64, 3, 3, 64), 1),
}
ANY = [name for name in NAMES if name != "prelu"]


@pytest.mark.parametrize("name", ANY)
def test_a_kernel_applies_any_activation(
    isa: str, on_cpu: mx.Device, name: Any, threads: Callable[[int], None]
) -> None:
    """The bits of the activation by itself, in one pass, for any number of threads."""
    for kind, (x_shape, w_shape, groups) in KERNELS.items():
        for dtype in (mx.float32, mx.float64):
            x, w, b = numbers(x_shape, dtype), numbers(w_shape, dtype, 1), numbers(w_shape[:1], dtype, 2)
            how: Any = {"groups": groups, "padding": "same"}
            y = mf.conv(x, w, b, neuron=name, **how)
            assert "neuron" not in primitives(y), kind
            apart = mf.neuron(mf.conv(x, w, b, **how), name)
            assert same_bits(y, apart), (kind, dtype)
            threads(1)
            assert same_bits(mf.conv(x, w, b, neuron=name, **how), apart), (kind, dtype)
            threads(2)


@pytest.mark.parametrize("name", ANY)
def test_a_transposed_kernel_applies_any_activation(isa: str, on_cpu: mx.Device, name: Any) -> None:
    x, w, b = numbers((2, 5, 6, 7)), numbers((20, 3, 3, 7), seed=1), numbers((20,), seed=2)
    y = mf.conv_transpose(x, w, b, stride=2, padding=1, neuron=name)
    assert "neuron" not in primitives(y)
    assert same_bits(y, mf.neuron(mf.conv_transpose(x, w, b, stride=2, padding=1), name))


@pytest.mark.parametrize("name", ["silu", "hard_swish", "relu6", "relu"])
@pytest.mark.parametrize("transposed", [False, True])
def test_inference_has_the_derivatives(on_cpu: mx.Device, transposed: bool, name: Any) -> None:
    """What a compiled function applies in the same kernel has the gradients, tangents and maps that it has apart."""
    x, w, b = numbers((2, 5, 6, 4), mx.float64), numbers((6, 3, 3, 4), mx.float64, 1), numbers((6,), mx.float64, 2)

    def function(*arrays: mx.array) -> mx.array:
        return (mf.conv_transpose if transposed else mf.conv)(*arrays, padding=1, neuron=name)

    def meant(*arrays: mx.array) -> mx.array:
        with operation.for_inference():
            return function(*arrays)

    compiled = mx.compile(meant)(x, w, b)
    assert "neuron" not in primitives(compiled)
    assert name == "relu" or "neuron" in primitives(mx.compile(function)(x, w, b))
    assert same_bits(compiled, function(x, w, b))
    tangents = [numbers(a.shape, mx.float64, 5 + i) for i, a in enumerate((x, w, b))]

    def found(of: Callable[..., mx.array]) -> list[mx.array]:
        grads = mx.grad(lambda *a: (of(*a) ** 2).sum(), argnums=(0, 1, 2))
        twice = mx.grad(lambda w: (grads(x, w, b)[0] ** 2).sum())(w)
        each = mx.vmap(of, in_axes=(None, None, 0))(x, w, mx.stack([b, 2 * b]))
        return [*grads(x, w, b), twice, each, mx.jvp(of, [x, w, b], tangents)[1][0]]

    for got, expected in zip(found(meant), found(function), strict=True):
        np.testing.assert_allclose(exact(got), exact(expected), rtol=1e-11, atol=1e-11)


def test_sixteen_bits_round_ahead_of_an_activation(on_cpu: mx.Device) -> None:
    x, w, b = arrays(mx.float16)
    assert same_bits(mf.conv(x, w, b, neuron="silu", **HOW), mf.silu(mf.conv(x, w, b, **HOW)))
