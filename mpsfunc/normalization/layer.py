"""Layer normalization over channels and its gradients, which MPS does not have."""

from __future__ import annotations

import math

import mlx.core as mx

from mpsfunc.channels import accumulation
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.normalization import layer_rules
from mpsfunc.normalization.composed import checked_eps
from mpsfunc.normalization.layer_rules import Spec


def layer_norm(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes each pixel by the statistics of its own channels, then scales and shifts it.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance over the last axis.
    Differentiable through the statistics. Sums are float32 (float64 for float64 images). On a CPU it is a kernel; on a
    GPU MLX's ``mx.fast.layer_norm`` runs.

    Source: PyTorch's ``layer_norm(x, (c,))``, ``mlx.nn.LayerNorm``; Ba, Kiros and Hinton (2016). MPS has none.

    Args:
        x: Images (n, h, w, c), or an array of another rank >= 1 with c entries along its last axis; float32, float16,
            bfloat16, or float64 on the CPU.
        gamma: Scale (c,) of any floating dtype. Default: ones.
        beta: Shift (c,) of any floating dtype. Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, or eps is not a number.
        ValueError: x has no channels, lengths differ, or eps is negative or not finite.

    Example:
        >>> layer_norm(mx.array([[1.0, 3.0], [2.0, 6.0]]), mx.array([1.0, 2.0]), eps=0.0)
        array([[-1, 2],
               [-1, 2]], dtype=float32)
    """
    op = "layer_norm"
    stream = launch.resolve(stream)
    checks.array(op, "x", x, stream=stream)
    groups, lines, channels = _lines(op, x)
    scale, shift = _one_group(op, "gamma", gamma, 1.0, x, stream), _one_group(op, "beta", beta, 0.0, x, stream)
    folded = mx.reshape(x, (groups, lines, channels), stream=stream)
    y = layer_rules.layer_norm(folded, scale, shift, Spec(checked_eps(op, eps), stream))
    return mx.reshape(y, x.shape, stream=stream)


def layer_norm_grad(
    dy: mx.array,
    x: mx.array,
    gamma: mx.array | None = None,
    *,
    eps: float = 1e-5,
    stream: StreamLike = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradients of `layer_norm`: of x, of the scale and of the shift.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and means over the last axis:
    ``dx = (gamma * dy - mean(gamma * dy) - xhat * mean(gamma * dy * xhat)) / sqrt(var + eps)``; ``dgamma`` and
    ``dbeta`` are the sums of ``dy * xhat`` and ``dy`` over all other axes. Statistics are computed again from x. On a
    CPU it is a kernel; on a GPU MLX's operations run.

    Source: PyTorch's ``native_layer_norm_backward``. MPS has none.

    Args:
        dy: Gradient of what `layer_norm` returned, of x's shape and dtype.
        x: What was normalized.
        gamma: Scale (c,) of any floating dtype. Default: ones.
        eps: What the forward function was given. Default 1e-5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The gradient of x, of its shape and dtype, and those of scale and shift (c,), float32 (float64 for float64
        images).

    Raises:
        TypeError: An argument is not a floating array, dy and x differ in dtype, or eps is not a number.
        ValueError: x has no channels, dy, x or gamma differ in shape, or eps is negative or not finite.

    Example:
        >>> x, dy = mx.array([[1.0, 3.0], [2.0, 6.0]]), mx.array([[1.0, -2.0], [3.0, 2.0]])
        >>> dx, dgamma, dbeta = layer_norm_grad(dy, x, eps=0.0)
        >>> dgamma, dbeta
        (array([-4, 0], dtype=float32), array([4, 0], dtype=float32))
    """
    op = "layer_norm_grad"
    stream = launch.resolve(stream)
    checks.array(op, "x", x, stream=stream)
    groups, lines, channels = _lines(op, x)
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, tuple(x.shape), "dy does not belong to x")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    scale = _one_group(op, "gamma", gamma, 1.0, x, stream)
    pulled, source = (mx.reshape(a, (groups, lines, channels), stream=stream) for a in (dy, x))
    dx, *of_vectors = layer_rules.layer_norm_grad(pulled, source, scale, Spec(checked_eps(op, eps), stream))
    dgamma, dbeta = (mx.reshape(v, (channels,), stream=stream) for v in of_vectors)
    return mx.reshape(dx, x.shape, stream=stream), dgamma, dbeta


def _lines(op: str, x: mx.array) -> tuple[int, int, int]:
    """The shape as one group of lines."""
    shape = tuple(x.shape)
    if not shape or not shape[-1]:
        raise ValueError(
            f"{op}: x has no channels; got x.shape={describe(shape)}, expected one or more along the last axis"
        )
    return 1, math.prod(shape[:-1]), shape[-1]


def _one_group(op: str, name: str, vector: mx.array | None, fill: float, x: mx.array, stream: mx.Stream) -> mx.array:
    """Scale or shift (1, c) of the only group; filled where it is absent."""
    if vector is None:
        vector = accumulation.constant(fill, x.shape[-1], launch.accumulator(x.dtype))
    else:
        checks.array(op, name, vector, stream=stream)
        checks.shape(op, name, vector, (x.shape[-1],), f"{name} does not fit the channels", of=x.shape)
    return mx.reshape(vector, (1, x.shape[-1]), stream=stream)
