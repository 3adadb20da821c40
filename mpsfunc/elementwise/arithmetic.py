"""Arithmetic on two operands with its gradients (``MPSCNNArithmetic``), and comparison (``MPSNNCompare``)."""

from __future__ import annotations

from typing import Any, Literal, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import OPERANDS, OperandName
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.elementwise import arithmetic_rules, operands
from mpsfunc.elementwise.arithmetic_rules import CompareSpec, GradSpec, Spec
from mpsfunc.elementwise.operands import Lying, Strides

OperationName = Literal["add", "subtract", "multiply", "divide"]
ComparisonName = Literal["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
OPERATIONS: tuple[OperationName, ...] = get_args(OperationName)
COMPARISONS: tuple[ComparisonName, ...] = get_args(ComparisonName)


def arithmetic(
    x: mx.array | float,
    y: mx.array | float,
    operation: OperationName,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """Two operands added, subtracted, multiplied or divided, with scales, a bias and limits.

    ``r = (primary_scale * x) op (secondary_scale * y) + bias``, and the result is ``minimum`` where r is less,
    ``maximum`` where it is greater, and r elsewhere; a NaN stays NaN.

    A stride of 0 along y, x or the channels reads the first entry of an operand everywhere along that axis, even if it
    has more entries (images only). After that, operands are broadcast as in NumPy: axes of length 1, the batch
    included, and axes that are missing in front, so that a vector (c,) has an entry for each channel. One operand may
    be a number.

    The derivative is that of the value: 0 where r is not strictly between the limits. The gradient of an operand's
    entry is the sum over all positions that read it, in float32 or wider, and 0 if there is none.

    Source: ``MPSCNNArithmetic`` and its subclasses. There the limits are -FLT_MAX and FLT_MAX by default; here there
    are none, so infinities pass. MPS leaves broadcasting of batches undefined.

    Args:
        x: Primary operand (n, h, w, c), or of any shape; float32, float16, bfloat16, or float64 on the CPU. Or a
            number, Python's or NumPy's, which gets y's dtype: finite and representable in it, or infinite or NaN.
        y: Secondary operand of x's dtype, or a number.
        operation: "add", "subtract", "multiply" or "divide".
        primary_scale: Factor of x. Default 1.
        secondary_scale: Factor of y. Default 1.
        bias: Added to the result. Default 0.
        minimum: Least result. Default None: no limit.
        maximum: Greatest result. Default None: no limit.
        primary_stride: Strides (y, x, c) of x, each 0 or 1. Default 1.
        secondary_stride: Likewise of y.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The result, of x's dtype.

    Raises:
        TypeError: An operand is neither a floating array nor a number, both are numbers, dtypes differ, or a parameter
            is not a number.
        ValueError: Shapes do not fit, an unknown operation, a stride other than 0 or 1, or of an array that is not an
            image, an operand that the other's dtype cannot hold, a parameter that float32 cannot hold, or minimum is
            greater than maximum.

    Example:
        >>> x, y = mx.array([1.0, 2.0, 3.0]), mx.array([4.0, -1.0, 8.0])
        >>> arithmetic(x, y, "multiply", primary_scale=2.0, bias=0.5, maximum=40.0)
        array([8.5, -3.5, 40], dtype=float32)
    """
    return _arithmetic(
        "arithmetic", x, y, operation, (primary_scale, secondary_scale, bias), (minimum, maximum),
        (primary_stride, secondary_stride), stream,
    )  # fmt: skip


def add(
    x: mx.array | float,
    y: mx.array | float,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """``primary_scale * x + secondary_scale * y + bias``, clamped. Arguments and errors are those of `arithmetic`.

    Source: ``MPSCNNAdd``.

    Example:
        >>> add(mx.ones((1, 1, 2, 3)), mx.array([1.0, 2.0, 3.0]), secondary_scale=10.0)
        array([[[[11, 21, 31],
                 [11, 21, 31]]]], dtype=float32)
    """
    return _arithmetic(
        "add", x, y, "add", (primary_scale, secondary_scale, bias), (minimum, maximum),
        (primary_stride, secondary_stride), stream,
    )  # fmt: skip


def subtract(
    x: mx.array | float,
    y: mx.array | float,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """``primary_scale * x - secondary_scale * y + bias``, clamped. Arguments and errors are those of `arithmetic`.

    Source: ``MPSCNNSubtract``.

    Example:
        >>> subtract(mx.array([5.0, 1.0]), mx.array([2.0, 4.0]), minimum=0.0)
        array([3, 0], dtype=float32)
    """
    return _arithmetic(
        "subtract", x, y, "subtract", (primary_scale, secondary_scale, bias), (minimum, maximum),
        (primary_stride, secondary_stride), stream,
    )  # fmt: skip


def multiply(
    x: mx.array | float,
    y: mx.array | float,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """``(primary_scale * x) * (secondary_scale * y) + bias``, clamped. Arguments and errors are those of `arithmetic`.

    Source: ``MPSCNNMultiply``.

    Example:
        >>> x = mx.arange(1.0, 5.0).reshape(1, 2, 2, 1)
        >>> multiply(x, x, secondary_stride=(0, 0, 0)).reshape(-1)
        array([1, 2, 3, 4], dtype=float32)
    """
    return _arithmetic(
        "multiply", x, y, "multiply", (primary_scale, secondary_scale, bias), (minimum, maximum),
        (primary_stride, secondary_stride), stream,
    )  # fmt: skip


def divide(
    x: mx.array | float,
    y: mx.array | float,
    *,
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """``(primary_scale * x) / (secondary_scale * y) + bias``, clamped. Arguments and errors are those of `arithmetic`.

    Source: ``MPSCNNDivide``.

    Example:
        >>> divide(mx.array([6.0, 1.0]), mx.array([3.0, 0.0]), bias=1.0)
        array([3, inf], dtype=float32)
    """
    return _arithmetic(
        "divide", x, y, "divide", (primary_scale, secondary_scale, bias), (minimum, maximum),
        (primary_stride, secondary_stride), stream,
    )  # fmt: skip


def arithmetic_grad(
    dy: mx.array,
    x: mx.array | float,
    y: mx.array | float,
    operation: OperationName,
    *,
    operand: OperandName = "primary",
    primary_scale: float = 1.0,
    secondary_scale: float = 1.0,
    bias: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    clamp: bool = False,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `arithmetic` with respect to one operand.

    With ps and ss for the scales:

    ========  ======================  ============================
    op        for the primary         for the secondary
    ========  ======================  ============================
    add       ``ps * dy``             ``ss * dy``
    subtract  ``ps * dy``             ``-ss * dy``
    multiply  ``ps * ss * y * dy``    ``ps * ss * x * dy``
    divide    ``ps / (ss * y) * dy``  ``-ps * x / (ss * y^2) * dy``
    ========  ======================  ============================

    summed over all positions that read an entry of the operand, and 0 if there is none. As in MPS limits are ignored;
    with ``clamp=True``, and always under autodiff, dy counts only where ``minimum < r < maximum``.

    Source: ``MPSCNNAddGradient``, ``MPSCNNSubtractGradient`` and ``MPSCNNMultiplyGradient``; MPS has none for a
    division. There the caller negates the scale of a subtraction's secondary operand and sums over batches that share
    an operand; here neither is necessary.

    Args:
        dy: Gradient of the result, of its shape and dtype.
        x: Primary operand.
        y: Secondary operand. The gradient of a number is an array of no axes.
        operation: As for `arithmetic`, like all parameters not listed here.
        operand: Whose gradient: "primary" (default) or "secondary".
        primary_scale: Factor of x.
        secondary_scale: Factor of y.
        bias: Counts with ``clamp`` only.
        minimum: Counts with ``clamp`` only.
        maximum: Counts with ``clamp`` only.
        primary_stride: Strides (y, x, c) of x.
        secondary_stride: Strides (y, x, c) of y.
        clamp: Whether limits stop the gradient. Default False, as MPS.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of the operand's shape and dtype.

    Raises:
        TypeError: As for `arithmetic`, or dy differs in dtype.
        ValueError: As for `arithmetic`, an unknown operand, or dy does not belong to the operands.

    Example:
        >>> x = mx.arange(1.0, 9.0).reshape(1, 2, 2, 2)
        >>> y = mx.array([10.0, 100.0]).reshape(1, 1, 1, 2)
        >>> arithmetic_grad(x, x, y, "multiply", operand="secondary").reshape(-1)
        array([84, 120], dtype=float32)
    """
    op = "arithmetic_grad"
    stream = launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    which = OPERANDS.index(checks.choice(op, "operand", operand, OPERANDS))
    checks.switch(op, "clamp", clamp)
    strides = (primary_stride, secondary_stride)
    x, y = operands.arrays(op, x, y, checks.array, stream)
    with mx.stream(stream):
        read = operands.operands(op, x, y, strides)
        scales, limits = (primary_scale, secondary_scale, bias), (minimum, maximum)
        spec = _spec(op, operation, scales, limits, read.lying, stream)
        checks.shape(op, "dy", dy, read.shape, "dy does not belong to the operands")
        checks.same_dtype(op, "dy", dy, "x", x.dtype)
        source, part = ((x, read.x), (y, read.y))[which]
        if 0 in read.shape:
            return mx.zeros_like(source)
        full = GradSpec(spec, which, clamp, part.shape[0], spec.pers[which])
        made = arithmetic_rules.grad(dy.reshape(read.images), read.x, read.y, full).reshape(read.cut[which])
        behind = [(0, a - b) for a, b in zip(source.shape, made.shape, strict=True)]  # entries that none reads
        return mx.pad(made, behind) if any(b for _, b in behind) else made


def compare(
    x: mx.array | float,
    y: mx.array | float,
    comparison: ComparisonName = "equal",
    threshold: float = 0.0,
    *,
    primary_stride: Strides = (1, 1, 1),
    secondary_stride: Strides = (1, 1, 1),
    stream: StreamLike = None,
) -> mx.array:
    """Compares two operands: 1 where the comparison holds, else 0.

    Operands are equal if ``x == y`` or ``|x - y| <= threshold``. The four orderings compare x with y as they are and
    take no threshold. A NaN is not equal to anything, and neither less nor greater. The derivative is 0 everywhere.

    Source: ``MPSNNCompare``, whose documentation does not say what a threshold does to an ordering.

    Args:
        x: Primary operand (n, h, w, c), or of any shape; floating as for `arithmetic`, or of any integer dtype. Or a
            number, which gets y's dtype and must be representable in it; they are broadcast as for `arithmetic`.
        y: Secondary operand of x's dtype, or a number.
        comparison: "equal" (default), "not_equal", "less", "less_equal", "greater" or "greater_equal".
        threshold: The largest difference of operands that count as equal. Default 0.
        primary_stride: Strides (y, x, c) of x, each 0 or 1, as for `arithmetic`. Default 1.
        secondary_stride: Likewise of y.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Ones and zeros of x's dtype.

    Raises:
        TypeError: An operand is not an array of numbers, or their dtypes differ.
        ValueError: Shapes do not fit, an operand that the other's dtype cannot hold, an unknown comparison, a threshold
            below 0, or one for an ordering.

    Example:
        >>> compare(mx.array([1.0, 2.0, 3.0]), mx.array([1.25, 2.0, 4.0]), threshold=0.5)
        array([1, 1, 0], dtype=float32)
    """
    op = "compare"
    stream = launch.resolve(stream)
    which = COMPARISONS.index(checks.choice(op, "comparison", comparison, COMPARISONS))
    apart = checks.number(op, "threshold", threshold, least=0.0)
    if apart and which > 1:
        raise ValueError(f"{op}: an ordering has no threshold; got threshold={describe(threshold)}, expected 0")
    x, y = operands.arrays(op, x, y, checks.numbers, stream)
    with mx.stream(stream):
        read = operands.operands(op, x, y, (primary_stride, secondary_stride))
        made = arithmetic_rules.compare(read.x, read.y, CompareSpec(which, apart, *read.lying, stream))
        return made.reshape(read.shape)


# Arguments ----------------------------------------------------------------------------------------------


def _arithmetic(
    op: str,
    x: mx.array | float,
    y: mx.array | float,
    operation: OperationName,
    scales: tuple[float, float, float],
    limits: tuple[float | None, float | None],
    strides: tuple[Strides, Strides],
    stream: StreamLike,
) -> mx.array:
    stream = launch.resolve(stream)
    x, y = operands.arrays(op, x, y, checks.array, stream)
    with mx.stream(stream):
        read = operands.operands(op, x, y, strides)
        spec = _spec(op, operation, scales, limits, read.lying, stream)
        return arithmetic_rules.value(read.x, read.y, spec).reshape(read.shape)


def _spec(op: str, operation: OperationName, scales: Any, limits: Any, lying: Lying, stream: mx.Stream) -> Spec:
    which = OPERATIONS.index(checks.choice(op, "operation", operation, OPERATIONS))
    names = ("primary_scale", "secondary_scale", "bias")
    numbers = [checks.number(op, name, value) for name, value in zip(names, scales, strict=True)]
    ends = ("minimum", "maximum")
    low, high = (None if v is None else checks.number(op, name, v) for name, v in zip(ends, limits, strict=True))
    if low is not None and high is not None and low > high:
        raise ValueError(f"{op}: minimum is greater than maximum; got minimum={low}, expected at most {high}")
    return Spec(which, numbers[0], numbers[1], numbers[2], low, high, *lying, stream)
