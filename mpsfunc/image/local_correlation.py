"""Correlations of pixels with the neighbourhood of the same pixel in another image (``MPSNNLocalCorrelation``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import OPERANDS, OperandName, pair
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import local_correlation_rules as rules
from mpsfunc.image.local_correlation_rules import Spec
from mpsfunc.image.params import LocalCorrelationParams

_FAR = 2**30  # of windows, below which nothing overflows


def local_correlation(
    x: mx.array,
    y: mx.array,
    window: int | Sequence[int] = 0,
    *,
    stride: int | Sequence[int] = 1,
    stream: StreamLike = None,
) -> mx.array:
    """Products of each pixel of an image with the pixels around it in another image: a cost volume.

    With the window (wy, wx) and the stride (sy, sx),
    ``r[n,h,w,f] = sum over c of x[n,h,w,c] * y[n, h + (i - wy) sy, w + (j - wx) sx, c]``, where
    ``f = i (2 wx + 1) + j`` for i from 0 to 2 wy and j from 0 to 2 wx. So features are ordered row by row, and the
    one in the middle multiplies pixels at the same position. Outside the image y is 0.

    Source: ``MPSNNLocalCorrelation``. Its header prints ``f = i (2 wy + 1) + j``, but says that the offset along x is
    the one that changes fastest, which needs wx. Apple does not document what lies outside the image. Networks for
    optical flow often divide by the number of channels; this function does not.

    Args:
        x: Primary images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        y: Secondary images of x's shape and dtype.
        window: How many strides the window extends to each side, an int or a pair (y, x). Default 0, as in MPS.
        stride: Distance between the pixels of a window, an int or a pair (y, x). Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, w, (2 wy + 1) (2 wx + 1)) of x's dtype.

    Raises:
        TypeError: x or y is not a floating array, they differ in dtype, float64 on a GPU, or a window or stride is not
            an int.
        ValueError: x is not NHWC, y has another shape, a window is less than 0, a stride less than 1, or one of them or
            the result is too large.

    Example:
        >>> x = mx.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
        >>> y = mx.array([10.0, 20, 30]).reshape(1, 1, 3, 1)
        >>> local_correlation(x, y, (0, 1)).reshape(3, 3)
        array([[0, 10, 20],
               [20, 40, 60],
               [60, 90, 0]], dtype=float32)
    """
    op, stream = "local_correlation", launch.resolve(stream)
    return rules.correlate(x, y, _spec(op, x, y, window, stride, stream))


def local_correlation_grad(
    dy: mx.array,
    x: mx.array,
    y: mx.array,
    window: int | Sequence[int] = 0,
    *,
    stride: int | Sequence[int] = 1,
    operand: OperandName = "primary",
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `local_correlation` with respect to one of its images; MPS has none.

    With the offset ``d_f`` of feature f, the gradient of the primary image is
    ``sum over f of dy[n,p,f] * y[n, p + d_f]``, and that of the secondary image
    ``sum over f of dy[n, p - d_f, f] * x[n, p - d_f]``. The order of the sums is fixed, so every run gives the same
    bits.

    Args:
        dy: Gradient of the correlations (n, h, w, (2 wy + 1) (2 wx + 1)).
        x: Primary images (n, h, w, c).
        y: Secondary images.
        window: As for `local_correlation`.
        stride: As for `local_correlation`.
        operand: Whose gradient: "primary" (default) or "secondary".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: As for `local_correlation`, or dy differs in dtype.
        ValueError: As for `local_correlation`, an unknown operand, or dy does not belong to the images.

    Example:
        >>> x = mx.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
        >>> y = mx.array([10.0, 20, 30]).reshape(1, 1, 3, 1)
        >>> dy = mx.arange(1.0, 10).reshape(1, 1, 3, 3)
        >>> [
        ...     local_correlation_grad(dy, x, y, (0, 1), operand=which).reshape(-1).tolist()
        ...     for which in ("primary", "secondary")
        ... ]
        [[80.0, 320.0, 380.0], [10.0, 34.0, 36.0]]
    """
    op, stream = "local_correlation_grad", launch.resolve(stream)
    spec = _spec(op, x, y, window, stride, stream)
    secondary = OPERANDS.index(checks.choice(op, "operand", operand, OPERANDS))
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, (*x.shape[:3], spec.features), "dy does not belong to the images")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    return rules.spread(dy, x if secondary else y, spec.by(secondary))


def _spec(op: str, x: Any, y: Any, window: Any, stride: Any, stream: mx.Stream) -> Spec:
    checks.image(op, "x", x, stream=stream)
    checks.like_image(op, "y", y, x, stream=stream)
    windows, strides = pair(op, "window", window, 0), pair(op, "stride", stride, 1)
    for name, given, sizes in (("window", window, windows), ("stride", stride, strides)):
        if max(sizes) >= _FAR:
            raise ValueError(
                f"{op}: {name} is too large; got {name}={describe(given)}, expected less than 2**30 along each axis"
            )
    spec = Spec(LocalCorrelationParams(*windows, *strides, 0), stream)
    checks.image_shape(op, "output shape", (1, *x.shape[1:3], spec.features))
    return spec
