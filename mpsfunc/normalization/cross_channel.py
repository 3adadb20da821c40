"""Normalization across channels, known as local response, and its exact gradient.

``MPSCNNCrossChannelNormalization`` and ``MPSCNNCrossChannelNormalizationGradient``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.normalization import window_rules
from mpsfunc.normalization.window_rules import Spec


@printing.printed
class CrossChannelNormState(NamedTuple):
    """The parameters of a cross-channel normalization, which is all that its gradient needs.

    Fields:
        op: "cross_channel_norm".
        size: Channels in a window.
        alpha: Weight of the mean of squares.
        beta: Exponent.
        delta: What the mean of squares is added to.
    """

    op: str
    size: int
    alpha: float
    beta: float
    delta: float

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: the gradient takes the images."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> CrossChannelNormState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def cross_channel_norm(
    x: mx.array,
    size: int = 5,
    *,
    alpha: float = 1.0,
    beta: float = 5.0,
    delta: float = 1.0,
    stream: StreamLike = None,
) -> mx.array:
    """Divides each element by a power of the mean square of its neighbours in other channels (local response).

    ``y[k] = x[k] * (delta + alpha / size * sum of x[q]^2) ** -beta`` over the channels q from ``k - size // 2`` to
    ``k + (size - 1) // 2`` of the same pixel. Channels outside count as zeros, and ``size`` divides there too. If the
    base is not positive, the result is infinite or NaN.

    Source: ``MPSCNNCrossChannelNormalization``, whose defaults these are; Krizhevsky, Sutskever and Hinton (2012).
    PyTorch's ``local_response_norm`` calls delta ``k`` and has other defaults.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        size: Channels in a window, even or odd. Default 5.
        alpha: Weight of the mean square. Default 1.
        beta: Exponent. Default 5.
        delta: What the mean square is added to. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: x is not a floating array, size is not an int, or a parameter is not a number.
        ValueError: x is not NHWC, size is less than 1, or a parameter is not finite.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
        >>> cross_channel_norm(x, 3, alpha=3.0, beta=1.0).reshape(-1)
        array([0.166667, 0.133333, 0.1, 0.153846], dtype=float32)
    """
    return cross_channel_norm_fwd(x, size, alpha=alpha, beta=beta, delta=delta, stream=stream)[0]


def cross_channel_norm_fwd(
    x: mx.array,
    size: int = 5,
    *,
    alpha: float = 1.0,
    beta: float = 5.0,
    delta: float = 1.0,
    stream: StreamLike = None,
) -> tuple[mx.array, CrossChannelNormState]:
    """`cross_channel_norm`, and the state that `cross_channel_norm_grad` needs. Arguments and errors are the same.

    Returns:
        The normalized images and the state.

    Example:
        >>> y, state = cross_channel_norm_fwd(mx.ones((1, 1, 1, 4)), 3, alpha=3.0, beta=0.5)
        >>> state.size, state.beta
        (3, 0.5)
    """
    op = "cross_channel_norm"
    stream = launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    numbers = window_rules.numbers(op, alpha=alpha, beta=beta, delta=delta)
    state = CrossChannelNormState(op, checks.whole(op, "size", size), *numbers)
    return window_rules.cross_channel_norm(x, Spec(*state[1:], stream)), state


def cross_channel_norm_grad(
    dy: mx.array, x: mx.array, state: CrossChannelNormState, *, stream: StreamLike = None
) -> mx.array:
    """Gradient of `cross_channel_norm` with respect to its images.

    With the base ``L[k] = delta + alpha / size * sum of x[q]^2``:
    ``dx[k] = dy[k] * L[k]^-beta - 2 * alpha * beta / size * x[k] * sum of dy[r] * x[r] * L[r]^(-beta - 1)`` over the
    channels r whose windows hold k, from ``k - (size - 1) // 2`` to ``k + size // 2``.

    Source: ``MPSCNNCrossChannelNormalizationGradient``. Apple's header prints it without the ``1 / size``, which is
    not the derivative.

    Args:
        dy: Gradient of the normalized images (n, h, w, c), of x's dtype.
        x: The images that were normalized.
        state: From `cross_channel_norm_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: dy or x is not a floating array, their dtypes differ, or state is not a CrossChannelNormState.
        ValueError: dy and x differ in shape.

    Example:
        >>> x = mx.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
        >>> dy = mx.array([1.0, 0.0, -1.0, 2.0]).reshape(1, 1, 1, 4)
        >>> _, state = cross_channel_norm_fwd(x, 3, alpha=3.0, beta=0.5)
        >>> round(cross_channel_norm_grad(dy, x, state)[0, 0, 0, 0].item(), 6)
        0.340207
    """
    stream = window_rules.checked("cross_channel_norm_grad", dy, x, state, CrossChannelNormState, stream)
    return window_rules.cross_channel_norm_grad(dy, x, Spec(*state[1:], stream))
