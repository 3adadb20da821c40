"""The windows along one axis of an image, as kernels get them, and what can be asked of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from mpsfunc.core.arguments import is_a, refuse
from mpsfunc.core.printing import worded

EdgeMode = Literal["zero", "clamp"]
MaxEdgeMode = Literal[EdgeMode, "exclude"]
# In the order of their codes in Axis.edge.
EDGE_MODES: tuple[EdgeMode, ...] = get_args(EdgeMode)
MAX_EDGE_MODES: tuple[MaxEdgeMode, ...] = get_args(MaxEdgeMode)
EVEN = len(MAX_EDGE_MODES)  # the code behind those, for windows that part the image evenly
EDGES = (0, 1, EVEN)  # of averages and norms
GIVEN = EVEN + 1  # where an average is told its divisor
AVERAGE_EDGES = (*EDGES, GIVEN)
REFLECT, CIRCULAR = GIVEN + 1, GIVEN + 2  # margins of convolutions, which no kernel sees
CONVOLUTION_EDGES = (0, 1, REFLECT, CIRCULAR)
_OUTSIDE = (*MAX_EDGE_MODES, "adaptive", "zero", "reflect", "circular")  # by the codes


# Below this the 32-bit sums of geometry.h, of two positions each, cannot overflow.
LIMIT = 2**30


def in_words(a: Axis) -> str:
    """What windows mean, for states that are printed; empty where the numbers are no windows.

    Padding behind an image is as much as windows reach, and what lies outside is told where they do.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> how = {"edge_mode": "clamp", "edge_modes": EDGE_MODES}
        >>> in_words(place("avg_pool", (7, 8), 3, stride=2, padding=1, **how)[1])
        '8 -> 4 pixels: windows of 3, stride 2, padding (1, 0), clamp'
    """
    if any(type(n) is not int for n in a) or not _possible(a) or a.edge >= len(_OUTSIDE):
        return ""
    if a.edge == EVEN:
        return f"{a.n_in} -> {a.n_out} pixels: adaptive, windows of at most {a.size}"
    behind = (a.n_out - 1) * a.stride - a.pad + (a.size - 1) * a.dilation + 1 - a.n_in
    pads = max(a.pad, 0), max(behind, 0)
    words = [f"windows of {a.size}"]
    words += [f"stride {a.stride}"] if a.n_out > 1 else []
    words += [f"dilation {a.dilation}"] if a.size > 1 and a.dilation > 1 else []
    words += [f"from pixel {-a.pad} on"] if a.pad < 0 else []
    if a.edge == GIVEN:
        words.append(f"divided by {a.zero_pad}")
    if any(pads):
        words.append(f"padding {pads[0] if pads[0] == pads[1] else pads}")
        words += [_OUTSIDE[a.edge]] if a.edge != GIVEN else []
        zeros = a.zero_pad, a.zero_pad_after
        words += [f"zero_pad {zeros[0] if zeros[0] == zeros[1] else zeros}"] if a.edge != GIVEN and any(zeros) else []
    words += [f"last {-behind} unread"] if behind < 0 else []
    if (a.begin, a.end) != (0, a.n_out):
        words.append(f"outputs {a.begin} to {a.end - 1} alone" if a.end > a.begin else "no output takes part")
    return f"{a.n_in} -> {a.n_out} pixel{'' if a.n_out == 1 else 's'}: {', '.join(words)}"


@worded(in_words)
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
        edge: 0 (zero): an average always divides by ``size``. 1 (clamp): it divides by the number of taps within
            ``[-zero_pad, n_in - 1 + zero_pad_after]``. For a maximum or a norm, 1 reads the nearest pixel instead, and
            2 (exclude) passes the tap by. 3: adaptive windows, which read nothing outside. 4: as 0, but an average
            divides by ``zero_pad``. 5 (reflect), 6 (circular): what a convolution reads outside.
        zero_pad: Zeros in front of the image that count in that divisor; 0 when ``edge`` is 0. Where it is 4, the
            divisor.
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
        and (axis.edge != EVEN or (axis.n_out >= 1 and whole == evenly(axis.n_in, axis.n_out)))
        and (axis.edge != GIVEN or axis.zero_pad >= 1)
    )


def evenly(n: int, m: int) -> Axis:
    """Windows that part ``n`` pixels into ``m`` stretches as alike as can be."""
    if n % m == 0:
        return Axis(n, m, n // m, n // m, 1, 0, 0, 0, 0, m, 0)
    # Output o begins (o * n) % m / m behind a pixel, which is a multiple of gcd(n, m) / m.
    most = -(-(n - math.gcd(n, m)) // m) + 1
    return Axis(n, m, most, max(1, n // m), 1, 0, EVEN, 0, 0, m, 0)


def max_overlap(*axes: Axis) -> int:
    """The most windows that span one pixel along an axis, whether their taps read it or not.

    Edge mode "clamp" is left out of account, with which any number of windows can read an edge.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> max_overlap(*place("avg_pool", (8, 8), 3, stride=2))
        2
    """
    return max(
        evenly(a.n_out, a.n_in).size if a.edge == EVEN else -(-((a.size - 1) * a.dilation + 1) // a.stride)
        for a in axes
    )


def is_uniform(a: Axis) -> bool:
    """Whether all windows have as many taps and are as far apart, which "adaptive" ones need not be.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> [is_uniform(place("avg_pool", (n, n), "adaptive", out_size=3)[0]) for n in (6, 7)]
        [True, False]
    """
    return a.edge != EVEN


def reach(a: Axis) -> int:
    """How many pixels the windows span together, from the first tap to the last, inside the image or not.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> reach(place("conv", (8, 8), 3, stride=2, padding=1)[0])
        9
    """
    return (a.n_out - 1) * a.stride + (a.size - 1) * a.dilation + 1


def clamps_taps(a: Axis) -> bool:
    """Whether a maximum's or a norm's tap outside reads an edge of the image, which any number of windows may do.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> how = {"edge_mode": "clamp", "edge_modes": EDGE_MODES}
        >>> [clamps_taps(place("l2_pool", (8, 8), 2, padding=p, **how)[0]) for p in (0, 1)]
        [False, True]
    """
    end = (a.n_out - 1) * a.stride - a.pad + (a.size - 1) * a.dilation + 1
    return a.edge == EDGE_MODES.index("clamp") and (a.pad > 0 or end > a.n_in)


def starts(a: Axis) -> list[int]:
    """The position of each output's first tap.

    Example:
        >>> from mpsfunc.windows.placement import place
        >>> starts(place("avg_pool", (7, 8), "adaptive", out_size=3)[0])
        [0, 2, 4]
    """
    return [o * a.n_in // a.n_out if a.edge == EVEN else o * a.stride - a.pad for o in range(a.n_out)]
