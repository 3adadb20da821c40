"""The gated linear unit: its kernels, which read both halves of an array where they lie, and their rules."""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import SOFTPLUS, Activation
from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch, Name, Output
from mpsfunc.core.operation import Arrays, Gradients, operation, over_batches
from mpsfunc.core.printing import describe

_MOST = 2**31 - 1


class Spec(NamedTuple):
    """Where everything runs."""

    stream: mx.Stream

    @property
    def softplus(self) -> ActivationSpec:
        """The activation whose slope is a sigmoid."""
        return ActivationSpec(Activation(SOFTPLUS, 1.0, 1.0), self.stream)


def halves(shape: tuple[int, ...], axis: int) -> tuple[int, int, int, int]:
    """The shape as (outer, 2, half, inner) around an axis."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if max(outer, inner) > _MOST:
        raise ValueError(
            f"glu: x is too large; got x.shape={describe(shape)}, expected products of at most {_MOST} before and "
            f"after axis {axis}"
        )
    return outer, 2, shape[axis] // 2, inner


@operation("glu")
def glu(x: mx.array, spec: Spec) -> mx.array:
    """``v * sigmoid(g)`` (outer, half, inner) of the v and g that x (outer, 2, half, inner) has."""
    outer, _, *half = x.shape
    result = (outer, *half), x.dtype

    def kernel() -> tuple[KernelLaunch, ...]:
        return _kernel("glu", ("x",), "y", x, result)

    return launch.launch("glu", {"x": x}, None, (result,), kernel, spec.stream)[0]


@glu.vjp
def _glu_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (glu_grad(cotangents[0], arrays[0], spec),)


@glu.decomposition
def _glu_by_slopes(x: mx.array, spec: Spec) -> mx.array:
    v, g = _parts(x)
    return activation_rules.grad(v, g, spec.softplus)


glu.vmap(over_batches(glu))


@operation("glu_grad")
def glu_grad(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    """The gradient of `glu` by x."""
    result = tuple(x.shape), x.dtype

    def kernel() -> tuple[KernelLaunch, ...]:
        return _kernel("glu_grad", ("dy", "x"), "dx", x, result)

    return launch.launch("glu_grad", {"dy": dy, "x": x}, None, (result,), kernel, spec.stream)[0]


@glu_grad.decomposition
def _glu_grad_by_slopes(dy: mx.array, x: mx.array, spec: Spec) -> mx.array:
    (v, g), on = _parts(x), spec.softplus
    return mx.stack([activation_rules.grad(dy, g, on), activation_rules.second_derivative(v, dy, g, on)], axis=1)


glu_grad.vmap(over_batches(glu_grad))


def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    v, g = (half.squeeze(1) for half in mx.split(x, 2, axis=1))
    return v, g


def _kernel(body: str, reads: tuple[Name, ...], made: str, x: mx.array, result: Output) -> tuple[KernelLaunch, ...]:
    size = x.size // 2
    per_thread = grids.vector_width(x.dtype, x.shape[2] * x.shape[3], size)
    grid, group = grids.pointwise_threads(size // per_thread)
    return (KernelLaunch(body, reads, (made,), (result,), grid, group, None, (("V", per_thread),)),)
