"""The largest and least of rows, columns, channels or space, and where they are (``MPSNNReduceUnary``)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.pooling import reduction_rules as rules
from mpsfunc.pooling.reduced import Reduced, ReducedName, reduced


def reduce_max(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """The largest element of each row, of each column, of each pixel's channels, or of each channel of an image.

    If an element is NaN, the result is NaN. The gradient goes to the first of equal elements, as in `max_pool`, or to
    the first NaN.

    Source: ``MPSNNReduceRowMax``, ``MPSNNReduceColumnMax`` and ``MPSNNReduceFeatureChannelsMax``, whose gradients Apple
    does not document. MPS has no "space".

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, any integer dtype, or float64 on the CPU.
        over: "rows", "columns", "channels" or "space", as for `reduce_sum`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, 1, c), (n, 1, w, c), (n, h, w, 1) or (n, 1, 1, c) of x's dtype.

    Raises:
        TypeError: x is not an array of numbers, float64 on a GPU, or over is not a name.
        ValueError: x is not NHWC, or over is unknown.

    Example:
        >>> x = mx.array([[1.0, 3, 3], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_max(x, over).reshape(-1).tolist() for over in axes]
        [[3.0, 2.0], [2.0, 3.0, 3.0], [3.0]]
    """
    return _reduce("reduce_max", x, over, True, stream, place=False)


def reduce_max_grad(dy: mx.array, x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `reduce_max` with respect to its images: dy at the first maximum, and zeros elsewhere.

    Source: none in MPS; this is the derivative.

    Args:
        dy: Gradient of the maxima, of x's dtype.
        x: Images (n, h, w, c), floating.
        over: As for `reduce_max`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: x or dy is not a floating array, they differ in dtype, or over is not a name.
        ValueError: x is not NHWC, dy does not belong to it, or over is unknown.

    Example:
        >>> x = mx.array([[1.0, 3, 3], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> reduce_max_grad(mx.array([5.0, 7]).reshape(1, 2, 1, 1), x, "rows").reshape(2, 3)
        array([[0, 5, 0],
               [7, 0, 0]], dtype=float32)
    """
    return _gradient("reduce_max_grad", dy, x, over, True, stream)


def reduce_min(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """The smallest element of each row, of each column, of each pixel's channels, or of each channel of an image.

    If an element is NaN, the result is NaN. The gradient goes to the first of equal elements, or to the first NaN.

    Source: ``MPSNNReduceRowMin``, ``MPSNNReduceColumnMin`` and ``MPSNNReduceFeatureChannelsMin``, as for `reduce_max`.

    Args:
        x: As for `reduce_max`.
        over: As for `reduce_max`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images as `reduce_max` returns them.

    Raises:
        TypeError: As for `reduce_max`.
        ValueError: As for `reduce_max`.

    Example:
        >>> x = mx.array([[1.0, 3, 3], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_min(x, over).reshape(-1).tolist() for over in axes]
        [[1.0, -1.0], [1.0, 0.0, -1.0], [-1.0]]
    """
    return _reduce("reduce_min", x, over, False, stream, place=False)


def reduce_min_grad(dy: mx.array, x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `reduce_min` with respect to its images: dy at the first minimum, and zeros elsewhere.

    Source: none in MPS; this is the derivative.

    Args:
        dy: Gradient of the minima, of x's dtype.
        x: As for `reduce_max_grad`.
        over: As for `reduce_max`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: As for `reduce_max_grad`.
        ValueError: As for `reduce_max_grad`.

    Example:
        >>> x = mx.array([[1.0, 3, 1], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> reduce_min_grad(mx.array([5.0, 7]).reshape(1, 2, 1, 1), x, "rows").reshape(2, 3)
        array([[5, 0, 0],
               [0, 0, 7]], dtype=float32)
    """
    return _gradient("reduce_min_grad", dy, x, over, False, stream)


def reduce_argmax(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Index of the largest element: of equal ones the first, or the first NaN if there is one. It has no derivative.

    It is the index of the column with "rows", of the row with "columns", of the channel with "channels", and with
    "space" ``row * w + column``.

    Source: ``MPSNNReduceFeatureChannelsArgumentMax``. Apple does not document what it does with equal elements and
    NaNs, and has it for channels only.

    Args:
        x: As for `reduce_max`.
        over: As for `reduce_max`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Indices of the shape of `reduce_max`'s result, uint32 as those of `mx.argmax`.

    Raises:
        TypeError: As for `reduce_max`.
        ValueError: As for `reduce_max`.

    Example:
        >>> x = mx.array([[1.0, 3, 3], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_argmax(x, over).reshape(-1).tolist() for over in axes]
        [[1, 0], [1, 0, 0], [1]]
    """
    return _reduce("reduce_argmax", x, over, True, stream, place=True)


def reduce_argmin(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Index of the smallest element: of equal ones the first, or the first NaN if there is one. It has no derivative.

    Source: ``MPSNNReduceFeatureChannelsArgumentMin``, as for `reduce_argmax`.

    Args:
        x: As for `reduce_max`.
        over: As for `reduce_max`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Indices as `reduce_argmax` returns them.

    Raises:
        TypeError: As for `reduce_max`.
        ValueError: As for `reduce_max`.

    Example:
        >>> x = mx.array([[1.0, 3, 1], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_argmin(x, over).reshape(-1).tolist() for over in axes]
        [[0, 2], [0, 1, 1], [5]]
    """
    return _reduce("reduce_argmin", x, over, False, stream, place=True)


def _reduce(op: str, x: mx.array, over: Any, largest: bool, stream: StreamLike, *, place: bool) -> mx.array:
    """The extremes, or their places."""
    stream = launch.resolve(stream)
    of, spec = _checked(op, x, over, largest, stream)
    with mx.stream(stream):
        flat = x.reshape(of.lines)
        if not mx.issubdtype(x.dtype, mx.floating):
            made = rules.of_integers(flat, spec, place=place)
        else:
            made = (rules.places if place else rules.values)(flat, spec)
        return made.reshape(of.result)


def _gradient(op: str, dy: mx.array, x: mx.array, over: Any, largest: bool, stream: StreamLike) -> mx.array:
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    of, spec = _checked(op, x, over, largest, stream)
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, of.result, "dy does not belong to x")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    with mx.stream(stream):
        found = rules.places(x.reshape(of.lines), spec)
        return rules.placed(dy.reshape(of.flat_result), found, spec).reshape(of.source)


def _checked(op: str, x: mx.array, over: Any, largest: bool, stream: mx.Stream) -> tuple[Reduced, rules.ExtremeSpec]:
    checks.moved_image(op, "x", x, stream=stream)
    of = reduced(op, x.shape, over)
    return of, rules.ExtremeSpec(of.length, largest, stream)
