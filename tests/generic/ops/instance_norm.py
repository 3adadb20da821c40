"""Instance normalization: `instance_norm`, `instance_norm_fwd` and `instance_norm_grad`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, call
from generic.ops.bn_stats import AFFINE, IMAGES, SCALE, X
from support.benchmarks import DTYPES, LEVEL, SHARE, Benchmark, Measured
from support.oracle import activation
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

_EIGHT, _VECTOR = Array((3, 7, 6, 8)), Array((8,))
FORWARD = (0, 1, 2)  # without sums, which are zeros


def held(name: str, images: int, groups: int, channels: int) -> Call:
    """A state of one of both normalizations, of arrays that are arguments."""
    moments, sums = (Array((images, length), wide=True) for length in (groups, channels))
    of = {"instance_norm": "InstanceNormState", "group_norm": "GroupNormState"}[name]
    return call(of, moments, moments._replace(of="positive"), sums, sums, name, 1e-2)


def grown(
    dy: np.ndarray, x: np.ndarray, state: Call, gamma: Any = 1, beta: Any = 0, neuron: str = "none"
) -> tuple[np.ndarray, ...]:
    """The gradient of the images, and the state with both sums grown."""
    mean, var, dgamma, dbeta, _, eps = state.args
    shape = x.shape[0], 1, 1, x.shape[3]
    m, v = (np.repeat(a, x.shape[3] // a.shape[1], 1).reshape(shape) for a in (mean, var))
    dy = dy * activation.slope((x - m) / np.sqrt(v + eps) * gamma + beta, neuron)
    dx, *more = oracle.group_norm_grad(dy, x, mean, var, gamma, eps)
    return dx, mean, var, dgamma + more[0], dbeta + more[1]


def forward(
    x: np.ndarray, groups: int, gamma: Any = 1, beta: Any = 0, eps: float = 1e-5, neuron: str = "none"
) -> tuple[np.ndarray, ...]:
    """The images, with the activation behind them, and the statistics."""
    y, *moments = oracle.group_norm(x, groups, gamma, beta, eps)
    return activation.neuron(y, neuron), *moments


def _fwd(x: np.ndarray, *args: Any, **how: Any) -> tuple[np.ndarray, ...]:
    return forward(x, x.shape[3], *args, **how)


# What is measured ---------------------------------------------------------------------------------------

_CPU, _GPU = (Measured(targets=LEVEL),), (Measured(targets=SHARE, targeted=DTYPES),)

# Wrong calls, and the records ---------------------------------------------------------------------------

_, _MADE = mf.instance_norm_fwd(IMAGES)


def _forged(**fields: mx.array) -> mf.InstanceNormState:
    return _MADE._replace(**fields)


OPS = (
    OpInfo(
        name="instance_norm",
        samples={
            "": call("instance_norm", X, SCALE, SCALE, eps=1e-2),
            "and silu": call("instance_norm", X, SCALE, SCALE, eps=1e-2, neuron="silu"),
            "of eight channels": Sample(call("instance_norm", _EIGHT, _VECTOR, _VECTOR), in_matrix=False),
            "of eight channels and mish": Sample(
                call("instance_norm", _EIGHT, _VECTOR, _VECTOR, neuron="mish"), in_matrix=False
            ),
        },
        reference=lambda *args, **how: _fwd(*args, **how)[0],
        image="x",
        wrong_values=(
            ("beta does not fit the channels", lambda: mf.instance_norm(IMAGES, None, mx.ones(3))),
            ("eps is out of range", lambda: mf.instance_norm(IMAGES, eps=-1.0)),
            ("unknown neuron", lambda: mf.instance_norm(IMAGES, neuron="maxout")),
        ),
        benchmarks={"instance_norm": Benchmark("normalization", 2, 1, AFFINE, cpu=_CPU, gpu=_GPU)},
        nodes={
            "": Node(
                lambda x: graph.instance_norm(x, name="n"), lambda p, x: mf.instance_norm(x, p["gamma"], p["beta"])
            )
        },
    ),
    OpInfo(
        name="instance_norm_fwd",
        samples={
            "": Sample(call("instance_norm_fwd", X, SCALE, SCALE, eps=1e-2), FORWARD),
            "of eight channels": Sample(call("instance_norm_fwd", _EIGHT, _VECTOR, _VECTOR), FORWARD, in_matrix=False),
        },
        reference=_fwd,
        image="x",
    ),
    OpInfo(
        name="instance_norm_grad",
        samples={
            "": call("instance_norm_grad", X, X, held("instance_norm", 2, 4, 4), SCALE),
            "behind silu": Sample(
                call("instance_norm_grad", X, X, held("instance_norm", 2, 4, 4), SCALE, SCALE, neuron="silu"),
                in_matrix=False,
            ),
            "of eight channels": Sample(
                call("instance_norm_grad", _EIGHT, _EIGHT, held("instance_norm", 3, 8, 8), _VECTOR), in_matrix=False
            ),
        },
        reference=grown,
        image="x",
        wrong_values=(
            ("dy does not belong to x", lambda: mf.instance_norm_grad(IMAGES[:1], IMAGES, _MADE)),
            ("x does not belong to this state", lambda: mf.instance_norm_grad(IMAGES[:1], IMAGES[:1], _MADE)),
            ("gamma does not fit the channels", lambda: mf.instance_norm_grad(IMAGES, IMAGES, _MADE, mx.ones(3))),
            ("beta does not fit the channels", lambda: mf.instance_norm_grad(IMAGES, IMAGES, _MADE, None, mx.ones(3))),
            ("unknown neuron", lambda: mf.instance_norm_grad(IMAGES, IMAGES, _MADE, neuron="maxout")),
            (
                "x does not belong to this state",
                lambda: mf.instance_norm_grad(IMAGES, IMAGES, _forged(dgamma=mx.zeros((4,)))),
            ),
            (
                "the state does not fit together",
                lambda: mf.instance_norm_grad(IMAGES, IMAGES, _forged(var=mx.zeros((2, 3)))),
            ),
        ),
        wrong_types=(
            (
                "state.var has no floating dtype",
                lambda: mf.instance_norm_grad(IMAGES, IMAGES, _forged(var=mx.ones((2, 4), mx.int32))),
            ),
            (
                "dy and x differ in dtype",
                lambda: mf.instance_norm_grad(IMAGES.astype(mx.float16), IMAGES, _MADE),
            ),
        ),
        benchmarks={"instance_norm_grad": Benchmark("normalization", 3, 2, AFFINE, cpu=_CPU, gpu=_GPU)},
    ),
)
