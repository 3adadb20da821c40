"""The gradients of a convolution's images, and of all its arguments: `conv_grad_input` and `conv_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, OpInfo, Sample, call
from generic.ops.conv import (
    ALL,
    CHANNEL_BY_CHANNEL,
    GEOMETRIES,
    KINDS,
    MEASURED,
    PLAIN,
    POOLING,
    WHOLE_GROUPS,
    Kind,
    W,
    X,
    before_neuron,
    body_case,
    compare,
    labelled,
    larger,
    prepared,
    so_far,
    windows,
)
from metal_host.case import Case
from metal_host.geometry import SHAPE
from support import numbers
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc.convolution import rules

# Samples, and what they should give ----------------------------------------------------------------------

# All in the accumulator's dtype: a slope is rounded to the images', which no definition knows.
DY, X_WIDE, W_WIDE = POOLING.arrays("dy", "x", "w", wide=True)
SLOPED = POOLING.state_of("prelu", y=DY, slopes=Array(POOLING.w[:1], wide=True))
BENT = POOLING.state_of("tanh", 1.5, 0.5, y=DY)


def _relu(kind: Kind) -> Call:
    return kind.state_of("relu", y=Array(kind.y))


def _from_forward(kind: Kind) -> Call:
    """A state as a forward call makes it."""
    return call("conv_fwd", *kind.arrays("x", "w", "b"), neuron="relu", take=1, **kind.how)


def _grad_input(dy: np.ndarray, w: np.ndarray, state: Call, kernel_offset: Any = None) -> np.ndarray:
    (rows, cols, groups), dz = windows(state), before_neuron(dy, state)
    if kernel_offset is None:
        return oracle.conv_grad_input(dz, w, rows, cols, groups)
    strides, dilations = (rows.stride, cols.stride), (rows.dilation, cols.dilation)
    return oracle.framed(
        dz, oracle.turned(w, groups), (rows.n_in, cols.n_in), strides, kernel_offset, dilations, groups
    )


def grad(dy: np.ndarray, x: np.ndarray, w: np.ndarray, state: Call, option: str = "all") -> tuple[np.ndarray, ...]:
    (rows, cols, groups), dz, (dw, db) = windows(state), before_neuron(dy, state), so_far(state)
    dx = oracle.conv_grad_input(dz, w, rows, cols, groups)
    grown = dw + oracle.conv_grad_weights(dz, x, rows, cols, groups), db + oracle.conv_grad_bias(dz)
    return (dx, *grown) if option == "all" else (dx,) if option == "data" else grown


# Kernel cases -------------------------------------------------------------------------------------------


def _check(shape: tuple[int, ...], *geometry: Any, **how: Any) -> None:
    spec, _, w, dy = prepared(shape, *geometry, **how)
    b = numbers((shape[3],), seed=3)
    compare(
        lambda act: rules.grad_input(dy, w, b, spec._replace(neuron=act)),
        lambda dy, w, b: oracle.conv_grad_input(dy, w, spec.rows, spec.cols, spec.groups) + b,
        *(dy, w, b),
    )


def _cases() -> Iterator[Case]:
    yield from (body_case("_grad_input", _check, geometry) for geometry in GEOMETRIES)


# What bodies load ---------------------------------------------------------------------------------------


def _conv() -> None:
    w = numbers((16, 3, 3, 16))
    mf.conv_grad_input(numbers(SHAPE), w, mf.conv_state(SHAPE, w.shape, padding=1))


def _depthwise() -> None:
    w = numbers((16, 3, 3, 1))
    mf.conv_grad_input(numbers(SHAPE), w, mf.conv_state(SHAPE, w.shape, padding=1, groups=16))


# Wrong calls, and the records ---------------------------------------------------------------------------

CONVOLVED = mx.ones((2, 6, 5, 6))
STATE = mf.conv_state(X.shape, W.shape, padding=1)
_, _RELU = mf.conv_fwd(X, W, padding=1, neuron="relu")


def _forged(**fields: Any) -> mf.ConvState:
    """A clamped state whose windows along y say something else."""
    state = mf.conv_state(X.shape, W.shape, padding=1, edge_mode="clamp")
    return state._replace(rows=state.rows._replace(**fields))


def _of(state: mf.ConvState) -> Any:
    return lambda: mf.conv_grad_input(CONVOLVED, W, state)


OPS = (
    OpInfo(
        name="conv_grad_input",
        samples={
            **{label: call("conv_grad_input", *kind.arrays("dy", "w"), kind.state) for label, kind in KINDS.items()},
            "in a frame": call("conv_grad_input", *PLAIN.arrays("dy", "w"), PLAIN.state, kernel_offset=(2, -1)),
            "of a prelu": call(
                "conv_grad_input",
                *(DY, W_WIDE),
                POOLING.state_of("prelu", y=DY, slopes=Array(POOLING.w[:1], wide=True), moves=False),
            ),
            **larger(lambda kind: call("conv_grad_input", *kind.arrays("dy", "w"), kind.state)),
        },
        image="dy",
        reference=_grad_input,
        linear=(0, 1),
        wrong_values=(
            ("an image is too large", _of(_forged(n_in=2**31 - 1))),
            ("the state does not fit together", _of(STATE._replace(groups=-1))),
            ("the state does not fit together", _of(STATE._replace(groups="a"))),
            ("dy does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED[:1], W, _RELU)),
            ("dy does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED[:, 1:], W, STATE)),
            ("w does not belong to this state", lambda: mf.conv_grad_input(CONVOLVED, W[:, :2], STATE)),
            ("windows reach too far", lambda: mf.conv_grad_input(CONVOLVED, W, STATE, kernel_offset=2**30)),
        ),
        wrong_types=(
            ("the state has no windows", _of(STATE._replace(rows=None))),
            ("the state has no windows", _of(_forged(edge="relu"))),
        ),
        cases=_cases,
        loads={
            "conv_grad_input": Loads(_conv, WHOLE_GROUPS | {"dy": ALL}),
            "conv_depthwise_grad_input": Loads(_depthwise, CHANNEL_BY_CHANNEL | {"dy": ALL}),
        },
        benchmarks={"conv_grad_input": MEASURED},
    ),
    OpInfo(
        name="conv_grad",
        samples={
            **{
                labelled(label, "of a relu"): Sample(
                    call("conv_grad", *kind.arrays("dy", "x", "w"), _relu(kind)), (0, 1, 2)
                )
                for label, kind in KINDS.items()
            },
            "of a prelu": Sample(call("conv_grad", DY, X_WIDE, W_WIDE, SLOPED), (0, 1, 2)),
            "of a tanh": Sample(call("conv_grad", DY, X_WIDE, W_WIDE, BENT), (0, 1, 2)),
            "of the images": Sample(
                call("conv_grad", *PLAIN.arrays("dy", "x", "w"), PLAIN.state, option="data"), (0,), in_matrix=False
            ),
            "of the parameters": Sample(
                call("conv_grad", *PLAIN.arrays("dy", "x", "w"), PLAIN.state, option="weights_and_bias"),
                (0, 1),
                in_matrix=False,
            ),
            **larger(lambda kind: call("conv_grad", *kind.arrays("dy", "x", "w"), _from_forward(kind)), (0, 1, 2)),
        },
        image="x",
        reference=grad,
        wrong_values=(
            (
                "windows reach too far",
                lambda: mf.conv_grad(CONVOLVED, X, W, STATE, option="weights_and_bias", kernel_offset=2**30),
            ),
            ("unknown option", lambda: mf.conv_grad(CONVOLVED, X, W, STATE, option="weights")),
            ("x does not belong to this state", lambda: mf.conv_grad(CONVOLVED, X[:1], W, STATE)),
            ("w does not belong to this state", lambda: mf.conv_grad(CONVOLVED, X, W[:5], STATE)),
        ),
    ),
)
