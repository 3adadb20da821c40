"""Trees of arrays and values: the same or not, to the bit."""

from __future__ import annotations

import struct
from typing import Any

import mlx.core as mx
import numpy as np


def raw(a: mx.array) -> bytes:
    """The bytes of an array, row by row."""
    if a.size == 0:
        return b""
    with mx.stream(mx.cpu):
        return np.asarray(mx.contiguous(a).reshape(-1).view(mx.uint8)).tobytes()


def same_tree(a: Any, b: Any) -> bool:
    """Whether two trees have the same types, keys in the same order, and values of the same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, mx.array):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_tree(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_tree, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)
