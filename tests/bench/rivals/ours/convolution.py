"""mpsfunc's convolutions and fully connected layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx

import mpsfunc as mf

from ...problems import Problem
from .. import Call


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.conv(a.x, a.w, **_windows(p))]


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    state = _placement(p, a)
    return lambda: [mf.conv_grad_input(a.dy, a.w, state)]


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    before = _placement(p, a)
    return lambda: [mf.conv_grad_weights(a.dy, a.x, before).dw]


def conv_grad_weights_vjp(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: mx.vjp(lambda w: [mf.conv(a.x, w, **_windows(p))], [a.w], [a.dy])[1]


def fully_connected(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.fully_connected(a.x, a.w)]


def fully_connected_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    state = _placement(p, a)
    return lambda: [mf.fully_connected_grad(a.dy, a.x, a.w, state, option="data")[0]]


def fully_connected_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    before = _placement(p, a)
    return lambda: [mf.fully_connected_grad(a.dy, a.x, a.w, before, option="weights_and_bias")[1].dw]


def _placement(p: Problem, a: SimpleNamespace) -> mf.ConvState:
    # Its zeros stay unevaluated, as between the passes of a step: the rivals' gradients are added to nothing either.
    return mf.conv_state(p.shape, a.w.shape, **_windows(p))


def _windows(p: Problem) -> dict[str, Any]:
    return {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}


def deform_conv(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.deform_conv(a.x, a.offsets, a.w, mask=a.tap_mask, **_windows(p))]


def deform_conv_grads(p: Problem, a: SimpleNamespace) -> Call:
    def f(x: mx.array, offsets: mx.array, w: mx.array, mask: mx.array) -> list[mx.array]:
        return [mf.deform_conv(x, offsets, w, mask=mask, **_windows(p))]

    return lambda: mx.vjp(f, [a.x, a.offsets, a.w, a.tap_mask], [a.dy])[1]


def conv_transpose(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.conv_transpose(a.x, a.w, **_windows(p))]


def conv_transpose_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.conv_transpose_fwd(a.x, a.w, **_windows(p))
    return lambda: [mf.conv_transpose_grad_input(a.dy, a.w, state)]


def conv_transpose_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    _, before = mf.conv_transpose_fwd(a.x, a.w, **_windows(p))
    return lambda: [mf.conv_transpose_grad_weights(a.dy, a.x, before).dw]
