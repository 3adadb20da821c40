"""PyTorch's convolutions, where they are ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers
from support.parity import agree, backward, theirs

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]


CONVOLUTIONS: list[tuple[int, int, tuple[int, int], dict[str, Any]]] = [
    (3, 5, (3, 3), {"padding": 1}),
    (4, 6, (2, 3), {"stride": (2, 1), "padding": (0, 2)}),
    (4, 6, (3, 2), {"dilation": (2, 3), "padding": 2, "groups": 2}),
    (6, 6, (3, 3), {"padding": 1, "groups": 6}),
    (6, 12, (3, 3), {"stride": 2, "padding": 1, "groups": 6}),
    (8, 4, (1, 1), {"stride": 3}),
]


@pytest.mark.parametrize(("channels", "out", "kernel", "how"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_conv(channels: int, out: int, kernel: tuple[int, int], how: dict[str, Any], biased: bool) -> None:
    x = numbers((2, 9, 8, channels), mx.float64)
    w = numbers((out, *kernel, channels // how.get("groups", 1)), mx.float64, 1)
    b = numbers((out,), mx.float64, 2) if biased else None
    y, state = mf.conv_fwd(x, w, b, **how)
    inputs = [theirs(a) for a in ([x, w] if b is None else [x, w, b])]
    output = torch.nn.functional.conv2d(*inputs, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 3)
    done = mf.conv_grad_weights(dy, x, state)
    ours = [mf.conv_grad_input(dy, w, state), done.dw, done.db]
    for mine, tensor in zip(ours, backward(output, dy, *inputs), strict=False):
        agree(mine, tensor)


@pytest.mark.parametrize("kernel", [(1, 2), (3, 4), (5, 3)], ids=str)
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch warns that an even kernel makes it copy
def test_same(kernel: tuple[int, int], dilation: int) -> None:
    """An odd pixel goes behind the image in both."""
    x, w = numbers((2, 7, 8, 3), mx.float64), numbers((4, *kernel, 3), mx.float64, 1)
    y, state = mf.conv_fwd(x, w, padding="same", dilation=dilation)
    source, weights = theirs(x), theirs(w)
    output = torch.nn.functional.conv2d(source, weights, padding="same", dilation=dilation)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    ours = (mf.conv_grad_input(dy, w, state), mf.conv_grad_weights(dy, x, state).dw)
    for mine, tensor in zip(ours, backward(output, dy, source, weights), strict=True):
        agree(mine, tensor)


def test_pixel_shuffle() -> None:
    """PyTorch has channel before pixel; a convolution in front of it has its outputs in that order."""
    r, channels = 2, 3
    x, w, b = numbers((2, 4, 5, 2), mx.float64), numbers((12, 3, 3, 2), mx.float64, 1), numbers((12,), mx.float64, 2)
    output = torch.nn.functional.pixel_shuffle(torch.nn.functional.conv2d(theirs(x), theirs(w), theirs(b)), r)
    ordered = w.reshape(channels, r * r, 3, 3, -1).transpose(1, 0, 2, 3, 4).reshape(w.shape)
    bias = b.reshape(channels, r * r).transpose(1, 0).reshape(b.shape)
    agree(mf.depth_to_space(mf.conv(x, ordered, bias), r), output)


def test_a_folded_batch_norm() -> None:
    w, b, gamma, beta, mean = (numbers(shape, mx.float64, i) for i, shape in enumerate([(6, 3, 2, 4), *[(6,)] * 4]))
    var = abs(numbers((6,), mx.float64, 5)) + 0.1
    args = [theirs(a).detach() for a in (w, b, mean, var, gamma, beta)]
    expected = torch.nn.utils.fuse_conv_bn_weights(*args[:4], 1e-3, *args[4:])
    for mine, tensor in zip(mf.fold_batch_norm(w, b, gamma, beta, mean, var, 1e-3), expected, strict=True):
        agree(mine, tensor)


@pytest.mark.parametrize("how", [{"stride": 1}, {"stride": 2, "dilation": 2}, {"groups": 2}], ids=str)
def test_conv_behind_replicated_edges(how: dict[str, Any]) -> None:
    """Edge mode clamp is a convolution of the padded image; its gradient folds what the padding took back."""
    x, w = numbers((2, 7, 8, 4), mx.float64), numbers((6, 3, 3, 4 // how.get("groups", 1)), mx.float64, 1)
    y, state = mf.conv_fwd(x, w, padding=((2, 1), (3, 2)), edge_mode="clamp", **how)
    source, weights = theirs(x), theirs(w)
    padded = torch.nn.functional.pad(source, (3, 2, 2, 1), mode="replicate")
    output = torch.nn.functional.conv2d(padded, weights, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 3)
    ours = (mf.conv_grad_input(dy, w, state), mf.conv_grad_weights(dy, x, state).dw)
    for mine, tensor in zip(ours, backward(output, dy, source, weights), strict=True):
        agree(mine, tensor)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "how", [{"padding": 2}, {"padding": (1, 3), "stride": (2, 1), "dilation": (1, 2)}, {"padding": 1, "groups": 2}],
    ids=str,
)  # fmt: skip
def test_padding_modes(mode: Any, how: dict[str, Any]) -> None:
    """Of both layers, with the gradients of the state's functions, and of a gradient penalty by autodiff."""
    theirs_layer = torch.nn.Conv2d(4, 6, 3, padding_mode=mode, dtype=torch.float64, **how)
    w = mx.array(theirs_layer.weight.detach().numpy().transpose(0, 2, 3, 1), mx.float64)
    b = mx.array(theirs_layer.bias.detach().numpy(), mx.float64)
    x = numbers((2, 7, 6, 4), mx.float64)
    source = theirs(x)
    output = theirs_layer(source)
    y, state = mf.conv_fwd(x, w, b, padding_mode=mode, **how)
    agree(y, output)
    ours = mf.nn.Conv2d(4, 6, 3, padding_mode=mode, **how)
    ours.update({"weight": w, "bias": b})
    agree(ours(x), output)

    dy = numbers(tuple(y.shape), mx.float64, 3)
    dx, grown = mf.conv_grad(dy, x, w, state)
    assert dx is not None
    slopes = torch.autograd.grad(
        output, (source, theirs_layer.weight, theirs_layer.bias), theirs(dy).detach(), retain_graph=True
    )
    for mine, tensor in zip((dx, grown.dw, grown.db), slopes, strict=True):
        agree(mine, tensor)

    def penalty(x: mx.array, w: mx.array) -> mx.array:
        slope = mx.grad(lambda x: (mf.conv(x, w, b, padding_mode=mode, **how) ** 3).sum())(x)
        return (slope * slope).sum()

    (slope,) = torch.autograd.grad((output**3).sum(), source, create_graph=True)
    expected = torch.autograd.grad((slope * slope).sum(), (source, theirs_layer.weight))
    for mine, tensor in zip(mx.grad(penalty, argnums=(0, 1))(x, w), expected, strict=True):
        np.testing.assert_allclose(exact(mine), tensor.numpy().transpose(0, 2, 3, 1), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_the_third_order_of_padding_modes(mode: Any) -> None:
    x, w = numbers((1, 5, 4, 2), mx.float64), numbers((2, 3, 3, 2), mx.float64, 1) / 4
    how = {"padding": 2, "stride": (2, 1)}
    layer = torch.nn.Conv2d(2, 2, 3, padding_mode=mode, bias=False, dtype=torch.float64, **how)
    layer.weight.data = theirs(w).detach()
    source, expected = theirs(x), []
    value = (layer(source) ** 4).sum()
    for _ in range(3):
        slopes = torch.autograd.grad(value, (source, layer.weight), create_graph=True)
        expected.append(slopes)
        value = sum((slope**2).sum() for slope in slopes)

    def fourth_powers(x: mx.array, w: mx.array) -> mx.array:
        return (mf.conv(x, w, padding_mode=mode, **how) ** 4).sum()

    def squared(pull: Callable[..., Any], *arrays: mx.array) -> mx.array:
        return sum((slope**2).sum() for slope in pull(*arrays))

    more: Callable[..., mx.array] = fourth_powers
    for slopes in expected:
        pull = mx.grad(more, (0, 1))
        for mine, tensor in zip(pull(x, w), slopes, strict=True):
            right = tensor.detach().numpy().transpose(0, 2, 3, 1)
            np.testing.assert_allclose(exact(mine), right, rtol=1e-9, atol=1e-11 * abs(right).max())
        more = functools.partial(squared, pull)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_transposed_layer_in_groups(groups: int) -> None:
    layer = torch.nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, groups=groups, dtype=torch.float64)
    w = layer.weight.detach().numpy().reshape(groups, 4 // groups, 8 // groups, 3, 3)
    ours = mf.nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, groups=groups)
    assert ours.weight.shape == (8, 3, 3, 4 // groups)
    made = mx.array(w.transpose(0, 2, 3, 4, 1).reshape(8, 3, 3, 4 // groups), mx.float64)
    ours.update({"weight": made, "bias": mx.array(layer.bias.detach().numpy(), mx.float64)})
    x = numbers((2, 5, 4, 4), mx.float64)
    agree(ours(x), layer(theirs(x)))


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_margins_that_pytorch_refuses_are_refused(mode: Any) -> None:
    most = {"reflect": 3, "circular": 4}[mode]
    w = numbers((1, 1, 1, 1), mx.float64)
    for height, width in ((4, 9), (9, 4)):
        for more in (0, 1):
            padding = (most + more, 1) if height == 4 else (1, most + more)
            x = numbers((1, height, width, 1), mx.float64)
            layer = torch.nn.Conv2d(1, 1, 1, padding=padding, padding_mode=mode, bias=False, dtype=torch.float64)
            layer.weight.data = theirs(w).detach()
            if more:
                with pytest.raises(RuntimeError):
                    layer(theirs(x))
                with pytest.raises(ValueError, match="conv: the margin is wider than the image; got padding="):
                    mf.conv(x, w, padding=padding, padding_mode=mode)
            else:
                agree(mf.conv(x, w, padding=padding, padding_mode=mode), layer(theirs(x)))


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": (3, 1), "padding": (0, 1), "dilation": (1, 2), "output_padding": (2, 1)},
    {"stride": 2, "groups": 2, "dilation": (2, 1)},
    {"stride": 4, "groups": 4},
]


@pytest.mark.parametrize("how", TRANSPOSED, ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (4, 4)], ids=str)
def test_conv_transpose(how: dict[str, Any], kernel: tuple[int, int]) -> None:
    """PyTorch's weights (i, o / groups, kh, kw) are ours with inputs and outputs exchanged, in each group."""
    groups = how.get("groups", 1)
    x, b = numbers((2, 6, 5, 8), mx.float64), numbers((12,), mx.float64, 2)
    w = numbers((12, *kernel, 8 // groups), mx.float64, 1)

    def exchanged(w: Any) -> Any:
        split = w.reshape(groups, 12 // groups, *kernel, 8 // groups)
        return split.transpose(0, 4, 1, 2, 3).reshape(8, 12 // groups, *kernel)

    y, state = mf.conv_transpose_fwd(x, w, b, **how)
    source, bias = theirs(x), theirs(b)
    weights = torch.tensor(exchanged(exact(w)), requires_grad=True)
    output = torch.nn.functional.conv_transpose2d(source, weights, bias, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 3)
    dx, grown = mf.conv_transpose_grad(dy, x, w, state)
    assert dx is not None
    gx, gw, gb = backward(output, dy, source, weights, bias)
    agree(dx, gx)
    np.testing.assert_allclose(exchanged(exact(grown.dw)), gw.numpy(), rtol=1e-10, atol=1e-11)
    agree(grown.db, gb)


def test_fully_connected_behind_a_flattened_image() -> None:
    """The order of weights that the docstring gives for a PyTorch layer."""
    x, b = numbers((3, 4, 5, 2), mx.float64), numbers((6,), mx.float64, 2)
    linear = exact(numbers((6, 40), mx.float64, 1))
    source, weights, bias = theirs(x), torch.tensor(linear, requires_grad=True), theirs(b)
    output = torch.nn.functional.linear(source.flatten(1), weights, bias)
    w = mx.array(linear.reshape(6, 2, 4, 5).transpose(0, 2, 3, 1), mx.float64)
    y, state = mf.fully_connected_fwd(x, w, b)
    agree(y.reshape(3, 6), output)
    dy = numbers((3, 1, 1, 6), mx.float64, 3)
    dx, grown = mf.fully_connected_grad(dy, x, w, state)
    assert dx is not None
    gx, gw, gb = torch.autograd.grad(output, (source, weights, bias), torch.tensor(exact(dy).reshape(3, 6)))
    agree(dx, gx)
    np.testing.assert_allclose(exact(grown.dw), gw.numpy().reshape(6, 2, 4, 5).transpose(0, 2, 3, 1), rtol=1e-10)
    agree(grown.db, gb)


def test_conv_second_order() -> None:
    """The derivative of the norm of a gradient, as a gradient penalty takes it."""
    x, w = numbers((2, 6, 5, 4), mx.float64), numbers((6, 3, 3, 4), mx.float64, 1)

    def penalty(x: mx.array, w: mx.array) -> mx.array:
        slope = mx.grad(lambda x: (mf.conv(x, w, padding=1) ** 3).sum())(x)
        return (slope * slope).sum()

    source, weights = theirs(x), theirs(w)
    (slope,) = torch.autograd.grad(
        (torch.nn.functional.conv2d(source, weights, padding=1) ** 3).sum(), source, create_graph=True
    )
    expected = torch.autograd.grad((slope * slope).sum(), (source, weights))
    for mine, tensor in zip(mx.grad(penalty, argnums=(0, 1))(x, w), expected, strict=True):
        np.testing.assert_allclose(exact(mine), tensor.numpy().transpose(0, 2, 3, 1), rtol=1e-9)


def test_gram_matrix() -> None:
    x = numbers((3, 5, 4, 6), mx.float64)
    source = theirs(x)
    pixels = source.flatten(2)
    output = 0.5 * (pixels @ pixels.mT)
    made = mf.gram_matrix(x, alpha=0.5)
    np.testing.assert_allclose(exact(made)[:, 0], output.detach().numpy(), rtol=1e-12)
    dy = numbers((3, 1, 6, 6), mx.float64, 1)
    (right,) = torch.autograd.grad(output, source, torch.tensor(exact(dy)[:, 0]))
    agree(mf.gram_matrix_grad(dy, x, alpha=0.5), right)
