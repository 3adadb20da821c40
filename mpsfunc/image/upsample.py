"""Enlarging by whole factors, and the gradients (``MPSCNNUpsamplingNearest``, ``MPSCNNUpsamplingBilinear``).

Both are matrices for each axis, and a gradient is the transposed matrix; derivatives of every order are one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import pair
from mpsfunc.core.launch import StreamLike
from mpsfunc.image import resampling
from mpsfunc.image.resampling import CoordinateName
from mpsfunc.image.resampling import ResampleState as ResampleState
from mpsfunc.windows.axis import EdgeMode
from mpsfunc.windows.placement import IntOrPair


def upsample_nearest(x: mx.array, scale: IntOrPair, *, stream: StreamLike = None) -> mx.array:
    """Repeats each pixel ``scale`` times along each axis.

    ``y[n, j, i, c] = x[n, j // sy, i // sx, c]``.

    Source: ``MPSCNNUpsamplingNearest``; ``interpolate(mode="nearest")`` of PyTorch.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, float64 on the CPU, or integers of any size.
        scale: The factor, an int or (y, x), at least 1; 1 copies.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h * sy, w * sx, c) of x's dtype.

    Raises:
        TypeError: x is not an array of real numbers, float64 on a GPU, or scale is not an int.
        ValueError: x is not NHWC, scale is less than 1, or the result is too large.

    Example:
        >>> x = mx.array([[1, 2], [3, 4]]).reshape(1, 2, 2, 1)
        >>> upsample_nearest(x, (1, 2)).reshape(2, 4)
        array([[1, 1, 2, 2],
               [3, 3, 4, 4]], dtype=int32)
    """
    return upsample_nearest_fwd(x, scale, stream=stream)[0]


def upsample_nearest_fwd(x: mx.array, scale: IntOrPair, *, stream: StreamLike = None) -> tuple[mx.array, ResampleState]:
    """`upsample_nearest`, and the state that `upsample_nearest_grad` needs. Arguments and errors are the same.

    Returns:
        The enlarged images and the state.

    Example:
        >>> y, state = upsample_nearest_fwd(mx.ones((1, 2, 3, 1)), 2)
        >>> y.shape, state.op
        ((1, 4, 6, 1), 'upsample_nearest')
    """
    op, stream = "upsample_nearest", launch.resolve(stream)
    checks.moved_image(op, "x", x, stream=stream)
    state = _state(op, op, x.shape, scale)
    return resampling.forward(x, state, stream), state


def upsample_nearest_state(x_shape: Sequence[int], scale: IntOrPair) -> ResampleState:
    """The state of `upsample_nearest_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        scale: As for `upsample_nearest`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or scale is not an int.
        ValueError: x_shape is not (n, h, w, c), scale is less than 1, or the result is too large.

    Example:
        >>> upsample_nearest_state((1, 2, 3, 1), 2).rows.n_out
        4
    """
    x_shape = checks.shape_of_images("upsample_nearest_state", "x_shape", x_shape)
    return _state("upsample_nearest", "upsample_nearest_state", x_shape, scale)


def upsample_nearest_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `upsample_nearest` with respect to its images: the sum over each pixel's block.

    Source: ``MPSCNNUpsamplingNearestGradient``, whose header draws two entries of its picture wrong; its formulas are
    these sums.

    Args:
        dy: Gradient of the enlarged images (n, h * sy, w * sx, c), floating.
        state: From `upsample_nearest_fwd` or `upsample_nearest_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = upsample_nearest_state((1, 2, 2, 1), 2)
        >>> upsample_nearest_grad(mx.arange(16.0).reshape(1, 4, 4, 1), state).reshape(2, 2)
        array([[10, 18],
               [42, 50]], dtype=float32)
    """
    return resampling.gradient("upsample_nearest_grad", dy, state, stream)


def upsample_bilinear(
    x: mx.array,
    scale: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> mx.array:
    """Interpolates neighbouring pixels linearly, so that images become ``scale`` times as large.

    Along an axis of length L, position j of the result lies at ``u`` in the source and, with ``f = u - floor(u)``, is
    ``(1 - f) * x[floor(u)] + f * x[floor(u) + 1]``, where

    - ``u = (j + 1/2) / s - 1/2`` by default;
    - ``u = j * (L - 1) / (s * L - 1)`` with ``align_corners``;
    - ``u = j / s`` with ``coordinate="asymmetric"``.

    A pixel of weight 0 is not read, so infinity and NaN only affect positions where they have a weight. Sums are
    float32 (float64 for float64 images) and rounded once.

    Source: PyTorch's ``interpolate`` with mode "bilinear". ``MPSCNNUpsamplingBilinear`` is ``align_corners=True``, or
    else ``coordinate="asymmetric", edge_mode="zero"``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        scale: The factor, an int or (y, x), at least 1; 1 copies.
        align_corners: Whether the first and last pixels of both images have the same centres. Default False.
        edge_mode: Values outside the image: "clamp" (default) repeats the edge; with "zero" the last ``s - 1`` rows and
            columns fade out, or with half pixels ``s // 2`` on each side. Not used with ``align_corners``.
        coordinate: "half_pixel" (default) or "asymmetric", as above; not with ``align_corners``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h * sy, w * sx, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, scale is not an int, or align_corners not a bool.
        ValueError: x is not NHWC, scale is less than 1, a name is unknown, arguments exclude each other, or the result
            is too large.

    Example:
        >>> x = mx.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
        >>> upsample_bilinear(x, 2).reshape(4, 4)
        array([[1, 1.25, 1.75, 2],
               [1.5, 1.75, 2.25, 2.5],
               [2.5, 2.75, 3.25, 3.5],
               [3, 3.25, 3.75, 4]], dtype=float32)
    """
    return upsample_bilinear_fwd(
        x, scale, align_corners=align_corners, edge_mode=edge_mode, coordinate=coordinate, stream=stream
    )[0]


def upsample_bilinear_fwd(
    x: mx.array,
    scale: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`upsample_bilinear`, and the state that `upsample_bilinear_grad` needs. Arguments and errors are the same.

    Returns:
        The enlarged images and the state.

    Example:
        >>> y, state = upsample_bilinear_fwd(mx.ones((1, 2, 2, 1)), 2, align_corners=True)
        >>> mx.round(upsample_bilinear_grad(y, state).reshape(2, 2), 4)
        array([[4, 4],
               [4, 4]], dtype=float32)
    """
    op, stream = "upsample_bilinear", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = _state(op, op, x.shape, scale, align_corners, edge_mode, coordinate)
    return resampling.forward(x, state, stream), state


def upsample_bilinear_state(
    x_shape: Sequence[int],
    scale: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
) -> ResampleState:
    """The state of `upsample_bilinear_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        scale: As for `upsample_bilinear`, like the rest.
        align_corners: As for `upsample_bilinear`.
        edge_mode: As for `upsample_bilinear`.
        coordinate: As for `upsample_bilinear`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or scale is not an int or align_corners not a bool.
        ValueError: x_shape is not (n, h, w, c), scale is less than 1, a name is unknown, arguments exclude
            each other, or the result is too large.

    Example:
        >>> upsample_bilinear_state((8, 4, 6, 3), (2, 3)).cols.n_out
        18
    """
    op = "upsample_bilinear_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return _state("upsample_bilinear", op, x_shape, scale, align_corners, edge_mode, coordinate)


def upsample_bilinear_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `upsample_bilinear` with respect to its images.

    ``dx[i]`` adds up ``A[j, i] * dy[j]`` along each axis, with the weights ``A`` of `upsample_bilinear`: those of
    pixels outside the image are dropped with edge mode "zero", and added to those of the edge pixel with "clamp".

    Source: ``MPSCNNUpsamplingBilinearGradient``. MPS's class has no ``alignCorners``; here it is the state's.

    Args:
        dy: Gradient of the enlarged images (n, h * sy, w * sx, c), floating.
        state: From `upsample_bilinear_fwd` or `upsample_bilinear_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = upsample_bilinear_state((1, 2, 2, 1), 2)
        >>> upsample_bilinear_grad(mx.arange(16.0).reshape(1, 4, 4, 1), state).reshape(2, 2)
        array([[12.5, 19.5],
               [40.5, 47.5]], dtype=float32)
    """
    return resampling.gradient("upsample_bilinear_grad", dy, state, stream)


def _state(
    op: str,
    said_by: str,
    x_shape: Sequence[int],
    scale: Any,
    align_corners: Any = False,
    edge_mode: Any = "clamp",
    coordinate: Any = "asymmetric",
) -> ResampleState:
    sy, sx = pair(said_by, "scale", scale, 1)
    how = resampling.coordinate_of(said_by, align_corners, coordinate)
    return resampling.state(op, x_shape, (x_shape[1] * sy, x_shape[2] * sx), how, edge_mode, said_by=said_by)
