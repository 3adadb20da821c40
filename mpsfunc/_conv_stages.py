"""How convolutions and their gradients run on a GPU: as tiles of a matrix product, or channel by channel."""

from __future__ import annotations

import math
from typing import Protocol

import mlx.core as mx

from mpsfunc import _launch
from mpsfunc._launch import Stage
from mpsfunc.window import Axis

Shape = tuple[int, ...]


class Spec(Protocol):
    """Where the windows sit, and how channels group."""

    @property
    def rows(self) -> Axis: ...
    @property
    def cols(self) -> Axis: ...
    @property
    def groups(self) -> int: ...


# The tiled bodies give a threadgroup of 256 a tile of 64 by 64.
_TILE, _GROUP = 64, (256, 1, 1)
# Floats that partial weight gradients may take.
_PARTIALS = 4 * 2**20


def grad_weights_stages(spec: Spec, dy_shape: Shape, x_shape: Shape, dtype: mx.Dtype) -> tuple[Stage, ...]:
    """The weights' gradient, of shape (o, kh, kw, c / groups), from dy and x."""
    rows, cols, groups = spec.rows, spec.cols, spec.groups
    out, width = dy_shape[3], x_shape[3] // groups
    depth = rows.size * cols.size * width
    down, across = _tiles(out // groups), _tiles(depth)
    pixels = dy_shape[0] * rows.n_out * cols.n_out
    parts = max(1, min(_launch.FILL // (down * across * groups), _PARTIALS // (out * depth), pixels // 256))
    partial = ((parts, out * depth), mx.float32)
    wide = width % 4 == 0 and out // groups % 4 == 0 and min(math.prod(dy_shape), math.prod(x_shape)) >= 8
    first = Stage(
        "conv_grad_weights",
        ("dy", "x"),
        ("partial",),
        (partial,),
        _launch.tiles(down, across, groups * parts),
        _GROUP,
        (*rows, *cols, groups, parts),
        (("V", 4 if wide else 1),),
    )
    return first, _summed(spec, out, width)


def _tiles(n: int) -> int:
    return -(-n // _TILE)


def _summed(spec: Spec, out: int, width: int) -> Stage:
    """The stage that adds partial gradients of weights."""
    result = ((out, spec.rows.size, spec.cols.size, width), mx.float32)
    return _launch.sum_partials(math.prod(result[0]))._replace(results=(result,))
