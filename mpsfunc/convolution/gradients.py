"""The three gradients of a convolution (``MPSCNNConvolutionGradient``).

Images are NHWC, weights OHWI. Without bias and neuron, `conv`, `conv_grad_input` and `conv_grad_weights` are linear in
either array that they take, and differentiating one of them gives the other two, however often it is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.convolution import rules, states
from mpsfunc.convolution.spec import Spec
from mpsfunc.convolution.states import ConvState, OptionName
from mpsfunc.core import launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.windows import transposed
from mpsfunc.windows.axis import Axis
from mpsfunc.windows.placement import IntOrPair, restrict_outputs

SourceWindow = Sequence[Sequence[int]]


def conv_grad_input(
    dy: mx.array,
    w: mx.array,
    state: ConvState,
    *,
    kernel_offset: IntOrPair | None = None,
    source_window: SourceWindow | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `conv` with respect to its images.

    ``dx[n,h,w,c] = sum of dz[n,j,i,o] * w[o,q,p,c]`` over the windows (j, i) whose tap (q, p) reads (h, w), also for
    taps outside the image that read an edge pixel, and over the output channels o of c's group. ``dz`` is dy, or with
    an activation dy times the activation's slope.

    Source: ``MPSCNNConvolutionGradient`` with gradient option "data"; ``source_window`` is its ``primaryOffset`` and
    ``sourceSize``. MPS inserts ``stride - 1`` zeros between the
    pixels of dy and correlates with the rotated weights, the window of dx[h] having its centre at
    ``h + kernel_offset`` among them; its rule for exact gradients, ``kernel_offset = -offset``, plus 1 where the
    dilated window is even, is the default here.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        w: The weights.
        state: From `conv_fwd` or `conv_state`.
        kernel_offset: MPS's ``kernelOffset``, an int or (y, x), for a window elsewhere; zeros are then read outside
            dy, whatever the edge mode. Default: that of the exact gradient.
        source_window: ((y, x), (height, width)): only these outputs propagate, as if dy were 0 elsewhere.
            Default: all.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy or w is not a floating array, state is not a ConvState, or source_window has other entries than
            ints.
        ValueError: dy or w does not belong to the state, or source_window is not two pairs with sizes of at least 0.

    Example:
        >>> from mpsfunc import conv_state
        >>> where = {"stride": (1, 2), "dilation": (1, 3)}
        >>> where |= {"offset": (0, 1), "out_size": (1, 3)}
        >>> state = conv_state((1, 1, 6, 1), (1, 1, 2, 1), **where)
        >>> dy = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> w = mx.array([10.0, 1.0]).reshape(1, 1, 2, 1)
        >>> conv_grad_input(dy, w, state).reshape(-1)
        array([0, 20, 1, 30, 2, 0], dtype=float32)
        >>> conv_grad_input(dy, w, state, source_window=((0, 1), (1, 2))).reshape(-1)
        array([0, 20, 0, 30, 2, 0], dtype=float32)
        >>> # the default is -offset + 1 = 0 here
        >>> conv_grad_input(dy, w, state, kernel_offset=(0, 0)).reshape(-1)
        array([0, 20, 1, 30, 2, 0], dtype=float32)
    """
    stream = launch.resolve(stream)
    dz, spec = states.gradient("conv_grad_input", dy, state, ConvState, "n_out", stream)
    states.of_state("conv_grad_input", w, state, stream)
    dz = _within("conv_grad_input", dz, spec, source_window)
    return _data(dz, w, spec, transposed.at_kernel_offset("conv_grad_input", (spec.rows, spec.cols), kernel_offset))


def conv_grad_weights(
    dy: mx.array,
    x: mx.array,
    state: ConvState,
    *,
    source_window: SourceWindow | None = None,
    stream: StreamLike = None,
) -> ConvState:
    """Gradients of the weights and the bias of `conv`, added to those that the state holds.

    ``dw[o,q,p,c] += sum over n, j, i of dz[n,j,i,o] * x[n, row(j,q), col(i,p), c + first channel of o's group]`` and
    ``db[o] += sum of dz[n,j,i,o]``: sums over the batch, so parts of a batch can be added one after the other. Outside
    the image x is read as in the forward function; ``dz`` is dy, or with an activation dy times the activation's slope.
    The slopes of a "prelu" count as constants; ``prelu_grad(dy, state.y, state.slopes)`` has their gradient.

    Source: ``MPSCNNConvolutionGradient`` with gradient option "weights and bias"; ``MPSCNNConvolutionGradientState``.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images that were convolved (n, h, w, c).
        state: From `conv_fwd`, `conv_state` or an earlier call.
        source_window: As for `conv_grad_input`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with the sums added to ``dw`` and ``db``.

    Raises:
        TypeError: dy or x is not a floating array, they differ in dtype, state is not a ConvState, or source_window
            has other entries than ints.
        ValueError: dy or x does not belong to the state, or source_window is not two pairs with sizes of at least 0.

    Example:
        >>> from mpsfunc import conv_state
        >>> where = {"stride": (1, 2), "dilation": (1, 3)}
        >>> where |= {"offset": (0, 1), "out_size": (1, 3)}
        >>> state = conv_state((1, 1, 6, 1), (1, 1, 2, 1), **where)
        >>> x = mx.arange(1.0, 7.0).reshape(1, 1, 6, 1)
        >>> dy = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> conv_grad_weights(dy, x, state).dw.reshape(-1)
        array([16, 13], dtype=float32)
    """
    stream = launch.resolve(stream)
    dz, spec = states.gradient("conv_grad_weights", dy, state, ConvState, "n_out", stream)
    states.source("conv_grad_weights", x, dy, state, "n_in", stream)
    dz = _within("conv_grad_weights", dz, spec, source_window)
    dw, db = rules.grad_parameters(dz, x, spec)
    return states.accumulated(state, dw, db, stream)


def conv_grad(
    dy: mx.array,
    x: mx.array,
    w: mx.array,
    state: ConvState,
    *,
    option: OptionName = "all",
    kernel_offset: IntOrPair | None = None,
    source_window: SourceWindow | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array | None, ConvState]:
    """The gradients of `conv` that ``option`` names, as MPS's gradient kernel computes them.

    `conv_grad_input` and `conv_grad_weights` in one call, in which the activation's slope is applied once for both.

    Source: ``MPSCNNConvolutionGradient.gradientOption``.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images that were convolved (n, h, w, c).
        w: The weights.
        state: From `conv_fwd`, `conv_state` or an earlier call.
        option: "data" (MPS's 1), "weights_and_bias" (2) or "all" (3, the default).
        kernel_offset: As for `conv_grad_input`.
        source_window: As for `conv_grad_input`, for all gradients.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient (n, h, w, c) of the images, or None if the option leaves it out; and the state, with the sums added
        to ``dw`` and ``db`` if the option has them.

    Raises:
        TypeError: As for the two functions; option is not a string.
        ValueError: As for the two functions; option is unknown.

    Example:
        >>> from mpsfunc import conv_fwd
        >>> x, w = mx.ones((1, 4, 4, 2)), mx.ones((3, 3, 3, 2))
        >>> y, state = conv_fwd(x, w)
        >>> dx, state = conv_grad(mx.ones_like(y), x, w, state)
        >>> dx.shape, state.dw.shape, state.db
        ((1, 4, 4, 2), (3, 3, 3, 2), array([4, 4, 4], dtype=float32))
    """
    stream = launch.resolve(stream)
    data, parameters = states.option("conv_grad", option)
    dz, spec = states.gradient("conv_grad", dy, state, ConvState, "n_out", stream)
    states.of_state("conv_grad", w, state, stream)
    states.source("conv_grad", x, dy, state, "n_in", stream)
    dz = _within("conv_grad", dz, spec, source_window)
    axes = transposed.at_kernel_offset("conv_grad", (spec.rows, spec.cols), kernel_offset)
    dx = _data(dz, w, spec, axes) if data else None
    if parameters:
        state = states.accumulated(state, *rules.grad_parameters(dz, x, spec), stream)
    return dx, state


def _data(dz: mx.array, w: mx.array, spec: Spec, axes: tuple[Axis, Axis]) -> mx.array:
    with mx.stream(spec.stream):
        return rules.grad_input(dz, w, None, spec._replace(rows=axes[0], cols=axes[1]))


def _within(op: str, dz: mx.array, spec: Spec, window: SourceWindow | None) -> mx.array:
    """The gradient, 0 outside a window of outputs."""
    if window is None:
        return dz
    kept = restrict_outputs(op, (spec.rows, spec.cols), window)
    with mx.stream(spec.stream):
        if any(axis.begin >= axis.end for axis in kept):
            return mx.zeros_like(dz)
        (top, bottom), (left, right) = ((axis.begin, axis.end) for axis in kept)
        margins = [(axis.begin, axis.n_out - axis.end) for axis in kept]
        part = launch.cut(dz, (slice(None), slice(top, bottom), slice(left, right)))
        return mx.pad(part, [(0, 0), *margins, (0, 0)])
