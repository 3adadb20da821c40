"""Extremes over rows, columns, channels or space: `reduce_max`, `reduce_min`, their places and gradients."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, OpInfo, Sample, call
from generic.ops.reductions import SIZES, SMALL, by_axes, measured, nodes, reduced
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, Measured
from support.oracle.reductions import AXES, placed

import mpsfunc as mf

IMAGES, PULL = numbers((2, 6, 5, 4)), numbers((2, 6, 1, 4))
_VALUES, _ONCE = Measured(targets=LEVEL), Measured(targets=LEVEL, dtypes=FLOAT32)


def _gradients(name: str) -> dict[str, Sample | Call]:
    return {
        f"{over} {label}".strip(): Sample(
            call(name, Array(reduced(shape, over)), Array(shape), over), in_matrix=not label
        )
        for over in AXES
        for label, shape in {"": SMALL, **SIZES}.items()
    }


def _value(x: np.ndarray, over: str, largest: bool) -> np.ndarray:
    made: np.ndarray = (np.max if largest else np.min)(x, axis=AXES[over], keepdims=True)
    return made


def _forward(name: str, f: Any, largest: bool) -> OpInfo:
    return OpInfo(
        name=name,
        samples=by_axes(name),
        image="x",
        reference=lambda x, over: _value(x, over, largest),
        takes_integers=True,
        wrong_values=(
            ("unknown over", lambda: f(IMAGES, "depth")),
            ("not an image batch", lambda: f(IMAGES[0], "rows")),
        ),
        wrong_types=(
            ("over is not a name", lambda: f(IMAGES, None)),
            ("x is not an array", lambda: f([1.0], "rows")),
        ),
        benchmarks=measured(name, of=_VALUES if largest else _ONCE),
        nodes=nodes(name),
    )


def _gradient(name: str, f: Any, largest: bool) -> OpInfo:
    return OpInfo(
        name=name,
        samples=_gradients(name),
        image="x",
        reference=lambda dy, x, over: placed(dy, x, over, largest=largest),
        linear=(0,),
        wrong_values=(
            ("unknown over", lambda: f(PULL, IMAGES, "depth")),
            ("dy does not belong to x", lambda: f(PULL, IMAGES, "columns")),
        ),
        wrong_types=(
            ("x has no floating dtype", lambda: f(PULL, IMAGES.astype(mx.int32), "rows")),
            ("dy and x differ in dtype", lambda: f(PULL.astype(mx.float16), IMAGES, "rows")),
        ),
        benchmarks=measured(name, 2, of=_ONCE),
    )


def _place(name: str, f: Any, largest: bool) -> OpInfo:
    return OpInfo(
        name=name,
        samples=by_axes(name, matrix=False),
        image="x",
        compared="pooling/test_reductions.py",
        differentiable=False,
        takes_integers=True,
        wrong_values=(
            ("unknown over", lambda: f(IMAGES, "depth")),
            ("not an image batch", lambda: f(IMAGES[0], "rows")),
        ),
        wrong_types=(
            ("over is not a name", lambda: f(IMAGES, None)),
            ("x is not an array", lambda: f([1.0], "rows")),
        ),
        benchmarks=measured(name, of=_ONCE),
    )


OPS = (
    _forward("reduce_max", mf.reduce_max, True),
    _forward("reduce_min", mf.reduce_min, False),
    _gradient("reduce_max_grad", mf.reduce_max_grad, True),
    _gradient("reduce_min_grad", mf.reduce_min_grad, False),
    _place("reduce_argmax", mf.reduce_argmax, True),
    _place("reduce_argmin", mf.reduce_argmin, False),
)
