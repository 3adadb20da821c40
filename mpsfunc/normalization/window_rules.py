"""The kernels of the normalizations by window, and their rules.

Each norm is one kernel and its gradient another. Derivatives of the second order and on are those of what the kernels
compute, told by sums over windows (`_window_sum`, linear) and powers (`_power`), which have rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np

from mpsfunc.core import checks, launch
from mpsfunc.core.autodiff import differentiable, over_batches, with_decomposition
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.normalization import window_launches
from mpsfunc.normalization.params import LocalContrastParams, PowerParams, SquaresNormParams, WindowSumParams

ROWS, COLS, CHANNELS = 1, 2, 3  # axes of an image


class Spec(NamedTuple):
    """The parameters of `cross_channel_norm` and `spatial_norm`, and where everything runs."""

    size: int
    alpha: float
    beta: float
    delta: float
    stream: mx.Stream


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


def cross_channel_norm(x: mx.array, spec: Spec) -> mx.array:
    """``x * (delta + alpha / size * sum of x^2) ** -beta`` over windows of channels."""
    y: mx.array = _cross_channel(x, _settled(spec))
    return y


def cross_channel_norm_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of `cross_channel_norm`."""
    dx: mx.array = _cross_channel_grad(dy, x, _settled(spec))
    return dx


def spatial_norm(x: mx.array, spec: Spec) -> mx.array:
    """``x * (delta + alpha / size^2 * sum of x^2) ** -beta`` over windows of each channel."""
    y: mx.array = _spatial(x, _settled(spec))
    return y


def spatial_norm_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of `spatial_norm`."""
    dx: mx.array = _spatial_grad(dy, x, _settled(spec))
    return dx


def local_contrast_norm(x: mx.array, spec: ContrastSpec) -> mx.array:
    """``pm + ps * (x - p0 * mean) * (delta + alpha * variance) ** -beta`` over windows of each channel."""
    y: mx.array = _contrast(x, _settled(spec))
    return y


def local_contrast_norm_grad(dy: mx.array, x: mx.array, spec: ContrastSpec) -> mx.array:
    """The gradient of `local_contrast_norm`."""
    dx: mx.array = _contrast_grad(dy, x, _settled(spec))
    return dx


_AnySpec = TypeVar("_AnySpec", Spec, ContrastSpec)


def _settled(spec: _AnySpec) -> _AnySpec:
    """With the exponent 0 the base does not matter, not even one of 0, whose other powers the gradient would meet."""
    return spec._replace(alpha=0.0, delta=1.0) if spec.beta == 0 else spec


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


# Sums over windows --------------------------------------------------------------------------------------


class _Windows(NamedTuple):
    reach: WindowSumParams
    stream: mx.Stream


def _run_window_sum(x: mx.array, windows: _Windows) -> mx.array:
    def kernels() -> tuple[KernelLaunch, ...]:
        return window_launches.window_sum(x, *windows.reach)

    image = tuple(x.shape), x.dtype
    return launch.launch("window_sum", {"x": x}, windows.reach, (image,), kernels, windows.stream)[0]


def _window_sum_vjp(arrays: Any, cotangents: Any, outputs: Any, windows: _Windows) -> Any:
    axis, before, after = windows.reach
    return (_window_sum(cotangents[0], windows._replace(reach=WindowSumParams(axis, after, before))),)


_window_sum: Any = differentiable(
    *("window_sum", _run_window_sum),
    vjp=_window_sum_vjp,
    jvp=lambda arrays, tangents, windows: _window_sum(tangents[0], windows),
    vmap=over_batches(lambda: _window_sum),
)


def _over_windows(x: mx.array, axes: tuple[int, ...], size: int, stream: mx.Stream, *, mirrored: bool = False) -> Any:
    """Sums over the windows [i - size // 2, i + (size - 1) // 2], or over those that hold a place."""
    before, after = size // 2, (size - 1) // 2
    for axis in axes:
        reach = WindowSumParams(axis, *((after, before) if mirrored else (before, after)))
        x = _window_sum(x, _Windows(reach, stream))
    return x


# Powers -------------------------------------------------------------------------------------------------


class _Exponent(NamedTuple):
    value: float
    stream: mx.Stream


def _run_power(t: mx.array, exponent: _Exponent) -> mx.array:
    if launch.backend(exponent.stream) != "cpu":
        return mx.power(t, exponent.value)
    result, params = (tuple(t.shape), t.dtype), PowerParams(exponent.value)
    return launch.launch("power", {"t": t}, params, (result,), _no_kernels, exponent.stream)[0]


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("power: MLX has this for a GPU")


def _power_slope(t: mx.array, exponent: _Exponent) -> mx.array:
    slope: mx.array = exponent.value * _power(t, exponent._replace(value=exponent.value - 1))
    return slope


_power: Any = differentiable(
    *("power", _run_power),
    vjp=lambda arrays, cotangents, outputs, exponent: (cotangents[0] * _power_slope(arrays[0], exponent),),
    jvp=lambda arrays, tangents, exponent: tangents[0] * _power_slope(arrays[0], exponent),
    vmap=lambda arrays, mapped, size, exponent: _power(arrays[0], exponent),
)


# A norm and its gradient --------------------------------------------------------------------------------

_Kernels = tuple[Callable[..., tuple[KernelLaunch, ...]], Callable[..., tuple[KernelLaunch, ...]]]


def _both(
    name: str, params: Callable[[Any], Any], decompositions: tuple[Any, Any], kernels: _Kernels
) -> tuple[Any, Any]:
    """An operation and its gradient.

    Args:
        name: Of the operation; the gradient's ends in "_grad".
        params: Makes the CPU's parameters, which are the numbers of both, from a spec.
        decompositions: Both as `with_decomposition` wants them.
        kernels: Make both's launches on a GPU, from arrays and those numbers.
    """

    def run(arrays: tuple[mx.array, ...], spec: Any) -> mx.array:
        x, record = arrays[-1], params(spec)
        forward = len(arrays) == 1
        op, on_gpu = (name, kernels[0]) if forward else (f"{name}_grad", kernels[1])
        named = {"x": x} if forward else {"dy": arrays[0], "x": x}

        def launches() -> tuple[KernelLaunch, ...]:
            return on_gpu(*arrays, *record)

        return launch.launch(op, named, record, ((tuple(x.shape), x.dtype),), launches, spec.stream)[0]

    def vjp(arrays: Any, cotangents: Any, outputs: Any, spec: Any) -> Any:
        return (backward(cotangents[0], arrays[0], spec),)

    def wrapped(op: str, decomposition: Any, **rules: Any) -> Any:
        operation: Any = with_decomposition(
            op, lambda *args: run(args[:-1], args[-1]), decomposition, vmap=over_batches(lambda: operation), **rules
        )
        return operation

    backward = wrapped(f"{name}_grad", decompositions[1])
    return wrapped(name, decompositions[0], vjp=vjp), backward


# Norms by squares ---------------------------------------------------------------------------------------


def _by_squares(name: str, axes: tuple[int, ...], kernels: _Kernels) -> tuple[Any, Any]:
    """The norm by sums of squares along these axes, and its gradient; the rest as for `_both`."""

    def params(spec: Spec) -> SquaresNormParams:
        return SquaresNormParams(*spec[:4])

    def base(x: mx.array, spec: Spec) -> mx.array:
        squares = _over_windows(x * x, axes, spec.size, spec.stream)
        below: mx.array = spec.delta + spec.alpha / spec.size ** len(axes) * squares
        return below

    def decomposition(x: mx.array, spec: Spec) -> mx.array:
        wide = x.astype(launch.accumulator(x.dtype))
        y: mx.array = (wide * _power(base(wide, spec), _Exponent(-spec.beta, spec.stream))).astype(x.dtype)
        return y

    def meaning_of_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
        dy_wide, wide = (a.astype(launch.accumulator(x.dtype)) for a in (dy, x))
        below = base(wide, spec)
        first = dy_wide * _power(below, _Exponent(-spec.beta, spec.stream))
        through = dy_wide * wide * _power(below, _Exponent(-spec.beta - 1, spec.stream))
        factor = 2 * spec.alpha * spec.beta / spec.size ** len(axes)
        second = factor * wide * _over_windows(through, axes, spec.size, spec.stream, mirrored=True)
        y: mx.array = (first - second).astype(x.dtype)
        return y

    return _both(name, params, (decomposition, meaning_of_grad), kernels)


# Local contrast -----------------------------------------------------------------------------------------


def _contrast_params(spec: ContrastSpec) -> LocalContrastParams:
    return LocalContrastParams(*spec[:7])


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
        mean: mx.array = _over_windows(values, (ROWS, COLS), spec.size, spec.stream) / area
        return mean

    mean = mean_of(images) - outside * pivot
    variance = mx.maximum(mean_of(images * images) + outside * pivot * pivot - mean * mean, 0)
    return images, mean, images - spec.p0 * mean + (1 - spec.p0) * pivot, spec.delta + spec.alpha * variance


def _wide(x: mx.array, spec: ContrastSpec) -> mx.array:
    """Images in float64 where there is such a thing, as the CPU's kernels sum them: differences of squares cancel."""
    return x.astype(mx.float64 if launch.backend(spec.stream) == "cpu" else mx.float32)


def _share_inside(length: int, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The share of each window's places along an axis that are in the image."""
    at = np.arange(length)
    return (np.minimum(at + (size - 1) // 2, length - 1) - np.maximum(at - size // 2, 0) + 1) / size


def _contrast_decomposition(x: mx.array, spec: ContrastSpec) -> mx.array:
    _, _, apart, below = _parts_of_contrast(_wide(x, spec), spec)
    y: mx.array = (spec.pm + spec.ps * apart * _power(below, _Exponent(-spec.beta, spec.stream))).astype(x.dtype)
    return y


def _contrast_grad_decomposition(dy: mx.array, x: mx.array, spec: ContrastSpec) -> mx.array:
    dy_wide, wide = (_wide(a, spec) for a in (dy, x))
    images, mean, apart, below = _parts_of_contrast(wide, spec)
    area = float(spec.size) ** 2

    def around(values: mx.array) -> mx.array:
        summed: mx.array = _over_windows(values, (ROWS, COLS), spec.size, spec.stream, mirrored=True) / area
        return summed

    of_mean = dy_wide * _power(below, _Exponent(-spec.beta, spec.stream))
    of_base = dy_wide * apart * _power(below, _Exponent(-spec.beta - 1, spec.stream))
    by_base = 2 * spec.alpha * spec.beta * (images * around(of_base) - around(of_base * mean))
    y: mx.array = (spec.ps * (of_mean - spec.p0 * around(of_mean) - by_base)).astype(x.dtype)
    return y


_cross_channel, _cross_channel_grad = _by_squares(
    *("cross_channel_norm", (CHANNELS,)),
    (window_launches.cross_channel_norm, window_launches.cross_channel_norm_grad),
)
_spatial, _spatial_grad = _by_squares(
    *("spatial_norm", (ROWS, COLS)),
    (window_launches.spatial_norm, window_launches.spatial_norm_grad),
)
_contrast, _contrast_grad = _both(
    *("local_contrast_norm", _contrast_params, (_contrast_decomposition, _contrast_grad_decomposition)),
    (window_launches.local_contrast_norm, window_launches.local_contrast_norm_grad),
)
