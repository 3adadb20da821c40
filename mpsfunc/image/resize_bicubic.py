"""Images of any other size by cubic curves through their pixels, and the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.image import resampling
from mpsfunc.image.resampling import FloatOrPair, ResizeCoordinateName
from mpsfunc.image.resampling import ResampleState as ResampleState
from mpsfunc.windows.placement import IntOrPair


def resize_bicubic(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    coordinate: ResizeCoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> mx.array:
    """Resizes images by cubic interpolation.

    Positions u are those of `resize_bilinear`, to a size or by a scale. Along each axis the result at u adds up the
    four pixels i around it, each times ``k(|i - u|)``, where

    - ``k(t) = (a + 2) t^3 - (a + 3) t^2 + 1`` up to a distance of 1,
    - ``k(t) = a t^3 - 5 a t^2 + 8 a t - 4 a`` from there to 2,

    and a = -3/4; pixels outside the image are edge pixels. ``antialias`` uses all pixels nearer than two steps: with a
    = -1/2, pixel i has the weight ``k(|i - u| / max(1, L / D))``, divided by the sum of those in the image, also if the
    result is larger. Results may exceed the range of the pixels, since some weights are negative.

    Source: PyTorch's ``interpolate`` with mode "bicubic"; `mlx.nn.Upsample` with mode "cubic" is
    "half_pixel_symmetric". R. Keys, Cubic convolution interpolation for digital image processing (1981).

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        out_size: Size of the result, an int or (y, x).
        scale: Instead of a size: the factor by which the result is larger, any number above 0 or (y, x).
        align_corners: Whether the first and last pixels of both images have the same centres. Default False.
        antialias: Whether to filter when the result is smaller, as above; not with ``align_corners`` or
            "asymmetric". Default False.
        coordinate: "half_pixel" (default), "half_pixel_symmetric" or "asymmetric", as for `resize_bilinear`; not with
            ``align_corners``.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, y, x, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, out_size is not an int, scale is not a number, or
            align_corners or antialias not a bool.
        ValueError: x is not NHWC, the result would have no pixels or too many, coordinate is unknown, or arguments
            exclude each other; there is neither a size nor a scale, or both.

    Example:
        >>> x = mx.array([0.0, 0.0, 32.0, 32.0]).reshape(1, 1, 4, 1)
        >>> resize_bicubic(x, (1, 8)).reshape(-1).tolist()
        [0.0, -1.125, -3.375, 7.25, 24.75, 35.375, 33.125, 32.0]
    """
    return resize_bicubic_fwd(
        x,
        out_size,
        scale=scale,
        align_corners=align_corners,
        antialias=antialias,
        coordinate=coordinate,
        stream=stream,
    )[0]


def resize_bicubic_fwd(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    coordinate: ResizeCoordinateName = "half_pixel",
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`resize_bicubic`, and the state that `resize_bicubic_grad` needs. Arguments and errors are the same.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_bicubic_fwd(mx.ones((1, 4, 4, 1)), scale=1.3)
        >>> y.shape, state.rows.factor
        ((1, 5, 5, 1), 1.3)
    """
    op, stream = "resize_bicubic", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = resampling.resized_state(
        op,
        op,
        x.shape,
        out_size,
        scale,
        align_corners=align_corners,
        antialias=antialias,
        coordinate=coordinate,
    )
    return resampling.forward(x, state, stream), state


def resize_bicubic_state(
    x_shape: Sequence[int],
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    coordinate: ResizeCoordinateName = "half_pixel",
) -> ResampleState:
    """The state of `resize_bicubic_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_bicubic`, like the rest.
        scale: As for `resize_bicubic`.
        align_corners: As for `resize_bicubic`.
        antialias: As for `resize_bicubic`.
        coordinate: As for `resize_bicubic`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, out_size is not an int, scale is not a number, or
            align_corners or antialias not a bool.
        ValueError: x_shape is not (n, h, w, c), the result would have no pixels or too many, coordinate is
            unknown, or arguments exclude each other; there is neither a size nor a scale, or both.

    Example:
        >>> resize_bicubic_state((1, 4, 6, 1), scale=(2, 0.5), antialias=True).cols.n_out
        3
    """
    op = "resize_bicubic_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return resampling.resized_state(
        "resize_bicubic",
        op,
        x_shape,
        out_size,
        scale,
        align_corners=align_corners,
        antialias=antialias,
        coordinate=coordinate,
    )


def resize_bicubic_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_bicubic` with respect to its images, the transposed matrices.

    ``dx = A^T dy B``: along each axis ``dx[i]`` adds up ``A[j, i] * dy[j]``, with the weights A of `resize_bicubic` for
    the rows and B for the columns; those of pixels outside the image are added to the edge's.

    Source: none in MPS; PyTorch's ``interpolate`` with mode "bicubic", under autograd.

    Args:
        dy: Gradient of the resized images (n, y, x, c), floating.
        state: From `resize_bicubic_fwd` or `resize_bicubic_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype, 0 at a pixel that no position reads.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = resize_bicubic_state((1, 1, 4, 1), (1, 2))
        >>> resize_bicubic_grad(mx.array([32.0, 0.0]).reshape(1, 1, 2, 1), state).reshape(-1)
        array([16, 19, -3, 0], dtype=float32)
    """
    return resampling.gradient("resize_bicubic_grad", dy, state, stream)
