"""Normalizations of sequences (n, l, c): those of images of one row.

The images are views, so nothing is copied, and derivatives of every order are those of the normalizations. For states,
running statistics and explicit gradients call `bn_stats`, `bn_normalize` and their kin on ``x[:, None]``.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.activation.fused import Neuron
from mpsfunc.channels.activation_spec import NeuronName
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.normalization import across_processes, batch, instance
from mpsfunc.normalization.across_processes import Group
from mpsfunc.normalization.batch_statistics import check_filled


def batch_norm1d(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes each channel of sequences by its statistics over the batch: `batch_norm` of images of one row.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance of each channel over n and
    l, then the activation.

    Source: ``MPSCNNBatchNormalization`` of images of one row; PyTorch's ``BatchNorm1d`` in training, of (n, c, l).

    Args:
        x: Sequences (n, l, c) with n >= 1; float32, float16, bfloat16, or float64 on the CPU.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: As for `batch_norm`.
        group: As for `batch_norm`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, float64 on a GPU, eps is not a number, neuron is not an
            activation, or group is not a group.
        ValueError: x is not (n, l, c) or has no elements, lengths differ, eps is negative or not finite, or neuron's
            name or parameters are not those of an activation.

    Example:
        >>> batch_norm1d(mx.array([1.0, 3.0]).reshape(1, 2, 1), eps=0.0).reshape(-1)
        array([-1, 1], dtype=float32)
    """
    op, stream = "batch_norm1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream)
    check_filled(op, x, across_processes.others(op, group), stream)
    with mx.stream(stream):
        return batch.forward(op, x[:, None], gamma, beta, eps, None, neuron, group, stream)[0].squeeze(1)


def instance_norm1d(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes each channel of each sequence by its own statistics: `instance_norm` of images of one row.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance of each channel of each
    sequence over l, then the activation.

    Source: ``MPSCNNInstanceNormalization`` of images of one row; PyTorch's ``InstanceNorm1d``, of (n, c, l).

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, or float64 on the CPU.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: As for `instance_norm`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, float64 on a GPU, eps is not a number, or neuron is not an
            activation.
        ValueError: x is not (n, l, c), lengths differ, eps is negative or not finite, or neuron's name or parameters
            are not those of an activation.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 2, 1)
        >>> instance_norm1d(x, eps=0.0).reshape(-1)
        array([-1, 1, -1, 1], dtype=float32)
    """
    op, stream = "instance_norm1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream)
    with mx.stream(stream):
        return instance.normalized_images(op, x[:, None], gamma, beta, None, eps, neuron, stream)[0].squeeze(1)


def group_norm1d(
    x: mx.array,
    groups: int,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes groups of neighbouring channels of each sequence: `group_norm` of images of one row.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance of each group of each
    sequence over l and the channels of the group, then the activation.

    Source: ``MPSCNNGroupNormalization`` of images of one row; PyTorch's ``group_norm``, of (n, c, l).

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, or float64 on the CPU.
        groups: Groups of c / groups channels each; 1 takes a sequence as a whole.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: As for `group_norm`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, float64 on a GPU, groups is not an int, eps is not a number, or
            neuron is not an activation.
        ValueError: x is not (n, l, c), groups do not divide the channels, lengths differ, eps is negative or not
            finite, or neuron's name or parameters are not those of an activation.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(1, 1, 4)
        >>> group_norm1d(x, 2, eps=0.0).reshape(-1)
        array([-1, 1, -1, 1], dtype=float32)
    """
    op, stream = "group_norm1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream)
    with mx.stream(stream):
        return instance.normalized_images(op, x[:, None], gamma, beta, groups, eps, neuron, stream)[0].squeeze(1)
