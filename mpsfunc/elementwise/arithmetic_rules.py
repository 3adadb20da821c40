"""The kernels of arithmetic on two operands, and their rules.

``r = (primary_scale * x) op (secondary_scale * y) + bias``, clamped, and the gradient for one operand are a kernel
each. Everything of higher order is a derivative of what they mean in MLX's own operations.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import mlx.core as mx

from mpsfunc.channels import broadcast
from mpsfunc.channels.broadcast import Layout, Operand, Shape
from mpsfunc.channels.sums import channel_sums
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, one_batch, operation
from mpsfunc.elementwise.params import (
    ArithmeticFactors,
    ArithmeticGradParams,
    ArithmeticParams,
    CompareLaunch,
    CompareParams,
    halves,
)

ADD, SUBTRACT, MULTIPLY, DIVIDE = range(4)


class Spec(NamedTuple):
    """One arithmetic operation; ``batch`` and ``pers`` say how operands lie under the result (`channels.broadcast`)."""

    operation: int
    primary_scale: float
    secondary_scale: float
    bias: float
    minimum: float | None
    maximum: float | None
    batch: int
    pers: tuple[int, int]
    stream: mx.Stream


class GradSpec(NamedTuple):
    """The gradient for operand 0 or 1; ``clamped`` says whether nothing passes where the result was clamped.

    It has so many ``images``, each the sum over ``per`` of the result in a row and over those again behind the last.
    """

    of: Spec
    operand: int
    clamped: bool
    images: int
    per: int

    @property
    def stream(self) -> mx.Stream:
        """Where it runs."""
        return self.of.stream


class CompareSpec(NamedTuple):
    """One comparison."""

    comparison: int
    threshold: float
    batch: int
    pers: tuple[int, int]
    stream: mx.Stream


Elementwise = TypeVar("Elementwise", Spec, CompareSpec)


@operation("arithmetic")
def value(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
    """The clamped result over images (n, h, w, c)."""
    shape = broadcast.result_shape((x.shape, y.shape), spec.batch)
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    made = broadcast.layout(shape, (x.shape, spec.pers[0]), (y.shape, spec.pers[1]))
    limits = _limits(spec)
    params = ArithmeticParams(*made[:4], *_both(made), spec.operation, limits, _factors(spec))

    def launches() -> tuple[KernelLaunch, ...]:
        width = broadcast.vector_width(x.dtype, made)
        size, group = broadcast.grid(broadcast.packs(made, width), made.n)
        unroll = (("V", width), ("K", spec.operation), ("L", limits), ("F", int(broadcast.merged(made))))
        return (KernelLaunch("arithmetic", ("x", "y"), ("out",), ((shape, x.dtype),), size, group, params, unroll),)

    return launch.launch("arithmetic", {"x": x, "y": y}, params, ((shape, x.dtype),), launches, spec.stream)[0]


@value.vjp
def _value_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, y), dy, (per_x, per_y) = arrays, cotangents[0], spec.pers
    return (
        grad(dy, x, y, GradSpec(spec, 0, True, x.shape[0], per_x)),
        grad(dy, x, y, GradSpec(spec, 1, True, y.shape[0], per_y)),
    )


@value.decomposition
def _value_by_formula(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
    dtype = x.dtype
    x, y = (_wide(a, per, spec.batch) for a, per in zip((x, y), spec.pers, strict=True))
    r = _unclamped(x, y, spec)
    inside = _inside(r, spec)
    if inside is not None:
        edge = r
        if spec.minimum is not None:
            edge = mx.where(edge < spec.minimum, spec.minimum, edge)
        if spec.maximum is not None:
            edge = mx.where(edge > spec.maximum, spec.maximum, edge)
        r = mx.where(inside, r, mx.stop_gradient(edge))
    if r.shape[0] != spec.batch:
        r = mx.broadcast_to(r, (spec.batch, *r.shape[1:]))
    return r.astype(dtype)


@value.vmap
def _value_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    x, y, wide = _folded(arrays, mapped, size, spec)
    return _apart(value(x, y, wide), size)


@operation("arithmetic_grad")
def grad(dy: mx.array, x: mx.array, y: mx.array, spec: GradSpec) -> mx.array:
    """The gradient of one operand, in its shape."""
    of, shape = spec.of, _shape(x, y, spec)
    if 0 in dy.shape:
        return mx.zeros(shape, dy.dtype)
    if any(reads(spec)):
        full = _full_grad(dy, x, y, spec, dy.dtype if shape == dy.shape else launch.accumulator(dy.dtype))
        return _sums(full, shape, spec).astype(dy.dtype)
    scale = of.primary_scale if spec.operand == 0 else of.secondary_scale
    scale = -scale if spec.operand == 1 and of.operation == SUBTRACT else scale
    if shape == dy.shape:
        return dy if scale == 1 else _full_grad(dy, dy, dy, spec, dy.dtype)
    return (scale * _sums(dy, shape, spec)).astype(dy.dtype)  # sums first, for there are fewer


@grad.decomposition
def _grad_by_formula(dy: mx.array, x: mx.array, y: mx.array, spec: GradSpec) -> mx.array:
    of, dtype, shape = spec.of, dy.dtype, _shape(x, y, spec)
    dy = dy.astype(launch.accumulator(dtype))
    x, y = (_wide(a, per, of.batch) for a, per in zip((x, y), of.pers, strict=True))
    inside = _inside(_unclamped(x, y, of), of) if spec.clamped else None
    if inside is not None:
        dy = mx.where(inside, dy, 0)
    first, second = of.primary_scale, of.secondary_scale
    if of.operation == MULTIPLY:
        full = dy * (first * second * (x if spec.operand else y))
    elif of.operation == DIVIDE:
        full = dy * (-(first * x / (second * y)) / y if spec.operand else first / (second * y))
    else:
        full = dy * (first if spec.operand == 0 else second if of.operation == ADD else -second)
    return broadcast.gathered(full, shape, spec.per).astype(dtype)


@grad.vmap
def _grad_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: GradSpec) -> mx.array:
    x, y, of = _folded(arrays[1:], mapped[1:], size, spec.of)
    own = spec.images * spec.per
    again = spec.of.batch // own if own else 1  # sums over what comes again stay within each of the mapped
    wide = spec._replace(of=of, images=size * again * spec.images)
    out = grad(one_batch(arrays[0], mapped[0], size), x, y, wide)
    apart = out.reshape(size, again, spec.images, *out.shape[1:])
    return apart.sum(1) if again > 1 else apart[:, 0]


def reads(spec: GradSpec) -> tuple[bool, bool]:
    """Whether a gradient depends on x and on y."""
    of = spec.of
    if spec.clamped and (of.minimum is not None or of.maximum is not None):
        return True, True
    if of.operation == DIVIDE:
        return spec.operand == 1, True
    return of.operation == MULTIPLY and spec.operand == 1, of.operation == MULTIPLY and spec.operand == 0


@operation("compare")
def compare(x: mx.array, y: mx.array, spec: CompareSpec) -> mx.array:
    """1 where the comparison holds, else 0."""
    shape = broadcast.result_shape((x.shape, y.shape), spec.batch)
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    made = broadcast.layout(shape, (x.shape, spec.pers[0]), (y.shape, spec.pers[1]))
    dtype, result = x.dtype, (shape, x.dtype)
    if launch.backend(spec.stream) == "cpu" and not mx.issubdtype(dtype, mx.floating):
        wide = mx.uint64 if mx.issubdtype(dtype, mx.unsignedinteger) else mx.int64
        x, y, result = x.astype(wide), y.astype(wide), (shape, wide)
    params = CompareParams(*made[:4], *_both(made), spec.comparison, spec.threshold)

    def launches() -> tuple[KernelLaunch, ...]:
        width = broadcast.vector_width(dtype, made)
        size, group = broadcast.grid(broadcast.packs(made, width), made.n)
        whole = int(mx.issubdtype(dtype, mx.integer))
        unroll = (("V", width), ("K", spec.comparison), ("W", whole), ("F", int(broadcast.merged(made))))
        most = min(int(spec.threshold), 2**64 - 1)
        numbers = CompareLaunch(*made[:4], *_both(made), spec.threshold, *halves(most))
        return (KernelLaunch("compare", ("x", "y"), ("out",), (result,), size, group, numbers, unroll),)

    return launch.launch("compare", {"x": x, "y": y}, params, (result,), launches, spec.stream)[0].astype(dtype)


@compare.vjp
def _compare_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: CompareSpec) -> Gradients:
    return None, None


@compare.jvp
def _compare_jvp(arrays: Arrays, tangents: Tangents, spec: CompareSpec) -> mx.array:
    x, y = arrays
    return mx.zeros_like(compare(x, y, spec))


@compare.vmap
def _compare_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: CompareSpec) -> mx.array:
    x, y, wide = _folded(arrays, mapped, size, spec)
    return _apart(compare(x, y, wide), size)


# Helpers ------------------------------------------------------------------------------------------------


def _folded(arrays: Arrays, mapped: Mapped, size: int, spec: Elementwise) -> tuple[mx.array, mx.array, Elementwise]:
    """Both operands and their spec with a mapped axis in the batch."""
    (x, per_x), (y, per_y) = (
        broadcast.mapped(a, per, spec.batch, m) for a, per, m in zip(arrays, spec.pers, mapped, strict=True)
    )
    return x, y, spec._replace(batch=size * spec.batch, pers=(per_x, per_y))


def _apart(out: mx.array, size: int) -> mx.array:
    """A batch with the mapped axis in front again."""
    return out.reshape(size, out.shape[0] // size, *out.shape[1:])


def _limits(spec: Spec) -> int:
    """Which limits there are, in bits."""
    return (spec.minimum is not None) + 2 * (spec.maximum is not None)


def _factors(spec: Spec) -> ArithmeticFactors:
    return ArithmeticFactors(*spec[1:4], spec.minimum or 0.0, spec.maximum or 0.0)


def _both(made: Layout) -> tuple[Operand, Operand]:
    x, y = made.operands
    return x, y


def _full_grad(dy: mx.array, x: mx.array, y: mx.array, spec: GradSpec, dtype: mx.Dtype) -> mx.array:
    """The gradient before sums."""
    of, needed, shape = spec.of, reads(spec), tuple(dy.shape)
    arrays = {"dy": dy, **({"x": x} if needed[0] else {}), **({"y": y} if needed[1] else {})}
    # An operand that is not read is stood in for by dy.
    lying = [(a.shape, per) if needs else (shape, 1) for a, per, needs in zip((x, y), of.pers, needed, strict=True)]
    made = broadcast.layout(shape, (shape, 1), *lying)
    limits, (first, second, third) = _limits(of) if spec.clamped else 0, made.operands
    switches = of.operation, spec.operand, limits, int(needed[0]), int(needed[1])
    params = ArithmeticGradParams(*made[:4], first, second, third, *switches, _factors(of))

    def launches() -> tuple[KernelLaunch, ...]:
        width = broadcast.vector_width(dtype, made)  # what a thread stores at a time is sixteen bytes
        size, group = broadcast.grid(broadcast.packs(made, width), made.n)
        modes = (("K", of.operation), ("S", spec.operand), ("L", limits), ("F", int(broadcast.merged(made))))
        template = (("O", dtype), ("V", width), *modes)
        inputs = "dy", ("x", "x" if needed[0] else "dy"), ("y", "y" if needed[1] else "dy")
        result = ((shape, dtype),)
        return (KernelLaunch("arithmetic_grad", inputs, ("dx",), result, size, group, params, template),)

    return launch.launch("arithmetic_grad", arrays, params, ((shape, dtype),), launches, of.stream)[0]


def _sums(full: mx.array, shape: Shape, spec: GradSpec) -> mx.array:
    """What shares an entry of an operand of this shape, added up in the accumulator's dtype."""
    if full.shape == shape:
        return full
    if shape == (1, 1, 1, full.shape[3]):
        return channel_sums(full, spec.stream).reshape(shape)
    return broadcast.gathered(full.astype(launch.accumulator(full.dtype)), shape, spec.per)


def _shape(x: mx.array, y: mx.array, spec: GradSpec) -> Shape:
    """Of a gradient."""
    return (spec.images, *(x, y)[spec.operand].shape[1:])


def _wide(a: mx.array, per: int, batch: int) -> mx.array:
    """An operand in the accumulator's dtype that broadcasts to the result."""
    a = a if a.shape[0] == 1 else broadcast.spread(a, per, batch)
    return a.astype(launch.accumulator(a.dtype))


def _unclamped(x: mx.array, y: mx.array, spec: Spec) -> mx.array:
    x, y = spec.primary_scale * x, spec.secondary_scale * y
    done = (mx.add, mx.subtract, mx.multiply, mx.divide)[spec.operation](x, y)
    return done + spec.bias


def _inside(r: mx.array, spec: Spec) -> mx.array | None:
    """Where a result is strictly between its limits; None without any."""
    above = None if spec.minimum is None else r > spec.minimum
    below = None if spec.maximum is None else r < spec.maximum
    return above if below is None else below if above is None else above & below
