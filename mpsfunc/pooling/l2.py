"""L2 pooling and its gradient (``MPSCNNPoolingL2Norm``, ``MPSCNNPoolingL2NormGradient``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.pooling import l2_rules
from mpsfunc.pooling.launches import Spec
from mpsfunc.pooling.params import PoolParams
from mpsfunc.windows import placement
from mpsfunc.windows.axis import EDGE_MODES, EDGES, Axis, EdgeMode, check_state
from mpsfunc.windows.placement import IntOrPair, KernelSize, OutSize, Padding


@printing.printed
class L2PoolState(NamedTuple):
    """Where the windows of an L2 pooling lie, and their norms.

    Fields:
        norms: The norms (n, out_h, out_w, c) before they were rounded to the images' dtype: float32, or float64 for
            float64 images. For float32 and float64 they are the pooled images themselves and cost no memory.
        op: "l2_pool".
        rows: Windows along y.
        cols: Windows along x.
    """

    norms: mx.array
    op: str
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(norms,)."""
        return (self.norms,)

    def with_arrays(self, arrays: Sequence[mx.array]) -> L2PoolState:
        """This state with other norms."""
        (norms,) = checks.arrays_of("L2PoolState", arrays, 1)
        return self._replace(norms=norms)


def l2_pool(
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
    stream: StreamLike = None,
) -> mx.array:
    """Root of the sum of squares in sliding windows.

    ``y[n,j,i,c] = sqrt(sum over the taps of window (j, i) of read(x)^2)``; nothing is divided by the window's area.
    Outside the image a tap reads 0 with edge mode "zero" and the nearest pixel with "clamp". Squares are float32
    (float64 for float64 images) and scaled where they would overflow or underflow.

    Source: ``MPSCNNPoolingL2Norm``. PyTorch's ``lp_pool2d`` with ``norm_type=2``, which has no padding and in ceil mode
    scales windows that extend past the image.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        kernel_size: As for `avg_pool`, "global" and "adaptive" included.
        stride: Pixels between two windows. Default: ``kernel_size``.
        padding: As for `avg_pool`. Default 0.
        dilation: Pixels between two taps. Default 1.
        ceil_mode: Round the output's size up; no window starts after the image. Default False.
        offset: MPS's form, instead of padding: the pixel (y, x) under the centre of the first window.
        out_size: With ``offset`` or "adaptive": the output's size, as for `avg_pool`.
        edge_mode: "zero" (default) or "clamp", as above.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, or float64 on a GPU; a size is not an int.
        ValueError: x is not NHWC, windows do not fit, or arguments exclude each other.

    Example:
        >>> l2_pool(mx.array([3.0, 4.0, 0.0, 0.0]).reshape(1, 1, 4, 1), (1, 2)).reshape(-1)
        array([5, 0], dtype=float32)
    """
    y, _ = l2_pool_fwd(
        x,
        kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
        offset=offset,
        out_size=out_size,
        edge_mode=edge_mode,
        stream=stream,
    )
    return y


def l2_pool_fwd(
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
    stream: StreamLike = None,
) -> tuple[mx.array, L2PoolState]:
    """`l2_pool`, and the state that `l2_pool_grad` needs. Arguments and errors are those of `l2_pool`.

    Returns:
        The pooled images and the state.

    Example:
        >>> x = mx.array([3.0, 4.0, 0.0, 0.0]).reshape(1, 1, 4, 1)
        >>> y, state = l2_pool_fwd(x, (1, 2))
        >>> l2_pool_grad(mx.ones_like(y), x, state).reshape(-1)
        array([0.6, 0.8, 0, 0], dtype=float32)
    """
    return pool(
        "l2_pool",
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
    )


def l2_pool_grad(
    dy: mx.array,
    x: mx.array,
    state: L2PoolState,
    *,
    source_window: Sequence[Sequence[int]] | None = None,
    kernel_offset: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `l2_pool` with respect to its images.

    ``dx[n,h,w,c] = sum over the windows (j, i) of taps * dy[n,j,i,c] * x[n,h,w,c] / norm[n,j,i,c]``, where ``taps``
    counts the taps of the window that read (h, w): with edge mode "clamp" an edge pixel is also read for taps outside.
    A window whose norm is 0, or exceeds the range of the state's dtype, has no gradient.

    Source: ``MPSCNNPoolingL2NormGradient``, which computes the norms again; this function takes them from the state.
    ``source_window`` is the ``primaryOffset`` and ``sourceSize`` of ``MPSCNNPoolingGradient``.

    Args:
        dy: Gradient of the pooled images (n, out_h, out_w, c), of x's dtype.
        x: The images that were pooled.
        state: From `l2_pool_fwd`.
        source_window: ((y, x), (height, width)): only these outputs propagate, as if dy were 0 elsewhere.
            Default: all.
        kernel_offset: Refused: pooling inserts no zeros, so MPS's ``kernelOffset`` has no meaning here.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: dy or x is not a floating array, their dtypes differ, or state is not an L2PoolState of such images.
        ValueError: dy or x does not belong to the state.

    Example:
        >>> x = mx.array([3.0, 4.0, 12.0]).reshape(1, 1, 3, 1)
        >>> _, state = l2_pool_fwd(x, (1, 2), stride=1)
        >>> dy = mx.array([5.0, 12.65]).reshape(1, 1, 2, 1)
        >>> l2_pool_grad(dy, x, state)[0, 0, 0].item()
        3.0
    """
    stream = launch.resolve(stream)
    op = "l2_pool_grad"
    checks.array(op, "dy", dy, stream=stream)
    checks.image(op, "x", x, stream=stream)
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    checks.state(op, state, L2PoolState, stream=stream)
    check_state(op, state, EDGES)
    checks.no_kernel_offset(op, kernel_offset)
    rows, cols = state.rows, state.cols
    checks.shape(op, "x", x, ("n", rows.n_in, cols.n_in, "c"), "x does not belong to this state")
    expected = (x.shape[0], rows.n_out, cols.n_out, x.shape[3])
    checks.shape(op, "dy", dy, expected, "dy does not belong to x and this state")
    checks.shape(op, "state.norms", state.norms, expected, "the state does not belong to x")
    if state.norms.dtype != launch.accumulator(x.dtype):
        raise TypeError(
            f"{op}: the state does not belong to x; got state.norms.dtype={state.norms.dtype}, "
            f"expected {launch.accumulator(x.dtype)}"
        )
    rows, cols = placement.restrict_outputs(op, (rows, cols), source_window)
    return l2_rules.grad(dy, x, state.norms, Spec(PoolParams(rows, cols), stream))


def pool(
    op: str, x: mx.array, stream: mx.Stream, *, kernel_size: KernelSize, **how: Any
) -> tuple[mx.array, L2PoolState]:
    """`l2_pool_fwd` for a function with another name in errors."""
    checks.image(op, "x", x, stream=stream)
    _, h, w, channels = x.shape
    rows, cols = placement.place(op, (h, w), kernel_size, edge_modes=EDGE_MODES, **how)
    checks.image_shape(op, "output shape", (1, rows.n_out, cols.n_out, channels))
    with mx.stream(stream):
        norms = l2_rules.norms(x, Spec(PoolParams(rows, cols), stream))
        return norms.astype(x.dtype), L2PoolState(norms, "l2_pool", rows, cols)
