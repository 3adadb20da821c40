"""The cases of `cases` whose convolutions give each channel outputs of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import oracle
from support import close, exact, numbers

import mpsfunc as mf
from kernels.case import Case, named
from mpsfunc import _conv_stages, _launch
from mpsfunc._launch import Stage

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def _run(stages: tuple[Stage, ...], *arrays: mx.array) -> mx.array:
    results = stages[-1].results
    return _launch.launch("depthwise", arrays, (), results, lambda: stages, mx.default_stream(mx.cpu))[0]


def _depthwise(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    each: int,
    kernel: tuple[int, int],
    crowded: bool = False,
    **placement: Any,
) -> list[Case]:
    groups, out = shape[3], shape[3] * each
    w_shape = (out, *kernel, 1)

    def prepared() -> tuple[mf.ConvState, mx.array, mx.array, mx.array]:
        state = mf.conv_state(shape, w_shape, groups=groups, **placement)
        dy = numbers((shape[0], state.rows.n_out, state.cols.n_out, out), dtype, 2)
        return state, numbers(shape, dtype), numbers(w_shape), dy

    def compare(
        stages: Callable[[int], tuple[Stage, ...]], definition: Callable[..., np.ndarray], *arrays: mx.array
    ) -> None:
        """With a bias, and with negative values made 0 as well."""
        values = [exact(a) for a in arrays]
        right, size = definition(*values), definition(*map(abs, values))
        close(_run(stages(0), *arrays), right, size)
        close(_run(stages(1), *arrays), np.maximum(right, 0), size)

    def forward() -> None:
        state, x, w, _ = prepared()
        compare(
            lambda neuron: _conv_stages.depthwise_stages(state, shape, out, dtype, neuron),
            lambda x, w, b: oracle.conv(x, w, b, state.rows, state.cols, groups),
            *(x, w, numbers((out,), seed=3)),
        )

    def grad_input() -> None:
        state, _, w, dy = prepared()
        compare(
            lambda neuron: _conv_stages.depthwise_grad_input_stages(state, dy.shape, dtype, neuron),
            lambda dy, w, b: oracle.conv_grad_input(dy, w, state.rows, state.cols, groups) + b,
            *(dy, w, numbers((groups,), seed=3)),
        )
        values = [exact(dy), exact(w)]
        size = oracle.conv_grad_input(*map(abs, values), state.rows, state.cols, groups)
        close(mf.conv_grad_input(dy, w, state), oracle.conv_grad_input(*values, state.rows, state.cols, groups), size)

    def grad_weights() -> None:
        state, x, _, dy = prepared()
        made = mf.conv_grad_weights(dy, x, state)
        right, size = (
            oracle.conv_grad_weights(a, b, state.rows, state.cols, groups)
            for a, b in ((exact(dy), exact(x)), (abs(exact(dy)), abs(exact(x))))
        )
        close(made.dw, right, size)

    told = {"each": each, "k": kernel, **placement}
    third = ("conv_depthwise_grad_weights", "conv_grad_bias", "sum_partials")
    return [
        Case(named("conv_depthwise", shape, dtype, **told), ("conv_depthwise",), forward, crowded),
        Case(
            named("conv_depthwise_grad_input", shape, dtype, **told),
            ("conv_depthwise_grad_input",),
            grad_input,
            crowded,
        ),
        Case(named("conv_depthwise_grad_weights", shape, dtype, **told), third, grad_weights, crowded),
    ]


def depthwise() -> list[Case]:
    return [
        *_depthwise((2, 5, 6, 8), F32, 1, (3, 3), padding=1),  # four channels a load
        *_depthwise((2, 7, 9, 3), F32, 2, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
        *_depthwise((1, 6, 5, 12), F16, 1, (3, 2), stride=2, padding="same"),
        *_depthwise((1, 4, 3, 4), BF16, 2, (3, 3), padding="same"),
        *_depthwise((1, 1, 3, 2), F32, 1, (1, 2)),  # in constant memory
        *_depthwise((2, 4, 6, 2), F16, 1, (2, 2), stride=2, offset=(-3, 4), out_size=(4, 3)),  # windows outside
        *_depthwise((3, 6, 9, 64), F32, 2, (2, 1), crowded=True),
    ]
