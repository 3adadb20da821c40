"""Definitions of what moves and resamples images, in NumPy float64: a dense matrix for each axis, from fractions."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def position(j: int, n_in: int, n_out: int, coordinate: str) -> Fraction:
    """Where position j of the result lies in the source."""
    if coordinate == "align_corners":
        return Fraction(j * (n_in - 1), n_out - 1) if n_out > 1 else Fraction(0)
    ratio = Fraction(n_in, n_out)
    return (j + Fraction(1, 2)) * ratio - Fraction(1, 2) if coordinate == "half_pixel" else j * ratio


def nearest(n_in: int, n_out: int, coordinate: str = "asymmetric") -> Array:
    """The matrix of one axis, (n_out, n_in)."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate)
        matrix[j, floor(u + Fraction(1, 2)) if coordinate == "half_pixel" else floor(u)] = 1
    return matrix


def bilinear(n_in: int, n_out: int, coordinate: str = "asymmetric", edge: str = "zero") -> Array:
    """The matrix of one axis, (n_out, n_in): hats of width 1 around the pixels, and around those beyond the edges."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate)
        for pixel in range(-1, n_in + 1):
            hat = max(Fraction(0), 1 - abs(u - pixel))
            if 0 <= pixel < n_in:
                matrix[j, pixel] += float(hat)
            elif edge == "clamp":
                matrix[j, min(max(pixel, 0), n_in - 1)] += float(hat)
    return matrix


def padded(n_in: int, before: int, after: int, mode: str) -> Array:
    """The matrix of one axis, (before + n_in + after, n_in), from a walk outwards that turns round at the edges."""

    def walk(steps: int, start: int, way: int) -> list[int]:
        found, at = [], start
        for _ in range(steps):
            if mode == "constant":
                found.append(-1)
                continue
            if mode == "clamp" or n_in == 1:
                found.append(start)
                continue
            if 0 <= at + way < n_in:
                at += way
            else:
                way = -way
                at += way if mode == "mirror" else 0
            found.append(at)
        return found

    reads = [*reversed(walk(before, 0, -1)), *range(n_in), *walk(after, n_in - 1, 1)]
    matrix = np.zeros((len(reads), n_in))
    for j, i in enumerate(reads):
        if i >= 0:
            matrix[j, i] = 1
    return matrix


def along(x: Array, rows: Array, cols: Array, channels: Array | None = None) -> Array:
    """Images with matrices applied to their rows, columns and channels."""
    y = np.einsum("jh,nhwc->njwc", rows, x)
    y = np.einsum("iw,njwc->njic", cols, y)
    return y if channels is None else np.einsum("dc,njic->njid", channels, y)
