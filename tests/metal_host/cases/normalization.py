"""The cases of `cases` that normalize by windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from support import close, exact, numbers

import mpsfunc as mf
from metal_host.case import Case, launched, named
from mpsfunc.normalization import window_launches

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
Array = np.ndarray


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
    fused = op == "cross_channel_norm" and size <= window_launches._FEW
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
        made = launched({"x": x}, ((shape, F32),), window_launches.window_sum(x, axis, before, after))
        right, size = (sums(v, (axis,), before, after) for v in (exact(x), abs(exact(x))))
        close(made[0], right, size)

    name = named("window_sum", shape, dtype, axis=axis, window=(before, after))
    return Case(name, ("window_sum",), check, crowded)


def _high(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """A deviation of 1 about 1e4."""
    return numbers(shape, dtype) + 1e4


def _one_apart(row: int, column: int) -> Image:
    """One pixel that dwarfs the others, whose digits windows without it must keep."""

    def image(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        pixel = np.zeros(shape, np.float32)
        pixel[:, row, column] = 1e6
        return (numbers(shape) + mx.array(pixel)).astype(dtype)

    return image


def _without_first(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """No window of any channel is 0, but one beside the first would be."""
    kept = np.arange(shape[3]) > 0
    return ((abs(numbers(shape)) + 1) * mx.array(kept.astype(np.float32))).astype(dtype)


def normalization() -> list[Case]:
    lrn: Any = ("cross_channel_norm", (3,))
    spatial: Any = ("spatial_norm", (1, 2))
    steep = Contrast(1.5, 0.75, 0.5, 0.9, 0.25, 2.0)
    return [
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
        _contrast((1, 9, 12, 4), F32, 3, Contrast(1.0, p0=1.0), of=_one_apart(0, 0), kind="one apart"),
        _contrast(
            (1, 5, 30, 4), F32, 9, steep, of=_one_apart(3, 4), kind="one apart"
        ),  # which a whole run's windows hold
        *[_window_sum((2, 11, 9, 5), F32, axis, 2, 3) for axis in (1, 2, 3)],
        _window_sum((1, 3, 70, 4), F32, 2, 25, 24),
        _window_sum((1, 70, 2, 4), F32, 1, 0, 11, crowded=True),
        _window_sum((1, 1, 1, 2100), F32, 3, 1500, 40),
    ]
