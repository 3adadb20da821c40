"""PyTorch's own operators, below autograd, on tensors that already have the layout."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..problems import EPS, Problem
from . import Call, Side

aten = torch.ops.aten

LAYOUTS = {"PyTorch NCHW": torch.contiguous_format, "PyTorch NHWC": torch.channels_last}

_PARAMETERS = ("gamma", "beta")


def avg_pool(p: Problem, a: SimpleNamespace) -> Call:
    counted = p.edge_mode == "zero"
    return lambda: [F.avg_pool2d(a.x, p.kernel_size, p.stride, p.padding, count_include_pad=counted)]


def avg_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    counted = p.edge_mode == "zero"
    return lambda: [aten.avg_pool2d_backward(a.dy, a.x, size, stride, padding, False, counted, None)]


def max_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.max_pool2d(a.x, p.kernel_size, p.stride, p.padding)]


def max_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    _, winners = aten.max_pool2d_with_indices(a.x, size, stride, padding)
    ones = [1, 1]
    return lambda: [aten.max_pool2d_with_indices_backward(a.dy, a.x, size, stride, padding, ones, False, winners)]


def l2_pool(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_l2(p, a.x)]


def l2_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    size, stride, padding = _pairs(p)
    y, area = _l2(p, a.x), p.kernel_size**2

    def call() -> list[torch.Tensor]:
        return [aten.avg_pool2d_backward(a.dy / y, a.x, size, stride, padding, False, True, None).mul_(a.x).mul_(area)]

    return call


def _l2(p: Problem, x: torch.Tensor) -> torch.Tensor:
    """What ``lp_pool2d`` is made of, but for its absolute value and the padding that it lacks."""
    return F.avg_pool2d(x * x, p.kernel_size, p.stride, p.padding).mul_(p.kernel_size**2).sqrt_()


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
    mean, root = aten.batch_norm_stats(a.x, EPS)
    total, dot, _, _ = aten.batch_norm_backward_reduce(a.dy, a.x, mean, root, a.gamma, True, True, True)
    count = torch.full((1,), p.pixels, dtype=torch.int32, device=a.x.device)
    return lambda: [aten.batch_norm_backward_elemt(a.dy, a.x, mean, root, a.gamma, total, dot, count)]


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    _, mean, root = aten.native_batch_norm(a.x, a.gamma, a.beta, None, None, True, 0.1, EPS)
    wanted = [True, True, True]
    return lambda: list(aten.native_batch_norm_backward(a.dy, a.x, a.gamma, None, None, mean, root, True, EPS, wanted))


def conv(p: Problem, a: SimpleNamespace) -> Call:
    if _connected(p):
        x, w = a.x.flatten(1), a.w.flatten(1)
        return lambda: [F.linear(x, w)[:, :, None, None]]
    return lambda: [F.conv2d(a.x, a.w, None, p.stride, p.padding, p.dilation, p.groups)]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    if _connected(p):
        dy, w = a.dy.flatten(1), a.w.flatten(1)
        return lambda: [(dy @ w)[:, :, None, None]]
    return lambda: [_conv_backward(p, a, [True, False, False])[0]]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    if _connected(p):
        dy, x = a.dy.flatten(1), a.x.flatten(1)
        return lambda: [(dy.T @ x)[:, :, None, None]]
    return lambda: [_conv_backward(p, a, [False, True, False])[1]]


def _connected(p: Problem) -> bool:
    """Whether all pixels are images of their own: PyTorch has a faster way than a convolution."""
    return p.shape[1:3] == (1, 1) and p.kernel_size == 1


def _conv_backward(p: Problem, a: SimpleNamespace, wanted: list[bool]) -> Any:
    _, stride, padding = _pairs(p)
    dilation, zero = [p.dilation] * 2, [0, 0]
    return aten.convolution_backward(a.dy, a.x, a.w, None, stride, padding, dilation, False, zero, p.groups, wanted)


def _pairs(p: Problem) -> tuple[list[int], list[int], list[int]]:
    return [p.kernel_size] * 2, [p.stride] * 2, [p.padding] * 2


# Sides --------------------------------------------------------------------------------------------------


def side(name: str, layout: torch.memory_format, device: str, *, keep: bool = True) -> Side:
    """PyTorch on a device, with images and weights in one layout; ``keep``: results live until all are there."""

    def place(arrays: SimpleNamespace, dtype: str) -> SimpleNamespace:
        torch.set_grad_enabled(False)
        placed = SimpleNamespace()
        for key, value in vars(arrays).items():
            plain = key in _PARAMETERS and dtype != "float64"
            tensor = torch.from_numpy(value).to(device, torch.float32 if plain else getattr(torch, dtype))
            if tensor.ndim == 4:
                tensor = tensor.permute(0, 3, 1, 2).contiguous(memory_format=layout)
            setattr(placed, key, tensor)
        return placed

    return Side(name, sys.modules[__name__], place, _keeping if keep else _dropping, answer)


def _keeping(call: Call, times: int) -> None:
    """As one evaluation of MLX, and a training step, keep them."""
    results = [call() for _ in range(times)]
    del results


def _dropping(call: Call, times: int) -> None:
    """Each result makes room for the next, which suits PyTorch's allocator and the caches best."""
    for _ in range(times):
        call()


def answer(op: str, outputs: list[Any]) -> list[np.ndarray]:
    """To NumPy, NHWC."""
    if op == "bn_stats":  # the root of the variance comes inverted
        outputs = [outputs[0], outputs[1].double() ** -2 - EPS]
    wide = (out.double() for out in outputs)
    return [(out.permute(0, 2, 3, 1) if out.ndim == 4 else out).cpu().numpy() for out in wide]
