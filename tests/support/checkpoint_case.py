"""What the tests of checkpoints share: functions that draw, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mpsfunc as mf

X = mx.arange(1.0, 65.0)


def drop(x: mx.array) -> mx.array:
    """Our random function."""
    return mf.dropout(x, keep_probability=0.5)


def noise(x: mx.array) -> mx.array:
    """MLX's own random functions, more than one."""
    return x * mx.random.bernoulli(0.5, x.shape) * mx.random.uniform(shape=x.shape)


def both(x: mx.array) -> mx.array:
    """MLX's random functions between ours."""
    return drop(mx.sin(noise(drop(x))))


DRAWING = pytest.mark.parametrize("function", [drop, noise, both])


def state() -> mx.array:
    """MLX's random state as it is now."""
    drawn: Any = mx.random.state
    return mx.array(drawn[0])


def seeded(function: Callable[..., Any], *arrays: mx.array) -> tuple[Any, mx.array]:
    """What a function makes from seed 3, and the random state that it leaves."""
    mx.random.seed(3)
    made = function(*arrays)
    mx.eval(made)
    return made, state()


def alike(a: Any, b: Any) -> bool:
    """Whether two trees hold the same; on a GPU stock layers and compiled chains round where a checkpoint cuts them."""
    pairs = zip(tree_flatten(a), tree_flatten(b), strict=True)
    rtol = 1e-6 if mx.default_device() == mx.Device(mx.cpu) else 1e-4
    return all(np.allclose(v, w, rtol, rtol / 100) if isinstance(v, mx.array) else v == w for (_, v), (_, w) in pairs)
