"""Average pooling and its gradient (``MPSCNNPoolingAverage``, ``MPSCNNPoolingAverageGradient``).

One is a matrix and the other its transpose, so a derivative of any order is one of the two again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.arguments import refuse, text
from mpsfunc.core.launch import StreamLike
from mpsfunc.pooling import average_rules
from mpsfunc.pooling.launches import Spec
from mpsfunc.pooling.params import PoolParams
from mpsfunc.windows.axis import AVERAGE_EDGES, EDGE_MODES, GIVEN, Axis, EdgeMode, check_state
from mpsfunc.windows.placement import IntOrPair, KernelSize, OutSize, Padding, Pixels, place, restrict_outputs

_MOST = 2**24  # up to which float32 holds every divisor


@printing.printed
class AvgPoolState(NamedTuple):
    """Where the windows of an average pooling lie: all that its gradient needs.

    Fields:
        op: "avg_pool".
        channels: Channels of the image.
        rows: Windows along y.
        cols: Windows along x.
    """

    op: str
    channels: int
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: average pooling is linear."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> AvgPoolState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def avg_pool(
    x: mx.array,
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: EdgeMode = "zero",
    zero_pad: Pixels = 0,
    divisor_override: int | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Mean over sliding windows.

    ``y[n,j,i,c] = (sum of x over the taps of window (j, i) inside the image) / (N(j) * N(i))``, where along an axis
    N is ``kernel_size`` with edge mode "zero", and with "clamp" the number of taps within ``zero_pad`` pixels of the
    image. A window without such a tap gives 0. Sums are float32 (float64 for float64 images) and rounded once.

    Source: ``MPSCNNPoolingAverage``. ``edge_mode="clamp"`` is PyTorch's ``count_include_pad=False``; with
    ``zero_pad=padding`` it is ``count_include_pad=True`` of PyTorch and ONNX, also in ceil mode and with padding that
    differs by side. ``divisor_override`` is PyTorch's.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: Taps in a window, an int or (y, x). Or "global", one window over the whole image; or "adaptive",
            ``out_size`` windows as in PyTorch's adaptive pooling: window j covers the pixels from ``floor(j * h /
            out_h)`` up to but not including ``ceil((j + 1) * h / out_h)``, and N is their number.
        stride: Pixels between two windows. Default: ``kernel_size``.
        padding: Pixels around the image: an int, (y, x), ((top, bottom), (left, right)), "same", "same_lower",
            "valid", "full" or a `PaddingPolicy`. Default 0.
        dilation: Pixels between two taps. Default 1.
        ceil_mode: Round the output's size up; no window starts after the image. Default False.
        offset: MPS's form, instead of padding: the pixel (y, x) under the centre of the first window.
        out_size: With ``offset`` or "adaptive": the output's size, an int or (y, x); with "adaptive" an entry may be
            None for the image's.
        edge_mode: "zero" (default) or "clamp", as above.
        zero_pad: With "clamp": pixels of zeros around the image that count, an int, (y, x) or ((top, bottom), (left,
            right)). It has no effect with "zero", which counts all taps. Default 0.
        divisor_override: What sums are divided by, whatever ``edge_mode`` and ``zero_pad`` are; 1 to 2**24. Not with
            "adaptive". Default: N(j) * N(i).
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: x is not NHWC, windows do not fit, or arguments exclude each other.

    Example:
        >>> x = mx.arange(1.0, 13.0).reshape(1, 3, 4, 1)
        >>> avg_pool(x, 2, offset=(0, 0), out_size=(2, 2), edge_mode="clamp").reshape(2, 2)
        array([[1, 2.5],
               [7, 8.5]], dtype=float32)
    """
    y, _ = avg_pool_fwd(
        x,
        kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        zero_pad=zero_pad,
        divisor_override=divisor_override,
        stream=stream,
    )
    return y


def avg_pool_fwd(
    x: mx.array,
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: EdgeMode = "zero",
    zero_pad: Pixels = 0,
    divisor_override: int | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, AvgPoolState]:
    """`avg_pool`, and the state that `avg_pool_grad` needs. Arguments and errors are those of `avg_pool`.

    Returns:
        The pooled images and the state.

    Example:
        >>> y, state = avg_pool_fwd(mx.ones((1, 4, 4, 1)), 2)
        >>> avg_pool_grad(mx.ones_like(y), state)[0, 0, 0].item()
        0.25
    """
    return pool(
        "avg_pool",
        x,
        launch.resolve(stream),
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        zero_pad=zero_pad,
        divisor_override=divisor_override,
    )


def avg_pool_state(
    x_shape: Sequence[int],
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: EdgeMode = "zero",
    zero_pad: Pixels = 0,
    divisor_override: int | None = None,
) -> AvgPoolState:
    """The state of `avg_pool_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        kernel_size: As for `avg_pool`.
        stride: As for `avg_pool`, like the rest.
        padding: As for `avg_pool`.
        dilation: As for `avg_pool`.
        ceil_mode: As for `avg_pool`.
        offset: As for `avg_pool`.
        out_size: As for `avg_pool`.
        edge_mode: As for `avg_pool`.
        zero_pad: As for `avg_pool`.
        divisor_override: As for `avg_pool`.

    Returns:
        The state.

    Raises:
        TypeError: A size is not an int.
        ValueError: As for `avg_pool`.

    Example:
        >>> avg_pool_state((8, 6, 6, 3), 3, stride=2, padding=1).rows.n_out
        3
    """
    x_shape = checks.shape_of_images("avg_pool_state", "x_shape", x_shape)
    return _state(
        "avg_pool_state",
        x_shape,
        kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        zero_pad=zero_pad,
        divisor_override=divisor_override,
    )


def avg_pool_grad(
    dy: mx.array,
    state: AvgPoolState,
    *,
    source_window: Sequence[Sequence[int]] | None = None,
    kernel_offset: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `avg_pool` with respect to its images.

    ``dx[n,h,w,c]`` adds up ``dy[n,j,i,c] / (N(j) * N(i))`` over all windows (j, i) with a tap on (h, w). It depends
    only on the size of the images; the gradient of a pixel that no window reads is 0.

    Source: ``MPSCNNPoolingAverageGradient``; ``source_window`` is the ``primaryOffset`` and ``sourceSize`` of
    ``MPSCNNPoolingGradient``.

    Args:
        dy: Gradient of the pooled images (n, out_h, out_w, c).
        state: From `avg_pool_fwd` or `avg_pool_state`.
        source_window: ((y, x), (height, width)): only these outputs propagate, as if dy were 0 elsewhere.
            Default: all.
        kernel_offset: Refused: pooling inserts no zeros, so MPS's ``kernelOffset`` has no meaning here.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not an AvgPoolState.
        ValueError: dy does not belong to the state.

    Example:
        >>> state = avg_pool_state(
        ...     (1, 1, 4, 1), (1, 3), stride=(1, 2), offset=(0, 0), out_size=(1, 3)
        ... )
        >>> avg_pool_grad(mx.full((1, 1, 3, 1), 6.0), state).reshape(-1)
        array([2, 4, 2, 4], dtype=float32)
    """
    stream = launch.resolve(stream)
    checks.array("avg_pool_grad", "dy", dy, stream=stream)
    checks.state("avg_pool_grad", state, AvgPoolState, stream=stream)
    check_state("avg_pool_grad", state, AVERAGE_EDGES)
    checks.no_kernel_offset("avg_pool_grad", kernel_offset)
    channels = checks.whole("avg_pool_grad", "state.channels", state.channels)
    expected = ("n", state.rows.n_out, state.cols.n_out, channels)
    checks.shape("avg_pool_grad", "dy", dy, expected, "dy does not belong to this state")
    rows, cols = restrict_outputs("avg_pool_grad", (state.rows, state.cols), source_window)
    return average_rules.grad(dy, Spec(PoolParams(rows, cols), stream))


def pool(
    op: str, x: mx.array, stream: mx.Stream, *, kernel_size: KernelSize, **how: Any
) -> tuple[mx.array, AvgPoolState]:
    """`avg_pool_fwd` for a function with another name in errors."""
    checks.image(op, "x", x, stream=stream)
    state = _state(op, x.shape, kernel_size, **how)
    return average_rules.pool(x, Spec(PoolParams(state.rows, state.cols), stream)), state


def _state(
    op: str, x_shape: Sequence[int], kernel_size: KernelSize, *, divisor_override: int | None = None, **placement: Any
) -> AvgPoolState:
    _, h, w, channels = x_shape
    rows, cols = place(op, (h, w), kernel_size, edge_modes=EDGE_MODES, **placement)
    if divisor_override is not None:
        divisor = checks.whole(op, "divisor_override", divisor_override, 1, _MOST)
        if text(kernel_size) == "adaptive":
            refuse(op, "adaptive windows have divisors of their own", "divisor_override", divisor, "None")
        rows, cols = (
            axis._replace(edge=GIVEN, zero_pad=n, zero_pad_after=0) for axis, n in ((rows, divisor), (cols, 1))
        )
    checks.image_shape(op, "output shape", (1, rows.n_out, cols.n_out, channels))
    return AvgPoolState("avg_pool", channels, rows, cols)
