"""Normalization as mps-semantics defines it, in NumPy float64: sums over windows written out, shift by shift."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np


def forward_shifts(size: int) -> range:
    """Where a window of so many positions reads, seen from its own."""
    return range(-(size // 2), (size - 1) // 2 + 1)


def adjoint_shifts(size: int) -> range:
    """Where the windows sit that read a position."""
    return range(-((size - 1) // 2), size // 2 + 1)


def shifted(x: np.ndarray, by: int, axis: int) -> np.ndarray:
    """``x[i + by]`` along an axis, with zeros outside."""
    length = x.shape[axis]
    out = np.zeros_like(x)
    low, high = max(0, -by), min(length, length - by)
    if low < high:
        to, source = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        to[axis], source[axis] = slice(low, high), slice(low + by, high + by)
        out[tuple(to)] = x[tuple(source)]
    return out


def _within(shifts: range, length: int) -> range:
    """The shifts that reach anything at all, so that huge windows end."""
    return range(max(shifts.start, 1 - length), min(shifts.stop, length))


def window_sum(x: np.ndarray, axis: int, shifts: range) -> np.ndarray:
    """The sum of an image's elements at these shifts along an axis."""
    total = np.zeros_like(x)
    for by in _within(shifts, x.shape[axis]):
        total = total + shifted(x, by, axis)
    return total


def square_sum(x: np.ndarray, shifts: range) -> np.ndarray:
    """The sum of an image's elements at these shifts along both axes."""
    total = np.zeros_like(x)
    for down, along in itertools.product(_within(shifts, x.shape[1]), _within(shifts, x.shape[2])):
        total = total + shifted(shifted(x, down, 1), along, 2)
    return total


# By windows -----------------------------------------------------------------------------------------------


def spatial_norm(x: np.ndarray, size: int, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0) -> np.ndarray:
    base = delta + alpha / size**2 * square_sum(x * x, forward_shifts(size))
    return x * base**-beta


def spatial_norm_grad(
    dy: np.ndarray, x: np.ndarray, size: int, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    base = delta + alpha / size**2 * square_sum(x * x, forward_shifts(size))
    pulled = square_sum(dy * x * base ** (-beta - 1), adjoint_shifts(size))
    return dy * base**-beta - 2 * alpha * beta / size**2 * x * pulled


def cross_channel_norm(
    x: np.ndarray, size: int = 5, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    base = delta + alpha / size * window_sum(x * x, -1, forward_shifts(size))
    return x * base**-beta


def cross_channel_norm_grad(
    dy: np.ndarray, x: np.ndarray, size: int = 5, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    base = delta + alpha / size * window_sum(x * x, -1, forward_shifts(size))
    pulled = window_sum(dy * x * base ** (-beta - 1), -1, adjoint_shifts(size))
    return dy * base**-beta - 2 * alpha * beta / size * x * pulled


def _contrast(x: np.ndarray, size: int, alpha: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and delta + alpha * variance; the latter from deviations, and from the zeros outside."""
    shifts, ones = forward_shifts(size), np.ones_like(x)
    mean = square_sum(x, shifts) / size**2
    squares, inside = np.zeros_like(x), np.zeros_like(x)
    for down, along in itertools.product(_within(shifts, x.shape[1]), _within(shifts, x.shape[2])):
        there = shifted(shifted(ones, down, 1), along, 2)
        squares = squares + there * (shifted(shifted(x, down, 1), along, 2) - mean) ** 2
        inside = inside + there
    return mean, delta + alpha * (squares + (size**2 - inside) * mean**2) / size**2


def local_contrast_norm(
    x: np.ndarray,
    size: int,
    alpha: float = 0.0,
    beta: float = 0.5,
    delta: float = 1 / 1024,
    p0: float = 1.0,
    pm: float = 0.0,
    ps: float = 1.0,
) -> np.ndarray:
    mean, base = _contrast(x, size, alpha, delta)
    return pm + ps * (x - p0 * mean) * base**-beta


def local_contrast_norm_grad(
    dy: np.ndarray,
    x: np.ndarray,
    size: int,
    alpha: float = 0.0,
    beta: float = 0.5,
    delta: float = 1 / 1024,
    p0: float = 1.0,
    pm: float = 0.0,
    ps: float = 1.0,
) -> np.ndarray:
    mean, base = _contrast(x, size, alpha, delta)
    a, b = dy * base**-beta, dy * (x - p0 * mean) * base ** (-beta - 1)
    shifts = adjoint_shifts(size)
    turned = np.zeros_like(x)  # of b times the distance of x from the mean of the window
    for down, along in itertools.product(_within(shifts, x.shape[1]), _within(shifts, x.shape[2])):
        there, about = (shifted(shifted(v, down, 1), along, 2) for v in (b, mean))
        turned = turned + there * (x - about)
    return ps * (a - p0 / size**2 * square_sum(a, shifts) - 2 * alpha * beta / size**2 * turned)


# By statistics --------------------------------------------------------------------------------------------


def in_stat_groups(x: np.ndarray, stat_groups: int) -> np.ndarray:
    """An image as (statistics groups, pixels, channels)."""
    channels = x.shape[-1]
    pixels = x.size // (stat_groups * channels) if stat_groups * channels else 0
    return x.reshape(stat_groups, pixels, channels)


def moments(x: np.ndarray, stat_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance of each group's channels, (stat_groups, channels); zero without pixels."""
    seen = in_stat_groups(x, stat_groups)
    if seen.shape[1] == 0:
        return np.zeros(seen.shape[::2]), np.zeros(seen.shape[::2])
    return seen.mean(1), seen.var(1)


def affine(x: np.ndarray, mean: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``(x - mean) * scale + shift`` with vectors (statistics groups, channels)."""
    seen = in_stat_groups(x, len(mean))
    return ((seen - mean[:, None]) * scale[:, None] + shift[:, None]).reshape(x.shape)


class Norm(NamedTuple):
    """Batch normalization of one batch, forward and backward."""

    mean: np.ndarray
    var: np.ndarray
    y: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray
    dx: np.ndarray
    dx_frozen: np.ndarray


def batch_norm(x: np.ndarray, dy: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> Norm:
    pixels = (0, 1, 2)
    mean = x.mean(pixels)
    var = ((x - mean) ** 2).mean(pixels)
    root = np.sqrt(var + eps)
    xhat = (x - mean) / root
    dgamma, dbeta = (dy * xhat).sum(pixels), dy.sum(pixels)
    count = x.size / x.shape[-1]
    dx = gamma / root * (dy - dbeta / count - xhat * dgamma / count)
    return Norm(mean, var, gamma * xhat + beta, dgamma, dbeta, dx, gamma / root * dy)
