"""Four kernels over images and vectors with one entry a channel, and the rules that make them each other's derivatives.

Images are (n, h, w, c) of one dtype; vectors (c,) have the accumulator's dtype. The normalizations build on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _launch, _vectors
from mpsfunc._launch import Stage
from mpsfunc._rules import derived, differentiable, one_batch

Vector = mx.array


class On(NamedTuple):
    """The only static of these operations."""

    stream: mx.Stream


def moments(x: mx.array, on: On) -> tuple[Vector, Vector]:
    """Mean and population variance of each channel."""
    mean, var = _moments(x, on)
    return mean, var


def affine(x: mx.array, mean: Vector, scale: Vector, shift: Vector, on: On) -> mx.array:
    """``(x - mean) * scale + shift``."""
    y: mx.array = _affine(x, mean, scale, shift, on)
    return y


def sums(dy: mx.array, x: mx.array, mean: Vector, on: On) -> tuple[Vector, Vector]:
    """Sums of ``dy`` and of ``dy * (x - mean)`` over each channel."""
    total, dot = _sums(dy, x, mean, on)
    return total, dot


def combine(dy: mx.array, x: mx.array, mean: Vector, a: Vector, b: Vector, d: Vector, on: On) -> mx.array:
    """``a * dy + b * (x - mean) + d``."""
    y: mx.array = _combine(dy, x, mean, a, b, d, on)
    return y


def accumulate(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    eps: float,
    stream: mx.Stream,
) -> tuple[Vector, Vector]:
    """The gradients of a batch normalization's scale and shift, grown by two `sums`."""
    dgamma, dbeta = _accumulate(dy, x, mean, var, dgamma, dbeta, _Growth(eps, stream))
    return dgamma, dbeta


class _Growth(NamedTuple):
    eps: float
    stream: mx.Stream


# Kernels ------------------------------------------------------------------------------------------------


def _pixels(x: mx.array) -> int:
    n, h, w, _ = x.shape
    return int(n * h * w)


def _run_moments(x: mx.array, on: On) -> tuple[Vector, ...]:
    channels = x.shape[3]
    result = ((channels,), _launch.accumulator(x.dtype))

    def stages() -> tuple[Stage, ...]:
        per_thread = _launch.lanes(x.dtype, channels, x.size)
        grid, group = _launch.column_threads(channels // per_thread, _pixels(x))
        part = ((grid[1] // group[1], channels), mx.float32)
        names, unroll = ("count", "mean", "m2"), (("V", per_thread),)
        return (
            Stage("bn_stats", ("x",), names, (part, part, part), grid, group, group[:2], unroll),
            Stage(
                "bn_stats_merge",
                (*names, "x"),
                ("out_mean", "out_var"),
                (result, result),
                (channels, 32, 1),
                (8, 32, 1),
            ),
        )

    return tuple(_launch.launch("bn_stats", [x], (), (result, result), stages, on.stream, finally_with=[x]))


def _sums_stage(dy: mx.array) -> Stage:
    """Partial sums of dy and of dy * (x - mean), side by side."""
    channels = dy.shape[3]
    per_thread = _launch.lanes(dy.dtype, channels, dy.size)
    grid, group = _launch.column_threads(channels // per_thread, _pixels(dy))
    parts = ((grid[1] // group[1], 2 * channels), mx.float32)
    unroll = (("V", per_thread),)
    return Stage("bn_stats_grad", ("dy", "x", "mean"), ("partial",), (parts,), grid, group, group[:2], unroll)


def _run_sums(dy: mx.array, x: mx.array, mean: Vector, on: On) -> tuple[Vector, ...]:
    channels = x.shape[3]
    result = ((channels,), _launch.accumulator(x.dtype))

    def stages() -> tuple[Stage, ...]:
        return _sums_stage(dy), _launch.sum_partials(2 * channels)

    return tuple(_launch.launch("bn_stats_grad", [dy, x, mean], (), (result, result), stages, on.stream))


def _run_accumulate(*args: Any) -> tuple[Vector, ...]:
    dy, x, mean, var, dgamma, dbeta, growth = args
    if _launch.backend(growth.stream) == "cpu" or x.size == 0:
        return _sums_and_growth(*args)
    channels = x.shape[3]
    result = ((channels,), mx.float32)

    def stages() -> tuple[Stage, ...]:
        merge = Stage(
            "bn_stats_grad_merge",
            ("partial", "var", "dgamma", "dbeta"),
            ("new_dgamma", "new_dbeta"),
            (result, result),
            (channels, 32, 1),
            (8, 32, 1),
            _launch.bits(growth.eps),
        )
        return _sums_stage(dy), merge

    rest = [var, dgamma, dbeta]
    return tuple(
        _launch.launch("bn_stats_grad", [dy, x, mean], (), (result, result), stages, growth.stream, finally_with=rest)
    )


def _sums_and_growth(*args: Any) -> tuple[Vector, ...]:
    dy, x, mean, var, dgamma, dbeta, growth = args
    total, dot = sums(dy, x, mean, On(growth.stream))
    dgamma, dbeta = _vectors.grown(dgamma, dbeta, total, dot, var, growth.eps, growth.stream)
    return dgamma, dbeta


def _run_pixelwise(op: str, inputs: tuple[str, ...], made: str, arrays: Sequence[mx.array], on: On) -> mx.array:
    x = arrays[0]
    channels, result = x.shape[3], (tuple(x.shape), x.dtype)

    def stages() -> tuple[Stage, ...]:
        per_thread = _launch.lanes(x.dtype, channels, x.size)
        across = channels // per_thread
        grid, group = _launch.threads(across, -(-_pixels(x) // 4))  # both bodies have four pixels under way
        return (Stage(op, inputs, (made,), (result,), grid, group, (), (("V", per_thread),)),)

    return _launch.launch(op, arrays, (), (result,), stages, on.stream)[0]


def _run_affine(x: mx.array, mean: Vector, scale: Vector, shift: Vector, on: On) -> mx.array:
    return _run_pixelwise("bn_normalize", ("x", "mean", "scale", "shift"), "y", [x, mean, scale, shift], on)


def _run_combine(dy: mx.array, x: mx.array, mean: Vector, a: Vector, b: Vector, d: Vector, on: On) -> mx.array:
    return _run_pixelwise("bn_grad", ("dy", "x", "mean", "a", "b", "d"), "dx", [dy, x, mean, a, b, d], on)


# Rules --------------------------------------------------------------------------------------------------


def _zeros(like: Vector) -> Vector:
    return mx.zeros_like(like)


def _total(*terms: Any) -> Any:
    present = [t for t in terms if t is not None]
    return sum(present[1:], present[0]) if present else None


def _moments_vjp(arrays: Any, cotangents: Any, outputs: Any, on: On) -> Any:
    (x,), (dmean, dvar), (mean, _) = arrays, cotangents, outputs
    count = max(_pixels(x), 1)
    return (affine(x, mean, dvar * (2 / count), dmean / count, on),)


def _moments_jvp(arrays: Any, tangents: Any, on: On) -> Any:
    (x,), (tx,) = arrays, tangents
    mean, _ = moments(x, on)
    total, dot = sums(tx, x, mean, on)
    count = max(_pixels(x), 1)
    return total / count, dot * (2 / count)


def _affine_vjp(arrays: Any, cotangents: Any, outputs: Any, on: On) -> Any:
    (x, mean, scale, _), (dy,) = arrays, cotangents
    total, dot = sums(dy, x, mean, on)
    return affine(dy, _zeros(mean), scale, _zeros(mean), on), -scale * total, dot, total


def _affine_jvp(arrays: Any, tangents: Any, on: On) -> Any:
    (x, mean, scale, _), (tx, tmean, tscale, tshift) = arrays, tangents
    none = _zeros(mean)
    slope = none if tscale is None else tscale
    level = _total(none, tshift, None if tmean is None else -tmean * scale)
    if tx is None:
        return affine(x, mean, slope, level, on)
    if tscale is None:
        return affine(tx, none, scale, level, on)
    return combine(tx, x, mean, scale, slope, level, on)


def _sums_vjp(arrays: Any, cotangents: Any, outputs: Any, on: On) -> Any:
    (dy, x, mean), (dtotal, ddot), (total, _) = arrays, cotangents, outputs
    return affine(x, mean, ddot, dtotal, on), affine(dy, _zeros(mean), ddot, _zeros(mean), on), -ddot * total


def _sums_jvp(arrays: Any, tangents: Any, on: On) -> Any:
    (dy, x, mean), (tdy, tx, tmean) = arrays, tangents
    none = _zeros(mean)
    total, dot = (none, none) if tdy is None else sums(tdy, x, mean, on)
    if tx is not None:
        dot = dot + sums(dy, tx, none, on)[1]
    if tmean is not None:
        dot = dot - tmean * sums(dy, x, mean, on)[0]
    return total, dot


def _combine_vjp(arrays: Any, cotangents: Any, outputs: Any, on: On) -> Any:
    (dy, x, mean, a, b, _), (cotangent,) = arrays, cotangents
    none = _zeros(mean)
    total, dot = sums(cotangent, x, mean, on)
    _, with_dy = sums(cotangent, dy, none, on)
    ddy, dx = affine(cotangent, none, a, none, on), affine(cotangent, none, b, none, on)
    return ddy, dx, -b * total, with_dy, dot, total


def _combine_jvp(arrays: Any, tangents: Any, on: On) -> Any:
    (dy, x, mean, a, b, _), (tdy, tx, tmean, ta, tb, td) = arrays, tangents
    none = _zeros(mean)
    level = _total(none, td, None if tmean is None else -b * tmean)
    vectors = combine(dy, x, mean, none if ta is None else ta, none if tb is None else tb, level, on)
    if tdy is None and tx is None:
        return vectors
    if tx is None:
        return vectors + affine(tdy, none, a, none, on)
    if tdy is None:
        return vectors + affine(tx, none, b, none, on)
    return vectors + combine(tdy, tx, none, a, b, none, on)


# A mapped axis joins the batch where vectors are shared, else the channels, which keep their vectors apart.


def _widened(array: mx.array, mapped: bool, size: int) -> mx.array:
    if not mapped:
        array = mx.broadcast_to(array, (size, *array.shape))
    *kept, channels = array.shape[1:]
    return mx.moveaxis(array, 0, -2).reshape(*kept, size * channels)


def _narrowed(array: mx.array, size: int) -> mx.array:
    *kept, channels = array.shape
    return mx.moveaxis(array.reshape(*kept, size, channels // size), -2, 0)


def _map_sums(function: Any) -> Any:
    def rule(arrays: Any, mapped: Any, size: int, on: On) -> Any:
        wide = [_widened(a, m, size) for a, m in zip(arrays, mapped, strict=True)]
        return tuple(_narrowed(out, size) for out in function(*wide, on))

    return rule


def _map_images(function: Any, images: int) -> Any:
    def rule(arrays: Any, mapped: Any, size: int, on: On) -> Any:
        if any(mapped[images:]):
            wide = [_widened(a, m, size) for a, m in zip(arrays, mapped, strict=True)]
            return _narrowed(function(*wide, on), size)
        long = [one_batch(a, m, size) for a, m in zip(arrays[:images], mapped, strict=False)]
        y = function(*long, *arrays[images:], on)
        return y.reshape(size, y.shape[0] // size, *y.shape[1:])

    return rule


_moments = differentiable("bn_stats", _run_moments, vjp=_moments_vjp, jvp=_moments_jvp, vmap=_map_sums(moments))
_affine = differentiable("bn_normalize", _run_affine, vjp=_affine_vjp, jvp=_affine_jvp, vmap=_map_images(affine, 1))
_sums = differentiable("bn_stats_grad", _run_sums, vjp=_sums_vjp, jvp=_sums_jvp, vmap=_map_sums(sums))
_combine = differentiable("bn_grad", _run_combine, vjp=_combine_vjp, jvp=_combine_jvp, vmap=_map_images(combine, 2))
_accumulate = derived("bn_stats_grad", _run_accumulate, _sums_and_growth)
