"""The state of a deformable convolution, and what its arguments must fulfil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.convolution import states
from mpsfunc.convolution.deform_columns import DeformSpec
from mpsfunc.convolution.params import DeformParams
from mpsfunc.core import checks, launch, printing
from mpsfunc.core.arguments import refuse
from mpsfunc.core.printing import describe
from mpsfunc.windows.axis import Axis

_MOST = 2**24  # positions along an axis that float32 can represent


@printing.printed
class DeformConvState(NamedTuple):
    """Where the windows of a deformable convolution lie, and the gradients of its parameters so far.

    `deform_conv_fwd` makes one, `deform_conv_state` makes one from shapes.

    Fields:
        dw: Gradient of the weights (o, kh, kw, c / groups), float32 (float64 for float64 images).
        db: Gradient of the bias (o,).
        op: "deform_conv".
        groups: Channel groups of the weights.
        offset_groups: Channel groups that have offsets of their own.
        rows: Windows along y, before offsets move their taps; ``rows.n_in`` is the height of the images.
        cols: Windows along x.
    """

    dw: mx.array
    db: mx.array
    op: str
    groups: int
    offset_groups: int
    rows: Axis
    cols: Axis

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(dw, db), for transformations that only take arrays."""
        return self[:2]

    def with_arrays(self, arrays: Sequence[mx.array]) -> DeformConvState:
        """This state with other arrays, in the order of `arrays`."""
        dw, db = checks.arrays_of("DeformConvState", arrays, 2)
        return self._replace(dw=dw, db=db)


def zero_state(w_shape: tuple[int, ...], dtype: mx.Dtype, spec: DeformSpec) -> DeformConvState:
    """A state with zero gradients."""
    p = spec.params
    with mx.stream(spec.stream):
        dw, db = mx.zeros(w_shape, dtype), mx.zeros(w_shape[:1], dtype)
    return DeformConvState(dw, db, "deform_conv", spec.groups, p.groups, p.rows, p.cols)


def placed(
    op: str,
    name: str,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    groups: int,
    offset_groups: int,
    how: tuple[Any, ...],
    stream: mx.Stream,
) -> DeformSpec:
    """Where the windows sit, without a mask."""
    placement = dict(zip(("stride", "padding", "dilation"), how, strict=True))
    placed = states.placed(op, name, x_shape, w_shape, groups, stream, **placement)
    return _spec(op, "offset_groups", placed.rows, placed.cols, placed.groups, offset_groups, x_shape[3], stream)


def _spec(
    op: str, name: str, rows: Axis, cols: Axis, groups: int, offset_groups: Any, channels: int, stream: mx.Stream
) -> DeformSpec:
    apart = checks.whole(op, name, offset_groups)
    if channels % apart != 0:
        refuse(op, "groups of offsets do not divide the channels", name, offset_groups, f"a divisor of {channels}")
    for axes, lengths in (("image", (rows.n_in, cols.n_in)), ("output", (rows.n_out, cols.n_out))):
        if max(lengths) > _MOST:
            raise ValueError(
                f"{op}: an axis of the {axes} is too long; got (h, w)={describe(lengths)}, expected at most 2**24"
            )
    checks.image_shape(op, "samples of an image", (1, rows.n_out, cols.n_out, rows.size * cols.size * channels))
    return DeformSpec(DeformParams(rows, cols, apart, 0, 0, 0, 0), groups, False, stream)


def places_of(
    op: str, offsets: mx.array, mask: mx.array | None, images: mx.array, name: str, spec: DeformSpec
) -> mx.array:
    """Offsets and the mask, checked, as places of taps in the accumulator's dtype."""
    p, taps, wide = spec.params, spec.taps, launch.accumulator(images.dtype)
    size = images.shape[0], p.rows.n_out, p.cols.n_out
    given = [("offsets", offsets, 2)] if mask is None else [("offsets", offsets, 2), ("mask", mask, 1)]
    for said, a, numbers in given:
        checks.array(op, said, a, stream=spec.stream)
        checks.shape(op, said, a, (*size, p.groups * taps * numbers), f"{said} and windows do not fit together")
        if a.dtype not in (images.dtype, mx.float32):
            either = images.dtype if images.dtype == mx.float32 else f"{images.dtype} or mlx.core.float32"
            raise TypeError(f"{op}: {said} and {name} differ in dtype; got {said}.dtype={a.dtype}, expected {either}")
    with mx.stream(spec.stream):
        parts = [a.astype(wide).reshape(*size, p.groups * taps, numbers) for _, a, numbers in given]
        places = parts[0] if mask is None else mx.concatenate(parts, axis=-1)
        return places.reshape(*size, p.groups * taps * spec.numbers)


def gradient(op: str, dy: mx.array, state: Any, masked: bool, stream: mx.Stream) -> DeformSpec:
    """Checks dy and its state, which may have been made by hand."""
    states.gradient_of_windows(op, dy, state, DeformConvState, "n_out", stream)
    if type(state.op) is not str or state.op != "deform_conv":
        refuse(op, "a state of another operation", "state.op", state.op, '"deform_conv"')
    for name, axis in (("rows", state.rows), ("cols", state.cols)):
        if axis.edge != 0 or (axis.begin, axis.end) != (0, axis.n_out):
            refuse(op, "the state's windows cannot be", f"state.{name}", axis, "what a forward function makes")
    channels = state.dw.shape[3] * state.groups
    checks.image_shape(op, "image of the state", (1, state.rows.n_in, state.cols.n_in, channels))
    where = state.rows, state.cols, state.groups
    spec = _spec(op, "state.offset_groups", *where, state.offset_groups, channels, stream)
    return spec._replace(params=spec.params._replace(masked=int(masked)))
