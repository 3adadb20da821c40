"""Maximum pooling and its gradient (``MPSCNNPoolingMax``, ``MPSCNNDilatedPoolingMax`` and their gradients).

The state holds the index of the maximum of every window, one byte for windows of up to 255 taps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, grids, launch, printing
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.pooling import maximum_rules
from mpsfunc.pooling.launches import Spec
from mpsfunc.pooling.params import PoolParams
from mpsfunc.windows.axis import EDGES, MAX_EDGE_MODES, Axis, MaxEdgeMode, check_state, clamps_taps, max_overlap, starts
from mpsfunc.windows.placement import IntOrPair, KernelSize, OutSize, Padding, place, restrict_outputs
from mpsfunc.windows.policy import PaddingPolicy


@printing.printed
class MaxPoolState(NamedTuple):
    """Where the windows of a maximum pooling lie and which tap is the maximum: all that its gradient needs.

    Fields:
        winners: Index of the tap that is the maximum, in row order, for each output (n, out_h, out_w, c); the dtype's
            largest number if it is a zero of the padding. uint8 for windows of up to 255 taps, else uint16 or uint32.
        op: "max_pool".
        rows: Windows along y.
        cols: Windows along x.
    """

    winners: mx.array
    op: str
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(winners,)."""
        return (self.winners,)

    def with_arrays(self, arrays: Sequence[mx.array]) -> MaxPoolState:
        """This state with other indices of the maxima."""
        (winners,) = checks.arrays_of("MaxPoolState", arrays, 1)
        return self._replace(winners=winners)


def max_pool(
    x: mx.array,
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: MaxEdgeMode | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Largest value in sliding windows.

    ``y[n,j,i,c] = max over the taps of window (j, i) of read(x)``. Outside the image a tap reads 0 with edge mode
    "zero", the nearest pixel with "clamp", and is ignored with "exclude". Of equal values the first in row order is
    taken, and any pixel before a zero of the padding. NaN counts as larger than any number.

    Source: ``MPSCNNPoolingMax`` and ``MPSCNNDilatedPoolingMax``, which have "zero" and "clamp". "exclude" is PyTorch's
    and ONNX's padding with minus infinity, and the default unless windows are placed by ``offset`` or a
    `PaddingPolicy`.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, any integer dtype, or float64 on the CPU.
        kernel_size: As for `avg_pool`, "global" and "adaptive" included.
        stride: Pixels between two windows. Default: ``kernel_size``.
        padding: As for `avg_pool`. Default 0.
        dilation: Pixels between two taps. Default 1.
        ceil_mode: Round the output's size up; no window starts after the image. Default False.
        offset: MPS's form, instead of padding: the pixel (y, x) under the centre of the first window.
        out_size: With ``offset`` or "adaptive": the output's size, as for `avg_pool`.
        edge_mode: "zero", "clamp" or "exclude", as above. Default: "exclude", or with ``offset`` or a `PaddingPolicy`
            MPS's "zero".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, out_h, out_w, c) of x's dtype.

    Raises:
        TypeError: x is not an array of numbers, or float64 on a GPU; a size is not an int.
        ValueError: x is not NHWC, windows do not fit, arguments exclude each other, or with "exclude" a window contains
            no pixel.

    Example:
        >>> x = mx.array(
        ...     [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0], [-7.0, -8.0, -9.0]]
        ... ).reshape(1, 3, 3, 1)
        >>> max_pool(x, 2, offset=(0, 0), out_size=(2, 2)).reshape(2, 2)
        array([[0, 0],
               [0, -5]], dtype=float32)
    """
    y, _ = max_pool_fwd(
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


def max_pool_fwd(
    x: mx.array,
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: MaxEdgeMode | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, MaxPoolState]:
    """`max_pool`, and the state that `max_pool_grad` needs. Arguments and errors are those of `max_pool`.

    Returns:
        The pooled images and the state.

    Example:
        >>> y, state = max_pool_fwd(mx.arange(16.0).reshape(1, 4, 4, 1), 2)
        >>> max_pool_grad(mx.ones_like(y), state)[0, 1, :, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    placement: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    placement |= {"offset": offset, "out_size": out_size, "edge_mode": edge_mode}
    return pool("max_pool", x, kernel_size, stream, placement)


def max_pool_grad(
    dy: mx.array,
    state: MaxPoolState,
    *,
    source_window: Sequence[Sequence[int]] | None = None,
    kernel_offset: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of `max_pool` with respect to its images.

    ``dx[n,h,w,c] = sum of dy[n,j,i,c] over the windows (j, i) whose maximum is (h, w)``. If a zero of the padding is
    the maximum, the gradient is dropped.

    Source: ``MPSCNNPoolingMaxGradient``, which searches for the maxima again; this function takes them from the state,
    and `max_pool_grad_from_source` does as MPS. ``source_window`` is the ``primaryOffset`` and ``sourceSize`` of
    ``MPSCNNPoolingGradient``.

    Args:
        dy: Gradient of the pooled images (n, out_h, out_w, c).
        state: From `max_pool_fwd`.
        source_window: ((y, x), (height, width)): only these outputs propagate, as if dy were 0 elsewhere.
            Default: all.
        kernel_offset: Refused: pooling inserts no zeros, so MPS's ``kernelOffset`` has no meaning here.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a MaxPoolState.
        ValueError: dy does not belong to the state.

    Example:
        >>> x = mx.array([5.0, 1.0, 4.0, 2.0, 8.0, 3.0]).reshape(1, 1, 6, 1)
        >>> _, state = max_pool_fwd(x, (1, 2), stride=1, dilation=3)
        >>> max_pool_grad(mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1), state).reshape(-1)
        array([1, 0, 3, 0, 2, 0], dtype=float32)
    """
    return _gradient("max_pool_grad", dy, state, source_window, kernel_offset, stream)


def max_pool_grad_from_source(
    dy: mx.array,
    x: mx.array,
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: MaxEdgeMode | None = None,
    source_window: Sequence[Sequence[int]] | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """`max_pool_grad` that searches for the maxima again in the source image, as MPS does.

    Args:
        dy: Gradient of the pooled images (n, out_h, out_w, c).
        x: The images that were pooled.
        kernel_size: As for `max_pool`, like the rest.
        stride: As for `max_pool`.
        padding: As for `max_pool`.
        dilation: As for `max_pool`.
        ceil_mode: As for `max_pool`.
        offset: As for `max_pool`.
        out_size: As for `max_pool`.
        edge_mode: As for `max_pool`.
        source_window: As for `max_pool_grad`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: As for `max_pool` and `max_pool_grad`, or dy and x differ in dtype.
        ValueError: As for `max_pool` and `max_pool_grad`.

    Example:
        >>> x = mx.array([3.0, 1.0, 2.0, 5.0]).reshape(1, 2, 2, 1)
        >>> max_pool_grad_from_source(mx.ones((1, 1, 1, 1)), x, 2).reshape(-1)
        array([0, 0, 0, 1], dtype=float32)
    """
    op = "max_pool_grad_from_source"
    checks.array(op, "dy", dy)
    checks.array(op, "x", x)
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    placement: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    placement |= {"offset": offset, "out_size": out_size, "edge_mode": edge_mode}
    _, state = pool(op, x, kernel_size, stream, placement)
    return _gradient(op, dy, state, source_window, None, stream)


def max_pool_indices(state: MaxPoolState, *, stream: StreamLike = None) -> mx.array:
    """Indices of the maxima, as PyTorch's ``return_indices=True`` numbers them.

    ``index = h * width + w`` in the source image, for each image and channel.

    Args:
        state: From `max_pool_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Indices (n, out_h, out_w, c), int32; -1 if a zero of the padding is the maximum.

    Raises:
        TypeError: state is not a MaxPoolState.
        ValueError: The state does not fit together.

    Example:
        >>> _, state = max_pool_fwd(mx.array([3.0, 1.0, 2.0, 5.0]).reshape(1, 2, 2, 1), 2)
        >>> max_pool_indices(state).item()
        3
    """
    stream = launch.resolve(stream)
    _check_state("max_pool_indices", state, stream)
    rows, cols = state.rows, state.cols
    with mx.stream(stream):
        taps = rows.size * cols.size
        codes = state.winners.astype(mx.uint32)
        lost = codes >= taps
        tap = mx.where(lost, 0, codes).astype(mx.int32)
        # By a table: mx.divmod within mx.vmap ends the process in MLX 0.32.4, and earlier versions read no quotients.
        down = mx.take(mx.repeat(mx.arange(rows.size), cols.size), tap)
        h = mx.array(starts(rows), mx.int32)[None, :, None, None] + down * rows.dilation
        w = mx.array(starts(cols), mx.int32)[None, None, :, None] + (tap - down * cols.size) * cols.dilation
        at = mx.clip(h, 0, rows.n_in - 1) * cols.n_in + mx.clip(w, 0, cols.n_in - 1)
        return mx.where(lost, -1, at).astype(mx.int32)


def max_unpool(y: mx.array, state: MaxPoolState, *, stream: StreamLike = None) -> mx.array:
    """Puts values back where a maximum pooling took them from; all other pixels are 0.

    If overlapping windows have the same maximum, it gets the mean of their values (PyTorch's ``max_unpool2d`` keeps any
    one of them). Linear in y.

    Args:
        y: Values (n, out_h, out_w, c).
        state: From `max_pool_fwd`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, w, c) of y's dtype, as large as those that were pooled.

    Raises:
        TypeError: As for `max_pool_grad`.
        ValueError: As for `max_pool_grad`.

    Example:
        >>> y, state = max_pool_fwd(mx.array([3.0, 1.0, 2.0, 5.0]).reshape(1, 2, 2, 1), 2)
        >>> max_unpool(y, state).reshape(-1)
        array([0, 0, 0, 5], dtype=float32)
    """
    stream = launch.resolve(stream)
    checks.array("max_unpool", "y", y, stream=stream)
    _check_state("max_unpool", state, stream)
    checks.shape("max_unpool", "y", y, tuple(state.winners.shape), "y does not belong to this state")
    spec = Spec(PoolParams(state.rows, state.cols), stream)
    image: mx.array
    axes = state.rows, state.cols
    clamps = [clamps_taps(axis) for axis in axes]
    if max_overlap(*axes) == 1 and not any(clamps):
        image = maximum_rules.grad(y, state.winners, spec)
        return image
    with mx.stream(stream):
        wide = y.astype(launch.accumulator(y.dtype))
        shared = maximum_rules.grad(mx.ones_like(wide), state.winners, spec)
        shared = mx.maximum(shared, 1)
        summed = maximum_rules.grad(wide, state.winners, spec)
        # A sum may overflow where the mean does not; there it is one of values divided by all that may share a winner.
        far = math.prod(a.n_out if c else max_overlap(a) for a, c in zip(axes, clamps, strict=True))
        far = grids.power_of_two(far)
        divided = maximum_rules.grad(wide / far, state.winners, spec) * (far / shared)
        image = mx.where(mx.abs(summed) < math.inf, summed / shared, divided).astype(y.dtype)
        return image


# Parts ------------------------------------------------------------------------------------------------


def pool(
    op: str, x: Any, kernel_size: KernelSize, stream: StreamLike, placement: dict[str, Any]
) -> tuple[mx.array, MaxPoolState]:
    """`max_pool_fwd` for a function with another name in errors."""
    stream = launch.resolve(stream)
    checks.numbers(op, "x", x, stream=stream)
    checks.image_shape(op, "x.shape", x.shape)
    _, h, w, channels = x.shape
    mode = placement["edge_mode"]
    if mode is None:
        mps = placement["offset"] is not None or is_a(placement["padding"], PaddingPolicy)
        placement = placement | {"edge_mode": "zero" if mps else "exclude"}
    rows, cols = place(op, (h, w), kernel_size, edge_modes=MAX_EDGE_MODES, **placement)
    checks.image_shape(op, "output shape", (1, rows.n_out, cols.n_out, channels))
    if rows.size * cols.size >= 2**31:  # kernels number taps in int32
        size = rows.size, cols.size
        raise ValueError(f"{op}: too many taps; got kernel_size={size}, expected less than 2**31 in a window")
    if not (_holds_pixels(rows) and _holds_pixels(cols)):
        raise ValueError(
            f"{op}: a window contains no pixel; got edge_mode={describe(mode or 'exclude')}, expected less padding, or "
            "edge_mode='zero' (0 there) or 'clamp' (the nearest pixel)"
        )
    with mx.stream(stream):
        y, winners = maximum_rules.pool(_comparable(x, stream), Spec(PoolParams(rows, cols), stream))
        return y.astype(x.dtype), MaxPoolState(winners, "max_pool", rows, cols)


def _gradient(op: str, dy: Any, state: Any, source_window: Any, kernel_offset: object, stream: StreamLike) -> mx.array:
    """`max_pool_grad` for a function with another name in errors."""
    stream = launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    _check_state(op, state, stream)
    checks.no_kernel_offset(op, kernel_offset)
    checks.shape(op, "dy", dy, tuple(state.winners.shape), "dy does not belong to this state")
    rows, cols = restrict_outputs(op, (state.rows, state.cols), source_window)
    dx: mx.array = maximum_rules.grad(dy, state.winners, Spec(PoolParams(rows, cols), stream))
    return dx


def _check_state(op: str, state: MaxPoolState, stream: mx.Stream) -> None:
    checks.state(op, state, MaxPoolState, stream=stream)
    check_state(op, state, (*EDGES, 2))
    winners, expected = state.winners, maximum_rules.winners_dtype(state.rows, state.cols)
    checks.shape(op, "state.winners", winners, ("n", state.rows.n_out, state.cols.n_out, "c"), "a wrong state")
    if winners.dtype != expected:
        raise TypeError(f"{op}: a wrong state; got state.winners.dtype={winners.dtype}, expected {expected}")


@functools.lru_cache(maxsize=1024)
def _holds_pixels(a: Axis) -> bool:
    """Whether each window has a tap to read."""
    if a.edge != MAX_EDGE_MODES.index("exclude"):
        return True
    firsts = starts(a)
    taps = [max(0, -(start // a.dilation)) for start in firsts]  # the first that is not before the image
    return all(k < a.size and start + k * a.dilation < a.n_in for k, start in zip(taps, firsts, strict=True))


def _comparable(x: mx.array, stream: mx.Stream) -> mx.array:
    """Integers as wide as they come, which the CPU's kernels know; a GPU compares any."""
    if mx.issubdtype(x.dtype, mx.floating) or launch.backend(stream) != "cpu":
        return x
    return x.astype(mx.uint64 if mx.issubdtype(x.dtype, mx.unsignedinteger) else mx.int64)
