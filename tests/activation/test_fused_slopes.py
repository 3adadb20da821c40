"""Slopes of activations that saturate, behind convolutions: exact wherever the dtype has numbers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, SMALLEST, TOLERANCE, exact, numbers, same_bits
from support.oracle import activation as oracle_activation

import mpsfunc as mf
from mpsfunc import nn


class Op(NamedTuple):
    """An operation on images (1, 1, 1, n) whose weights let each number pass as it is."""

    forward: Callable[..., mx.array]
    fwd: Callable[..., Any]
    grad: Callable[..., Any]


OPS: dict[str, Op] = {
    "conv": Op(mf.conv, mf.conv_fwd, mf.conv_grad),
    "conv_transpose": Op(mf.conv_transpose, mf.conv_transpose_fwd, mf.conv_transpose_grad),
    "fully_connected": Op(mf.fully_connected, mf.fully_connected_fwd, mf.fully_connected_grad),
}
HOW: dict[str, mf.Neuron] = {
    "sigmoid": mf.Neuron("sigmoid"),
    "tanh": mf.Neuron("tanh"),
    "tanh of two": mf.Neuron("tanh", 1.5, 0.5),
    "elu": mf.Neuron("elu"),
    "elu of half": mf.Neuron("elu", 0.5),
}
# Up to where each slope is less than any number of the dtype, and beyond.
FAR = {mx.float16: 24.0, mx.bfloat16: 120.0, mx.float32: 120.0, mx.float64: 760.0}
each_op = pytest.mark.parametrize("op", OPS)
each_how = pytest.mark.parametrize("how", HOW)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def points(dtype: mx.Dtype) -> mx.array:
    """z on both sides, dense around 0 and out to where slopes underflow; all of them numbers of the dtype."""
    near, far = np.linspace(-9.5, 9.5, 77), np.linspace(10, FAR[dtype], 40)
    z = np.concatenate([near, far, -far, [-1e-3, 1e-3, 17.0, -17.0, -40.0, -6.0, -9.0]])
    return mx.array(z, mx.float64 if dtype == mx.float64 else mx.float32).astype(dtype)


def one_by_one(z: mx.array) -> tuple[mx.array, mx.array]:
    """Images and weights whose sums are z: each its own image of one pixel."""
    return z.reshape(-1, 1, 1, 1), mx.ones((1, 1, 1, 1), z.dtype)


def slopes(z: mx.array, how: mf.Neuron) -> np.ndarray:
    """The textbook's, of tanh by a formula that does not cancel."""
    if how.type == "tanh":
        a, b = 1.0 if how.a is None else how.a, 1.0 if how.b is None else how.b
        falling = np.exp(-np.abs(b * exact(z)))
        return np.asarray(a * b * (2 * falling / (1 + falling * falling)) ** 2)
    return np.asarray(oracle_activation.slope(exact(z), how.type, a=how.a))


def right(got: mx.array, z: mx.array, expected: np.ndarray, roundings: float = 8) -> None:
    """Equal but for roundings, however small it is; less than the smallest normal number may be 0."""
    values, smallest = exact(got.reshape(-1)), {mx.float16: SMALLEST, mx.float64: 1e-307}.get(got.dtype, 1.2e-38)
    wrong = ~(np.abs(values - expected) <= roundings * TOLERANCE[got.dtype] * np.abs(expected) + smallest)
    at = np.argwhere(wrong)[:1, 0]
    assert not wrong.any(), f"z = {exact(z)[at]}: {values[at]}, expected {expected[at]}, one of {wrong.sum()}"


F64, F32, F16, BF16 = mx.float64, mx.float32, mx.float16, mx.bfloat16
WORKED = [
    ("elu", BF16, -6.0, 2.4788e-3), ("elu", BF16, -9.0, 1.2341e-4), ("elu", F64, -40.0, 4.24835e-18),
    ("elu", F32, -20.0, 2.06115e-9), ("sigmoid", F32, 17.0, 4.13994e-8), ("sigmoid", F64, 40.0, 4.24835e-18),
    ("sigmoid", BF16, 9.0, 1.23379e-4), ("sigmoid", F16, 9.0, 1.23379e-4), ("tanh", F32, 10.0, 8.24461e-9),
    ("tanh", F32, -10.0, 8.24461e-9), ("tanh", F64, 20.0, 1.69934e-17), ("tanh", BF16, 4.0, 1.34095e-3),
]  # fmt: skip


@each_op
@pytest.mark.parametrize(("name", "dtype", "z", "slope"), WORKED)
def test_worked_slopes(on_cpu: mx.Device, op: str, name: str, dtype: mx.Dtype, z: float, slope: float) -> None:
    x, w = one_by_one(mx.array([z], dtype))
    y, state = OPS[op].fwd(x, w, neuron=name)
    dx, grown = OPS[op].grad(mx.ones_like(y), x, w, state)
    pulled = mx.grad(lambda x: OPS[op].forward(x, w, neuron=name).sum())(x)
    for got in (dx, grown.db, pulled):
        assert abs(exact(got).item() / slope - 1) < max(1e-5, 2 * TOLERANCE[dtype])


@each_op
@each_how
@each_dtype
def test_slopes_are_exact_where_results_saturate(on_cpu: mx.Device, op: str, how: str, dtype: mx.Dtype) -> None:
    z, neuron = points(dtype), HOW[how]
    (x, w), expected = one_by_one(z), slopes(z, neuron)
    y, state = OPS[op].fwd(x, w, neuron=neuron)
    assert same_bits(OPS[op].forward(x, w, neuron=neuron), y)
    right(OPS[op].grad(mx.ones_like(y), x, w, state)[0], z, expected)

    def activated(x: mx.array) -> mx.array:
        return OPS[op].forward(x, w, neuron=neuron)

    out, (dx,) = mx.vjp(activated, [x], [mx.ones_like(x)])
    assert same_bits(out[0], y)
    assert same_bits(mx.compile(activated)(x), y)
    right(dx, z, expected)
    right(mx.jvp(activated, [x], [mx.ones_like(x)])[1][0], z, expected)
    right(mx.compile(mx.grad(lambda x: activated(x).sum()))(x), z, expected)
    right(mx.vmap(mx.grad(lambda x: activated(x[None]).sum()))(x), z, expected)


@each_op
@each_how
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_sums_of_16_bits_are_rounded_before_they_are_activated(
    on_cpu: mx.Device, op: str, how: str, dtype: mx.Dtype
) -> None:
    """The sums are no numbers of the dtype, and results and slopes those of a convolution with a neuron behind it."""
    x, w = numbers((2, 1, 1, 24), dtype) * 3, numbers((8, 1, 1, 24), dtype, 1)
    z, neuron = OPS[op].forward(x, w), HOW[how]
    y, state = OPS[op].fwd(x, w, neuron=neuron)
    assert same_bits(y, mf.neuron(z, *neuron))
    assert same_bits(y, OPS[op].forward(x, w, neuron=neuron))
    bent = mf.neuron_grad(mx.ones_like(z), z, *neuron)
    plain = OPS[op].grad(bent, x, w, OPS[op].fwd(x, w)[1])[0]
    assert same_bits(OPS[op].grad(mx.ones_like(y), x, w, state)[0], plain)


@each_op
@each_how
def test_second_derivatives_are_exact_where_results_saturate(on_cpu: mx.Device, op: str, how: str) -> None:
    z, neuron = points(mx.float64), HOW[how]
    x, w = one_by_one(z)
    b = 1.0 if neuron.b is None else neuron.b
    at, slope = exact(z), slopes(z, neuron)
    expected = {
        "elu": np.where(at < 0, slope, 0),
        "sigmoid": -slope * np.tanh(at / 2),
        "tanh": -2 * b * np.tanh(b * at) * slope,
    }[neuron.type]

    def first(x: mx.array) -> mx.array:
        return mx.grad(lambda x: OPS[op].forward(x, w, neuron=neuron).sum())(x)

    right(mx.grad(lambda x: first(x).sum())(x), z, expected, 64)
    right(mx.jvp(first, [x], [mx.ones_like(x)])[1][0], z, expected, 64)

    def explicit(x: mx.array) -> mx.array:
        y, state = OPS[op].fwd(x, w, neuron=neuron)
        return OPS[op].grad(mx.ones_like(y), x, w, state)[0]

    right(mx.grad(lambda x: explicit(x).sum())(x), z, expected, 64)


@each_dtype
@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "ELU"])
def test_fused_layers_have_them_too(on_cpu: mx.Device, kind: str, dtype: mx.Dtype) -> None:
    z = points(dtype)
    x = z.reshape(-1, 1, 1, 1)
    for layer in (nn.Conv2d(1, 1, 1, bias=False), nn.ConvTranspose2d(1, 1, 1, bias=False), nn.Linear(1, 1, bias=False)):
        layer.weight = mx.ones(layer.weight.shape, dtype)
        chain = nn.Sequential(layer, getattr(nn, kind)())
        assert nn.convert(chain).fused == {"layers.0": "layers.1"}
        right(mx.grad(lambda x, chain=chain: chain(x).sum())(x), z, slopes(z, mf.Neuron(kind.lower())))
