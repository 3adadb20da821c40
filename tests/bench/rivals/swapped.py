"""Stock MLX by hand: batch and channels change places, and a forward convolution gives the weight gradient."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx

from ..problems import Problem
from . import Call
from .stock.convolution import widened


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call | None:
    call = conv_grad_weights_vjp(p, a)
    return call and widened(call)


def conv_grad_weights_vjp(p: Problem, a: SimpleNamespace) -> Call | None:
    if p.groups > 1:
        return None

    def call() -> list[mx.array]:
        x, dy = a.x.swapaxes(0, 3), a.dy.swapaxes(0, 3)
        dw = mx.conv_general(x, dy, p.dilation, p.padding, kernel_dilation=p.stride).swapaxes(0, 3)
        return [dw[:, : p.kernel_size, : p.kernel_size]]

    return call
