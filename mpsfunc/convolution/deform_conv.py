"""Deformable convolution, whose taps are moved by offsets. Images are NHWC, weights OHWI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc.convolution import deform_rules as rules
from mpsfunc.convolution import states
from mpsfunc.convolution.deform_columns import DeformSpec
from mpsfunc.convolution.deform_states import DeformConvState as DeformConvState
from mpsfunc.convolution.deform_states import placed, places_of, zero_state
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.windows.placement import IntOrPair, Padding


def deform_conv(
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    mask: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    offset_groups: int = 1,
    stream: StreamLike = None,
) -> mx.array:
    """Convolution whose taps are moved by offsets, also to positions between pixels.

    ``y[n,j,i,o] = b[o] + sum over q, p, c of w[o,q,p,c] * m * sample(n,v,u,c)``, where m is the mask,
    ``v = j * stride - pad + q * dilation`` plus the tap's offset along y, and u likewise along x. The sample
    interpolates the four pixels around (v, u), with the weights ``(1 - |row - v|) (1 - |col - u|)``; pixels outside
    the image are 0.

    Tap (q, p) has the number ``k = q * kw + p``. For group g of the channels, its offset along y is channel
    ``2 * (g * kh * kw + k)`` of the offsets, its offset along x the next channel, and its mask is channel
    ``g * kh * kw + k``. This is torchvision's order: move the channels of its offsets and masks to the last axis.

    Gradients of every order are exact and have the same bits on every run, except that on a GPU the product with the
    weights may run in a library. At whole pixels, where the interpolation has no derivative, they are the derivative
    from the right. A tap at NaN or infinity reads nothing, and the gradient of its offset is 0. Samples and sums are
    float32 (float64 for float64 images) and rounded once, as in `conv`.

    Source: torchvision's ``deform_conv2d``. There a tap at NaN or infinity is undefined, and infinity gives NaN even
    if its weight or mask is 0.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        offsets: In pixels (n, out_h, out_w, offset_groups * kh * kw * 2), of x's dtype or float32, (y, x) of each tap.
            Positions are computed in float32, or in float64 for float64 images.
        w: Weights (o, kh, kw, c / groups) of any floating dtype.
        b: Bias (o,). Default: none.
        mask: Factors (n, out_h, out_w, offset_groups * kh * kw) of the samples, of x's dtype or float32. Default: none.
        stride: Pixels between two windows, an int or (y, x). Default 1.
        padding: Pixels around the image, as for `conv`. Default 0.
        dilation: Pixels between two taps. Default 1.
        groups: Input and output channels are split into this many groups that do not mix. Default 1.
        offset_groups: Input channels are split into this many groups with offsets of their own. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; offsets or mask have neither x's dtype nor
            float32; a size is not an int, or padding is not what `conv` takes.
        ValueError: Ranks, channels or groups do not fit, windows do not fit, offsets or mask do not belong to the
            output, or an axis or the samples of an image are too large.

    Example:
        >>> x = mx.arange(1.0, 10).reshape(1, 3, 3, 1)
        >>> w = mx.array([1.0, 10]).reshape(1, 1, 2, 1)
        >>> offsets = mx.zeros((1, 3, 2, 4))
        >>> deform_conv(x, offsets, w).reshape(3, 2)
        array([[21, 32],
               [54, 65],
               [87, 98]], dtype=float32)
        >>> # the second tap half a row further down
        >>> deform_conv(x, offsets + mx.array([0, 0, 0.5, 0]), w).reshape(3, 2)
        array([[36, 47],
               [69, 80],
               [47, 53]], dtype=float32)
    """
    op = "deform_conv"
    y, _ = _forward(op, x, offsets, w, b, mask, stream, groups, offset_groups, stride, padding, dilation)
    return y


def deform_conv_fwd(
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    mask: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    offset_groups: int = 1,
    stream: StreamLike = None,
) -> tuple[mx.array, DeformConvState]:
    """`deform_conv`, and the state that its gradients need. Arguments and errors are those of `deform_conv`.

    Returns:
        The convolved images, and a state with zero gradients.

    Example:
        >>> x, w = mx.ones((1, 4, 4, 2)), mx.ones((3, 3, 3, 2))
        >>> y, state = deform_conv_fwd(x, mx.zeros((1, 2, 2, 18)), w)
        >>> y.shape, state.dw.shape
        ((1, 2, 2, 3), (3, 3, 3, 2))
    """
    op = "deform_conv"
    y, spec = _forward(op, x, offsets, w, b, mask, stream, groups, offset_groups, stride, padding, dilation)
    return y, zero_state(tuple(w.shape), launch.accumulator(x.dtype), spec)


def deform_conv_state(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    offset_groups: int = 1,
    dtype: mx.Dtype = mx.float32,
    stream: StreamLike = None,
) -> DeformConvState:
    """The state of `deform_conv_fwd` for shapes, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        w_shape: (o, kh, kw, c / groups) of the weights.
        stride: As for `deform_conv`, like the rest.
        padding: As for `deform_conv`.
        dilation: As for `deform_conv`.
        groups: As for `deform_conv`.
        offset_groups: As for `deform_conv`.
        dtype: Of the gradients: float32 (default), or float64 for float64 images.
        stream: Where the zeros are made. Default: the current stream.

    Returns:
        A state with zero gradients.

    Raises:
        TypeError: A size is not an int, or dtype is another one.
        ValueError: As for `deform_conv`.

    Example:
        >>> deform_conv_state((8, 32, 32, 4), (16, 3, 3, 4), offset_groups=2).dw.shape
        (16, 3, 3, 4)
    """
    op, stream = "deform_conv_state", launch.resolve(stream)
    images = checks.shape_of_images(op, "x_shape", x_shape)
    weights = checks.shape_of(op, "w_shape", w_shape, "four ints", "the weights do not fit the images")
    states.gradients_dtype(op, dtype, stream)
    how = stride, padding, dilation
    return zero_state(weights, dtype, placed(op, "w_shape", images, weights, groups, offset_groups, how, stream))


def _forward(
    op: str,
    x: mx.array,
    offsets: mx.array,
    w: mx.array,
    b: mx.array | None,
    mask: mx.array | None,
    stream: StreamLike,
    groups: int,
    offset_groups: int,
    *how: Any,
) -> tuple[mx.array, DeformSpec]:
    stream = launch.resolve(stream)
    states.arrays(op, x, w, b, None, stream)
    spec = placed(op, "w.shape", tuple(x.shape), tuple(w.shape), groups, offset_groups, how, stream)
    spec = spec._replace(biased=b is not None, params=spec.params._replace(masked=int(mask is not None)))
    places = places_of(op, offsets, mask, x, "x", spec)
    return rules.forward(x, places, w, b, spec), spec
