"""Pixels and channels around images, and the gradient (``MPSNNPad``, ``MPSNNPadGradient``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import rules
from mpsfunc.windows.sampling import Padded

Sizes = int | Sequence[int]
_Canonical = Literal["constant", "zero", "clamp", "mirror", "mirror_with_edge", "circular"]
PadMode = Literal[_Canonical, "replicate", "reflect", "edge", "symmetric", "wrap"]
MODES: tuple[_Canonical, ...] = get_args(_Canonical)
NAMES: tuple[PadMode, ...] = get_args(PadMode)
# What PyTorch and NumPy call them.
_CALLED: dict[PadMode, _Canonical] = {
    "replicate": "clamp",
    "edge": "clamp",
    "reflect": "mirror",
    "symmetric": "mirror_with_edge",
    "wrap": "circular",
}


@printing.printed
class PadState(NamedTuple):
    """How an image was padded: all that the gradient needs.

    Fields:
        op: "pad".
        rows: The height of the image, the rows before and after it, and the mode: "constant", "clamp", "mirror",
            "mirror_with_edge" or "circular".
        cols: The same for its columns.
        channels: The same for its channels.
    """

    op: str
    rows: Padded
    cols: Padded
    channels: Padded

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: padding is linear but for a constant."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> PadState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def pad(
    x: mx.array,
    before: Sizes,
    after: Sizes,
    mode: PadMode = "constant",
    value: float = 0.0,
    *,
    stream: StreamLike = None,
) -> mx.array:
    """Pads images along height, width and channels.

    Of an axis ``a b c`` with three before and two after, the modes make

    - "constant" and "zero": ``v v v a b c v v`` with v = ``value``, which is 0 for "zero";
    - "clamp", "replicate" or "edge": ``a a a a b c c c``;
    - "mirror" or "reflect": ``b c b a b c b a``, reflected at the edge pixels;
    - "mirror_with_edge" or "symmetric": ``c b a a b c c b``, reflected at the edges;
    - "circular" or "wrap": ``a b c a b c a b``, repeated.

    Reflections and repetitions continue, so that sizes may exceed the image.

    Source: ``MPSNNPad`` and, for "circular", ``pad`` of PyTorch, whose names "replicate", "reflect" and "circular" are;
    "edge", "reflect", "symmetric" and "wrap" are those of NumPy.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, float64 on the CPU, or integers of any size.
        before: Elements before the image along each axis: (y, x, c), (y, x), or an int for y and x.
        after: Elements after the image, in the same form.
        mode: As above. Default "constant".
        value: The constant. It is rounded to a floating dtype, and becomes infinite if it is too large; an integer
            dtype must be able to represent it. Default 0.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's dtype, each axis longer by its padding.

    Raises:
        TypeError: x is not an array of real numbers, float64 on a GPU, a size is not an int, or value is not a number
            that the dtype holds.
        ValueError: x is not NHWC, a size is negative, mode is unknown, value is not 0 with another mode than
            "constant", or the result is too large.

    Example:
        >>> x = mx.arange(1, 4).reshape(1, 1, 3, 1)
        >>> [pad(x, (0, 3), (0, 2), mode).reshape(-1).tolist() for mode in ("zero", "clamp")]
        [[0, 0, 0, 1, 2, 3, 0, 0], [1, 1, 1, 1, 2, 3, 3, 3]]
        >>> [
        ...     pad(x, (0, 3), (0, 2), mode).reshape(-1).tolist()
        ...     for mode in ("mirror", "mirror_with_edge")
        ... ]
        [[2, 3, 2, 1, 2, 3, 2, 1], [3, 2, 1, 1, 2, 3, 3, 2]]
        >>> pad(x, (0, 3), (0, 2), "circular").reshape(-1).tolist()
        [1, 2, 3, 1, 2, 3, 1, 2]
    """
    return pad_fwd(x, before, after, mode, value, stream=stream)[0]


def pad_fwd(
    x: mx.array,
    before: Sizes,
    after: Sizes,
    mode: PadMode = "constant",
    value: float = 0.0,
    *,
    stream: StreamLike = None,
) -> tuple[mx.array, PadState]:
    """`pad`, and the state that `pad_grad` needs. Arguments and errors are those of `pad`.

    Returns:
        The padded images and the state.

    Example:
        >>> y, state = pad_fwd(mx.ones((1, 2, 2, 1)), (0, 0, 1), (0, 0, 2))
        >>> y.shape, state.channels.before
        ((1, 2, 2, 4), 1)
    """
    stream = launch.resolve(stream)
    checks.moved_image("pad", "x", x, stream=stream)
    state = _state("pad", x.shape, before, after, mode)
    fill = _value("pad", value, mode, x.dtype)
    around = rules.Spec(state.rows, state.cols, False, fill, stream)
    if not _moves(state.channels):
        return rules.resample(x, around), state
    if not (_moves(state.rows) or _moves(state.cols)):
        return _along_channels(x, state.channels, False, fill, stream), state
    narrow = x.dtype in (mx.float16, mx.bfloat16)
    with mx.stream(stream):  # for autodiff: two sums, one rounding
        wide = x.astype(mx.float32) if narrow else x
        y = rules.resample(_along_channels(wide, state.channels, False, fill, stream), around)
        return y.astype(x.dtype), state


def pad_state(x_shape: Sequence[int], before: Sizes, after: Sizes, mode: PadMode = "constant") -> PadState:
    """The state of `pad_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        before: As for `pad`, like the rest.
        after: As for `pad`.
        mode: As for `pad`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or a size is not an int.
        ValueError: x_shape is not (n, h, w, c), sizes do not fit, mode is unknown, or the result is too large.

    Example:
        >>> pad_state((1, 4, 4, 3), 1, 2).rows.n_out
        7
    """
    x_shape = checks.shape_of_images("pad_state", "x_shape", x_shape)
    return _state("pad_state", x_shape, before, after, mode)


def pad_grad(dy: mx.array, state: PadState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `pad` with respect to its images: for every element the sum over its copies.

    Source: ``MPSNNPadGradient``.

    Args:
        dy: Gradient of the padded images, floating.
        state: From `pad_fwd` or `pad_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy is not a floating array, or state is not a PadState.
        ValueError: dy does not belong to the state.

    Example:
        >>> state = pad_state((1, 1, 3, 1), (0, 4), (0, 1), "mirror")
        >>> dy = mx.array([1.0, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7])
        >>> pad_grad(dy.reshape(1, 1, 8, 1), state).reshape(-1)
        array([10001, 1.0101e+07, 1.0001e+06], dtype=float32)
    """
    op, stream = "pad_grad", launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    checks.state(op, state, PadState, stream=stream)
    for name, axis in (("rows", state.rows), ("cols", state.cols), ("channels", state.channels)):
        _check_axis(op, name, axis)
    checks.image_shape(op, "padded shape", (1, *(axis.n_out for axis in state[1:])))
    rules.check(op, state.rows, state.cols)
    expected = "n", state.rows.n_out, state.cols.n_out, state.channels.n_out
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")
    around = rules.Spec(state.rows, state.cols, True, 0, stream)
    if not _moves(state.channels):
        return rules.resample(dy, around)
    if not (_moves(state.rows) or _moves(state.cols)):
        return _along_channels(dy, state.channels, True, 0, stream)
    with mx.stream(stream):  # two sums, one rounding
        sums = rules.resample(dy.astype(launch.accumulator(dy.dtype)), around)
        return _along_channels(sums, state.channels, True, 0, stream).astype(dy.dtype)


def _along_channels(x: mx.array, channels: Padded, back: bool, fill: float, stream: mx.Stream) -> mx.array:
    """Rows and columns of an image that has the channels for columns."""
    n, h, w, c = x.shape
    with mx.stream(stream):
        rows = Padded(w, 0, 0, "constant")
        y = rules.resample(x.reshape(n * h, w, c, 1), rules.Spec(rows, channels, back, fill, stream))
        return y.reshape(n, h, w, y.shape[2])


def _moves(axis: Padded) -> bool:
    return axis.before + axis.after > 0


def _state(op: str, x_shape: Sequence[int], before: Any, after: Any, mode: Any) -> PadState:
    given = checks.choice(op, "mode", mode, NAMES)
    mode = _CALLED.get(given, given)
    sizes = [_sizes(op, name, value) for name, value in (("before", before), ("after", after))]
    rows, cols, channels = (
        Padded(length, ahead, behind, "constant" if mode == "zero" else mode)
        for length, ahead, behind in zip(x_shape[1:], *sizes, strict=True)
    )
    checks.image_shape(op, "output shape", (1, rows.n_out, cols.n_out, channels.n_out))
    rules.check(op, rows, cols)
    return PadState("pad", rows, cols, channels)


def _sizes(op: str, name: str, value: Any) -> tuple[int, int, int]:
    given = entries(value)
    if given is None:
        size = checks.whole(op, name, value, 0)
        return size, size, 0
    if len(given) not in (2, 3):
        raise ValueError(
            f"{op}: {name} has another number of sizes; got {name}={describe(value)}, expected (y, x) or (y, x, c)"
        )
    y, x, c = (checks.whole(op, f"{name}[{i}]", size, 0) for i, size in enumerate((*given, 0)[:3]))
    return y, x, c


def _value(op: str, value: Any, mode: PadMode, dtype: mx.Dtype) -> float:
    """The constant, which is an int where the image has integers."""
    value = checks.real(op, "value", value, "a float or an int")
    if mode != "constant" and value != 0:
        raise ValueError(
            f"{op}: value goes with a constant; got value={describe(value)}, expected 0 with mode={describe(mode)}"
        )
    if mx.issubdtype(dtype, mx.floating):
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(f"{op}: value is out of range; got value={describe(value)}, expected what a float64 holds")
        return float(value)
    bits = 8 * dtype.size
    signed = mx.issubdtype(dtype, mx.signedinteger)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not (least <= value <= most and value == int(value)):
        raise TypeError(f"{op}: the dtype does not hold value; got value={describe(value)}, expected {least} to {most}")
    return int(value)


def _check_axis(op: str, name: str, axis: Any) -> None:
    """A state may have been made by hand."""
    if not is_a(axis, Padded):
        raise TypeError(f"{op}: the state holds no axis; got state.{name}={describe(axis)}, expected a Padded")
    checks.whole(op, f"state.{name}.n_in", axis.n_in)
    checks.whole(op, f"state.{name}.before", axis.before, 0)
    checks.whole(op, f"state.{name}.after", axis.after, 0)
    checks.choice(op, f"state.{name}.mode", axis.mode, MODES)
