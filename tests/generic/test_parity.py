"""PyTorch's functions of sequences (n, c, l), where they are ours, with gradients and gradient penalties."""

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
F: Any = torch.nn.functional


def theirs(a: mx.array) -> Any:
    """Sequences and weights with channels in the middle; a vector as it is."""
    values = exact(a)
    return torch.tensor(values.swapaxes(1, 2).copy() if values.ndim == 3 else values, requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    values = tensor.detach().numpy()
    values = values.swapaxes(1, 2) if values.ndim == 3 else values
    np.testing.assert_allclose(exact(ours), values, rtol=1e-9, atol=1e-10)


def compare(function: Callable[..., mx.array], other: Callable[..., Any], *arrays: mx.array) -> None:
    """Results, gradients of all arguments, and those of the norm of a gradient."""
    tensors = [theirs(a) for a in arrays]
    agree(function(*arrays), other(*tensors))
    every = tuple(range(len(arrays)))

    def slopes(f: Callable[..., mx.array]) -> tuple[mx.array, ...]:
        made = mx.grad(f, argnums=every)(*arrays)
        return made if isinstance(made, tuple) else (made,)

    def penalty(*arrays: mx.array) -> mx.array:
        slope = mx.grad(lambda *a: (function(*a) ** 3).sum())(*arrays)
        return (slope * slope).sum()

    first = torch.autograd.grad((other(*tensors) ** 3).sum(), tensors, create_graph=True)
    for mine, tensor in zip(slopes(lambda *a: (function(*a) ** 3).sum()), first, strict=True):
        agree(mine, tensor)
    second = torch.autograd.grad((first[0] ** 2).sum(), tensors, allow_unused=True, materialize_grads=True)
    for mine, tensor in zip(slopes(penalty), second, strict=True):
        values = tensor.numpy().swapaxes(1, 2) if tensor.ndim == 3 else tensor.numpy()
        np.testing.assert_allclose(exact(mine), values, rtol=1e-8, atol=1e-8 * max(1.0, abs(values).max()))


X, B = numbers((2, 11, 4), mx.float64), numbers((6,), mx.float64, 2)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"padding": 2, "stride": 3},
        {"padding": 1, "dilation": 2, "groups": 2},
        {"stride": 2, "groups": 2},
    ],
    ids=str,
)
def test_conv1d(how: dict[str, Any]) -> None:
    w = numbers((6, 3, 4 // how.get("groups", 1)), mx.float64, 1)
    compare(lambda *a: mf.conv1d(*a, **how), lambda *a: F.conv1d(*a, **how), X, w, B)


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch warns that an even kernel makes it copy
def test_conv1d_of_the_same_length(kernel: int) -> None:
    w = numbers((6, kernel, 4), mx.float64, 1)
    how: dict[str, Any] = {"padding": "same", "dilation": 3}
    compare(lambda *a: mf.conv1d(*a, **how), lambda *a: F.conv1d(*a, **how), X, w, B)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes_of_layers(mode: Any) -> None:
    layer = torch.nn.Conv1d(4, 6, 3, stride=2, padding=3, padding_mode=mode, dtype=torch.float64)
    w = mx.array(layer.weight.detach().numpy().swapaxes(1, 2), mx.float64)
    b = mx.array(layer.bias.detach().numpy(), mx.float64)
    agree(mf.conv1d(X, w, b, stride=2, padding=3, padding_mode=mode), layer(theirs(X)))
    ours = mf.nn.Conv1d(4, 6, 3, stride=2, padding=3, padding_mode=mode)
    ours.update({"weight": w, "bias": b})
    agree(ours(X), layer(theirs(X)))


@pytest.mark.parametrize(
    "how",
    [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2}, {"groups": 2, "stride": 2}],
    ids=str,
)
def test_conv_transpose1d(how: dict[str, Any]) -> None:
    """PyTorch's weights (i, o / groups, k) are ours (o, k, i / groups) with both exchanged in each group."""
    groups = how.get("groups", 1)
    w = numbers((6, 3, 4 // groups), mx.float64, 1)

    def other(x: Any, w: Any, b: Any) -> Any:  # w is (o, i / groups, k) here
        split = w.reshape(groups, 6 // groups, 4 // groups, 3)
        return F.conv_transpose1d(x, split.transpose(1, 2).reshape(4, 6 // groups, 3), b, **how)

    compare(lambda *a: mf.conv_transpose1d(*a, **how), other, X, w, B)
    layer = mf.nn.ConvTranspose1d(4, 6, 3, **how)
    layer.update({"weight": w, "bias": B})
    agree(layer(X), other(*map(theirs, (X, w, B))))


POOLINGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True},
]


@pytest.mark.parametrize("how", POOLINGS, ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["count_include_pad", "exclude"])
def test_avg_pool1d(how: dict[str, Any], counted: bool) -> None:
    edges: dict[str, Any] = {"edge_mode": "clamp", "zero_pad": how.get("padding", 0) if counted else 0}
    compare(
        lambda x: mf.avg_pool1d(x, **how, **edges),
        lambda x: F.avg_pool1d(x, **how, count_include_pad=counted),
        X,
    )


@pytest.mark.parametrize("how", POOLINGS, ids=str)
def test_max_pool1d(how: dict[str, Any]) -> None:
    compare(lambda x: mf.max_pool1d(x, **how), lambda x: F.max_pool1d(x, **how), X)


def test_dilated_maxima() -> None:
    how: dict[str, Any] = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}
    compare(lambda x: mf.max_pool1d(x, **how), lambda x: F.max_pool1d(x, **how), X)


@pytest.mark.parametrize("how", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2}], ids=str)
def test_l2_pool1d(how: dict[str, Any]) -> None:
    compare(lambda x: mf.l2_pool1d(x, **how), lambda x: F.lp_pool1d(x, 2.0, **how), X)


@pytest.mark.parametrize("length", [1, 3, 11, 13])
def test_adaptive_pools(length: int) -> None:
    compare(lambda x: mf.avg_pool1d(x, "adaptive", out_size=length), lambda x: F.adaptive_avg_pool1d(x, length), X)
    compare(lambda x: mf.max_pool1d(x, "adaptive", out_size=length), lambda x: F.adaptive_max_pool1d(x, length), X)


def test_norms() -> None:
    gamma, beta = numbers((4,), mx.float64, 2), numbers((4,), mx.float64, 3)
    compare(
        lambda *a: mf.batch_norm1d(*a, eps=1e-3),
        lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True, eps=1e-3),
        *(X, gamma, beta),
    )
    compare(
        lambda *a: mf.instance_norm1d(*a, eps=1e-3),
        lambda x, g, b: F.instance_norm(x, weight=g, bias=b, eps=1e-3),
        *(X, gamma, beta),
    )
    compare(
        lambda x, g, b: mf.group_norm1d(x, 2, g, b, eps=1e-3),
        lambda x, g, b: F.group_norm(x, 2, g, b, eps=1e-3),
        *(X, gamma, beta),
    )


def test_layers_of_norms_take_sequences() -> None:
    batch, other = mf.nn.BatchNorm(4, momentum=0.3), torch.nn.BatchNorm1d(4, momentum=0.3, dtype=torch.float64)
    batch.set_dtype(mx.float64)
    for _ in range(2):
        agree(batch(X), other(theirs(X)))
    agree(batch["running_mean"], other.running_mean)
    agree(batch["running_var"], other.running_var)
    agree(batch.eval()(X), other.eval()(theirs(X)))
    agree(mf.nn.InstanceNorm(4)(X), torch.nn.InstanceNorm1d(4, dtype=torch.float64)(theirs(X)))
    agree(mf.nn.GroupNorm(2, 4, pytorch_compatible=True)(X), torch.nn.GroupNorm(2, 4, dtype=torch.float64)(theirs(X)))
