"""PyTorch, where its semantics are ours."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]


def theirs(a: mx.array) -> Any:
    """An image as NCHW, weights as OIHW, a vector as it is; float64 and differentiable."""
    values = exact(a)
    return torch.tensor(values.transpose(0, 3, 1, 2) if values.ndim == 4 else values, requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    values = tensor.detach().numpy()
    values = values.transpose(0, 2, 3, 1) if values.ndim == 4 else values
    np.testing.assert_allclose(exact(ours), values, rtol=1e-10, atol=1e-11)


def backward(output: Any, dy: mx.array, *inputs: Any) -> tuple[Any, ...]:
    return torch.autograd.grad(output, inputs, torch.tensor(exact(dy).transpose(0, 3, 1, 2)))  # type: ignore[no-any-return]


POOLINGS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": (2, 4), "stride": 3, "padding": (1, 2), "ceil_mode": True},
    {"kernel_size": 4, "stride": 1, "padding": 2},
    {"kernel_size": 2, "stride": 5, "padding": 1, "ceil_mode": True},  # a window that would start behind the image
]


@pytest.mark.parametrize("how", POOLINGS, ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["count_include_pad", "exclude"])
def test_avg_pool(how: dict[str, Any], image: tuple[int, int], counted: bool) -> None:
    """``count_include_pad`` is edge mode clamp, with the padding as zeros that count or without."""
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.avg_pool_fwd(x, **how, edge_mode="clamp", zero_pad=how.get("padding", 0) if counted else 0)
    source = theirs(x)
    output = torch.nn.functional.avg_pool2d(source, **how, count_include_pad=counted)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))


@pytest.mark.parametrize("sides", [((2, 0), (0, 0)), ((1, 0), (2, 0)), ((0, 1), (0, 2)), ((2, 1), (1, 2))], ids=str)
@pytest.mark.parametrize("kernel", [2, (3, 4)], ids=str)
def test_avg_pool_of_an_image_padded_by_hand(sides: Any, kernel: Any) -> None:
    """Zeros that PyTorch puts around the image itself, more of them on one side, are zeros that count."""
    x, how = numbers((2, 7, 8, 3), mx.float64), {"stride": 2, "ceil_mode": not any(after for _, after in sides)}
    source = theirs(x)
    output = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(source, (*sides[1], *sides[0])), kernel, **how)
    y, state = mf.avg_pool_fwd(x, kernel, **how, padding=sides, edge_mode="clamp", zero_pad=sides)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))


@pytest.mark.parametrize("how", [h for h in POOLINGS if not h.get("ceil_mode")], ids=str)
def test_edge_mode_zero_counts_the_padding(how: dict[str, Any]) -> None:
    x = numbers((2, 9, 8, 3), mx.float64)
    agree(mf.avg_pool(x, **how), torch.nn.functional.avg_pool2d(theirs(x), **how))


MAX_POOLINGS = [
    *POOLINGS,
    {"kernel_size": (2, 3), "stride": 2, "padding": (1, 1), "dilation": (2, 1)},
    {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
]


@pytest.mark.parametrize("how", MAX_POOLINGS, ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
@pytest.mark.parametrize("few", [False, True], ids=["all differ", "many ties"])
def test_max_pool(how: dict[str, Any], image: tuple[int, int], few: bool) -> None:
    """PyTorch's padding is ours where nobody says what edges read, and its winners are."""
    x = numbers((2, *image, 3), mx.float64)
    x = mx.round(x) if few else x
    x = x - 3  # so that a zero of the padding would win
    y, state = mf.max_pool_fwd(x, **how)
    source = theirs(x)
    output, indices = torch.nn.functional.max_pool2d(source, **how, return_indices=True)
    agree(y, output)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), indices.numpy().transpose(0, 2, 3, 1))
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.max_pool_grad(dy, state), *backward(output, dy, source))


def test_max_unpool() -> None:
    x = numbers((2, 6, 8, 3), mx.float64)
    y, state = mf.max_pool_fwd(x, 2)
    output, indices = torch.nn.functional.max_pool2d(theirs(x), 2, return_indices=True)
    agree(mf.max_unpool(y, state), torch.nn.functional.max_unpool2d(output, indices, 2))


@pytest.mark.parametrize(
    "how", [{"kernel_size": 2}, {"kernel_size": (3, 2), "stride": (2, 3)}, {"kernel_size": 4, "stride": 1}], ids=str
)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12)], ids=str)
def test_l2_pool(how: dict[str, Any], image: tuple[int, int]) -> None:
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.l2_pool_fwd(x, **how)
    source = theirs(x)
    output = torch.nn.functional.lp_pool2d(source, 2.0, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.l2_pool_grad(dy, x, state), *backward(output, dy, source))


@pytest.mark.parametrize("out_size", [1, 3, (2, 5), (None, 4), (11, 13)], ids=str)
@pytest.mark.parametrize("image", [(7, 8), (6, 5), (9, 12), (1, 1)], ids=str)
def test_adaptive_pools(out_size: Any, image: tuple[int, int]) -> None:
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.avg_pool_fwd(x, "adaptive", out_size=out_size)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    source = theirs(x)
    output = torch.nn.functional.adaptive_avg_pool2d(source, out_size)
    agree(y, output)
    agree(mf.avg_pool_grad(dy, state), *backward(output, dy, source))

    y, maxima = mf.max_pool_fwd(x, "adaptive", out_size=out_size)
    source = theirs(x)
    output, indices = torch.nn.functional.adaptive_max_pool2d(source, out_size, return_indices=True)
    agree(y, output)
    np.testing.assert_array_equal(np.array(mf.max_pool_indices(maxima)), indices.numpy().transpose(0, 2, 3, 1))
    agree(mf.max_pool_grad(dy, maxima), *backward(output, dy, source))


def test_global_pools() -> None:
    x = numbers((2, 5, 6, 3), mx.float64)
    agree(mf.avg_pool(x, "global"), torch.nn.functional.adaptive_avg_pool2d(theirs(x), 1))
    agree(mf.max_pool(x, "global"), torch.nn.functional.adaptive_max_pool2d(theirs(x), 1))
    agree(mf.l2_pool(x, "global"), torch.nn.functional.lp_pool2d(theirs(x), 2.0, (5, 6)))


def test_the_gradient_of_a_norm_of_zeros() -> None:
    x = mx.zeros((1, 2, 2, 1), mx.float64)
    source = theirs(x)
    output = torch.nn.functional.lp_pool2d(source, 2.0, 2)
    dy = mx.ones((1, 1, 1, 1), mx.float64)
    y, state = mf.l2_pool_fwd(x, 2)
    agree(mf.l2_pool_grad(dy, x, state), *backward(output, dy, source))


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


@pytest.mark.parametrize("size", [1, 2, 5, 6, 20])
def test_local_response_norm(size: int) -> None:
    x, dy = numbers((2, 3, 4, 11), mx.float64), numbers((2, 3, 4, 11), mx.float64, 1)
    source = theirs(x)
    output = torch.nn.functional.local_response_norm(source, size, alpha=0.3, beta=0.75, k=1.2)
    y, state = mf.cross_channel_norm_fwd(x, size, alpha=0.3, beta=0.75, delta=1.2)
    agree(y, output)
    agree(mf.cross_channel_norm_grad(dy, x, state), backward(output, dy, source)[0])
