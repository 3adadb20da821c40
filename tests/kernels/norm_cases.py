"""The cases of `cases` that normalize by windows, and by sets of images straight from the stages of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import oracle_neuron
from support import close, exact, numbers

import mpsfunc as mf
from kernels.case import Case, named
from mpsfunc import _channel_stages, _launch, _vectors, _window_norm_stages
from mpsfunc._activation import EXPONENTIAL, GELU, NAMES, NO_ACTIVATION, POWER, RELU, RELUN, SOFTPLUS, Activation
from mpsfunc._launch import Output, Stage

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Array = np.ndarray


def launched(arrays: Sequence[mx.array], outputs: tuple[Output, ...], stages: Any, *more: mx.array) -> list[mx.array]:
    """What the stages make of the arrays, on the GPU of the moment."""

    def made() -> tuple[Stage, ...]:
        return tuple(stages)

    return _launch.launch("norm", arrays, (), outputs, made, _launch.resolve(None), finally_with=more)


def _like(x: mx.array) -> tuple[Output]:
    return ((tuple(x.shape), x.dtype),)


# Sets of images -----------------------------------------------------------------------------------------


def _sets(
    shape: tuple[int, ...], dtype: mx.Dtype, sets: int, act: Activation, *, slack: float = 8, crowded: bool = False
) -> list[Case]:
    n, channels = shape[0], shape[3]
    vectors = (sets, channels)
    x, dy = numbers(shape, dtype, 1) + 3, numbers(shape, dtype, 2)
    # One entry of scale is 0 and so is its shift: there the activation stands right at 0.
    scale, shift = (numbers(vectors, F32, seed) * (np.arange(channels) != 1) for seed in (3, 4))
    mean = mx.array(exact(x).reshape(sets, -1, channels).mean(1)).astype(F32)

    def by_set(v: mx.array) -> Array:
        return exact(v).reshape(sets, n // sets, *shape[1:])

    def wide(v: mx.array) -> Array:
        return exact(v)[:, None, None, None]

    def pulled() -> Array:
        return by_set(dy) * oracle_neuron.slope(before(), NAMES[act.kind], **known)

    def before() -> Array:
        return (by_set(x) - wide(mean)) * wide(scale) + wide(shift)

    given = [scale, shift] if act.kind else []
    known = {"a": act.a, "b": act.b, "c": act.c}

    def stats() -> None:
        made = launched([x], ((vectors, F32),) * 2, _channel_stages.moments(x, sets), x)
        axes = (1, 2, 3)
        close(made[0], by_set(x).mean(axes), abs(by_set(x)).mean(axes), slack=slack)
        close(made[1], by_set(x).var(axes), by_set(x).var(axes), slack=slack)

    def normalize() -> None:
        y = launched([x, mean, scale, shift], _like(x), _channel_stages.affine(x, sets, act))[0]
        right = oracle_neuron.neuron(before(), NAMES[act.kind], **known)
        close(y, right.reshape(shape), abs(right.reshape(shape)) + 3, slack=slack)

    def stats_grad() -> None:
        stages = _channel_stages.sums(dy, sets, act)
        total, dot = launched([dy, x, mean, *given], ((vectors, F32),) * 2, stages)
        size = abs(by_set(dy)).sum((1, 2, 3)) + 1
        close(total, pulled().sum((1, 2, 3)), size, slack=slack)
        close(dot, (pulled() * (by_set(x) - wide(mean))).sum((1, 2, 3)), 3 * size, slack=slack)

    def grown() -> None:
        held = [abs(numbers(vectors, F32, 5)) + 1, numbers(vectors, F32, 6), numbers(vectors, F32, 7)]
        stages = _channel_stages.grown(dy, act, 1e-3)
        dgamma, dbeta = launched([dy, x, mean, *given], ((vectors, F32),) * 2, stages, *held)
        size = abs(by_set(dy)).sum((1, 2, 3)) + 1
        dots = (pulled() * (by_set(x) - wide(mean))).sum((1, 2, 3))
        close(dgamma, exact(held[1]) + dots / np.sqrt(exact(held[0]) + 1e-3), 3 * size, slack=slack)
        close(dbeta, exact(held[2]) + pulled().sum((1, 2, 3)), size, slack=slack)

    def grad() -> None:
        a, b, d = (numbers(vectors, F32, seed) for seed in (5, 6, 7))
        dx = launched([dy, x, mean, a, b, d, *given], _like(x), _channel_stages.combine(dy, sets, act))[0]
        right = wide(a) * pulled() + wide(b) * (by_set(x) - wide(mean)) + wide(d)
        close(dx, right.reshape(shape), abs(right.reshape(shape)) + 9, slack=slack)

    told = {"sets": sets, "neuron": NAMES[act.kind]}
    return [
        Case(named("bn_normalize", shape, dtype, **told), ("bn_normalize",), normalize, crowded),
        Case(named("bn_stats_grad", shape, dtype, **told), ("bn_stats_grad", "sum_partials"), stats_grad, crowded),
        Case(named("bn_grad", shape, dtype, **told), ("bn_grad",), grad, crowded),
        *(
            [Case(named("bn_stats", shape, dtype, sets=sets), ("bn_stats", "bn_stats_merge"), stats, crowded)]
            if not act.kind
            else []
        ),
        *(
            [Case(named("bn_grown", shape, dtype, **told), ("bn_stats_grad", "bn_stats_grad_merge"), grown, crowded)]
            if sets == 1
            else []
        ),
    ]


# Vectors ------------------------------------------------------------------------------------------------


def _vectors_of(sets: int, channels: int) -> list[Case]:
    shape, here = (sets, channels), _launch.resolve(None)
    gamma, dmean, dvar, dbeta, dot, mean = (numbers(shape, F32, seed) for seed in range(1, 7))
    var = abs(numbers(shape, F32, 7)) + 1

    def factors() -> None:
        made = _vectors.composed_factors(gamma, var, dmean, dvar, dbeta, dot, 300.0, 1e-3, here)
        g, v, of_mean, of_var, total, product = (exact(a) for a in (gamma, var, dmean, dvar, dbeta, dot))
        root = 1 / np.sqrt(v + 1e-3)
        right = (
            (product * root, abs(product)),
            (g * root, abs(g)),
            ((2 * of_var - g * root * root * product * root) / 300, (abs(of_var) + abs(g * product)) / 100),
            ((of_mean - g * root * total) / 300, (abs(of_mean) + abs(g * total)) / 100),
        )
        for a, (wanted, size) in zip(made, right, strict=True):
            close(a, wanted, size, slack=8)

    def running(count: int, unbiased: float) -> Callable[[], None]:
        def run() -> None:
            held = mean + 2, var + 3
            moved = _vectors.moved(*held, mean, var, mx.array(count, mx.int64), 0.25, unbiased, here)
            share, wide = 0.25 * (count > 0), max(count, 2) / (max(count, 2) - 1) if unbiased else 1.0
            for a, before, found in zip(moved, held, (exact(mean), exact(var) * wide), strict=True):
                close(a, exact(before) + share * (found - exact(before)), abs(exact(before)) + abs(found), slack=8)

        return run

    return [
        Case(f"bn_composed_factors {sets}x{channels}", ("bn_composed_factors",), factors),
        *(
            Case(f"bn_running {sets}x{channels} of {n}, {u}", ("bn_running",), running(n, u))
            for n, u in ((0, 1.0), (1, 1.0), (300, 1.0), (300, 0.0), (2**40, 1.0))
        ),
    ]


# Windows ------------------------------------------------------------------------------------------------

Axes = tuple[int, ...]


def sums(v: Array, axes: Axes, before: int, after: int) -> Array:
    """The sum of v over [i - before, i + after] along some axes, zeros outside."""
    for axis in axes:
        places = np.arange(v.shape[axis])
        reads = (places >= places[:, None] - before) & (places <= places[:, None] + after)
        v = np.moveaxis(np.tensordot(reads.astype(np.float64), v, (1, axis)), 0, axis)
    return v


class Window(NamedTuple):
    """Windows of a size along some axes: sums over them, and over the mirrored ones; and the places of one."""

    size: int
    axes: Axes

    def sum(self, v: Array) -> Array:
        return sums(v, self.axes, self.size // 2, (self.size - 1) // 2)

    def mirrored(self, v: Array) -> Array:
        return sums(v, self.axes, (self.size - 1) // 2, self.size // 2)

    @property
    def area(self) -> int:
        return int(self.size ** len(self.axes))


def by_squares(x: Array, dy: Array, w: Window, alpha: float, beta: float, delta: float) -> tuple[Array, Array]:
    """Cross-channel or spatial normalization and its gradient."""
    t = delta + alpha / w.area * w.sum(x * x)
    through = w.mirrored(dy * x * t ** (-beta - 1))
    return x * t**-beta, dy * t**-beta - 2 * alpha * beta / w.area * x * through


class Contrast(NamedTuple):
    """What local contrast normalization is told besides its window."""

    alpha: float = 0.0
    beta: float = 0.5
    delta: float = 1 / 1024
    p0: float = 1.0
    pm: float = 0.0
    ps: float = 1.0


def by_contrast(x: Array, dy: Array, w: Window, told: Contrast) -> tuple[Array, Array]:
    """Local contrast normalization and its gradient, about a level that is no part of the formula's values."""
    alpha, beta, delta, p0, pm, ps = told
    inside = w.sum(np.ones_like(x)) / w.area
    level = x.mean((1, 2), keepdims=True)
    off = w.sum(x - level) / w.area - level * (1 - inside)  # the mean less the level
    squares = w.sum((x - level) ** 2) / w.area + level**2 * (1 - inside)
    t = delta + alpha * (squares - off**2)
    centred = x - p0 * (off + level)
    a, b = dy * t**-beta, dy * centred * t ** (-beta - 1)
    along = (x - level) * w.mirrored(b) - w.mirrored(b * off)
    return pm + ps * centred * t**-beta, ps * (a - p0 / w.area * w.mirrored(a) - 2 * alpha * beta / w.area * along)


Image = Callable[[tuple[int, ...], mx.Dtype], mx.array]


def _squared(
    op: str,
    axes: Axes,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    size: int,
    told: tuple[float, float, float],
    *,
    crowded: bool = False,
    of: Image = numbers,
) -> Case:
    """Forward and backward of a normalization by sums of squares."""
    fused = op == "cross_channel_norm" and size <= _window_norm_stages._FEW
    by_sums = ("window_sum", "spatial_norm", "spatial_norm_weights", "spatial_norm_grad")

    def check() -> None:
        x, dy = of(shape, dtype), numbers(shape, dtype, 2)
        forward, backward = getattr(mf, f"{op}_fwd"), getattr(mf, f"{op}_grad")
        made, state = forward(x, size, **dict(zip(("alpha", "beta", "delta"), told, strict=True)))
        y, dx = by_squares(exact(x), exact(dy), Window(size, axes), *told)
        close(made, y, abs(y), slack=8)
        close(backward(dy, x, state), dx, abs(dx).max(), slack=8)

    return Case(named(op, shape, dtype, k=size, told=told), (op, f"{op}_grad") if fused else by_sums, check, crowded)


def _contrast(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    size: int,
    told: Contrast,
    *,
    crowded: bool = False,
    of: Image = numbers,
    kind: str = "local_contrast_norm",
) -> Case:
    """Forward and backward."""

    def check() -> None:
        x, dy = of(shape, dtype), numbers(shape, dtype, 2)
        made, state = mf.local_contrast_norm_fwd(x, size, **told._asdict())
        y, dx = by_contrast(exact(x), exact(dy), Window(size, (1, 2)), told)
        close(made, y, abs(y) + told.ps, slack=16)
        close(mf.local_contrast_norm_grad(dy, x, state), dx, abs(dx).max(), slack=16)

    op = "local_contrast_norm"
    bodies = ("window_moments", op, f"{op}_weights", "window_slopes", f"{op}_grad")
    return Case(named(kind, shape, dtype, k=size, told=tuple(told)), bodies, check, crowded)


def _window_sum(
    shape: tuple[int, ...], dtype: mx.Dtype, axis: int, before: int, after: int, *, crowded: bool = False
) -> Case:
    def check() -> None:
        x = numbers(shape, dtype)
        made = launched([x], ((shape, F32),), _window_norm_stages.window_sum(x, axis, before, after))
        right, size = (sums(v, (axis,), before, after) for v in (exact(x), abs(exact(x))))
        close(made[0], right, size)

    name = named("window_sum", shape, dtype, axis=axis, window=(before, after))
    return Case(name, ("window_sum",), check, crowded)


def _high(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """A deviation of 1 about 1e4."""
    return numbers(shape, dtype) + 1e4


def _one_apart(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """One pixel that dwarfs the others, whose digits windows without it must keep."""
    first = np.zeros(shape)
    first[:, 0, 0] = 1e6
    return (numbers(shape) + mx.array(first.astype(np.float32))).astype(dtype)


def _without_first(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """No window of any channel is 0, but one beside the first would be."""
    kept = np.arange(shape[3]) > 0
    return ((abs(numbers(shape)) + 1) * mx.array(kept.astype(np.float32))).astype(dtype)


def normalization() -> list[Case]:
    relu = Activation(RELU)
    lrn: Any = ("cross_channel_norm", (3,))
    spatial: Any = ("spatial_norm", (1, 2))
    steep = Contrast(1.5, 0.75, 0.5, 0.9, 0.25, 2.0)
    return [
        *_sets((4, 5, 3, 5), F32, 2, relu),
        *_sets((4, 5, 3, 5), F32, 4, NO_ACTIVATION),
        *_sets((4, 3, 2, 5), F32, 1, Activation(SOFTPLUS, 1.5, 0.75)),
        *_sets((2, 3, 3, 8), F32, 2, Activation(RELUN, 0.25, 0.5)),
        *_sets((2, 2, 3, 4), F32, 2, Activation(GELU)),
        *_sets((2, 2, 3, 4), F32, 1, Activation(POWER, 0.25, 8.0, 2.0)),
        # A base that a float does not tell.
        *_sets((2, 2, 3, 4), F32, 1, Activation(EXPONENTIAL, 1024.0, 16.0, 1.0001)),
        *_sets((2, 9, 7, 24), F16, 2, relu),
        *_sets((2, 3, 3, 8), BF16, 1, relu),
        *_sets((2, 1, 3, 1), F32, 2, relu),
        *_sets((3, 17, 15, 100), F32, 3, relu, crowded=True),
        *_sets((3, 37, 45, 4), F32, 3, NO_ACTIVATION, crowded=True),
        *_vectors_of(1, 5),
        *_vectors_of(3, 300),
        *_sets((1, 7, 43, 255), F32, 1, NO_ACTIVATION),  # more partial sums than a threadgroup takes at a time
        _squared(*lrn, (2, 3, 5, 24), F32, 5, (1.0, 5.0, 1.0)),
        _squared(*lrn, (1, 2, 3, 12), F32, 4, (2.0, 0.75, 1.5)),
        _squared(*lrn, (1, 3, 2, 7), F32, 3, (3.0, 0.5, 1.0)),
        _squared(*lrn, (1, 1, 3, 2), F32, 9, (1e-4, 0.6, 2.0)),
        _squared(*lrn, (1, 2, 3, 24), F16, 5, (1.0, 0.75, 2.0)),
        _squared(*lrn, (1, 2, 3, 8), BF16, 9, (1.0, 1.0, 1.0)),
        _squared(*lrn, (1, 2, 3, 5), F16, 1, (1.0, 0.25, 1.0)),
        _squared(*lrn, (2, 2, 3, 8), F32, 3, (1.0, 0.5, 0.0), of=_without_first),
        _squared(*lrn, (1, 9, 61, 16), F32, 5, (1.0, 0.75, 1.0), crowded=True),
        _squared(*lrn, (1, 2, 2, 43), F32, 16, (1.0, 0.75, 1.0)),
        _squared(*spatial, (2, 7, 6, 5), F32, 3, (1.0, 0.5, 1.0)),
        _squared(*spatial, (1, 6, 9, 8), F32, 4, (2.0, 5.0, 1.5)),
        _squared(*spatial, (1, 3, 2, 1), F32, 2, (1.0, 1.0, 1.0)),
        _squared(*spatial, (1, 5, 4, 8), F16, 5, (1.0, 1.25, 1.0)),
        _squared(*spatial, (1, 4, 5, 16), BF16, 2**31 - 1, (1e18, 0.6, 1.0)),
        _squared(*spatial, (1, 1, 3, 2), F16, 3, (1.0, 0.75, 1.0)),
        _squared(*spatial, (1, 3, 1, 1), BF16, 3, (1.0, 0.75, 1.0)),
        _squared(*spatial, (1, 19, 17, 20), F32, 7, (1.0, 2.0, 1.0), crowded=True),
        _squared(*spatial, (1, 91, 91, 1), F32, 2, (1.0, 0.5, 1.0), crowded=True),
        _contrast((2, 7, 6, 5), F32, 3, steep),
        _contrast((1, 6, 9, 8), F32, 4, steep),
        _contrast((1, 5, 4, 3), F32, 1, Contrast(alpha=1.0, p0=0.5)),
        _contrast((1, 3, 2, 1), F32, 2, Contrast()),
        _contrast((1, 5, 4, 8), F16, 5, steep),
        _contrast((1, 4, 5, 16), BF16, 11, steep),
        _contrast((1, 1, 3, 2), F16, 3, steep),
        _contrast((1, 3, 1, 1), BF16, 2, steep),
        _contrast((3, 7, 5, 4), F32, 5, steep, crowded=True),
        _contrast((1, 14, 64, 4), F32, 3, steep, crowded=True),
        _contrast((1, 1, 1100, 1), F32, 1500, steep),  # as many chunks as there are
        _contrast((1, 11, 12, 4), F32, 5, Contrast(1.0, p0=1.0), of=_high, kind="high contrast"),
        _contrast((1, 24, 25, 4), F32, 21, Contrast(1.0, p0=1.0), of=_high, kind="high contrast"),
        _contrast((1, 9, 12, 4), F32, 3, Contrast(1.0, p0=1.0), of=_one_apart, kind="one apart"),
        *[_window_sum((2, 11, 9, 5), F32, axis, 2, 3) for axis in (1, 2, 3)],
        _window_sum((1, 3, 70, 4), F32, 2, 25, 24),
        _window_sum((1, 70, 2, 4), F32, 1, 0, 11, crowded=True),
        _window_sum((1, 1, 1, 2100), F32, 3, 1500, 40),
    ]
