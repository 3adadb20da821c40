"""Images of any other size by means over what each pixel covers, and the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.image import resampling
from mpsfunc.image.resampling import FloatOrPair
from mpsfunc.image.resampling import ResampleState as ResampleState
from mpsfunc.windows.placement import IntOrPair


def resize_area(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Resizes images by means over windows, as adaptive average pooling.

    Along an axis of length L that becomes D, position j of the result is the mean of ``x[floor(j * L / D)]`` to
    ``x[ceil((j + 1) * L / D) - 1]``, all with the same weight; neighbours share a pixel if L / D is not an integer.
    With a scale s, D is ``floor(L * s)``.

    Source: PyTorch's ``interpolate`` with mode "area", which is adaptive average pooling, and so the same as
    ``avg_pool(x, "adaptive", out_size=out_size)``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        out_size: Size of the result, an int or (y, x).
        scale: Instead of a size: the factor by which the result is larger, any number above 0 or (y, x).
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, y, x, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, out_size is not an int, or scale is not a number.
        ValueError: x is not NHWC, or the result would have no pixels or too many; there is neither a size nor a scale,
            or both.

    Example:
        >>> x = mx.array([1.0, 3.0, 5.0, 9.0]).reshape(1, 1, 4, 1)
        >>> resize_area(x, (1, 2)).reshape(-1), resize_area(x, (1, 3)).reshape(-1)
        (array([2, 7], dtype=float32), array([2, 4, 7], dtype=float32))
    """
    return resize_area_fwd(x, out_size, scale=scale, stream=stream)[0]


def resize_area_fwd(
    x: mx.array,
    out_size: IntOrPair | None = None,
    *,
    scale: FloatOrPair | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, ResampleState]:
    """`resize_area`, and the state that `resize_area_grad` needs. Arguments and errors are the same.

    Returns:
        The resized images and the state.

    Example:
        >>> y, state = resize_area_fwd(mx.ones((1, 4, 4, 1)), scale=0.5)
        >>> y.shape, state.op
        ((1, 2, 2, 1), 'resize_area')
    """
    op, stream = "resize_area", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = resampling.resized_state(op, op, x.shape, out_size, scale)
    return resampling.forward(x, state, stream), state


def resize_area_state(
    x_shape: Sequence[int], out_size: IntOrPair | None = None, *, scale: FloatOrPair | None = None
) -> ResampleState:
    """The state of `resize_area_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        out_size: As for `resize_area`.
        scale: As for `resize_area`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or out_size is not an int or scale is not a number.
        ValueError: x_shape is not (n, h, w, c), the result would have no pixels or too many, or there is
            neither a size nor a scale, or both.

    Example:
        >>> resize_area_state((1, 4, 6, 1), scale=0.5).cols.n_out
        3
    """
    op = "resize_area_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return resampling.resized_state("resize_area", op, x_shape, out_size, scale)


def resize_area_grad(dy: mx.array, state: ResampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `resize_area` with respect to its images: each mean's gradient is distributed evenly over its pixels.

    ``dx = A^T dy B``: along each axis ``dx[i]`` adds up ``dy[j] / m[j]`` over all positions j that cover pixel i, of
    which each covers ``m[j]``.

    Source: none in MPS; PyTorch's ``interpolate`` with mode "area", under autograd.

    Args:
        dy: Gradient of the resized images (n, y, x, c), floating.
        state: From `resize_area_fwd` or `resize_area_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a ResampleState.
        ValueError: dy does not belong to the state, or the state to another function.

    Example:
        >>> state = resize_area_state((1, 1, 4, 1), (1, 3))
        >>> dy = mx.array([2.0, 4.0, 8.0]).reshape(1, 1, 3, 1)
        >>> resize_area_grad(dy, state).reshape(-1)
        array([1, 3, 6, 4], dtype=float32)
    """
    return resampling.gradient("resize_area_grad", dy, state, stream)
