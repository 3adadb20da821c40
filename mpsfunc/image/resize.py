"""Images of any other size, and the gradients (``MPSNNResizeBilinear``, which has none of its own).

The rules are those of `upsample` with the ratio of the two sizes, or any factor, instead of the scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.image import resampling
from mpsfunc.image.resampling import NEAREST_COORDINATES, FloatOrPair, NearestCoordinateName, ResizeCoordinateName
from mpsfunc.image.resampling import ResampleState as ResampleState
from mpsfunc.windows.axis import EdgeMode
from mpsfunc.windows.placement import IntOrPair


def resize_nearest(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    coordinate: NearestCoordinateName = "asymmetric",
    stream: StreamLike = None,
) -> mx.array:
    """Resizes images by copying the nearest pixels.

    Along an axis of length L that becomes D, position j of the result is ``x[floor(j * L / D)]``, or with
    ``coordinate="half_pixel"`` ``x[floor((j + 1/2) * L / D)]``; with a scale s, D is ``floor(L * s)`` and 1 / s
    replaces L / D, except, as in PyTorch, for "asymmetric" if D is L or 2 L. Positions are exact; PyTorch rounds the
    ratio to float32 first, which sometimes moves a position. "mlx" is what `mlx.nn.Upsample` does for a factor that is
    not an integer: it computes in float32, always with L / D, half-pixel with halves rounded to the even pixel if D is
    more than L, else asymmetric.

    Source: ``interpolate`` of PyTorch with "nearest" and "nearest-exact"; ``Resize`` of ONNX with mode nearest, which
    is "asymmetric" with floor and "half_pixel" with round_prefer_ceil.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, float64 on the CPU, or integers of any size.
        out_size: Size of the result, an int or (y, x).
        scale: Instead of a size: the factor by which the result is larger, any number above 0 or (y, x).
        coordinate: "asymmetric" (default), "half_pixel" or "mlx", as above.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images ``(n, *out_size, c)`` of x's dtype.

    Raises:
        TypeError: x is not an array of real numbers, float64 on a GPU, out_size is not an int, or scale is not a
            number.
        ValueError: x is not NHWC, the result would have no pixels or too many, or coordinate is unknown; there is
            neither a size nor a scale, or both.

    Example:
        >>> x = mx.array([10, 20, 30, 40]).reshape(1, 1, 4, 1)
        >>> [
        ...     resize_nearest(x, (1, 3), coordinate=c).reshape(-1).tolist()
        ...     for c in ("asymmetric", "half_pixel")
        ... ]
        [[10, 20, 30], [10, 30, 40]]
    """
    return resize_nearest_fwd(x, out_size, scale=scale, coordinate=coordinate, stream=stream)[0]


def resize_nearest_fwd(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    coordinate: NearestCoordinateName = "asymmetric",
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`resize_nearest`, and the state that `resize_nearest_grad` needs. Arguments and errors are the same.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_nearest_fwd(mx.ones((1, 4, 4, 1)), 3)
        >>> y.shape, state.op
        ((1, 3, 3, 1), 'resize_nearest')
    """
    op, stream = "resize_nearest", launch.resolve(stream)
    checks.moved_image(op, "x", x, stream=stream)
    state = resampling.resized_state(op, op, x.shape, out_size, scale, names=NEAREST_COORDINATES, coordinate=coordinate)
    return resampling.forward(x, state, stream), state


def resize_nearest_state(
    x_shape: Sequence[int],
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    coordinate: NearestCoordinateName = "asymmetric",
) -> ResampleState:
    """The state of `resize_nearest_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_nearest`, like the rest.
        scale: As for `resize_nearest`.
        coordinate: As for `resize_nearest`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or out_size is not an int or scale is not a number.
        ValueError: x_shape is not (n, h, w, c), the result would have no pixels or too many,
            coordinate is unknown, or there is neither a size nor a scale, or both.

    Example:
        >>> resize_nearest_state((1, 4, 6, 1), 3).cols.n_in
        6
    """
    op = "resize_nearest_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return resampling.resized_state(
        "resize_nearest", op, x_shape, out_size, scale, names=NEAREST_COORDINATES, coordinate=coordinate
    )


def resize_nearest_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_nearest` with respect to its images: the sum over each pixel's copies, 0 if there is none.

    ``dx[i]`` is the sum of ``dy[j]`` over all positions j that read pixel i, along each axis.

    Source: none in MPS; PyTorch's ``interpolate`` with mode "nearest", under autograd.

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
        >>> resize_nearest_grad(
        ...     mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1), state
        ... ).reshape(-1)
        array([1, 2, 3, 0], dtype=float32)
    """
    return resampling.gradient("resize_nearest_grad", dy, state, stream)


def resize_bilinear(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: ResizeCoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> mx.array:
    """Resizes images by linear interpolation.

    As `upsample_bilinear`, with L / D for 1 / s: along an axis of length L that becomes D, position j of the result
    lies at ``u = (j + 1/2) * L / D - 1/2`` by default, at ``j * (L - 1) / (D - 1)`` with ``align_corners`` (at 0 if D
    is 1), at ``j * L / D`` with ``coordinate="asymmetric"``, or at ``(j - (D - 1) / 2) * L / D + (L - 1) / 2`` with
    "half_pixel_symmetric". With a scale s, D is ``floor(L * s)``, and 1 / s replaces L / D; but half-pixel without
    antialias is a copy if D is L, as in PyTorch. Two pixels are read along an axis however much smaller the result is.
    ``antialias`` uses all pixels that are nearer than a step: pixel i has the weight
    ``max(0, 1 - |i - u| / max(1, L / D))``, divided by the sum of those in the image.

    Source: PyTorch's ``interpolate`` with mode "bilinear". ``MPSNNResizeBilinear`` is ``align_corners=True``,
    or else ``coordinate="asymmetric", edge_mode="zero"``; TensorFlow 1's is ``coordinate="asymmetric"``, like ONNX's
    asymmetric linear ``Resize``. `mlx.nn.Upsample` is "half_pixel_symmetric", ONNX's word.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        out_size: Size of the result, an int or (y, x).
        scale: Instead of a size: the factor by which the result is larger, any number above 0 or (y, x).
        align_corners: Whether the first and last pixels of both images have the same centres. Default False.
        antialias: Whether to filter when the result is smaller, as above; not with ``align_corners``, zeros or
            "asymmetric". Default False.
        edge_mode: Values outside the image: "clamp" (default) repeats the edge, or "zero". Not used with
            ``align_corners``.
        coordinate: "half_pixel" (default), "half_pixel_symmetric" or "asymmetric", as above; not with
            ``align_corners``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images ``(n, *out_size, c)`` of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, out_size is not an int, scale is not a number, or
            align_corners or antialias not a bool.
        ValueError: x is not NHWC, the result would have no pixels or too many, a name is unknown, or arguments exclude
            each other; there is neither a size nor a scale, or both.

    Example:
        >>> x = mx.array([0.0, 3.0, 6.0, 9.0]).reshape(1, 1, 4, 1)
        >>> resize_bilinear(x, (1, 2)).reshape(-1)
        array([1.5, 7.5], dtype=float32)
        >>> resize_bilinear(x, scale=(1, 0.5), antialias=True).reshape(-1)
        array([2.14286, 6.85714], dtype=float32)
    """
    return resize_bilinear_fwd(
        x,
        out_size,
        scale=scale,
        align_corners=align_corners,
        antialias=antialias,
        edge_mode=edge_mode,
        coordinate=coordinate,
        stream=stream,
    )[0]


def resize_bilinear_fwd(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: ResizeCoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`resize_bilinear`, and the state that `resize_bilinear_grad` needs. Arguments and errors are the same.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_bilinear_fwd(mx.ones((1, 4, 4, 1)), 3, align_corners=True)
        >>> y.shape, state.rows.coordinate
        ((1, 3, 3, 1), 'align_corners')
    """
    op, stream = "resize_bilinear", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = resampling.resized_state(
        op,
        op,
        x.shape,
        out_size,
        scale,
        align_corners=align_corners,
        antialias=antialias,
        edge_mode=edge_mode,
        coordinate=coordinate,
    )
    return resampling.forward(x, state, stream), state


def resize_bilinear_state(
    x_shape: Sequence[int],
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    edge_mode: EdgeMode = "clamp",
    coordinate: ResizeCoordinateName = "half_pixel",
) -> ResampleState:
    """The state of `resize_bilinear_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_bilinear`, like the rest.
        scale: As for `resize_bilinear`.
        align_corners: As for `resize_bilinear`.
        antialias: As for `resize_bilinear`.
        edge_mode: As for `resize_bilinear`.
        coordinate: As for `resize_bilinear`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, out_size is not an int, scale is not a number, or
            align_corners or antialias not a bool.
        ValueError: x_shape is not (n, h, w, c), the result would have no pixels or too many, a name is
            unknown, or arguments exclude each other; there is neither a size nor a scale, or both.

    Example:
        >>> resize_bilinear_state((1, 4, 6, 1), 3).cols.edge
        'clamp'
    """
    op = "resize_bilinear_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return resampling.resized_state(
        "resize_bilinear",
        op,
        x_shape,
        out_size,
        scale,
        align_corners=align_corners,
        antialias=antialias,
        edge_mode=edge_mode,
        coordinate=coordinate,
    )


def resize_bilinear_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_bilinear` with respect to its images, the transposed matrices.

    ``dx = A^T dy B``: along each axis ``dx[i]`` adds up ``A[j, i] * dy[j]``, with the weights A of `resize_bilinear`
    for the rows and B for the columns. Weights of pixels outside the image are dropped with edge mode "zero", and added
    to the edge's with "clamp".

    Source: none in MPS; PyTorch's ``interpolate`` with mode "bilinear", under autograd.

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
