"""Local correlations in NumPy float64: the secondary image among zeros, cut out once for each offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pair = int | tuple[int, int]


def _pair(of: Pair) -> tuple[int, int]:
    return (of, of) if isinstance(of, int) else of


def _margins(window: Pair, stride: Pair) -> tuple[tuple[int, int], ...]:
    down, across = (w * s for w, s in zip(_pair(window), _pair(stride), strict=True))
    return (0, 0), (down, down), (across, across), (0, 0)


def _cuts(shape: tuple[int, ...], window: Pair, stride: Pair) -> Iterator[tuple[slice, ...]]:
    """Where each feature's neighbours are among the zeros, in the order of features."""
    (wy, wx), (sy, sx) = _pair(window), _pair(stride)
    for i in range(2 * wy + 1):
        for j in range(2 * wx + 1):
            yield slice(None), slice(i * sy, i * sy + shape[1]), slice(j * sx, j * sx + shape[2]), slice(None)


def correlate(x: Array, y: Array, window: Pair = 0, *, stride: Pair = 1) -> Array:
    """The correlations."""
    wide = np.pad(y, _margins(window, stride))
    return np.stack([(x * wide[cut]).sum(-1) for cut in _cuts(x.shape, window, stride)], axis=-1)


def gradient(dy: Array, x: Array, y: Array, window: Pair = 0, *, stride: Pair = 1, operand: str = "primary") -> Array:
    """The gradient by an image."""
    margins = _margins(window, stride)
    wide, made = np.pad(y, margins), np.zeros(np.pad(x, margins).shape if operand == "secondary" else x.shape)
    for f, cut in enumerate(_cuts(x.shape, window, stride)):
        pull = dy[..., f, None]
        if operand == "secondary":
            made[cut] += pull * x
        else:
            made += pull * wide[cut]
    if operand == "primary":
        return made
    (_, (top, _), (left, _), _), (_, height, width, _) = margins, x.shape
    return made[:, top : top + height, left : left + width]
