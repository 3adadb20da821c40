"""Softmax and its logarithm, with gradients that are computed from the forward result.

``MPSCNNSoftMax``, ``MPSCNNLogSoftMax``, ``MPSCNNSoftMaxGradient`` and ``MPSCNNLogSoftMaxGradient``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.losses import softmax_rules
from mpsfunc.losses.softmax_rules import Spec


def softmax(x: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """Exponentials that add up to 1 along an axis.

    ``y = exp(x - max) / sum of exp(x - max)`` with the maximum and the sum along the axis. An entry of -inf gives 0. A
    line that contains +inf or NaN, or only -inf, is all NaN. For a single channel the result is 1.

    Source: ``MPSCNNSoftMax``, which only works along channels.

    Args:
        x: An array of one axis or more; float32, float16, bfloat16, or float64 on the CPU.
        axis: The axis whose entries add up to 1. Default: the last, the channels of images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or axis is not an int.
        ValueError: x has no such axis.

    Example:
        >>> softmax(mx.log(mx.array([1.0, 2.0, 5.0])))
        array([0.125, 0.25, 0.625], dtype=float32)
    """
    return _forward("softmax", softmax_rules.softmax, x, axis, stream)


def softmax_grad(dy: mx.array, y: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `softmax` with respect to its argument, from what it returned.

    ``dx = y * (dy - sum of dy * y)`` along the axis. As a function of dy it is its own transpose, since the Jacobian is
    symmetric. In float16 and bfloat16 the mean ``sum of dy * y`` is first subtracted from dy. That changes nothing if y
    adds up to exactly 1, and keeps the gradient exact where an entry is near 1 and y adds up to 1 only up to rounding.

    Source: ``MPSCNNSoftMaxGradient``, whose second image is the forward result too, not the forward source.

    Args:
        dy: Gradient of what `softmax` returned, of y's shape and dtype.
        y: What `softmax` returned.
        axis: The axis that it was given. Default: the last.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of y's shape and dtype.

    Raises:
        TypeError: dy or y is not a floating array, their dtypes differ, or axis is not an int.
        ValueError: y has no such axis, or dy and y differ in shape.

    Example:
        >>> y = mx.array([0.125, 0.25, 0.625])
        >>> softmax_grad(mx.array([1.0, 0.0, 2.0]), y)
        array([-0.046875, -0.34375, 0.390625], dtype=float32)
    """
    return _backward("softmax_grad", softmax_rules.softmax_grad, dy, y, axis, stream)


def softmin(x: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """`softmax` of -x: exponentials of -x that add up to 1 along an axis.

    Source: ``softmin`` of PyTorch.

    Args:
        x: An array of one axis or more; float32, float16, bfloat16, or float64 on the CPU.
        axis: The axis whose entries add up to 1. Default: the last, the channels of images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or axis is not an int.
        ValueError: x has no such axis.

    Example:
        >>> softmin(-mx.log(mx.array([1.0, 2.0, 5.0])))
        array([0.125, 0.25, 0.625], dtype=float32)
    """
    return _forward("softmin", softmax_rules.softmin, x, axis, stream)


def log_softmax(x: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """The logarithm of `softmax`, computed without underflow.

    ``y = x - max - log(sum of exp(x - max))`` with the maximum and the sum along the axis. An entry of -inf stays -inf.
    A line that contains +inf or NaN, or only -inf, is all NaN. For a single channel the result is 0.

    Source: ``MPSCNNLogSoftMax``, which only works along channels.

    Args:
        x: An array of one axis or more; float32, float16, bfloat16, or float64 on the CPU.
        axis: The axis whose exponentials add up to 1. Default: the last, the channels of images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, or axis is not an int.
        ValueError: x has no such axis.

    Example:
        >>> y = log_softmax(mx.log(mx.array([1.0, 2.0, 5.0])))
        >>> [round(v, 5) for v in y.tolist()]
        [-2.07944, -1.38629, -0.47]
    """
    return _forward("log_softmax", softmax_rules.log_softmax, x, axis, stream)


def log_softmax_grad(dy: mx.array, y: mx.array, axis: int = -1, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `log_softmax` with respect to its argument, from what it returned.

    ``dx = dy - exp(y) * sum of dy`` along the axis.

    Source: ``MPSCNNLogSoftMaxGradient``, whose second image is the forward result too, not the forward source.

    Args:
        dy: Gradient of what `log_softmax` returned, of y's shape and dtype.
        y: What `log_softmax` returned.
        axis: The axis that it was given. Default: the last.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of y's shape and dtype.

    Raises:
        TypeError: dy or y is not a floating array, their dtypes differ, or axis is not an int.
        ValueError: y has no such axis, or dy and y differ in shape.

    Example:
        >>> y = mx.log(mx.array([0.125, 0.25, 0.625]))
        >>> dx = log_softmax_grad(mx.array([1.0, 0.0, 2.0]), y)
        >>> [round(v, 5) for v in dx.tolist()]
        [0.625, -0.75, 0.125]
    """
    return _backward("log_softmax_grad", softmax_rules.log_softmax_grad, dy, y, axis, stream)


def _forward(op: str, kernel: Callable[..., mx.array], x: mx.array, axis: int, stream: StreamLike) -> mx.array:
    stream = launch.resolve(stream)
    checks.array(op, "x", x, stream=stream)
    return _by_lines(op, kernel, (x,), checks.axis(op, "x", x, axis), stream)


def _backward(
    op: str, kernel: Callable[..., mx.array], dy: mx.array, y: mx.array, axis: int, stream: StreamLike
) -> mx.array:
    stream = launch.resolve(stream)
    checks.array(op, "y", y, stream=stream)
    at = checks.axis(op, "y", y, axis)
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, tuple(y.shape), "dy does not belong to y")
    checks.same_dtype(op, "dy", dy, "y", y.dtype)
    return _by_lines(op, kernel, (dy, y), at, stream)


def _by_lines(
    op: str, kernel: Callable[..., mx.array], arrays: tuple[mx.array, ...], axis: int, stream: mx.Stream
) -> mx.array:
    shape = tuple(arrays[0].shape)
    lines = softmax_rules.lines(op, shape, axis)
    if shape == lines:
        return kernel(*arrays, Spec(stream))
    folded: Any = [mx.reshape(a, lines, stream=stream) for a in arrays]
    return mx.reshape(kernel(*folded, Spec(stream)), shape, stream=stream)
