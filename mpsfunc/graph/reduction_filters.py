"""The filters that reduce rows, columns, channels or space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core.arguments import OPERANDS
from mpsfunc.graph import kinds
from mpsfunc.graph.factory import Filter, filter_of
from mpsfunc.graph.nodes import Call, Kind, Made, Pulled

Function = Callable[..., Any]


def _by_shape(name: str, function: Function, grad: Function) -> Filter:
    """Of sums, whose gradient reads the shape of the images alone."""
    kind = Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(grad(dy, call.x.shape, **call.options)),
    )
    return _filter(kind, function)


def _by_source(name: str, function: Function, grad: Function) -> Filter:
    """Of extremes, whose gradient looks for them in the images."""
    kind = Kind(
        name,
        lambda call: Made((function(call.x, **call.options),)),
        lambda call, made, dy, at: Pulled(grad(dy, call.x, **call.options)),
    )
    return _filter(kind, function)


def _filter(kind: Kind, function: Function) -> Filter:
    op = kind.name.removeprefix("reduce_")
    mps = {"argmax": "ArgumentMax", "argmin": "ArgumentMin"}.get(op, op.title())
    of_channels = f"MPSNNReductionFeatureChannels{mps}Node"
    nodes = f"MPSNNReductionRow{mps}Node, MPSNNReductionColumn{mps}Node, {of_channels}"
    return filter_of(kind, function, of_channels if op.startswith("arg") else nodes, f'{kind.name}(x, "rows")')


reduce_sum = _by_shape("reduce_sum", mf.reduce_sum, mf.reduce_sum_grad)
reduce_mean = _by_shape("reduce_mean", mf.reduce_mean, mf.reduce_mean_grad)
reduce_max = _by_source("reduce_max", mf.reduce_max, mf.reduce_max_grad)
reduce_min = _by_source("reduce_min", mf.reduce_min, mf.reduce_min_grad)
reduce_argmax = _filter(kinds.without_gradient("reduce_argmax", mf.reduce_argmax), mf.reduce_argmax)
reduce_argmin = _filter(kinds.without_gradient("reduce_argmin", mf.reduce_argmin), mf.reduce_argmin)


def _weighted_sum_grad(call: Call, made: Made, dy: mx.array, at: int) -> Pulled:
    x, weights = call.images
    return Pulled(mf.reduce_weighted_sum_grad(dy, x, weights, operand=OPERANDS[at], **call.options))


reduce_weighted_sum = filter_of(
    Kind(
        "reduce_weighted_sum",
        lambda call: Made((mf.reduce_weighted_sum(call.x, call.images[1], **call.options),)),
        _weighted_sum_grad,
    ),
    mf.reduce_weighted_sum,
    "none; MPSNNReduceFeatureChannelsAndWeightsSum is its kernel",
    'reduce_weighted_sum(x, graph.ImageNode("weights"), "channels")',
    sources=("x", "weights"),
)
