"""Images of any other size, and the gradients (``MPSNNResizeBilinear``, which has none of its own).

The rules are those of `upsample` with the ratio of the two sizes in the place of the scale.
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


def resize_nearest(
    x: mx.array, out_size: IntOrPair, *, coordinate: CoordinateName = "asymmetric", stream: StreamLike = None
) -> mx.array:
    """Gives images another size by picking pixels.

    Along an axis of length L that becomes D, position j of the result is ``x[floor(j * L / D)]``, or with
    ``coordinate="half_pixel"`` ``x[floor((j + 1/2) * L / D)]``. Both are exact whatever the sizes; PyTorch rounds the
    ratio to float32 first, which moves a position now and then.

    Source: ``interpolate`` of PyTorch with "nearest" and "nearest-exact"; ``Resize`` of ONNX with mode nearest, which
    is "asymmetric" with floor and "half_pixel" with round_prefer_ceil.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, float64 on the CPU, or integers of any size.
        out_size: Size of the result, an int or (y, x).
        coordinate: "asymmetric" (default) or "half_pixel", as above.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images ``(n, *out_size, c)`` of x's dtype.

    Raises:
        TypeError: x is not an array of real numbers, float64 on a GPU, or out_size is not an int.
        ValueError: x is not NHWC, out_size is less than 1 or too large, or coordinate is unknown.

    Example:
        >>> x = mx.array([10, 20, 30, 40]).reshape(1, 1, 4, 1)
        >>> [resize_nearest(x, (1, 3), coordinate=c).reshape(-1).tolist() for c in ("asymmetric", "half_pixel")]
        [[10, 20, 30], [10, 30, 40]]
    """
    return resize_nearest_fwd(x, out_size, coordinate=coordinate, stream=stream)[0]


def resize_nearest_fwd(
    x: mx.array, out_size: IntOrPair, *, coordinate: CoordinateName = "asymmetric", stream: StreamLike = None
) -> tuple[mx.array, ResampleState]:
    """`resize_nearest`, and the state that `resize_nearest_grad` needs. Arguments and errors are its.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_nearest_fwd(mx.ones((1, 4, 4, 1)), 3)
        >>> y.shape, state.op
        ((1, 3, 3, 1), 'resize_nearest')
    """
    op, stream = "resize_nearest", launch.resolve(stream)
    checks.moved_image(op, "x", x, stream=stream)
    state = _state(op, op, x.shape, out_size, False, "clamp", coordinate)
    return resampling.forward(x, state, stream), state


def resize_nearest_state(
    x_shape: Sequence[int], out_size: IntOrPair, *, coordinate: CoordinateName = "asymmetric"
) -> ResampleState:
    """The state of `resize_nearest_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_nearest`, like the errors.
        coordinate: As there.

    Returns:
        The state.

    Example:
        >>> resize_nearest_state((1, 4, 6, 1), 3).cols.n_in
        6
    """
    op = "resize_nearest_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return _state("resize_nearest", op, x_shape, out_size, False, "clamp", coordinate)


def resize_nearest_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_nearest` with respect to its images: each pixel's copies added up, 0 where there is none.

    Args:
        dy: Gradient of the resized images ``(n, *out_size, c)``, floating.
        state: From `resize_nearest_fwd` or `resize_nearest_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = resize_nearest_state((1, 1, 4, 1), (1, 3))
        >>> resize_nearest_grad(mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1), state).reshape(-1)
        array([1, 2, 3, 0], dtype=float32)
    """
    return resampling.gradient("resize_nearest_grad", dy, state, stream)


def resize_bilinear(
    x: mx.array,
    out_size: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> mx.array:
    """Gives images another size by mixing neighbouring pixels linearly.

    As `upsample_bilinear`, with L / D for 1 / s: along an axis of length L that becomes D, position j of the result
    lies at ``(j + 1/2) * L / D - 1/2`` by default, at ``j * (L - 1) / (D - 1)`` with ``align_corners`` (at 0 if D is
    1), or at ``j * L / D`` with ``coordinate="asymmetric"``. Two pixels are read along an axis however much smaller the
    result is: nothing is averaged (PyTorch's ``antialias=False``).

    Source: PyTorch's ``interpolate(size=...)`` with mode "bilinear". ``MPSNNResizeBilinear`` is ``align_corners=True``,
    or else ``coordinate="asymmetric", edge_mode="zero"``; TensorFlow 1's is ``coordinate="asymmetric"``, like ONNX's
    asymmetric linear ``Resize``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        out_size: Size of the result, an int or (y, x).
        align_corners: Corners stay corners. Default False.
        edge_mode: What lies beyond the image: "clamp" (default) repeats the edge, or "zero". With ``align_corners``
            nothing is read there.
        coordinate: "half_pixel" (default) or "asymmetric", as above; not with ``align_corners``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images ``(n, *out_size, c)`` of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, out_size is not an int, or align_corners not a bool.
        ValueError: x is not NHWC, out_size is less than 1 or too large, a name is unknown, or arguments exclude each
            other.

    Example:
        >>> x = mx.array([0.0, 3.0, 6.0, 9.0]).reshape(1, 1, 4, 1)
        >>> resize_bilinear(x, (1, 2)).reshape(-1)
        array([1.5, 7.5], dtype=float32)
    """
    return resize_bilinear_fwd(
        x, out_size, align_corners=align_corners, edge_mode=edge_mode, coordinate=coordinate, stream=stream
    )[0]


def resize_bilinear_fwd(
    x: mx.array,
    out_size: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`resize_bilinear`, and the state that `resize_bilinear_grad` needs. Arguments and errors are its.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_bilinear_fwd(mx.ones((1, 4, 4, 1)), 3, align_corners=True)
        >>> y.shape, state.rows.coordinate
        ((1, 3, 3, 1), 'align_corners')
    """
    op, stream = "resize_bilinear", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = _state(op, op, x.shape, out_size, align_corners, edge_mode, coordinate)
    return resampling.forward(x, state, stream), state


def resize_bilinear_state(
    x_shape: Sequence[int],
    out_size: IntOrPair,
    *,
    align_corners: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: CoordinateName = "half_pixel",
) -> ResampleState:
    """The state of `resize_bilinear_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_bilinear`, like the rest and the errors.
        align_corners: As there.
        edge_mode: As there.
        coordinate: As there.

    Returns:
        The state.

    Example:
        >>> resize_bilinear_state((1, 4, 6, 1), 3).cols.edge
        'clamp'
    """
    op = "resize_bilinear_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return _state("resize_bilinear", op, x_shape, out_size, align_corners, edge_mode, coordinate)


def resize_bilinear_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_bilinear` with respect to its images, the transposed matrix; MPS has none.

    Args:
        dy: Gradient of the resized images ``(n, *out_size, c)``, floating.
        state: From `resize_bilinear_fwd` or `resize_bilinear_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype, 0 at a pixel that no position reads.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = resize_bilinear_state((1, 1, 4, 1), (1, 2))
        >>> resize_bilinear_grad(mx.array([1.0, 2.0]).reshape(1, 1, 2, 1), state).reshape(-1)
        array([0.5, 0.5, 1, 1], dtype=float32)
    """
    return resampling.gradient("resize_bilinear_grad", dy, state, stream)


def _state(
    op: str,
    said_by: str,
    x_shape: Sequence[int],
    out_size: Any,
    align_corners: Any,
    edge_mode: Any,
    coordinate: Any,
) -> ResampleState:
    size = pair(said_by, "out_size", out_size, 1)
    how = resampling.coordinate_of(said_by, align_corners, coordinate)
    return resampling.state(op, x_shape, size, how, edge_mode, said_by=said_by)
