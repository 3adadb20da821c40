"""Weights made from others: `fold_batch_norm` and `dequantize_weights`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, DtypeOfRun, Fixed, OpInfo, Sample, call

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------


def _to_fold(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The weights, the bias, gamma, beta, the mean and the variance."""
    return Array(shape), *[Array(shape[:1])] * 4, Array(shape[:1], "positive")


def _folded(
    w: np.ndarray, b: Any, gamma: Any, beta: Any, mean: np.ndarray, var: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray]:
    b, gamma, beta = (other if a is None else a for a, other in ((b, 0), (gamma, 1), (beta, 0)))
    normalized = np.moveaxis(w, 0, -1) * gamma / np.sqrt(var + eps)
    return np.moveaxis(normalized, -1, 0), (b - mean) / np.sqrt(var + eps) * gamma + beta


# From 0 to 245, in steps of 7.
BYTES = Fixed((np.arange(36) * 7).reshape(3, 2, 3, 2).tolist(), "uint8")


def _dequantized(
    q: np.ndarray, *, low: Any = None, high: Any = None, table: Any = None, dtype: Any = None
) -> np.ndarray:
    if table is None:
        table = np.linspace(low, high, 256, axis=1)
    return np.stack([row[bytes_] for row, bytes_ in zip(table, q, strict=True)])


# Wrong calls, and the records ---------------------------------------------------------------------------

W, ONES = mx.ones((6, 3, 3, 4)), mx.ones(6)
Q, ENDS, TABLE = mx.zeros((3, 2, 5, 4), mx.uint8), mx.zeros(3), mx.zeros((3, 256))


def _fold(mean: Any = ONES, var: Any = ONES, eps: Any = 1e-5, gamma: Any = None) -> Any:
    return lambda: mf.fold_batch_norm(W, None, gamma, None, mean, var, eps)


def _read(q: Any = Q, **how: Any) -> Any:
    return lambda: mf.dequantize_weights(q, **how)


_NO_NODE = "it makes weights, which a graph takes as they are"
OPS = (
    OpInfo(
        name="fold_batch_norm",
        samples={
            "": call("fold_batch_norm", *_to_fold((4, 2, 3, 2)), 1e-2),
            "of statistics alone": Sample(
                call("fold_batch_norm", Array((6, 3, 3, 4)), None, None, None, Array((6,)), Array((6,), "positive")),
                in_matrix=False,
            ),
            "of 6 outputs": Sample(call("fold_batch_norm", *_to_fold((6, 3, 3, 4))), in_matrix=False),
        },
        launches=False,
        reference=_folded,
        slack=2,
        wrong_values=(
            ("eps is no variance", _fold(eps=10**400)),
            ("eps is no variance", _fold(eps=-1.0)),
            ("eps is no variance", _fold(eps=float("nan"))),
            ("a vector does not fit the weights", _fold(gamma=mx.ones(3))),
        ),
        wrong_types=(
            ("eps is not a number", _fold(eps="0")),
            ("var is not an array", _fold(var=None)),
            ("mean has no floating dtype", _fold(mean=mx.ones(6, mx.int32))),
        ),
        no_node=_NO_NODE,
    ),
    OpInfo(
        name="dequantize_weights",
        samples={
            "": call("dequantize_weights", BYTES, low=Array((3,)), high=Array((3,)), dtype=DtypeOfRun()),
            "from a table": call("dequantize_weights", BYTES, table=Array((3, 256)), dtype=DtypeOfRun()),
            "of 6 outputs": Sample(
                call(
                    "dequantize_weights",
                    *(Array((6, 3, 3, 4), "bytes"),),
                    low=Array((6,)),
                    high=Array((6,), "positive"),
                    dtype=DtypeOfRun(),
                ),
                in_matrix=False,
            ),
        },
        launches=False,
        reference=_dequantized,
        wrong_values=(
            ("not one way to read a byte", _read()),
            ("not one way to read a byte", _read(low=ENDS)),
            ("not one way to read a byte", _read(low=ENDS, table=TABLE)),
            ("not one way to read a byte", _read(low=ENDS, high=ENDS, table=TABLE)),
            ("low does not fit the weights", _read(low=mx.zeros(2), high=ENDS)),
            ("table does not fit the weights", _read(table=TABLE[:, :255])),
            ("weights have four axes", _read(mx.zeros((3,), mx.uint8), table=TABLE)),
        ),
        wrong_types=(
            ("no dtype of weights", _read(table=TABLE, dtype=[1])),
            ("no dtype of weights", _read(table=TABLE, dtype=mx.int32)),
            ("q does not hold bytes", _read(mx.zeros((3, 1, 1, 1)), table=TABLE)),
        ),
        no_node=_NO_NODE,
    ),
)
