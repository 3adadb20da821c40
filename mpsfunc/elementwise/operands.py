"""What two operands of arithmetic may be, and how they lie under the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import broadcast
from mpsfunc.channels.broadcast import Shape
from mpsfunc.core import arguments, checks, launch
from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import describe

Strides = Sequence[int]
Lying = tuple[int, tuple[int, int]]  # the batch and the operands' pers


def arrays(op: str, x: Any, y: Any, check: Any, stream: mx.Stream) -> tuple[mx.array, mx.array]:
    """Both operands, of which one may be a number, in the other's dtype then."""
    made: list[Any] = [x, y]
    for i, name in enumerate("xy"):
        other = made[1 - i]
        plain = arguments.real(made[i]) if arguments.is_a(other, mx.array) else None
        if plain is None:
            check(op, name, made[i], stream=stream)
            continue
        check(op, "yx"[i], other, stream=stream)
        made[i] = _of_dtype(op, name, plain, other.dtype)
    if made[0].dtype != made[1].dtype:
        raise TypeError(f"{op}: x and y differ in dtype; got y.dtype={made[1].dtype}, expected {made[0].dtype}")
    return made[0], made[1]


def _of_dtype(op: str, name: str, value: float, dtype: mx.Dtype) -> mx.array:
    """A number as an array of a dtype that holds it; floating ones round it, and have infinities and NaN."""
    if not mx.issubdtype(dtype, mx.floating):
        plain = checks.whole(op, name, value, int(mx.iinfo(dtype).min), int(mx.iinfo(dtype).max))
        kind = "i" if mx.issubdtype(dtype, mx.signedinteger) else "u"
        return mx.array(np.array(plain, f"{kind}{dtype.size}"))  # MLX takes no int of 2**63 and above
    most = mx.finfo(dtype).max
    if not -most <= value <= most and (isinstance(value, int) or math.isfinite(value)):
        rule = f"what {str(dtype).rpartition('.')[2]} holds, {-most:g} to {most:g}"
        raise ValueError(f"{op}: {name} is out of range; got {name}={describe(value)}, expected {rule}")
    return mx.array(float(value), dtype)


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
    names = ("primary_stride", "secondary_stride")
    steps = [broadcast.stride(op, name, stride) for name, stride in zip(names, strides, strict=True)]
    for name, a, step in zip(names, (x, y), steps, strict=True):
        if a.ndim != 4 and step != (1, 1, 1):
            raise ValueError(f"{op}: only images have strides; got {name}={step}, expected (1, 1, 1)")
    x, y = (_read(a, step) for a, step in zip((x, y), steps, strict=True))
    made = broadcast.together(op, tuple(x.shape), tuple(y.shape))
    images = broadcast.sized(op, "output shape", broadcast.result_shape((made.first, made.second), made.batch))
    parts = x.reshape(made.first), y.reshape(made.second)
    return Operands(*parts, (x.shape, y.shape), made.shape, images, (made.batch, made.pers))


def _read(a: mx.array, step: Strides) -> mx.array:
    """Images without the entries that nobody reads."""
    if all(step) or a.ndim != 4 or all(s or length == 1 for s, length in zip(step, a.shape[1:], strict=True)):
        return a
    return launch.cut(a, tuple(slice(None) if s else slice(1) for s in (1, *step)))
