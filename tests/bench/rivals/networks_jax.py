"""Residual networks and the plain one in JAX, compiled: functions of arrays by name, since JAX itself has no layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import whole
from . import Runner

Array = jax.Array
Params = dict[str, Array]
BLOCKS = ".layers."


class Reader:
    """A network's arrays by their names in MLX, and the running statistics of a step in training."""

    def __init__(self, params: Params, statistics: Params, training: bool) -> None:
        self.params, self.statistics, self.training, self.moved = params, statistics, training, dict(statistics)

    def convolved(self, name: str, x: Array, stride: int, pad: int) -> Array:
        numbers = ("NHWC", "OHWI", "NHWC")
        pads = [(pad, pad)] * 2
        return lax.conv_general_dilated(
            x, self.params[f"{name}.weight"], (stride,) * 2, pads, dimension_numbers=numbers
        )

    def normalized(self, name: str, x: Array) -> Array:
        """In float32, rounded once, as XLA fuses it anyway."""
        wide = x.astype(jnp.float32)
        mean, var = (self.statistics[f"{name}.running_{of}"].astype(jnp.float32) for of in ("mean", "var"))
        if self.training:
            held = mean, var
            mean, var = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
            count = x.size // x.shape[-1]
            for of, before, now in zip(("mean", "var"), held, (mean, var * count / (count - 1)), strict=True):
                self.moved[f"{name}.running_{of}"] = (0.9 * before + 0.1 * now).astype(x.dtype)
        scale = lax.rsqrt(var + 1e-5) * self.params[f"{name}.weight"]
        return ((wide - mean) * scale + self.params[f"{name}.bias"]).astype(x.dtype)

    def unit(self, name: str, first: int, x: Array, stride: int, pad: int) -> Array:
        """Two neighbours of a Sequential: a convolution and its norm."""
        return self.normalized(f"{name}{BLOCKS}{first + 1}", self.convolved(f"{name}{BLOCKS}{first}", x, stride, pad))


def plain(read: Reader, x: Array, widths: tuple[int, ...] = (64, 64, 128, 128, 256, 256), *_: Any) -> Array:
    at = 0
    for i in range(len(widths)):
        x = jax.nn.relu(read.unit("body", at, x, 1, 1))
        at += 3 + i % 2
        if i % 2:
            pads = ((0, 0), (1, 1), (1, 1), (0, 0))
            zero = np.zeros((), x.dtype)
            x = lax.reduce_window(x, zero, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), pads) / 9
    return x


def resnet(
    read: Reader,
    x: Array,
    depths: tuple[int, ...] = (3, 4, 6, 3),
    widths: tuple[int, ...] = (),
    bottleneck: bool = True,
    num_classes: int = 1000,
    small: bool = False,
) -> Array:
    x = jax.nn.relu(read.unit("stem", 0, x, 1 if small else 2, 1 if small else 3))
    if not small:
        pads = ((0, 0), (1, 1), (1, 1), (0, 0))
        least = np.array(-np.inf, x.dtype)
        x = lax.reduce_window(x, least, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            name, stride, y = f"stages.{stage}{BLOCKS}{i}", 2 if stage and i == 0 else 1, x
            windows = [(1, 0), (stride, 1), (1, 0)] if bottleneck else [(stride, 1), (1, 1)]
            for j, (step, pad) in enumerate(windows):
                y = read.unit(f"{name}.body", 3 * j, y, step, pad)
                y = jax.nn.relu(y) if j + 1 < len(windows) else y
            projected = f"{name}.short{BLOCKS}0.weight" in read.params
            x = jax.nn.relu(y + (read.unit(f"{name}.short", 0, x, stride, 0) if projected else x))
    return x


BODIES: dict[str, Callable[..., Array]] = {"Plain": plain, "ResNet": resnet}


def runner(cell: whole.Cell, weights: Mapping[str, np.ndarray]) -> Runner:
    """Compiled steps of a network with these weights."""
    given, classes = whole.data(cell)
    dtype = jnp.dtype(cell.dtype)
    arrays = {name: jnp.asarray(a, dtype) for name, a in weights.items()}
    statistics = {name: a for name, a in arrays.items() if ".running_" in name}
    params = {name: a for name, a in arrays.items() if name not in statistics}
    x, targets = jnp.asarray(given, dtype), jnp.asarray(classes)
    body, arguments = BODIES[cell.spec.name], cell.spec.arguments
    jax.block_until_ready((params, statistics, x, targets))

    def forward(params: Params, statistics: Params, x: Array) -> tuple[Array, Params]:
        read = Reader(params, statistics, cell.trains)
        features = body(read, x, *arguments).mean((1, 2))
        return features @ params["linear.weight"].T + params["linear.bias"], read.moved

    if cell.trains:
        return _training(forward, params, statistics, x, targets, cell.spec.rate)
    return _inference(forward, params, statistics, x)


def _training(forward: Any, params: Params, statistics: Params, x: Array, classes: Array, rate: float) -> Runner:
    def loss(params: Params, statistics: Params, x: Array, classes: Array) -> tuple[Array, Params]:
        scores, moved = forward(params, statistics, x)
        logs = jax.nn.log_softmax(scores.astype(jnp.float32))
        return -jnp.take_along_axis(logs, classes[:, None], 1).mean(), moved

    def train(params: Params, velocity: Params, statistics: Params, x: Array, classes: Array) -> Any:
        (value, moved), grads = jax.value_and_grad(loss, has_aux=True)(params, statistics, x, classes)
        velocity = jax.tree.map(lambda v, g: whole.MOMENTUM * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity, moved, value

    state = (params, jax.tree.map(jnp.zeros_like, params), statistics)
    step = jax.jit(train, donate_argnums=(0, 1, 2)).lower(*state, x, classes).compile()

    def run(count: int, ahead: bool = False) -> float:
        nonlocal state
        for _ in range(count):
            *state, value = step(*state, x, classes)
            if not ahead:
                jax.block_until_ready(state)
        jax.block_until_ready(state)
        return float(value)

    return Runner(run, lambda: [])


def _inference(forward: Any, params: Params, statistics: Params, x: Array) -> Runner:
    step = (
        jax.jit(lambda params, statistics, x: forward(params, statistics, x)[0]).lower(params, statistics, x).compile()
    )
    outputs: list[np.ndarray] = []

    def run(count: int, ahead: bool = False) -> float:
        for _ in range(count):
            y = step(params, statistics, x)
            if not ahead:
                y.block_until_ready()
        y.block_until_ready()
        if not outputs:
            outputs.append(np.asarray(y.astype(jnp.float32)))
        return 0.0

    return Runner(run, lambda: outputs)


def peak() -> int:
    """Bytes of arrays at most in use since the process began."""
    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])


def reset_peak() -> None:
    """JAX cannot."""
