"""The fully connected layer: `fully_connected`, `fully_connected_fwd` and `fully_connected_grad`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, call
from generic.ops.conv import Kind, activated, active, before_neuron, so_far, with_kept
from generic.ops.conv_grad import EXACT
from support.benchmarks import DTYPES, LEVEL, Benchmark, Measured

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give: a product of matrices -----------------------------------------------

SMALL, LARGER = Kind((2, 5, 4, 4), (3, 5, 4, 4), {}), Kind((3, 2, 2, 8), (5, 2, 2, 8), {})
ACTIVE = Kind((2, 3, 4, 3), (2, 3, 4, 3), {})
# In the accumulator's dtype: dy times a slope is rounded to the images', which no definition knows.
DY, X_WIDE = SMALL.arrays("dy", "x", wide=True)


def _flat(a: np.ndarray) -> np.ndarray:
    return a.reshape(len(a), -1)


def _summed(x: np.ndarray, w: np.ndarray, b: Any = 0.0, neuron: Any = None) -> np.ndarray:
    return (_flat(x) @ _flat(w).T + b)[:, None, None]


def _connected(*args: Any, neuron: Any = None) -> np.ndarray:
    return activated(_summed(*args), neuron)


def _forward(*args: Any, neuron: str) -> tuple[np.ndarray, ...]:
    return with_kept(_summed(*args), neuron)


def _grad(dy: np.ndarray, x: np.ndarray, w: np.ndarray, state: Call, option: str = "all") -> tuple[np.ndarray, ...]:
    dz, (dw, db) = _flat(before_neuron(dy, state, _summed)), so_far(state)
    dx = (dz @ _flat(w)).reshape(x.shape)
    grown = dw + (dz.T @ _flat(x)).reshape(w.shape), db + dz.sum(0)
    return (dx, *grown) if option == "all" else (dx,) if option == "data" else grown


def _from_forward(neuron: str, *, wide: bool) -> Call:
    return call("fully_connected_fwd", *LARGER.arrays("x", "w", "b", wide=wide), neuron=neuron, take=1)


# What is measured ---------------------------------------------------------------------------------------

MEASURED = Benchmark(
    "convolution", 1, 1, ("w",), cpu=(Measured({"outs": 1024}, LEVEL, DTYPES, shape=(256, 1, 1, 1024)),)
)

# Wrong calls, and the records ---------------------------------------------------------------------------

X, W = mx.zeros((2, 3, 4, 5)), mx.zeros((6, 3, 4, 5))
Y, STATE = mf.fully_connected_fwd(X, W)
OPS = (
    OpInfo(
        name="fully_connected",
        samples={
            "": call("fully_connected", *SMALL.arrays("x", "w", "b")),
            "without a bias": Sample(call("fully_connected", *LARGER.arrays("x", "w")), in_matrix=False),
            "of 8 channels with a tanh": Sample(
                call("fully_connected", *LARGER.arrays("x", "w", "b"), neuron="tanh"), in_matrix=False
            ),
            **active("fully_connected", *ACTIVE.arrays("x", "w", "b")),
        },
        image="x",
        reference=_connected,
        slack=2,  # a neuron's
        wrong_values=(
            ("the weights do not fit the images", lambda: mf.fully_connected(X, W[:, :2])),
            ("the bias does not fit the weights", lambda: mf.fully_connected(X, W, mx.zeros(5))),
            ("not an image batch", lambda: mf.fully_connected(X.reshape(2, -1), W)),
            ("a is out of range", lambda: mf.fully_connected(X, W, neuron=mf.Neuron("elu", float("nan")))),
        ),
        wrong_types=(("w is not an array", lambda: mf.fully_connected(X, 3)),),
        benchmarks={"fully_connected": MEASURED},
        nodes={
            "": Node(
                lambda x: graph.fully_connected(x, 7, neuron="tanh", name="n"),
                lambda p, x: mf.fully_connected(x, p["w"], p["b"], neuron="tanh"),
            )
        },
    ),
    OpInfo(
        name="fully_connected_fwd",
        samples={
            "with a relu": Sample(call("fully_connected_fwd", *SMALL.arrays("x", "w", "b"), neuron="relu"), (0,)),
            "with a sigmoid": Sample(call("fully_connected_fwd", *SMALL.arrays("x", "w"), neuron="sigmoid"), (0, 3)),
            "of 8 channels": Sample(
                call("fully_connected_fwd", *LARGER.arrays("x", "w", "b"), neuron="sigmoid"), (0, 3), in_matrix=False
            ),
        },
        image="x",
        reference=_forward,
        slack=2,
    ),
    OpInfo(
        name="fully_connected_grad",
        samples={
            "of a relu": Sample(
                call(
                    "fully_connected_grad",
                    *SMALL.arrays("dy", "x", "w"),
                    SMALL.state_of("relu", y=Array(SMALL.y)),
                ),
                (0, 1, 2),
            ),
            "of a sigmoid": Sample(
                call("fully_connected_grad", DY, X_WIDE, *SMALL.arrays("w"), SMALL.state_of("sigmoid", y=DY)),
                (0, 1, 2),
            ),
            **{
                f"of {label}": Sample(
                    call(
                        *("fully_connected_grad", *SMALL.arrays("dy", "x", "w")),
                        SMALL.state_of(*how, y=Array(SMALL.y)),
                    ),
                    (0, 1, 2),
                )
                for label, how in EXACT.items()
            },
            "of 8 channels": Sample(
                call(
                    "fully_connected_grad",
                    *LARGER.arrays("dy", "x", "w", wide=True),
                    _from_forward("sigmoid", wide=True),
                ),
                (0, 1, 2),
                in_matrix=False,
            ),
            **{
                f"of {what}": Sample(
                    call("fully_connected_grad", *LARGER.arrays("dy", "x", "w"), LARGER.state, option=option),
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
            ("x does not belong to this state", lambda: mf.fully_connected_grad(Y, X[:, :2], W, STATE)),
            ("dy does not belong to this state", lambda: mf.fully_connected_grad(Y.reshape(2, 6), X, W, STATE)),
            ("unknown option", lambda: mf.fully_connected_grad(Y, X, W, STATE, option="both")),
        ),
        wrong_types=(("option is not a name", lambda: mf.fully_connected_grad(Y, X, W, STATE, option=3)),),
        benchmarks={f"fully_connected_grad_{which}": MEASURED for which in ("input", "weights")},
    ),
)
