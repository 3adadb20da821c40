"""The activations as functions of their own, each `neuron` with a type; errors are its."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.channels import activation_rules
from mpsfunc.channels.activation_rules import ActivationSpec
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike


def relu(x: mx.array, a: float = 0.0, *, stream: StreamLike = None) -> mx.array:
    """``x if x >= 0 else a * x``; its derivative at 0 is 1.

    Source: ``MPSCNNNeuronReLU``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Slope below 0. Default 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> relu(mx.array([-2.0, 3.0]), 0.5)
        array([-1, 3], dtype=float32)
    """
    return apply("relu", x, stream, a)


def linear(x: mx.array, a: float = 1.0, b: float = 0.0, *, stream: StreamLike = None) -> mx.array:
    """``a * x + b``.

    Source: ``MPSCNNNeuronLinear``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Slope. Default 1.
        b: Value at 0. Default 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> linear(mx.array([-2.0, 3.0]), 2.0, 1.0)
        array([-3, 7], dtype=float32)
    """
    return apply("linear", x, stream, a, b)


def sigmoid(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``1 / (1 + e^-x)``.

    Source: ``MPSCNNNeuronSigmoid``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> sigmoid(mx.array([0.0, 100.0]))
        array([0.5, 1], dtype=float32)
    """
    return apply("sigmoid", x, stream)


def hard_sigmoid(x: mx.array, a: float = 0.2, b: float = 0.5, *, stream: StreamLike = None) -> mx.array:
    """``a * x + b``, clipped to [0, 1]; its slope where it reaches 0 or 1 is a.

    Source: ``MPSCNNNeuronHardSigmoid``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Slope in the middle. Default 0.2.
        b: Value at 0. Default 0.5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> hard_sigmoid(mx.array([-9.0, 0.0, 9.0]))
        array([0, 0.5, 1], dtype=float32)
    """
    return apply("hard_sigmoid", x, stream, a, b)


def tanh(x: mx.array, a: float = 1.0, b: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """The hyperbolic tangent of ``b * x``, times a.

    Source: ``MPSCNNNeuronTanH``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of the result. Default 1.
        b: Factor of x. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> tanh(mx.array([0.0, 50.0]), 3.0, 0.5)
        array([0, 3], dtype=float32)
    """
    return apply("tanh", x, stream, a, b)


def absolute(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``|x|``; its derivative at 0 is 0.

    Source: ``MPSCNNNeuronAbsolute``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> absolute(mx.array([-2.0, 3.0]))
        array([2, 3], dtype=float32)
    """
    return apply("absolute", x, stream)


def softplus(x: mx.array, a: float = 1.0, b: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``a * log(1 + e^(b * x))``.

    Source: ``MPSCNNNeuronSoftPlus``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of the result. Default 1.
        b: Factor of x. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> softplus(mx.array([-200.0, 200.0]), 2.0)
        array([0, 400], dtype=float32)
    """
    return apply("softplus", x, stream, a, b)


def softsign(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x / (1 + |x|)``.

    Source: ``MPSCNNNeuronSoftSign``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> softsign(mx.array([-1.0, 3.0]))
        array([-0.5, 0.75], dtype=float32)
    """
    return apply("softsign", x, stream)


def elu(x: mx.array, a: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``x if x >= 0 else a * (e^x - 1)``; its derivative at 0 is 1.

    Source: ``MPSCNNNeuronELU``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: The limit at minus infinity is -a. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> elu(mx.array([-100.0, 3.0]), 0.5)
        array([-0.5, 3], dtype=float32)
    """
    return apply("elu", x, stream, a)


def relun(x: mx.array, a: float = 1.0, b: float = 6.0, *, stream: StreamLike = None) -> mx.array:
    """``min(x if x >= 0 else a * x, b)``; its derivative at b is 0.

    ``relun(x, 0.0, 6.0)`` is `relu6`. The default of a is MPS's.

    Source: ``MPSCNNNeuronReLUN``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Slope below 0. Default 1.
        b: The largest value. Default 6.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> relun(mx.array([-2.0, 3.0, 8.0]), 0.0)
        array([0, 3, 6], dtype=float32)
    """
    return apply("relun", x, stream, a, b)


def power(x: mx.array, a: float = 1.0, b: float = 0.0, c: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``(a * x + b)^c``.

    For a negative base the result is NaN, unless c is an integer.

    Source: ``MPSCNNNeuronPower``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of x. Default 1.
        b: Added to it. Default 0.
        c: Exponent. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> power(mx.array([-2.0, 3.0]), c=2.0)
        array([4, 9], dtype=float32)
    """
    return apply("power", x, stream, a, b, c)


def exponential(x: mx.array, a: float = 1.0, b: float = 0.0, c: float = -1.0, *, stream: StreamLike = None) -> mx.array:
    """``c^(a * x + b)``.

    Source: ``MPSCNNNeuronExponential``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of x. Default 1.
        b: Added to it. Default 0.
        c: Base, more than 0; -1 stands for e. Default -1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not a possible base, or not finite.

    Example:
        >>> exponential(mx.array([0.0, 3.0]), c=2.0)
        array([1, 8], dtype=float32)
    """
    return apply("exponential", x, stream, a, b, c)


def logarithm(x: mx.array, a: float = 1.0, b: float = 0.0, c: float = -1.0, *, stream: StreamLike = None) -> mx.array:
    """The logarithm of ``a * x + b`` to the base c.

    Source: ``MPSCNNNeuronLogarithm``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of x. Default 1.
        b: Added to it. Default 0.
        c: Base, more than 0 but not 1; -1 stands for e. Default -1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not a possible base, or not finite.

    Example:
        >>> logarithm(mx.array([1.0, 8.0]), c=2.0)
        array([0, 3], dtype=float32)
    """
    return apply("logarithm", x, stream, a, b, c)


def gelu(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x / 2 * (1 + erf(x / sqrt(2)))``, x times the probability that a normal value is less.

    This is the exact one; `gelu_tanh` and `gelu_fast` are approximations.

    Source: ``MPSCNNNeuronGeLU``.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> gelu(mx.array([0.0, 100.0]))
        array([0, 100], dtype=float32)
    """
    return apply("gelu", x, stream)


def apply(name: NeuronName, x: mx.array, stream: StreamLike, *parameters: float) -> mx.array:
    """`neuron` of a type, whose name errors tell."""
    stream = launch.resolve(stream)
    checks.array(name, "x", x, stream=stream)
    return activation_rules.neuron(x, ActivationSpec(activation_rules.activation(name, name, *parameters), stream))
