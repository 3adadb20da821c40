"""The focal loss: `focal_loss` and `focal_loss_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, OpInfo, Sample, Wrong, call
from generic.ops.loss import HUGE, LARGER, LINES, LONG_LINES, NUMBER, X
from generic.ops.softmax import no_arrays
from metal_host.case import Case, named
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, PIXELWISE, Benchmark, Measured
from support.oracle import losses as oracle

import mpsfunc as mf

# Samples, and what they should give ----------------------------------------------------------------------


def of(name: str, shape: tuple[int, ...] = LINES, **options: Any) -> Any:
    """A call on logits and shares."""
    return call(name, Array(shape), Array(shape, "shares"), **options)


def _loss(y: np.ndarray, t: np.ndarray, *, alpha: Any = 0.25, gamma: float = 2.0, reduction: str = "none") -> Any:
    return oracle.reduced(oracle.focal(y, t, alpha, gamma)[0], reduction)


def _grad(y: np.ndarray, t: np.ndarray, *, alpha: Any = 0.25, gamma: float = 2.0, reduction: str = "sum") -> Any:
    return oracle.focal(y, t, alpha, gamma)[1] / (y.size if reduction == "mean" else 1)


# Kernel cases -------------------------------------------------------------------------------------------


def _case(shape: tuple[int, ...], dtype: mx.Dtype, alpha: float | None, gamma: float) -> Case:
    def check() -> None:
        y, t = numbers(shape, mx.float32) * 3, (mx.tanh(numbers(shape, seed=1)) + 1) / 2
        t = mx.where(t > 0.7, mx.ones_like(t), mx.where(t < 0.4, mx.zeros_like(t), t))
        y, t = y.astype(dtype), t.astype(dtype)
        lost, slope = oracle.focal(exact(y), exact(t), alpha, gamma)
        made = mf.focal_loss(y, t, alpha=alpha, gamma=gamma, reduction="sum")
        close(made, lost.sum(), 1 + abs(lost).sum(), slack=4)
        close(mf.focal_loss(y, t, alpha=alpha, gamma=gamma), lost, 1 + abs(lost), slack=8)
        close(mf.focal_loss_grad(y, t, alpha=alpha, gamma=gamma), slope, 1 + abs(slope), slack=8)
        mean = mf.focal_loss_grad(y, t, alpha=alpha, gamma=gamma, reduction="mean")
        close(mean, slope / y.size, (1 + abs(slope)) / y.size, slack=8)

    return Case(named("focal_loss", shape, dtype, a=alpha, g=gamma), ("loss", "loss_grad"), check)


def _far() -> Case:
    """Where exponentials vanish, and a NaN."""

    def check() -> None:
        y, t = mx.array([[200.0, -200, 0, float("nan")]]), mx.array([[1.0, 0, 1, 0]])
        for gamma in (0.0, 0.5, 1.0, 2.0):
            gradient = exact(mf.focal_loss_grad(y, t, gamma=gamma))[0]
            assert gradient[:2].tolist() == [0, 0] and gradient[2] < 0 and np.isnan(gradient[3])

    return Case(named("focal_loss", (1, 4), mx.float32, far=1), ("loss_grad",), check)


def _cases() -> Iterator[Case]:
    yield _case((2, 3, 8), mx.float32, 0.25, 2.0)
    yield _case((3, 5), mx.float32, None, 0.5)
    yield _case((1, 2, 16), mx.float16, 0.75, 1.0)
    yield _case((2, 9), mx.bfloat16, 0.25, 3.5)
    yield _case((2, 4), mx.float32, 0.25, 0.0)
    yield _far()


# Wrong calls, and the records ---------------------------------------------------------------------------


def _wrong_values(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        ("no images with classes", lambda: function(NUMBER, NUMBER)),
        ("an image has no elements", lambda: function(X[:, :0], X[:, :0])),
        ("an image is too large", lambda: function(HUGE, HUGE)),
        ("target does not fit y", lambda: function(X, X[:1])),
        ("alpha is out of range", lambda: function(X, X, alpha=-1)),
        ("alpha is out of range", lambda: function(X, X, alpha=1.5)),
        ("gamma is out of range", lambda: function(X, X, gamma=-0.5)),
        ("gamma is out of range", lambda: function(X, X, gamma=float("nan"))),
        ("unknown reduction", lambda: function(X, X, reduction="average")),
    )


def _wrong_types(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    return (
        *no_arrays("y", lambda y: function(y, y)),
        ("target is not an array", lambda: function(X, np.ones((2, 3, 4)))),
        ("target has no floating dtype", lambda: function(X, X.astype(mx.int32))),
        ("target and y differ in dtype", lambda: function(X, X.astype(mx.float16))),
        ("alpha is not a number", lambda: function(X, X, alpha="0.25")),
        ("gamma is not a number", lambda: function(X, X, gamma=None)),
        ("reduction is not a name", lambda: function(X, X, reduction=None)),
    )


NO_NODE = "MPS has no such node"
_IN_FLOAT32: dict[str, Any] = {
    "cpu": (Measured(targets=LEVEL, dtypes=FLOAT32),),
    "gpu": (Measured(targets=PIXELWISE, dtypes=FLOAT32),),
}
OPS = (
    OpInfo(
        name="focal_loss",
        benchmarks={"focal_loss": Benchmark("pointwise", 2, 1, ("targets",), **_IN_FLOAT32)},
        samples={
            "": of("focal_loss"),
            "summed": of("focal_loss", reduction="sum", gamma=3.5),
            "without alpha": of("focal_loss", reduction="mean", alpha=None, gamma=1.0),
            "without gamma": of("focal_loss", gamma=0.0, alpha=0.75),
            "of larger images": Sample(of("focal_loss", LARGER, reduction="sum", gamma=1.5), in_matrix=False),
            "of many elements": Sample(of("focal_loss", LONG_LINES), in_matrix=False),
        },
        reference=_loss,
        slack=4,
        wrong_values=_wrong_values(mf.focal_loss),
        wrong_types=_wrong_types(mf.focal_loss),
        cases=_cases,
        no_node=NO_NODE,
    ),
    OpInfo(
        name="focal_loss_grad",
        benchmarks={"focal_loss_grad": Benchmark("pointwise", 2, 1, ("targets",), **_IN_FLOAT32)},
        samples={
            "": of("focal_loss_grad"),
            "of a mean": of("focal_loss_grad", reduction="mean", alpha=None, gamma=2.5),
            "without gamma": of("focal_loss_grad", gamma=0.0),
            "of larger images": Sample(of("focal_loss_grad", LARGER, gamma=1.5), in_matrix=False),
        },
        reference=_grad,
        slack=4,
        wrong_values=_wrong_values(mf.focal_loss_grad),
        wrong_types=_wrong_types(mf.focal_loss_grad),
    ),
)
