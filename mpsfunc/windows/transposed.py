"""Places the windows of kernels that enlarge: transposed convolutions, and data gradients as MPS frames them.

Both are adjoints of convolutions, so an `Axis` here is that of the convolution that leads back: its input is what the
enlarging kernel makes, and its output what that kernel takes.

MPS puts ``stride - 1`` zeros between the pixels that it takes and goes over them with stride 1: the window of output
pixel j has its centre at ``j + total`` among them, where ``total = offset * stride + kernel_offset``. Output j reads
pixel m by tap q where ``j + total - K // 2 + q * dilation = m * stride``.
"""

from __future__ import annotations

from typing import Literal, get_args

from mpsfunc.core.arguments import IntPair, choice, is_a, pair, refuse, two
from mpsfunc.windows.axis import Axis
from mpsfunc.windows.placement import IntOrPair, Pixels, halves, within_reach
from mpsfunc.windows.policy import PaddingPolicy, check_policy

ReversePaddingName = Literal["same", "same_lower"]
ReversePadding = Pixels | ReversePaddingName | PaddingPolicy
REVERSE_PADDINGS: tuple[ReversePaddingName, ...] = get_args(ReversePaddingName)
_PIXELS = "pixels >= 0 as an int, (y, x) or ((top, bottom), (left, right)), 'same', 'same_lower' or a PaddingPolicy"
_Axes = tuple[Axis, Axis]


def at_kernel_offset(op: str, axes: _Axes, kernel_offset: IntOrPair | None) -> _Axes:
    """The windows whose adjoint is MPS's data gradient with this ``kernelOffset``; None keeps them as they are.

    Example:
        >>> axes = (Axis(7, 4, 3, 2, 1, 1, 0, 0, 0, 4, 0),) * 2  # window 3, stride 2, padding 1: offset 0
        >>> rows, cols = at_kernel_offset("conv_grad_input", axes, (0, 1))
        >>> rows == axes[0], cols.pad
        (True, 2)
    """
    if kernel_offset is None:
        return axes
    totals = pair(op, "kernel_offset", kernel_offset)
    rows, cols = (
        within_reach(op, a._replace(pad=_pad(a.size, a.dilation, total), edge=0))
        for a, total in zip(axes, totals, strict=True)
    )
    return rows, cols


def place_reverse(
    op: str,
    n_in: IntPair,
    kernel_size: IntPair,
    *,
    stride: IntOrPair,
    padding: object,
    output_padding: IntOrPair,
    dilation: IntOrPair,
    offset: IntOrPair | None,
    kernel_offset: IntOrPair | None,
    out_size: IntOrPair | None,
    like: _Axes | None,
) -> tuple[Axis, Axis, bool]:
    """Puts the windows of a transposed convolution, said in one of three ways.

    Args:
        op: The public function that asks, for its errors.
        n_in: Height and width of the images that it takes.
        kernel_size: Taps in a window.
        stride: Output pixels between the first taps of two input pixels.
        padding: Pixels that the output loses: an int, (y, x) or ((top, bottom), (left, right)), for a length of
            ``(n_in - 1) * stride + K - before - after + output_padding``; "same" or "same_lower", for a length of
            ``n_in * stride`` and windows where those of the convolution are that leads back with this padding
            (TensorFlow, Keras, ONNX); or a `PaddingPolicy` (MPS's reverse rules).
        output_padding: Pixels behind the output, with padding in pixels.
        dilation: Output pixels between two taps.
        offset: MPS's form: with ``kernel_offset`` the centre of the first window.
        kernel_offset: In pixels between which zeros were put.
        out_size: With those, the output's size.
        like: Instead of ``out_size``, the axes of a convolution whose input has the size; without offsets, they also
            say where the windows sit.

    Returns:
        Axes of the convolution that leads back, and whether weights are taken as MPS takes them, without rotation.

    Raises:
        TypeError: A number is not an int.
        ValueError: A value out of range, or arguments that exclude each other.
    """
    step, spread = pair(op, "stride", stride, least=1), pair(op, "dilation", dilation, least=1)
    more = pair(op, "output_padding", output_padding, least=0)
    mps = offset is not None or kernel_offset is not None or out_size is not None or like is not None
    if mps or is_a(padding, (str, PaddingPolicy)):
        if more != (0, 0):
            refuse(op, "output_padding is for padding in pixels", "output_padding", output_padding, "0 without it")
    if mps:
        if type(padding) is not int or padding != 0:
            if offset is None and kernel_offset is None and like is None:
                rule = "no padding, and offset=(y, x) or kernel_offset=(y, x) with out_size"
                refuse(op, "padding and out_size exclude each other", "padding", padding, rule)
            refuse(op, "an offset or a state excludes padding", "padding", padding, "no padding with them")
        spots = _by_offset(op, n_in, kernel_size, step, spread, offset, kernel_offset, out_size, like)
    elif is_a(padding, PaddingPolicy):
        check_policy(op, padding)
        if padding.exclude_edges:
            refuse(op, "exclude_edges is for averages", "padding", padding, "exclude_edges=False")
        sizes = zip(n_in, kernel_size, step, spread, strict=True)
        reversed_ = [padding.reverse(*values, axis=axis) for axis, values in enumerate(sizes)]
        spots = [(n, _pad(k, d, at)) for (n, at), k, d in zip(reversed_, kernel_size, spread, strict=True)]
    elif is_a(padding, str):
        name, spots = choice(op, "padding", padding, REVERSE_PADDINGS, _PIXELS), []
        for i in range(2):
            extent = (kernel_size[i] - 1) * spread[i] + 1
            spots.append((n_in[i] * step[i], halves(max(extent - step[i], 0), name)[0]))
    else:
        spots = []
        sides = [pair(op, "padding", part, rule=_PIXELS, of=padding) for part in two(op, "padding", padding, _PIXELS)]
        if min(map(min, sides)) < 0:
            refuse(op, "padding is negative, only offsets crop so", "padding", padding, _PIXELS)
        for i, (before, after) in enumerate(sides):
            if more[i] and more[i] >= max(step[i], spread[i]):
                rule = "less than stride or dilation"
                refuse(op, "output_padding is too large", "output_padding", output_padding, rule)
            full = (n_in[i] - 1) * step[i] + (kernel_size[i] - 1) * spread[i] + 1
            spots.append((full - before - after + more[i], before))
    if min(n for n, _ in spots) < 1:
        refuse(op, "nothing is left of the output", "padding", padding, "an output of at least 1 pixel")
    rows, cols = (
        within_reach(op, Axis(n, n_in[i], kernel_size[i], step[i], spread[i], pad, 0, 0, 0, n_in[i], 0))
        for i, (n, pad) in enumerate(spots)
    )
    return rows, cols, mps or is_a(padding, PaddingPolicy)


def _by_offset(
    op: str,
    n_in: IntPair,
    kernel_size: IntPair,
    step: IntPair,
    spread: IntPair,
    offset: IntOrPair | None,
    kernel_offset: IntOrPair | None,
    out_size: IntOrPair | None,
    like: _Axes | None,
) -> list[IntPair]:
    """The output's length and the pad of each axis."""
    unplaced = offset is None and kernel_offset is None
    if like is not None:
        if out_size is not None:
            refuse(op, "the state says how large the output is", "out_size", out_size, "None with a state")
        lengths = like[0].n_in, like[1].n_in
        if unplaced:
            for i, a in enumerate(like):
                mine = n_in[i], kernel_size[i], step[i], spread[i]
                if mine != (a.n_out, a.size, a.stride, a.dilation):
                    rule = f"{(a.n_out, a.size, a.stride, a.dilation)} as the state's, or an offset"
                    refuse(op, "this is no way back", "(length, kernel_size, stride, dilation)", mine, rule)
            return [(a.n_in, a.pad) for a in like]
    elif out_size is None:
        refuse(op, "an offset needs a size", "out_size", out_size, "out_size=(height, width), or a state")
    elif unplaced:
        refuse(op, "out_size needs an offset", "out_size", out_size, "offset=(y, x) or kernel_offset=(y, x) with it")
    else:
        lengths = pair(op, "out_size", out_size, least=1)
    whole = pair(op, "offset", 0 if offset is None else offset)
    part = pair(op, "kernel_offset", 0 if kernel_offset is None else kernel_offset)
    totals = [o * s + k for o, s, k in zip(whole, step, part, strict=True)]
    return [(n, _pad(k, d, t)) for n, k, d, t in zip(lengths, kernel_size, spread, totals, strict=True)]


def _pad(size: int, dilation: int, total: int) -> int:
    """Where the first window of the way back starts, as an `Axis` counts it: with ``K // 2`` from the other side."""
    return total + (size - 1) * dilation // 2
