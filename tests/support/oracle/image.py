"""Definitions of what moves and resamples images, in NumPy float64: a dense matrix for each axis, from fractions."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def position(j: int, n_in: int, n_out: int, coordinate: str, factor: float | None = None) -> Fraction:
    """Where position j of the result lies in the source; a factor is the decimal fraction that it prints as."""
    if coordinate == "align_corners":
        return Fraction(j * (n_in - 1), n_out - 1) if n_out > 1 else Fraction(0)
    ratio = Fraction(n_in, n_out) if factor is None else 1 / Fraction(str(factor))
    if coordinate == "half_pixel_symmetric":  # the middles of both lie on each other
        return Fraction(n_in - 1, 2) + ratio * (j - Fraction(n_out - 1, 2))
    return (j + Fraction(1, 2)) * ratio - Fraction(1, 2) if coordinate == "half_pixel" else j * ratio


def nearest(n_in: int, n_out: int, coordinate: str = "asymmetric", factor: float | None = None) -> Array:
    """The matrix of one axis, (n_out, n_in)."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate, factor)
        matrix[j, floor(u + Fraction(1, 2)) if coordinate == "half_pixel" else floor(u)] = 1
    return matrix


def bilinear(
    n_in: int, n_out: int, coordinate: str = "asymmetric", edge: str = "zero", factor: float | None = None
) -> Array:
    """The matrix of one axis, (n_out, n_in): hats of width 1 around the pixels, and around those beyond the edges."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate, factor)
        for pixel in range(-1, n_in + 1):
            hat = max(Fraction(0), 1 - abs(u - pixel))
            if 0 <= pixel < n_in:
                matrix[j, pixel] += float(hat)
            elif edge == "clamp":
                matrix[j, min(max(pixel, 0), n_in - 1)] += float(hat)
    return matrix


def bicubic(n_in: int, n_out: int, coordinate: str = "half_pixel", factor: float | None = None) -> Array:
    """The matrix of one axis, (n_out, n_in), from the curves around the pixels and around those beyond the edges."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate, factor)
        for pixel in range(-2, n_in + 2):
            matrix[j, min(max(pixel, 0), n_in - 1)] += float(keys(abs(u - pixel), Fraction(-3, 4)))
    return matrix


def filtered(n_in: int, n_out: int, cubic: bool, coordinate: str = "half_pixel", factor: float | None = None) -> Array:
    """The matrix of one axis of what is antialiased: curves as wide as positions are apart, of pixels in the image."""
    ratio = Fraction(n_in, n_out) if factor is None else 1 / Fraction(str(factor))
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        u = position(j, n_in, n_out, coordinate, factor)
        for pixel in range(n_in):
            away = abs(u - pixel) / max(ratio, 1)
            matrix[j, pixel] = float(keys(away, Fraction(-1, 2)) if cubic else max(1 - away, Fraction(0)))
    return matrix / matrix.sum(1, keepdims=True)


def keys(t: Fraction, a: Fraction) -> Fraction:
    """The cubic of Keys (1981): in powers of the distance from the ends of its two pieces."""
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t - 2) ** 2 * (t - 1) if t <= 2 else Fraction(0)


def area(n_in: int, n_out: int) -> Array:
    """The matrix of one axis, (n_out, n_in): every pixel that a position covers a part of counts as much."""
    matrix = np.zeros((n_out, n_in))
    for j in range(n_out):
        begin, end = Fraction(j * n_in, n_out), Fraction((j + 1) * n_in, n_out)
        covered = [i for i in range(n_in) if i < end and i + 1 > begin]
        matrix[j, covered] = 1 / len(covered)
    return matrix


def padded(n_in: int, before: int, after: int, mode: str) -> Array:
    """The matrix of one axis, (before + n_in + after, n_in), from a walk outwards that turns round at the edges.

    A circular one starts again at the other edge.
    """

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
            elif mode == "circular":
                at = 0 if way > 0 else n_in - 1
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
