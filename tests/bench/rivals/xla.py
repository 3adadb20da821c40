"""JAX, compiled, on NHWC arrays."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..problems import EPS, Problem
from . import Call, Side

_PARAMETERS = ("gamma", "beta")


def avg_pool(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda x: [_pooled(p, x)], a.x)


def avg_pool_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda dy: jax.linear_transpose(lambda x: _pooled(p, x), a.x)(dy), a.dy)


def bn_forward(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda *args: [_normalized(*args)], a.x, a.gamma, a.beta)


def bn_backward(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda dy, *args: jax.vjp(_normalized, *args)[1](dy), a.dy, a.x, a.gamma, a.beta)


def conv(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda x, w: [_convolved(p, x, w)], a.x, a.w)


def conv_grad_input(p: Problem, a: SimpleNamespace) -> Call:
    return _compiled(lambda dy, w: jax.linear_transpose(lambda x: _convolved(p, x, w), a.x)(dy), a.dy, a.w)


def conv_grad_weights(p: Problem, a: SimpleNamespace) -> Call:
    def widened(dy: jax.Array, x: jax.Array) -> list[jax.Array]:
        (dw,) = jax.linear_transpose(lambda w: _convolved(p, x, w), a.w)(dy)
        return [dw.astype(jnp.float32)]  # as the state of ours holds it

    return _compiled(widened, a.dy, a.x)


def _compiled(function: Any, *args: jax.Array) -> Call:
    compiled = jax.jit(function)
    return lambda: list(compiled(*args))


def _pooled(p: Problem, x: jax.Array) -> jax.Array:
    size, stride, sides = p.kernel_size, p.stride, (p.padding, p.padding)
    padding = ((0, 0), sides, sides, (0, 0))
    total = lax.reduce_window(x, np.zeros((), x.dtype), lax.add, (1, size, size, 1), (1, stride, stride, 1), padding)
    return total / (size * size)


def _normalized(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean, var = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
    return ((wide - mean) * lax.rsqrt(var + EPS) * gamma + beta).astype(x.dtype)


def _convolved(p: Problem, x: jax.Array, w: jax.Array) -> jax.Array:
    numbers = ("NHWC", "OHWI", "NHWC")
    sides = [(p.padding, p.padding)] * 2
    how = {"rhs_dilation": (p.dilation, p.dilation), "feature_group_count": p.groups}
    return lax.conv_general_dilated(x, w, (p.stride, p.stride), sides, dimension_numbers=numbers, **how)


# Sides --------------------------------------------------------------------------------------------------


def side() -> Side:
    """JAX on its default device."""
    return Side("JAX", sys.modules[__name__], place, run, answer)


def place(arrays: SimpleNamespace, dtype: str) -> SimpleNamespace:
    """Copies to JAX."""
    dtypes = {name: jnp.float32 if name in _PARAMETERS else dtype for name in vars(arrays)}
    return SimpleNamespace(**{name: jnp.asarray(value, dtypes[name]) for name, value in vars(arrays).items()})


def run(call: Call, times: int) -> None:
    """Calls in flight together, to the end."""
    jax.block_until_ready([call() for _ in range(times)])


def answer(op: str, outputs: list[Any]) -> list[np.ndarray]:
    """To NumPy."""
    return [np.asarray(out, np.float64) for out in outputs]
