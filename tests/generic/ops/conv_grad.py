"""The gradients of a convolution's images, and of all its arguments: `conv_grad_input` and `conv_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, OpInfo, Sample, call
from generic.ops.conv import (
    ACTIVE,
    ALL,
    CHANNEL_BY_CHANNEL,
    GEOMETRIES,
    KINDS,
    MEASURED,
    NEURONS,
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
from support.oracle.windows import within

import mpsfunc as mf
from mpsfunc.convolution import rules

# Samples, and what they should give ----------------------------------------------------------------------

# Whose slopes are powers of two: what dy is multiplied by leaves no rounding, which no definition knows.
EXACT: dict[str, tuple[Any, ...]] = {"a leaky relu": ("relu", 0.25)}
EXACT_SLOPES = Fixed((0.25, -0.5, 2.0, 0.5))
# Images in the accumulator's dtype, since dy times a slope is rounded to theirs, which no definition knows.
DY, X_WIDE, Y_WIDE, W_WIDE = POOLING.arrays("dy", "x", "y", "w", wide=True)
_SLOPES = POOLING.arrays("b")[0]
SLOPED = POOLING.state_of("prelu", y=Y_WIDE, slopes=_SLOPES)
SLOPED_EXACTLY = POOLING.state_of("prelu", y=Array(POOLING.y), slopes=EXACT_SLOPES)
BENT = POOLING.state_of("tanh", 1.5, 0.5, y=Y_WIDE)
# A sum of positive terms is as exact as they are.
_POSITIVE = POOLING.arrays("dy", "w", of="positive")


def behind(function: str, kind: Any, state: Callable[..., Call]) -> dict[str, Sample]:
    """All gradients behind each neuron, as functions of what tells its slope too.

    dy times a slope is rounded to dy's dtype, and sums of that are not: all but `EXACT` have wide images.
    """
    made = {}
    for label, how in (NEURONS | EXACT).items():
        dy, x, y = kind.arrays("dy", "x", "y", wide=label not in EXACT)
        inner = state(*how, y=y, moves=False)
        made[f"behind {label}"] = Sample(call(function, dy, x, *kind.arrays("w"), inner), (0, 1, 2))
    return made


def _relu(kind: Kind) -> Call:
    return kind.state_of("relu", y=Array(kind.y))


def _from_forward(kind: Kind) -> Call:
    """A state as a forward call makes it."""
    return call("conv_fwd", *kind.arrays("x", "w", "b"), neuron="relu", take=1, **kind.how)


def _grad_input(
    dy: np.ndarray, w: np.ndarray, state: Call, kernel_offset: Any = None, source_window: Any = None
) -> np.ndarray:
    (rows, cols, groups), dz = windows(state), before_neuron(within(dy, source_window), state)
    if kernel_offset is None:
        return oracle.conv_grad_input(dz, w, rows, cols, groups)
    strides, dilations = (rows.stride, cols.stride), (rows.dilation, cols.dilation)
    return oracle.framed(
        dz, oracle.turned(w, groups), (rows.n_in, cols.n_in), strides, kernel_offset, dilations, groups
    )


def grad(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, state: Call, option: str = "all", source_window: Any = None
) -> tuple[np.ndarray, ...]:
    dz = before_neuron(within(dy, source_window), state)
    (rows, cols, groups), (dw, db) = windows(state), so_far(state)
    dx = oracle.conv_grad_input(dz, w, rows, cols, groups)
    grown = dw + oracle.conv_grad_weights(dz, x, rows, cols, groups), db + oracle.conv_grad_bias(dz)
    return (dx, *grown) if option == "all" else (dx,) if option == "data" else grown


PART = ((1, 0), (2, 1))

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
_, _GELU = mf.conv_fwd(X, W, padding=1, neuron="gelu")
_, _SIGMOID = mf.conv_fwd(X, W, padding=1, neuron="sigmoid")
_, _PRELU = mf.conv_fwd(X, W, padding=1, neuron=mf.Neuron("prelu", mx.ones(6)))


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
            "of a source window": call("conv_grad_input", *PLAIN.arrays("dy", "w"), PLAIN.state, source_window=PART),
            "in a frame": call("conv_grad_input", *PLAIN.arrays("dy", "w"), PLAIN.state, kernel_offset=(2, -1)),
            "of a prelu": call(
                *("conv_grad_input", *_POSITIVE),
                POOLING.state_of("prelu", y=Array(POOLING.y), slopes=Array(_SLOPES.shape, "positive"), moves=False),
            ),
            "of a gelu": call("conv_grad_input", *_POSITIVE, POOLING.state_of("gelu", y=Array(POOLING.y), moves=False)),
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
            (
                "source_window is not two pairs",
                lambda: mf.conv_grad_input(CONVOLVED, W, STATE, source_window=(1, 2, 3)),
            ),
            (
                "source_window has a negative size",
                lambda: mf.conv_grad_input(CONVOLVED, W, STATE, source_window=((0, 0), (1, -1))),
            ),
            ("unknown neuron", _of(_GELU._replace(neuron="maxout"))),
            ("state.a is out of range", _of(_GELU._replace(a=float("nan")))),
            ("c is not a possible base", _of(_GELU._replace(neuron="logarithm", a=1.0, c=0.0))),
            ("dy does not belong to this state", _of(_GELU._replace(y=_GELU.y[:1]))),
            ("dy does not belong to this state", _of(_SIGMOID._replace(y=_SIGMOID.y[:, 1:]))),
            ("the slopes do not fit the channels", _of(_PRELU._replace(slopes=mx.ones(5)))),
            ("the slopes do not fit the channels", _of(_GELU._replace(neuron="prelu"))),
        ),
        wrong_types=(
            ("the state has no windows", _of(STATE._replace(rows=None))),
            ("the state has no windows", _of(_forged(edge="relu"))),
            ("state.neuron is not a name", _of(_GELU._replace(neuron=15))),
            ("state.b is not a number", _of(_GELU._replace(b=None))),
            ("dy and state.y differ in dtype", _of(_GELU._replace(y=_GELU.y.astype(mx.float16)))),
            ("a has no floating dtype", _of(_PRELU._replace(slopes=mx.ones(6, mx.int32)))),
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
            **behind("conv_grad", ACTIVE, ACTIVE.state_of),
            "behind a prelu": Sample(
                call(
                    *("conv_grad", *ACTIVE.arrays("dy", "x", wide=True), *ACTIVE.arrays("w")),
                    ACTIVE.state_of("prelu", y=Array(ACTIVE.y, wide=True), slopes=Array(ACTIVE.w[:1]), moves=False),
                ),
                (0, 1, 2),
            ),
            "of a prelu": Sample(call("conv_grad", *POOLING.arrays("dy", "x", "w"), SLOPED_EXACTLY), (0, 1, 2)),
            "of a tanh": Sample(call("conv_grad", DY, X_WIDE, W_WIDE, BENT), (0, 1, 2), in_matrix=False),
            "of a source window": Sample(
                call("conv_grad", *PLAIN.arrays("dy", "x", "w"), PLAIN.state_of(), source_window=PART), (0, 1, 2)
            ),
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
