"""Weights made from others: a batch normalization folded into a convolution, and weights from a byte each."""

from __future__ import annotations

import math
import sys
from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe


def fold_batch_norm(
    w: mx.array,
    b: mx.array | None,
    gamma: mx.array | None,
    beta: mx.array | None,
    mean: mx.array,
    var: mx.array,
    eps: float = 1e-5,
    *,
    stream: StreamLike = None,
) -> tuple[mx.array, mx.array]:
    """Weights and bias of a convolution with a batch normalization folded into it, for inference.

    With ``scale = gamma / sqrt(var + eps)``, for each output channel: ``w * scale`` and
    ``b * scale + beta - mean * scale``. A convolution with these returns ``bn_normalize(conv(x, w, b), bn_frozen(mean,
    var, eps), gamma, beta)`` to rounding.

    Source: the batch normalization parameters of ``MPSCNNConvolutionDescriptor``.

    Args:
        w: Weights (o, kh, kw, i / groups) of any floating dtype.
        b: Bias (o,), or None for zeros.
        gamma: Scale (o,), or None for ones.
        beta: Shift (o,), or None for zeros.
        mean: Mean of each channel (o,).
        var: Variance of each channel (o,), none negative.
        eps: Added to the variance. Default 1e-5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Weights of w's dtype, and a bias (o,) of the widest dtype among the arguments, at least float32.

    Raises:
        TypeError: An argument is not a floating array, or eps not a number.
        ValueError: A vector is not (o,), or eps is negative or no finite number.

    Example:
        >>> one = [mx.array([v]) for v in (0.5, 3.0, 0.1, 0.2, 4.0)]
        >>> w, b = fold_batch_norm(mx.full((1, 1, 1, 1), 2.0), *one, eps=0.0)
        >>> w.item(), round(b.item(), 6)
        (3.0, 0.55)
    """
    op, stream = "fold_batch_norm", launch.resolve(stream)
    checks.array(op, "w", w, stream=stream)
    checks.shape(op, "w", w, ("o", "kh", "kw", "i"), "weights have four axes")
    eps = checks.real(op, "eps", eps, "a number >= 0")
    if not 0 <= eps < math.inf or eps > sys.float_info.max:
        raise ValueError(f"{op}: eps is no variance; got eps={describe(eps)}, expected a finite number >= 0")
    absent = {"b": b, "gamma": gamma, "beta": beta}
    vectors = {"mean": mean, "var": var, **{name: a for name, a in absent.items() if a is not None}}
    for name, vector in vectors.items():
        checks.array(op, name, vector, stream=stream)
        checks.shape(op, name, vector, (w.shape[0],), "a vector does not fit the weights")
    dtype = mx.float64 if mx.float64 in {a.dtype for a in (w, *vectors.values())} else mx.float32
    with mx.stream(stream):
        wide = {name: a.astype(dtype) for name, a in vectors.items()}
        scale = mx.rsqrt(wide["var"] + float(eps))
        if "gamma" in wide:
            scale = wide["gamma"] * scale
        shift = -wide["mean"] * scale
        if "beta" in wide:
            shift = wide["beta"] + shift
        if "b" in wide:
            shift = wide["b"] * scale + shift
        return (w.astype(dtype) * scale[:, None, None, None]).astype(w.dtype), shift


def dequantize_weights(
    q: mx.array,
    *,
    low: mx.array | None = None,
    high: mx.array | None = None,
    table: mx.array | None = None,
    dtype: mx.Dtype = mx.float32,
    stream: StreamLike = None,
) -> mx.array:
    """Weights from 8-bit ones, by a range or a table for each output channel.

    ``w[o,...] = q[o,...] / 255 * (high[o] - low[o]) + low[o]``, or ``w[o,...] = table[o, q[o,...]]``.

    Source: the weights of type UInt8 of an ``MPSCNNConvolutionDataSource``, with ``rangesForUInt8Kernel`` or
    ``lookupTableForUInt8Kernel``.

    Args:
        q: Quantized weights (o, kh, kw, i / groups), uint8.
        low: What 0 stands for (o,), floating. With ``high``.
        high: What 255 stands for (o,), floating.
        table: Instead of both: what each byte stands for (o, 256), floating.
        dtype: Of the result, a floating one. Default float32.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Weights (o, kh, kw, i / groups).

    Raises:
        TypeError: q is not uint8, another argument is not floating, or dtype is not.
        ValueError: Shapes do not fit, or neither or both of range and table are given.

    Example:
        >>> q = mx.array([0, 51, 255], mx.uint8).reshape(1, 1, 1, 3)
        >>> dequantize_weights(q, low=mx.array([-1.0]), high=mx.array([1.0])).reshape(-1)
        array([-1, -0.6, 1], dtype=float32)
        >>> dequantize_weights(q, table=mx.arange(256.0)[None] ** 2).reshape(-1)
        array([0, 2601, 65025], dtype=float32)
    """
    op, stream = "dequantize_weights", launch.resolve(stream)
    if not is_a(q, mx.array) or q.dtype != mx.uint8:
        got = q.dtype if is_a(q, mx.array) else describe(q)
        raise TypeError(f"{op}: q does not hold bytes; got q={got}, expected an mx.array of uint8")
    checks.shape(op, "q", q, ("o", "kh", "kw", "i"), "weights have four axes")
    if not is_a(dtype, mx.Dtype) or dtype not in checks.FLOATING:
        raise TypeError(f"{op}: no dtype of weights; got dtype={describe(dtype)}, expected a floating one")
    checks.on_device(op, "dtype", dtype, stream)
    ranged = low is not None and high is not None
    if ranged == (table is not None) or (low is None) != (high is None):
        given = [name for name, a in (("low", low), ("high", high), ("table", table)) if a is not None]
        raise ValueError(f"{op}: not one way to read a byte; got {given}, expected low and high, or table")
    out = q.shape[0]
    some: dict[str, Any] = {"low": low, "high": high} if ranged else {"table": table}
    for name, a in some.items():
        checks.array(op, name, a, stream=stream)
        checks.shape(op, name, a, (out,) if ranged else (out, 256), f"{name} does not fit the weights")
    wide = mx.float64 if any(a.dtype == mx.float64 for a in some.values()) or dtype == mx.float64 else mx.float32
    with mx.stream(stream):
        if ranged:
            low, high = (a.astype(wide)[:, None, None, None] for a in some.values())
            return (q.astype(wide) / 255 * (high - low) + low).astype(dtype)
        values = mx.take_along_axis(some["table"], q.reshape(out, q.size // max(out, 1)).astype(mx.int32), axis=1)
        return values.reshape(q.shape).astype(dtype)
