"""PyTorch's normalizations, where they are ours."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers
from support.parity import agree, backward, theirs

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]


@pytest.mark.parametrize("shape", [(4, 5, 6, 3), (2, 1, 7, 8)], ids=str)
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x, dy = numbers(shape, mx.float64), numbers(shape, mx.float64, 1)
    gamma, beta = numbers(shape[3:], mx.float64, 2), numbers(shape[3:], mx.float64, 3)
    source, scale, shift = (theirs(a) for a in (x, gamma, beta))
    output = torch.nn.functional.batch_norm(source, None, None, scale, shift, training=True, eps=1e-3)
    y, state = mf.batch_norm_fwd(x, gamma, beta, eps=1e-3)
    agree(y, output)
    state = mf.bn_stats_grad(dy, x, state)
    ours = (mf.bn_grad(dy, x, state, gamma), state.dgamma, state.dbeta)
    for mine, tensor in zip(ours, backward(output, dy, source, scale, shift), strict=True):
        agree(mine, tensor)


def test_frozen_batch_norm() -> None:
    x, dy = numbers((3, 4, 5, 6), mx.float64), numbers((3, 4, 5, 6), mx.float64, 1)
    mean, var, gamma = numbers((6,), mx.float64, 2), abs(numbers((6,), mx.float64, 3)), numbers((6,), mx.float64, 4)
    source, scale = theirs(x), theirs(gamma)
    held = (torch.tensor(exact(mean)), torch.tensor(exact(var)))
    output = torch.nn.functional.batch_norm(source, *held, scale, training=False, eps=1e-5)
    state = mf.bn_frozen(mean, var)
    agree(mf.bn_normalize(x, state, gamma), output)
    state = mf.bn_stats_grad(dy, x, state)
    dx, dgamma = backward(output, dy, source, scale)
    agree(mf.bn_grad(dy, x, state, gamma), dx)
    agree(state.dgamma, dgamma)


@pytest.mark.parametrize("neuron", [None, "relu"])
def test_batch_norm_relu_and_running_statistics(neuron: str | None) -> None:
    """batch_norm with a fused relu is PyTorch's batch_norm and relu, running statistics included."""
    x, dy = numbers((4, 5, 6, 3), mx.float64), numbers((4, 5, 6, 3), mx.float64, 1)
    gamma, beta = numbers((3,), mx.float64, 2), numbers((3,), mx.float64, 3)
    source, scale, shift = (theirs(a) for a in (x, gamma, beta))
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    output = torch.nn.functional.batch_norm(source, mean, var, scale, shift, training=True, momentum=0.3)
    output = torch.relu(output) if neuron else output
    function = lambda *args: mf.batch_norm(*args, neuron=neuron)  # noqa: E731
    (y,), pulled = mx.vjp(function, [x, gamma, beta], [dy])
    agree(y, output)
    for mine, tensor in zip(pulled, backward(output, dy, source, scale, shift), strict=True):
        agree(mine, tensor)
    zeros = mx.zeros(3, mx.float64)
    running = mf.bn_running(mf.bn_frozen(zeros, zeros + 1), mf.bn_stats(x), 0.3)
    np.testing.assert_allclose(exact(running.mean), mean.numpy(), rtol=1e-12)
    np.testing.assert_allclose(exact(running.var), var.numpy(), rtol=1e-12)


@pytest.mark.parametrize("groups", [0, 1, 3, 6])
def test_instance_and_group_norm(groups: int) -> None:
    x, dy = numbers((3, 4, 5, 6), mx.float64), numbers((3, 4, 5, 6), mx.float64, 1)
    gamma, beta = numbers((6,), mx.float64, 2), numbers((6,), mx.float64, 3)
    source, scale, shift = (theirs(a) for a in (x, gamma, beta))
    if groups:
        output = torch.nn.functional.group_norm(source, groups, scale, shift)
        function = lambda *args: mf.group_norm(args[0], groups, *args[1:])  # noqa: E731
    else:
        output = torch.nn.functional.instance_norm(source, weight=scale, bias=shift)
        function = mf.instance_norm
    (y,), pulled = mx.vjp(function, [x, gamma, beta], [dy])
    agree(y, output)
    for mine, tensor in zip(pulled, backward(output, dy, source, scale, shift), strict=True):
        agree(mine, tensor)


def test_layer_norm() -> None:
    """Over everything but the batch it is group norm with one group."""
    x, dy = numbers((3, 4, 5, 6), mx.float64), numbers((3, 4, 5, 6), mx.float64, 1)
    source = theirs(x)
    output = torch.nn.functional.layer_norm(source, (6, 4, 5))
    (y,), (dx,) = mx.vjp(lambda x: mf.group_norm(x, 1), [x], [dy])
    agree(y, output)
    agree(dx, *backward(output, dy, source))


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 9, 9, 96), (7, 33), (5,)], ids=str)
def test_layer_norm_over_channels(shape: tuple[int, ...]) -> None:
    """PyTorch's goes over the last axis too, so the axes need not be turned."""
    x, dy, gamma, beta = (numbers(s, mx.float64, i) for i, s in enumerate((shape, shape, shape[-1:], shape[-1:])))
    given = [torch.tensor(exact(a), requires_grad=True) for a in (x, gamma, beta)]
    output = torch.nn.functional.layer_norm(given[0], shape[-1:], *given[1:])
    right = torch.autograd.grad(output, given, torch.tensor(exact(dy)))
    (y,), pulled = mx.vjp(mf.layer_norm, [x, gamma, beta], [dy])
    for ours in ((y, *pulled), (y, *mf.layer_norm_grad(dy, x, gamma))):
        for mine, tensor in zip(ours, (output, *right), strict=True):
            np.testing.assert_allclose(exact(mine), tensor.detach().numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 20])
def test_local_response_norm(size: int) -> None:
    x, dy = numbers((2, 3, 4, 11), mx.float64), numbers((2, 3, 4, 11), mx.float64, 1)
    source = theirs(x)
    output = torch.nn.functional.local_response_norm(source, size, alpha=0.3, beta=0.75, k=1.2)
    y, state = mf.cross_channel_norm_fwd(x, size, alpha=0.3, beta=0.75, delta=1.2)
    agree(y, output)
    agree(mf.cross_channel_norm_grad(dy, x, state), backward(output, dy, source)[0])
