"""Activations by name, their gradients, and the one whose slopes are learned (``MPSCNNNeuron*``, ``...Gradient``)."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.activation import fused, prelu_rules
from mpsfunc.activation.fused import FusedActivation
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike


def neuron(
    x: mx.array,
    type: NeuronName,
    a: float | mx.array | None = None,
    b: float | None = None,
    c: float | None = None,
    *,
    stream: StreamLike = None,
) -> mx.array:
    r"""An activation, ``f(x)`` for each element.

    =================  ==================================  ======================
    type               f(x)                                defaults
    =================  ==================================  ======================
    "none"             x
    "relu"             x if x >= 0 else a * x              a = 0
    "linear"           a * x + b                           a = 1, b = 0
    "sigmoid"          1 / (1 + e^-x)
    "hard_sigmoid"     a * x + b within 0 to 1             a = 0.2, b = 0.5
    "tanh"             a * tanh(b * x)                     a = 1, b = 1
    "absolute"         \|x\|
    "softplus"         a * log(1 + e^(b * x))              a = 1, b = 1
    "softsign"         x / (1 + \|x\|)
    "elu"              x if x >= 0 else a * (e^x - 1)      a = 1
    "prelu"            x if x >= 0 else a[channel] * x     an array
    "relun"            min(x if x >= 0 else a * x, b)      a = 1, b = 6
    "power"            (a * x + b)^c                       a = 1, b = 0, c = 1
    "exponential"      c^(a * x + b), e for c = -1         a = 1, b = 0, c = -1
    "logarithm"        log of a * x + b to base c          a = 1, b = 0, c = -1
    "gelu"             x / 2 * (1 + erf(x / sqrt(2)))
    "silu"             x / (1 + e^(-a * x))                a = 1
    "hard_swish"       x * (x + 3 within 0 to 6) / 6
    "mish"             x * tanh(log(1 + e^x))
    "gelu_tanh"        "gelu" by tanh, see `gelu_tanh`
    "gelu_fast"        "silu" with a = 1.702
    "celu"             x if x >= 0 else a * (e^(x/a) - 1)  a = 1
    "selu"             "elu" times a factor, see `selu`
    "hard_tanh"        x within a to b                     a = -1, b = 1
    "hard_shrink"      x if \|x\| > a else 0               a = 0.5
    "soft_shrink"      x, nearer to 0 by a                 a = 0.5
    "relu2"            x^2 if x >= 0 else 0
    "relu6"            "relun" with a = 0, b = 6
    "log_sigmoid"      "softplus" with a = -1, b = -1
    "step"             1 if x >= a else 0                  a = 0
    =================  ==================================  ======================

    Each is computed in float32 (float64 for float64 arrays) and rounded once, without overflow on the way. Where there
    is no derivative, it is the derivative from the right, as in MPS, with the exceptions in
    docs/families/activation.md. Differentiable in x, and in the slopes of "prelu".

    Source: ``MPSCNNNeuron`` and its subclasses, with their defaults; MPS does not have those below "gelu".

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU. For "prelu" channels are its last
            axis.
        type: One of the names above.
        a: First parameter; for "prelu" an array with a slope for each channel. Default: as above.
        b: Second parameter.
        c: Third parameter.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x or slopes are not a floating array, type is not a string, or a parameter is not a number.
        ValueError: There is no such type, it has no such parameter, c is not a possible base, or slopes do not fit x.

    Example:
        >>> neuron(mx.array([-2.0, 0.5, 9.0]), "relun", 0.5, 6.0)
        array([-1, 0.5, 6], dtype=float32)
    """
    stream = launch.resolve(stream)
    how = _read("neuron", x, type, (a, b, c), stream)
    with mx.stream(stream):
        return fused.apply_activation(x, how, stream)


def neuron_grad(
    dy: mx.array,
    x: mx.array,
    type: NeuronName,
    a: float | mx.array | None = None,
    b: float | None = None,
    c: float | None = None,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `neuron` with respect to x: ``dy * f'(x)``.

    Where f has no derivative, f' is the derivative from the right: that of "relu", "elu" and "prelu" is 1 at 0, that of
    "relun" 0 at b. "hard_sigmoid" has the slope a at both of its ends, "absolute" has 0 at 0. Parameters get no
    gradient here, as in MPS; `prelu_grad` has that of slopes.

    Source: ``MPSCNNNeuronGradient``. Apple's header prints b for the slope of "relun" from b on, where it is 0, and in
    its first version tests x, not a * x + b, for "hard_sigmoid".

    Args:
        dy: Gradient of the result, of x's shape and dtype.
        x: The array that was activated.
        type: As for `neuron`, like its parameters.
        a: First parameter.
        b: Second parameter.
        c: Third parameter.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: As for `neuron`, or dy and x differ in dtype.
        ValueError: As for `neuron`, or dy and x differ in shape.

    Example:
        >>> neuron_grad(
        ...     mx.array([1.0, 1.0, 1.0]), mx.array([-2.0, 0.0, 6.0]), "relun", 0.5, 6.0
        ... )
        array([0.5, 1, 0], dtype=float32)
    """
    stream = launch.resolve(stream)
    how = _read("neuron_grad", x, type, (a, b, c), stream)
    _check_gradient("neuron_grad", dy, x, stream)
    with mx.stream(stream):
        return fused.grad_from_input(dy, x, how, stream)


def prelu(x: mx.array, slopes: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x if x >= 0 else slopes[channel] * x``, differentiable in both.

    Source: ``MPSCNNNeuronPReLU``.

    Args:
        x: An array with channels in its last axis.
        slopes: A slope for each channel (c,), of any floating dtype.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: One is not a floating array.
        ValueError: x has no axis, or slopes is not (c,).

    Example:
        >>> prelu(mx.array([[-2.0, -2.0], [1.0, -4.0]]), mx.array([0.5, 0.25]))
        array([[-1, -0.5],
               [1, -1]], dtype=float32)
    """
    stream = launch.resolve(stream)
    _check_prelu("prelu", x, slopes, stream)
    with mx.stream(stream):
        return prelu_rules.prelu(x, slopes, stream)


def prelu_grad(dy: mx.array, x: mx.array, slopes: mx.array, *, stream: StreamLike = None) -> tuple[mx.array, mx.array]:
    """Gradients of `prelu` with respect to x and to the slopes.

    ``dx = dy if x >= 0 else slopes[channel] * dy``, and ``dslopes[channel]`` is the sum of ``dy * x`` over all x below
    0 of the channel.

    Source: ``MPSCNNNeuronGradient`` for the first; MPS has no gradient of slopes.

    Args:
        dy: Gradient of the result, of x's shape and dtype.
        x: The array that was activated.
        slopes: The slopes (c,).
        stream: Stream or device to run on. Default: the current one.

    Returns:
        dx, of x's shape and dtype, and dslopes (c,), float32 (float64 for a float64 x).

    Raises:
        TypeError: One is not a floating array, or dy and x differ in dtype.
        ValueError: x has no axis, slopes is not (c,), or dy and x differ in shape.

    Example:
        >>> x, slopes = mx.array([[-2.0, -2.0], [1.0, -4.0]]), mx.array([0.5, 0.25])
        >>> prelu_grad(mx.ones((2, 2)), x, slopes)[1]
        array([-2, -6], dtype=float32)
    """
    stream = launch.resolve(stream)
    _check_prelu("prelu_grad", x, slopes, stream)
    _check_gradient("prelu_grad", dy, x, stream)
    with mx.stream(stream):
        return prelu_rules.prelu_grad_input(dy, x, slopes, stream), prelu_rules.prelu_grad_slopes(dy, x, stream)


def _read(op: str, x: mx.array, type: object, parameters: Sequence[object], stream: mx.Stream) -> FusedActivation:
    checks.array(op, "x", x, stream=stream)
    return fused.parsed(op, "type", type, parameters, _channels(x), stream, of=x.shape)


def _check_prelu(op: str, x: mx.array, slopes: mx.array, stream: mx.Stream) -> None:
    checks.array(op, "x", x, stream=stream)
    fused.check_slopes(op, "slopes", slopes, _channels(x), stream, of=x.shape)


def _check_gradient(op: str, dy: mx.array, x: mx.array, stream: mx.Stream) -> None:
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, tuple(x.shape), "dy does not belong to x")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)


def _channels(x: mx.array) -> int | None:
    return x.shape[-1] if x.ndim else None
