"""PyTorch's convolutions and linear layers."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from ...problems import Problem
from .. import Call

aten = torch.ops.aten
try:
    importlib.import_module("torchvision.ops")  # whose operators it brings along
except (ImportError, RuntimeError):  # RuntimeError: it is for another PyTorch
    _torchvision: Any = None
else:
    _torchvision = torch.ops.torchvision


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.conv2d(a.x, a.w, None, p.stride, p.padding, p.dilation, p.groups)]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_conv_backward(p, a, [True, False, False])[0]]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    of_dtype = conv_grad_weights_vjp(p, a)
    return lambda: [_float32(dw) for dw in of_dtype()]  # as the state of ours holds it


def conv_grad_weights_vjp(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_conv_backward(p, a, [False, True, False])[1]]


def _float32(dw: torch.Tensor) -> torch.Tensor:
    return dw.float() if dw.dtype.itemsize < 4 else dw


def _conv_backward(p: Problem, a: SimpleNamespace, wanted: list[bool]) -> Any:
    stride, padding, spread = ([n] * 2 for n in (p.stride, p.padding, p.dilation))
    return aten.convolution_backward(a.dy, a.x, a.w, None, stride, padding, spread, False, [0, 0], p.groups, wanted)


def fully_connected(p: Problem, a: SimpleNamespace) -> Call:
    x, w = _flat(a.x), _flat(a.w)
    return lambda: [F.linear(x, w)[:, :, None, None]]


def fully_connected_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    dy, w = _flat(a.dy), _flat(a.w)
    return lambda: [(dy @ w).reshape(a.x.shape)]


def fully_connected_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    dy, x = _flat(a.dy), _flat(a.x)
    return lambda: [(dy.T @ x).reshape(a.w.shape)]


def _flat(a: torch.Tensor) -> torch.Tensor:
    return a.flatten(1).contiguous()


def conv_transpose(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a)
    return lambda: [F.conv_transpose2d(a.x, w, None, p.stride, p.padding, 0, p.groups, p.dilation)]


def conv_transpose_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a)
    return lambda: [_transpose_backward(p, a, w, [True, False, False])[0]]


def conv_transpose_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a)
    return lambda: [_transpose_backward(p, a, w, [False, True, False])[1].transpose(0, 1)]


def _turned(a: SimpleNamespace) -> torch.Tensor:
    """Weights (i, o, kh, kw) in the layout of the images."""
    last = a.x.is_contiguous(memory_format=torch.channels_last) and not a.x.is_contiguous()
    return a.w.transpose(0, 1).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _transpose_backward(p: Problem, a: SimpleNamespace, w: torch.Tensor, wanted: list[bool]) -> Any:
    stride, padding, spread = ([n] * 2 for n in (p.stride, p.padding, p.dilation))
    return aten.convolution_backward(a.dy, a.x, w, None, stride, padding, spread, True, [0, 0], p.groups, wanted)


# torchvision's ------------------------------------------------------------------------------------------


def _deformed(p: Problem, a: SimpleNamespace) -> tuple[Any, ...]:
    """Arguments of torchvision's operators: arrays, windows, groups, groups of offsets, and that there is a mask."""
    stride, padding, dilation = ([n] * 2 for n in (p.stride, p.padding, p.dilation))
    bias = torch.zeros(a.w.shape[0], dtype=a.x.dtype, device=a.x.device)
    return a.x, a.w, a.offsets, a.tap_mask, bias, *stride, *padding, *dilation, p.groups, 1, True


def _deform_conv(p: Problem, a: SimpleNamespace) -> Call:
    arguments = _deformed(p, a)
    return lambda: [_torchvision.deform_conv2d(*arguments)]


def _deform_conv_grads(p: Problem, a: SimpleNamespace) -> Call:
    arguments = _deformed(p, a)

    def call() -> list[Any]:
        dx, dw, doffsets, dmask, _ = _torchvision._deform_conv2d_backward(a.dy, *arguments)
        return [dx, doffsets, dw, dmask]

    return call


if _torchvision is not None:
    deform_conv, deform_conv_grads = _deform_conv, _deform_conv_grads
