"""Transposed convolution and its gradients (``MPSCNNConvolutionTranspose``, and the gradient that MPS had later).

A transposed convolution is the adjoint of a convolution, so the kernels of `conv` and its gradients serve here in other
roles. Images are NHWC, weights OHWI: o are the channels of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.activation.fused import Neuron
from mpsfunc.channels.activation_spec import NO_ACTIVATION, NeuronName
from mpsfunc.convolution import library, rules, states
from mpsfunc.convolution.spec import Spec
from mpsfunc.convolution.states import ConvState, OptionName
from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.windows import transposed
from mpsfunc.windows.axis import Axis, check_axes
from mpsfunc.windows.placement import IntOrPair
from mpsfunc.windows.transposed import ReversePadding


@printing.printed
class ConvTransposeState(NamedTuple):
    """Where the windows of a transposed convolution lie, what its activation's slope follows from, and its gradients.

    Fields:
        dw: Gradient of the weights (o, kh, kw, i / groups), float32 (float64 for float64 images).
        db: Gradient of the bias (o,).
        y: What the slope of the activation is computed from (n, out_h, out_w, o), as in `ConvState`.
        slopes: Those of "prelu" (o,); of length 0 for others.
        op: "conv_transpose".
        neuron: Name of the activation, "" for none.
        a: Its first parameter, 0 where it has none.
        b: Its second parameter.
        c: Its third parameter.
        groups: Channel groups.
        rows: Windows along y of the adjoint convolution: ``rows.n_in`` is the height of the output here, and
            ``rows.n_out`` that of the source.
        cols: The same along x.
        unrotated: Whether the weights were taken as MPS takes them.
    """

    dw: mx.array
    db: mx.array
    y: mx.array
    slopes: mx.array
    op: str
    neuron: str
    a: float
    b: float
    c: float
    groups: int
    rows: Axis
    cols: Axis
    unrotated: bool

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(dw, db, y, slopes), for transformations that only take arrays."""
        return self[:4]

    def with_arrays(self, arrays: Sequence[mx.array]) -> ConvTransposeState:
        """This state with other arrays, in the order of `arrays`."""
        dw, db, y, slopes = checks.arrays_of("ConvTransposeState", arrays, 4)
        return self._replace(dw=dw, db=db, y=y, slopes=slopes)


def conv_transpose(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: ReversePadding = 0,
    output_padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    offset: IntOrPair | None = None,
    kernel_offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    state: ConvState | None = None,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Transposed convolution: every pixel of x adds its multiple of the weights to the output.

    There are two forms, which differ by a rotation of the weights.

    - Padding in pixels (PyTorch, ONNX, MLX): ``y[n, m * stride - pad + q * dilation, ..., o]`` collects
      ``w[o,q,p,i] * x[n,m,...,i]``, so that y is the gradient of the convolution with the same arguments, for an output
      of ``(n_in - 1) * stride + K - before - after + output_padding``, ``K = (k - 1) * dilation + 1``.
    - ``offset``, ``kernel_offset``, ``state`` or a `PaddingPolicy` (MPS): ``stride - 1`` zeros are inserted between the
      pixels of x, and the result is correlated with the weights at stride 1; the window of output pixel j has its
      centre at ``j + offset * stride + kernel_offset`` and begins K // 2 before it.

    The second is the first with rotated weights ``w[:, ::-1, ::-1]`` and ``kernel_offset = pad - (K - 1) // 2``. Then
    the bias is added and the activation applied.

    Source: ``MPSCNNConvolutionTranspose``.

    Args:
        x: Images (n, h, w, i); float32, float16, bfloat16, or float64 on the CPU.
        w: Weights (o, kh, kw, i / groups) of any floating dtype. PyTorch's are (i, o / groups, kh, kw).
        b: Bias (o,). Default: none.
        stride: Output pixels between two input pixels, an int or (y, x). Default 1.
        padding: Pixels that are cropped from the output: an int, (y, x) or ((top, bottom), (left, right)); "same" or
            "same_lower", for an output of ``n_in * stride``, the gradient of a convolution with that padding
            (TensorFlow, Keras, ONNX); or a `PaddingPolicy`, whose reverse rules give size and placement. Default 0.
        output_padding: Pixels added at the end of the output, fewer than stride or dilation. Default 0.
        dilation: Output pixels between two taps. Default 1.
        groups: Input and output channels are split into this many groups that do not mix. Default 1.
        offset: MPS's offset (y, x), in pixels of x. Default 0 in that form.
        kernel_offset: MPS's ``kernelOffset`` (y, x), in pixels with the zeros between them. Default 0 in that form.
        out_size: With one of these: the output's size (y, x).
        state: Instead of ``out_size``: the state of a convolution, whose source gives the size. Without offsets the
            windows are the convolution's, whose kernel size, stride and dilation this one must have then.
        neuron: Activation of the sum, as for `conv`. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU; a size is not an int; state is not a
            ConvState.
        ValueError: Ranks, channels or groups do not fit, the output would be empty, or arguments exclude each
            other.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> w = mx.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
        >>> conv_transpose(
        ...     x, w, stride=(1, 2), padding=(0, 1), output_padding=(0, 1)
        ... ).reshape(-1)
        array([10, 102, 20, 203, 30, 300], dtype=float32)
        >>> mps = {"kernel_offset": (0, 0), "out_size": (1, 6)}
        >>> conv_transpose(x, w[:, :, ::-1], stride=(1, 2), **mps).reshape(-1)
        array([10, 102, 20, 203, 30, 300], dtype=float32)
    """
    return forward(
        "conv_transpose",
        x,
        w,
        b,
        neuron,
        stream,
        groups,
        state,
        keeping=False,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        offset=offset,
        kernel_offset=kernel_offset,
        out_size=out_size,
    )[0]


def conv_transpose_fwd(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    stride: IntOrPair = 1,
    padding: ReversePadding = 0,
    output_padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    offset: IntOrPair | None = None,
    kernel_offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    state: ConvState | None = None,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, ConvTransposeState]:
    """`conv_transpose`, and the state that its gradients need. Arguments and errors are those of `conv_transpose`.

    Returns:
        The images, and a state with zero gradients. With an activation the state also keeps what its slope is computed
        from.

    Example:
        >>> x = mx.ones((1, 4, 4, 2))
        >>> y, state = conv_transpose_fwd(x, mx.ones((3, 2, 2, 2)), stride=2)
        >>> y.shape, conv_transpose_grad_weights(mx.ones_like(y), x, state).db
        ((1, 8, 8, 3), array([64, 64, 64], dtype=float32))
    """
    return forward(
        "conv_transpose",
        x,
        w,
        b,
        neuron,
        stream,
        groups,
        state,
        keeping=True,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        offset=offset,
        kernel_offset=kernel_offset,
        out_size=out_size,
    )


def conv_transpose_grad_input(
    dy: mx.array, w: mx.array, state: ConvTransposeState, *, stream: StreamLike = None
) -> mx.array:
    """Gradient of `conv_transpose` with respect to its images: a convolution with the same windows.

    ``dx[n,m,l,i] = sum over q, p, o of w[o,q,p,i] * dz[n, m * stride - pad + q * dilation, ..., o]`` for padding in
    pixels, and the same with rotated weights in MPS's form; ``dz`` is dy, or with an activation dy times the
    activation's slope.

    Source: the adjoint of ``MPSCNNConvolutionTranspose``.

    Args:
        dy: Gradient of the result (n, out_h, out_w, o).
        w: The weights.
        state: From `conv_transpose_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, i) of dy's dtype.

    Raises:
        TypeError: dy or w is not a floating array, or state is not a ConvTransposeState.
        ValueError: dy or w does not belong to the state.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> w = mx.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
        >>> y, state = conv_transpose_fwd(x, w, stride=(1, 2), padding=(0, 1))
        >>> conv_transpose_grad_input(
        ...     mx.arange(1.0, 6.0).reshape(1, 1, 5, 1), w, state
        ... ).reshape(-1)
        array([210, 432, 54], dtype=float32)
    """
    stream = launch.resolve(stream)
    dz, spec = states.gradient("conv_transpose_grad_input", dy, state, ConvTransposeState, "n_in", stream)
    states.of_state("conv_transpose_grad_input", w, state, stream)
    return _data(dz, w, state, spec)


def conv_transpose_grad_weights(
    dy: mx.array, x: mx.array, state: ConvTransposeState, *, stream: StreamLike = None
) -> ConvTransposeState:
    """Gradients of the weights and the bias of `conv_transpose`, added to those that the state holds.

    ``dw[o,q,p,i] += sum over n, m, l of dz[n, m * stride - pad + q * dilation, ..., o] * x[n,m,l,i]`` for padding in
    pixels, rotated in MPS's form; ``db[o] += sum of dz[n,h,w,o]``. The slopes of a "prelu" count as constants;
    ``prelu_grad(dy, state.y, state.slopes)`` has their gradient.

    Source: the adjoint of ``MPSCNNConvolutionTranspose``.

    Args:
        dy: Gradient of the result (n, out_h, out_w, o).
        x: The images (n, h, w, i).
        state: From `conv_transpose_fwd` or an earlier call.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with the sums added to ``dw`` and ``db``.

    Raises:
        TypeError: dy or x is not a floating array, they differ in dtype, or state is not a ConvTransposeState.
        ValueError: dy or x does not belong to the state.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> w = mx.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
        >>> y, state = conv_transpose_fwd(x, w, stride=(1, 2), padding=(0, 1))
        >>> conv_transpose_grad_weights(mx.ones_like(y), x, state).dw.reshape(-1)
        array([5, 6, 3], dtype=float32)
    """
    stream = launch.resolve(stream)
    dz, spec = states.gradient("conv_transpose_grad_weights", dy, state, ConvTransposeState, "n_in", stream)
    states.source("conv_transpose_grad_weights", x, dy, state, "n_out", stream)
    return _parameters(dz, x, state, spec)


def conv_transpose_grad(
    dy: mx.array,
    x: mx.array,
    w: mx.array,
    state: ConvTransposeState,
    *,
    option: OptionName = "all",
    stream: StreamLike = None,
) -> tuple[mx.array | None, ConvTransposeState]:
    """The gradients of `conv_transpose` that ``option`` names; the activation's slope is applied once for all.

    Source: ``MPSCNNConvolutionGradient.gradientOption``, for the transposed convolution.

    Args:
        dy: Gradient of the result (n, out_h, out_w, o).
        x: The images (n, h, w, i).
        w: The weights.
        state: From `conv_transpose_fwd` or an earlier call.
        option: "data", "weights_and_bias" or "all" (default).
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient (n, h, w, i) of the images, or None if the option leaves it out; and the state, with the sums added
        if the option has them.

    Raises:
        TypeError: As for the two functions; option is not a string.
        ValueError: As for the two functions; option is unknown.

    Example:
        >>> x, w = mx.ones((1, 4, 4, 2)), mx.ones((3, 2, 2, 2))
        >>> y, state = conv_transpose_fwd(x, w, stride=2)
        >>> dx, state = conv_transpose_grad(mx.ones_like(y), x, w, state)
        >>> dx.shape, state.dw.shape
        ((1, 4, 4, 2), (3, 2, 2, 2))
    """
    stream = launch.resolve(stream)
    data, parameters = states.option("conv_transpose_grad", option)
    dz, spec = states.gradient("conv_transpose_grad", dy, state, ConvTransposeState, "n_in", stream)
    states.of_state("conv_transpose_grad", w, state, stream)
    states.source("conv_transpose_grad", x, dy, state, "n_out", stream)
    dx = _data(dz, w, state, spec) if data else None
    return dx, _parameters(dz, x, state, spec) if parameters else state


def _data(dz: mx.array, w: mx.array, state: ConvTransposeState, spec: Spec) -> mx.array:
    spec = _as_given(spec)
    with mx.stream(spec.stream):
        return rules.conv(dz, _turned(w, spec, state.unrotated), None, spec)


def _parameters(dz: mx.array, x: mx.array, state: ConvTransposeState, spec: Spec) -> ConvTransposeState:
    spec = _as_given(spec)
    with mx.stream(spec.stream):
        dw = _turned(rules.grad_weights(x, dz, spec), spec, state.unrotated)
        return states.accumulated(state, dw, rules.grad_bias(dz, spec), spec.stream)


def forward(
    op: str,
    x: mx.array,
    w: mx.array,
    b: mx.array | None,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
    groups: int,
    state: ConvState | None,
    *,
    keeping: bool,
    **placement: Any,
) -> tuple[mx.array, ConvTransposeState]:
    """`conv_transpose_fwd` for a function with another name in errors."""
    stream = launch.resolve(stream)
    how = states.arrays(op, x, w, b, neuron, stream)
    x_shape, w_shape = tuple(x.shape), tuple(w.shape)
    apart = states.weights(op, "w.shape", x_shape, w_shape, groups)
    (n, height, width, _), (out, kh, kw, _) = x_shape, w_shape
    if state is not None:
        checks.state(op, state, ConvState, stream=stream)
        check_axes(op, state)
    rows, cols, unrotated = transposed.place_reverse(
        op,
        (height, width),
        (kh, kw),
        **placement,
        like=None if state is None else (state.rows, state.cols),
    )
    checks.image_shape(op, "output shape", (n, rows.n_in, cols.n_in, out))
    spec = _as_given(Spec(rows, cols, apart, False, NO_ACTIVATION, stream))
    with mx.stream(stream):
        turned = _turned(w, spec, unrotated)
        y, kept = states.activated(rules.grad_input, x, turned, b, spec, how, keeping=keeping)
        fields = states.zero_state(w_shape, launch.accumulator(x.dtype), spec, how, kept)
        return y, ConvTransposeState(op="conv_transpose", unrotated=unrotated, **fields)


def _as_given(spec: Spec) -> Spec:
    """The same where kernels read weights as a transposed convolution has them, which spares a copy in every call."""
    return spec._replace(exchanged=spec.groups == 1 and launch.backend(spec.stream) == "cpu")


def _turned(w: mx.array, spec: Spec, unrotated: bool) -> mx.array:
    """The weights of the convolution that leads back; its own inverse."""
    w = w if spec.exchanged else library.exchanged(w, spec.groups)
    return w[:, ::-1, ::-1] if unrotated else w
