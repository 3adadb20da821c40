"""The networks in JAX, compiled: functions of a list of parameters, since JAX itself has no layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..networks import LEARNING_RATE, MOMENTUM, STAGES, Setting, Step

Array = jax.Array


class Reader:
    """Hands out parameters in the order in which layers stand."""

    def __init__(self, params: dict[str, list[Array]]) -> None:
        self.conv, self.scale, self.shift = (iter(params[kind]) for kind in ("conv", "scale", "shift"))

    def convolved(self, x: Array, stride: int = 1, pad: int = 1) -> Array:
        w = next(self.conv)
        numbers = ("NHWC", "OIHW", "NHWC")
        return lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=numbers)

    def normalized(self, x: Array) -> Array:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(var + 1e-5) * next(self.scale) + next(self.shift)


def averaged(x: Array) -> Array:
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), pads) / 9


def small(read: Reader, x: Array) -> Array:
    for i in range(6):
        x = jax.nn.relu(read.normalized(read.convolved(x)))
        x = averaged(x) if i % 2 else x
    return x


def resnet20(read: Reader, x: Array) -> Array:
    x = jax.nn.relu(read.normalized(read.convolved(x)))
    for stage in range(len(STAGES)):
        for i in range(3):
            stride = 2 if i == 0 and stage else 1
            y = jax.nn.relu(read.normalized(read.convolved(x, stride)))
            y = read.normalized(read.convolved(y))
            short = read.normalized(read.convolved(x, stride, 0)) if stride > 1 else x
            x = jax.nn.relu(y + short)
    return x


def step(setting: Setting, parameters: dict[str, list[np.ndarray]], x: np.ndarray, labels: np.ndarray) -> Step:
    """A compiled training step of a network with the parameters of MLX's."""
    body = {"small": small, "resnet20": resnet20}[setting.network]
    widths = [len(w) for w in parameters["conv"]]
    params: dict[str, list[Array]] = {
        "conv": [jnp.asarray(w) for w in parameters["conv"]],
        "scale": [jnp.ones(width) for width in widths],
        "shift": [jnp.zeros(width) for width in widths],
        "linear": [jnp.asarray(parameters["linear"][0]), jnp.asarray(parameters["bias"][0])],
    }
    images, targets = jnp.asarray(x), jnp.asarray(labels)

    def loss(params: dict[str, list[Array]]) -> Array:
        features = body(Reader(params), images).mean((1, 2))
        scores = features @ params["linear"][0].T + params["linear"][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], 1).mean()

    @jax.jit
    def train(params: Any, velocity: Any) -> tuple[Any, Any, Array]:
        value, grads = jax.value_and_grad(loss)(params)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - LEARNING_RATE * v, params, velocity), velocity, value

    state = (params, jax.tree.map(jnp.zeros_like, params))

    def times(count: int) -> float:
        nonlocal state
        for _ in range(count):
            *state, value = train(*state)
        jax.block_until_ready(state)
        return float(value)

    return Step(times, lambda: {})


def peak() -> int:
    """Bytes of arrays at most in use since the process began."""
    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
