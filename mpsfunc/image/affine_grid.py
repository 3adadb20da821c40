"""Grids of affine maps for `grid_sample`, and their gradient.

These are a few products for each position, made of MLX's own operations, which have the rules that they need.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import pair
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.operation import operation
from mpsfunc.image.grid_sample import check_lengths
from mpsfunc.windows.placement import IntOrPair


def affine_grid(
    theta: mx.array, out_size: IntOrPair, *, align_corners: bool = False, stream: StreamLike = None
) -> mx.array:
    """The grid of an affine map, for `grid_sample` with "normalized" coordinates.

    The result's pixel in row oh and column ow is sampled at ``theta[n] @ (x, y, 1)``, where (x, y) is the centre of
    that pixel: ``x = (2 ow + 1) / w - 1`` and ``y = (2 oh + 1) / h - 1``, or with ``align_corners``
    ``x = 2 ow / (w - 1) - 1`` and ``y = 2 oh / (h - 1) - 1``, which are 0 along an axis of one pixel.

    Source: PyTorch's ``affine_grid``.

    Args:
        theta: Maps (n, 2, 3), one row for x and one for y; float32, float16, bfloat16, or float64 on the CPU.
        out_size: Size of the result, an int or (y, x).
        align_corners: As for `grid_sample`; pass the same to both. Default False.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A grid (n, y, x, 2) of theta's dtype; sums are float32 (float64 for float64) and rounded once.

    Raises:
        TypeError: theta is not a floating array, float64 on a GPU, out_size is not an int, or align_corners not a bool.
        ValueError: theta is not (n, 2, 3), or out_size is less than 1 or too large.

    Example:
        >>> affine_grid(mx.array([[[2.0, 0, 1], [0, 1, 0]]]), (1, 2)).reshape(2, 2)
        array([[0, 0],
               [2, 0]], dtype=float32)
    """
    op, stream = "affine_grid", launch.resolve(stream)
    checks.array(op, "theta", theta, stream=stream)
    checks.shape(op, "theta", theta, ("n", 2, 3), "not affine maps")
    height, width = pair(op, "out_size", out_size, 1)
    check_lengths(op, "result", height, width)
    checks.image_shape(op, "output shape", (1, height, width, 2))
    aligned = checks.switch(op, "align_corners", align_corners)
    return _grid(theta, _Spec(height, width, aligned, stream))


def affine_grid_grad(dy: mx.array, *, align_corners: bool = False, stream: StreamLike = None) -> mx.array:
    """Gradient of `affine_grid` with respect to its maps.

    Args:
        dy: Gradient of the grid (n, y, x, 2), as `grid_sample_grad_grid` returns it; floating.
        align_corners: As for `affine_grid`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, 2, 3) of dy's dtype; sums are float32 (float64 for float64) and rounded once.

    Raises:
        TypeError: dy is not a floating array, float64 on a GPU, or align_corners not a bool.
        ValueError: dy is not (n, y, x, 2), or has no pixels.

    Example:
        >>> affine_grid_grad(mx.array([[1.0, 10], [2, 20]]).reshape(1, 1, 2, 2))
        array([[[0.5, 0, 3],
                [5, 0, 30]]], dtype=float32)
    """
    op, stream = "affine_grid_grad", launch.resolve(stream)
    checks.image(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, ("n", "y", "x", 2), "not a gradient of a grid")
    aligned = checks.switch(op, "align_corners", align_corners)
    _, height, width, _ = dy.shape
    return _grad(dy, _Spec(height, width, aligned, stream))


class _Spec(NamedTuple):
    """Pixels of the result, where their middles lie, and where to run."""

    height: int
    width: int
    aligned: bool
    stream: mx.Stream

    def middles(self, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Of rows and of columns."""
        return _middles(self.height, self.aligned, dtype), _middles(self.width, self.aligned, dtype)


# Operations, which a compilation without shapes refuses: it ends the process where MLX fuses these sums.
@operation("affine_grid")
def _grid(theta: mx.array, spec: _Spec) -> mx.array:
    """The places of all pixels under each map."""
    return _grid_by_mlx(theta, spec)


@_grid.decomposition
def _grid_by_mlx(theta: mx.array, spec: _Spec) -> mx.array:
    wide = theta.astype(launch.accumulator(theta.dtype)).reshape(theta.shape[0], 1, 1, 2, 3)
    y, x = spec.middles(wide.dtype)
    along_x, along_y, shift = (wide[..., i] for i in range(3))
    places = along_x * x.reshape(1, 1, -1, 1) + (along_y * y.reshape(1, -1, 1, 1) + shift)
    return places.astype(theta.dtype)


@operation("affine_grid_grad")
def _grad(dy: mx.array, spec: _Spec) -> mx.array:
    """The gradient of the maps."""
    return _grad_by_mlx(dy, spec)


@_grad.decomposition
def _grad_by_mlx(dy: mx.array, spec: _Spec) -> mx.array:
    wide = dy.astype(launch.accumulator(dy.dtype))
    y, x = spec.middles(wide.dtype)
    of_rows, of_cols = wide.sum(2), wide.sum(1)
    sums = [(of_cols * x.reshape(1, -1, 1)).sum(1), (of_rows * y.reshape(1, -1, 1)).sum(1), of_rows.sum(1)]
    return mx.stack(sums, axis=-1).astype(dy.dtype)


def _middles(length: int, align_corners: bool, dtype: mx.Dtype) -> mx.array:
    """Where the centres of so many pixels lie between -1 and 1."""
    at = mx.arange(length, dtype=dtype)
    return (2 * at + (1 - length)) / (max(length - 1, 1) if align_corners else length)
