"""The cases of `cases` that convolve."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import activation as oracle_activation
from support.oracle import convolution as oracle

import mpsfunc as mf
from metal_host.case import Case, named
from mpsfunc.channels.activation_spec import ELU, NAMES, NO_ACTIVATION, RELU, SIGMOID, TANH, Activation
from mpsfunc.convolution import launches, rules
from mpsfunc.convolution.spec import Spec
from mpsfunc.core import grids, launch

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
ACTIVATIONS = (
    Activation(RELU),
    Activation(RELU, 0.25),
    Activation(SIGMOID),
    Activation(TANH, 1.5, 0.75),
    Activation(ELU, 1.25),
)


def _convs(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    out: int,
    kernel: tuple[int, int],
    groups: int = 1,
    crowded: bool = False,
    **placement: Any,
) -> list[Case]:
    w_shape = (out, *kernel, shape[3] // groups)

    def prepared() -> tuple[mf.ConvState, mx.array, mx.array, mx.array]:
        state = mf.conv_state(shape, w_shape, groups=groups, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, out), dtype, 2)
        return state, numbers(shape, dtype), numbers(w_shape), dy

    def compare(
        run: Callable[[Activation], mx.array], definition: Callable[..., np.ndarray], *arrays: mx.array
    ) -> None:
        """Without a neuron, and with each that a convolution applies itself."""
        values = [exact(a) for a in arrays]
        right, size = definition(*values), definition(*map(abs, values))
        for act in (NO_ACTIVATION, *ACTIVATIONS):
            kind, a, b, _ = act
            close(run(act), oracle_activation.neuron(right, NAMES[kind], a=a, b=b), 4 * size)

    def forward() -> None:
        state, x, w, _ = prepared()
        b = numbers((out,), seed=3)
        spec = Spec(state.rows, state.cols, groups, True, NO_ACTIVATION, mx.default_stream(mx.cpu))
        compare(
            lambda act: rules.conv(x, w, b, spec._replace(neuron=act)),
            lambda x, w, b: oracle.conv(x, w, b, state.rows, state.cols, groups),
            *(x, w, b),
        )

    def grad_input() -> None:
        state, _, w, dy = prepared()
        b = numbers((shape[3],), seed=3)
        spec = Spec(state.rows, state.cols, groups, True, NO_ACTIVATION, mx.default_stream(mx.cpu))
        compare(
            lambda act: rules.grad_input(dy, w, b, spec._replace(neuron=act)),
            lambda dy, w, b: oracle.conv_grad_input(dy, w, state.rows, state.cols, groups) + b,
            *(dy, w, b),
        )

    def grad_weights() -> None:
        state, x, _, dy = prepared()
        made, values = mf.conv_grad_weights(dy, x, state), (exact(dy), exact(x))
        for actual, definition in (
            (made.dw, lambda dy, x: oracle.conv_grad_weights(dy, x, state.rows, state.cols, groups)),
            (made.db, lambda dy, x: oracle.conv_grad_bias(dy)),
        ):
            close(actual, definition(*values), definition(*map(abs, values)))

    body = "conv_depthwise" if groups == shape[3] > 1 else "conv"
    options = {"out": out, "k": kernel, "groups": groups, **placement}
    both = (f"{body}_grad_weights", "conv_grad_bias", "sum_partials")
    return [
        Case(named(body, shape, dtype, **options), (body,), forward, crowded),
        Case(named(f"{body}_grad_input", shape, dtype, **options), (f"{body}_grad_input",), grad_input, crowded),
        Case(named(f"{body}_grad_weights", shape, dtype, **options), both, grad_weights, crowded),
    ]


def _on_cuda(
    body: str,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    out: int,
    kernel: tuple[int, int],
    crowded: bool = False,
    fill: int = grids.FILL,
    room: int = launches._STRIP,
    **how: Any,
) -> Case:
    """The weight gradient as CUDA runs it: so many threadgroups fill the GPU, and a strip has so many bytes."""

    def check() -> None:
        *_, grad_weights = _convs(shape, dtype, out, kernel, **how)
        less = contextlib.nullcontext() if crowded else mock.patch.object(grids, "FILL", fill)
        on_cuda = mock.patch.object(launch, "backend", lambda stream: "cuda")
        with on_cuda, less, mock.patch.object(launches, "_STRIP", room):
            grad_weights.check()

    bodies = (body, "conv_grad_bias", "sum_partials")
    return Case(named(body, shape, dtype, out=out, k=kernel, **how), bodies, check, crowded)


_simt = functools.partial(_on_cuda, "conv_grad_weights_simt")
_registers = functools.partial(_on_cuda, "conv_grad_weights_registers")
_tensor_core = functools.partial(_on_cuda, "conv_grad_weights_tensor_core")


def convolution() -> list[Case]:
    return [
        *_convs((2, 5, 6, 3), F32, 5, (3, 2), stride=2, padding=1),
        *_convs((1, 6, 5, 8), F16, 4, (2, 3), groups=2, dilation=(2, 1), padding=(1, 2)),
        *_convs((2, 4, 3, 4), BF16, 8, (3, 3), groups=2, padding="same"),
        *_convs((1, 2, 3, 1), F32, 1, (1, 2)),
        *_convs((1, 2, 2, 1), F16, 2, (2, 1), stride=2, offset=(-2, 3), out_size=(3, 1)),
        *_convs((3, 14, 13, 2), F32, 70, (2, 1)),  # more than a tile of pixels, of outputs and of partial sums
        *_convs((2, 7, 5, 70), F32, 3, (1, 2), padding=(0, 1)),  # and of inputs
        *_convs((2, 4, 5, 12), F32, 20, (3, 3), padding=1, stride=(1, 2)),  # whole matrices, and four channels a load
        *_convs((1, 23, 23, 1), F32, 100, (1, 1), crowded=True),
        # A group for every channel.
        *_convs((2, 5, 6, 8), F32, 8, (3, 3), groups=8, padding=1),  # four channels a load
        *_convs((2, 7, 9, 3), F32, 6, (2, 3), groups=3, stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
        *_convs((1, 6, 5, 12), F16, 12, (3, 2), groups=12, stride=2, padding="same"),
        *_convs((1, 4, 3, 4), BF16, 8, (3, 3), groups=4, padding="same"),
        *_convs((1, 1, 3, 2), F32, 2, (1, 2), groups=2),  # in constant memory
        *_convs((2, 4, 6, 2), F16, 2, (2, 2), groups=2, stride=2, offset=(-3, 4), out_size=(4, 3)),  # windows outside
        *_convs((3, 6, 9, 64), F32, 128, (2, 1), groups=64, crowded=True),
        _simt((2, 5, 6, 3), F32, 5, (3, 2), stride=2, padding=1, dilation=(1, 2)),
        _simt((1, 6, 5, 8), F16, 4, (2, 3), groups=2, dilation=(2, 1), padding=(1, 2)),
        _simt((2, 4, 3, 4), BF16, 8, (3, 4), padding="same"),
        _simt((1, 2, 2, 1), F32, 2, (2, 1), stride=(2, 3), offset=(-2, 3), out_size=(3, 1)),
        _simt((3, 14, 13, 2), F32, 70, (2, 1)),
        _simt((2, 7, 5, 70), F32, 3, (1, 2), padding=(0, 1)),
        _simt((1, 23, 23, 1), F32, 100, (1, 1), crowded=True),
        # Few channels.
        _registers((2, 5, 6, 3), F32, 5, (3, 2), stride=2, padding=1),
        _registers((2, 9, 11, 16), F32, 16, (3, 3), padding=1),  # several channels a load; columns left over
        _registers(
            (2, 6, 9, 34), F32, 20, (2, 3), padding=(1, 2), stride=(3, 1), dilation=(2, 1)
        ),  # and blocks of channels
        _registers((1, 7, 5, 6), F16, 12, (1, 1), stride=2),  # columns between windows
        _registers((2, 4, 3, 4), BF16, 8, (3, 3), padding="same"),
        _registers((1, 2, 2, 1), F32, 2, (2, 1), stride=2, offset=(-2, 3), out_size=(3, 2)),  # in constant memory
        _registers((1, 3, 4, 3), F32, 4, (1, 9), padding=(0, 8)),
        _registers((3, 40, 7, 8), F32, 4, (3, 3), padding=1),  # several parts
        _registers((2, 23, 5, 4), F32, 4, (3, 1), crowded=True),
        # Few channels in sixteen bits.
        _tensor_core((2, 5, 8, 8), F16, 16, (3, 3), padding=1),
        _tensor_core((2, 9, 21, 16), BF16, 8, (2, 3), stride=(1, 2), padding=(0, 2)),  # windows that had their turn
        _tensor_core(
            (3, 7, 19, 24), F16, 8, (3, 2), stride=2, offset=(-1, 3), out_size=(5, 9)
        ),  # an odd number of eights
        _tensor_core((2, 12, 9, 64), BF16, 48, (1, 2), padding=(2, 0)),  # blocks of x's channels
        _tensor_core((1, 2, 64, 56), F16, 40, (2, 1)),
        _tensor_core((3, 23, 8, 8), BF16, 8, (3, 3), crowded=True, padding="same"),
        _tensor_core((2, 5, 8, 8), BF16, 16, (3, 3), padding=1, room=3200),  # strips of two rows, two and one
        # An odd number of eights of windows, and a part of fewer strips.
        _tensor_core((3, 3, 9, 8), F16, 64, (1, 2), fill=4),
    ]
