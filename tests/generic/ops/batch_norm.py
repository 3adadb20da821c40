"""Batch normalization as a whole: `batch_norm` and `batch_norm_fwd`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, Node, OpInfo, Sample, call
from generic.ops.bn_stats import (
    BATCHES,
    F32,
    GROUPED,
    IMAGES,
    LARGE_IMAGES,
    SCALE,
    SLACK,
    SMALL,
    TANH,
    Batch,
    Grouped,
    X,
    cases_of,
    defined,
    wide,
)
from metal_host.case import Case, launched, like
from metal_host.geometry import LONG, VECTOR
from support import close, exact, numbers
from support.oracle import normalization as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.channels import launches
from mpsfunc.core import grids

# Samples, and what they should give ----------------------------------------------------------------------

_EIGHT, _SEVEN = (Array(shape) for shape in LARGE_IMAGES)
_OUTPUTS = (0, 1, 2)  # without sums, which are zeros


def _fwd(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float = 1e-5, neuron: object = None, add: object = 0
) -> tuple:
    state = oracle.bn_stats(x, eps=eps)
    return oracle.bn_normalize(x, state, gamma, beta, defined(neuron), add), state.mean, state.var


def _y(*args: np.ndarray, **how: object) -> np.ndarray:
    return _fwd(*args, **how)[0]


# Kernel cases -------------------------------------------------------------------------------------------

_FORWARD = ("bn_stats", "bn_stats_merge", "bn_normalize")
_BACKWARD = ("bn_stats_grad", "bn_stats_grad_factors", "bn_grad")


def _of_a_batch(batch: Batch) -> None:
    n = batch.norm()
    arrays = [n.x, n.gamma, n.beta]
    (y,), (dx, dgamma, dbeta) = mx.vjp(lambda x, g, b: mf.batch_norm(x, g, b, eps=1e-3), arrays, [n.dy])
    size = abs(exact(n.dy)).sum((0, 1, 2)) + 1
    close(y, n.expected.y, abs(n.expected.y) + 3, slack=2 * SLACK)
    close(dx, n.expected.dx, abs(n.expected.dx) + 3, slack=2 * SLACK)
    close(dgamma, n.expected.dgamma, size, slack=2 * SLACK)
    close(dbeta, n.expected.dbeta, size, slack=2 * SLACK)


# The whole of a normalization by an image's or a batch's own statistics, parameters in the dtype of the images.


class _Composed:
    """What both directions share."""

    def __init__(self, of: Grouped) -> None:
        groups, channels = of.vectors
        self.vector = (of.vectors if groups > 1 else (channels,), F32)
        self.x, self.dy = of.x, of.dy
        self.gamma, self.beta = (v[0].astype(of.dtype) for v in (of.scale, of.shift))  # which all groups share

    def by_channel(self, v: mx.array) -> np.ndarray:
        return exact(v).reshape(-1, 1, 1, 1, self.x.shape[3])


def _forward(of: Grouped, adds: bool = False) -> None:
    c = _Composed(of)
    added = {"added": numbers(of.shape, of.dtype, 11)} if adds else {}
    arrays, outputs = {"x": c.x, **added, "gamma": c.gamma, "beta": c.beta}, (*like(c.x), c.vector, c.vector)
    kernels = launches.batch_norm(c.x, c.vector, of.act, 1e-3, adds=adds)
    y, found, spread = launched(arrays, outputs, kernels, returns=("y", "mean", "var"))
    seen = of.by_group(c.x)
    center, width = (f(seen, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
    z = (seen - center) / np.sqrt(width + 1e-3) * c.by_channel(c.gamma) + c.by_channel(c.beta)
    z = z + of.by_group(added["added"]) if adds else z
    right, width = of.activated(z).reshape(of.shape), width.reshape(c.vector[0])
    close(y, right, abs(right) + 9, slack=SLACK)
    close(found, center.reshape(c.vector[0]), 4, slack=SLACK)
    close(spread, width, width, slack=SLACK)


def _backward(of: Grouped) -> None:
    c, count = _Composed(of), float(np.prod(of.shape[:3]) // of.stat_groups)
    var, dmean, dvar = (numbers(c.vector[0], F32, seed) for seed in (8, 9, 10))
    var, mean = abs(var) + 1, of.mean
    images = {"dy": c.dy, "x": c.x, "gamma": c.gamma, "beta": c.beta}
    arrays = {**images, "mean": mean.reshape(c.vector[0]), "var": var, "dmean": dmean, "dvar": dvar}
    kernels = launches.batch_norm_grad(c.dy, c.vector, of.act, count, 1e-3)
    outputs = (*like(c.x), c.vector, c.vector)
    dx, dgamma, dbeta = launched(arrays, outputs, kernels, returns=("dx", "dgamma", "dbeta"))
    root, off = 1 / np.sqrt(c.by_channel(var) + 1e-3), of.by_group(c.x) - wide(mean)
    g = of.pulled(off * root * c.by_channel(c.gamma) + c.by_channel(c.beta))
    total, dot = (v.sum((1, 2, 3), keepdims=True) for v in (g, g * off))
    size = (abs(of.by_group(c.dy)).sum((1, 2, 3)) + 1).reshape(c.vector[0])
    a = c.by_channel(c.gamma) * root
    b, d = (2 * c.by_channel(dvar) - a * root * root * dot) / count, (c.by_channel(dmean) - a * total) / count
    right = (a * g + b * off + d).reshape(of.shape)
    close(dx, right, abs(right) + 9, slack=SLACK)
    close(dgamma, (dot * root).reshape(c.vector[0]), 3 * size, slack=SLACK)
    close(dbeta, total.reshape(c.vector[0]), size, slack=SLACK)


def _cases() -> Iterator[Case]:
    yield from cases_of(BATCHES, "batch_norm", (*_FORWARD, *_BACKWARD), _of_a_batch)
    yield from cases_of(GROUPED, "composed", _FORWARD, _forward)
    yield from cases_of(GROUPED, "composed of a sum", _FORWARD, partial(_forward, adds=True))
    yield from cases_of(GROUPED, "composed gradients", _BACKWARD, _backward)


# What the body loads ------------------------------------------------------------------------------------


def _both_ways() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    with mock.patch.object(grids, "FILL", 1):
        mx.eval(mx.vjp(lambda x: mf.batch_norm(x, neuron="relu"), [x], [dy]))


# Wrong calls, and the records ---------------------------------------------------------------------------

OPS = (
    OpInfo(
        name="batch_norm",
        samples={
            "": call("batch_norm", X, SCALE, SCALE, eps=1e-2),
            "and relu": call("batch_norm", X, SCALE, SCALE, neuron="relu"),
            "and gelu": call("batch_norm", SMALL, SCALE, SCALE, neuron="gelu"),
            "and tanh": call("batch_norm", SMALL, SCALE, SCALE, neuron=TANH),
            "and prelu": call("batch_norm", SMALL, SCALE, SCALE, neuron=call("Neuron", "prelu", SCALE)),
            "of a sum": call("batch_norm", X, SCALE, SCALE, add=X),
            "of a sum and relu": call("batch_norm", X, SCALE, SCALE, add=X, neuron="relu"),
            "of a sum and gelu": call("batch_norm", SMALL, SCALE, SCALE, add=SMALL, neuron="gelu"),
            "of a sum and prelu": call(
                "batch_norm", SMALL, SCALE, SCALE, add=SMALL, neuron=call("Neuron", "prelu", SCALE)
            ),
            "of eight channels": Sample(call("batch_norm", _EIGHT, Array((8,)), Array((8,))), in_matrix=False),
            "and relu of seven channels": Sample(
                call("batch_norm", _SEVEN, Array((7,)), Array((7,)), neuron="relu"), in_matrix=False
            ),
        },
        reference=_y,
        image="x",
        wrong_values=(
            ("gamma does not fit the channels", lambda: mf.batch_norm(IMAGES, mx.ones(3))),
            ("eps is out of range", lambda: mf.batch_norm(IMAGES, eps=-1e-5)),
            ("no elements to take statistics of", lambda: mf.batch_norm(IMAGES[:0])),
            ("add does not belong to x", lambda: mf.batch_norm(IMAGES, add=IMAGES[..., :3])),
            ("unknown neuron", lambda: mf.batch_norm(IMAGES, neuron="swish")),
            (
                "the slopes do not fit the channels",
                lambda: mf.batch_norm(IMAGES, neuron=mf.Neuron("prelu", mx.ones(3))),
            ),
        ),
        wrong_types=(
            ("a is not a number", lambda: mf.batch_norm(IMAGES, neuron=mf.Neuron("tanh", "2"))),
            ("add and x differ in dtype", lambda: mf.batch_norm(IMAGES, add=IMAGES.astype(mx.float16))),
        ),
        cases=_cases,
        loads={
            "bn_stats_grad_factors": Loads(
                _both_ways,
                {
                    "partial": (2 * VECTOR, 2 * VECTOR),
                    **dict.fromkeys(("gamma", "var", "dmean", "dvar"), (VECTOR, VECTOR)),
                },
            )
        },
        nodes={
            "": Node(
                lambda x: graph.batch_norm(x, neuron="relu", eps=1e-3, name="n"),
                lambda p, x: mf.batch_norm(x, p["gamma"], p["beta"], neuron="relu", eps=1e-3),
            )
        },
    ),
    OpInfo(
        name="batch_norm_fwd",
        samples={
            "": Sample(call("batch_norm_fwd", X, SCALE, SCALE, eps=1e-2), _OUTPUTS),
            "of eight channels": Sample(
                call("batch_norm_fwd", _EIGHT, Array((8,)), Array((8,))), _OUTPUTS, in_matrix=False
            ),
            "and relu of seven channels": Sample(
                call("batch_norm_fwd", _SEVEN, Array((7,)), Array((7,)), neuron="relu"), _OUTPUTS, in_matrix=False
            ),
        },
        reference=_fwd,
        image="x",
    ),
)
