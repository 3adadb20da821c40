"""PyTorch's activations, where they are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
F = torch.nn.functional

PAIRS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[Any], Any]]] = {
    "relu": (mf.relu, F.relu),
    "leaky_relu": (lambda x: mf.relu(x, 0.01), F.leaky_relu),
    "sigmoid": (mf.sigmoid, torch.sigmoid),
    "hardsigmoid": (lambda x: mf.hard_sigmoid(x, 1 / 6, 0.5), F.hardsigmoid),
    "tanh": (mf.tanh, torch.tanh),
    "softplus": (mf.softplus, F.softplus),
    "softplus with beta": (lambda x: mf.softplus(x, 1 / 3, 3), lambda x: F.softplus(x, beta=3, threshold=1000)),
    "softsign": (mf.softsign, F.softsign),
    "elu": (lambda x: mf.elu(x, 0.7), lambda x: F.elu(x, alpha=0.7)),
    "relu6": (lambda x: mf.relun(x, 0.0, 6.0), F.relu6),
    "gelu": (mf.gelu, F.gelu),
    "silu": (mf.silu, F.silu),
    "hardswish": (mf.hard_swish, F.hardswish),
    "mish": (mf.mish, F.mish),
    "gelu by a tanh": (mf.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "celu": (lambda x: mf.celu(x, 0.7), lambda x: F.celu(x, alpha=0.7)),
    "selu": (mf.selu, F.selu),
    "hardtanh": (lambda x: mf.hard_tanh(x, -0.5, 0.7), lambda x: F.hardtanh(x, -0.5, 0.7)),
    "hardshrink": (lambda x: mf.hard_shrink(x, 0.4), lambda x: F.hardshrink(x, 0.4)),
    "softshrink": (lambda x: mf.soft_shrink(x, 0.4), lambda x: F.softshrink(x, 0.4)),
    "logsigmoid": (mf.log_sigmoid, F.logsigmoid),
    "relu6 by its name": (mf.relu6, F.relu6),
    "glu": (lambda x: mf.glu(x, -1), lambda x: F.glu(x, -1)),
    "softmin": (mf.softmin, lambda x: F.softmin(x, -1)),
    "abs": (mf.absolute, torch.abs),
    "square": (lambda x: mf.power(x, c=2.0), torch.square),
    "exp2": (lambda x: mf.exponential(x, c=2.0), torch.exp2),
    "log2 of 1 + x * x": (lambda x: mf.logarithm(x * x, b=1.0, c=2.0), lambda x: torch.log2(x * x + 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_activations(name: str) -> None:
    ours, theirs = PAIRS[name]
    x, u = numbers((4, 5, 6), mx.float64) * 4, numbers((4, 5, 6), mx.float64, 2)
    source, v = (torch.tensor(exact(a), requires_grad=True) for a in (x, u))
    output = theirs(source)
    dy = numbers(tuple(output.shape), mx.float64, 1)
    g = torch.tensor(exact(dy), requires_grad=True)
    (y,), (dx,) = mx.vjp(ours, [x], [dy])
    np.testing.assert_allclose(exact(y), output.detach().numpy(), rtol=1e-12, atol=1e-12)
    (first,) = torch.autograd.grad(output, source, g, create_graph=True)
    exactly = {"hardsigmoid": 1e-7, "celu": 1e-6}.get(name, 1e-11)  # PyTorch has float32 there
    np.testing.assert_allclose(exact(dx), first.detach().numpy(), rtol=exactly, atol=1e-12)
    if name in ("hardsigmoid", "hardswish"):
        return  # whose second derivative PyTorch has not
    # Of piecewise straight lines it is zero, for which PyTorch may have no graph.
    found = torch.autograd.grad(first, (source, g), v, allow_unused=True)
    pull = lambda x, dy: mx.vjp(ours, [x], [dy])[1][0]  # noqa: E731
    _, second = mx.vjp(pull, [x, dy], [u])
    for a, tensor in zip(second, found, strict=True):
        expected = np.zeros(a.shape) if tensor is None else tensor.numpy(force=True)
        np.testing.assert_allclose(exact(a), expected, rtol=10 * exactly, atol=1e-11)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["relu", "sigmoid", "softplus", "elu", "tanh", "gelu", "relu6", "silu", "mish", "selu"]
)
def test_narrow_activations(name: str, dtype: mx.Dtype) -> None:
    """As close to PyTorch's float64 as the dtype allows, also where values are large."""
    ours, theirs = PAIRS[name]
    x = (numbers((500,), mx.float64) * 20).astype(dtype)
    expected = theirs(torch.tensor(exact(x))).numpy()
    unit = {mx.float32: 2.0**-21, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}[dtype]
    np.testing.assert_allclose(exact(ours(x)), expected, rtol=unit, atol=2.0**-22)


def test_prelu_and_the_gradient_of_its_slopes() -> None:
    x, dy = numbers((2, 5, 4, 3), mx.float64), numbers((2, 5, 4, 3), mx.float64, 1)
    slopes = numbers((3,), mx.float64, 2)
    source = torch.tensor(exact(x).transpose(0, 3, 1, 2), requires_grad=True)
    weight = torch.tensor(exact(slopes), requires_grad=True)
    output = F.prelu(source, weight)
    dx, dslopes = torch.autograd.grad(output, (source, weight), torch.tensor(exact(dy).transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(exact(mf.prelu(x, slopes)), output.detach().numpy().transpose(0, 2, 3, 1))
    ours = mf.prelu_grad(dy, x, slopes)
    np.testing.assert_allclose(exact(ours[0]), dx.numpy().transpose(0, 2, 3, 1), rtol=1e-12)
    np.testing.assert_allclose(exact(ours[1]), dslopes.numpy(), rtol=1e-12)
    _, pulled = mx.vjp(mf.prelu, [x, slopes], [dy])
    for a, e in zip(pulled, ours, strict=True):
        np.testing.assert_allclose(exact(a), exact(e), rtol=1e-14)


QUARTER = mx.array([0.25])
KINKS: list[tuple[str, Callable[[mx.array], mx.array], Callable[[Any], Any], float, float, float]] = [
    ("relu", mf.relu, F.relu, 0.0, 1.0, 0.0),
    ("leaky relu", lambda x: mf.relu(x, 0.25), lambda x: F.leaky_relu(x, 0.25), 0.0, 1.0, 0.25),
    ("relu6", lambda x: mf.relun(x, 0.0, 6.0), F.relu6, 0.0, 1.0, 0.0),
    ("relu6", lambda x: mf.relun(x, 0.0, 6.0), F.relu6, 6.0, 0.0, 0.0),
    ("prelu", lambda x: mf.prelu(x, QUARTER), lambda x: F.prelu(x, torch.tensor([0.25])), 0.0, 1.0, 0.25),
    ("elu", lambda x: mf.elu(x, 0.5), lambda x: F.elu(x, 0.5), 0.0, 1.0, 0.5),
    ("hard sigmoid", lambda x: mf.hard_sigmoid(x, 0.25, 0.5), lambda x: F.hardsigmoid(1.5 * x), 2.0, 0.25, 0.0),
    ("hard sigmoid", lambda x: mf.hard_sigmoid(x, 0.25, 0.5), lambda x: F.hardsigmoid(1.5 * x), -2.0, 0.25, 0.0),
    ("abs", mf.absolute, torch.abs, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "ours", "theirs", "x", "slope", "other"), KINKS)
def test_slopes_at_kinks(name: str, ours: Any, theirs: Any, x: float, slope: float, other: float) -> None:
    """The slopes that docs/families/activation.md lists, where the two differ."""
    source = torch.tensor([x], requires_grad=True)
    assert torch.autograd.grad(theirs(source).sum(), source)[0].item() == other
    assert mx.grad(lambda x: ours(x).sum())(mx.array([x])).item() == slope
