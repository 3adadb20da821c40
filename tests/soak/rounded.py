"""What roundings make of a result, and where a function has a kink, which they may put it on either side of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

EPS = {mx.float32: 2.0**-23, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}
# Of roundings that are drawn, in float32 and so far above its own; what comes of them is scaled down to EPS.
SIZE = {mx.float32: 2.0**-10, mx.float16: EPS[mx.float16], mx.bfloat16: EPS[mx.bfloat16]}
_DRAWS = 24  # at most; few results need more than one
# Some thousand rounds of models and graphs needed up to 1.8 in 16 bits and 4.1 in float32, whose reference is rounded
# as coarsely as what is compared with it.
_TIMES = {mx.float32: 16, mx.float16: 3, mx.bfloat16: 3}
Seen = Callable[[Any, mx.array, mx.array], mx.array]
_AT_ZERO = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU)


def off(x: mx.array, size: float) -> mx.array:
    """The array, and what comes back to it as a gradient, each element off by at most this part of itself."""
    ahead, back = (mx.random.uniform(-size, size, x.shape) for _ in range(2))
    return x * (1 + back) + mx.stop_gradient(x * (ahead - back))


def norm_off(x: mx.array, y: mx.array, slope: mx.array, size: float) -> mx.array:
    """A norm's result, with a gradient that is off by parts of its terms.

    Of few elements these cancel, all that comes to them, so that `off` finds little left: `slope` is that of the
    elements alone, without their mean and variance.
    """
    more = x * mx.stop_gradient(slope * mx.random.uniform(-size, size, x.shape))
    return off(y + (more - mx.stop_gradient(more)), size)


def slope(x: mx.array, axes: tuple[int, ...], eps: float, gamma: mx.array | None) -> mx.array:
    """Of a norm over these axes."""
    each = mx.rsqrt(mx.var(x, axes, keepdims=True) + eps)
    return each if gamma is None else each * gamma


def layer_off(layer: Any, x: mx.array, y: mx.array, size: float) -> mx.array:
    """The result of a layer of MLX's, off."""
    if isinstance(layer, nn.GroupNorm):
        shape, c = (len(x), -1), x.shape[-1] // layer.num_groups
        parts = (layer.num_groups, c) if layer.pytorch_compatible else (c, layer.num_groups)
        axes = (1, 3) if layer.pytorch_compatible else (1, 2)
        each = mx.broadcast_to(slope(x.reshape(*shape, *parts), axes, layer.eps, None), (len(x), 1, *parts))
        return norm_off(x, y, each.reshape(len(x), 1, 1, -1) * layer.get("weight", mx.array(1.0)), size)
    if isinstance(layer, nn.BatchNorm):
        axes = (0, 1, 2) if layer.training else ()
    elif isinstance(layer, (nn.InstanceNorm, nn.LayerNorm)):
        axes = (1, 2) if isinstance(layer, nn.InstanceNorm) else (3,)
    else:
        axes = ()
    return norm_off(x, y, slope(x, axes, layer.eps, layer.get("weight")), size) if axes else off(y, size)


def largest(a: np.ndarray) -> float:
    """By magnitude."""
    return float(np.abs(a).max(initial=0))


class Drawn:
    """By how much roundings move each result of a run in float32; drawn again for a result that is off by more.

    They are as large as the terms of sums, so they bound what is 0 by cancellation, as the gradient of a bias ahead of
    a norm; no other result is given that room.
    """

    def __init__(self, run: Callable[[], dict[str, np.ndarray]], true: dict[str, np.ndarray], kind: mx.Dtype):
        self._run, self._true, self._kind = run, true, kind
        self._draws: list[dict[str, float]] = []

    def check(self, name: str, got: np.ndarray, where: str = "", *, theirs: float = 0.0, terms: float = 0.0) -> None:
        """Fails where a result is off by more than a few times that, or than `theirs`, by which MLX's is.

        It has two roundings of its own size, and of known terms that it is the mean of, on top.
        """
        true, kind = self._true[name], self._kind
        off = largest(got - true)
        while True:
            moved = max([theirs, *(draw[name] for draw in self._draws)])
            limit = 2 * EPS[kind] * (largest(true) + terms) + _TIMES[kind] * moved
            if off <= limit:
                return
            text = f"{where}{name} is off by {off:.3g}, limit {limit:.3g}; roundings, or MLX, move it by {moved:.3g}"
            assert len(self._draws) < _DRAWS, text
            scale = EPS[kind] / SIZE[kind]
            self._draws.append({name: largest(a - self._true[name]) * scale for name, a in self._run().items()})


def watch(model: nn.Module, seen: Seen) -> None:
    """Has every layer, and every function in a Sequential, return what `seen` makes of it, its input and its result."""
    for module in list(model.modules()):
        if isinstance(module, nn.Sequential):
            module.layers = [a if isinstance(a, nn.Module) else _watched(a, seen) for a in module.layers]
        module.__class__ = type(type(module).__name__, (type(module),), {"__call__": _call(type(module), seen)})


def _call(of: Any, seen: Seen) -> Callable[[Any, mx.array], mx.array]:
    return lambda self, x: seen(self, x, of.__call__(self, x))


def _watched(function: Callable[[mx.array], mx.array], seen: Seen) -> Callable[[mx.array], mx.array]:
    return lambda x: seen(function, x, function(x))


def kinks(model: nn.Module, x: mx.array) -> list[str]:
    """The layers that are given a number where their slope jumps, or several maxima in a window.

    To float32's roundings, so that in 16 bits these are equal. Changes the model.
    """
    met: list[str] = []

    def seen(layer: Any, x: mx.array, y: mx.array) -> mx.array:
        a = np.array(x.astype(mx.float32), np.float64)
        near = 2.0**-21 * (largest(a) + 1)
        at = [0.0] if isinstance(layer, _AT_ZERO) or layer is nn.relu else []
        at += [6.0] if isinstance(layer, nn.ReLU6) else []
        if any((np.abs(a - each) <= near).any() for each in at):
            met.append(type(layer).__name__)
        if isinstance(layer, nn.MaxPool2d) and _tie(layer, a, near):
            met.append("MaxPool2d")
        return y

    watch(model, seen)
    mx.eval(model(x))
    return met


def _tie(layer: Any, a: np.ndarray, near: float) -> bool:
    """Whether some window has two maxima."""
    (high, wide), (down, right) = layer._kernel_size, layer._stride
    padded = np.pad(a, ((0, 0), *layer._padding, (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (high, wide), (1, 2))[:, ::down, ::right]
    each = np.sort(windows.reshape(*windows.shape[:4], -1), -1)
    return high * wide > 1 and bool((each[..., -1] - each[..., -2] <= near).any())
