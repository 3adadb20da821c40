"""The gradients of losses: `loss_grad`."""

from __future__ import annotations

from typing import Any

import numpy as np
from generic.opinfo import Array, Loads, OpInfo, Sample, call
from generic.ops.loss import (
    COUNTING,
    LABELS,
    LARGER,
    LINES,
    LONG_LINES,
    MANY_LABELS,
    MSE,
    NO_WEIGHTS,
    OPTIONS,
    SIGMOID,
    SOFTMAX,
    TWICE,
    TYPES,
    X,
    both_ways,
    of,
    wrong_types,
    wrong_values,
)
from metal_host.geometry import LONG_IMAGE, WHOLE
from support.oracle import losses as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------

DIVIDED: dict[str, Any] = {"reduction": "mean", "divided": True}


def _gradient(
    y: np.ndarray, target: np.ndarray, type: str, reduction: str = "sum", *, divided: bool = False, **how: Any
) -> np.ndarray:
    """What MPS passes on, or the derivative."""
    _, passed, derived = oracle.loss(y, target, type, reduction, **how)
    return derived if divided else passed


# The record ---------------------------------------------------------------------------------------------

NO_SCALES = {**NO_WEIGHTS, "scales": (LONG_IMAGE, 0)}
OPS = (
    OpInfo(
        name="loss_grad",
        samples={
            **{type: of("loss_grad", type, **OPTIONS.get(type, {})) for type in TYPES},
            **{
                f"{type} divided": of("loss_grad", type, **DIVIDED, **OPTIONS.get(type, {}))
                for type in (SOFTMAX, "log", "huber")
            },
            "weighted and divided": of(
                "loss_grad", SOFTMAX, "sum_by_non_zero_weights", weights=Array((2, 3, 1)), divided=True
            ),
            "of labels that count": call("loss_grad", Array(LINES), LABELS, SOFTMAX, **DIVIDED, **COUNTING),
            "of labels that count, undivided": call("loss_grad", Array(LINES), LABELS, SOFTMAX, **COUNTING),
            "of positives": of("loss_grad", SIGMOID, pos_weight=Array((4,), "positive"), **DIVIDED),
            "of smoothed labels": call("loss_grad", Array(LINES), LABELS, SOFTMAX, **DIVIDED, **OPTIONS[SOFTMAX]),
            **{
                f"{type} of larger images": Sample(of("loss_grad", type, shape=LARGER, divided=True), in_matrix=False)
                for type in TYPES
            },
            "of many labels": Sample(
                call("loss_grad", Array(LONG_LINES), MANY_LABELS, SOFTMAX, divided=True), in_matrix=False
            ),
            "of weighted squares": Sample(
                of("loss_grad", MSE, **DIVIDED, shape=LARGER, weights=Array(LARGER, "positive")), in_matrix=False
            ),
        },
        reference=_gradient,
        wrong_values=wrong_values(mf.loss_grad),
        wrong_types=(
            *wrong_types(mf.loss_grad),
            ("divided is not a bool", lambda: mf.loss_grad(X, X, MSE, divided=1)),
        ),
        loads={
            "loss_grad": Loads(both_ways, {**dict.fromkeys(("y", "target"), WHOLE), **NO_SCALES}),
            # The targets are added up for a derivative.
            "softmax_cross_entropy_grad": Loads(both_ways, {**dict.fromkeys(("y", "target"), TWICE), **NO_SCALES}),
        },
    ),
)
