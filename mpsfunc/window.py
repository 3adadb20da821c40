"""Places windows on images: however a caller says it, the answer is one `Axis` for the rows and one for the columns.

Padding in pixels or by name, an MPS policy and an MPS offset all end here. Kernels see the two `Axis` only, and follow
taps from input to output or back with ``metal/shared/geometry.h``. Everything counts pixels; pairs are (y, x).

A window of ``kernel_size`` k and ``dilation`` d spans ``K = (k - 1) * d + 1`` pixels. MPS calls the pixel
``K // 2`` places after its first tap its centre, so an even window reaches one pixel further up and left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mpsfunc._near import choice
from mpsfunc._plain import entries, is_a, text
from mpsfunc._policy import (
    LIMIT,
    PIXELS,
    STYLES,
    Ints,
    check_policy,
    pair,
    pixels,
    policy_spot,
    refuse,
    told_apart,
    two,
    within_reach,
)
from mpsfunc._policy import PaddingPolicy as PaddingPolicy
from mpsfunc._printing import told

EDGE_MODES = ("zero", "clamp")  # in the order of their codes in Axis.edge
MAX_EDGE_MODES = (*EDGE_MODES, "exclude")
_EVEN = len(MAX_EDGE_MODES)  # the code behind those, for windows that part the image evenly
EDGES = (0, 1, _EVEN)  # of averages and norms


class Axis(NamedTuple):
    """The windows along one spatial axis: eleven ints, in the order of ``struct Axis`` in ``metal/shared/geometry.h``.

    Tap k of output o reads input ``o * stride - pad + k * dilation``; where ``edge`` is 3, the taps of output o are the
    inputs from ``floor(o * n_in / n_out)`` up to, but without, ``ceil((o + 1) * n_in / n_out)``.

    Fields:
        n_in: Length of the input.
        n_out: Length of the output.
        size: Taps in a window; where windows differ, in the largest.
        stride: Pixels between two windows.
        dilation: Pixels between two taps.
        pad: Pixels before the image at which output 0 starts; negative when it starts inside.
        edge: 0 (zero): an average always divides by ``size``. 1 (clamp): it divides by the number of taps
            within ``[-zero_pad, n_in - 1 + zero_pad_after]``. For a maximum or a norm, 1 reads the nearest pixel
            instead, and 2 (exclude) passes the tap by. 3: windows part the image evenly and read nothing outside.
        zero_pad: Zeros in front of the image that count in that divisor; 0 when ``edge`` is 0.
        begin: First output that takes part; the others give 0 and take no gradient.
        end: One past the last output that takes part.
        zero_pad_after: Zeros behind the image that count in that divisor; 0 when ``edge`` is 0.
    """

    n_in: int
    n_out: int
    size: int
    stride: int
    dilation: int
    pad: int
    edge: int
    zero_pad: int
    begin: int
    end: int
    zero_pad_after: int


def check_axes(op: str, state: Any) -> None:
    """Refuses a state whose ``rows`` or ``cols`` are not windows at all."""
    for name in ("rows", "cols"):
        axis = getattr(state, name)
        if not is_a(axis, Axis) or any(type(n) is not int for n in axis):
            refuse(op, "the state has no windows", f"state.{name}", axis, "an Axis of ints", TypeError)


def check_state(op: str, state: Any, edges: Sequence[int]) -> None:
    """Refuses a state whose ``rows`` or ``cols`` are windows that no placement makes, or with another of ``edges``."""
    check_axes(op, state)
    check_windows(op, (state.rows, state.cols), edges)


def check_windows(op: str, axes: tuple[Axis, Axis], edges: Sequence[int]) -> None:
    """`check_state` of axes of ints."""
    for name, axis in zip(("rows", "cols"), axes, strict=True):
        if not _possible(axis) or axis.edge not in edges:
            refuse(op, "the state's windows cannot be", f"state.{name}", axis, "what a forward function makes")


@functools.lru_cache(maxsize=1024)
def _possible(axis: Axis) -> bool:
    extent = (axis.size - 1) * axis.dilation + 1
    last = (axis.n_out - 1) * axis.stride - axis.pad + extent
    zeros, whole = (axis.zero_pad, axis.zero_pad_after), axis._replace(begin=0, end=axis.n_out)
    distances = axis.n_in + max(zeros), axis.n_out, axis.stride, axis.dilation, extent, axis.pad, last
    return (
        min(axis.size, axis.stride, axis.dilation) >= 1
        and min(axis.n_in, axis.n_out, axis.edge, *zeros) >= 0
        and 0 <= axis.begin <= axis.end <= axis.n_out
        and all(abs(distance) < LIMIT for distance in distances)
        and (axis.edge != _EVEN or (axis.n_out >= 1 and whole == _evenly(axis.n_in, axis.n_out)))
    )


IntOrPair = int | Sequence[int]
KernelSize = IntOrPair | Literal["global", "adaptive"]
OutSize = int | Sequence[int | None]
Pixels = int | Sequence[int | Sequence[int]]  # for each side
Padding = Pixels | Literal["same", "valid", "full"] | PaddingPolicy


# Of the rows and of the columns: (length, extent, stride), and (n_out, pad).
_Lengths = Sequence[tuple[int, int, int]]
_Spots = list[Ints]


def place(
    op: str,
    n_in: tuple[int, int],
    kernel_size: KernelSize,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: OutSize | None = None,
    edge_mode: str = "zero",
    edge_modes: Sequence[str] = ("zero",),
    zero_pad: Pixels | None = None,
) -> tuple[Axis, Axis]:
    """Puts windows on an image. They may hang over it or lie wholly outside, where they read nothing.

    Args:
        op: The public function that asks, for its errors.
        n_in: Height and width; 0 is legal with ``offset`` only.
        kernel_size: Taps in a window: an int or (y, x), like everything below that says nothing else. Or one of

            - "global": one window over the whole image
            - "adaptive": as many windows as ``out_size`` says, which part the image evenly (PyTorch); window o
              begins at pixel ``floor(o * n_in / n_out)`` and ends before ``ceil((o + 1) * n_in / n_out)``

            These place the windows alone: stride, padding, dilation, ceil_mode and offset stay as they are.
        stride: Pixels between two windows; None means ``kernel_size``.
        padding: One of

            - pixels, none negative: an int, (y, x) or ((top, bottom), (left, right)), for an output of
              ``floor((n_in + before + after - K) / stride) + 1``
            - "same", for an output of ``ceil(n_in / stride)`` with an odd pixel behind the image (TensorFlow,
              JAX, ONNX SAME_UPPER); "valid", 0 pixels; "full", K - 1 pixels on every side
            - a `PaddingPolicy`: MPS's rules
        dilation: Pixels between two taps.
        ceil_mode: Round the output size up instead of down, except that no window starts behind the image
            (PyTorch, ONNX). Needs padding in pixels.
        offset: MPS's form, in place of ``padding``: the input pixel under the centre of the first window,
            which starts at ``offset - K // 2``. May be negative; needs ``out_size``.
        out_size: Size of the output with ``offset``, at least 1; with "adaptive" too, where None stands for the
            image's.
        edge_mode: A name among ``edge_modes``.
        edge_modes: The edge modes that ``op`` knows.
        zero_pad: Pixels of zeros around the image that count when edge mode "clamp" shrinks the window of an
            average, as ``padding`` has pixels; "zero" ignores it, as MPS does. None if ``op`` does not average.

    Returns:
        The axes of the rows and of the columns.

    Raises:
        TypeError: A number is not an int (a bool is none), or a name not a string.
        ValueError: A value out of range, windows that do not fit, arguments that exclude each other, or a
            position of 2**30 pixels and beyond.

    Example:
        >>> rows, cols = place("avg_pool", (5, 6), 3, stride=2, padding="same")
        >>> (rows.n_out, rows.pad), (cols.n_out, cols.pad)
        ((3, 1), (3, 0))
    """
    said = kernel_size, stride, padding, dilation, ceil_mode, offset, out_size, edge_mode, zero_pad
    return (_known if told_apart((n_in, *said)) else _place)(op, n_in, tuple(edge_modes), *said)


def _place(
    op: str,
    n_in: tuple[int, int],
    edge_modes: tuple[str, ...],
    kernel_size: KernelSize,
    stride: IntOrPair | None,
    padding: Padding,
    dilation: IntOrPair,
    ceil_mode: bool,
    offset: IntOrPair | None,
    out_size: OutSize | None,
    edge_mode: str,
    zero_pad: Pixels | None,
) -> tuple[Axis, Axis]:
    if not is_a(ceil_mode, bool):
        refuse(op, "ceil_mode is not a bool", "ceil_mode", ceil_mode, "True or False", TypeError)
    zeros = [(0, 0), (0, 0)] if zero_pad is None else pixels(op, "zero_pad", zero_pad)
    name = text(kernel_size)
    if name is not None:
        edge_code(op, edge_mode, edge_modes)
        given = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode, "offset": offset}
        rows, cols = _over_all(op, n_in, name, out_size, given)
        return within_reach(op, rows), within_reach(op, cols)
    size = pair(op, "kernel_size", kernel_size, least=1)
    step = size if stride is None else pair(op, "stride", stride, least=1)
    spread = pair(op, "dilation", dilation, least=1)
    extents = (size[0] - 1) * spread[0] + 1, (size[1] - 1) * spread[1] + 1
    edge = edge_code(op, edge_mode, edge_modes)

    if offset is not None or out_size is not None:
        spots = _by_offset(op, extents, offset, out_size, padding, ceil_mode)
    else:
        lengths = list(zip(n_in, extents, step, strict=True))
        spots, widest = _by_padding(op, lengths, padding, ceil_mode)
        if min(n_out for n_out, _ in spots) < 1:
            most = tuple((extent - 1) // d + 1 for extent, d in zip(widest, spread, strict=True))
            refuse(op, "window does not fit", "kernel_size", size, f"at most {most} with padding")

    if is_a(padding, PaddingPolicy) and padding.exclude_edges:
        if zero_pad is None:
            refuse(op, "exclude_edges is for averages", "padding", padding, "exclude_edges=False")
        if any(map(any, zeros)):
            refuse(op, "exclude_edges sets zero_pad", "zero_pad", zero_pad, "0 with exclude_edges")
        edge, zeros = EDGE_MODES.index("clamp"), [(max(pad, 0), max(pad, 0)) for _, pad in spots]
    if edge == 0:
        zeros = [(0, 0), (0, 0)]

    rows, cols = (
        Axis(n_in[i], n_out, size[i], step[i], spread[i], pad, edge, before, 0, n_out, after)
        for i, ((n_out, pad), (before, after)) in enumerate(zip(spots, zeros, strict=True))
    )
    return within_reach(op, rows), within_reach(op, cols)


# An eager training loop asks the same thing again and again, and the answer costs more than a launch.
_known = functools.lru_cache(maxsize=1024, typed=True)(_place)


def source_window(op: str, axes: tuple[Axis, Axis], window: Sequence[IntOrPair] | None) -> tuple[Axis, Axis]:
    """Lets only some outputs take part (``primaryOffset`` and ``sourceSize`` of ``MPSCNNPoolingGradient``).

    Args:
        op: The public function that asks, for its errors.
        axes: Rows and columns.
        window: ((y, x), (height, width)): where the part begins, and its size, at least 0. It may hang over
            the output; only what lies within counts. None keeps all.

    Returns:
        The axes with ``begin`` and ``end`` narrowed.

    Raises:
        TypeError: An entry is not an int.
        ValueError: Not two pairs, or a negative size.

    Example:
        >>> axes = place("avg_pool_grad", (8, 8), 2)
        >>> rows, cols = source_window("avg_pool_grad", axes, ((1, -1), (9, 3)))
        >>> (rows.begin, rows.end), (cols.begin, cols.end)
        ((1, 4), (0, 2))
    """
    if window is None:
        return axes
    rule = "((y, x), (height, width)) with no negative size"
    parts = entries(window) or ()
    if len(parts) != 2:
        refuse(op, "source_window is not two pairs", "source_window", window, rule)
    origin, size = (pair(op, "source_window", part, rule=rule, of=window) for part in parts)
    if min(size) < 0:
        refuse(op, "source_window has a negative size", "source_window", window, rule)
    rows, cols = (
        a._replace(begin=min(max(start, a.begin), a.end), end=min(max(start + n, a.begin), a.end))
        for a, start, n in zip(axes, origin, size, strict=True)
    )
    return rows, cols


def most_readers(*axes: Axis) -> int:
    """The most windows that span one pixel along an axis, whether their taps read it or not.

    Edge mode "clamp" is left out of account, with which any number of windows can read an edge.

    Example:
        >>> most_readers(*place("avg_pool", (8, 8), 3, stride=2))
        2
    """
    return max(
        _evenly(a.n_out, a.n_in).size if a.edge == _EVEN else -(-((a.size - 1) * a.dilation + 1) // a.stride)
        for a in axes
    )


def alike(a: Axis) -> bool:
    """Whether all windows have as many taps and are as far apart, which "adaptive" ones need not be.

    Example:
        >>> [alike(place("avg_pool", (n, n), "adaptive", out_size=3)[0]) for n in (6, 7)]
        [True, False]
    """
    return a.edge != _EVEN


def moves_taps(a: Axis) -> bool:
    """Whether a maximum's or a norm's tap outside reads an edge of the image, which any number of windows may do.

    Example:
        >>> how = {"edge_mode": "clamp", "edge_modes": EDGE_MODES}
        >>> [moves_taps(place("l2_pool", (8, 8), 2, padding=p, **how)[0]) for p in (0, 1)]
        [False, True]
    """
    end = (a.n_out - 1) * a.stride - a.pad + (a.size - 1) * a.dilation + 1
    return a.edge == EDGE_MODES.index("clamp") and (a.pad > 0 or end > a.n_in)


def starts(a: Axis) -> list[int]:
    """The position of each output's first tap.

    Example:
        >>> starts(place("avg_pool", (7, 8), "adaptive", out_size=3)[0])
        [0, 2, 4]
    """
    return [o * a.n_in // a.n_out if a.edge == _EVEN else o * a.stride - a.pad for o in range(a.n_out)]


def edge_code(op: str, edge_mode: str, edge_modes: Sequence[str] = EDGE_MODES) -> int:
    """The number of ``edge_mode`` in `Axis.edge`; ``edge_modes`` are those that ``op`` knows."""
    return MAX_EDGE_MODES.index(choice(op, "edge_mode", edge_mode, edge_modes))


_ALONE = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "offset": None}


def _over_all(op: str, n_in: Ints, name: str, out_size: object, given: Mapping[str, object]) -> tuple[Axis, Axis]:
    """Windows that cover the image without padding, so that the edge mode says nothing."""
    rule = "an int or a (y, x) pair, 'global' or 'adaptive'"
    choice(op, "kernel_size", name, ("global", "adaptive"), rule)
    if min(n_in) < 1:
        refuse(op, "image is empty", "height and width", n_in, "at least 1")
    for arg, value in given.items():
        if not _is(value, _ALONE[arg]):
            refuse(op, f"kernel_size={told(name)} places the windows alone", arg, value, f"{_ALONE[arg]}")
    if name == "global":
        if out_size is not None:
            refuse(op, "kernel_size='global' has one window", "out_size", out_size, "None")
        sizes: Ints = (1, 1)
    else:
        rule = "an int >= 1, None for the image's size, or a (y, x) pair of those"
        if out_size is None:
            refuse(op, "kernel_size='adaptive' needs out_size", "out_size", out_size, rule)
        wanted = [n if m is None else m for n, m in zip(n_in, two(op, "out_size", out_size, rule), strict=True)]
        sizes = pair(op, "out_size", wanted, 1, rule, out_size)
    rows, cols = (_evenly(n, m) for n, m in zip(n_in, sizes, strict=True))
    return rows, cols


def _is(value: object, default: object) -> bool:
    """Whether an argument was left as it is; a False for a 0, or an array, was not."""
    return type(value) is type(default) and value == default


def _evenly(n: int, m: int) -> Axis:
    if n % m == 0:
        return Axis(n, m, n // m, n // m, 1, 0, 0, 0, 0, m, 0)
    # Output o begins (o * n) % m / m behind a pixel, which is a multiple of gcd(n, m) / m.
    most = -(-(n - math.gcd(n, m)) // m) + 1
    return Axis(n, m, most, max(1, n // m), 1, 0, _EVEN, 0, 0, m, 0)


def _by_offset(op: str, extents: Ints, offset: object, out_size: object, padding: Padding, ceil_mode: bool) -> _Spots:
    if out_size is None:
        refuse(op, "offset needs out_size", "offset", offset, "out_size=(height, width) with it")
    if offset is None:
        refuse(op, "out_size needs offset", "out_size", out_size, "offset=(y, x) with it")
    if not _is(padding, 0):
        refuse(op, "offset excludes padding", "padding", padding, "no padding with offset")
    if ceil_mode:
        refuse(op, "offset excludes ceil_mode", "ceil_mode", ceil_mode, "False with offset")
    centres, n_outs = pair(op, "offset", offset), pair(op, "out_size", out_size, least=1)
    return [(n_out, extent // 2 - o) for n_out, extent, o in zip(n_outs, extents, centres, strict=True)]


def _by_padding(op: str, lengths: _Lengths, padding: Padding, ceil_mode: bool) -> tuple[_Spots, list[int]]:
    """The spots, and for each axis the widest extent that fits."""
    n_in = tuple(length for length, _, _ in lengths)
    if min(n_in) < 1:
        refuse(op, "image is empty", "height and width", n_in, "at least 1, or an offset")
    if ceil_mode and is_a(padding, (str, PaddingPolicy)):
        refuse(op, "ceil_mode needs padding in pixels", "padding", padding, PIXELS)
    if is_a(padding, PaddingPolicy):
        check_policy(op, padding)
        return [policy_spot(padding, *values, axis) for axis, values in enumerate(lengths)], list(n_in)

    spots, widest = [], []
    for (length, extent, stride), (before, after) in zip(lengths, _sides(op, lengths, padding), strict=True):
        padded = length + before + after + (stride - 1 if ceil_mode else 0)
        n_out = (padded - extent) // stride + 1
        starts = -(-(length + before) // stride)  # windows that start inside the image or before it
        spots.append((min(n_out, starts) if ceil_mode else n_out, before))
        widest.append(padded)
    return spots, widest


def _sides(op: str, lengths: _Lengths, padding: Padding) -> list[Ints]:
    """Padding as [(top, bottom), (left, right)]."""
    if not is_a(padding, str):
        return pixels(op, "padding", padding, "padding is negative, only an offset crops")
    name = choice(op, "padding", padding, STYLES, f"{PIXELS}, 'same', 'valid' or 'full'")
    totals = [
        {"valid": 0, "full": 2 * (k - 1), "same": max(-(-n // s) * s - s + k - n, 0)}[name] for n, k, s in lengths
    ]
    return [(total // 2, total - total // 2) for total in totals]
