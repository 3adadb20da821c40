"""Parameters of the kernels that pick or mix pixels, as ``metal/image/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple


class GatherPixelsLaunch(NamedTuple):
    """The size of the result."""

    height: int
    width: int


class ResampleLaunch(NamedTuple):
    """The size of the result, its tiles, and positions of the first one that lie ahead of it."""

    height: int
    width: int
    tiles_down: int
    tiles_across: int
    rows_ahead: int
    cols_ahead: int


class ResampleStripLaunch(NamedTuple):
    """The size of the result, and the rows of a strip of it."""

    height: int
    width: int
    strip: int


class GridSampleParams(NamedTuple):
    """Samples at the positions in a grid.

    Fields:
        height: Of the images that are sampled.
        width: Theirs too.
        mode: 0 nearest, 1 bilinear, 2 bicubic.
        edge: 0 zeros, 1 the border, 2 reflection.
        coordinates: 0 normalized, 1 normalized from the middle of the first pixel to that of the last, 2 pixels,
            3 pixels from the sample's own position.
        order_y: Of a derivative by the grid's y.
        order_x: By its x.
    """

    height: int
    width: int
    mode: int
    edge: int
    coordinates: int
    order_y: int
    order_x: int


class LocalCorrelationParams(NamedTuple):
    """Correlations of a pixel with those around its place in another image.

    Fields:
        window_y: How many strides these lie away at most, along y.
        window_x: Along x.
        stride_y: Pixels from one of them to the next along y.
        stride_x: Along x.
        secondary: Whether a gradient is by the image whose pixels lie around.
    """

    window_y: int
    window_x: int
    stride_y: int
    stride_x: int
    secondary: int


class BoxSampleParams(NamedTuple):
    """Samples in boxes.

    Fields:
        images: That are sampled, which boxes number from 0.
        height: Of the images.
        width: Theirs too.
        rows: Of bins, which are the rows of the result.
        cols: Of bins.
        rule: 0 crops whose samples mix pixels, 1 crops that take the nearest, 2 means over bins of regions.
        samples: Of a bin along an axis; 0 as many as it needs.
        order_y: 0, or which derivative by a box's rows: 1 by what it says of them first, 2 by the second.
        order_x: The same of columns.
        outside: What a sample outside is.
    """

    images: int
    height: int
    width: int
    rows: int
    cols: int
    rule: int
    samples: int
    order_y: int
    order_x: int
    outside: float
