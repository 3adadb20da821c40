"""PyTorch's operators on sequences (n, c, l): those of images of one row, as its own functions for sequences are.

Where the gradients of ours need the result, which `mx.vjp` makes anew, a call here makes it too.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from ...problems import Problem
from .. import Call
from . import normalization

aten = torch.ops.aten


def conv1d(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.conv1d(a.x, a.w, None, p.stride, p.padding, p.dilation, p.groups)]


def conv1d_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_conv_backward(p, a.dy, a.x, a.w, [True, False, False])[0]]


def conv1d_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_conv_backward(p, a.dy, a.x, a.w, [False, True, False])[1]]


def conv_transpose1d(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a.w)
    return lambda: [F.conv_transpose1d(a.x, w, None, p.stride, p.padding, 0, p.groups, p.dilation)]


def conv_transpose1d_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a.w)
    return lambda: [_conv_backward(p, a.dy, a.x, w, [True, False, False], transposed=True)[0]]


def conv_transpose1d_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    w = _turned(a.w)
    return lambda: [_conv_backward(p, a.dy, a.x, w, [False, True, False], transposed=True)[1].transpose(0, 1)]


def _turned(w: torch.Tensor) -> torch.Tensor:
    """Weights (i, o, k)."""
    return w.transpose(0, 1).contiguous()


def _conv_backward(
    p: Problem,
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    wanted: list[bool],
    *,
    transposed: bool = False,
) -> Any:
    placed = [p.stride], [p.padding], [p.dilation]
    return aten.convolution_backward(dy, x, w, None, *placed, transposed, [0], p.groups, wanted)


def avg_pool1d(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.avg_pool1d(a.x, p.kernel_size, p.stride, p.padding)]


def avg_pool1d_grad(p: Problem, a: SimpleNamespace) -> Call:
    x, dy = _rows(a.x), _rows(a.dy)
    return lambda: [aten.avg_pool2d_backward(dy, x, *_windows(p), False, True, None)[:, :, 0]]


def max_pool1d(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [F.max_pool1d(a.x, p.kernel_size, p.stride, p.padding)]


def max_pool1d_grad(p: Problem, a: SimpleNamespace) -> Call:
    x, dy, windows = _rows(a.x), _rows(a.dy), _windows(p)

    def call() -> list[torch.Tensor]:
        y, winners = aten.max_pool2d_with_indices(x, *windows)
        dx = aten.max_pool2d_with_indices_backward(dy, x, *windows, [1, 1], False, winners)
        return [y[:, :, 0], dx[:, :, 0]]

    return call


def l2_pool1d(p: Problem, a: SimpleNamespace) -> Call:
    x, windows = _rows(a.x), _windows(p)
    return lambda: [_l2(p, x, windows)[:, :, 0]]


def l2_pool1d_grad(p: Problem, a: SimpleNamespace) -> Call:
    x, dy, windows = _rows(a.x), _rows(a.dy), _windows(p)

    def call() -> list[torch.Tensor]:
        y = _l2(p, x, windows)
        dx = aten.avg_pool2d_backward(dy / y, x, *windows, False, True, None).mul_(x).mul_(p.kernel_size)
        return [y[:, :, 0], dx[:, :, 0]]

    return call


def _l2(p: Problem, x: torch.Tensor, windows: Any) -> torch.Tensor:
    return aten.avg_pool2d(x * x, *windows).mul_(p.kernel_size).sqrt_()


def _windows(p: Problem) -> tuple[list[int], list[int], list[int]]:
    return [1, p.kernel_size], [1, p.stride], [0, p.padding]


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Sequences as images of one row."""
    return x[:, :, None]


def _norm(p: Problem, a: SimpleNamespace, name: str) -> Call:
    call = getattr(normalization, name)(*_of_one_row(p, a))
    return lambda: [y[:, :, 0] for y in call()]


def _norm_both(p: Problem, a: SimpleNamespace, names: tuple[str, str]) -> Call:
    forward, backward = (getattr(normalization, name)(*_of_one_row(p, a)) for name in names)

    def call() -> list[torch.Tensor]:
        (y,), (dx, *of_vectors) = forward(), backward()
        return [y[:, :, 0], dx[:, :, 0], *(v.sum(0) if v.ndim == 2 else v for v in of_vectors)]

    return call


def _of_one_row(p: Problem, a: SimpleNamespace) -> tuple[Problem, SimpleNamespace]:
    rows = {name: _rows(each) if each.ndim == 3 else each for name, each in vars(a).items()}
    return p._replace(shape=p.nhwc), SimpleNamespace(**rows)


batch_norm1d, batch_norm1d_grad = (
    partial(_norm, name="bn_forward"),
    partial(_norm_both, names=("bn_forward", "bn_backward")),
)
instance_norm1d, instance_norm1d_grad = (
    partial(_norm, name="instance_norm"),
    partial(_norm_both, names=("instance_norm", "instance_norm_grad")),
)
group_norm1d, group_norm1d_grad = (
    partial(_norm, name="group_norm"),
    partial(_norm_both, names=("group_norm", "group_norm_grad")),
)
