"""Sums and means over rows, columns, channels or space, and their gradients (``MPSNNReduceUnary``, ``...Binary``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import OPERANDS, OperandName
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.pooling import reduction_rules as rules
from mpsfunc.pooling.reduced import Reduced, ReducedName, of_gradient, reduced


def reduce_sum(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Sums over rows, columns, channels or space, in float32, or float64, and rounded once.

    With "rows" each row becomes one pixel, ``y[n,h,0,c] = sum over w of x[n,h,w,c]``; with "columns" each column,
    ``y[n,0,w,c]``; with "channels" the channels of each pixel one, ``y[n,h,w,0]``; with "space" each image one pixel,
    ``y[n,0,0,c]``.

    Source: ``MPSNNReduceRowSum``, ``MPSNNReduceColumnSum`` and ``MPSNNReduceFeatureChannelsSum``, whose weight is 1
    here.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        over: "rows", "columns", "channels" or "space".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, 1, c), (n, 1, w, c), (n, h, w, 1) or (n, 1, 1, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, float64 on a GPU, or over is not a name.
        ValueError: x is not NHWC, or over is unknown.

    Example:
        >>> x = mx.array([[1.0, 3, 3], [2, 0, -1]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_sum(x, over).reshape(-1).tolist() for over in axes]
        [[7.0, 1.0], [3.0, 3.0, 2.0], [8.0]]
    """
    return _summed("reduce_sum", x, over, False, stream)


def reduce_sum_grad(dy: mx.array, shape: Sequence[int], over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `reduce_sum` with respect to its images: dy for each pixel or channel that was added up.

    Source: none in MPS; this is the derivative.

    Args:
        dy: Gradient of the sums, floating.
        shape: (n, h, w, c) of the images.
        over: As for `reduce_sum`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of that shape and dy's dtype: `mx.broadcast_to` of dy, which copies nothing.

    Raises:
        TypeError: dy is not a floating array, or over is not a name.
        ValueError: shape is not that of images, dy does not belong to it, or over is unknown.

    Example:
        >>> dy = mx.array([6.0, 1.0]).reshape(1, 2, 1, 1)
        >>> reduce_sum_grad(dy, (1, 2, 2, 1), "rows").reshape(2, 2)
        array([[6, 6],
               [1, 1]], dtype=float32)
    """
    return _spread("reduce_sum_grad", dy, shape, over, False, stream)


def reduce_mean(x: mx.array, over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Means over rows, columns, channels or space: `reduce_sum`, divided by how many are added up, and rounded once.

    Source: ``MPSNNReduceRowMean``, ``MPSNNReduceColumnMean`` and ``MPSNNReduceFeatureChannelsMean``. Over space it is
    `spatial_mean`.

    Args:
        x: As for `reduce_sum`.
        over: As for `reduce_sum`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images as `reduce_sum` returns them.

    Raises:
        TypeError: As for `reduce_sum`.
        ValueError: As for `reduce_sum`.

    Example:
        >>> x = mx.array([[1.0, 3, 5], [2, 0, -2]]).reshape(1, 2, 3, 1)
        >>> axes = "rows", "columns", "space"
        >>> [reduce_mean(x, over).reshape(-1).tolist() for over in axes]
        [[3.0, 0.0], [1.5, 1.5, 1.5], [1.5]]
    """
    return _summed("reduce_mean", x, over, True, stream)


def reduce_mean_grad(dy: mx.array, shape: Sequence[int], over: ReducedName, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `reduce_mean` with respect to its images: each gets its share of dy.

    Source: the derivative; MPS has only that of the spatial mean.

    Args:
        dy: As for `reduce_sum_grad`.
        shape: As for `reduce_sum_grad`.
        over: As for `reduce_sum`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        As `reduce_sum_grad`.

    Raises:
        TypeError: As for `reduce_sum_grad`.
        ValueError: As for `reduce_sum_grad`.

    Example:
        >>> dy = mx.array([6.0, 1.0]).reshape(1, 2, 1, 1)
        >>> reduce_mean_grad(dy, (1, 2, 2, 1), "rows").reshape(2, 2)
        array([[3, 3],
               [0.5, 0.5]], dtype=float32)
    """
    return _spread("reduce_mean_grad", dy, shape, over, True, stream)


def reduce_weighted_sum(
    x: mx.array, weights: mx.array, over: ReducedName, *, by_nonzero: bool = False, stream: StreamLike = None
) -> mx.array:
    """Sums of images times weights, over rows, columns, channels or space.

    With ``by_nonzero`` a sum is divided by the number of its weights that are not 0, so with weights of 0 and 1 it is
    the mean of the elements whose weight is 1; if all of them are 0, it is 0 for finite images. This number counts as a
    constant in derivatives.

    Source: ``MPSNNReduceFeatureChannelsAndWeightsSum`` with ``doWeightedSumByNonZeroWeights``. MPS only has channels.
    It documents neither derivatives nor the result if all weights are 0. ``MPSNNReduceFeatureChannelsAndWeightsMean``
    has no documented formula.

    Args:
        x: As for `reduce_sum`.
        weights: Weights (n, h, w, c) of x's dtype. Any axis may have length 1: weights are the same along it.
        over: As for `reduce_sum`.
        by_nonzero: Whether sums are divided by the number of weights that are not 0. Default False.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images as `reduce_sum` returns them.

    Raises:
        TypeError: As for `reduce_sum`; weights are not a floating array, or differ in dtype; by_nonzero is not a bool.
        ValueError: As for `reduce_sum`, or weights do not belong to x.

    Example:
        >>> x = mx.array([[1.0, 2, 3], [4, 5, 6]]).reshape(1, 1, 2, 3)
        >>> weights = mx.array([1.0, 0, 3]).reshape(1, 1, 1, 3)
        >>> reduce_weighted_sum(x, weights, "channels").reshape(-1)
        array([10, 22], dtype=float32)
        >>> reduce_weighted_sum(x, weights, "channels", by_nonzero=True).reshape(-1)
        array([5, 11], dtype=float32)
    """
    stream = launch.resolve(stream)
    known = _weighted("reduce_weighted_sum", x, weights, over, by_nonzero, stream)
    with mx.stream(stream):
        sums = rules.dots(x.reshape(known.of.lines), known.weights, known.spec)
        return known.shared_out(sums).astype(x.dtype).reshape(known.of.result)


def reduce_weighted_sum_grad(
    dy: mx.array,
    x: mx.array,
    weights: mx.array,
    over: ReducedName,
    *,
    operand: OperandName = "primary",
    by_nonzero: bool = False,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `reduce_weighted_sum` with respect to its images, ``dy * weights``, or to its weights, ``dy * x``.

    Weights that are the same along an axis get the sum over it. With ``by_nonzero`` both are divided by the number,
    or by 1 where all weights are 0.

    Source: none in MPS; this is the derivative.

    Args:
        dy: Gradient of the sums.
        x: Images (n, h, w, c).
        weights: As for `reduce_weighted_sum`.
        over: As for `reduce_sum`.
        operand: Whose gradient: "primary" (default), the images, or "secondary", the weights.
        by_nonzero: As for `reduce_weighted_sum`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of the shape and dtype of x, or of the weights.

    Raises:
        TypeError: As for `reduce_weighted_sum`, or dy differs in dtype.
        ValueError: As for `reduce_weighted_sum`, dy does not belong to the images, or an unknown operand.

    Example:
        >>> x = mx.array([[1.0, 2, 3], [4, 5, 6]]).reshape(1, 1, 2, 3)
        >>> weights = mx.array([1.0, 0, 3]).reshape(1, 1, 1, 3)
        >>> dy = mx.array([1.0, 10]).reshape(1, 1, 2, 1)
        >>> dx, dweights = (
        ...     reduce_weighted_sum_grad(dy, x, weights, "channels", operand=which)
        ...     for which in ("primary", "secondary")
        ... )
        >>> dx.reshape(-1).tolist(), dweights.reshape(-1).tolist()
        ([1.0, 0.0, 3.0, 10.0, 0.0, 30.0], [41.0, 52.0, 63.0])
    """
    op, stream = "reduce_weighted_sum_grad", launch.resolve(stream)
    known = _weighted(op, x, weights, over, by_nonzero, stream)
    secondary = OPERANDS.index(checks.choice(op, "operand", operand, OPERANDS))
    checks.array(op, "dy", dy, stream=stream)
    checks.shape(op, "dy", dy, known.of.result, "dy does not belong to the images")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    with mx.stream(stream):
        t = known.shared_out(dy.astype(launch.accumulator(dy.dtype)).reshape(known.of.flat_result))
        if not secondary:
            return rules.weighed(t, known.weights, known.spec).reshape(x.shape)
        made = rules.by_weights(x.reshape(known.of.lines), t, known.weights, known.spec)
        return made.reshape(weights.shape).astype(x.dtype)


class _Weighted(NamedTuple):
    """Images and weights that belong together.

    Fields:
        of: The images.
        weights: Along the axis that is reduced, for each of the outer ones or for all; or as they are, to be repeated.
        counts: How many weights of each sum are not 0, or None.
        spec: How they are repeated, and where.
    """

    of: Reduced
    weights: mx.array
    counts: mx.array | None
    spec: rules.Spec

    def shared_out(self, sums: mx.array) -> mx.array:
        """Divided by the counts, if there are any."""
        return sums if self.counts is None else sums / self.counts.astype(sums.dtype)


def _weighted(op: str, x: mx.array, weights: mx.array, over: Any, by_nonzero: bool, stream: mx.Stream) -> _Weighted:
    checks.image(op, "x", x, stream=stream)
    of = reduced(op, x.shape, over)
    checks.array(op, "weights", weights, stream=stream)
    checks.same_dtype(op, "weights", weights, "x", x.dtype)
    given = tuple(weights.shape)
    if len(given) != 4 or any(one not in (1, all_) for one, all_ in zip(given, x.shape, strict=True)):
        raise ValueError(
            f"{op}: weights do not belong to x; got weights.shape={describe(given)}, expected "
            f"{describe(tuple(x.shape))}, or 1 instead of any length"
        )
    # The axes ahead of what is reduced: where weights have length 1 along all of them, they are kept once for all.
    shared = all(length == 1 for length in given[: of.ahead])
    whole = (*(given if shared else of.source)[: of.ahead], *of.source[of.ahead :])
    lines = (1 if shared else of.lines[0], *of.lines[1:])
    repeated = None if given == whole else rules.ExpandSpec(given, whole, lines, stream)
    spec, counts = rules.Spec(stream, repeated), None
    with mx.stream(stream):
        weights = weights.reshape(lines) if repeated is None else weights
        if checks.switch(op, "by_nonzero", by_nonzero):
            counts = mx.maximum(mx.sum(spec.along(weights) != 0, axis=1), 1)
    return _Weighted(of, weights, counts, spec)


def _summed(op: str, x: mx.array, over: Any, mean: bool, stream: StreamLike) -> mx.array:
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    of = reduced(op, x.shape, over)
    with mx.stream(stream):
        return rules.sums(x.reshape(of.lines), rules.SumSpec(of.length, mean, stream)).reshape(of.result)


def _spread(op: str, dy: mx.array, shape: Any, over: Any, mean: bool, stream: StreamLike) -> mx.array:
    stream = launch.resolve(stream)
    of = of_gradient(op, dy, shape, over, stream)
    with mx.stream(stream):
        made = rules.spread(dy.reshape(of.flat_result), rules.SumSpec(of.length, mean, stream))
        return made.reshape(of.source)
