"""Transposed convolution: `conv_transpose`, `conv_transpose_fwd`, `conv_transpose_grad` and those of one argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, call
from generic.ops.conv import (
    ACTIVE,
    NOTHING,
    OUT,
    POOLING,
    SAME,
    SMALL,
    activated,
    active,
    axes,
    before_neuron,
    so_far,
    windows,
    with_kept,
)
from generic.ops.conv_grad import EXACT, behind
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples ------------------------------------------------------------------------------------------------

BACK: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "dilation": (1, 2)}
FRAME: dict[str, Any] = {"stride": 2, "offset": (0, 1), "kernel_offset": (1, -1), "out_size": (7, 6)}


class _Way(NamedTuple):
    """A transposed convolution, and the convolution that leads back."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: dict[str, Any]
    out: tuple[int, int]
    back: dict[str, Any]

    @property
    def groups(self) -> int:
        return self.how.get("groups", 1)

    @property
    def y(self) -> tuple[int, ...]:
        return self.x[0], *self.out, self.w[0]

    def arrays(self, *names: str, of: Any = "numbers", wide: bool = False) -> tuple[Array, ...]:
        shapes = {"x": self.x, "w": self.w, "b": self.w[:1], "dy": self.y, "y": self.y}
        return tuple(Array(shapes[name], of, wide) for name in names)

    def state(self, neuron: str = "", *more: float, y: Any = NOTHING, moves: bool = True) -> Call:
        """As `Kind.state_of` makes it."""
        grown = Array(self.w, wide=True, moves=moves), Array(self.w[:1], wide=True, moves=moves)
        w_shape = (self.x[3], *self.w[1:3], self.w[0] // self.groups)
        rows, cols = (call("conv_state", self.y, w_shape, take=take, **self.back) for take in (10, 11))
        a, b, c = (*more, 0.0, 0.0, 0.0)[:3]
        of = "conv_transpose", neuron, a, b, c, self.groups, rows, cols, "out_size" in self.how
        return call("ConvTransposeState", *grown, y, NOTHING, *of)

    def from_forward(self, neuron: str) -> Call:
        return call("conv_transpose_fwd", *self.arrays("x", "w", "b"), neuron=neuron, take=1, **self.how)


_LEADS_BACK: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
WAYS = {
    "in pixels": _Way(SMALL, (OUT, 3, 2, 4), BACK, (10, 6), _LEADS_BACK),
    "in pixels in groups": _Way(SMALL, (OUT, 3, 2, 2), {**BACK, "groups": 2}, (10, 6), {**_LEADS_BACK, "groups": 2}),
    # Half of five rows less is cut off in front, and of two columns less one.
    "of the size times the stride": _Way(
        *((2, 3, 4, 4), (OUT, 5, 3, 4), {"stride": (1, 2), "padding": "same"}, (3, 8)),
        {"stride": (1, 2), "padding": ((2, 2), (0, 1))},
    ),
    "as MPS": _Way(
        *(SMALL, (OUT, 3, 2, 2), {**FRAME, "groups": 2}, (7, 6)),
        {"stride": 2, "offset": (-1, 0), "out_size": (5, 4), "groups": 2},
    ),
}
_LARGER = _Way(
    *((2, 5, 4, 6), (8, 3, 3, 6), {"stride": 2, "padding": 1, "output_padding": 1}, (10, 8)),
    {"stride": 2, "padding": 1},
)
_TO_POOLING = _Way(POOLING.y, POOLING.w, {"stride": 2, "padding": 1, "output_padding": (0, 1)}, (5, 4), POOLING.how)
_TO_ACTIVE = _Way(ACTIVE.y, (3, 2, 2, 4), {}, (3, 4), {})
# In the accumulator's dtype: dy times a slope is rounded to the images', which no definition knows.
DY, X_WIDE, W_WIDE = _TO_POOLING.arrays("dy", "x", "w", wide=True)
_BENT: Any = "tanh", 1.5, 0.5
# Whose arrays say nothing of where its windows sit.
_CONVOLVED = call("conv_fwd", *(a._replace(moves=False) for a in POOLING.arrays("x", "w")), take=1, **POOLING.how)

# What they should give -----------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where pixels put down their multiples of the weights; in MPS's form the weights are rotated."""

    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    rotated: bool = False


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _in_pixels(padding: Any = 0, stride: Any = 1, dilation: Any = 1, groups: int = 1, **more: Any) -> _Place:
    padding = ((2, 2), (0, 1)) if padding == "same" else padding  # of the one sample that says so
    (top, left) = (side[0] if isinstance(side, tuple) else side for side in _pair(padding))
    return _Place(_pair(stride), (top, left), _pair(dilation), groups)


def _summed(x: np.ndarray, w: np.ndarray, b: Any = 0.0, **how: Any) -> np.ndarray:
    place = _in_pixels(**how)
    lengths, sizes = x.shape[1:3], w.shape[1:3]
    if how.get("state"):
        return oracle.conv_grad_input(x, oracle.turned(w), *windows(how["state"])) + b
    if how.get("out_size"):
        offsets = zip(_pair(how.get("offset", 0)), place.stride, _pair(how.get("kernel_offset", 0)), strict=True)
        total = [offset * stride + more for offset, stride, more in offsets]
        return oracle.framed(x, w, _pair(how["out_size"]), place.stride, total, place.dilation, place.groups) + b
    padding = how.get("padding", 0)
    if padding == "same":
        return oracle.scattered(x, w, [n * s for n, s in zip(lengths, place.stride, strict=True)], *place[:4]) + b
    cut = [sum(side) if isinstance(side, tuple) else 2 * side for side in _pair(padding)]
    out = [
        (n - 1) * stride + (size - 1) * dilation + 1 - less + more
        for n, stride, size, dilation, less, more in zip(
            *(lengths, place.stride, sizes, place.dilation, cut, _pair(how.get("output_padding", 0))), strict=True
        )
    ]
    return oracle.scattered(x, w, out, *place[:4]) + b


def transposed(*args: Any, neuron: Any = None, **how: Any) -> np.ndarray:
    return activated(_summed(*args, **how), neuron)


def _forward(*args: Any, neuron: str, **how: Any) -> tuple[np.ndarray, ...]:
    return with_kept(_summed(*args, **how), neuron)


def _place(state: Call) -> _Place:
    if state.function == "conv_transpose_fwd":
        return _in_pixels(**state.how)
    *_, groups, rows, cols, rotated = state.args
    (rows, _), (_, cols) = (axes(*each.args, **each.how) for each in (rows, cols))
    return _Place((rows.stride, cols.stride), (rows.pad, cols.pad), (rows.dilation, cols.dilation), groups, rotated)


def _gathered(dy: np.ndarray, x: np.ndarray, w: np.ndarray, state: Call) -> tuple[np.ndarray, ...]:
    """The gradients of the images, the weights and the bias."""
    place = _place(state)
    way = np.s_[:, ::-1, ::-1] if place.rotated else np.s_[:]
    dz = before_neuron(dy, state, _summed)
    dx, dw = oracle.gathered(dz, x, w[way], *place[:4])
    return dx, dw[way], oracle.conv_grad_bias(dz)


def _grad(dy: np.ndarray, x: np.ndarray, w: np.ndarray, state: Call, option: str = "all") -> tuple[np.ndarray, ...]:
    dx, *grown = _gathered(dy, x, w, state)
    dw, db = (before + more for before, more in zip(so_far(state), grown, strict=True))
    return (dx, dw, db) if option == "all" else (dx,) if option == "data" else (dw, db)


def _source(state: Call, n: int) -> tuple[int, ...]:
    """The shape of the images that a state's forward call took."""
    if state.function == "conv_transpose_fwd":
        return state.args[0].shape
    w, rows, groups = state.args[0], state.args[10], state.args[9]
    at, to = axes(*rows.args, **rows.how)
    return n, at.n_out, to.n_out, w.shape[3] * groups


def _grad_input(dy: np.ndarray, w: np.ndarray, state: Call) -> np.ndarray:
    return _gathered(dy, np.zeros(_source(state, len(dy))), w, state)[0]


def _grad_weights(dy: np.ndarray, x: np.ndarray, state: Call) -> tuple[np.ndarray, ...]:
    w = state.args[1] if state.function == "conv_transpose_fwd" else state.args[0]
    return _grad(dy, x, np.zeros(w.shape), state, option="weights_and_bias")


# Wrong calls, and the records ---------------------------------------------------------------------------

X, W = mx.zeros((1, 4, 4, 2)), mx.zeros((3, 3, 3, 2))
LEFT = mf.conv_state((1, 8, 8, 3), (2, 3, 3, 3), stride=2, padding=1)
Y, STATE = mf.conv_transpose_fwd(X, W)


def _with(**how: Any) -> Any:
    return lambda: mf.conv_transpose(X, W, **how)


_WRONG_VALUES = (
    ("nothing is left of the output", _with(padding=4)),
    ("padding is negative, only offsets crop so", _with(padding=-1)),
    ("output_padding is too large", _with(output_padding=1)),
    ("output_padding is too small", _with(output_padding=-1)),
    ("output_padding is for padding in pixels", _with(output_padding=1, offset=0, out_size=4)),
    ("output_padding is for padding in pixels", _with(output_padding=1, stride=2, padding="same")),
    ("unknown padding", _with(padding="valid")),
    ("an offset or a state excludes padding", _with(padding="same", offset=0, out_size=4)),
    ("an offset or a state excludes padding", _with(padding=1, offset=0, out_size=4)),
    ("an offset needs a size", _with(offset=0)),
    ("out_size needs an offset", _with(out_size=4)),
    ("the state says how large the output is", _with(state=LEFT, out_size=4)),
    ("this is no way back", _with(state=LEFT)),
    ("exclude_edges is for averages", _with(padding=mf.PaddingPolicy(exclude_edges=True))),
    ("unknown neuron", _with(neuron="swish")),
    ("unknown neuron", _with(neuron=mf.Neuron("swish"))),
    ("groups do not divide the channels", _with(groups=3)),
    ("windows reach too far", _with(offset=2**30, out_size=4)),
)
_ROWS: dict[str, Any] = {
    "given": ("w",),
    "cpu": (Measured({"kernel_size": 4, "stride": 2, "padding": 1}, LEVEL, FLOAT32),),
}
OPS = (
    OpInfo(
        name="conv_transpose",
        benchmarks={"conv_transpose": Benchmark("convolution", 1, 1, **_ROWS)},
        samples={
            **{label: call("conv_transpose", *way.arrays("x", "w", "b"), **way.how) for label, way in WAYS.items()},
            "back where a convolution came from": call(
                "conv_transpose", *_TO_POOLING.arrays("x", "w"), stride=2, state=_CONVOLVED
            ),
            "of 6 channels": Sample(
                call("conv_transpose", *_LARGER.arrays("x", "w", "b"), stride=2, neuron="elu"), in_matrix=False
            ),
            **active("conv_transpose", *_TO_ACTIVE.arrays("x", "w", "b")),
        },
        image="x",
        reference=transposed,
        slack=2,  # a neuron's
        wrong_values=_WRONG_VALUES,
        wrong_types=(
            ("not a state of this operation", _with(state=3)),
            ("padding is not an int", _with(padding=(1, "same"))),
            ("stride is not an int", _with(stride=None)),
            ("neuron is not an activation", _with(neuron=1)),
        ),
        nodes={
            "": Node(
                lambda x: graph.conv_transpose(x, 3, 3, stride=2, name="n"),
                lambda p, x: mf.conv_transpose(x, p["w"], p["b"], stride=2, padding=SAME),
            )
        },
    ),
    OpInfo(
        name="conv_transpose_fwd",
        samples={
            **{
                f"{label} with a relu": Sample(
                    call("conv_transpose_fwd", *way.arrays("x", "w", "b"), neuron="relu", **way.how), (0,)
                )
                for label, way in WAYS.items()
            },
            "with a tanh": Sample(
                call("conv_transpose_fwd", *_TO_POOLING.arrays("x", "w", "b"), neuron="tanh"), (0, 3)
            ),
            "of 6 channels": Sample(
                call("conv_transpose_fwd", *_LARGER.arrays("x", "w", "b"), neuron="relu", **_LARGER.how),
                (0,),
                in_matrix=False,
            ),
        },
        image="x",
        reference=_forward,
        slack=2,
    ),
    OpInfo(
        name="conv_transpose_grad_input",
        benchmarks={"conv_transpose_grad_input": Benchmark("convolution", 1, 1, **_ROWS)},
        samples={
            **{
                label: call("conv_transpose_grad_input", *way.arrays("dy", "w"), way.state(moves=False))
                for label, way in WAYS.items()
            },
            # A sum of positive terms is as exact as they are.
            "of a tanh": call(
                *("conv_transpose_grad_input", *_TO_POOLING.arrays("dy", "w", of="positive")),
                _TO_POOLING.state(*_BENT, y=Array(_TO_POOLING.y), moves=False),
            ),
            "of 6 channels": Sample(
                call("conv_transpose_grad_input", *_LARGER.arrays("dy", "w"), _LARGER.from_forward("relu")),
                in_matrix=False,
            ),
        },
        image="dy",
        reference=_grad_input,
        linear=(0, 1),
        wrong_values=(
            ("dy does not belong to this state", lambda: mf.conv_transpose_grad_input(Y[:, 1:], W, STATE)),
            ("w does not belong to this state", lambda: mf.conv_transpose_grad_input(Y, W[:2], STATE)),
        ),
        wrong_types=(("not a state of this operation", lambda: mf.conv_transpose_grad_input(Y, W, LEFT)),),
    ),
    OpInfo(
        name="conv_transpose_grad_weights",
        benchmarks={"conv_transpose_grad_weights": Benchmark("convolution", 1, 1, **_ROWS)},
        samples={
            **{
                label: Sample(call("conv_transpose_grad_weights", *way.arrays("dy", "x"), way.state()), (0, 1))
                for label, way in WAYS.items()
            },
            "of a tanh": Sample(
                call("conv_transpose_grad_weights", DY, X_WIDE, _TO_POOLING.state(*_BENT, y=DY)),
                (0, 1),
                in_matrix=False,
            ),
            **{
                f"of {label}": Sample(
                    call(
                        *("conv_transpose_grad_weights", *_TO_POOLING.arrays("dy", "x")),
                        _TO_POOLING.state(*how, y=Array(_TO_POOLING.y)),
                    ),
                    (0, 1),
                )
                for label, how in EXACT.items()
            },
            "of 6 channels": Sample(
                call("conv_transpose_grad_weights", *_LARGER.arrays("dy", "x"), _LARGER.from_forward("relu")),
                (0, 1),
                in_matrix=False,
            ),
        },
        image="x",
        reference=_grad_weights,
        wrong_values=(
            ("x does not belong to this state", lambda: mf.conv_transpose_grad_weights(Y, X[:, 1:], STATE)),
            ("dy does not belong to this state", lambda: mf.conv_transpose_grad_weights(Y[..., 1:], X, STATE)),
        ),
        wrong_types=(
            (
                "dy and x differ in dtype",
                lambda: mf.conv_transpose_grad_weights(Y.astype(mx.float16), X, STATE),
            ),
        ),
    ),
    OpInfo(
        name="conv_transpose_grad",
        samples={
            **{
                f"{label} of a relu": Sample(
                    call("conv_transpose_grad", *way.arrays("dy", "x", "w"), way.state("relu", y=Array(way.y))),
                    (0, 1, 2),
                )
                for label, way in WAYS.items()
            },
            "of a tanh": Sample(
                call("conv_transpose_grad", DY, X_WIDE, W_WIDE, _TO_POOLING.state(*_BENT, y=DY)),
                (0, 1, 2),
                in_matrix=False,
            ),
            **behind("conv_transpose_grad", _TO_ACTIVE, _TO_ACTIVE.state),
            "of 6 channels": Sample(
                call("conv_transpose_grad", *_LARGER.arrays("dy", "x", "w"), _LARGER.from_forward("relu")),
                (0, 1, 2),
                in_matrix=False,
            ),
            **{
                f"of {what}": Sample(
                    call(
                        *("conv_transpose_grad", *_LARGER.arrays("dy", "x", "w")),
                        _LARGER.state(moves=False),
                        option=option,
                    ),
                    outputs,
                    in_matrix=False,
                )
                for what, option, outputs in (
                    ("the images", "data", (0,)),
                    ("the parameters", "weights_and_bias", (0, 1)),
                )
            },
        },
        image="x",
        reference=_grad,
        wrong_values=(
            ("unknown option", lambda: mf.conv_transpose_grad(Y, X, W, STATE, option="both")),
            ("x does not belong to this state", lambda: mf.conv_transpose_grad(Y, X[:, 1:], W, STATE)),
            ("w does not belong to this state", lambda: mf.conv_transpose_grad(Y, X, W[:2], STATE)),
        ),
    ),
)
