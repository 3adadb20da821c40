"""Four kernels over images and vectors with one entry a channel, and the rules that make them each other's derivatives.

Images are (n, h, w, c) of one dtype. Vectors are (stat_groups, c) in the accumulator's dtype: consecutive images, a
statistics group, share a row of them. In batch normalization all are one group, in instance normalization each is its
own, and what mx.vmap maps over becomes more groups. The normalizations build on these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_rules, launches
from mpsfunc.channels.activation_rules import (
    ActivationSpec as ActivationSpec,  # the activation that follows `bn_normalize`, and where everything runs
)
from mpsfunc.channels.activation_spec import NO_ACTIVATION
from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable, one_batch, with_decomposition
from mpsfunc.core.launch import KernelLaunch

ChannelVectors = mx.array


class _StatGroups(NamedTuple):
    stat_groups: int
    stream: mx.Stream


def bn_stats(x: mx.array, stat_groups: int, stream: mx.Stream) -> tuple[ChannelVectors, ChannelVectors]:
    """Mean and population variance of each channel of each statistics group."""
    mean, var = _bn_stats(x, _StatGroups(stat_groups, stream))
    return mean, var


def bn_stats_of_all(x: mx.array, stream: mx.Stream) -> tuple[mx.array, mx.array]:
    """Mean (c,) and population variance (c,) of all images as one statistics group."""
    mean, var = _bn_stats_of_all(x, _StatGroups(1, stream))
    return mean, var


def bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    """``act(z)`` with ``z = (x - mean) * scale + shift``."""
    y: mx.array = (_activated_bn_normalize if on.act.kind else _bn_normalize)(x, mean, scale, shift, on)
    return y


def bn_stats_grad(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    """Sums of ``g`` and of ``g * (x - mean)`` over each channel of each group, where ``g = dy * act'(z)``."""
    total, dot = (
        _activated_bn_stats_grad(dy, x, mean, scale, shift, on) if on.act.kind else _bn_stats_grad(dy, x, mean, on)
    )
    return total, dot


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
        dx: mx.array = _activated_bn_grad(dy, x, mean, a, b, d, scale, shift, on)
    else:
        dx = _bn_grad(dy, x, mean, a, b, d, on)
    return dx


# Kernels ------------------------------------------------------------------------------------------------


def _in_a_group(x: mx.array, mean: ChannelVectors) -> int:
    """Pixels that a row of vectors belongs to; 1 where there is none, whose sums are zeros."""
    n, h, w, _ = x.shape
    return max(int(n // max(mean.shape[0], 1) * h * w), 1)


def _rows(x: mx.array, stat_groups: int) -> launch.Output:
    return (stat_groups, x.shape[3]), launch.accumulator(x.dtype)


def _run_bn_stats(x: mx.array, spec: _StatGroups) -> tuple[ChannelVectors, ...]:
    result = _rows(x, spec.stat_groups)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats(x, spec.stat_groups)

    return tuple(launch.launch("bn_stats", {"x": x}, None, (result, result), kernels, spec.stream))


def _run_bn_stats_of_all(x: mx.array, spec: _StatGroups) -> tuple[mx.array, ...]:
    if launch.backend(spec.stream) != "cpu":
        return of_the_group(_run_bn_stats(x, spec))
    vector = (x.shape[3],), launch.accumulator(x.dtype)
    return tuple(launch.launch("bn_stats", {"x": x}, None, (vector, vector), tuple, spec.stream))


def of_the_group(rows: tuple[ChannelVectors, ...]) -> tuple[mx.array, ...]:
    """Vectors (c,) of rows (1, c)."""
    return tuple(v.reshape(v.shape[1]) for v in rows)


def _run_bn_stats_grad(*args: Any) -> tuple[ChannelVectors, ...]:
    dy, x, mean, *behind, on = args
    result = _rows(x, mean.shape[0])

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats_grad(dy, mean.shape[0], on.act)

    arrays = {"dy": dy, "x": x, "mean": mean, **_of_neuron(behind)}
    return tuple(launch.launch("bn_stats_grad", arrays, on.act, (result, result), kernels, on.stream))


def _run_bn_normalize(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_normalize(x, mean.shape[0], on.act)

    arrays = {"x": x, "mean": mean, "scale": scale, "shift": shift}
    return launch.launch("bn_normalize", arrays, on.act, ((tuple(x.shape), x.dtype),), kernels, on.stream)[0]


def _run_bn_grad(*args: Any) -> mx.array:
    dy, x, mean, a, b, d, *behind, on = args

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_grad(dy, mean.shape[0], on.act)

    arrays = {"dy": dy, "x": x, "mean": mean, "a": a, "b": b, "d": d, **_of_neuron(behind)}
    return launch.launch("bn_grad", arrays, on.act, ((tuple(dy.shape), dy.dtype),), kernels, on.stream)[0]


def _of_neuron(vectors: Sequence[ChannelVectors]) -> dict[str, ChannelVectors]:
    """By their names, where there are any."""
    return dict(zip(("scale", "shift"), vectors, strict=False))


# Rules --------------------------------------------------------------------------------------------------


def _zeros(like: ChannelVectors) -> ChannelVectors:
    return mx.zeros_like(like)


def _total(*terms: Any) -> Any:
    present = [t for t in terms if t is not None]
    return sum(present[1:], present[0]) if present else None


def _scaled(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    y: mx.array = _bn_normalize(x, mean, scale, shift, on.plain)
    return y


def _plain_bn_stats_grad(
    dy: mx.array, x: mx.array, mean: ChannelVectors, on: ActivationSpec
) -> tuple[ChannelVectors, ChannelVectors]:
    total, dot = _bn_stats_grad(dy, x, mean, on.plain)
    return total, dot


def _plain_bn_grad(
    dy: mx.array,
    x: mx.array,
    mean: ChannelVectors,
    a: ChannelVectors,
    b: ChannelVectors,
    d: ChannelVectors,
    on: ActivationSpec,
) -> mx.array:
    y: mx.array = _bn_grad(dy, x, mean, a, b, d, on.plain)
    return y


def _bn_stats_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: _StatGroups) -> Any:
    (x,), (dmean, dvar), (mean, _) = arrays, cotangents, outputs
    count, on = _in_a_group(x, mean), ActivationSpec(NO_ACTIVATION, spec.stream)
    return (_scaled(x, mean, dvar * (2 / count), dmean / count, on),)


def _bn_stats_jvp(arrays: Any, tangents: Any, spec: _StatGroups) -> Any:
    (x,), (tx,) = arrays, tangents
    mean, _ = _bn_stats(x, spec)
    total, dot = _plain_bn_stats_grad(tx, x, mean, ActivationSpec(NO_ACTIVATION, spec.stream))
    return total / _in_a_group(x, mean), dot * (2 / _in_a_group(x, mean))


def _bn_normalize_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    (x, mean, scale, shift), (dy,) = arrays, cotangents
    none = _zeros(mean)
    total, dot = bn_stats_grad(dy, x, mean, scale, shift, on)
    if on.act.kind:
        dx = bn_grad(dy, x, mean, scale, none, none, scale, shift, on)
    else:
        dx = _scaled(dy, none, scale, none, on)
    return dx, -scale * total, dot, total


def _bn_normalize_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    (x, mean, scale, _), (tx, tmean, tscale, tshift) = arrays, tangents
    none = _zeros(mean)
    slope = none if tscale is None else tscale
    level = _total(none, tshift, None if tmean is None else -tmean * scale)
    if tx is None:
        return _scaled(x, mean, slope, level, on)
    if tscale is None:
        return _scaled(tx, none, scale, level, on)
    return _plain_bn_grad(tx, x, mean, scale, slope, level, on)


def _bn_stats_grad_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    (dy, x, mean), (dtotal, ddot), (total, _) = arrays, cotangents, outputs
    none = _zeros(mean)
    return _scaled(x, mean, ddot, dtotal, on), _scaled(dy, none, ddot, none, on), -ddot * total


def _bn_stats_grad_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    (dy, x, mean), (tdy, tx, tmean) = arrays, tangents
    none = _zeros(mean)
    total, dot = (none, none) if tdy is None else _plain_bn_stats_grad(tdy, x, mean, on)
    if tx is not None:
        dot = dot + _plain_bn_stats_grad(dy, tx, none, on)[1]
    if tmean is not None:
        dot = dot - tmean * _plain_bn_stats_grad(dy, x, mean, on)[0]
    return total, dot


def _bn_grad_vjp(arrays: Any, cotangents: Any, outputs: Any, on: ActivationSpec) -> Any:
    (dy, x, mean, a, b, _), (cotangent,) = arrays, cotangents
    none = _zeros(mean)
    total, dot = _plain_bn_stats_grad(cotangent, x, mean, on)
    _, with_dy = _plain_bn_stats_grad(cotangent, dy, none, on)
    ddy, dx = _scaled(cotangent, none, a, none, on), _scaled(cotangent, none, b, none, on)
    return ddy, dx, -b * total, with_dy, dot, total


def _bn_grad_jvp(arrays: Any, tangents: Any, on: ActivationSpec) -> Any:
    (dy, x, mean, a, b, _), (tdy, tx, tmean, ta, tb, td) = arrays, tangents
    none = _zeros(mean)
    level = _total(none, td, None if tmean is None else -b * tmean)
    vectors = _plain_bn_grad(dy, x, mean, none if ta is None else ta, none if tb is None else tb, level, on)
    if tdy is None and tx is None:
        return vectors
    if tx is None:
        return vectors + _scaled(tdy, none, a, none, on)
    if tdy is None:
        return vectors + _scaled(tx, none, b, none, on)
    return vectors + _plain_bn_grad(tdy, tx, none, a, b, none, on)


# What an activation changes, said by operations without it: derivatives of every order, unfused.


def _activation(
    x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    return activation_rules.neuron(_scaled(x, mean, scale, shift, on), on)


def _before_activation(
    dy: mx.array, x: mx.array, mean: ChannelVectors, scale: ChannelVectors, shift: ChannelVectors, on: ActivationSpec
) -> mx.array:
    return activation_rules.grad(dy, _scaled(x, mean, scale, shift, on), on)


def _bn_stats_grad_before_activation(*args: Any) -> tuple[ChannelVectors, ChannelVectors]:
    dy, x, mean, scale, shift, on = args
    return _plain_bn_stats_grad(_before_activation(dy, x, mean, scale, shift, on), x, mean, on)


def _bn_grad_before_activation(*args: Any) -> mx.array:
    dy, x, mean, a, b, d, scale, shift, on = args
    return _plain_bn_grad(_before_activation(dy, x, mean, scale, shift, on), x, mean, a, b, d, on)


# Mapped images lengthen the batch, and vectors get more statistics groups, unless all images share the only one.


def _stacked(rows: ChannelVectors, mapped: bool, size: int) -> ChannelVectors:
    rows = rows if mapped else mx.broadcast_to(rows, (size, *rows.shape))
    return rows.reshape(size * rows.shape[1], rows.shape[2])


def _apart(array: mx.array, size: int) -> mx.array:
    return array.reshape(size, array.shape[0] // size, *array.shape[1:])


def _mapped(function: Callable[[], Any], images: int, *, shared: bool) -> Any:
    """The vmap rule of ``function(*images, *vectors, on)``, in which images may share vectors."""

    def rule(arrays: Any, mapped: Any, size: int, on: Any) -> Any:
        long = [one_batch(a, m, size) for a, m in zip(arrays[:images], mapped, strict=False)]
        rows, of_rows = arrays[images:], mapped[images:]
        if not shared or any(of_rows) or rows[0].shape[0] > 1:
            rows = [_stacked(a, m, size) for a, m in zip(rows, of_rows, strict=True)]
        out = function()(*long, *rows, on)
        return tuple(_apart(o, size) for o in out) if isinstance(out, tuple) else _apart(out, size)

    return rule


def _map_bn_stats(arrays: Any, mapped: Any, size: int, spec: _StatGroups) -> Any:
    out = _bn_stats(one_batch(arrays[0], mapped[0], size), spec._replace(stat_groups=spec.stat_groups * size))
    return tuple(_apart(o, size) for o in out)


_bn_stats: Any = differentiable("bn_stats", _run_bn_stats, vjp=_bn_stats_vjp, jvp=_bn_stats_jvp, vmap=_map_bn_stats)
_bn_stats_of_all: Any = with_decomposition(
    "bn_stats", _run_bn_stats_of_all, lambda x, spec: of_the_group(_bn_stats(x, spec))
)
_bn_normalize: Any = differentiable(
    *("bn_normalize", _run_bn_normalize),
    vjp=_bn_normalize_vjp,
    jvp=_bn_normalize_jvp,
    vmap=_mapped(lambda: _bn_normalize, 1, shared=True),
)
_bn_stats_grad: Any = differentiable(
    *("bn_stats_grad", _run_bn_stats_grad),
    vjp=_bn_stats_grad_vjp,
    jvp=_bn_stats_grad_jvp,
    vmap=_mapped(lambda: _bn_stats_grad, 2, shared=False),
)
_bn_grad: Any = differentiable(
    *("bn_grad", _run_bn_grad), vjp=_bn_grad_vjp, jvp=_bn_grad_jvp, vmap=_mapped(lambda: _bn_grad, 2, shared=True)
)
_activated_bn_normalize: Any = with_decomposition(
    *("bn_normalize", _run_bn_normalize, _activation),
    vjp=_bn_normalize_vjp,
    vmap=_mapped(lambda: _activated_bn_normalize, 1, shared=True),
)
_activated_bn_stats_grad: Any = with_decomposition(
    *("bn_stats_grad", _run_bn_stats_grad, _bn_stats_grad_before_activation),
    vmap=_mapped(lambda: _activated_bn_stats_grad, 2, shared=False),
)
_activated_bn_grad: Any = with_decomposition(
    *("bn_grad", _run_bn_grad, _bn_grad_before_activation), vmap=_mapped(lambda: _activated_bn_grad, 2, shared=True)
)
