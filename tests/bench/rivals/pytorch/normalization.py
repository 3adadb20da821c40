"""PyTorch's normalizations, and those that it has to make of its other operators."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from ...problems import EPS, Problem
from .. import Call

aten = torch.ops.aten

_ALL = [True, True, True]

Images = torch.Tensor
Back = Callable[[Images], list[torch.Tensor]]  # from dy


def bn_stats(p: Problem, a: SimpleNamespace) -> Call | None:
    if not a.x.is_cuda:
        return None
    return lambda: list(aten.batch_norm_stats(a.x, EPS))


def bn_normalize(p: Problem, a: SimpleNamespace) -> Call | None:
    if not a.x.is_cuda:
        return None
    mean, root = aten.batch_norm_stats(a.x, EPS)
    return lambda: [aten.batch_norm_elemt(a.x, a.gamma, a.beta, mean, root, EPS)]


def bn_forward(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.native_batch_norm(a.x, a.gamma, a.beta, None, None, True, 0.1, EPS)[0]]


def bn_stats_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    if not a.x.is_cuda:
        return None
    mean, root = aten.batch_norm_stats(a.x, EPS)
    return lambda: list(aten.batch_norm_backward_reduce(a.dy, a.x, mean, root, a.gamma, True, True, True)[2:])


def bn_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    if not a.x.is_cuda:
        return None
    back = _bn_images(p, a, a.dy)
    return lambda: back(a.dy)


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    back = _bn_back(a.x, a.gamma, a.beta)
    return lambda: back(a.dy)


def bn_relu_normalize(p: Problem, a: SimpleNamespace) -> Call | None:
    return relu_of(bn_normalize(p, a))


def bn_relu_forward(p: Problem, a: SimpleNamespace) -> Call:
    return relu_of(bn_forward(p, a))


def bn_relu_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    if not a.x.is_cuda:
        return None
    y = relu_of(bn_forward(p, a))()[0]
    return through_relu(_bn_images(p, a, aten.threshold_backward(a.dy, y, 0)), y, a.dy)


def bn_relu_backward(p: Problem, a: SimpleNamespace) -> Call:
    return through_relu(_bn_back(a.x, a.gamma, a.beta), bn_relu_forward(p, a)()[0], a.dy)


def relu_of(forward: Call | None) -> Any:
    """A forward pass and a relu in place, which no gradient of a normalization minds."""
    return forward and (lambda: [y.relu_() for y in forward()])


def through_relu(back: Back, y: Images, dy: Images) -> Call:
    """A backward pass behind that of the relu that made y."""
    return lambda: back(aten.threshold_backward(dy, y, 0))


def _bn_back(x: Images, gamma: torch.Tensor, beta: torch.Tensor) -> Back:
    _, mean, root = aten.native_batch_norm(x, gamma, beta, None, None, True, 0.1, EPS)
    return lambda dy: list(aten.native_batch_norm_backward(dy, x, gamma, None, None, mean, root, True, EPS, _ALL))


def _bn_images(p: Problem, a: SimpleNamespace, dy: Images) -> Back:
    mean, root = aten.batch_norm_stats(a.x, EPS)
    total, dot, _, _ = aten.batch_norm_backward_reduce(dy, a.x, mean, root, a.gamma, True, True, True)
    count = torch.full((1,), p.pixels, dtype=torch.int32, device=a.x.device)
    return lambda dy: [aten.batch_norm_backward_elemt(dy, a.x, mean, root, a.gamma, total, dot, count)]


def instance_norm(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.instance_norm(a.x, weight=a.gamma, bias=a.beta, eps=EPS)]


def instance_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return by_images(_bn_back, p, a)


def by_images(backward: Callable[..., Back], p: Problem, a: SimpleNamespace) -> Call:
    """The backward pass of instance norm: one image's batch norm, with a channel for each of all images."""
    n, channels = p.shape[0], p.shape[3]
    back = backward(_one_image(a.x), a.gamma.repeat(n), a.beta.repeat(n))

    def call() -> list[torch.Tensor]:
        dx, *of_channels = back(_one_image(a.dy))
        return [dx.view(a.x.shape), *(v.view(n, channels) for v in of_channels)]

    return call


def _one_image(x: Images) -> Images:
    return x.contiguous().view(1, -1, *x.shape[2:])


def group_norm(p: Problem, a: SimpleNamespace) -> Call:
    n, h, w, channels = p.shape
    return lambda: [aten.native_group_norm(a.x, a.gamma, a.beta, n, channels, h * w, p.groups, EPS)[0]]


def group_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    n, h, w, channels = p.shape
    sizes = n, channels, h * w, p.groups
    _, mean, root = aten.native_group_norm(a.x, a.gamma, a.beta, *sizes, EPS)
    return lambda: list(aten.native_group_norm_backward(a.dy, a.x, mean, root, a.gamma, *sizes, _ALL))


def group_norm_silu(p: Problem, a: SimpleNamespace) -> Call:
    forward = group_norm(p, a)
    return lambda: [aten.silu_(y) for y in forward()]


def group_norm_silu_grad(p: Problem, a: SimpleNamespace) -> Call:
    n, h, w, channels = p.shape
    sizes = n, channels, h * w, p.groups
    z, mean, root = aten.native_group_norm(a.x, a.gamma, a.beta, *sizes, EPS)

    def call() -> list[torch.Tensor]:
        dz = aten.silu_backward(a.dy, z)
        return list(aten.native_group_norm_backward(dz, a.x, mean, root, a.gamma, *sizes, _ALL))

    return call


def layer_norm(p: Problem, a: SimpleNamespace) -> Call:
    channels = p.shape[3:]
    return lambda: [_turned_back(aten.native_layer_norm(_turned(a.x), channels, a.gamma, a.beta, EPS)[0])]


def layer_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    channels = p.shape[3:]
    _, mean, root = aten.native_layer_norm(_turned(a.x), channels, a.gamma, a.beta, EPS)

    def call() -> list[torch.Tensor]:
        given = _turned(a.dy), _turned(a.x), channels, mean, root, a.gamma, a.beta, _ALL
        dx, *of_vectors = aten.native_layer_norm_backward(*given)
        return [_turned_back(dx), *of_vectors]

    return call


def _turned(x: Images) -> Images:
    """Channels last, as its axes too."""
    return x.permute(0, 2, 3, 1)


def _turned_back(y: Images) -> Images:
    return y.permute(0, 3, 1, 2)


def cross_channel_norm(p: Problem, a: SimpleNamespace) -> Call | None:
    if _without_pool(a):
        return None
    given = p.window_parameters
    return lambda: [F.local_response_norm(a.x, p.kernel_size, given["alpha"], given["beta"], given["delta"])]


def cross_channel_norm_grad(p: Problem, a: SimpleNamespace) -> Call | None:
    return None if _without_pool(a) else _squares_grad(p, a, _channel_mean)


def spatial_norm(p: Problem, a: SimpleNamespace) -> Call:
    given = p.window_parameters

    def call() -> list[torch.Tensor]:
        base = _square_mean(p, a.x * a.x).mul_(given["alpha"]).add_(given["delta"])
        return [base.pow_(-given["beta"]).mul_(a.x)]

    return call


def spatial_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _squares_grad(p, a, _square_mean)


def _squares_grad(p: Problem, a: SimpleNamespace, mean: Callable[[Problem, Images], Images]) -> Call:
    """By hand, with the base and its power from the forward pass, in the fewest operators."""
    alpha, beta, delta = p.window_parameters.values()
    base = mean(p, a.x * a.x).mul_(alpha).add_(delta)
    power = base.pow(-beta)

    def call() -> list[torch.Tensor]:
        direct = a.dy * power
        pulled = mean(p, (direct * a.x).div_(base))  # an odd window's mean is its own adjoint
        return [direct.addcmul_(pulled, a.x, value=-2 * alpha * beta)]

    return call


def local_contrast_norm(p: Problem, a: SimpleNamespace) -> Call:
    given = p.window_parameters

    def call() -> list[torch.Tensor]:
        mean, base = _contrast(p, a.x)
        unit = torch.sub(a.x, mean, alpha=given["p0"]).mul_(base.pow_(-given["beta"]))
        return [unit.mul_(given["ps"]).add_(given["pm"])]

    return call


def local_contrast_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    alpha, beta, _, p0, _, ps = p.window_parameters.values()
    mean, base = _contrast(p, a.x)
    power, apart = base.pow(-beta), torch.sub(a.x, mean, alpha=p0)

    def call() -> list[torch.Tensor]:
        direct = (a.dy * power).mul_(ps)
        turned = (direct * apart).div_(base)
        dx = torch.sub(direct, _square_mean(p, direct), alpha=p0)
        dx.addcmul_(_square_mean(p, turned), a.x, value=-2 * alpha * beta)
        return [dx.add_(_square_mean(p, turned.mul_(mean)), alpha=2 * alpha * beta)]

    return call


def _contrast(p: Problem, x: Images) -> tuple[Images, Images]:
    """The mean, and delta + alpha * variance."""
    given = p.window_parameters
    mean = _square_mean(p, x)
    return mean, _square_mean(p, x * x).addcmul_(mean, mean, value=-1).mul_(given["alpha"]).add_(given["delta"])


def _without_pool(a: SimpleNamespace) -> bool:
    """Whether PyTorch has no avg_pool3d here."""
    return a.x.itemsize == 2 and not a.x.is_cuda


def _channel_mean(p: Problem, x: Images) -> Images:
    """As ``local_response_norm`` takes it, without a padded copy; odd windows."""
    return F.avg_pool3d(x[:, None], (p.kernel_size, 1, 1), 1, (p.kernel_size // 2, 0, 0))[:, 0]


def _square_mean(p: Problem, x: Images) -> Images:
    """Odd windows, rows before columns."""
    size, pad = p.kernel_size, p.kernel_size // 2
    return F.avg_pool2d(F.avg_pool2d(x, (size, 1), 1, (pad, 0)), (1, size), 1, (0, pad))
