"""What upsampling and resizing share: the state, the checks and the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.arguments import is_a
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import rules
from mpsfunc.windows.axis import EDGE_MODES
from mpsfunc.windows.sampling import Resized

CoordinateName = Literal["asymmetric", "half_pixel"]
COORDINATES: tuple[CoordinateName, ...] = get_args(CoordinateName)
METHODS = ("nearest", "bilinear")


@printing.printed
class ResampleState(NamedTuple):
    """How an image was enlarged or shrunk, which is all that its gradient needs.

    Fields:
        op: The function: "upsample_nearest", "upsample_bilinear", "resize_nearest" or "resize_bilinear".
        channels: Channels of the image.
        rows: What the rows of the result read: the lengths of the source and of the result, "nearest" or "bilinear",
            "asymmetric", "half_pixel" or "align_corners", and "zero" or "clamp".
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


def coordinate_of(op: str, align_corners: Any, coordinate: Any) -> CoordinateName | Literal["align_corners"]:
    """The two arguments as one."""
    chosen = checks.choice(op, "coordinate", coordinate, COORDINATES)
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
    coordinate: CoordinateName | Literal["align_corners"],
    edge_mode: Any,
    *,
    said_by: str | None = None,
) -> ResampleState:
    """The state of ``op`` for images of a shape that was checked; ``said_by`` is the function in errors."""
    edge = checks.choice(said_by or op, "edge_mode", edge_mode, EDGE_MODES)
    _, height, width, channels = x_shape
    checks.image_shape(said_by or op, "output shape", (1, *out_size, channels))
    method = op.rpartition("_")[2]
    rows, cols = (
        Resized(n_in, n_out, method, coordinate, edge) for n_in, n_out in zip((height, width), out_size, strict=True)
    )
    rules.check(said_by or op, rows, cols)
    return ResampleState(op, channels, rows, cols)


def forward(x: mx.array, state: ResampleState, stream: mx.Stream) -> mx.array:
    """The image that x becomes."""
    return rules.resample(x, rules.Spec(state.rows, state.cols, False, 0, stream))


def gradient(op: str, dy: Any, state: Any, stream: StreamLike) -> mx.array:
    """The gradient of the function that made the state."""
    stream, of = launch.resolve(stream), op.removesuffix("_grad")
    checks.array(op, "dy", dy, stream=stream)
    checks.state(op, state, ResampleState, stream=stream)
    if type(state.op) is not str or state.op != of:
        raise ValueError(
            f"{op}: a state of another operation; got state.op={describe(state.op)}, expected {describe(of)}"
        )
    for name, axis in (("rows", state.rows), ("cols", state.cols)):
        _check_axis(op, name, axis)
    height, width, channels = state.rows.n_in, state.cols.n_in, checks.whole(op, "state.channels", state.channels)
    checks.image_shape(op, "source shape", (1, height, width, channels))
    rules.check(op, state.rows, state.cols)
    expected = "n", state.rows.n_out, state.cols.n_out, channels
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")
    return rules.resample(dy, rules.Spec(state.rows, state.cols, True, 0, stream))


def _check_axis(op: str, name: str, axis: Any) -> None:
    """A state may have been made by hand."""
    if not is_a(axis, Resized):
        raise TypeError(f"{op}: the state holds no axis; got state.{name}={describe(axis)}, expected a Resized")
    checks.whole(op, f"state.{name}.n_in", axis.n_in)
    checks.whole(op, f"state.{name}.n_out", axis.n_out)
    checks.choice(op, f"state.{name}.method", axis.method, METHODS)
    checks.choice(op, f"state.{name}.coordinate", axis.coordinate, (*COORDINATES, "align_corners"))
    checks.choice(op, f"state.{name}.edge", axis.edge, EDGE_MODES)
