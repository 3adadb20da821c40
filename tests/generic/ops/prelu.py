"""The activation whose slopes below zero are an array: `prelu` and `prelu_grad`."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from generic.ops.neuron import spread
from metal_host.case import Case, launched, like, named
from support import close, exact, numbers
from support.oracle import activation as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.channels import activation_launches
from mpsfunc.channels.activation_spec import PRELU, Activation

# Samples, and what they should give ----------------------------------------------------------------------

X, C = Array((3, 5, 4)), Array((4,))
MANY, OF_MANY = Array((2, 5, 4, 8)), Array((8,))


def _value(x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    return oracle.neuron(x, "prelu", a=slopes)


def _grad(dy: np.ndarray, x: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return dy * oracle.slope(x, "prelu", a=slopes), oracle.slopes_grad(dy, x)


# Wrong calls --------------------------------------------------------------------------------------------

IMAGES, FLAT = numbers((2, 6, 5, 4)), mx.ones(4)
WRONG_TYPES = (
    ("x is not an array", lambda: mf.prelu([1.0], FLAT)),
    ("slopes is not an array", lambda: mf.prelu(IMAGES, 0.25)),
    ("slopes has no floating dtype", lambda: mf.prelu(IMAGES, mx.arange(4))),
)

# Kernel cases: the bodies of `neuron` and `neuron_grad` with slopes ----------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def _case(shape: tuple[int, ...], dtype: mx.Dtype, crowded: bool = False) -> Case:
    def check() -> None:
        x, dy, slopes = spread(shape, dtype), numbers(shape, dtype, 1), numbers(shape[-1:], seed=3)
        act, slope = Activation(PRELU), oracle.slope(exact(x), "prelu", a=exact(slopes))
        (y,) = launched({"x": x, "slopes": slopes}, like(x), activation_launches.neuron(x, act, slopes=True))
        close(y, slope * exact(x))
        (dx,) = launched({"dy": dy, "x": x, "slopes": slopes}, like(x), activation_launches.grad(x, act, slopes=True))
        close(dx, slope * exact(dy))

    return Case(named("prelu", shape, dtype), ("neuron", "neuron_grad"), check, crowded)


def _cases() -> Iterator[Case]:
    yield _case((2, 5, 8), F32)
    yield _case((8, 3), F32)  # packs that begin at any channel
    yield _case((3, 7, 5), F32)
    yield _case((2, 3), F32)
    yield _case((1, 3, 5, 24), F16)
    yield _case((12,), BF16)
    yield _case((3, 37, 45, 6), F32, crowded=True)


# The records --------------------------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="prelu",
        samples={
            "": call("prelu", X, C),
            "of one axis": call("prelu", C, C),
            "of eight channels": Sample(call("prelu", MANY, OF_MANY), in_matrix=False),
        },
        reference=_value,
        wrong_values=(
            ("x has no channels", lambda: mf.prelu(mx.array(1.0), mx.ones(1))),
            ("the slopes do not fit the channels", lambda: mf.prelu(IMAGES, mx.ones(1))),
            ("the slopes do not fit the channels", lambda: mf.prelu(IMAGES, mx.ones((1, 4)))),
        ),
        wrong_types=WRONG_TYPES,
        cases=_cases,
        nodes={"": Node(lambda x: graph.prelu(x, name="n"), lambda p, x: mf.prelu(x, p["slopes"]))},
    ),
    OpInfo(
        name="prelu_grad",
        samples={
            "": call("prelu_grad", X, X, C),
            "of eight channels": Sample(call("prelu_grad", MANY, MANY, OF_MANY), in_matrix=False),
        },
        reference=_grad,
        linear=(0,),
        wrong_values=(
            ("the slopes do not fit the channels", lambda: mf.prelu_grad(IMAGES, IMAGES, mx.ones(5))),
            ("dy does not belong to x", lambda: mf.prelu_grad(IMAGES[:, 1:], IMAGES, FLAT)),
        ),
        wrong_types=(("dy and x differ in dtype", lambda: mf.prelu_grad(IMAGES.astype(F16), IMAGES, FLAT)),),
    ),
)
