"""Sums over rows, columns, channels or space: `reduce_sum`, `reduce_mean`, `reduce_weighted_sum`, and gradients."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, call
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle.reductions import AXES

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

# For every way to go: lines, rows of few channels and of many, long ones and wide ones.
SIZES = {
    "of one channel": (2, 5, 7, 1),
    "of eight channels": (3, 4, 5, 8),
    "of a pixel": (2, 1, 1, 5),
    "of many rows": (1, 150, 3, 6),
    "of wide rows": (1, 3, 140, 16),
    "of many channels": (1, 2, 3, 200),
}
SMALL = (2, 3, 4, 4)


def by_axes(name: str, *, matrix: bool = True) -> dict[str, Sample | Call]:
    """A call for each way to reduce, and others that are larger."""
    plain = {over: Sample(call(name, Array(SMALL), over), in_matrix=matrix) for over in AXES}
    larger = {
        f"{over} {label}": Sample(call(name, Array(shape), over), in_matrix=False)
        for over in AXES
        for label, shape in SIZES.items()
    }
    return {**plain, **larger}


def reduced(shape: tuple[int, ...], over: str) -> tuple[int, ...]:
    """What is left of a shape."""
    return tuple(1 if i in AXES[over] else d for i, d in enumerate(shape))


def _of_dy(name: str) -> dict[str, Sample | Call]:
    return {
        f"{over} {label}".strip(): Sample(call(name, Array(reduced(shape, over)), shape, over), in_matrix=not label)
        for over in AXES
        for label, shape in {"": SMALL, **SIZES}.items()
    }


WEIGHTS = {
    "": SMALL,
    "the same for all": (1, 1, 1, 1),
    "of channels": (1, 1, 1, 4),
    "of rows": (2, 3, 1, 1),
    "of pixels": (1, 3, 4, 1),
}


def _weighted(name: str, *, gradient: bool) -> dict[str, Sample | Call]:
    made: dict[str, Sample | Call] = {}
    for over in AXES:
        dy = (Array(reduced(SMALL, over)),) if gradient else ()
        for label, shape in WEIGHTS.items():
            for how in ({}, {"by_nonzero": True}):
                named = f"{over} {label} {'by nonzero' if how else ''}".strip()
                made[named] = call(name, *dy, Array(SMALL), Array(shape), over, **how)
                if gradient:
                    made[f"{named} of weights"] = call(
                        name, *dy, Array(SMALL), Array(shape), over, operand="secondary", **how
                    )
    for over in AXES:
        for label, shape in SIZES.items():
            dy = (Array(reduced(shape, over)),) if gradient else ()
            made[f"{over} {label}"] = Sample(call(name, *dy, Array(shape), Array(shape), over), in_matrix=False)
    return made


def _counts(x: np.ndarray, weights: np.ndarray, over: str) -> Any:
    return np.maximum((np.broadcast_to(weights, x.shape) != 0).sum(AXES[over], keepdims=True), 1)


def _weighted_sum(x: np.ndarray, weights: np.ndarray, over: str, *, by_nonzero: bool = False) -> np.ndarray:
    sums: np.ndarray = (x * weights).sum(AXES[over], keepdims=True)
    return sums / _counts(x, weights, over) if by_nonzero else sums


def _weighted_sum_grad(
    dy: np.ndarray,
    x: np.ndarray,
    weights: np.ndarray,
    over: str,
    *,
    operand: str = "primary",
    by_nonzero: bool = False,
) -> np.ndarray:
    shared = dy / _counts(x, weights, over) if by_nonzero else dy
    if operand == "primary":
        return shared * np.broadcast_to(weights, x.shape)
    axes = tuple(i for i in range(4) if weights.shape[i] != x.shape[i])
    made: np.ndarray = (shared * x).sum(axes, keepdims=True)
    return made


# What is measured ---------------------------------------------------------------------------------------

_CPU = Measured(targets=LEVEL)


def measured(name: str, passes: int = 1, given: tuple[str, ...] = (), of: Measured = _CPU) -> dict[str, Benchmark]:
    """A row for each way to reduce."""
    return {
        f"{name}_{over}": Benchmark(
            "pointwise", passes, 1, given, cpu=(of,), title=f"{name}, {over}", reduced=AXES[over]
        )
        for over in AXES
    }


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, PULL = numbers((2, 6, 5, 4)), numbers((2, 6, 1, 4))


def nodes(name: str) -> dict[str, Node]:
    """A filter for each way to reduce."""
    return {
        over: Node(
            lambda x, over=over: getattr(graph, name)(x, over),
            lambda p, x, over=over: getattr(mf, name)(x, over),
        )
        for over in AXES
    }


OPS = (
    *(
        OpInfo(
            name=name,
            samples=by_axes(name),
            image="x",
            reference=lambda x, over, mean=mean: (x.mean if mean else x.sum)(AXES[over], keepdims=True),
            linear=(0,),
            wrong_values=(
                ("unknown over", lambda f=f: f(IMAGES, "depth")),
                ("not an image batch", lambda f=f: f(IMAGES[0], "rows")),
            ),
            wrong_types=(
                ("over is not a name", lambda f=f: f(IMAGES, 2)),
                ("x has no floating dtype", lambda f=f: f(IMAGES.astype(mx.int32), "rows")),
            ),
            benchmarks=measured(name),
            nodes=nodes(name),
        )
        for name, f, mean in (("reduce_sum", mf.reduce_sum, False), ("reduce_mean", mf.reduce_mean, True))
    ),
    *(
        OpInfo(
            name=name,
            samples=_of_dy(name),
            reference=lambda dy, shape, over, mean=mean: np.broadcast_to(
                dy / (np.prod([shape[i] for i in AXES[over]]) if mean else 1), shape
            ),
            launches=False,
            pulls_by_kernels=True,
            slack=2,
            linear=(0,),
            wrong_values=(
                ("unknown over", lambda f=f: f(PULL, (2, 6, 5, 4), "x")),
                ("not an image batch", lambda f=f: f(PULL, (2, 6, 5), "rows")),
                ("dy does not belong to images of this shape", lambda f=f: f(PULL, (2, 6, 5, 4), "columns")),
            ),
            wrong_types=(
                ("shape is not a shape", lambda f=f: f(PULL, 4, "rows")),
                ("dy is not an array", lambda f=f: f(None, (2, 6, 5, 4), "rows")),
            ),
        )
        for name, f, mean in (
            ("reduce_sum_grad", mf.reduce_sum_grad, False),
            ("reduce_mean_grad", mf.reduce_mean_grad, True),
        )
    ),
    OpInfo(
        name="reduce_weighted_sum",
        samples=_weighted("reduce_weighted_sum", gradient=False),
        image="x",
        reference=_weighted_sum,
        wrong_values=(
            ("unknown over", lambda: mf.reduce_weighted_sum(IMAGES, IMAGES, "all")),
            ("weights do not belong to x", lambda: mf.reduce_weighted_sum(IMAGES, IMAGES[:, :3], "rows")),
            ("weights do not belong to x", lambda: mf.reduce_weighted_sum(IMAGES, IMAGES[0, 0, 0], "channels")),
        ),
        wrong_types=(
            ("by_nonzero is not a bool", lambda: mf.reduce_weighted_sum(IMAGES, IMAGES, "rows", by_nonzero=1)),
            ("weights is not an array", lambda: mf.reduce_weighted_sum(IMAGES, [1.0] * 4, "channels")),
            (
                "weights and x differ in dtype",
                lambda: mf.reduce_weighted_sum(IMAGES, IMAGES.astype(mx.float16), "rows"),
            ),
        ),
        benchmarks=measured("reduce_weighted_sum", 2, ("other",)),
        nodes={
            **{
                over: Node(
                    lambda x, w, over=over: graph.reduce_weighted_sum(x, w, over),
                    lambda p, x, w, over=over: mf.reduce_weighted_sum(x, w, over),
                    ((2, 6, 5, 4), (2, 6, 5, 4)),
                )
                for over in AXES
            },
            "by nonzero": Node(
                lambda x, w: graph.reduce_weighted_sum(x, w, "channels", by_nonzero=True),
                lambda p, x, w: mf.reduce_weighted_sum(x, w, "channels", by_nonzero=True),
                ((2, 6, 5, 4), (1, 1, 1, 4)),
            ),
        },
    ),
    OpInfo(
        name="reduce_weighted_sum_grad",
        samples=_weighted("reduce_weighted_sum_grad", gradient=True),
        image="x",
        reference=_weighted_sum_grad,
        slack=2,
        wrong_values=(
            (
                "dy does not belong to the images",
                lambda: mf.reduce_weighted_sum_grad(PULL, IMAGES, IMAGES, "columns"),
            ),
            (
                "unknown operand",
                lambda: mf.reduce_weighted_sum_grad(PULL, IMAGES, IMAGES, "rows", operand="weights"),
            ),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.reduce_weighted_sum_grad(None, IMAGES, IMAGES, "rows")),
            (
                "dy and x differ in dtype",
                lambda: mf.reduce_weighted_sum_grad(PULL.astype(mx.float16), IMAGES, IMAGES, "rows"),
            ),
        ),
        benchmarks=measured("reduce_weighted_sum_grad", 2, ("other",), Measured(targets=LEVEL, dtypes=FLOAT32)),
    ),
)
