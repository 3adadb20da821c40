"""Windows as dense 0/1 arrays over (output, tap, input), made by asking every tap where it reads.

Slow, and obviously right.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpsfunc.windows.axis import Axis

Array = np.ndarray


def taps(axis: Axis, o: int) -> list[int]:
    """The positions of an output's taps, inside the image or not."""
    if axis.edge == 3:  # windows part the input evenly
        return list(range(math.floor(o * axis.n_in / axis.n_out), math.ceil((o + 1) * axis.n_in / axis.n_out)))
    return [o * axis.stride - axis.pad + k * axis.dilation for k in range(axis.size)]


def reads(axis: Axis) -> Array:
    """(n_out, size, n_in): 1 where that tap of that output reads that input."""
    hit = np.zeros((axis.n_out, axis.size, axis.n_in))
    for o in range(axis.begin, axis.end):
        for k, at in enumerate(taps(axis, o)):
            if 0 <= at < axis.n_in:
                hit[o, k, at] = 1
    return hit


def weighted(axis: Axis) -> Array:
    """(n_out, size, n_in): where the taps of a convolution read; with edge 1 those outside read the nearest.

    With edges 5 and 6 they read what `margin` says.
    """
    hit = np.zeros((axis.n_out, axis.size, axis.n_in))
    for o in range(axis.begin, axis.end):
        for k, at in enumerate(taps(axis, o)):
            if axis.edge == 1:
                at = min(max(at, 0), axis.n_in - 1)
            if axis.edge in (5, 6):
                at = margin(axis)[at]
            if 0 <= at < axis.n_in:
                hit[o, k, at] = 1
    return hit


def margin(axis: Axis) -> dict[int, int]:
    """What positions beside the image read where it is mirrored at its edge pixels (5) or goes round (6), by NumPy."""
    n, mode = axis.n_in, {5: "reflect", 6: "wrap"}[axis.edge]
    around = np.pad(np.arange(n), n, mode=mode)
    return {at - n: int(read) for at, read in enumerate(around)}


def read_by(axis: Axis) -> Array:
    """(n_out, size): the input that each tap of a convolution reads, or n_in, behind the last, where it reads none."""
    hit = weighted(axis)
    return np.where(hit.any(-1), hit.argmax(-1), axis.n_in) if axis.n_in else np.zeros(hit.shape[:2], int)


def counts(axis: Axis) -> Array:
    """(n_out, n_in): how many taps of an output read an input, where with edge 1 those outside read the nearest."""
    hit = np.zeros((axis.n_out, axis.n_in))
    for o in range(axis.begin, axis.end):
        for at in taps(axis, o):
            if axis.edge == 1:
                at = min(max(at, 0), axis.n_in - 1)
            if 0 <= at < axis.n_in:
                hit[o, at] += 1
    return hit


def averages(axis: Axis) -> Array:
    """(n_out, n_in): the share of each input in each output of an average along one axis."""
    if axis.edge == 4:
        return reads(axis).sum(1) / axis.zero_pad
    divisors = []
    for o in range(axis.n_out):
        counted = [t for t in taps(axis, o) if -axis.zero_pad <= t <= axis.n_in - 1 + axis.zero_pad_after]
        divisors.append(axis.size if axis.edge == 0 else len(counted))
    return reads(axis).sum(1) / np.maximum(divisors, 1)[:, None]


def within(outputs: np.ndarray, window: Any = None, elsewhere: float = 0) -> np.ndarray:
    """What belongs to outputs of a source window, ((y, x), (height, width)), and one number for all others."""
    if window is None:
        return outputs
    (top, left), (height, width) = window
    part, kept = np.s_[:, top : top + height, left : left + width], np.full_like(outputs, elsewhere)
    kept[part] = outputs[part]
    return kept
