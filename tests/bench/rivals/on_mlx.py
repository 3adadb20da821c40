"""What mpsfunc and stock MLX share: how arrays get to MLX, how calls run there, and how answers get back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from . import Call, Side

_PARAMETERS = ("gamma", "beta")  # float32 beside images of any dtype


def place(arrays: SimpleNamespace, dtype: str) -> SimpleNamespace:
    """Copies to MLX; what the conversion left in MLX's cache is given back."""
    placed = SimpleNamespace()
    for name, value in vars(arrays).items():
        array = mx.array(value)
        if value.dtype.kind == "f":  # labels and masks stay what they are
            array = array.astype(mx.float32 if name in _PARAMETERS else getattr(mx, dtype))
        setattr(placed, name, array)
    mx.eval(list(vars(placed).values()))
    mx.clear_cache()
    return placed


def run(call: Call, times: int) -> None:
    """One evaluation of independent calls."""
    mx.eval([call() for _ in range(times)])


def answer(op: str, outputs: list[Any]) -> list[np.ndarray]:
    """To NumPy."""
    return [np.array(out.astype(mx.float32)).astype(np.float64) for out in outputs]


def side(name: str, functions: Any) -> Side:
    """A side that computes with MLX arrays."""
    return Side(name, functions, place, run, answer)
