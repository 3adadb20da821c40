"""Convolution and transposed convolution of sequences (n, l, c): those of images of one row.

The images are views, so nothing is copied, and derivatives of every order are those of convolutions. For states and
explicit gradients call `conv_fwd` on ``x[:, None]`` and ``w[:, None]``.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.activation.fused import Neuron
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.convolution import conv_transpose, convolution, states
from mpsfunc.convolution.laid_out import LaidOut
from mpsfunc.convolution.states import PaddingMode
from mpsfunc.core import arguments, checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.windows import line
from mpsfunc.windows.line import Sides
from mpsfunc.windows.policy import PaddingName
from mpsfunc.windows.transposed import REVERSE_PADDINGS, ReversePaddingName


def conv1d(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: int = 1,
    padding: Sides | PaddingName = 0,
    dilation: int = 1,
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Cross-correlation of sequences with weights, plus a bias: `conv` of images of one row.

    ``y[n,j,o] = b[o] + sum over q, c of w[o,q,c] * x[n, j * stride - before + q * dilation, c + first channel of o's
    group]``.

    Source: ``MPSCNNConvolution`` of images of one row; PyTorch's ``conv1d``, of (n, c, l).

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, or float64 on the CPU.
        w: Weights (o, k, c / groups) of any floating dtype. PyTorch's are (o, c / groups, k).
        b: Bias (o,). Default: none.
        stride: Elements between two windows. Default 1.
        padding: Elements around the sequence: an int or (before, after), or "same", "same_lower", "valid" or "full" as
            for `conv`. Default 0.
        dilation: Elements between two taps. Default 1.
        groups: As for `conv`.
        padding_mode: As for `conv`.
        neuron: As for `conv`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences (n, out_l, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; a size is not an int, or a name is not a
            string.
        ValueError: Ranks, channels or groups do not fit, windows do not fit, or a name is unknown.

    Example:
        >>> x = mx.arange(1.0, 6.0).reshape(1, 5, 1)
        >>> w = mx.array([1.0, 10.0, 100.0]).reshape(1, 3, 1)
        >>> conv1d(x, w, padding=1, stride=2).reshape(-1)
        array([210, 432, 54], dtype=float32)
    """
    where: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": padding_mode}
    return forward(x, w, b, neuron, stream, groups, **where)


def forward(
    x: mx.array,
    w: mx.array,
    b: mx.array | None,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
    groups: int,
    *,
    stride: int,
    padding: Sides | PaddingName,
    dilation: int,
    padding_mode: PaddingMode,
    laid: LaidOut | None = None,
) -> mx.array:
    """`conv1d`; weights that are laid out stand in for w, of which then only shape and dtype count."""
    op, stream = "conv1d", launch.resolve(stream)
    _check(op, x, w, groups, stream)
    how: dict[str, Any] = {
        "stride": line.step(op, "stride", stride),
        "padding": line.padding(op, padding),
        "dilation": line.step(op, "dilation", dilation),
        "padding_mode": padding_mode,
    }
    with mx.stream(stream):
        images, weights = x[:, None], w[:, None]
        y, *_ = convolution.forward(op, images, weights, b, neuron, stream, groups, keeping=False, laid=laid, **how)
        return y.squeeze(1)


def conv_transpose1d(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: int = 1,
    padding: Sides | ReversePaddingName = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Transposed convolution of sequences: `conv_transpose` of images of one row, with padding in pixels.

    ``y[n, m * stride - before + q * dilation, o]`` collects ``w[o,q,i] * x[n,m,i]``, for an output of ``(l - 1) *
    stride + (k - 1) * dilation + 1 - before - after + output_padding``; then the bias is added and the activation
    applied.

    Source: ``MPSCNNConvolutionTranspose`` of images of one row; PyTorch's ``conv_transpose1d``, of (n, c, l).

    Args:
        x: Sequences (n, l, i); float32, float16, bfloat16, or float64 on the CPU.
        w: Weights (o, k, i / groups) of any floating dtype. PyTorch's are (i, o / groups, k).
        b: Bias (o,). Default: none.
        stride: Output elements between two input elements. Default 1.
        padding: Elements that are cropped from the output: an int or (before, after); or "same" or "same_lower", for an
            output of ``l * stride``. Default 0.
        output_padding: Elements added at the end of the output, fewer than stride or dilation. Default 0.
        dilation: Output elements between two taps. Default 1.
        groups: As for `conv_transpose`.
        neuron: As for `conv`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences (n, out_l, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: Ranks, channels or groups do not fit, the output would be empty, or a name is unknown.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0]).reshape(1, 3, 1)
        >>> w = mx.array([1.0, 10.0, 100.0]).reshape(1, 3, 1)
        >>> conv_transpose1d(x, w, stride=2, padding=1, output_padding=1).reshape(-1)
        array([10, 102, 20, 203, 30, 300], dtype=float32)
    """
    op, stream = "conv_transpose1d", launch.resolve(stream)
    _check(op, x, w, groups, stream)
    how: dict[str, Any] = {
        "stride": line.step(op, "stride", stride),
        "padding": line.padding(op, padding, REVERSE_PADDINGS),
        "output_padding": line.step(op, "output_padding", output_padding, 0),
        "dilation": line.step(op, "dilation", dilation),
        "offset": None,
        "kernel_offset": None,
        "out_size": None,
    }
    with mx.stream(stream):
        y, _ = conv_transpose.forward(op, x[:, None], w[:, None], b, neuron, stream, groups, None, keeping=False, **how)
        return y.squeeze(1)


def _check(op: str, x: mx.array, w: mx.array, groups: int, stream: mx.Stream) -> None:
    """Refuses sequences and weights that do not fit each other."""
    checks.sequences(op, "x", x, stream=stream)
    checks.array(op, "w", w, stream=stream)
    plain = arguments.whole(groups)
    if plain is None or plain < 1 or x.shape[2] % plain:
        return  # which is refused with the images
    channels = x.shape[2] // plain
    if w.ndim != 3 or 0 in w.shape or w.shape[2] != channels:
        turned = w.ndim == 3 and w.shape[2] * plain == x.shape[1]
        hint = "; sequences are (n, l, c), and these look like (n, c, l)" if turned else ""
        if not hint and w.ndim == 3 and 0 not in w.shape:
            hint = states.turned_weights(op, tuple(w.shape), x.shape[2], plain)
        raise ValueError(
            f"{op}: the weights do not fit the sequences; got w.shape={describe(w.shape)}, "
            f"expected (o, k, {channels}), none of them 0{hint}"
        )
