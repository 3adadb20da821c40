"""How activations and their derivatives run on a GPU: element by element, from arrays of one shape and dtype."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels.activation_spec import Activation
from mpsfunc.core import grids
from mpsfunc.core.launch import Stage


def neuron(x: mx.array, act: Activation, *, slopes: bool = False) -> tuple[Stage, ...]:
    """``f(x)`` from x and, if the activation has ``slopes`` a channel, those in the accumulator's dtype."""
    return (_pointwise("neuron", ("x", "slopes"), "y", x, act, (0, 1) if slopes else (0, 0)),)


def grad(x: mx.array, act: Activation, *, slopes: bool = False) -> tuple[Stage, ...]:
    """``dy * f'(x)`` from dy, x and, as for `neuron`, slopes."""
    return (_pointwise("neuron_grad", ("dy", "x", "slopes"), "dx", x, act, (0, 1, 2) if slopes else (0, 1, 0)),)


def curve(x: mx.array, act: Activation) -> tuple[Stage, ...]:
    """``u * dy * f''(x)`` from u, dy and x."""
    return (_pointwise("neuron_curve", ("u", "dy", "x"), "r", x, act),)


def pull(y: mx.array, act: Activation) -> tuple[Stage, ...]:
    """``dy * f'(x)`` from dy and ``y = f(x)``, of a relu."""
    return (_pointwise("neuron_pull", ("dy", "y"), "dz", y, act),)


def _pointwise(
    body: str, inputs: tuple[str, ...], made: str, x: mx.array, act: Activation, reads: tuple[int, ...] = ()
) -> Stage:
    """The one launch. Where an activation has no slopes, the first array stands in for them and is not read twice."""
    per_thread = grids.lanes(x.dtype, x.size, x.size)
    grid, group = grids.pointwise_threads(x.size // per_thread)
    template, result = (("V", per_thread), ("N", act.kind)), (tuple(x.shape), x.dtype)
    return Stage(body, inputs, (made,), (result,), grid, group, act.bits, template, reads)
