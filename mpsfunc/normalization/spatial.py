"""Normalizations by windows of pixels, spatial and local contrast, and their exact gradients.

``MPSCNNSpatialNormalization``, ``MPSCNNLocalContrastNormalization`` and the ``...Gradient`` of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.normalization import window_rules
from mpsfunc.normalization.window_rules import ContrastSpec, Spec


@printing.printed
class SpatialNormState(NamedTuple):
    """The parameters of a spatial normalization, which is all that its gradient needs.

    Fields:
        op: "spatial_norm".
        kernel_size: Height and width of a window.
        alpha: Weight of the mean of squares.
        beta: Exponent.
        delta: What the mean of squares is added to.
    """

    op: str
    kernel_size: int
    alpha: float
    beta: float
    delta: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: the gradient takes the images."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> SpatialNormState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


@printing.printed
class LocalContrastNormState(NamedTuple):
    """The parameters of a local-contrast normalization, which is all that its gradient needs.

    Fields:
        op: "local_contrast_norm".
        kernel_size: Height and width of a window.
        alpha: Weight of the variance.
        beta: Exponent.
        delta: What the variance is added to.
        p0: Share of the mean that is subtracted.
        pm: Added to the result.
        ps: Factor of the result, before pm is added.
    """

    op: str
    kernel_size: int
    alpha: float
    beta: float
    delta: float
    p0: float
    pm: float
    ps: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: the gradient takes the images."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> LocalContrastNormState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def spatial_norm(
    x: mx.array,
    kernel_size: int,
    *,
    alpha: float = 1.0,
    beta: float = 5.0,
    delta: float = 1.0,
    stream: StreamLike = None,
) -> mx.array:
    """Divides each element by a power of the mean square of its neighbourhood in the same channel.

    ``y[i] = x[i] * (delta + alpha / kernel_size^2 * sum of x[q]^2) ** -beta`` over the square of pixels q around i,
    from ``i - kernel_size // 2`` to ``i + (kernel_size - 1) // 2`` along both axes. Pixels outside count as zeros, and
    ``kernel_size^2`` divides there too. Large windows cost little more than small ones.

    Source: ``MPSCNNSpatialNormalization``, whose defaults these are.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: Height and width of a window, even or odd; windows may be larger than the image.
        alpha: Weight of the mean square. Default 1.
        beta: Exponent. Default 5.
        delta: What the mean square is added to. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, kernel_size is not an int, or a parameter is not a number.
        ValueError: x is not NHWC, kernel_size is less than 1, or a parameter is not finite.

    Example:
        >>> x = mx.array([1.0, 2.0, 2.0]).reshape(1, 3, 1, 1)
        >>> spatial_norm(x, 3, alpha=9.0, beta=1.0).reshape(-1)
        array([0.166667, 0.2, 0.222222], dtype=float32)
    """
    return spatial_norm_fwd(x, kernel_size, alpha=alpha, beta=beta, delta=delta, stream=stream)[0]


def spatial_norm_fwd(
    x: mx.array,
    kernel_size: int,
    *,
    alpha: float = 1.0,
    beta: float = 5.0,
    delta: float = 1.0,
    stream: StreamLike = None,
) -> tuple[mx.array, SpatialNormState]:
    """`spatial_norm`, and the state that `spatial_norm_grad` needs. Arguments and errors are those of `spatial_norm`.

    Returns:
        The normalized images and the state.

    Example:
        >>> y, state = spatial_norm_fwd(mx.ones((1, 3, 3, 1)), 3)
        >>> state.kernel_size
        3
    """
    op = "spatial_norm"
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    numbers = window_rules.numbers(op, alpha=alpha, beta=beta, delta=delta)
    state = SpatialNormState(op, checks.whole(op, "kernel_size", kernel_size), *numbers)
    return window_rules.spatial_norm(x, Spec(*state[1:], stream)), state


def spatial_norm_grad(dy: mx.array, x: mx.array, state: SpatialNormState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `spatial_norm` with respect to its images.

    With the base ``T[i] = delta + alpha / kernel_size^2 * sum of x[q]^2``: ``dx[i] = dy[i] * T[i]^-beta -
    2 * alpha * beta / kernel_size^2 * x[i] * sum of dy[p] * x[p] * T[p]^(-beta - 1)`` over the pixels p whose windows
    hold i.

    Source: ``MPSCNNSpatialNormalizationGradient``. Apple's header prints it without ``1 / kernel_size^2`` and with T
    outside the sum, which is not the derivative.

    Args:
        dy: Gradient of the normalized images (n, h, w, c), of x's dtype.
        x: The images that were normalized.
        state: From `spatial_norm_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: dy or x is not a floating array, their dtypes differ, or state is not a SpatialNormState.
        ValueError: dy and x differ in shape.

    Example:
        >>> x = mx.array([1.0, 2.0, 2.0]).reshape(1, 3, 1, 1)
        >>> _, state = spatial_norm_fwd(x, 1, alpha=1.0, beta=1.0)
        >>> spatial_norm_grad(mx.ones_like(x), x, state).reshape(-1)
        array([0, -0.12, -0.12], dtype=float32)
    """
    stream = window_rules.checked("spatial_norm_grad", dy, x, state, SpatialNormState, stream)
    return window_rules.spatial_norm_grad(dy, x, Spec(*state[1:], stream))


def local_contrast_norm(
    x: mx.array,
    kernel_size: int,
    *,
    alpha: float = 0.0,
    beta: float = 0.5,
    delta: float = 1 / 1024,
    p0: float = 1.0,
    pm: float = 0.0,
    ps: float = 1.0,
    stream: StreamLike = None,
) -> mx.array:
    """Subtracts the mean of each element's neighbourhood and divides by a power of its variance.

    ``y = pm + ps * (x - p0 * M) * (delta + alpha * V) ** -beta`` with the mean ``M`` and the variance ``V`` of the
    windows of `spatial_norm`. Both count pixels outside the image as zeros. With the default alpha of 0 this subtracts
    the mean and multiplies by 32.

    Source: ``MPSCNNLocalContrastNormalization``, whose defaults these are (its graph node has alpha 1).

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: Height and width of a window, even or odd; windows may be larger than the image.
        alpha: Weight of the variance. Default 0.
        beta: Exponent. Default 0.5.
        delta: What the variance is added to. Default 1/1024.
        p0: Share of the mean that is subtracted. Default 1.
        pm: Added to the result. Default 0.
        ps: Factor of the result, before pm is added. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, kernel_size is not an int, or a parameter is not a number.
        ValueError: x is not NHWC, kernel_size is less than 1, or a parameter is not finite.

    Example:
        >>> x = mx.arange(1.0, 10.0).reshape(1, 3, 3, 1)
        >>> y = local_contrast_norm(x, 3, alpha=1.0, delta=1.0)
        >>> round(y[0, 2, 2, 0].item(), 6), y[0, 1, 1, 0].item()
        (1.562206, 0.0)
    """
    y, _ = local_contrast_norm_fwd(
        x, kernel_size, alpha=alpha, beta=beta, delta=delta, p0=p0, pm=pm, ps=ps, stream=stream
    )
    return y


def local_contrast_norm_fwd(
    x: mx.array,
    kernel_size: int,
    *,
    alpha: float = 0.0,
    beta: float = 0.5,
    delta: float = 1 / 1024,
    p0: float = 1.0,
    pm: float = 0.0,
    ps: float = 1.0,
    stream: StreamLike = None,
) -> tuple[mx.array, LocalContrastNormState]:
    """`local_contrast_norm`, and the state that `local_contrast_norm_grad` needs. Arguments and errors are the same.

    Returns:
        The normalized images and the state.

    Example:
        >>> y, state = local_contrast_norm_fwd(mx.ones((1, 3, 3, 1)), 3, alpha=1.0)
        >>> state.alpha, state.delta
        (1.0, 0.0009765625)
    """
    op = "local_contrast_norm"
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    numbers = window_rules.numbers(op, alpha=alpha, beta=beta, delta=delta, p0=p0, pm=pm, ps=ps)
    state = LocalContrastNormState(op, checks.whole(op, "kernel_size", kernel_size), *numbers)
    return window_rules.local_contrast_norm(x, ContrastSpec(*state[1:], stream)), state


def local_contrast_norm_grad(
    dy: mx.array, x: mx.array, state: LocalContrastNormState, *, stream: StreamLike = None
) -> mx.array:
    """Gradient of `local_contrast_norm` with respect to its images.

    With ``T = delta + alpha * V``, ``A = dy * T^-beta``, ``B = dy * (x - p0 * M) * T^(-beta - 1)``, N the pixels of a
    window and sums over the pixels p whose windows hold i: ``dx[i] = ps * (A[i] - p0 / N * sum of A[p] -
    2 * alpha * beta / N * sum of B[p] * (x[i] - M[p]))``.

    Source: ``MPSCNNLocalContrastNormalizationGradient``. Apple's header prints ``x[i] - 1`` for ``x[i] - M[p]`` and
    keeps T outside the sum, which is not the derivative.

    Args:
        dy: Gradient of the normalized images (n, h, w, c), of x's dtype.
        x: The images that were normalized.
        state: From `local_contrast_norm_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: dy or x is not a floating array, their dtypes differ, or state is not a LocalContrastNormState.
        ValueError: dy and x differ in shape.

    Example:
        >>> x = mx.arange(1.0, 10.0).reshape(1, 3, 3, 1)
        >>> _, state = local_contrast_norm_fwd(x, 3, alpha=1.0, delta=1.0)
        >>> dy = mx.zeros_like(x).at[0, 1, 1, 0].add(1.0)
        >>> round(local_contrast_norm_grad(dy, x, state)[0, 1, 1, 0].item(), 6)
        0.321029
    """
    stream = window_rules.checked("local_contrast_norm_grad", dy, x, state, LocalContrastNormState, stream)
    return window_rules.local_contrast_norm_grad(dy, x, ContrastSpec(*state[1:], stream))
