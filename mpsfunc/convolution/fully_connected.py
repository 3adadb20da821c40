"""The fully connected layer and its gradient (``MPSCNNFullyConnected``, ``MPSCNNFullyConnectedGradient``).

It is the convolution whose one window is the whole image, and shares its state.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.activation.fused import FusedActivation, Neuron
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.convolution import rules, states
from mpsfunc.convolution.laid_out import LaidOut
from mpsfunc.convolution.spec import Spec
from mpsfunc.convolution.states import ConvState, OptionName
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike


def fully_connected(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Every output channel is a weighted sum of the whole image.

    ``y[n,0,0,o] = neuron(b[o] + sum over h, w, c of w[o,h,w,c] * x[n,h,w,c])``, which is
    ``x.reshape(n, -1) @ w.reshape(o, -1).T + b``. Weights have the order height, width, channel; those of a PyTorch
    layer after ``flatten`` are ``w.reshape(o, c, h, w).transpose(0, 2, 3, 1)`` here.

    Source: ``MPSCNNFullyConnected``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU. Vectors are (n, 1, 1, c).
        w: Weights (o, h, w, c) of any floating dtype.
        b: Bias (o,). Default: none.
        neuron: Activation of the sum, as for `conv`. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, 1, 1, o) of x's dtype.

    Raises:
        TypeError: An argument is not a floating array, or float64 on a GPU.
        ValueError: The weights are not (o, h, w, c), or the bias is not (o,).

    Example:
        >>> x = mx.arange(4.0).reshape(1, 2, 2, 1)
        >>> w = mx.array([1.0, 10.0, 100.0, 1000.0]).reshape(1, 2, 2, 1)
        >>> fully_connected(x, w, mx.array([0.5])).item()
        3210.5
    """
    return forward(x, w, b, neuron, stream, keeping=False)[0]


def fully_connected_fwd(
    x: mx.array,
    w: mx.array,
    b: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, ConvState]:
    """`fully_connected`, and the state that its gradients need. Arguments and errors are those of `fully_connected`.

    Returns:
        The result, and a state with zero gradients, which `conv_grad_input` and `conv_grad_weights` take as well. With
        an activation it also keeps what its slope is computed from.

    Example:
        >>> y, state = fully_connected_fwd(mx.ones((5, 2, 2, 3)), mx.ones((4, 2, 2, 3)))
        >>> y.shape, state.dw.shape
        ((5, 1, 1, 4), (4, 2, 2, 3))
    """
    y, kept, how, spec = forward(x, w, b, neuron, stream, keeping=True)
    state = states.zero_state(tuple(w.shape), launch.accumulator(x.dtype), spec, how, kept)
    return y, ConvState(op="conv", **state)


def fully_connected_grad(
    dy: mx.array, x: mx.array, w: mx.array, state: ConvState, *, option: OptionName = "all", stream: StreamLike = None
) -> tuple[mx.array | None, ConvState]:
    """The gradients of `fully_connected` that ``option`` names.

    ``dx = (dz @ w.reshape(o, -1)).reshape(x.shape)``, ``dw += (dz.T @ x.reshape(n, -1)).reshape(w.shape)`` and ``db +=
    dz.sum(0)``, where ``dz`` is dy, or with an activation dy times the activation's slope. The slopes of a "prelu"
    count as constants; ``prelu_grad(dy, state.y, state.slopes)`` has their gradient.

    Source: ``MPSCNNFullyConnectedGradient``.

    Args:
        dy: Gradient of the result (n, 1, 1, o).
        x: The images (n, h, w, c).
        w: The weights.
        state: From `fully_connected_fwd` or an earlier call.
        option: "data", "weights_and_bias" or "all" (default).
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient of the images, or None if the option leaves it out; and the state, with the sums added to ``dw``
        and ``db`` if the option has them.

    Raises:
        TypeError: An array is not floating, dtypes of dy and x differ, or state is not a ConvState.
        ValueError: An array does not belong to the state, or option is unknown.

    Example:
        >>> x = mx.arange(4.0).reshape(1, 2, 2, 1)
        >>> w = mx.array([1.0, 10.0, 100.0, 1000.0]).reshape(1, 2, 2, 1)
        >>> y, state = fully_connected_fwd(x, w)
        >>> dx, state = fully_connected_grad(mx.full(y.shape, 2.0), x, w, state)
        >>> dx.reshape(-1), state.dw.reshape(-1), state.db
        (array([2, 20, 200, 2000], dtype=float32), array([0, 2, 4, 6], dtype=float32), array([2], dtype=float32))
    """
    op, stream = "fully_connected_grad", launch.resolve(stream)
    data, parameters = states.option(op, option)
    dz, spec = states.gradient(op, dy, state, ConvState, "n_out", stream)
    states.of_state(op, w, state, stream)
    states.source(op, x, dy, state, "n_in", stream)
    with mx.stream(stream):
        dx = rules.grad_input(dz, w, None, spec) if data else None
    if parameters:
        state = states.accumulated(state, *rules.grad_parameters(dz, x, spec), stream)
    return dx, state


def forward(
    x: mx.array,
    w: mx.array,
    b: mx.array | None,
    neuron: NeuronName | Neuron | None,
    stream: StreamLike,
    *,
    keeping: bool,
    laid: LaidOut | None = None,
) -> tuple[mx.array, mx.array, FusedActivation, Spec]:
    """`fully_connected`, and what its state is made of.

    Weights that are laid out stand in for w, of which then only shape and dtype count.
    """
    op, stream = "fully_connected", launch.resolve(stream)
    how = states.arrays(op, x, w, b, neuron, stream)
    n, height, width, channels = x.shape
    if w.shape[1:] == (width, channels, height):  # of images with their axes in PyTorch's order, which these seem to be
        checks.shape(op, "x", x, (n, *w.shape[1:]), "the weights do not fit the images")
    checks.shape(op, "w", w, ("o", *x.shape[1:]), "the weights do not fit the images")
    x_shape, w_shape = tuple(x.shape), tuple(w.shape)
    spec = states.placed(op, "w.shape", x_shape, w_shape, 1, stream, b is not None, stride=1)
    function = rules.conv if laid is None else laid.conv
    y, kept = states.activated(function, x, w, b, spec, how, keeping=keeping, inference=laid is not None)
    return y, kept, how, spec
