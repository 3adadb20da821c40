"""Layer normalization: `layer_norm` and `layer_norm_grad`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, OpInfo, Sample, call
from generic.ops.bn_stats import AFFINE, IMAGES, SCALE, X
from support.benchmarks import LEVEL, Benchmark, Measured
from support.oracle import normalization as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

_EIGHT, _ROW = Array((3, 5, 8)), Array((8,))
_LONG, _VECTOR = Array((2, 3, 70)), Array((70,))


def _as_images(a: np.ndarray) -> np.ndarray:
    """Each pixel as an image, of whose channels one group is made."""
    return a.reshape(-1, 1, 1, a.shape[-1])


def _layer_norm(x: np.ndarray, gamma: Any = 1, beta: Any = 0, eps: float = 1e-5) -> np.ndarray:
    return oracle.group_norm(_as_images(x), 1, gamma, beta, eps)[0].reshape(x.shape)


def _layer_norm_grad(dy: np.ndarray, x: np.ndarray, gamma: Any = 1, eps: float = 1e-5) -> tuple[np.ndarray, ...]:
    source = _as_images(x)
    _, mean, var = oracle.group_norm(source, 1, gamma, 0, eps)
    dx, *sums = oracle.group_norm_grad(_as_images(dy), source, mean, var, gamma, eps)
    return dx.reshape(x.shape), *(v.sum(0) for v in sums)


# Wrong calls, and the records ---------------------------------------------------------------------------

_NUMBER, _CPU = mx.array(1.0), (Measured(targets=LEVEL),)
_WHY = "MPS has none"

OPS = (
    OpInfo(
        name="layer_norm",
        samples={
            "": call("layer_norm", X, SCALE, SCALE, eps=1e-2),
            "without parameters": call("layer_norm", Array((3, 4)), eps=1e-2),
            "of eight channels": Sample(call("layer_norm", _EIGHT, _ROW, _ROW), in_matrix=False),
            "of seventy channels": Sample(call("layer_norm", _LONG, _VECTOR, _VECTOR), in_matrix=False),
            "of one row": Sample(call("layer_norm", _ROW, _ROW), in_matrix=False),
        },
        reference=_layer_norm,
        wrong_values=(
            ("gamma does not fit the channels", lambda: mf.layer_norm(IMAGES, mx.ones(3))),
            ("beta does not fit the channels", lambda: mf.layer_norm(IMAGES, None, mx.ones((1, 4)))),
            ("eps is out of range", lambda: mf.layer_norm(IMAGES, eps=-1.0)),
            ("eps is out of range", lambda: mf.layer_norm(IMAGES, eps=float("inf"))),
            ("x has no channels", lambda: mf.layer_norm(_NUMBER)),
            ("x has no channels", lambda: mf.layer_norm(mx.zeros((2, 0)))),
        ),
        wrong_types=(
            ("x is not an array", lambda: mf.layer_norm(np.ones((2, 4)))),
            ("x has no floating dtype", lambda: mf.layer_norm(IMAGES.astype(mx.int32))),
            ("gamma has no floating dtype", lambda: mf.layer_norm(IMAGES, mx.ones(4, mx.int32))),
            ("beta is not an array", lambda: mf.layer_norm(IMAGES, None, 0.0)),
            ("eps is not a number", lambda: mf.layer_norm(IMAGES, eps="small")),
        ),
        benchmarks={"layer_norm": Benchmark("normalization", 1, 1, AFFINE, cpu=_CPU)},
        no_node=_WHY,
    ),
    OpInfo(
        name="layer_norm_grad",
        samples={
            "": call("layer_norm_grad", X, X, SCALE, eps=1e-2),
            "without a scale": call("layer_norm_grad", Array((3, 4)), Array((3, 4)), eps=1e-2),
            "of eight channels": Sample(call("layer_norm_grad", _EIGHT, _EIGHT, _ROW), in_matrix=False),
            "of seventy channels": Sample(call("layer_norm_grad", _LONG, _LONG, _VECTOR), in_matrix=False),
        },
        reference=_layer_norm_grad,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to x", lambda: mf.layer_norm_grad(IMAGES[:1], IMAGES)),
            ("gamma does not fit the channels", lambda: mf.layer_norm_grad(IMAGES, IMAGES, mx.ones(3))),
            ("eps is out of range", lambda: mf.layer_norm_grad(IMAGES, IMAGES, eps=-1.0)),
            ("x has no channels", lambda: mf.layer_norm_grad(_NUMBER, _NUMBER)),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.layer_norm_grad(None, IMAGES)),
            ("dy and x differ in dtype", lambda: mf.layer_norm_grad(IMAGES.astype(mx.float16), IMAGES)),
            ("x has no floating dtype", lambda: mf.layer_norm_grad(IMAGES, IMAGES.astype(mx.int32))),
        ),
        benchmarks={"layer_norm_grad": Benchmark("normalization", 2, 1, AFFINE, cpu=_CPU)},
    ),
)
