"""Reductions by NumPy."""

from __future__ import annotations

import numpy as np

AXES: dict[str, tuple[int, ...]] = {"rows": (2,), "columns": (1,), "channels": (3,), "space": (1, 2)}


def place(x: np.ndarray, over: str, *, largest: bool) -> np.ndarray:
    """Where the extreme is, counted along what is reduced; of a NaN and numbers the first NaN."""
    axes = AXES[over]
    lines = x.reshape(x.shape[0], -1, x.shape[3])[:, :, None] if over == "space" else x
    found: np.ndarray = (np.argmax if largest else np.argmin)(lines, axis=axes[0])
    return found.reshape([1 if i in axes else d for i, d in enumerate(x.shape)])


def placed(dy: np.ndarray, x: np.ndarray, over: str, *, largest: bool) -> np.ndarray:
    """Dy where the extreme is, among zeros."""
    number = np.arange(x.shape[1] * x.shape[2]).reshape(1, *x.shape[1:3], 1)
    if over != "space":
        axis = AXES[over][0]
        number = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])
    return np.where(number == place(x, over, largest=largest), dy, 0.0)
