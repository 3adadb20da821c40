"""Places windows on images: however a caller says it, the answer is one `Axis` for the rows and one for the columns.

Padding in pixels or by name, an MPS policy and an MPS offset all end here. Kernels see the two `Axis` only, and follow
taps from input to output or back with ``metal/shared/geometry.h``. Everything counts pixels; pairs are (y, x).

A window of ``kernel_size`` k and ``dilation`` d spans ``K = (k - 1) * d + 1`` pixels. MPS calls the pixel
``K // 2`` places after its first tap its centre, so an even window reaches one pixel further up and left.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from mpsfunc.core.arguments import PIXELS, IntPair, cacheable, choice, entries, is_a, pair, pixels, refuse, text, two
from mpsfunc.core.printing import describe
from mpsfunc.windows.axis import EDGE_MODES, LIMIT, MAX_EDGE_MODES, Axis, MaxEdgeMode, evenly
from mpsfunc.windows.policy import PADDINGS, PaddingName, PaddingPolicy, check_policy, policy_spot

IntOrPair = int | Sequence[int]
WindowName = Literal["global", "adaptive"]
WINDOWS: tuple[WindowName, ...] = get_args(WindowName)
KernelSize = IntOrPair | WindowName
OutSize = int | Sequence[int | None]
Pixels = int | Sequence[int | Sequence[int]]  # for each side
Padding = Pixels | PaddingName | PaddingPolicy


# Of the rows and of the columns: (length, extent, stride), and (n_out, pad).
_Lengths = Sequence[tuple[int, int, int]]
_Spots = list[IntPair]


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
    edge_mode: MaxEdgeMode = "zero",
    edge_modes: Sequence[MaxEdgeMode] = ("zero",),
    zero_pad: Pixels | None = None,
) -> tuple[Axis, Axis]:
    """Puts windows on an image. They may extend past it or lie wholly outside, where they read nothing.

    Args:
        op: The public function that asks, for its errors.
        n_in: Height and width; 0 is legal with ``offset`` only.
        kernel_size: Taps in a window: an int or (y, x), like everything below unless it says otherwise. Or one of

            - "global": one window over the whole image
            - "adaptive": as many windows as ``out_size`` says, as in PyTorch's adaptive pooling; window o begins at
              pixel ``floor(o * n_in / n_out)`` and ends before ``ceil((o + 1) * n_in / n_out)``

            These place the windows alone: stride, padding, dilation, ceil_mode and offset stay as they are.
        stride: Pixels between two windows; None means ``kernel_size``.
        padding: One of

            - pixels, none negative: an int, (y, x) or ((top, bottom), (left, right)), for an output of
              ``floor((n_in + before + after - K) / stride) + 1``
            - "same", for an output of ``ceil(n_in / stride)`` with an odd pixel behind the image (TensorFlow,
              JAX, ONNX SAME_UPPER); "same_lower", with it ahead of the image (ONNX SAME_LOWER); "valid", 0 pixels;
              "full", K - 1 pixels on every side
            - a `PaddingPolicy`: MPS's rules
        dilation: Pixels between two taps.
        ceil_mode: Round the output size up instead of down, except that no window starts after the image
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
    return (_known if cacheable((n_in, *said)) else _place)(op, n_in, tuple(edge_modes), *said)


def _place(
    op: str,
    n_in: tuple[int, int],
    edge_modes: tuple[MaxEdgeMode, ...],
    kernel_size: KernelSize,
    stride: IntOrPair | None,
    padding: Padding,
    dilation: IntOrPair,
    ceil_mode: bool,
    offset: IntOrPair | None,
    out_size: OutSize | None,
    edge_mode: MaxEdgeMode,
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
            shown = (size[1], most[1]) if op.endswith("1d") else (size, most)  # of sequences, images of one row
            refuse(op, "window does not fit", "kernel_size", shown[0], f"at most {shown[1]} with padding")

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


def restrict_outputs(op: str, axes: tuple[Axis, Axis], window: Sequence[IntOrPair] | None) -> tuple[Axis, Axis]:
    """Lets only some outputs take part (``primaryOffset`` and ``sourceSize`` of ``MPSCNNPoolingGradient``).

    Args:
        op: The public function that asks, for its errors.
        axes: Rows and columns.
        window: ((y, x), (height, width)): where the part begins, and its size, at least 0. It may extend past the
            output; only what lies within counts. None keeps all.

    Returns:
        The axes with ``begin`` and ``end`` narrowed.

    Raises:
        TypeError: An entry is not an int.
        ValueError: Not two pairs, or a negative size.

    Example:
        >>> axes = place("avg_pool_grad", (8, 8), 2)
        >>> rows, cols = restrict_outputs("avg_pool_grad", axes, ((1, -1), (9, 3)))
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


def edge_code(op: str, edge_mode: object, edge_modes: Sequence[MaxEdgeMode] = EDGE_MODES) -> int:
    """The number of ``edge_mode`` in `Axis.edge`; ``edge_modes`` are those that ``op`` knows."""
    return MAX_EDGE_MODES.index(choice(op, "edge_mode", edge_mode, edge_modes))


_ALONE = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "offset": None}


def _over_all(op: str, n_in: IntPair, name: str, out_size: object, given: Mapping[str, object]) -> tuple[Axis, Axis]:
    """Windows that cover the image without padding, so that the edge mode has no effect."""
    rule = "an int or a (y, x) pair, 'global' or 'adaptive'"
    choice(op, "kernel_size", name, WINDOWS, rule)
    if min(n_in) < 1:
        refuse(op, "image is empty", "height and width", n_in, "at least 1")
    for arg, value in given.items():
        if not _is(value, _ALONE[arg]):
            refuse(op, f"kernel_size={describe(name)} places the windows alone", arg, value, f"{_ALONE[arg]}")
    if name == "global":
        if out_size is not None:
            refuse(op, "kernel_size='global' has one window", "out_size", out_size, "None")
        sizes: IntPair = (1, 1)
    else:
        rule = "an int >= 1, None for the image's size, or a (y, x) pair of those"
        if out_size is None:
            refuse(op, "kernel_size='adaptive' needs out_size", "out_size", out_size, rule)
        wanted = [n if m is None else m for n, m in zip(n_in, two(op, "out_size", out_size, rule), strict=True)]
        sizes = pair(op, "out_size", wanted, 1, rule, out_size)
    rows, cols = (evenly(n, m) for n, m in zip(n_in, sizes, strict=True))
    return rows, cols


def _is(value: object, default: object) -> bool:
    """Whether an argument was left as it is; a False for a 0, or an array, was not."""
    return type(value) is type(default) and value == default


def _by_offset(
    op: str, extents: IntPair, offset: object, out_size: object, padding: Padding, ceil_mode: bool
) -> _Spots:
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


def _sides(op: str, lengths: _Lengths, padding: Padding) -> list[IntPair]:
    """Padding as [(top, bottom), (left, right)]."""
    if not is_a(padding, str):
        return pixels(op, "padding", padding, "padding is negative, only an offset crops")
    name = choice(op, "padding", padding, PADDINGS, f"{PIXELS}, 'same', 'same_lower', 'valid' or 'full'")
    totals = [{"valid": 0, "full": 2 * (k - 1)}.get(name, max(-(-n // s) * s - s + k - n, 0)) for n, k, s in lengths]
    return [halves(total, name) for total in totals]


def halves(total: int, name: PaddingName) -> IntPair:
    """Pixels before and behind an image, of which an odd one goes behind, or ahead where the name says so."""
    return (total - total // 2, total // 2) if name == "same_lower" else (total // 2, total - total // 2)


def within_reach(op: str, a: Axis) -> Axis:
    """An `Axis`, if the 32-bit sums of geometry.h cannot overflow on it."""
    extent = (a.size - 1) * a.dilation + 1
    zeros = max(a.zero_pad, a.zero_pad_after)
    reach = {  # by the argument of a call, how far each takes the windows, and its value
        "kernel_size": (a.size, a.size),
        "dilation": (max(extent, a.dilation), a.dilation),
        "stride": (a.stride, a.stride),
        "padding": (abs(a.pad), a.pad),
        "zero_pad": (a.n_in + zeros if zeros else 0, zeros),
        "out_size": (a.n_out, a.n_out),
        "the length of the image": (a.n_in, a.n_in),
    }
    far = [(arg, value) for arg, (distance, value) in reach.items() if distance >= LIMIT]
    if not far and abs((a.n_out - 1) * a.stride - a.pad + extent) >= LIMIT:
        far = [("stride", a.stride)]
    if far:
        refuse(op, "windows reach too far", *far[0], "windows within 2**30 pixels")
    return a
