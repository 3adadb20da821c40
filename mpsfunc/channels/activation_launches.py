"""How activations and their derivatives run on a GPU: element by element, from arrays of one shape and dtype."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.core import grids
from mpsfunc.core.launch import KernelLaunch, Name


def neuron(x: mx.array, act: Activation, *, slopes: bool = False) -> tuple[KernelLaunch, ...]:
    """``f(x)`` from x and, if the activation has ``slopes`` a channel, those in the accumulator's dtype."""
    return (_pointwise("neuron", ("x", _slopes(slopes)), "y", x, act),)


def grad(x: mx.array, act: Activation, *, slopes: bool = False) -> tuple[KernelLaunch, ...]:
    """``dy * f'(x)`` from dy, x and, as for `neuron`, slopes."""
    return (_pointwise("neuron_grad", ("dy", "x", _slopes(slopes)), "dx", x, act),)


def neuron_grad_grad(x: mx.array, act: Activation) -> tuple[KernelLaunch, ...]:
    """``u * dy * f''(x)`` from u, dy and x."""
    return (_pointwise("neuron_grad_grad", ("u", "dy", "x"), "r", x, act),)


def neuron_grad_from_output(y: mx.array, act: Activation) -> tuple[KernelLaunch, ...]:
    """``dy * f'(x)`` from dy and ``y = f(x)``, of a relu."""
    return (_pointwise("neuron_grad_from_output", ("dy", "y"), "dz", y, act),)


def _slopes(there: bool) -> Name:
    """What a body reads as slopes: x stands in where an activation has none, and is not read twice."""
    return "slopes" if there else ("slopes", "x")


def _pointwise(body: str, reads: tuple[Name, ...], made: str, x: mx.array, act: Activation) -> KernelLaunch:
    per_thread = grids.vector_width(x.dtype, x.size, x.size)
    grid, group = grids.pointwise_threads(x.size // per_thread)
    template, result = (("V", per_thread), ("N", act.kind)), (tuple(x.shape), x.dtype)
    return KernelLaunch(body, reads, (made,), (result,), grid, group, act.gpu_params, template)
