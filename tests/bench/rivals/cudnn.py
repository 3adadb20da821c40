"""Batch and instance norm by cuDNN, through PyTorch's operators for it; PyTorch itself takes other kernels for some."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from ..problems import EPS, Problem
from . import Call
from .pytorch import normalization
from .pytorch.normalization import Back, Images, aten


def bn_forward(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.cudnn_batch_norm(a.x, a.gamma, a.beta, None, None, True, 0.1, EPS)[0]]


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    back = _back(a.x, a.gamma, a.beta)
    return lambda: back(a.dy)


def bn_relu_forward(p: Problem, a: SimpleNamespace) -> Call:
    call: Call = normalization.relu_of(bn_forward(p, a))
    return call


def bn_relu_backward(p: Problem, a: SimpleNamespace) -> Call:
    return normalization.through_relu(_back(a.x, a.gamma, a.beta), bn_relu_forward(p, a)()[0], a.dy)


def instance_norm_grad(p: Problem, a: SimpleNamespace) -> Call:
    return normalization.by_images(_back, p, a)


def _back(x: Images, gamma: torch.Tensor, beta: torch.Tensor) -> Back:
    _, mean, root, reserve = aten.cudnn_batch_norm(x, gamma, beta, None, None, True, 0.1, EPS)
    return lambda dy: list(aten.cudnn_batch_norm_backward(x, dy, gamma, None, None, mean, root, EPS, reserve))
