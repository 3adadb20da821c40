"""Images sampled at the positions in a grid (``MPSNNGridSample``), and the gradients with respect to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks, launch, printing
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.image import grid_sample_rules as rules
from mpsfunc.image.params import GridSampleParams

GridCoordinatesName = Literal["normalized", "pixel", "offset"]
GridSampleModeName = Literal["nearest", "bilinear", "bicubic"]
GridEdgeName = Literal["zero", "border", "reflection"]
COORDINATES: tuple[GridCoordinatesName, ...] = get_args(GridCoordinatesName)
MODES: tuple[GridSampleModeName, ...] = get_args(GridSampleModeName)
EDGES: tuple[GridEdgeName, ...] = get_args(GridEdgeName)
_MOST = 2**24  # positions along an axis that float32 can represent


@printing.printed
class GridSampleState(NamedTuple):
    """The sizes and options of a `grid_sample`: what its gradients need besides images and grid.

    Fields:
        op: "grid_sample".
        height: Height of the images.
        width: Width of the images.
        channels: Channels of the images.
        coordinates: "normalized", "pixel" or "offset".
        align_corners: Whether -1 and 1 are the centres of the outermost pixels.
        mode: "nearest", "bilinear" or "bicubic".
        edge_mode: "zero", "border" or "reflection".
    """

    op: str
    height: int
    width: int
    channels: int
    coordinates: str
    align_corners: bool
    mode: str
    edge_mode: str

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """No arrays: gradients take the grid and the images themselves."""
        return ()

    def with_arrays(self, arrays: Sequence[mx.array]) -> GridSampleState:
        """This state; it has no arrays to replace."""
        return checks.no_arrays(self, arrays)


def grid_sample(
    x: mx.array,
    grid: mx.array,
    coordinates: GridCoordinatesName = "normalized",
    *,
    align_corners: bool = False,
    mode: GridSampleModeName = "bilinear",
    edge_mode: GridEdgeName = "zero",
    stream: StreamLike = None,
) -> mx.array:
    """Samples images at the positions in a grid.

    The sample in row oh and column ow of image n lies at ``grid[n, oh, ow]``, which is (x, y). Along an axis of L
    pixels, a coordinate g means the position u, in pixels from the centre of the first pixel:

    - "normalized": ``u = ((g + 1) L - 1) / 2``, so -1 and 1 are the outer edges of the image; or with
      ``align_corners`` ``u = (g + 1) (L - 1) / 2``, so they are the centres of the outermost pixels;
    - "pixel": ``u = g``;
    - "offset": ``u = g`` plus the column ow or the row oh of the sample itself.

    "bilinear" interpolates: along each axis pixel i has the weight ``1 - |i - u|`` up to a distance of 1. "bicubic"
    gives four pixels along each axis the weights of `resize_bicubic`. "nearest" takes the nearest pixel, and of two
    that are equally near the even one. Outside the image pixels are 0 with "zero", the nearest pixel of the image with
    "border", and reflected with "reflection": at the outer edges, or with ``align_corners`` at the centres of the
    outermost pixels. A pixel of weight 0 is not read.

    Gradients of every order, with respect to images and grid, are exact and have the same bits on every run. At whole
    pixels, where the interpolation has no derivative, they are the derivative from the right. With "border" and
    "reflection" the gradient of a bilinear sample with respect to a coordinate is 0 from the centre of the outermost
    pixel outwards. At NaN or infinity a sample is 0 with "zero"; with "border" NaN means the first pixel and infinity
    the nearest edge; with "reflection" both mean the first pixel. The gradient with respect to such a coordinate is 0.

    Source: ``MPSNNGridSample`` and PyTorch's ``grid_sample``, which calls "zero" "zeros". In MPS "pixel" is
    ``useGridValueAsInputCoordinate`` and "offset" its absence. Apple does not document the order of x and y, what lies
    outside the image, and the rest; here they are as in PyTorch, except at NaN and infinity, where some of PyTorch's
    modes return NaN on CPUs.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        grid: Positions (n, oh, ow, 2), each (x, y), of x's dtype or float32. u is computed in float32, or in float64
            for float64 images.
        coordinates: "normalized" (default), "pixel" or "offset", as above.
        align_corners: Whether -1 and 1 are the centres of the outermost pixels; only with "normalized". Default False.
        mode: "nearest", "bilinear" (default) or "bicubic".
        edge_mode: "zero" (default), "border" or "reflection".
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Samples (n, oh, ow, c) of x's dtype.

    Raises:
        TypeError: x or grid is not a floating array, float64 on a GPU, the grid has neither x's dtype nor float32, or
            align_corners is not a bool.
        ValueError: x is not NHWC, the grid is not (n, oh, ow, 2), a name is unknown, align_corners comes with other
            coordinates than "normalized", or an axis or the result is too large.

    Example:
        >>> x = mx.arange(1.0, 10).reshape(1, 3, 3, 1)
        >>> places = mx.array([[0.5, 0.25], [1.75, 1.5], [2.5, 0]]).reshape(1, 1, 3, 2)
        >>> grid_sample(x, places, "pixel").reshape(-1)
        array([2.25, 7.25, 1.5], dtype=float32)
    """
    return grid_sample_fwd(
        x, grid, coordinates, align_corners=align_corners, mode=mode, edge_mode=edge_mode, stream=stream
    )[0]


def grid_sample_fwd(
    x: mx.array,
    grid: mx.array,
    coordinates: GridCoordinatesName = "normalized",
    *,
    align_corners: bool = False,
    mode: GridSampleModeName = "bilinear",
    edge_mode: GridEdgeName = "zero",
    stream: StreamLike = None,
) -> tuple[mx.array, GridSampleState]:
    """`grid_sample`, and the state that its gradients need. Arguments and errors are those of `grid_sample`.

    Returns:
        The samples and the state.

    Example:
        >>> y, state = grid_sample_fwd(
        ...     mx.ones((1, 4, 4, 2)), mx.zeros((1, 3, 5, 2)), mode="nearest"
        ... )
        >>> y.shape, state.mode
        ((1, 3, 5, 2), 'nearest')
    """
    op, stream = "grid_sample", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    state = _state(op, x.shape, coordinates, align_corners, mode, edge_mode)
    _check_grid(op, grid, x.shape[0], "x", x.dtype, stream)
    _, height, width, _ = grid.shape
    checks.image_shape(op, "output shape", (1, height, width, x.shape[3]))
    return rules.sample(x, _wide(grid, x.dtype, stream), _spec(state, stream)), state


def grid_sample_state(
    x_shape: Sequence[int],
    coordinates: GridCoordinatesName = "normalized",
    *,
    align_corners: bool = False,
    mode: GridSampleModeName = "bilinear",
    edge_mode: GridEdgeName = "zero",
) -> GridSampleState:
    """The state of `grid_sample_fwd` for images of a shape, without running it.

    Args:
        x_shape: (n, h, w, c) of the images.
        coordinates: As for `grid_sample`, like the rest.
        align_corners: As for `grid_sample`.
        mode: As for `grid_sample`.
        edge_mode: As for `grid_sample`.

    Returns:
        The state.

    Raises:
        TypeError: x_shape is not a list or tuple, or align_corners is not a bool.
        ValueError: x_shape is not (n, h, w, c), a name is unknown, align_corners comes with other coordinates than
            "normalized", or an axis is too large.

    Example:
        >>> grid_sample_state((1, 4, 6, 3), "pixel").width
        6
    """
    op = "grid_sample_state"
    x_shape = checks.shape_of_images(op, "x_shape", x_shape)
    return _state(op, x_shape, coordinates, align_corners, mode, edge_mode)


def grid_sample_grad(dy: mx.array, grid: mx.array, state: GridSampleState, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `grid_sample` with respect to its images.

    ``dx`` of a pixel is the sum of dy over the samples that read it, each times its weight. The order of the sum is
    fixed, so every run gives the same bits.

    Args:
        dy: Gradient of the samples (n, oh, ow, c), floating.
        grid: The grid, as for `grid_sample`.
        state: From `grid_sample_fwd` or `grid_sample_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, c) of dy's dtype.

    Raises:
        TypeError: dy or grid is not a floating array, the grid has neither dy's dtype nor float32, or state is not a
            GridSampleState.
        ValueError: dy does not belong to the state or the grid.

    Example:
        >>> places = mx.array([[0.5, 0.25], [1.75, 1.5], [2.5, 0]]).reshape(1, 1, 3, 2)
        >>> state = grid_sample_state((1, 3, 3, 1), "pixel")
        >>> grid_sample_grad(
        ...     mx.array([1.0, 2, 4]).reshape(1, 1, 3, 1), places, state
        ... ).reshape(3, 3)
        array([[0.375, 0.375, 2],
               [0.125, 0.375, 0.75],
               [0, 0.25, 0.75]], dtype=float32)
    """
    op, stream = "grid_sample_grad", launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    _check_grid(op, grid, "n", "dy", dy.dtype, stream)
    _check_samples(op, dy, grid, state)
    return rules.spread(dy, _wide(grid, dy.dtype, stream), spec)


def grid_sample_grad_grid(
    dy: mx.array, x: mx.array, grid: mx.array, state: GridSampleState, *, stream: StreamLike = None
) -> mx.array:
    """Gradient of `grid_sample` with respect to its grid; zeros if ``mode`` is "nearest".

    Args:
        dy: Gradient of the samples (n, oh, ow, c), floating.
        x: The images, as for `grid_sample`.
        grid: The grid, as for `grid_sample`.
        state: From `grid_sample_fwd` or `grid_sample_state`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, oh, ow, 2) with respect to x and y, of the grid's dtype.

    Raises:
        TypeError: An array is not floating, dy and x differ in dtype, the grid has neither theirs nor float32, or state
            is not a GridSampleState.
        ValueError: x or dy does not belong to the state, or dy not to the grid.

    Example:
        >>> x, dy = (
        ...     mx.arange(1.0, 10).reshape(1, 3, 3, 1),
        ...     mx.array([1.0, 2, 4]).reshape(1, 1, 3, 1),
        ... )
        >>> places = mx.array([[0.5, 0.25], [1.75, 1.5], [2.5, 0]]).reshape(1, 1, 3, 2)
        >>> grid_sample_grad_grid(
        ...     dy, x, places, grid_sample_state(x.shape, "pixel")
        ... ).reshape(3, 2)
        array([[1, 3],
               [2, 6],
               [-12, 6]], dtype=float32)
    """
    op, stream = "grid_sample_grad_grid", launch.resolve(stream)
    checks.image(op, "x", x, stream=stream)
    checks.array(op, "dy", dy, stream=stream)
    spec = _checked(op, state, stream)
    expected = "n", state.height, state.width, state.channels
    checks.shape(op, "x", x, expected, "x does not belong to this state")
    checks.same_dtype(op, "dy", dy, "x", x.dtype)
    _check_grid(op, grid, x.shape[0], "x", x.dtype, stream)
    _check_samples(op, dy, grid, state)
    with mx.stream(stream):
        return rules.slopes(dy, x, _wide(grid, x.dtype, stream), spec).astype(grid.dtype)


def _state(
    op: str, x_shape: Sequence[int], coordinates: Any, align_corners: Any, mode: Any, edge_mode: Any
) -> GridSampleState:
    chosen = checks.choice(op, "coordinates", coordinates, COORDINATES)
    aligned = checks.switch(op, "align_corners", align_corners)
    if aligned and chosen != "normalized":
        raise ValueError(
            f"{op}: align_corners is for normalized coordinates; got coordinates={describe(coordinates)}, "
            'expected "normalized" or align_corners=False'
        )
    kind = checks.choice(op, "mode", mode, MODES)
    edge = checks.choice(op, "edge_mode", edge_mode, EDGES)
    _, height, width, channels = x_shape
    check_lengths(op, "image", height, width)
    return GridSampleState("grid_sample", height, width, channels, chosen, aligned, kind, edge)


def check_lengths(op: str, name: str, height: int, width: int) -> None:
    """Refuses lengths whose pixels float32 cannot number."""
    if max(height, width) > _MOST:
        raise ValueError(
            f"{op}: an axis of the {name} is too long; got (h, w)={describe((height, width))}, expected at most 2**24"
        )


def _check_grid(op: str, grid: Any, images: int | str, other: str, dtype: mx.Dtype, stream: mx.Stream) -> None:
    checks.array(op, "grid", grid, stream=stream)
    checks.shape(op, "grid", grid, (images, "oh", "ow", 2), f"the grid does not belong to {other}")
    if grid.dtype not in (dtype, mx.float32):
        either = dtype if dtype == mx.float32 else f"{dtype} or mlx.core.float32"
        raise TypeError(f"{op}: grid and {other} differ in dtype; got grid.dtype={grid.dtype}, expected {either}")
    _, height, width, _ = grid.shape
    if 0 in (height, width):
        raise ValueError(f"{op}: a grid has no positions; got grid.shape={tuple(grid.shape)}, expected oh, ow >= 1")
    check_lengths(op, "grid", height, width)


def _check_samples(op: str, dy: mx.array, grid: mx.array, state: GridSampleState) -> None:
    expected = *grid.shape[:3], state.channels
    checks.shape(op, "dy", dy, expected, "dy does not belong to this state")


def _checked(op: str, state: Any, stream: mx.Stream) -> rules.Spec:
    """What a state says, which may have been made by hand."""
    checks.state(op, state, GridSampleState, stream=stream)
    if type(state.op) is not str or state.op != "grid_sample":
        raise ValueError(
            f'{op}: a state of another operation; got state.op={describe(state.op)}, expected "grid_sample"'
        )
    height, width = (checks.whole(op, f"state.{name}", getattr(state, name), 1, _MOST) for name in ("height", "width"))
    channels = checks.whole(op, "state.channels", state.channels)
    checks.image_shape(op, "source shape", (1, height, width, channels))
    checks.choice(op, "state.coordinates", state.coordinates, COORDINATES)
    aligned = checks.switch(op, "state.align_corners", state.align_corners)
    if aligned and state.coordinates != "normalized":
        raise ValueError(
            f"{op}: the state aligns corners of other coordinates; got state.coordinates="
            f'{describe(state.coordinates)}, expected "normalized"'
        )
    checks.choice(op, "state.mode", state.mode, MODES)
    checks.choice(op, "state.edge_mode", state.edge_mode, EDGES)
    return _spec(state, stream)


def _spec(state: GridSampleState, stream: mx.Stream) -> rules.Spec:
    coordinates = 1 if state.align_corners else {"normalized": 0, "pixel": 2, "offset": 3}[state.coordinates]
    how = MODES.index(_name(state.mode)), EDGES.index(_name(state.edge_mode)), coordinates
    return rules.Spec(GridSampleParams(state.height, state.width, *how, 0, 0), stream)


def _name(name: Any) -> Any:
    """A name that was checked, as one of a Literal."""
    return name


def _wide(grid: mx.array, dtype: mx.Dtype, stream: mx.Stream) -> mx.array:
    """The grid in the dtype in which positions are computed."""
    wanted = launch.accumulator(dtype)
    return grid if grid.dtype == wanted else grid.astype(wanted, stream=stream)
