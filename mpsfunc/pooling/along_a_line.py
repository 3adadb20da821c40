"""Poolings of sequences (n, l, c): those of images of one row.

The images are views, so nothing is copied, and derivatives of every order are those of the poolings. For states and
explicit gradients call `avg_pool_fwd` and the like on ``x[:, None]`` with windows ``(1, k)``.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a, refuse, text
from mpsfunc.core.launch import StreamLike
from mpsfunc.pooling import average, l2, maximum
from mpsfunc.windows import line
from mpsfunc.windows.axis import EdgeMode, MaxEdgeMode
from mpsfunc.windows.line import Sides
from mpsfunc.windows.placement import WindowName
from mpsfunc.windows.policy import PaddingName


def avg_pool1d(
    x: mx.array,
    kernel_size: int | WindowName,
    *,
    stride: int | None = None,
    padding: Sides | PaddingName = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    out_size: int | None = None,
    edge_mode: EdgeMode = "zero",
    zero_pad: Sides = 0,
    divisor_override: int | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Mean over windows along sequences: `avg_pool` of images of one row.

    ``y[n,j,c]`` is the sum over taps q of ``x[n, j * stride - before + q * dilation, c]``, 0 outside the sequence,
    divided by ``kernel_size`` or as ``edge_mode`` and ``divisor_override`` say.

    Source: ``MPSCNNPoolingAverage`` of images of one row; PyTorch's ``avg_pool1d``, of (n, c, l).

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: Taps in a window. Or "global", one window over all; or "adaptive", ``out_size`` windows as in
            adaptive pooling.
        stride: Elements between two windows. Default: ``kernel_size``.
        padding: Elements around the sequence: an int or (before, after), or "same", "same_lower", "valid" or "full" as
            for `avg_pool`. Default 0.
        dilation: Elements between two taps. Default 1.
        ceil_mode: Round the output's length up; no window starts after the sequence. Default False.
        out_size: With "adaptive": the output's length. Default: none.
        edge_mode: As for `avg_pool`: "zero" (default) divides by ``kernel_size``, "clamp" by the taps within
            ``zero_pad`` elements of the sequence.
        zero_pad: With "clamp": zeros around the sequence that count, an int or (before, after). Default 0.
        divisor_override: As for `avg_pool`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences (n, out_l, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: x is not (n, l, c), windows do not fit, or arguments exclude each other.

    Example:
        >>> x = mx.array([1.0, 3.0, 5.0, 7.0]).reshape(1, 4, 1)
        >>> avg_pool1d(x, 2, stride=1).reshape(-1)
        array([2, 4, 6], dtype=float32)
    """
    op, stream = "avg_pool1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream)
    how = _placement(op, kernel_size, stride, padding, dilation, ceil_mode, out_size)
    how |= {"edge_mode": edge_mode, "zero_pad": line.sides(op, "zero_pad", zero_pad)}
    with mx.stream(stream):
        return average.pool(op, x[:, None], stream, divisor_override=divisor_override, **how)[0].squeeze(1)


def max_pool1d(
    x: mx.array,
    kernel_size: int | WindowName,
    *,
    stride: int | None = None,
    padding: Sides | PaddingName = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    out_size: int | None = None,
    edge_mode: MaxEdgeMode = "exclude",
    stream: StreamLike = None,
) -> mx.array:
    """Largest value in windows along sequences: `max_pool` of images of one row.

    ``y[n,j,c]`` is the largest of ``x[n, j * stride - before + q * dilation, c]`` over taps q.

    Source: ``MPSCNNPoolingMax`` and ``MPSCNNDilatedPoolingMax`` of images of one row; PyTorch's ``max_pool1d``, of
    (n, c, l).

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, any integer dtype, or float64 on the CPU.
        kernel_size: As for `avg_pool1d`.
        stride: Elements between two windows. Default: ``kernel_size``.
        padding: As for `avg_pool1d`. Default 0.
        dilation: Elements between two taps. Default 1.
        ceil_mode: Round the output's length up; no window starts after the sequence. Default False.
        out_size: With "adaptive": the output's length. Default: none.
        edge_mode: Values outside the sequence, as for `max_pool`: "exclude" (default) ignores them, with "zero" they
            are 0, and with "clamp" the nearest element.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences (n, out_l, c) of x's dtype.

    Raises:
        TypeError: x is not an array of numbers, or float64 on a GPU; a size is not an int.
        ValueError: x is not (n, l, c), windows do not fit, arguments exclude each other, or with "exclude" a window
            contains no element.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, -7.0]).reshape(1, 4, 1)
        >>> max_pool1d(x, 3, stride=1, padding=1).reshape(-1)
        array([3, 3, 3, 2], dtype=float32)
    """
    op, stream = "max_pool1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream, moved=True)
    how = _placement(op, kernel_size, stride, padding, dilation, ceil_mode, out_size)
    size = how.pop("kernel_size")
    with mx.stream(stream):
        return maximum.pool(op, x[:, None], size, stream, how | {"edge_mode": edge_mode})[0].squeeze(1)


def l2_pool1d(
    x: mx.array,
    kernel_size: int | WindowName,
    *,
    stride: int | None = None,
    padding: Sides | PaddingName = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    out_size: int | None = None,
    edge_mode: EdgeMode = "zero",
    stream: StreamLike = None,
) -> mx.array:
    """Root of the sum of squares in windows along sequences: `l2_pool` of images of one row.

    ``y[n,j,c]`` is the root of the sum over taps q of ``x[n, j * stride - before + q * dilation, c]^2``.

    Source: ``MPSCNNPoolingL2Norm`` of images of one row; PyTorch's ``lp_pool1d`` with ``norm_type=2``, of (n, c, l) and
    without padding.

    Args:
        x: Sequences (n, l, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: As for `avg_pool1d`.
        stride: Elements between two windows. Default: ``kernel_size``.
        padding: As for `avg_pool1d`. Default 0.
        dilation: Elements between two taps. Default 1.
        ceil_mode: Round the output's length up; no window starts after the sequence. Default False.
        out_size: With "adaptive": the output's length. Default: none.
        edge_mode: Values outside the sequence: "zero" (default), or "clamp", the nearest element.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Sequences (n, out_l, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: x is not (n, l, c), windows do not fit, or arguments exclude each other.

    Example:
        >>> l2_pool1d(mx.array([3.0, 4.0, 0.0, 0.0]).reshape(1, 4, 1), 2).reshape(-1)
        array([5, 0], dtype=float32)
    """
    op, stream = "l2_pool1d", launch.resolve(stream)
    checks.sequences(op, "x", x, stream=stream)
    how = _placement(op, kernel_size, stride, padding, dilation, ceil_mode, out_size)
    with mx.stream(stream):
        return l2.pool(op, x[:, None], stream, edge_mode=edge_mode, **how)[0].squeeze(1)


def _placement(
    op: str, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, out_size: Any
) -> dict[str, Any]:
    """Where windows sit on the one row."""
    how = {"ceil_mode": ceil_mode, "offset": None}
    if is_a(kernel_size, str):
        if out_size is None and text(kernel_size) == "adaptive":
            refuse(op, "kernel_size='adaptive' needs out_size", "out_size", out_size, "an int >= 1")
        rows = None if out_size is None else line.step(op, "out_size", out_size)
        given = {"stride": stride, "padding": padding, "dilation": dilation}  # which it refuses, if there is any
        return how | given | {"kernel_size": kernel_size, "out_size": rows}
    if out_size is not None:
        refuse(op, "out_size goes with adaptive windows", "out_size", out_size, "None with kernel_size in elements")
    return how | {
        "kernel_size": line.step(op, "kernel_size", kernel_size),
        "stride": None if stride is None else line.step(op, "stride", stride),
        "padding": line.padding(op, padding),
        "dilation": line.step(op, "dilation", dilation),
        "out_size": None,
    }
