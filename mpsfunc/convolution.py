"""Convolution and its three gradients (``MPSCNNConvolution``, ``MPSCNNConvolutionGradient`` and its state).

Images are NHWC, weights OHWI. `conv`, `conv_grad_input` and `conv_grad_weights` are linear in either array that they
take, and differentiating one of them gives the other two, however often it is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mpsfunc import _check, _conv_kernels, _launch, window
from mpsfunc._conv_kernels import Spec
from mpsfunc._launch import StreamLike
from mpsfunc.window import Axis, IntOrPair, Padding


class ConvState(NamedTuple):
    """Where the windows of a convolution sat, and the gradients of its weights and bias as they accumulate.

    Fields:
        dw: Gradient of the weights (o, kh, kw, i / groups), float32 (float64 for float64 images).
        db: Gradient of the bias (o,).
        op: "conv".
        groups: Channel groups.
        rows: Windows along y; ``rows.n_in`` is the height of the source image.
        cols: Windows along x.
    """

    dw: mx.array
    db: mx.array
    op: str
    groups: int
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(dw, db), for the transforms that take arrays only."""
        return self[:2]

    def with_arrays(self, arrays: Sequence[mx.array]) -> ConvState:
        """This state with other arrays, in the order of `arrays`."""
        if len(arrays) != 2:
            raise ValueError(f"ConvState: wrong number of arrays; got {len(arrays)} arrays, expected 2")
        dw, db = arrays
        return self._replace(dw=dw, db=db)


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
    edge_mode: str = "zero",
    neuron: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Cross-correlation of images with weights, plus a bias.

    ``y[n,j,i,o] = b[o] + sum over q, p, c of w[o,q,p,c] * x[n, row(j,q), col(i,p), c + first channel of o's group]``
    with ``row(j,q) = j * stride - pad + q * dilation`` and zeros outside the image; the weights are not flipped. Sums
    are float32 (float64 for float64 images) and rounded once, except where a GPU's library takes over, as
    docs/conventions.md says.

    Source: ``MPSCNNConvolution``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        w: Weights (o, kh, kw, c / groups) of any floating dtype.
        b: Bias (o,). Default: none.
        stride: Pixels between two windows, an int or (y, x). Default 1.
        padding: Pixels around the image: an int, (y, x), ((top, bottom), (left, right)), "same", "valid", "full" or a
            `PaddingPolicy`. Default 0.
        dilation: Pixels between two taps. Default 1.
        groups: Input and output channels are cut into this many groups that do not mix. Default 1; c is depthwise.
        ceil_mode: Round the output's size up; no window starts behind the image. Default False.
        offset: MPS's form, instead of padding: the pixel (y, x) under the centre of the first window.
        out_size: With ``offset``: the output's size (y, x).
        edge_mode: "zero", the only one.
        neuron: The fused activation; the family that brings it is not there yet, so only None.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: Ranks, channels or groups do not fit, windows do not fit, or arguments exclude each other.

    Example:
        >>> x = mx.arange(1.0, 13.0).reshape(1, 3, 4, 1)
        >>> w = mx.arange(1.0, 7.0).reshape(1, 2, 3, 1)
        >>> conv(x, w, mx.array([0.5]), stride=2, offset=(0, 0), out_size=(2, 2)).reshape(2, 2)
        array([[17.5, 47.5],
               [133.5, 211.5]], dtype=float32)
    """
    y, _ = conv_fwd(
        x,
        w,
        b,
        groups=groups,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        neuron=neuron,
        stream=stream,
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
    edge_mode: str = "zero",
    neuron: None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, ConvState]:
    """`conv`, and the state that its gradients need. Arguments and errors are those of `conv`.

    Returns:
        The convolved images and a state with zero gradients.

    Example:
        >>> y, state = conv_fwd(mx.ones((1, 4, 4, 2)), mx.ones((3, 3, 3, 2)), padding="same")
        >>> conv_grad_weights(mx.ones_like(y), mx.ones((1, 4, 4, 2)), state).db
        array([16, 16, 16], dtype=float32)
    """
    run_on = _launch.resolve(stream)
    _check.image("conv", "x", x, stream=run_on)
    _check.array("conv", "w", w, stream=run_on)
    _check_weights("conv", "w.shape", tuple(x.shape), tuple(w.shape), groups)
    if b is not None:
        _check.array("conv", "b", b, stream=run_on)
        _check.shape("conv", "b", b, (w.shape[0],), "the bias does not fit the weights")
    if neuron is not None:
        raise ValueError(f"conv: no fused activation exists yet; got neuron={neuron!r}, expected None")
    spec = _spec(
        "conv",
        tuple(x.shape),
        tuple(w.shape),
        groups,
        run_on,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
    )._replace(biased=b is not None)
    y = _conv_kernels.conv(x, w, _bias(x, w, b, run_on), spec)
    return y, _zero_state(tuple(w.shape), _launch.accumulator(x.dtype), spec)


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
    edge_mode: str = "zero",
    dtype: mx.Dtype = mx.float32,
    stream: StreamLike = None,
) -> ConvState:
    """The state of `conv_fwd` for shapes, without running it.

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
    run_on = _launch.resolve(stream)
    x_shape, w_shape = tuple(x_shape), tuple(w_shape)
    if dtype not in (mx.float32, mx.float64):
        raise TypeError(f"conv_state: no dtype of gradients; got dtype={dtype}, expected float32 or float64")
    _check.on_device("conv_state", "dw", dtype, run_on)
    _check.image_shape("conv_state", "x_shape", x_shape)
    _check_weights("conv_state", "w_shape", x_shape, w_shape, groups)
    spec = _spec(
        "conv_state",
        x_shape,
        w_shape,
        groups,
        run_on,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
    )
    return _zero_state(w_shape, dtype, spec)


def conv_grad_input(
    dy: mx.array,
    w: mx.array,
    state: ConvState,
    *,
    kernel_offset: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `conv` with respect to its images.

    ``dx[n,h,w,c] = sum of dy[n,j,i,o] * w[o,q,p,c]`` over the windows (j, i) whose tap (q, p) reads (h, w), and over
    the output channels o of c's group.

    Source: ``MPSCNNConvolutionGradient`` with gradient option "data"; the exact adjoint, which is what MPS's zero
    insertion gives with its default ``kernelOffset``.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        w: The weights.
        state: From `conv_fwd` or `conv_state`.
        kernel_offset: Refused: the state places the windows, so MPS's ``kernelOffset`` has no meaning here.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy or w is not a floating array, or state is not a ConvState.
        ValueError: dy or w does not belong to the state.

    Example:
        >>> where = {"stride": (1, 2), "dilation": (1, 3), "offset": (0, 1), "out_size": (1, 3)}
        >>> state = conv_state((1, 1, 6, 1), (1, 1, 2, 1), **where)
        >>> dy, w = mx.array([1.0, 2.0, 3.0]), mx.array([10.0, 1.0])
        >>> conv_grad_input(dy.reshape(1, 1, 3, 1), w.reshape(1, 1, 2, 1), state).reshape(-1)
        array([0, 20, 1, 30, 2, 0], dtype=float32)
    """
    run_on = _launch.resolve(stream)
    _check.array("conv_grad_input", "dy", dy, stream=run_on)
    _check.array("conv_grad_input", "w", w, stream=run_on)
    spec = _of_state("conv_grad_input", dy, state, run_on)
    _check.shape("conv_grad_input", "w", w, tuple(state.dw.shape), "w does not belong to this state")
    window.refuse_kernel_offset("conv_grad_input", kernel_offset)
    return _conv_kernels.grad_input(dy, w, spec)


def conv_grad_weights(dy: mx.array, x: mx.array, state: ConvState, *, stream: StreamLike = None) -> ConvState:
    """Gradients of the weights and the bias of `conv`, added to those that the state holds.

    ``dw[o,q,p,c] += sum over n, j, i of dy[n,j,i,o] * x[n, row(j,q), col(i,p), c + first channel of o's group]`` and
    ``db[o] += sum of dy[n,j,i,o]``: sums over the batch, so parts of a batch may come one after the other.

    Source: ``MPSCNNConvolutionGradient`` with gradient option "weights and bias"; ``MPSCNNConvolutionGradientState``.

    Args:
        dy: Gradient of the convolved images (n, out_h, out_w, o).
        x: The images that were convolved (n, h, w, c).
        state: From `conv_fwd`, `conv_state` or an earlier call.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with ``dw`` and ``db`` grown.

    Raises:
        TypeError: dy or x is not a floating array, they differ in dtype, or state is not a ConvState.
        ValueError: dy or x does not belong to the state.

    Example:
        >>> where = {"stride": (1, 2), "dilation": (1, 3), "offset": (0, 1), "out_size": (1, 3)}
        >>> state = conv_state((1, 1, 6, 1), (1, 1, 2, 1), **where)
        >>> x, dy = mx.arange(1.0, 7.0).reshape(1, 1, 6, 1), mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> conv_grad_weights(dy, x, state).dw.reshape(-1)
        array([16, 13], dtype=float32)
    """
    run_on = _launch.resolve(stream)
    _check.array("conv_grad_weights", "dy", dy, stream=run_on)
    _check.image("conv_grad_weights", "x", x, stream=run_on)
    spec = _of_state("conv_grad_weights", dy, state, run_on)
    channels = state.dw.shape[3] * state.groups
    expected = (dy.shape[0], state.rows.n_in, state.cols.n_in, channels)
    _check.shape("conv_grad_weights", "x", x, expected, "x does not belong to this state")
    _check.same_dtype("conv_grad_weights", "dy", dy, "x", x.dtype)
    with mx.stream(run_on):
        dw, db = _conv_kernels.grad_weights(dy, x, spec), _conv_kernels.grad_bias(dy, spec)
        return state._replace(dw=_added(state.dw, dw), db=_added(state.db, db))


@_launch.fused
def _added(before: mx.array, more: mx.array) -> mx.array:
    return before + more.astype(_launch.accumulator(more.dtype))


# Checks -------------------------------------------------------------------------------------------------


def _check_weights(op: str, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], groups: int) -> None:
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)):
        raise TypeError(f"{op}: groups is not an int; got groups={groups!r}, expected an int >= 1")
    channels = x_shape[3]
    if groups < 1 or channels % groups != 0:
        raise ValueError(
            f"{op}: groups do not divide the channels; got groups={groups}, expected a divisor of {channels}"
        )
    sizes = len(w_shape) == 4 and all(isinstance(d, int) and d >= 1 for d in w_shape)
    fits = sizes and w_shape[3] == channels // groups
    if not fits:
        raise ValueError(
            f"{op}: the weights do not fit the images; got {name}={w_shape}, "
            f"expected (o, kh, kw, {channels // groups}), none of them 0"
        )
    if math.prod(w_shape) >= 2**31:  # kernels count them in int32
        raise ValueError(f"{op}: the weights are too large; got {name}={w_shape}, expected less than 2**31 elements")
    if w_shape[0] % groups != 0:
        raise ValueError(
            f"{op}: groups do not divide the output channels; got groups={groups}, expected a divisor of {w_shape[0]}"
        )


def _spec(
    op: str,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    groups: int,
    stream: mx.Stream,
    *,
    stride: IntOrPair,
    **placement: Any,
) -> Spec:
    if stride is None:  # to place, that would be the window's size
        raise TypeError(f"{op}: stride is not an int or a pair; got stride=None, expected ints >= 1")
    (_, h, w, _), (_, kh, kw, _) = x_shape, w_shape
    rows, cols = window.place(op, (h, w), (kh, kw), stride=stride, **placement)
    _check.image_shape(op, "output shape", (x_shape[0], rows.n_out, cols.n_out, w_shape[0]))
    return Spec(rows, cols, int(groups), False, stream)


def _of_state(op: str, dy: mx.array, state: ConvState, stream: mx.Stream) -> Spec:
    _check.state(op, state, ConvState, stream=stream)
    _check.shape(
        op, "state.dw", state.dw, ("o", state.rows.size, state.cols.size, "i"), "the state does not fit together"
    )
    _check.shape(op, "state.db", state.db, (state.dw.shape[0],), "the state does not fit together")
    expected = ("n", state.rows.n_out, state.cols.n_out, state.dw.shape[0])
    _check.shape(op, "dy", dy, expected, "dy does not belong to this state")
    return Spec(state.rows, state.cols, state.groups, False, stream)


def _bias(x: mx.array, w: mx.array, b: mx.array | None, stream: mx.Stream) -> mx.array:
    dtype = _launch.accumulator(x.dtype)
    return mx.zeros((w.shape[0],), dtype, stream=stream) if b is None else b


def _zero_state(w_shape: tuple[int, ...], dtype: mx.Dtype, spec: Spec) -> ConvState:
    with mx.stream(spec.stream):
        dw, db = mx.zeros(w_shape, dtype), mx.zeros(w_shape[:1], dtype)
    return ConvState(dw, db, "conv", spec.groups, spec.rows, spec.cols)
