"""The Dice loss: `dice_loss` and `dice_loss_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, OpInfo, Sample, Wrong, call
from generic.ops.focal_loss import NO_NODE
from generic.ops.loss import HUGE, LABELLED, LABELS, LARGER, LINES, NUMBER, ROW, X
from generic.ops.softmax import no_arrays
from metal_host.case import Case, named
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import losses as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------


def _of(name: str, shape: tuple[int, ...] = LINES, kind: str = "numbers", **options: Any) -> Any:
    """A call on predictions and shares."""
    return call(name, Array(shape, kind), Array(shape, "shares"), **options)


def _samples(name: str) -> dict[str, Any]:
    return {
        "": _of(name, kind="shares"),
        "of logits": _of(name, activation="sigmoid", reduction="sum", smooth=1.0),
        "of squares": _of(name, activation="softmax", squared=True, reduction="none"),
        "of labels": call(name, Array(LINES), LABELS, activation="softmax"),
        "of a label an image": Sample(call(name, Array((3, 1, 1, 4), "shares"), ROW, smooth=0.5), in_matrix=False),
        "of larger images": Sample(_of(name, LARGER, "shares", squared=True, smooth=0.0), in_matrix=False),
        "of images": Sample(_of(name, (2, 9, 7, 8), activation="sigmoid"), in_matrix=False),
    }


def _loss(
    y: np.ndarray,
    t: np.ndarray,
    *,
    activation: str = "none",
    smooth: float = 1e-5,
    squared: bool = False,
    reduction: str = "mean",
) -> Any:
    each = oracle.dice(y, t, activation, smooth, squared)[0]
    if reduction == "none":
        return each.reshape(len(y), *(1,) * (y.ndim - 2), y.shape[-1])
    return oracle.reduced(each, reduction)


def _grad(
    y: np.ndarray,
    t: np.ndarray,
    *,
    activation: str = "none",
    smooth: float = 1e-5,
    squared: bool = False,
    reduction: str = "mean",
) -> Any:
    slope = oracle.dice(y, t, activation, smooth, squared)[1]
    return slope / (len(y) * y.shape[-1] if reduction == "mean" else 1)


# Kernel cases -------------------------------------------------------------------------------------------


def _case(shape: tuple[int, ...], dtype: mx.Dtype, *bodies: str, **how: Any) -> Case:
    def check() -> None:
        y, t = (((mx.tanh(numbers(shape, seed=i)) + 1) / 2).astype(dtype) for i in range(2))
        close(mf.dice_loss(y, t, **how), np.asarray(_loss(exact(y), exact(t), **how)), 4, slack=8)
        close(mf.dice_loss_grad(y, t, **how), _grad(exact(y), exact(t), **how), 1, slack=8)

    return Case(
        named("dice_loss", shape, dtype, **how), ("bn_stats_grad", "sum_partials", "bn_normalize", *bodies), check
    )


def _cases() -> Iterator[Case]:
    yield _case((2, 3, 5, 8), mx.float32)
    yield _case((3, 4, 5), mx.float32, "softmax", "softmax_grad", activation="softmax")
    yield _case((2, 6, 3), mx.float16, "neuron", "neuron_grad", activation="sigmoid", squared=True)


# Wrong calls, and the records ---------------------------------------------------------------------------


def _wrong_values(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        ("no images with classes", lambda: function(NUMBER, NUMBER)),
        ("an image has no elements", lambda: function(X[:, :0], X[:, :0])),
        ("an image is too large", lambda: function(HUGE, HUGE)),
        ("target does not fit y", lambda: function(X, X[:1])),
        ("the labels do not fit y", lambda: function(X, LABELLED[:1])),
        ("smooth is out of range", lambda: function(X, X, smooth=-1)),
        ("unknown activation", lambda: function(X, X, activation="relu")),
        ("unknown reduction", lambda: function(X, X, reduction="average")),
    )


def _wrong_types(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        *no_arrays("y", lambda y: function(y, y)),
        ("target is not an array", lambda: function(X, np.ones((2, 3, 4)))),
        ("target has no floating dtype", lambda: function(X, X > 0)),
        ("labels are integers", lambda: function(X, LABELLED.astype(mx.bool_))),
        ("labels are integers", lambda: function(X, LABELLED.astype(mx.float32))),
        ("target and y differ in dtype", lambda: function(X, X.astype(mx.float16))),
        ("smooth is not a number", lambda: function(X, X, smooth="1")),
        ("squared is not a bool", lambda: function(X, X, squared=1)),
        ("activation is not a name", lambda: function(X, X, activation=None)),
        ("reduction is not a name", lambda: function(X, X, reduction=None)),
    )


_IN_FLOAT32: dict[str, Any] = {
    "cpu": (Measured(targets=LEVEL, dtypes=FLOAT32),),
    "gpu": (Measured(dtypes=FLOAT32),),
}
OPS = (
    OpInfo(
        name="dice_loss",
        benchmarks={"dice_loss": Benchmark("pointwise", 2, 0, ("targets",), **_IN_FLOAT32)},
        takes_integers=True,
        samples=_samples("dice_loss"),
        reference=_loss,
        slack=4,
        wrong_values=_wrong_values(mf.dice_loss),
        wrong_types=_wrong_types(mf.dice_loss),
        cases=_cases,
        no_node=NO_NODE,
    ),
    OpInfo(
        name="dice_loss_grad",
        benchmarks={"dice_loss_grad": Benchmark("pointwise", 2, 1, ("targets",), **_IN_FLOAT32)},
        takes_integers=True,
        samples=_samples("dice_loss_grad"),
        reference=_grad,
        slack=4,
        wrong_values=_wrong_values(mf.dice_loss_grad),
        wrong_types=_wrong_types(mf.dice_loss_grad),
    ),
)
