"""How the three poolings run on a GPU: in one step or two, by pixel or on tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import grids
from mpsfunc.core.launch import KernelLaunch, Output
from mpsfunc.pooling.params import PoolParams
from mpsfunc.windows.axis import Axis, is_uniform

Names = tuple[tuple[str, ...], tuple[str, ...]]  # of a body's inputs and outputs
Template = tuple[tuple[str, mx.Dtype | int], ...]


class Spec(NamedTuple):
    """The statics of a pooling, forward and backward."""

    windows: PoolParams
    stream: mx.Stream


# Pixels of a tile, and windows that read one, that fit in the registers of a thread.
_MOST = 16
# Taps from which a window is worth two steps.
_MANY = 64


def by_pixel(
    body: str,
    names: Names,
    source: Output,
    results: tuple[Output, ...],
    windows: PoolParams,
    template: Template = (),
    *,
    images_per_thread: int | None = None,
) -> KernelLaunch:
    """A thread for some channels of each pixel of the results.

    Args:
        body: The kernel body.
        names: Of its inputs and outputs.
        source: Shape and dtype of the input that decides, with the results, how many channels are sixteen bytes.
        results: Shape and dtype of each output.
        windows: Rows and columns.
        template: Constants of the body besides "V", the channels of a thread, and "B".
        images_per_thread: Images that a thread has under way, for bodies that let it have several.
    """
    n, height, width, channels = results[0][0]
    per_thread = _per_thread(source, *results)
    if images_per_thread is not None:
        images_per_thread = min(images_per_thread, n)
        template = (*template, ("B", images_per_thread))
    grid, group = grids.image_threads(width * (channels // per_thread), height, -(-n // (images_per_thread or 1)))
    return KernelLaunch(body, *names, results, grid, group, windows, (("V", per_thread), *template))


def summing(
    body: str,
    names: Names,
    source: Output,
    result: Output,
    windows: PoolParams,
    constants: Callable[[mx.Dtype], Template],
    *,
    images_per_thread: int | None = None,
) -> tuple[KernelLaunch, ...]:
    """A sum over windows in one step, or first along the columns and then along the rows.

    One thread has a whole window; where windows are large and few, two short steps take far less time.

    Args:
        body: The kernel body, whose second step reads what the first one made.
        names: Of its inputs and outputs.
        source: Shape and dtype of the image.
        result: Shape and dtype of the output.
        windows: Rows and columns.
        constants: The body's, for a dtype of results.
        images_per_thread: As for `by_pixel`.
    """
    rows, cols = windows
    ((read,), (written,)) = names

    def step(source: Output, result: Output, windows: PoolParams) -> KernelLaunch:
        template = (*constants(result[1]), taps_in_flight(windows.cols, source[1], images_per_thread))
        return by_pixel(body, names, source, (result,), windows, template, images_per_thread=images_per_thread)

    if rows.size * cols.size < _MANY or cols.size < 4 or 4 * cols.n_out > cols.n_in:
        return (step(source, result, windows),)
    n, _, width, channels = result[0]
    between = (n, rows.n_in, width, channels), mx.float32
    along_columns = step(source, between, PoolParams(_every(rows.n_in), cols)).renamed(**{written: "by_columns"})
    along_rows = step(between, result, PoolParams(rows, _every(cols.n_out))).renamed(**{read: "by_columns"})
    return along_columns, along_rows


def taps_in_flight(cols: Axis, dtype: mx.Dtype, images_per_thread: int | None = None) -> tuple[str, int]:
    """The constant "U": how many taps of a row a thread loads, for each image, before it looks at them."""
    loads = 8 if dtype.size > 2 else 4  # of a thread, which has more channels where they are small
    return "U", max(1, min(cols.size, 4, loads // (images_per_thread or 1)))


def on_tiles(
    body: str,
    names: Names,
    source: Output,
    result: Output,
    windows: PoolParams,
    template: Template = (),
    *,
    in_flight: int = 4,
) -> KernelLaunch | None:
    """A thread for some channels of a tile of pixels, or None where `tile` finds none.

    A window is loaded once for all pixels of a tile, and which tap it has on each is a constant.

    Args:
        body: The kernel body.
        names: Of its inputs and outputs.
        source: Shape and dtype of the input that decides, with the results, how many channels are sixteen bytes.
        result: Shape and dtype of the output.
        windows: Rows and columns.
        template: Constants of the body besides those of channels, images and tiles.
        in_flight: Windows that a thread has under way at a time, if a tile needs no more.
    """
    found = tile(*windows)
    if found is None:
        return None
    constants, (down, across), readers = found
    n, channels = result[0][0], result[0][3]
    per_thread, images_per_thread = _per_thread(source, result), max(1, min(n, in_flight // readers))
    grid, group = grids.image_threads(across * (channels // per_thread), down, -(-n // images_per_thread))
    template = (("V", per_thread), ("B", images_per_thread), *template, *constants)
    return KernelLaunch(body, *names, (result,), grid, group, windows, template)


def tile(rows: Axis, cols: Axis) -> tuple[Template, tuple[int, int], int] | None:
    """The constants of a body on tiles, the tiles down and across, and the windows that read one.

    None where windows are dilated, differ in size, or are so large or far apart that a thread could not hold a tile.
    """
    if any(a.dilation != 1 or not is_uniform(a) for a in (rows, cols)):
        return None
    down, across = (a.stride if a.stride > 1 else 2 for a in (rows, cols))
    readers = math.prod(n // a.stride + (a.size - 1) // a.stride for n, a in ((down, rows), (across, cols)))
    if down * across > _MOST or readers > _MOST:
        return None
    sizes = {"KY": rows.size, "KX": cols.size, "SY": rows.stride, "SX": cols.stride, "DY": down, "DX": across}
    tiles = [(a.n_in - 1 + a.pad) // n - a.pad // n + 1 for n, a in ((down, rows), (across, cols))]
    return tuple(sizes.items()), (tiles[0], tiles[1]), readers


def _per_thread(source: Output, *results: Output) -> int:
    """Channels of a thread: sixteen bytes of the widest elements among these."""
    shape, _ = source
    widest = max((dtype for _, dtype in (source, *results)), key=lambda dtype: dtype.size)
    return grids.vector_width(widest, shape[3], math.prod(shape))


def _every(n: int) -> Axis:
    """Windows of one pixel."""
    return Axis(n, n, 1, 1, 1, 0, 0, 0, 0, n, 0)
