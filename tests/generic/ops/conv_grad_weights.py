"""The gradients of a convolution's weights and bias: `conv_grad_weights`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Call, Loads, OpInfo, Sample, call
from generic.ops.conv import (
    ALL,
    BF16,
    F16,
    F32,
    GEOMETRIES,
    KINDS,
    LAYERS,
    MEASURED,
    NARROW,
    PLAIN,
    POOLING,
    X,
    before_neuron,
    body_case,
    larger,
    on_gpu,
    prepared,
    so_far,
    windows,
)
from generic.ops.conv_grad import CONVOLVED, DY, PART, SLOPED, SLOPED_EXACTLY, STATE, X_WIDE
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, READS_5, SHAPE, WEIGHTS
from support import close, exact, numbers
from support.oracle import convolution as oracle
from support.oracle.windows import within

import mpsfunc as mf
from mpsfunc.convolution import launches
from mpsfunc.core import grids, launch

# What they should give ----------------------------------------------------------------------------------


def _grad_weights(
    dy: np.ndarray, x: np.ndarray, state: Call, source_window: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    dz = before_neuron(within(dy, source_window), state)
    (rows, cols, groups), (dw, db) = windows(state), so_far(state)
    return dw + oracle.conv_grad_weights(dz, x, rows, cols, groups), db + oracle.conv_grad_bias(dz)


# Kernel cases -------------------------------------------------------------------------------------------


def _check(*geometry: Any, **how: Any) -> None:
    spec, x, w, dy = prepared(*geometry, **how)
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    how.pop("groups", None)
    made = mf.conv_grad_weights(dy, x, mf.conv_state(x.shape, w.shape, groups=groups, **how))
    values = exact(dy), exact(x)
    for actual, definition in (
        (made.dw, lambda dy, x: oracle.conv_grad_weights(dy, x, rows, cols, groups)),
        (made.db, lambda dy, x: oracle.conv_grad_bias(dy)),
    ):
        close(actual, definition(*values), definition(*map(abs, values)))


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
        less = contextlib.nullcontext() if crowded else mock.patch.object(grids, "FILL", fill)
        on_cuda = mock.patch.object(launch, "backend", lambda stream: "cuda")
        with on_cuda, less, mock.patch.object(launches, "_STRIP", room):
            _check(shape, dtype, out, kernel, **how)

    bodies = (f"conv_grad_weights_{body}", "conv_grad_bias", "sum_partials")
    return Case(named(bodies[0], shape, dtype, out=out, k=kernel, **how), bodies, check, crowded)


_SIMT: tuple[Any, ...] = (
    ((2, 5, 6, 3), F32, 5, (3, 2), {"stride": 2, "padding": 1, "dilation": (1, 2)}),
    ((1, 6, 5, 8), F16, 4, (2, 3), {"groups": 2, "dilation": (2, 1), "padding": (1, 2)}),
    ((2, 4, 3, 4), BF16, 8, (3, 4), {"padding": "same"}),
    ((1, 2, 2, 1), F32, 2, (2, 1), {"stride": (2, 3), "offset": (-2, 3), "out_size": (3, 1)}),
    ((3, 14, 13, 2), F32, 70, (2, 1), {}),
    ((2, 7, 5, 70), F32, 3, (1, 2), {"padding": (0, 1)}),
    ((1, 23, 23, 1), F32, 100, (1, 1), {"crowded": True}),
)
# Few channels.
_REGISTERS: tuple[Any, ...] = (
    ((2, 5, 6, 3), F32, 5, (3, 2), {"stride": 2, "padding": 1}),
    ((2, 9, 11, 16), F32, 16, (3, 3), {"padding": 1}),  # several channels a load; columns left over
    # And blocks of channels.
    ((2, 6, 9, 34), F32, 20, (2, 3), {"padding": (1, 2), "stride": (3, 1), "dilation": (2, 1)}),
    ((1, 7, 5, 6), F16, 12, (1, 1), {"stride": 2}),  # columns between windows
    ((2, 4, 3, 4), BF16, 8, (3, 3), {"padding": "same"}),
    # In constant memory.
    ((1, 2, 2, 1), F32, 2, (2, 1), {"stride": 2, "offset": (-2, 3), "out_size": (3, 2)}),
    ((1, 3, 4, 3), F32, 4, (1, 9), {"padding": (0, 8)}),
    ((3, 40, 7, 8), F32, 4, (3, 3), {"padding": 1}),  # several parts
    ((2, 23, 5, 4), F32, 4, (3, 1), {"crowded": True}),
)
# Few channels in sixteen bits.
_TENSOR_CORE: tuple[Any, ...] = (
    ((2, 5, 8, 8), F16, 16, (3, 3), {"padding": 1}),
    ((2, 9, 21, 16), BF16, 8, (2, 3), {"stride": (1, 2), "padding": (0, 2)}),  # windows that had their turn
    # An odd number of eights.
    ((3, 7, 19, 24), F16, 8, (3, 2), {"stride": 2, "offset": (-1, 3), "out_size": (5, 9)}),
    ((2, 12, 9, 64), BF16, 48, (1, 2), {"padding": (2, 0)}),  # blocks of x's channels
    ((1, 2, 64, 56), F16, 40, (2, 1), {}),
    ((3, 23, 8, 8), BF16, 8, (3, 3), {"crowded": True, "padding": "same"}),
    ((2, 5, 8, 8), BF16, 16, (3, 3), {"padding": 1, "room": 3200}),  # strips of two rows, two and one
    # An odd number of eights of windows, and a part of fewer strips.
    ((3, 3, 9, 8), F16, 64, (1, 2), {"fill": 4}),
)


def _cases() -> Iterator[Case]:
    for geometry in GEOMETRIES:
        yield body_case("_grad_weights", _check, geometry, "conv_grad_bias", "sum_partials")
    yield from (_on_cuda("simt", *geometry, **how) for *geometry, how in _SIMT)
    yield from (_on_cuda("registers", *geometry, **how) for *geometry, how in _REGISTERS)
    yield from (_on_cuda("tensor_core", *geometry, **how) for *geometry, how in _TENSOR_CORE)


# What bodies load ---------------------------------------------------------------------------------------


def _grown(x: mx.array, kernel: int = 3, *, groups: int = 1) -> None:
    state = mf.conv_state(SHAPE, (16, kernel, kernel, 16 // groups), padding=kernel // 2, groups=groups)
    mf.conv_grad_weights(numbers(SHAPE, x.dtype, 1), x, state)


def _conv() -> None:
    _grown(numbers(SHAPE))


def _depthwise() -> None:
    _grown(numbers(SHAPE), groups=16)


def _grown_on_cuda(x: mx.array, kernel: int) -> None:
    with mock.patch.object(launch, "backend", lambda stream: "cuda"):
        _grown(x, kernel)


def _of_few_taps() -> None:
    _grown_on_cuda(numbers(SHAPE), 3)


def _of_many_taps() -> None:
    _grown_on_cuda(numbers(SHAPE), 5)


def _in_16_bits() -> None:
    _grown_on_cuda(numbers(SHAPE, BF16), 3)


_LOADS = {
    # 144 weights of an output are three tiles.
    "conv_grad_weights": Loads(_conv, {"dy": (IMAGE, 3 * IMAGE), "x": ALL}),
    # 400 weights of an output are seven tiles.
    "conv_grad_weights_simt": Loads(_of_many_taps, {"dy": (IMAGE, 7 * IMAGE), "x": (IMAGE, READS_5 * IMAGE)}),
    # Lanes for dy and x are four by eight; what is loaded of a row serves all columns of its windows.
    "conv_grad_weights_registers": Loads(
        _of_few_taps, {"dy": (IMAGE, 8 * IMAGE), "x": (IMAGE, 4 * (3 - 2 / 12) * IMAGE)}
    ),
    "conv_grad_weights_tensor_core": Loads(_in_16_bits, dict.fromkeys(("dy", "x"), (IMAGE // 2, IMAGE / 2))),
    # Nine taps are five and four.
    "conv_depthwise_grad_weights": Loads(_depthwise, {"dy": (IMAGE, 2 * IMAGE), "x": ALL}),
    "conv_grad_bias": Loads(_conv, {"dy": (IMAGE, IMAGE)}),
    "sum_partials": Loads(_conv, {"partial": (WEIGHTS, WEIGHTS)}),
}

# What is measured ---------------------------------------------------------------------------------------

_WITH_NARROW = on_gpu(LAYERS + NARROW)
_MEASURED = {
    "conv_grad_weights": MEASURED._replace(gpu=_WITH_NARROW),
    "conv_grad_weights_vjp": MEASURED._replace(
        title="conv_grad_weights by mx.vjp",
        cpu=(),
        gpu=on_gpu(LAYERS + NARROW, ("bfloat16",)),  # of float32 it is the same work
    ),
}

# The record ---------------------------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="conv_grad_weights",
        samples={
            **{
                label: Sample(call("conv_grad_weights", *kind.arrays("dy", "x"), kind.state_of()), (0, 1))
                for label, kind in KINDS.items()
            },
            "of a prelu": Sample(call("conv_grad_weights", DY, X_WIDE, SLOPED), (0, 1)),
            "of a prelu of powers of two": Sample(
                call("conv_grad_weights", *POOLING.arrays("dy", "x"), SLOPED_EXACTLY), (0, 1)
            ),
            "of a source window": Sample(
                call("conv_grad_weights", *PLAIN.arrays("dy", "x"), PLAIN.state_of(), source_window=PART), (0, 1)
            ),
            **larger(lambda kind: call("conv_grad_weights", *kind.arrays("dy", "x"), kind.state), (0, 1)),
        },
        image="x",
        reference=_grad_weights,
        wrong_values=(
            ("x does not belong to this state", lambda: mf.conv_grad_weights(CONVOLVED, X[:, :5], STATE)),
            ("x does not belong to this state", lambda: mf.conv_grad_weights(CONVOLVED, X[:1], STATE)),
            (
                "source_window has a negative size",
                lambda: mf.conv_grad_weights(CONVOLVED, X, STATE, source_window=((0, 0), (-1, 1))),
            ),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: mf.conv_grad_weights(CONVOLVED.astype(mx.float16), X, STATE)),
            (
                "state.db has no floating dtype",
                lambda: mf.conv_grad_weights(CONVOLVED, X, STATE._replace(db=mx.zeros((6,), mx.complex64))),
            ),
        ),
        cases=_cases,
        loads=_LOADS,
        benchmarks=_MEASURED,
    ),
)
