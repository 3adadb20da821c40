"""Definitions in NumPy float64: dropout with its generator, arithmetic and comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray
OPERATIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
COMPARISONS = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Philox4x32-10 in Python's integers."""
    low = 2**32 - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [second >> 32 ^ c[1] ^ k[0], second & low, first >> 32 ^ c[3] ^ k[1], first & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c


def words(count: int, key: tuple[int, ...]) -> Array:
    """The first words of a key, 32 bits each."""
    calls = [philox((i & 0xFFFFFFFF, i >> 32, 0, 0), key) for i in range(-(-count // 4))]
    return np.array(calls, np.uint64).reshape(-1)[:count]


def mask(shape: tuple[int, ...], keep: float, key: Any, stride: tuple[int, ...] = (1, 1, 1)) -> Array:
    """The mask of `dropout_mask`."""
    if len(shape) == 4:
        shape = (shape[0], *(length if step else 1 for length, step in zip(shape[1:], stride, strict=True)))
    made = words(int(np.prod(shape)), tuple(int(k) for k in np.array(key)))
    return (made < round(keep * 2**32)).reshape(shape)


def dropout(x: Array, m: Array, keep: float) -> Array:
    """With a mask."""
    with np.errstate(invalid="ignore"):
        return np.broadcast_to(x, x.shape) * m / keep


def read(a: Array, stride: tuple[int, ...]) -> Array:
    """An operand where a stride of 0 reads its first entry everywhere."""
    for axis, step in enumerate(stride, 1):
        if step == 0:
            a = np.take(a, [0], axis)
    return a


def arithmetic(
    x: Array,
    y: Array,
    operation: str,
    scales: tuple[float, float, float] = (1, 1, 0),
    limits: tuple[float | None, float | None] = (None, None),
    strides: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 1, 1), (1, 1, 1)),
) -> Array:
    """The clamped result."""
    if x.ndim == 4:
        x, y = (read(a, s) for a, s in zip((x, y), strides, strict=True))
    with np.errstate(all="ignore"):
        r = OPERATIONS[operation](scales[0] * x, scales[1] * y) + scales[2]
        low, high = (np.inf * sign if v is None else v for v, sign in zip(limits, (-1, 1), strict=True))
        return np.minimum(np.maximum(r, low), high)


def arithmetic_grad(
    dy: Array,
    x: Array,
    y: Array,
    operation: str,
    operand: int,
    scales: tuple[float, float, float] = (1, 1, 0),
    limits: tuple[float | None, float | None] = (None, None),
    strides: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 1, 1), (1, 1, 1)),
    clamp: bool = False,
) -> Array:
    """What each place of the result gives to the entry that it read, added up over the places that read one entry."""
    made = np.zeros((x, y)[operand].shape)
    if x.ndim == 4:
        x, y = (read(a, s) for a, s in zip((x, y), strides, strict=True))
    ps, ss, bias = scales
    with np.errstate(all="ignore"):
        by = {
            "add": (ps, ss), "subtract": (ps, -ss), "multiply": (ps * ss * y, ps * ss * x),
            "divide": (ps / (ss * y), -ps * x / (ss * y * y)),
        }[operation][operand]  # fmt: skip
        given = by * dy
        if clamp:
            r = OPERATIONS[operation](ps * x, ss * y) + bias
            low, high = (np.inf * sign if v is None else v for v, sign in zip(limits, (-1, 1), strict=True))
            given = np.where((low < r) & (r < high), given, 0)
    shape = (x, y)[operand].shape  # of the entries that are read
    shared = tuple(axis for axis, length in enumerate(shape) if length == 1)
    made[tuple(map(slice, shape))] = given.sum(shared, keepdims=True)
    return made
