"""The normalizations by window as operations.

Each norm is one kernel and its gradient another. Derivatives of the second order and on are those of what the kernels
compute, computed from sums over windows (`window_sum`, linear) and powers (`power`), which have rules of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.numpy_later import np
from mpsfunc.core.operation import Arrays, Gradients, Mapped, operation, over_batches
from mpsfunc.normalization import window_launches
from mpsfunc.normalization.params import LocalContrastParams, PowerParams, SquaresNormParams, WindowSumParams

ROWS, COLS, CHANNELS = 1, 2, 3  # axes of an image

_Params = TypeVar("_Params", SquaresNormParams, LocalContrastParams)


def _settled(params: _Params) -> _Params:
    """With the exponent 0 the base does not matter, not even one of 0, whose other powers the gradient would meet."""
    return params._replace(alpha=0.0, delta=1.0) if params.beta == 0 else params


class Spec(NamedTuple):
    """The parameters of `cross_channel_norm` and `spatial_norm`, and where everything runs."""

    size: int
    alpha: float
    beta: float
    delta: float
    stream: mx.Stream

    @property
    def params(self) -> SquaresNormParams:
        """What is computed with."""
        return _settled(SquaresNormParams(*self[:4]))


class ContrastSpec(NamedTuple):
    """The parameters of `local_contrast_norm`, and where everything runs."""

    size: int
    alpha: float
    beta: float
    delta: float
    p0: float
    pm: float
    ps: float
    stream: mx.Stream

    @property
    def params(self) -> LocalContrastParams:
        """What is computed with."""
        return _settled(LocalContrastParams(*self[:7]))


def numbers(op: str, **given: float) -> list[float]:
    """The parameters of a norm, finite."""
    return [checks.number(op, name, value) for name, value in given.items()]


def checked(op: str, dy: mx.array, x: mx.array, state: Any, kind: type[Any], stream: launch.StreamLike) -> mx.Stream:
    """The stream of a gradient, once its arguments fit."""
    stream = launch.resolve(stream)
    checks.gradient(op, dy, x, stream=stream)
    checks.state(op, state, kind, stream=stream)
    names = [f"state.{name}" for name in state._fields[1:]]
    checks.whole(op, names[0], state[1])
    numbers(op, **dict(zip(names[1:], state[2:], strict=True)))
    return stream


# Norms by squares ---------------------------------------------------------------------------------------


@operation("cross_channel_norm")
def cross_channel_norm(x: mx.array, spec: Spec) -> mx.array:
    """``x * (delta + alpha / size * sum of x^2) ** -beta`` over windows of channels."""
    params = spec.params
    kernels = functools.partial(window_launches.cross_channel_norm, x, *params)
    return _launched("cross_channel_norm", {"x": x}, params, kernels, spec.stream)


@cross_channel_norm.vjp
def _cross_channel_norm_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (cross_channel_norm_grad(cotangents[0], arrays[0], spec),)


@cross_channel_norm.decomposition
def _cross_channel_norm_by_sums(x: mx.array, spec: Spec) -> mx.array:
    return _by_squares(x, (CHANNELS,), spec)


cross_channel_norm.vmap(over_batches(cross_channel_norm))


@operation("cross_channel_norm_grad")
def cross_channel_norm_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of `cross_channel_norm`."""
    params = spec.params
    kernels = functools.partial(window_launches.cross_channel_norm_grad, dy, x, *params)
    return _launched("cross_channel_norm_grad", {"dy": dy, "x": x}, params, kernels, spec.stream)


@cross_channel_norm_grad.decomposition
def _cross_channel_norm_grad_by_sums(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    return _grad_by_squares(dy, x, (CHANNELS,), spec)


cross_channel_norm_grad.vmap(over_batches(cross_channel_norm_grad))


@operation("spatial_norm")
def spatial_norm(x: mx.array, spec: Spec) -> mx.array:
    """``x * (delta + alpha / size^2 * sum of x^2) ** -beta`` over windows of each channel."""
    params = spec.params
    kernels = functools.partial(window_launches.spatial_norm, x, *params)
    return _launched("spatial_norm", {"x": x}, params, kernels, spec.stream)


@spatial_norm.vjp
def _spatial_norm_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (spatial_norm_grad(cotangents[0], arrays[0], spec),)


@spatial_norm.decomposition
def _spatial_norm_by_sums(x: mx.array, spec: Spec) -> mx.array:
    return _by_squares(x, (ROWS, COLS), spec)


spatial_norm.vmap(over_batches(spatial_norm))


@operation("spatial_norm_grad")
def spatial_norm_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of `spatial_norm`."""
    params = spec.params
    kernels = functools.partial(window_launches.spatial_norm_grad, dy, x, *params)
    return _launched("spatial_norm_grad", {"dy": dy, "x": x}, params, kernels, spec.stream)


@spatial_norm_grad.decomposition
def _spatial_norm_grad_by_sums(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    return _grad_by_squares(dy, x, (ROWS, COLS), spec)


spatial_norm_grad.vmap(over_batches(spatial_norm_grad))


def _by_squares(x: mx.array, axes: tuple[int, ...], spec: Spec) -> mx.array:
    """The norm by sums of squares over windows along these axes."""
    wide = x.astype(launch.accumulator(x.dtype))
    return (wide * power(_base(wide, axes, spec), _Exponent(-spec.beta, spec.stream))).astype(x.dtype)


def _grad_by_squares(dy: mx.array, x: mx.array, axes: tuple[int, ...], spec: Spec) -> mx.array:
    """Its gradient."""
    dy_wide, wide = (a.astype(launch.accumulator(x.dtype)) for a in (dy, x))
    below = _base(wide, axes, spec)
    first = dy_wide * power(below, _Exponent(-spec.beta, spec.stream))
    through = dy_wide * wide * power(below, _Exponent(-spec.beta - 1, spec.stream))
    factor = 2 * spec.params.alpha * spec.beta / _area(axes, spec)
    second = factor * wide * _over_windows(through, axes, spec.size, spec.stream, mirrored=True)
    return (first - second).astype(x.dtype)


def _base(x: mx.array, axes: tuple[int, ...], spec: Spec) -> mx.array:
    """The base of the power."""
    _, alpha, _, delta = spec.params
    return delta + alpha / _area(axes, spec) * _over_windows(x * x, axes, spec.size, spec.stream)


def _area(axes: tuple[int, ...], spec: Spec) -> float:
    """Places of a window."""
    return float(spec.size ** len(axes))


# Local contrast -----------------------------------------------------------------------------------------


@operation("local_contrast_norm")
def local_contrast_norm(x: mx.array, spec: ContrastSpec) -> mx.array:
    """``pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta`` over windows of each channel."""
    params = spec.params
    kernels = functools.partial(window_launches.local_contrast_norm, x, *params)
    return _launched("local_contrast_norm", {"x": x}, params, kernels, spec.stream)


@local_contrast_norm.vjp
def _local_contrast_norm_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: ContrastSpec) -> Gradients:
    return (local_contrast_norm_grad(cotangents[0], arrays[0], spec),)


@local_contrast_norm.decomposition
def _local_contrast_norm_by_sums(x: mx.array, spec: ContrastSpec) -> mx.array:
    _, _, apart, below = _parts_of_contrast(_wide(x, spec), spec)
    return (spec.pm + spec.ps * apart * power(below, _Exponent(-spec.beta, spec.stream))).astype(x.dtype)


local_contrast_norm.vmap(over_batches(local_contrast_norm))


@operation("local_contrast_norm_grad")
def local_contrast_norm_grad(dy: mx.array, x: mx.array, spec: ContrastSpec) -> mx.array:
    """The gradient of `local_contrast_norm`."""
    params = spec.params
    kernels = functools.partial(window_launches.local_contrast_norm_grad, dy, x, *params)
    return _launched("local_contrast_norm_grad", {"dy": dy, "x": x}, params, kernels, spec.stream)


@local_contrast_norm_grad.decomposition
def _local_contrast_norm_grad_by_sums(dy: mx.array, x: mx.array, spec: ContrastSpec) -> mx.array:
    dy_wide, wide = (_wide(a, spec) for a in (dy, x))
    images, mean, apart, below = _parts_of_contrast(wide, spec)
    area = float(spec.size) ** 2

    def around(values: mx.array) -> mx.array:
        return _over_windows(values, (ROWS, COLS), spec.size, spec.stream, mirrored=True) / area

    of_mean = dy_wide * power(below, _Exponent(-spec.beta, spec.stream))
    of_base = dy_wide * apart * power(below, _Exponent(-spec.beta - 1, spec.stream))
    by_base = 2 * spec.params.alpha * spec.beta * (images * around(of_base) - around(of_base * mean))
    return (spec.ps * (of_mean - spec.p0 * around(of_mean) - by_base)).astype(x.dtype)


local_contrast_norm_grad.vmap(over_batches(local_contrast_norm_grad))


def _parts_of_contrast(x: mx.array, spec: ContrastSpec) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Images and their windows' means, both less a pivot, what is normalized, and the base of the power.

    The pivot of each channel is its mean, so that a large one does not drown the variance. Where a window leaves the
    image it sees zeros, which are the pivot less than nothing.
    """
    _, h, w, _ = x.shape
    area = float(spec.size) ** 2
    pivot = mx.stop_gradient(x.mean((1, 2), keepdims=True))
    inside = _share_inside(h, spec.size)[:, None, None] * _share_inside(w, spec.size)[:, None]
    outside = mx.array(1 - inside, x.dtype)
    images = x - pivot

    def mean_of(values: mx.array) -> mx.array:
        return _over_windows(values, (ROWS, COLS), spec.size, spec.stream) / area

    mean = mean_of(images) - outside * pivot
    variance = mx.maximum(mean_of(images * images) + outside * pivot * pivot - mean * mean, 0)
    below = spec.params.delta + spec.params.alpha * variance
    return images, mean, images - spec.p0 * mean + (1 - spec.p0) * pivot, below


def _wide(x: mx.array, spec: ContrastSpec) -> mx.array:
    """Images in float64 where there is such a thing, as the CPU's kernels sum them: differences of squares cancel."""
    return x.astype(mx.float64 if launch.backend(spec.stream) == "cpu" else mx.float32)


def _share_inside(length: int, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The share of each window's places along an axis that are in the image."""
    at = np.arange(length)
    return (np.minimum(at + (size - 1) // 2, length - 1) - np.maximum(at - size // 2, 0) + 1) / size


# What all of them are made of ---------------------------------------------------------------------------


def _launched(
    op: str,
    arrays: dict[str, mx.array],
    params: SquaresNormParams | LocalContrastParams,
    kernels: Callable[[], tuple[KernelLaunch, ...]],
    stream: mx.Stream,
) -> mx.array:
    x = arrays["x"]
    return launch.launch(op, arrays, params, ((tuple(x.shape), x.dtype),), kernels, stream)[0]


class _Windows(NamedTuple):
    reach: WindowSumParams
    stream: mx.Stream


@operation("window_sum")
def window_sum(x: mx.array, windows: _Windows) -> mx.array:
    """Sums over windows along one axis."""

    def kernels() -> tuple[KernelLaunch, ...]:
        return window_launches.window_sum(x, *windows.reach)

    image = tuple(x.shape), x.dtype
    return launch.launch("window_sum", {"x": x}, windows.reach, (image,), kernels, windows.stream)[0]


@window_sum.vjp
def _window_sum_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, windows: _Windows) -> Gradients:
    axis, before, after = windows.reach
    return (window_sum(cotangents[0], windows._replace(reach=WindowSumParams(axis, after, before))),)


@window_sum.jvp
def _window_sum_jvp(arrays: Arrays, tangents: Arrays, windows: _Windows) -> mx.array:
    return window_sum(tangents[0], windows)


window_sum.vmap(over_batches(window_sum))


def _over_windows(
    x: mx.array, axes: tuple[int, ...], size: int, stream: mx.Stream, *, mirrored: bool = False
) -> mx.array:
    """Sums over the windows [i - size // 2, i + (size - 1) // 2], or over those that hold a place."""
    before, after = size // 2, (size - 1) // 2
    for axis in axes:
        reach = WindowSumParams(axis, *((after, before) if mirrored else (before, after)))
        x = window_sum(x, _Windows(reach, stream))
    return x


class _Exponent(NamedTuple):
    value: float
    stream: mx.Stream


@operation("power")
def power(t: mx.array, exponent: _Exponent) -> mx.array:
    """A power of each element."""
    if launch.backend(exponent.stream) != "cpu":
        return mx.power(t, exponent.value)
    result, params = (tuple(t.shape), t.dtype), PowerParams(exponent.value)
    return launch.launch("power", {"t": t}, params, (result,), _no_kernels, exponent.stream)[0]


@power.vjp
def _power_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, exponent: _Exponent) -> Gradients:
    return (cotangents[0] * _power_slope(arrays[0], exponent),)


@power.jvp
def _power_jvp(arrays: Arrays, tangents: Arrays, exponent: _Exponent) -> mx.array:
    return tangents[0] * _power_slope(arrays[0], exponent)


@power.vmap
def _power_vmap(arrays: Arrays, mapped: Mapped, size: int, exponent: _Exponent) -> mx.array:
    return power(arrays[0], exponent)


def _power_slope(t: mx.array, exponent: _Exponent) -> mx.array:
    return exponent.value * power(t, exponent._replace(value=exponent.value - 1))


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("power: MLX has this for a GPU")
