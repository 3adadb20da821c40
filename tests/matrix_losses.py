"""Softmax's and the losses' part of the matrix of transformations."""

from __future__ import annotations

import mlx.core as mx
from entry import Entry, entry

import mpsfunc as mf

LINES = (2, 3, 4)


def share(x: mx.array) -> mx.array:
    """Between 0 and 1, to all digits of float64, which mx.sigmoid is not."""
    return (mx.tanh(x) + 1) / 2


LOSSES: dict[str, Entry] = {
    "softmax": entry(lambda x: mf.softmax(x), LINES),
    "softmax along the first axis": entry(lambda x: mf.softmax(x, 0), (4, 3)),
    "softmax_grad": entry(lambda dy, y: mf.softmax_grad(dy, share(y), 1), LINES, LINES),
    "log_softmax": entry(lambda x: mf.log_softmax(x), LINES),
    "log_softmax along the middle": entry(lambda x: mf.log_softmax(x, 1), LINES),
    "log_softmax_grad": entry(lambda dy, y: mf.log_softmax_grad(dy, y), LINES, LINES),
}
