"""What upsampling and resizing share: the state, the checks and the calls."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import arguments, checks, launch, printing
from mpsfunc.core.arguments import is_a, pair, two
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import rules
from mpsfunc.windows.axis import EDGE_MODES
from mpsfunc.windows.sampling import Resized

CoordinateName = Literal["asymmetric", "half_pixel"]
COORDINATES: tuple[CoordinateName, ...] = get_args(CoordinateName)
ResizeCoordinateName = Literal[CoordinateName, "half_pixel_symmetric"]
RESIZE_COORDINATES: tuple[ResizeCoordinateName, ...] = get_args(ResizeCoordinateName)
NearestCoordinateName = Literal[CoordinateName, "mlx"]
NEAREST_COORDINATES: tuple[NearestCoordinateName, ...] = get_args(NearestCoordinateName)
AnyCoordinateName = ResizeCoordinateName | NearestCoordinateName
METHODS = ("nearest", "bilinear", "bicubic", "area")
FloatOrPair = float | Sequence[float]


@printing.printed
class ResampleState(NamedTuple):
    """How an image was resized: all that its gradient needs.

    Fields:
        op: The function: "upsample_nearest", "upsample_bilinear", "resize_nearest", "resize_bilinear",
            "resize_bicubic" or "resize_area".
        channels: Channels of the image.
        rows: What the rows of the result read: the lengths of the source and of the result; "nearest", "bilinear",
            "bicubic" or "area"; "asymmetric", "half_pixel", "half_pixel_symmetric", "align_corners" or "mlx"; "zero" or
            "clamp"; whether a filter is applied; and a factor if it does not follow from the lengths, else 0.
        cols: The same for its columns.
    """

    op: str
    channels: int
    rows: Resized
    cols: Resized

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: resampling is linear."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> ResampleState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def coordinate_of(
    op: str, align_corners: Any, coordinate: Any, names: tuple[AnyCoordinateName, ...] = COORDINATES
) -> AnyCoordinateName | Literal["align_corners"]:
    """The two arguments as one."""
    chosen = checks.choice(op, "coordinate", coordinate, names)
    if not checks.switch(op, "align_corners", align_corners):
        return chosen
    if chosen != "half_pixel":  # the default
        raise ValueError(
            f"{op}: align_corners has a coordinate of its own; got coordinate={describe(coordinate)}, "
            "expected align_corners=False or no coordinate"
        )
    return "align_corners"


def state(
    op: str,
    x_shape: Sequence[int],
    out_size: tuple[int, int],
    coordinate: AnyCoordinateName | Literal["align_corners"],
    edge_mode: Any,
    antialias: bool = False,
    factors: tuple[float, float] = (0.0, 0.0),
    *,
    said_by: str | None = None,
) -> ResampleState:
    """The state of ``op`` for images of a shape that was checked; ``said_by`` is the function in errors."""
    edge = checks.choice(said_by or op, "edge_mode", edge_mode, EDGE_MODES)
    _, height, width, channels = x_shape
    checks.image_shape(said_by or op, "output shape", (1, *out_size, channels))
    method = op.rpartition("_")[2]
    rows, cols = (
        Resized(n_in, n_out, method, coordinate, edge, antialias, factor)
        for n_in, n_out, factor in zip((height, width), out_size, factors, strict=True)
    )
    rules.check(said_by or op, rows, cols)
    return ResampleState(op, channels, rows, cols)


def resized_state(
    op: str,
    said_by: str,
    x_shape: Sequence[int],
    out_size: Any,
    scale: Any,
    *,
    names: tuple[AnyCoordinateName, ...] = RESIZE_COORDINATES,
    align_corners: Any = False,
    coordinate: Any = "half_pixel",
    edge_mode: Any = "clamp",
    antialias: Any = False,
) -> ResampleState:
    """The state of a function that takes a size or a factor."""
    plain = type(align_corners) is bool is type(antialias) and type(coordinate) is str is type(edge_mode)
    known = plain and _of(out_size, False) and _of(scale, True)
    make = _kept_state if known else _made_state
    return make(op, said_by, (*x_shape,), out_size, scale, names, align_corners, antialias, coordinate, edge_mode)


def _of(size: Any, real: bool) -> bool:
    """Whether a size or a pair of sizes has ints alone, or floats too: True equals 1, and so does 1.0."""
    if size is None or _is_plain(size, real):
        return True
    return type(size) is tuple and all(_is_plain(part, real) for part in size)


def _is_plain(part: Any, real: bool) -> bool:
    return type(part) is int or (real and type(part) is float)


def _made_state(
    op: str,
    said_by: str,
    x_shape: tuple[int, ...],
    out_size: Any,
    scale: Any,
    names: tuple[AnyCoordinateName, ...],
    align_corners: Any,
    antialias: Any,
    coordinate: Any,
    edge_mode: Any,
) -> ResampleState:
    """The state, made anew."""
    how = coordinate_of(said_by, align_corners, coordinate, names)
    edge = checks.choice(said_by, "edge_mode", edge_mode, EDGE_MODES)
    other = how if how in ("align_corners", "asymmetric") else "edges of zero" if edge == "zero" else ""
    if checks.switch(said_by, "antialias", antialias) and other:
        raise ValueError(
            f"{said_by}: a filter has no {other}; got align_corners={describe(align_corners)}, coordinate="
            f"{describe(coordinate)}, edge_mode={describe(edge)}, expected antialias=False or clamped half pixels"
        )
    if (out_size is None) == (scale is None):
        raise ValueError(
            f"{said_by}: {'no size' if scale is None else 'two sizes'}; got out_size={describe(out_size)}, "
            f"scale={describe(scale)}, expected one of the two"
        )
    if scale is None:
        return state(op, x_shape, pair(said_by, "out_size", out_size, 1), how, edge, antialias, said_by=said_by)
    parts = two(said_by, "scale", scale, _FACTOR)
    (height, y), (width, x) = (_times(said_by, n, part, scale) for n, part in zip(x_shape[1:3], parts, strict=True))
    factors = (0.0, 0.0) if how in ("align_corners", "mlx") or op == "resize_area" else (y, x)
    return state(op, x_shape, (height, width), how, edge, antialias, factors, said_by=said_by)


# Making one takes a third of what a call takes before anything is computed.
_kept_state = functools.lru_cache(maxsize=256, typed=True)(_made_state)

_FACTOR = "a number > 0 and < 2**31, or a (y, x) pair of such"


def _times(op: str, length: int, part: Any, scale: Any) -> tuple[int, float]:
    """The length of what is so much larger, and the factor, or 0 if the length says it all."""
    factor = arguments.real(part)
    if factor is None:
        arguments.refuse(op, "scale is not a number", "scale", scale, _FACTOR, TypeError)
    if not 0 < factor < 2**31:  # neither is NaN
        arguments.refuse(op, "scale is out of range", "scale", scale, _FACTOR)
    size = math.floor(length * float(factor))
    if size == 0:
        arguments.refuse(op, "scale leaves no pixels", "scale", scale, f"at least 1 / {length}")
    return size, 0.0 if size == length * factor else float(factor)


def forward(x: mx.array, state: ResampleState, stream: mx.Stream) -> mx.array:
    """The image that x becomes."""
    return rules.resample(x, rules.Spec(state.rows, state.cols, False, 0, stream))


def gradient(op: str, dy: Any, state: Any, stream: StreamLike) -> mx.array:
    """The gradient of the function that made the state."""
    stream = launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    if _accepted.get((op, id(state)), _NONE) is not state:
        _check_state(op, state, stream)
    expected = "n", state.rows.n_out, state.cols.n_out, state.channels
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")
    return rules.gather(dy, rules.Spec(state.rows, state.cols, True, 0, stream))


# States that were found right, by the function and their identity: nothing changes in them, and to look again takes a
# third of what a call takes before anything is computed.
_accepted: dict[tuple[str, int], ResampleState] = {}
_MOST_ACCEPTED = 256
_NONE = object()


def _check_state(op: str, state: Any, stream: mx.Stream) -> None:
    """A state of the function that ``op`` is the gradient of."""
    checks.state(op, state, ResampleState, stream=stream)
    of = op.removesuffix("_grad")
    if type(state.op) is not str or state.op != of:
        raise ValueError(
            f"{op}: a state of another operation; got state.op={describe(state.op)}, expected {describe(of)}"
        )
    for name, axis in (("rows", state.rows), ("cols", state.cols)):
        _check_axis(op, name, axis)
    channels = checks.whole(op, "state.channels", state.channels)
    checks.image_shape(op, "source shape", (1, state.rows.n_in, state.cols.n_in, channels))
    rules.check(op, state.rows, state.cols)
    if type(state) is ResampleState and type(state.rows) is type(state.cols) is Resized:
        if len(_accepted) >= _MOST_ACCEPTED:
            _accepted.clear()
        _accepted[op, id(state)] = state


def _check_axis(op: str, name: str, axis: Any) -> None:
    """A state may have been made by hand."""
    if not is_a(axis, Resized):
        raise TypeError(f"{op}: the state holds no axis; got state.{name}={describe(axis)}, expected a Resized")
    checks.whole(op, f"state.{name}.n_in", axis.n_in)
    checks.whole(op, f"state.{name}.n_out", axis.n_out)
    checks.choice(op, f"state.{name}.method", axis.method, METHODS)
    checks.choice(op, f"state.{name}.coordinate", axis.coordinate, (*RESIZE_COORDINATES, "align_corners", "mlx"))
    checks.choice(op, f"state.{name}.edge", axis.edge, EDGE_MODES)
    checks.switch(op, f"state.{name}.antialias", axis.antialias)
    factor = checks.number(op, f"state.{name}.factor", axis.factor, 0)
    if factor and math.floor(axis.n_in * factor) != axis.n_out:
        raise ValueError(
            f"{op}: state.{name}.factor is of another size; got state.{name}.factor={describe(axis.factor)}, "
            f"expected one that makes {describe(axis.n_in)} pixels {describe(axis.n_out)}"
        )
