"""Parameters of the kernels that pick or mix rows and columns, as ``metal/image/params.h`` has them."""

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
