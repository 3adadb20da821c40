"""Places windows on images: however a caller says it, the answer is one `Axis` for the rows and one for the columns.

Padding in pixels or by name, an MPS policy and an MPS offset all end here. Kernels see the two `Axis` only, and follow
taps from input to output or back with ``metal/geometry.h``. Everything counts pixels; pairs are (y, x).

A window of ``kernel_size`` k and ``dilation`` d spans ``K = (k - 1) * d + 1`` pixels. MPS calls the pixel
``K // 2`` places after its first tap its centre, so an even window reaches one pixel further up and left.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

EDGE_MODES = ("zero", "clamp")  # in the order of their codes in Axis.edge

# Below this the 32-bit sums of geometry.h, of two positions each, cannot overflow.
_LIMIT = 2**30

_STYLES = {"valid": -1, "same": 0, "full": 1}
_POLICY: dict[str, tuple[object, ...]] = {
    "align": ("centered", "top_left", "bottom_right"),
    "remainder": ("top_left", "top_right", "bottom_left", "bottom_right"),
    "size": tuple(_STYLES),
    "exclude_edges": (False, True),
}
_PIXELS = "pixels >= 0 as an int, (y, x) or ((top, bottom), (left, right))"


class Axis(NamedTuple):
    """The windows along one spatial axis: ten ints, in the order of ``struct Axis`` in ``metal/geometry.h``.

    Tap k of output o reads input ``o * stride - pad + k * dilation``.

    Fields:
        n_in: Length of the input.
        n_out: Length of the output.
        size: Taps in a window.
        stride: Pixels between two windows.
        dilation: Pixels between two taps.
        pad: Pixels before the image at which output 0 starts; negative when it starts inside.
        edge: 0 (zero): an average always divides by ``size``. 1 (clamp): it divides by the number of taps
            within ``[-zero_pad, n_in - 1 + zero_pad]``.
        zero_pad: Zeros on both sides of the image that count in that divisor; 0 when ``edge`` is 0.
        begin: First output that takes part; the others give 0 and take no gradient.
        end: One past the last output that takes part.
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


class PaddingPolicy(NamedTuple):
    """How MPS sizes an output and spreads the overhang (``MPSNNPaddingMethod``), with MPS's defaults.

    Over ``length`` pixels, with ``style`` -1 for valid, 0 for same and 1 for full::

        n_out = ceil((length + style * (K - 1)) / stride)
        extra = (n_out - 1) * stride + K - length        # pixels read beyond the image; may be negative

    ``PaddingPolicy(remainder="bottom_right")`` is MPS's form of TensorFlow's SAME; where ``extra`` is
    negative only ``padding="same"`` is TensorFlow's rule. A valid policy may skip pixels before its first
    window, as no other framework does; ``align="bottom_right"`` starts it at pixel 0.

    Fields:
        align: Where ``extra`` goes: half to each side, all before the image, or all behind it.
        remainder: The corner that gets the odd pixel of "centered".
        size: The style.
        exclude_edges: Average pooling only, Caffe's rule: divide by the taps within the image and its
            padding. That is edge mode "clamp", with what the policy puts before the image as the zero pad.

    A field with another value is a ValueError where the policy is used.

    Example:
        >>> PaddingPolicy().forward(7, 4, stride=2)
        (4, 0)
    """

    align: Literal["centered", "top_left", "bottom_right"] = "centered"
    remainder: Literal["top_left", "top_right", "bottom_left", "bottom_right"] = "top_left"
    size: Literal["same", "valid", "full"] = "same"
    exclude_edges: bool = False

    def forward(
        self, length: int, kernel_size: int, stride: int = 1, dilation: int = 1, *, axis: int = 0
    ) -> tuple[int, int]:
        """The output length, and the offset: the input pixel under the centre of the first window.

        Args:
            length: Input length. Where no window fits, the output length is below 1.
            kernel_size: Taps in a window.
            stride: Pixels between two windows.
            dilation: Pixels between two taps.
            axis: 0 for y, 1 for x; a remainder corner can mean either side.

        Raises:
            ValueError: An argument is below 1, or a field of the policy is none of its names.
            TypeError: An argument is not an int.

        Example:
            >>> PaddingPolicy(size="valid").forward(8, 3, stride=3)
            (2, 1)
        """
        _check_policy("PaddingPolicy", self)
        sizes = {"length": length, "kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        for arg, value in sizes.items():
            _pair("PaddingPolicy", arg, value, least=1)
        extent = (kernel_size - 1) * dilation + 1
        n_out, pad = _policy_spot(self, length, extent, stride, axis)
        return n_out, extent // 2 - pad

    def reverse(
        self, length: int, kernel_size: int, stride: int = 1, dilation: int = 1, *, axis: int = 0
    ) -> tuple[int, int]:
        """What `forward` returns, for a kernel that enlarges: a transposed convolution, or a gradient.

        Such a kernel runs with stride 1 over its source with ``stride - 1`` zeros between neighbours, and the
        offset counts in those coordinates; ``n_out = (length - 1) * stride + 1 + style * (K - 1)``. That is
        the smallest length from which the `inverse` policy makes ``length``; a gradient state knows the right
        one, so gradient functions need no policy. Arguments and errors are those of `forward`.

        Example:
            >>> valid = PaddingPolicy(size="valid")
            >>> valid.forward(5, 3, stride=2), valid.inverse().reverse(2, 3, stride=2)
            ((2, 1), (5, -1))
        """
        _pair("PaddingPolicy", "stride", stride, least=1)
        return self.forward((length - 1) * stride + 1, kernel_size, 1, dilation, axis=axis)

    def inverse(self) -> PaddingPolicy:
        """The policy whose `reverse` undoes this one's size: valid and full change places, same stays."""
        swapped: dict[str, Literal["valid", "full"]] = {"valid": "full", "full": "valid"}
        return self._replace(size=swapped.get(self.size, self.size))


IntOrPair = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]] | Literal["same", "valid", "full"] | PaddingPolicy


# Of the rows and of the columns: (length, extent, stride), and (n_out, pad).
_Lengths = Sequence[tuple[int, int, int]]
_Ints = tuple[int, int]
_Spots = list[_Ints]


def place(
    op: str,
    n_in: tuple[int, int],
    kernel_size: IntOrPair,
    *,
    stride: IntOrPair | None = None,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
    ceil_mode: bool = False,
    offset: IntOrPair | None = None,
    out_size: IntOrPair | None = None,
    edge_mode: str = "zero",
    edge_modes: Sequence[str] = ("zero",),
    zero_pad: IntOrPair | None = None,
) -> tuple[Axis, Axis]:
    """Puts windows on an image. They may hang over it or lie wholly outside, where they read nothing.

    Args:
        op: The public function that asks, for its errors.
        n_in: Height and width; 0 is legal with ``offset`` only.
        kernel_size: Taps in a window: an int or (y, x), like everything below that says nothing else.
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
        out_size: Size of the output with ``offset``, at least 1.
        edge_mode: A name among ``edge_modes``.
        edge_modes: The edge modes that ``op`` knows.
        zero_pad: Pixels of zeros on both sides that count when edge mode "clamp" shrinks the window of an
            average; "zero" ignores it, as MPS does. None if ``op`` does not average.

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
    # Of types that a cache tells apart, so that True is not taken for 1.
    plain = all(type(value) in (int, str, bool, type(None)) for value in said)
    return (_known if plain else _place)(op, n_in, tuple(edge_modes), *said)


def _place(
    op: str,
    n_in: tuple[int, int],
    edge_modes: tuple[str, ...],
    kernel_size: IntOrPair,
    stride: IntOrPair | None,
    padding: Padding,
    dilation: IntOrPair,
    ceil_mode: bool,
    offset: IntOrPair | None,
    out_size: IntOrPair | None,
    edge_mode: str,
    zero_pad: IntOrPair | None,
) -> tuple[Axis, Axis]:
    size = _pair(op, "kernel_size", kernel_size, least=1)
    step = size if stride is None else _pair(op, "stride", stride, least=1)
    spread = _pair(op, "dilation", dilation, least=1)
    extents = (size[0] - 1) * spread[0] + 1, (size[1] - 1) * spread[1] + 1
    edge = edge_code(op, edge_mode, edge_modes)
    zeros = _pair(op, "zero_pad", 0 if zero_pad is None else zero_pad, least=0)

    if offset is not None or out_size is not None:
        spots = _by_offset(op, extents, offset, out_size, padding, ceil_mode)
    else:
        lengths = list(zip(n_in, extents, step, strict=True))
        spots, widest = _by_padding(op, lengths, padding, ceil_mode)
        if min(n_out for n_out, _ in spots) < 1:
            most = tuple((extent - 1) // d + 1 for extent, d in zip(widest, spread, strict=True))
            _refuse(op, "window does not fit", "kernel_size", size, f"at most {most} with padding")

    if isinstance(padding, PaddingPolicy) and padding.exclude_edges:
        if zero_pad is None:
            _refuse(op, "exclude_edges is for averages", "padding", padding, "exclude_edges=False")
        if zeros != (0, 0):
            _refuse(op, "exclude_edges sets zero_pad", "zero_pad", zero_pad, "0 with exclude_edges")
        edge, zeros = EDGE_MODES.index("clamp"), (max(spots[0][1], 0), max(spots[1][1], 0))

    rows, cols = (
        Axis(n_in[i], n_out, size[i], step[i], spread[i], pad, edge, zeros[i] if edge else 0, 0, n_out)
        for i, (n_out, pad) in enumerate(spots)
    )
    return _within_reach(op, rows), _within_reach(op, cols)


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
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        _refuse(op, "source_window is not two pairs", "source_window", window, rule)
    origin, size = (_pair(op, "source_window", part, rule=rule) for part in window)
    if min(size) < 0:
        _refuse(op, "source_window has a negative size", "source_window", window, rule)
    rows, cols = (
        a._replace(begin=min(max(start, a.begin), a.end), end=min(max(start + n, a.begin), a.end))
        for a, start, n in zip(axes, origin, size, strict=True)
    )
    return rows, cols


def refuse_kernel_offset(op: str, kernel_offset: object) -> None:
    """Refuses MPS's ``kernelOffset`` in an ``op`` that inserts no zeros, where it would place nothing."""
    if kernel_offset is not None:
        rule = "None, because the state places the windows"
        _refuse(op, "kernel_offset has no meaning here", "kernel_offset", kernel_offset, rule)


def edge_code(op: str, edge_mode: str, edge_modes: Sequence[str] = EDGE_MODES) -> int:
    """The number of ``edge_mode`` in `Axis.edge`; ``edge_modes`` are those that ``op`` knows."""
    if edge_mode not in edge_modes:
        kind = ValueError if isinstance(edge_mode, str) else TypeError
        _refuse(op, "unknown edge mode", "edge_mode", edge_mode, " or ".join(map(repr, edge_modes)), kind)
    return EDGE_MODES.index(edge_mode)


def _by_offset(op: str, extents: _Ints, offset: object, out_size: object, padding: Padding, ceil_mode: bool) -> _Spots:
    if out_size is None:
        _refuse(op, "offset needs out_size", "offset", offset, "out_size=(height, width) with it")
    if offset is None:
        _refuse(op, "out_size needs offset", "out_size", out_size, "offset=(y, x) with it")
    if padding != 0:
        _refuse(op, "offset excludes padding", "padding", padding, "no padding with offset")
    if ceil_mode:
        _refuse(op, "offset excludes ceil_mode", "ceil_mode", ceil_mode, "False with offset")
    centres, n_outs = _pair(op, "offset", offset), _pair(op, "out_size", out_size, least=1)
    return [(n_out, extent // 2 - o) for n_out, extent, o in zip(n_outs, extents, centres, strict=True)]


def _by_padding(op: str, lengths: _Lengths, padding: Padding, ceil_mode: bool) -> tuple[_Spots, list[int]]:
    """The spots, and for each axis the widest extent that fits."""
    n_in = tuple(length for length, _, _ in lengths)
    if min(n_in) < 1:
        _refuse(op, "image is empty", "height and width", n_in, "at least 1, or an offset")
    if ceil_mode and isinstance(padding, (str, PaddingPolicy)):
        _refuse(op, "ceil_mode needs padding in pixels", "padding", padding, _PIXELS)
    if isinstance(padding, PaddingPolicy):
        _check_policy(op, padding)
        return [_policy_spot(padding, *values, axis) for axis, values in enumerate(lengths)], list(n_in)

    spots, widest = [], []
    for (length, extent, stride), (before, after) in zip(lengths, _sides(op, lengths, padding), strict=True):
        padded = length + before + after + (stride - 1 if ceil_mode else 0)
        n_out = (padded - extent) // stride + 1
        starts = -(-(length + before) // stride)  # windows that start inside the image or before it
        spots.append((min(n_out, starts) if ceil_mode else n_out, before))
        widest.append(padded)
    return spots, widest


def _policy_spot(policy: PaddingPolicy, length: int, extent: int, stride: int, axis: int) -> _Ints:
    n_out = -(-(length + _STYLES[policy.size] * (extent - 1)) // stride)
    extra = (n_out - 1) * stride + extent - length
    if policy.align != "centered":
        return n_out, extra if policy.align == "top_left" else 0
    doubled = extra + (policy.remainder.startswith("top"), policy.remainder.endswith("left"))[axis]
    return n_out, doubled // 2 if doubled >= 0 else -(-doubled // 2)  # toward zero, as C divides


def _sides(op: str, lengths: _Lengths, padding: Padding) -> list[_Ints]:
    """Padding as [(top, bottom), (left, right)]."""
    if not isinstance(padding, str):
        sides = [_pair(op, "padding", part, rule=_PIXELS) for part in _two(op, "padding", padding, _PIXELS)]
        if min(map(min, sides)) < 0:
            _refuse(op, "padding is negative, only an offset crops", "padding", padding, _PIXELS)
        return sides
    if padding not in _STYLES:
        _refuse(op, "unknown padding", "padding", padding, f"{_PIXELS}, 'same', 'valid' or 'full'")
    totals = [
        {"valid": 0, "full": 2 * (k - 1), "same": max(-(-n // s) * s - s + k - n, 0)}[padding] for n, k, s in lengths
    ]
    return [(total // 2, total - total // 2) for total in totals]


def _check_policy(op: str, policy: PaddingPolicy) -> None:
    for (field, names), value in zip(_POLICY.items(), policy, strict=True):
        if value not in names:
            _refuse(op, f"unknown {field} in a PaddingPolicy", field, value, " or ".join(map(repr, names)))


def _within_reach(op: str, axis: Axis) -> Axis:
    extent = (axis.size - 1) * axis.dilation + 1
    end = (axis.n_out - 1) * axis.stride - axis.pad + extent
    reach = axis.n_in + axis.zero_pad, axis.n_out, axis.stride, axis.dilation, extent, abs(axis.pad), abs(end)
    if max(reach) >= _LIMIT:
        _refuse(op, "windows reach too far", "distance", max(reach), "less than 2**30 pixels")
    return axis


def _two(op: str, arg: str, value: object, rule: str) -> tuple[object, object]:
    """A pair's two entries, or one value twice."""
    if not isinstance(value, (tuple, list)):
        return value, value
    if len(value) != 2:
        _refuse(op, f"{arg} is not a pair", arg, value, rule)
    return value[0], value[1]


def _pair(op: str, arg: str, value: object, least: int | None = None, rule: str = "") -> _Ints:
    """An int, or a pair of ints, as a pair; ``rule`` replaces the usual words for what is expected."""
    if type(value) is int and (least is None or value >= least):  # nearly every call
        return value, value
    rule = rule or "an int or a (y, x) pair of ints" + ("" if least is None else f" >= {least}")
    y, x = map(_index, _two(op, arg, value, rule))
    if y is None or x is None:
        _refuse(op, f"{arg} is not an int", arg, value, rule, TypeError)
    if least is not None and min(y, x) < least:
        _refuse(op, f"{arg} is too small", arg, value, rule)
    return y, x


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _refuse(op: str, wrong: str, arg: str, value: object, rule: str, kind: type[Exception] = ValueError) -> NoReturn:
    raise kind(f"{op}: {wrong}; got {arg}={value!r}, expected {rule}")
