"""What two operands of arithmetic may be, and how they lie under the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _broadcast, _check, _launch, _plain
from mpsfunc._broadcast import Shape

Strides = Sequence[int]
Lying = tuple[int, tuple[int, int]]  # the batch and the operands' pers


def arrays(op: str, x: Any, y: Any, check: Any, stream: mx.Stream) -> tuple[mx.array, mx.array]:
    """Both operands, of which one may be a number, in the other's dtype then."""
    made: list[Any] = [x, y]
    for i, name in enumerate("xy"):
        other = made[1 - i]
        plain = _plain.real(made[i]) if isinstance(other, mx.array) else None
        if plain is None:
            check(op, name, made[i], stream=stream)
            continue
        check(op, "yx"[i], other, stream=stream)
        made[i] = _of_dtype(op, name, plain, other.dtype)
    if made[0].dtype != made[1].dtype:
        raise TypeError(f"{op}: x and y differ in dtype; got y.dtype={made[1].dtype}, expected {made[0].dtype}")
    return made[0], made[1]


def _of_dtype(op: str, name: str, value: float, dtype: mx.Dtype) -> mx.array:
    if not mx.issubdtype(dtype, mx.floating):
        least, most = (int(bound) for bound in (mx.iinfo(dtype).min, mx.iinfo(dtype).max))
        return mx.array(_check.whole(op, name, value, least, most), dtype)
    if isinstance(value, int) or math.isfinite(value):
        value = _check.number(op, name, value)
    return mx.array(value, dtype)


class Operands(NamedTuple):
    """Both operands as images, all of which is read, their shapes before, the result's, and how they lie under it."""

    x: mx.array
    y: mx.array
    cut: tuple[Shape, Shape]
    shape: Shape
    images: Shape
    lying: Lying


def operands(op: str, x: mx.array, y: mx.array, strides: tuple[Strides, Strides]) -> Operands:
    """Two arrays of one dtype, broadcast."""
    for name, a, stride in zip(("primary_stride", "secondary_stride"), (x, y), strides, strict=True):
        step = _broadcast.stride(op, name, stride)
        if a.ndim != 4 and step != (1, 1, 1):
            raise ValueError(f"{op}: only images have strides; got {name}={step}, expected (1, 1, 1)")
    x, y = (_read(a, stride) for a, stride in zip((x, y), strides, strict=True))
    shape, first, second = _broadcast.together(op, tuple(x.shape), tuple(y.shape))
    batch = _broadcast.joint(first[0], second[0])
    images = _broadcast.sized(op, "output shape", _broadcast.result_shape((first, second), batch))
    pers = (batch if first[0] == 1 else 1), (batch if second[0] == 1 else 1)
    return Operands(x.reshape(first), y.reshape(second), (x.shape, y.shape), shape, images, (batch, pers))


def _read(a: mx.array, step: Strides) -> mx.array:
    """Images without the entries that nobody reads."""
    if a.ndim != 4 or all(s or length == 1 for s, length in zip(step, a.shape[1:], strict=True)):
        return a
    return _launch.cut(a, tuple(slice(None) if s else slice(1) for s in (1, *step)))
