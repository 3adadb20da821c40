"""What the matrix of transformations needs to know of a function, and what its tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from support import exact, numbers

Arrays = tuple[mx.array, ...]
SIZE = 3  # of a mapped axis


class Entry(NamedTuple):
    """A function from arrays to a tuple of arrays, and the shapes that it takes."""

    call: Callable[..., Arrays]
    shapes: tuple[tuple[int, ...], ...]
    positive: frozenset[int]  # arguments that are variances

    def inputs(self, dtype: mx.Dtype = mx.float64, *, seed: int = 0, batch: int | None = None) -> Arrays:
        """Values for the arguments, with a new leading axis of length ``batch``."""
        made = []
        for i, shape in enumerate(self.shapes):
            a = numbers(shape if batch is None else (batch, *shape), dtype, 100 * seed + i)
            made.append(abs(a) + 0.5 if i in self.positive else a)
        return tuple(made)

    def loss(self, *arrays: mx.array) -> mx.array:
        """A scalar of all outputs whose derivatives of every order exist and differ."""
        total = mx.array(0.0, arrays[0].dtype)
        for i, y in enumerate(self.call(*arrays)):
            weights = numbers(tuple(y.shape), y.dtype, 7 + i)
            total = total + (weights * (y + 0.3 * y * y + 0.1 * y * y * y)).sum()
        return total

    def square(self, *arrays: mx.array) -> mx.array:
        """A plainer scalar, for traces that MLX compiles."""
        return sum(((y * y).sum() for y in self.call(*arrays)), mx.array(0.0, arrays[0].dtype))


def entry(call: Callable[..., Any], *shapes: tuple[int, ...], positive: tuple[int, ...] = ()) -> Entry:
    def flat(*arrays: mx.array) -> Arrays:
        out = call(*arrays)
        return (out,) if isinstance(out, mx.array) else tuple(out)

    return Entry(flat, shapes, frozenset(positive))


def same(actual: Sequence[mx.array], expected: Sequence[mx.array], tolerance: float = 1e-10) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        size = max(1.0, float(np.abs(exact(e)).max(initial=0)))
        np.testing.assert_allclose(exact(a), exact(e), rtol=0, atol=tolerance * size)


def grads(loss: Callable[..., mx.array], count: int) -> Callable[..., Arrays]:
    pull = mx.grad(loss, argnums=tuple(range(count)))
    return lambda *arrays: (pull(*arrays),) if count == 1 else pull(*arrays)


def looped(function: Callable[..., Arrays], arrays: Arrays, mapped: Sequence[bool]) -> Arrays:
    """What mx.vmap should give, one run after the other."""
    runs = [function(*[a[i] if m else a for a, m in zip(arrays, mapped, strict=True)]) for i in range(SIZE)]
    return tuple(mx.stack(outs) for outs in zip(*runs, strict=True))
