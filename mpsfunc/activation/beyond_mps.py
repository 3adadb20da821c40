"""Activations that MPS does not have, as PyTorch, MLX or the papers they come from define them.

Each is `neuron` with a type, but for `glu`, which has two images; errors are its.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.activation import glu_rules
from mpsfunc.activation.activations import apply
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe


def silu(x: mx.array, a: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``x / (1 + e^(-a * x))``, known as swish too.

    Source: Ramachandran, Zoph and Le, Searching for activation functions, 2017, whose beta is a.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Factor of x in the sigmoid. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> silu(mx.array([-200.0, 0.0, 200.0]))
        array([0, 0, 200], dtype=float32)
    """
    return apply("silu", x, stream, a)


def hard_swish(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x * min(max(x + 3, 0), 6) / 6``; its derivative at -3 is -0.5, at 3 it is 1.

    Source: Howard et al., Searching for MobileNetV3, 2019.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> hard_swish(mx.array([-4.0, 1.5, 4.0]))
        array([0, 1.125, 4], dtype=float32)
    """
    return apply("hard_swish", x, stream)


def mish(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x * tanh(log(1 + e^x))``.

    Source: Misra, Mish: a self regularized non-monotonic activation function, 2019.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> mish(mx.array([-200.0, 0.0, 200.0]))
        array([0, 0, 200], dtype=float32)
    """
    return apply("mish", x, stream)


def gelu_tanh(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """An approximation of `gelu`, ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``.

    In float32 the error is about 15 units in the last place down to x = -3, and about 200 down to -13.

    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016; ``gelu(approximate="tanh")`` of PyTorch.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> round(gelu_tanh(mx.array(1.0)).item(), 4)
        0.8412
    """
    return apply("gelu_tanh", x, stream)


def gelu_fast(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """A less exact approximation of `gelu`, ``x / (1 + e^(-1.702 * x))``: `silu` with an a of 1.702.

    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016; ``gelu_fast_approx`` of MLX.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> round(gelu_fast(mx.array(1.0)).item(), 4)
        0.8458
    """
    return apply("gelu_fast", x, stream)


def celu(x: mx.array, a: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``x if x >= 0 else a * (e^(x / a) - 1)``; its derivative at 0 is 1.

    Source: Barron, Continuously differentiable exponential linear units, 2017.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: The limit at minus infinity is -a; more than 0. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite, or a is not positive.

    Example:
        >>> celu(mx.array([-100.0, 3.0]), 0.5)
        array([-0.5, 3], dtype=float32)
    """
    return apply("celu", x, stream, a)


def selu(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``l * (x if x >= 0 else s * (e^x - 1))`` with l = 1.0507009873554805 and s = 1.6732632423543772.

    Its derivative at 0 is l. MLX rounds l to 1.0507 and s to 1.67326.

    Source: Klambauer et al., Self-normalizing neural networks, 2017.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> selu(mx.array([0.0, 2.0]))
        array([0, 2.1014], dtype=float32)
    """
    return apply("selu", x, stream)


def hard_tanh(x: mx.array, a: float = -1.0, b: float = 1.0, *, stream: StreamLike = None) -> mx.array:
    """``min(max(x, a), b)``; its derivative at a is 1, at b it is 0.

    Source: ``hardtanh`` of PyTorch.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: The smallest value. Default -1.
        b: The largest value. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite, or a is more than b.

    Example:
        >>> hard_tanh(mx.array([-2.0, 0.5, 2.0]))
        array([-1, 0.5, 1], dtype=float32)
    """
    return apply("hard_tanh", x, stream, a, b)


def hard_shrink(x: mx.array, a: float = 0.5, *, stream: StreamLike = None) -> mx.array:
    """``x if |x| > a else 0``; its derivative is 0 where it is 0.

    Source: ``hardshrink`` of PyTorch.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: Values from -a to a become 0; not negative. Default 0.5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite, or a is negative.

    Example:
        >>> hard_shrink(mx.array([-2.0, 0.5, 2.0]))
        array([-2, 0, 2], dtype=float32)
    """
    return apply("hard_shrink", x, stream, a)


def soft_shrink(x: mx.array, a: float = 0.5, *, stream: StreamLike = None) -> mx.array:
    """``x - a`` above a, ``x + a`` below -a, else 0; its derivative at -a is 0, at a it is 1.

    Source: ``softshrink`` of PyTorch.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: What is subtracted from the absolute value; not negative. Default 0.5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite, or a is negative.

    Example:
        >>> soft_shrink(mx.array([-2.0, 0.5, 2.0]))
        array([-1.5, 0, 1.5], dtype=float32)
    """
    return apply("soft_shrink", x, stream, a)


def relu2(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``x^2 if x >= 0 else 0``; its derivative is ``2 * x if x >= 0 else 0``, the second at 0 is 2.

    Source: So et al., Primer: searching for efficient transformers, 2021.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> relu2(mx.array([-2.0, 3.0]))
        array([0, 9], dtype=float32)
    """
    return apply("relu2", x, stream)


def relu6(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``min(max(x, 0), 6)``: `relun` of 0 and 6; its derivative at 0 is 1, at 6 it is 0.

    Source: Sandler et al., MobileNetV2, 2018.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> relu6(mx.array([-2.0, 3.0, 8.0]))
        array([0, 3, 6], dtype=float32)
    """
    return apply("relu6", x, stream)


def log_sigmoid(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """``-log(1 + e^-x)``, the logarithm of `sigmoid`: `softplus` of -1 and -1.

    Source: ``logsigmoid`` of PyTorch.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array.

    Example:
        >>> log_sigmoid(mx.array([-200.0, 0.0]))
        array([-200, -0.693147], dtype=float32)
    """
    return apply("log_sigmoid", x, stream)


def step(x: mx.array, a: float = 0.0, *, stream: StreamLike = None) -> mx.array:
    """``1 if x >= a else 0``; its derivative is 0.

    The result at NaN is NaN. MLX's ``step`` returns integers.

    Source: ``step`` of MLX.

    Args:
        x: An array of any shape; float32, float16, bfloat16, or float64 on the CPU.
        a: The threshold. Default 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or a parameter is not a number.
        ValueError: A parameter is not finite.

    Example:
        >>> step(mx.array([-2.0, 0.0, 2.0]))
        array([0, 1, 1], dtype=float32)
    """
    return apply("step", x, stream, a)


def glu(x: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """The first half of x along an axis times the `sigmoid` of the second half.

    Source: Dauphin et al., Language modeling with gated convolutional networks, 2016.

    Args:
        x: An array of one axis or more; float32, float16, bfloat16, or float64 on the CPU.
        axis: The axis that is split into halves, of an even length. Default: the last, the channels of images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's dtype, half as long along the axis.

    Raises:
        TypeError: x is not a floating array, or axis is not an int.
        ValueError: x has no such axis, or its length is odd.

    Example:
        >>> glu(mx.array([2.0, 4.0, 0.0, 200.0]))
        array([1, 4], dtype=float32)
    """
    stream = launch.resolve(stream)
    checks.array("glu", "x", x, stream=stream)
    along = checks.axis("glu", "x", x, axis)
    if x.shape[along] % 2:
        raise ValueError(f"glu: x has no halves; got x.shape={x.shape} along {describe(axis)}, expected an even length")
    result = (*x.shape[:along], x.shape[along] // 2, *x.shape[along + 1 :])
    with mx.stream(stream):
        lying = x.reshape(glu_rules.halves(tuple(x.shape), along))
        return glu_rules.glu(lying, glu_rules.Spec(stream)).reshape(result)
