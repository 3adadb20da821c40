"""Four kernels over images and vectors with one entry per channel, whose rules make them each other's derivatives.

Images are (n, h, w, c) of one dtype. Vectors are (stat_groups, c) in the accumulator's dtype: consecutive images, a
statistics group, share a row of them. In batch normalization all are one group, in instance normalization each is its
own, and what mx.vmap maps over becomes more groups. The normalizations build on these.

An operation whose name begins with "plain" leaves the activation of its `ActivationSpec` out. One with "activated" is
said by those, which gives derivatives of every order, unfused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_rules, launches
from mpsfunc.channels.activation_rules import (
    ActivationSpec as ActivationSpec,  # the activation that follows `bn_normalize`, and where everything runs
)
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, one_batch, operation

ChannelVectors = mx.array
_Made = mx.array | tuple[mx.array, mx.array]


class StatGroups(NamedTuple):
    """How many statistics groups images come in, and where everything runs."""

    stat_groups: int
    stream: mx.Stream


def mapped_images(
    function: Callable[..., _Made], images: int, *, shared: bool
) -> Callable[[Arrays, Mapped, int, ActivationSpec], _Made]:
    """The vmap rule of ``function(*images, *vectors, on)``, in which images may share vectors.

    Mapped images lengthen the batch, and vectors get more statistics groups, unless all images share the only one.
    """

    def rule(arrays: Arrays, mapped: Mapped, size: int, on: ActivationSpec) -> _Made:
        long = [one_batch(a, m, size) for a, m in zip(arrays[:images], mapped, strict=False)]
        rows, of_rows = arrays[images:], mapped[images:]
        if not shared or any(of_rows) or rows[0].shape[0] > 1:
            rows = tuple(_stacked(a, m, size) for a, m in zip(rows, of_rows, strict=True))
        out = function(*long, *rows, on)
        return (_apart(out[0], size), _apart(out[1], size)) if isinstance(out, tuple) else _apart(out, size)

    return rule


def _stacked(rows: ChannelVectors, mapped: bool, size: int) -> ChannelVectors:
    rows = rows if mapped else mx.broadcast_to(rows, (size, *rows.shape))
    return rows.reshape(size * rows.shape[1], rows.shape[2])


def _apart(array: mx.array, size: int) -> mx.array:
    return array.reshape(size, array.shape[0] // size, *array.shape[1:])


# Statistics ---------------------------------------------------------------------------------------------


@operation("bn_stats")
def bn_stats(x: mx.array, spec: StatGroups) -> tuple[ChannelVectors, ChannelVectors]:
    """Mean and population variance of each channel of each statistics group."""
    result = _rows(x, spec.stat_groups)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats(x, spec.stat_groups)

    mean, var = launch.launch("bn_stats", {"x": x}, None, (result, result), kernels, spec.stream)
    return mean, var


@bn_stats.vjp
def _bn_stats_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: StatGroups) -> Gradients:
    (x,), (dmean, dvar), mean = arrays, cotangents, outputs[0]
    count, on = _in_a_group(x, mean), ActivationSpec(NO_ACTIVATION, spec.stream)
    return (plain_bn_normalize(x, mean, dvar * (2 / count), dmean / count, on),)


@bn_stats.jvp
def _bn_stats_jvp(arrays: Arrays, tangents: Arrays, spec: StatGroups) -> tuple[ChannelVectors, ChannelVectors]:
    (x,), (tx,) = arrays, tangents
    mean, _ = bn_stats(x, spec)
    total, dot = plain_bn_stats_grad(tx, x, mean, ActivationSpec(NO_ACTIVATION, spec.stream))
    return total / _in_a_group(x, mean), dot * (2 / _in_a_group(x, mean))


@bn_stats.vmap
def _bn_stats_vmap(
    arrays: Arrays, mapped: Mapped, size: int, spec: StatGroups
) -> tuple[ChannelVectors, ChannelVectors]:
    groups = spec._replace(stat_groups=spec.stat_groups * size)
    mean, var = bn_stats(one_batch(arrays[0], mapped[0], size), groups)
    return _apart(mean, size), _apart(var, size)


@operation("bn_stats")
def bn_stats_of_all(x: mx.array, spec: StatGroups) -> tuple[mx.array, mx.array]:
    """Mean (c,) and population variance (c,) of all images as one statistics group, which is what the spec has."""
    if launch.backend(spec.stream) != "cpu":
        return of_the_group(bn_stats(x, spec))
    vector = (x.shape[3],), launch.accumulator(x.dtype)
    mean, var = launch.launch("bn_stats", {"x": x}, None, (vector, vector), tuple, spec.stream)
    return mean, var


@bn_stats_of_all.decomposition
def _bn_stats_of_all_by_rows(x: mx.array, spec: StatGroups) -> tuple[mx.array, mx.array]:
    return of_the_group(bn_stats(x, spec))


def of_the_group(rows: tuple[ChannelVectors, ChannelVectors]) -> tuple[mx.array, mx.array]:
    """Vectors (c,) of rows (1, c)."""
    mean, var = (v.reshape(v.shape[1]) for v in rows)
    return mean, var


def _rows(x: mx.array, stat_groups: int) -> launch.Output:
    return (stat_groups, x.shape[3]), launch.accumulator(x.dtype)


def _in_a_group(x: mx.array, mean: ChannelVectors) -> int:
    """Pixels that a row of vectors belongs to; 1 where there is none, whose sums are zeros."""
    n, h, w, _ = x.shape
    return max(int(n // max(mean.shape[0], 1) * h * w), 1)


# Normalization ------------------------------------------------------------------------------------------


def bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    """``act(z)`` with ``z = (x - mean) * scale + shift``."""
    return (activated_bn_normalize if on.act.kind else plain_bn_normalize)(x, mean, scale, shift, on)


@operation("bn_normalize")
def plain_bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    """``(x - mean) * scale + shift``."""
    return _launched_bn_normalize(x, mean, scale, shift, on.plain)


@plain_bn_normalize.vjp
def _plain_bn_normalize_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (x, mean, scale, _), dy = arrays, cotangents[0]
    none = mx.zeros_like(mean)
    total, dot = plain_bn_stats_grad(dy, x, mean, on)
    return plain_bn_normalize(dy, none, scale, none, on), -scale * total, dot, total


@plain_bn_normalize.jvp
def _plain_bn_normalize_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    (x, mean, scale, _), (tx, tmean, tscale, tshift) = arrays, tangents
    none = mx.zeros_like(mean)
    slope = none if tscale is None else tscale
    level = _total(none, tshift, None if tmean is None else -tmean * scale)
    if tx is None:
        return plain_bn_normalize(x, mean, slope, level, on)
    if tscale is None:
        return plain_bn_normalize(tx, none, scale, level, on)
    return plain_bn_grad(tx, x, mean, scale, slope, level, on)


plain_bn_normalize.vmap(mapped_images(plain_bn_normalize, 1, shared=True))


@operation("bn_normalize")
def activated_bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    """``act(z)`` with ``z = (x - mean) * scale + shift`` and an activation."""
    return _launched_bn_normalize(x, mean, scale, shift, on)


@activated_bn_normalize.decomposition
def _plain_bn_normalize_activated(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    return activation_rules.neuron(plain_bn_normalize(x, mean, scale, shift, on), on)


@activated_bn_normalize.vjp
def _activated_bn_normalize_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (x, mean, scale, shift), dy = arrays, cotangents[0]
    none = mx.zeros_like(mean)
    total, dot = activated_bn_stats_grad(dy, x, mean, scale, shift, on)
    return activated_bn_grad(dy, x, mean, scale, none, none, scale, shift, on), -scale * total, dot, total


activated_bn_normalize.vmap(mapped_images(activated_bn_normalize, 1, shared=True))


def _launched_bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_normalize(x, mean.shape[0], on.act)

    arrays = {"x": x, "mean": mean, "scale": scale, "shift": shift}
    return launch.launch("bn_normalize", arrays, on.act, ((tuple(x.shape), x.dtype),), kernels, on.stream)[0]


# Sums of gradients --------------------------------------------------------------------------------------


def bn_stats_grad(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """Sums of ``g`` and of ``g * (x - mean)`` over each channel of each group, where ``g = dy * act'(z)``."""
    if on.act.kind:
        return activated_bn_stats_grad(dy, x, mean, scale, shift, on)
    return plain_bn_stats_grad(dy, x, mean, on)


@operation("bn_stats_grad")
def plain_bn_stats_grad(
    dy: mx.array, x: mx.array, mean: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """Sums of ``dy`` and of ``dy * (x - mean)`` over each channel of each group."""
    return _launched_bn_stats_grad({"dy": dy, "x": x, "mean": mean}, on.plain)


@plain_bn_stats_grad.vjp
def _plain_bn_stats_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (dy, x, mean), (dtotal, ddot), total = arrays, cotangents, outputs[0]
    none = mx.zeros_like(mean)
    ddy, dx = plain_bn_normalize(x, mean, ddot, dtotal, on), plain_bn_normalize(dy, none, ddot, none, on)
    return ddy, dx, -ddot * total


@plain_bn_stats_grad.jvp
def _plain_bn_stats_grad_jvp(
    arrays: Arrays, tangents: Tangents, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    (dy, x, mean), (tdy, tx, tmean) = arrays, tangents
    none = mx.zeros_like(mean)
    total, dot = (none, none) if tdy is None else plain_bn_stats_grad(tdy, x, mean, on)
    if tx is not None:
        dot = dot + plain_bn_stats_grad(dy, tx, none, on)[1]
    if tmean is not None:
        dot = dot - tmean * plain_bn_stats_grad(dy, x, mean, on)[0]
    return total, dot


plain_bn_stats_grad.vmap(mapped_images(plain_bn_stats_grad, 2, shared=False))


@operation("bn_stats_grad")
def activated_bn_stats_grad(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """`bn_stats_grad` with an activation."""
    return _launched_bn_stats_grad({"dy": dy, "x": x, "mean": mean, "scale": scale, "shift": shift}, on)


@activated_bn_stats_grad.decomposition
def _plain_bn_stats_grad_behind_activation(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    return plain_bn_stats_grad(_before_activation(dy, x, mean, scale, shift, on), x, mean, on)


activated_bn_stats_grad.vmap(mapped_images(activated_bn_stats_grad, 2, shared=False))


def _launched_bn_stats_grad(arrays: dict[str, mx.array], on: ActivationSpec) -> tuple[ChannelVectors, ChannelVectors]:
    dy, stat_groups = arrays["dy"], arrays["mean"].shape[0]
    result = _rows(arrays["x"], stat_groups)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats_grad(dy, stat_groups, on.act)

    total, dot = launch.launch("bn_stats_grad", arrays, on.act, (result, result), kernels, on.stream)
    return total, dot


# The gradient of images ---------------------------------------------------------------------------------


def bn_grad(
    dy: mx.array,
    x: mx.array,
    mean: ChannelVectors,
    a: ChannelVectors,
    b: ChannelVectors,
    d: ChannelVectors,
    scale: ChannelVectors,
    shift: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    """``a * g + b * (x - mean) + d`` with the g of `bn_stats_grad`."""
    if on.act.kind:
        return activated_bn_grad(dy, x, mean, a, b, d, scale, shift, on)
    return plain_bn_grad(dy, x, mean, a, b, d, on)


@operation("bn_grad")
def plain_bn_grad(
    dy: mx.array,
    x: mx.array,
    mean: ChannelVectors,
    a: ChannelVectors,
    b: ChannelVectors,
    d: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    """``a * dy + b * (x - mean) + d``."""
    return _launched_bn_grad({"dy": dy, "x": x, "mean": mean, "a": a, "b": b, "d": d}, on.plain)


@plain_bn_grad.vjp
def _plain_bn_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, on: ActivationSpec) -> Gradients:
    (dy, x, mean, a, b, _), cotangent = arrays, cotangents[0]
    none = mx.zeros_like(mean)
    total, dot = plain_bn_stats_grad(cotangent, x, mean, on)
    _, with_dy = plain_bn_stats_grad(cotangent, dy, none, on)
    ddy, dx = (plain_bn_normalize(cotangent, none, factor, none, on) for factor in (a, b))
    return ddy, dx, -b * total, with_dy, dot, total


@plain_bn_grad.jvp
def _plain_bn_grad_jvp(arrays: Arrays, tangents: Tangents, on: ActivationSpec) -> mx.array:
    (dy, x, mean, a, b, _), (tdy, tx, tmean, ta, tb, td) = arrays, tangents
    none = mx.zeros_like(mean)
    level = _total(none, td, None if tmean is None else -b * tmean)
    vectors = plain_bn_grad(dy, x, mean, none if ta is None else ta, none if tb is None else tb, level, on)
    if tdy is not None and tx is not None:
        return vectors + plain_bn_grad(tdy, tx, none, a, b, none, on)
    if tdy is not None:
        return vectors + plain_bn_normalize(tdy, none, a, none, on)
    return vectors if tx is None else vectors + plain_bn_normalize(tx, none, b, none, on)


plain_bn_grad.vmap(mapped_images(plain_bn_grad, 2, shared=True))


@operation("bn_grad")
def activated_bn_grad(
    dy: mx.array,
    x: mx.array,
    mean: ChannelVectors,
    a: ChannelVectors,
    b: ChannelVectors,
    d: ChannelVectors,
    scale: ChannelVectors,
    shift: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    """`bn_grad` with an activation."""
    of_neuron = {"scale": scale, "shift": shift}
    return _launched_bn_grad({"dy": dy, "x": x, "mean": mean, "a": a, "b": b, "d": d, **of_neuron}, on)


@activated_bn_grad.decomposition
def _plain_bn_grad_behind_activation(
    dy: mx.array,
    x: mx.array,
    mean: ChannelVectors,
    a: ChannelVectors,
    b: ChannelVectors,
    d: ChannelVectors,
    scale: ChannelVectors,
    shift: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    return plain_bn_grad(_before_activation(dy, x, mean, scale, shift, on), x, mean, a, b, d, on)


activated_bn_grad.vmap(mapped_images(activated_bn_grad, 2, shared=True))


def _launched_bn_grad(arrays: dict[str, mx.array], on: ActivationSpec) -> mx.array:
    dy, stat_groups = arrays["dy"], arrays["mean"].shape[0]

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_grad(dy, stat_groups, on.act)

    return launch.launch("bn_grad", arrays, on.act, ((tuple(dy.shape), dy.dtype),), kernels, on.stream)[0]


def _before_activation(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    """The g of `bn_stats_grad`."""
    return activation_rules.grad(dy, plain_bn_normalize(x, mean, scale, shift, on), on)


def _total(first: mx.array, *more: mx.array | None) -> mx.array:
    return sum((term for term in more if term is not None), first)
