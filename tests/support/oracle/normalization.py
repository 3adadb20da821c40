"""Normalization as mps-semantics defines it, in NumPy float64: sums over windows written out, shift by shift."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from support.oracle import activation


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
    return window_sum(window_sum(x, 1, shifts), 2, shifts)


# By windows -----------------------------------------------------------------------------------------------


def spatial_norm(x: np.ndarray, size: int, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0) -> np.ndarray:
    """x over a power of the squares in a window of pixels."""
    base = delta + alpha / size**2 * square_sum(x * x, forward_shifts(size))
    return x * base**-beta


def spatial_norm_grad(
    dy: np.ndarray, x: np.ndarray, size: int, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    """Its gradient, dy pulled through both places where x stands."""
    base = delta + alpha / size**2 * square_sum(x * x, forward_shifts(size))
    pulled = square_sum(dy * x * base ** (-beta - 1), adjoint_shifts(size))
    return dy * base**-beta - 2 * alpha * beta / size**2 * x * pulled


def cross_channel_norm(
    x: np.ndarray, size: int = 5, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    """x over a power of the squares in a window of channels."""
    base = delta + alpha / size * window_sum(x * x, -1, forward_shifts(size))
    return x * base**-beta


def cross_channel_norm_grad(
    dy: np.ndarray, x: np.ndarray, size: int = 5, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0
) -> np.ndarray:
    """Its gradient."""
    base = delta + alpha / size * window_sum(x * x, -1, forward_shifts(size))
    pulled = window_sum(dy * x * base ** (-beta - 1), -1, adjoint_shifts(size))
    return dy * base**-beta - 2 * alpha * beta / size * x * pulled


def _contrast(x: np.ndarray, size: int, alpha: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and delta + alpha * variance; the latter from deviations, and from the zeros outside."""
    shifts = forward_shifts(size)
    mean, inside = square_sum(x, shifts) / size**2, square_sum(np.ones_like(x), shifts)
    # (x - mean)^2 multiplied out, seen from the middle of the image, where the terms are small.
    near, off = x - _middle(x), mean - _middle(x)
    squares = square_sum(near**2, shifts) - 2 * off * square_sum(near, shifts) + inside * off**2
    return mean, delta + alpha * (squares + (size**2 - inside) * mean**2) / size**2


def _middle(x: np.ndarray) -> np.ndarray:
    return x.mean((1, 2), keepdims=True)


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
    """The difference from a window's mean, over a power of its variance."""
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
    """Its gradient."""
    mean, base = _contrast(x, size, alpha, delta)
    a, b = dy * base**-beta, dy * (x - p0 * mean) * base ** (-beta - 1)
    shifts = adjoint_shifts(size)
    # Of b times the distance of x from the mean of the window, multiplied out again.
    turned = (x - _middle(x)) * square_sum(b, shifts) - square_sum(b * (mean - _middle(x)), shifts)
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
    """Normalization by the images' own statistics."""
    pixels = (0, 1, 2)
    mean = x.mean(pixels)
    var = ((x - mean) ** 2).mean(pixels)
    root = np.sqrt(var + eps)
    xhat = (x - mean) / root
    dgamma, dbeta = (dy * xhat).sum(pixels), dy.sum(pixels)
    count = x.size / x.shape[-1]
    dx = gamma / root * (dy - dbeta / count - xhat * dgamma / count)
    return Norm(mean, var, gamma * xhat + beta, dgamma, dbeta, dx, gamma / root * dy)


# By a state -----------------------------------------------------------------------------------------------

PIXELS = (0, 1, 2)


class Statistics(NamedTuple):
    """What a batch normalization's state holds."""

    mean: np.ndarray
    var: np.ndarray
    count: Any
    dgamma: np.ndarray
    dbeta: np.ndarray
    eps: float
    frozen: bool = False

    @property
    def root(self) -> np.ndarray:
        return np.sqrt(self.var + self.eps)


def bn_stats(x: np.ndarray, state: Statistics | None = None, eps: float = 1e-5) -> Statistics:
    """Mean and variance of each channel, merged with those that there are."""
    none = np.zeros(x.shape[-1])
    new = Statistics(x.mean(PIXELS), x.var(PIXELS), x.size // x.shape[-1], none, none, state.eps if state else eps)
    return new if state is None else bn_merge(state, new)


def bn_frozen(mean: np.ndarray, var: np.ndarray, eps: float = 1e-5) -> Statistics:
    """Statistics as given."""
    return Statistics(mean, var, 0, np.zeros_like(mean), np.zeros_like(mean), eps, True)


def bn_merge(a: Statistics, b: Statistics) -> Statistics:
    """By first and second moments about zero, which add up."""
    count = a.count + b.count
    mean = (a.count * a.mean + b.count * b.mean) / count
    squares = (a.count * (a.var + a.mean**2) + b.count * (b.var + b.mean**2)) / count
    return Statistics(mean, squares - mean**2, count, a.dgamma + b.dgamma, a.dbeta + b.dbeta, a.eps)


def bn_running(running: Statistics, state: Statistics, momentum: float = 0.1, unbiased: bool = True) -> Statistics:
    """Running statistics, moved towards a batch's."""
    found = state.var * state.count / (state.count - 1) if unbiased else state.var
    mean, var = (
        (1 - momentum) * old + momentum * new for old, new in ((running.mean, state.mean), (running.var, found))
    )
    return running._replace(mean=mean, var=var)


def bn_reset(state: Statistics) -> Statistics:
    """A state without sums."""
    none = np.zeros_like(state.mean)
    state = state._replace(dgamma=none, dbeta=none)
    return state if state.frozen else state._replace(mean=none, var=none, count=0)


def _before_activation(x: np.ndarray, state: Statistics, gamma: Any, beta: Any) -> np.ndarray:
    return gamma * (x - state.mean) / state.root + beta


def _activation(neuron: Any) -> tuple[str, dict[str, Any]]:
    """Its type and parameters, of None, a name, or a tuple of both."""
    type, *given = (neuron or "none",) if isinstance(neuron, str | None) else neuron
    return type, dict(zip("abc", given, strict=False))


def bn_normalize(
    x: np.ndarray, state: Statistics, gamma: Any = 1, beta: Any = 0, neuron: Any = None, add: Any = 0
) -> np.ndarray:
    """Normalization by given statistics."""
    type, how = _activation(neuron)
    return activation.neuron(_before_activation(x, state, gamma, beta) + add, type, **how)


def _pulled(dy: np.ndarray, x: np.ndarray, state: Statistics, gamma: Any, beta: Any, neuron: Any) -> np.ndarray:
    """The gradient of what is activated."""
    type, how = _activation(neuron)
    return dy * activation.slope(_before_activation(x, state, gamma, beta), type, **how)


def bn_stats_grad(
    dy: np.ndarray, x: np.ndarray, state: Statistics, gamma: Any = 1, beta: Any = 0, neuron: Any = None
) -> Statistics:
    """The sums over images and pixels that the gradient needs."""
    g = _pulled(dy, x, state, gamma, beta, neuron)
    dgamma, dbeta = (g * (x - state.mean) / state.root).sum(PIXELS), g.sum(PIXELS)
    return state._replace(dgamma=state.dgamma + dgamma, dbeta=state.dbeta + dbeta)


def bn_grad(
    dy: np.ndarray, x: np.ndarray, state: Statistics, gamma: Any = 1, beta: Any = 0, neuron: Any = None
) -> np.ndarray:
    """The gradient of the images, through statistics that are not frozen."""
    g = _pulled(dy, x, state, gamma, beta, neuron)
    if not state.frozen:
        xhat = (x - state.mean) / state.root
        g = g - state.dbeta / state.count - xhat * state.dgamma / state.count
    return gamma / state.root * g


# By an image's own statistics -----------------------------------------------------------------------------


class Normalized(NamedTuple):
    """Images, and the statistics (n, groups) of each image's groups of channels."""

    y: np.ndarray
    mean: np.ndarray
    var: np.ndarray


def _in_groups(x: np.ndarray, groups: int) -> np.ndarray:
    """Images as (n, pixels, groups, channels of a group)."""
    n, _, _, channels = x.shape
    return x.reshape(n, -1, groups, channels // groups)


def group_norm(x: np.ndarray, groups: int, gamma: Any = 1, beta: Any = 0, eps: float = 1e-5) -> Normalized:
    """Normalization by the statistics of each image's groups of channels."""
    apart = _in_groups(x, groups)
    mean, var = apart.mean((1, 3)), apart.var((1, 3))
    xhat = (apart - mean[:, None, :, None]) / np.sqrt(var + eps)[:, None, :, None]
    return Normalized(gamma * xhat.reshape(x.shape) + beta, mean, var)


def group_norm_grad(
    dy: np.ndarray, x: np.ndarray, mean: np.ndarray, var: np.ndarray, gamma: Any = 1, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradient of the images, and of scale and shift for each."""
    groups = mean.shape[1]
    root = np.sqrt(var + eps)[:, None, :, None]
    xhat, g = (_in_groups(x, groups) - mean[:, None, :, None]) / root, _in_groups(gamma * dy, groups)
    of_g, of_both = (a.mean((1, 3), keepdims=True) for a in (g, g * xhat))
    dx = (g - of_g - xhat * of_both) / root
    return dx.reshape(x.shape), (dy * xhat.reshape(x.shape)).sum((1, 2)), dy.sum((1, 2))
