"""Convolution and its state (``MPSCNNConvolution``). Images are NHWC, weights OHWI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc.activation.fused import FusedActivation, Neuron
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.convolution import rules, states
from mpsfunc.convolution.laid_out import LaidOut
from mpsfunc.convolution.spec import Spec
from mpsfunc.convolution.states import ConvState as ConvState
from mpsfunc.convolution.states import PaddingMode
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.windows.axis import EdgeMode
from mpsfunc.windows.placement import IntOrPair, Padding


def conv(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    edge_mode: EdgeMode = "zero",
    padding_mode: PaddingMode = "zeros",
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Cross-correlation of images with weights, plus a bias.

    ``y[n,j,i,o] = b[o] + sum over q, p, c of w[o,q,p,c] * x[n, row(j,q), col(i,p), c + first channel of o's group]``
    with ``row(j,q) = j * stride - pad + q * dilation``; the weights are not flipped. Outside the image, ``edge_mode``
    or ``padding_mode`` says what is read. Sums are float32 (float64 for float64 images) and rounded once, except in
    calls that run in a GPU's library (docs/internals/gpu-routes.md); 3x3 windows on a CPU may use Winograd's algorithm
    (docs/families/convolution.md).

    Source: ``MPSCNNConvolution``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        w: Weights (o, kh, kw, c / groups) of any floating dtype.
        b: Bias (o,). Default: none.
        stride: Pixels between two windows, an int or (y, x). Default 1.
        padding: Pixels around the image: an int, (y, x), ((top, bottom), (left, right)), "same", "same_lower",
            "valid", "full" or a `PaddingPolicy`. Default 0.
        dilation: Pixels between two taps. Default 1.
        groups: Input and output channels are split into this many groups that do not mix. Default 1; c is depthwise.
        ceil_mode: Round the output's size up; no window starts after the image. Default False.
        offset: MPS's form, instead of padding: the pixel (y, x) under the centre of the first window.
        out_size: With ``offset``: the output's size (y, x).
        edge_mode: Values outside the image: "zero" (default), or "clamp", the nearest pixel.
        padding_mode: The same by PyTorch's names: "zeros" (default, which leaves it to ``edge_mode``), "replicate"
            (edge mode "clamp"), "reflect", the image mirrored at its edge pixels, or "circular", its opposite side.
            With "reflect" the padding must be less than the image's size along that axis, with "circular" at most as
            large.
        neuron: Activation of the sum: the name of one, such as "relu" or "gelu", with the defaults of `neuron`, or a
            `Neuron` with parameters. Default: none. Gradient functions then take the gradient of the activated images
            and multiply it by the slope; that of "relu" at 0 is 0 here.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; a size is not an int, or a name is not a
            string.
        ValueError: Ranks, channels or groups do not fit, windows do not fit, a name is unknown, or arguments exclude
            each other.

    Example:
        >>> x = mx.arange(1.0, 13.0).reshape(1, 3, 4, 1)
        >>> w = mx.arange(1.0, 7.0).reshape(1, 2, 3, 1)
        >>> how = {"stride": 2, "offset": (0, 0), "out_size": (2, 2)}
        >>> conv(x, w, mx.array([0.5]), **how).reshape(2, 2)
        array([[17.5, 47.5],
               [133.5, 211.5]], dtype=float32)
    """
    y, *_ = forward(
        "conv",
        x,
        w,
        b,
        neuron,
        stream,
        groups,
        keeping=False,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        padding_mode=padding_mode,
    )
    return y


def conv_fwd(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    edge_mode: EdgeMode = "zero",
    padding_mode: PaddingMode = "zeros",
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, ConvState]:
    """`conv`, and the state that its gradients need. Arguments and errors are those of `conv`.

    Returns:
        The convolved images, and a state with zero gradients. With an activation the state keeps the pre-activation or,
        for "relu" with a >= 0, the result.

    Example:
        >>> from mpsfunc import conv_grad_weights
        >>> y, state = conv_fwd(mx.ones((1, 4, 4, 2)), mx.ones((3, 3, 3, 2)), padding="same")
        >>> conv_grad_weights(mx.ones_like(y), mx.ones((1, 4, 4, 2)), state).db
        array([16, 16, 16], dtype=float32)
    """
    y, kept, how, spec = forward(
        "conv",
        x,
        w,
        b,
        neuron,
        stream,
        groups,
        keeping=True,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        padding_mode=padding_mode,
    )
    return y, ConvState(op="conv", **states.zero_state(tuple(w.shape), launch.accumulator(x.dtype), spec, how, kept))


def conv_state(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    edge_mode: EdgeMode = "zero",
    padding_mode: PaddingMode = "zeros",
    dtype: mx.Dtype = mx.float32,
    stream: StreamLike = None,
) -> ConvState:
    """The state of `conv_fwd` for shapes, without running it; for a convolution without an activation.

    Args:
        x_shape: (n, h, w, c) of the images.
        w_shape: (o, kh, kw, c / groups) of the weights.
        stride: As for `conv`, like the rest.
        padding: As for `conv`.
        dilation: As for `conv`.
        groups: As for `conv`.
        ceil_mode: As for `conv`.
        offset: As for `conv`.
        out_size: As for `conv`.
        edge_mode: As for `conv`.
        padding_mode: As for `conv`.
        dtype: Of the gradients: float32 (default), or float64 for float64 images.
        stream: Where the zeros are made. Default: the current stream.

    Returns:
        A state with zero gradients.

    Raises:
        TypeError: A size is not an int, or dtype is another one.
        ValueError: As for `conv`.

    Example:
        >>> conv_state((8, 32, 32, 3), (16, 3, 3, 3), stride=2, padding=1).dw.shape
        (16, 3, 3, 3)
    """
    stream = launch.resolve(stream)
    x_shape = checks.shape_of_images("conv_state", "x_shape", x_shape)
    w_shape = checks.shape_of("conv_state", "w_shape", w_shape, "four ints", "the weights do not fit the images")
    states.gradients_dtype("conv_state", dtype, stream)
    spec = states.placed(
        "conv_state",
        "w_shape",
        x_shape,
        w_shape,
        groups,
        stream,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        padding_mode=padding_mode,
    )
    return ConvState(op="conv", **states.zero_state(w_shape, dtype, spec))


def forward(
    op: str,
    x: mx.array,
    w: mx.array,
    b: mx.array | None,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
    groups: int,
    *,
    keeping: bool,
    laid: LaidOut | None = None,
    **placement: Any,
) -> tuple[mx.array, mx.array, FusedActivation, Spec]:
    """`conv` for a function with another name in errors, and what its state is made of.

    Weights that are laid out stand in for w, of which then only shape and dtype count.
    """
    stream = launch.resolve(stream)
    how = states.arrays(op, x, w, b, neuron, stream)
    x_shape, w_shape = tuple(x.shape), tuple(w.shape)
    spec = states.placed(op, "w.shape", x_shape, w_shape, groups, stream, b is not None, **placement)
    function = rules.conv if laid is None else laid.conv
    y, kept = states.activated(function, x, w, b, spec, how, keeping=keeping, inference=laid is not None)
    return y, kept, how, spec
