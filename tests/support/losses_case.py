"""What the tests of losses share: arguments of each type, and every function beside its definition."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from generic.ops.loss import CATEGORICAL, COSINE, SIGMOID, SOFTMAX, TYPES, images

import mpsfunc as mf
from support import VIEWS, accumulator, close, exact, same_bits
from support.oracle import losses as oracle

REDUCTIONS = ("none", "sum", "mean", "sum_by_non_zero_weights")
PAIRS = [(t, r) for t in TYPES for r in REDUCTIONS if t != COSINE or r == "sum"]
each = pytest.mark.parametrize("type", TYPES)
each_pair = pytest.mark.parametrize(("type", "reduction"), PAIRS)


def check(
    type: str, reduction: str, y: mx.array, target: mx.array, *, view: str = "contiguous", slack: float = 8, **how: Any
) -> None:
    """All four functions against the definition."""
    seen = VIEWS[view]
    labelled = mx.issubdtype(target.dtype, mx.integer)
    dense = np.array(target) if labelled else exact(target)  # or labels
    told = {name: exact(value) if isinstance(value, mx.array) else value for name, value in how.items()}
    value, passed, derived = oracle.loss(exact(y), dense, type, reduction, **told)
    size = np.abs(oracle.loss(exact(y), dense, type, "none", **told)[0]) if type != COSINE else abs(exact(y) * dense)
    axes = tuple(range(1, y.ndim))
    scale = 1 + (size if reduction == "none" else size.sum(axes, keepdims=True))
    weighed = np.broadcast_to(1 + np.abs(told.get("weights", told.get("weight", 1.0))), y.shape)
    weighed = weighed * max(1.0, *(np.abs(told.get(name, 1.0)).max() for name in ("class_weights", "pos_weight")))
    slope = 1 + np.abs(passed) + weighed * 2

    made, gradient = mf.loss(seen(y), seen(target), type, reduction, **how)
    assert made.dtype == (y.dtype if reduction == "none" else accumulator(y.dtype)) and gradient.dtype == y.dtype
    close(made, value, scale, slack=slack)
    close(gradient, passed, slope, slack=slack)
    alone = mf.loss_value(seen(y), seen(target), type, reduction, **how)
    close(alone, value, scale, slack=slack)
    close(mf.loss_grad(seen(y), seen(target), type, reduction, **how), passed, slope, slack=slack)
    divided = mf.loss_grad(seen(y), seen(target), type, reduction, divided=True, **how)
    close(divided, derived, slope, slack=slack)
    again, state = mf.loss_fwd(seen(y), seen(target), type, reduction, **how)
    assert same_bits(again, made) and same_bits(state.gradient, gradient)


__all__ = [
    "CATEGORICAL", "COSINE", "PAIRS", "REDUCTIONS", "SIGMOID", "SOFTMAX", "TYPES",
    "check", "each", "each_pair", "images",
]  # fmt: skip
