"""Images whose rows and columns are picked or mixed from those of others, as one linear operation and its transpose.

What an axis reads travels as a table (`windows.sampling`). Each direction gathers, and each is the other's VJP.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.numpy_later import np
from mpsfunc.core.operation import Arrays, Gradients, operation, over_batches
from mpsfunc.image.params import GatherPixelsLaunch, ResampleLaunch, ResampleStripLaunch
from mpsfunc.windows import sampling
from mpsfunc.windows.sampling import Axis, Resized

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class Spec(NamedTuple):
    """Statics of a resampling.

    Fields:
        rows: What the rows of the result read.
        cols: What its columns read.
        back: Whether this is the transposed operation, which leads back to the source.
        fill: What a pixel is that reads nothing.
        stream: Where everything runs.
    """

    rows: Axis
    cols: Axis
    back: bool
    fill: float
    stream: mx.Stream


def resample(x: mx.array, spec: Spec) -> mx.array:
    """The image that x becomes, also of integers, where each pixel reads one or none."""
    if mx.issubdtype(x.dtype, mx.floating):
        return gather(x, spec)
    with mx.stream(spec.stream):  # moving knows no signs, but a filling has one
        bits = 8 * x.dtype.size
        y = gather(x.view(_UNSIGNED[x.dtype.size]), spec._replace(fill=int(spec.fill) % 2**bits))
        return y.view(x.dtype)


_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


@operation("resample")
def gather(x: mx.array, spec: Spec) -> mx.array:
    """The image whose pixels gather what they read in x: floats, or unsigned integers that only move."""
    rows, cols, back = spec.rows, spec.cols, spec.back
    n, _, _, channels = x.shape
    height, width = (rows.n_in, cols.n_in) if back else (rows.n_out, cols.n_out)
    result = (n, height, width, channels), x.dtype
    if not back and sampling.picks(rows) and sampling.picks(cols):

        def gathering() -> tuple[KernelLaunch, ...]:
            vector_width, images_per_thread = grids.vector_width(x.dtype, channels, x.size), min(4, n)
            grid, group = grids.image_threads(width * (channels // vector_width), height, -(-n // images_per_thread))
            names = ("x", "rows", "cols", "filling"), ("y",)
            template = ("V", vector_width), ("B", images_per_thread)
            params = GatherPixelsLaunch(height, width)
            return (KernelLaunch("gather_pixels", *names, (result,), grid, group, params, template),)

        arrays = {"x": x, "rows": _picks(rows), "cols": _picks(cols), "filling": _filling(spec.fill, x.dtype)}
        return launch.launch("gather_pixels", arrays, None, (result,), gathering, spec.stream)[0]

    if launch.backend(spec.stream) == "cpu":
        arrays = {"x": x, "rows": _lists(rows, back), "cols": _lists(cols, back)}
        return launch.launch("resample", arrays, None, (result,), tuple, spec.stream)[0]
    if (walked := _walked(rows, back)) and (windowed := _windowed(cols, back)):
        arrays = {"x": x, "rows": walked.table, "cols": windowed.table}
        strips = functools.partial(_in_strips, result, x.size, walked, windowed)
        return launch.launch("resample", arrays, None, (result,), strips, spec.stream)[0]
    vector_width = grids.vector_width(x.dtype, channels, x.size)
    down, across = _tiled(rows, back, 4), _tiled(cols, back, 2)
    arrays = {"x": x, "rows": down.table, "cols": across.table}
    if down.longest * across.longest * max(vector_width, 4) <= _AT_ONCE:
        return launch.launch(
            "resample", arrays, None, (result,), lambda: (_mixing(*result, down, across, vector_width),), spec.stream
        )[0]
    # One axis, then the other, whichever leaves less between them.
    rows_first = height * x.shape[2] <= x.shape[1] * width
    same = _tiled(_unmoved(x.shape[2] if rows_first else x.shape[1]), False, 1)
    still = _tiled(_unmoved(height if rows_first else width), False, 1)
    between = (n, height, x.shape[2], channels) if rows_first else (n, x.shape[1], width, channels)
    arrays |= {"same": same.table, "still": still.table}
    vector_width = grids.vector_width(mx.float32, channels, min(x.size, math.prod(between)))

    def mixing() -> tuple[KernelLaunch, ...]:
        if rows_first:
            first = _mixing(between, mx.float32, down, same, vector_width).renamed(y="between", cols="same")
            return first, _mixing(*result, still, across, vector_width).renamed(x="between", rows="still")
        first = _mixing(between, mx.float32, same, across, vector_width).renamed(y="between", rows="same")
        return first, _mixing(*result, down, still, vector_width).renamed(x="between", cols="still")

    return launch.launch("resample", arrays, None, (result,), mixing, spec.stream)[0]


# Numbers that a thread of a GPU mixes, of four channels at least; of more, rows and columns are mixed one by one.
_AT_ONCE = 560
_LONG = 4  # entries from which a list is long: its tile is wide where that saves loads, and its columns are held
_HELD = 32  # registers for columns and their weights


_STRIP = 64  # rows of a result at most
_STRIPS = 2**15  # of an image; a few more, after rounding, are still as many as CUDA allows
_FULL = 100_000  # threads that fill a large GPU; more of them, with shorter strips, were slower


def _in_strips(
    result: tuple[tuple[int, ...], mx.Dtype], elements: int, down: _Walked, across: _Windowed
) -> tuple[KernelLaunch, ...]:
    """Strips are as long as leaves enough threads, since those that meet both read some rows of x."""
    n, height, width, channels = result[0]
    vector_width = grids.vector_width(mx.float32, channels, elements)  # in 16 bits more would take all registers
    columns = width * (channels // vector_width)
    rows = max(_SHARED, height // _STRIPS, min(_STRIP, n * height * columns // _FULL))
    rows = -(-height // -(-height // rows))
    grid, group = grids.strip_threads(columns, -(-height // rows), n)
    counts = ("V", vector_width), ("READS", across.reads), ("AHEAD", across.ahead)
    template = *counts, ("KEPT", down.kept), ("GATHERS", down.gathers)
    params = ResampleStripLaunch(height, width, rows)
    names = ("x", "rows", "cols"), ("y",)
    return (KernelLaunch("resample_strip", *names, (result,), grid, group, params, template),)


def _mixing(shape: tuple[int, ...], dtype: mx.Dtype, down: _Tiled, across: _Tiled, vector_width: int) -> KernelLaunch:
    """An image of the shape."""
    n, height, width, channels = shape
    held = across.longest if across.longest >= _LONG and across.longest * (1 + across.size) <= _HELD else 0
    # Columns and images under way, as many as there are registers for.
    columns = across.longest if held or across.longest <= 5 else _evenly(across.longest, 4)
    results = down.size * across.size * max(vector_width // 4, 1)
    images_per_thread = max(1, min(n, 4, 8 // results, 8 // columns))
    x, rounds = across.tiles * (channels // vector_width), -(-n // images_per_thread)
    grid, group = (grids.small_threads if held else grids.image_threads)(x, down.tiles, rounds)
    params = ResampleLaunch(height, width, down.tiles, across.tiles, down.ahead, across.ahead)
    counts = ("V", vector_width), ("B", images_per_thread), ("U", columns), ("DY", down.size), ("DX", across.size)
    template = ("O", dtype), *counts, ("K", held)
    names = ("x", "rows", "cols"), ("y",)
    return KernelLaunch("resample", *names, ((shape, dtype),), grid, group, params, template)


def _unmoved(length: int) -> Axis:
    return Resized(length, length, "nearest", "asymmetric", "clamp")


@gather.vjp
def _gather_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return (gather(cotangents[0], _linear(spec, not spec.back)),)


@gather.jvp
def _gather_jvp(arrays: Arrays, tangents: Arrays, spec: Spec) -> mx.array:
    return gather(tangents[0], _linear(spec, spec.back))


gather.vmap(over_batches(gather))


def _linear(spec: Spec, back: bool) -> Spec:
    return spec._replace(back=back, fill=0)


def _evenly(count: int, most: int) -> int:
    """The fewest at a time that take no more turns than the most would."""
    turns = max(1, -(-count // most))
    return max(1, -(-count // turns))


# Tables -------------------------------------------------------------------------------------------------

_MOST = 2**24  # positions of an axis; a table takes up to about a hundred bytes for each while it is made
_KEPT = 2**16  # positions of axes whose tables are kept
_Made = TypeVar("_Made")


def check(op: str, rows: Axis, cols: Axis) -> None:
    """Axes that tables can be made for."""
    for name, axis in (("rows", rows), ("columns", cols)):
        if max(axis.n_in, axis.n_out) > _MOST:
            made = f"{axis.n_out} {name} from {axis.n_in}"
            raise ValueError(f"{op}: an axis is too long; got {made}, expected at most {_MOST}")


def _kept(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """Makes each table once, unless it is so large that keeping it would cost more."""
    keep = functools.lru_cache(maxsize=256)(make)

    @functools.wraps(make)
    def table(axis: Axis, *rest: int) -> _Made:
        return (keep if max(axis.n_in, axis.n_out) <= _KEPT else make)(axis, *rest)

    return table


def _filling(fill: float, dtype: mx.Dtype) -> mx.array:
    """What pixels that read nothing are filled with; a whole 0 is made once for each dtype."""
    return _filled(0, dtype) if type(fill) is int and fill == 0 else _filled.__wrapped__(fill, dtype)


@functools.cache
def _filled(fill: float, dtype: mx.Dtype) -> mx.array:
    if dtype in _UNSIGNED.values():  # MLX takes a Python int for an int64
        return mx.array(np.array([fill], np.dtype(f"u{dtype.size}")))
    return mx.array([fill], dtype)


@_kept
def _picks(axis: Axis) -> mx.array:
    return mx.array(sampling.picked(axis).astype(np.int32).view(np.uint32))


def _found(axis: Axis, back: bool) -> sampling.Reads:
    return sampling.readers(axis) if back else sampling.reads(axis)


@_kept
def _lists(axis: Axis, back: bool) -> mx.array:
    """Where the list of each position begins, and one more; then the entries, an index and a double."""
    begins, indices, weights = _found(axis, back)
    entries = np.empty((len(indices), 3), np.uint32)
    entries[:, 0] = indices
    entries[:, 1:] = weights.view(np.uint32).reshape(-1, 2)
    return mx.array(np.concatenate([begins.astype(np.uint32), entries.reshape(-1)]))


class _Tiled(NamedTuple):
    table: mx.array
    size: int  # positions of a tile
    ahead: int
    tiles: int
    longest: int  # list


@_kept
def _tiled(axis: Axis, back: bool, most: int) -> _Tiled:
    """Like `_lists` for a GPU: entries of tiles, an index and a float for each position of the tile.

    Positions are a tile where they read much of the same: two, or four where together they read a third. Where lists
    are long, as of cubic images, two are enough for four, and there are at most so many.
    """
    found = _found(axis, back)
    alone, pairs, fours = sampling.tiles(found, 1, 0), sampling.best_tiles(found, 2), sampling.best_tiles(found, 4)
    long = int(np.diff(found.begins).max(initial=0)) >= _LONG
    tiles = pairs if 5 * len(pairs.indices) <= 4 * len(alone.indices) else alone
    if (most if long else 4) >= 4 and (2 if long else 3) * len(fours.indices) <= len(alone.indices):
        tiles = fours
    ahead, begins, indices, weights = tiles
    size = weights.shape[1]
    entries = np.empty((len(indices), 1 + size), np.int32)
    entries[:, 0] = indices
    entries[:, 1:] = weights.astype(np.float32).view(np.int32)
    table = np.concatenate([begins.astype(np.int32), entries.reshape(-1)])
    return _Tiled(mx.array(table), size, ahead, len(begins) - 1, int(np.diff(begins).max()))


# Where a position reads so many pixels in a row, and a pixel is read by as many, strips are faster than tiles. Of more
# than the most, a thread has no registers for them.
_SHARED, _ROOM = 4, 8


class _Shared(NamedTuple):
    spans: sampling.Spans  # of what positions read
    reads: sampling.Windows  # what these are
    readers: sampling.Windows  # what reads each pixel


@_kept
def _shared(axis: Axis, back: bool) -> _Shared | None:
    """An axis whose strips are faster, and have registers."""
    if sampling.picks(axis):
        return None
    lengths = (axis.n_out, axis.n_in) if back else (axis.n_in, axis.n_out)
    lists = _found(axis, back), _found(axis, not back)
    if any((np.diff(found.begins) == 0).any() for found in lists):
        return None
    of = [sampling.spans(found) for found in lists]
    widths = [each.width for each in of]
    if min(widths) < _SHARED or min(widths) > _ROOM:
        return None
    reads, readers = map(sampling.windows, lists, of, lengths)
    return _Shared(of[0], reads, readers)


def _entries(windows: sampling.Windows) -> Array:
    """The first of each, and its weights."""
    weights = windows.weights.astype(np.float32).view(np.int32)
    return np.concatenate([windows.firsts.astype(np.int32)[:, None], weights], 1).reshape(-1)


class _Windowed(NamedTuple):
    table: mx.array
    reads: int
    ahead: int  # of these, so that all columns together have nearly all pixels


@_kept
def _windowed(axis: Axis, back: bool) -> _Windowed | None:
    """For each column the first that it reads and a weight for each of `reads`."""
    shared = _shared(axis, back)
    if shared is None or shared.reads.weights.shape[1] > _ROOM:
        return None
    columns, reads = shared.reads.weights.shape
    return _Windowed(mx.array(_entries(shared.reads)), reads, min(-(-len(shared.readers.firsts) // columns), reads))


class _Walked(NamedTuple):
    table: mx.array
    kept: int  # rows in registers: of x, or of the result
    gathers: bool


@_kept
def _walked(axis: Axis, back: bool) -> _Walked | None:
    """For each row where what it reads begins and ends, then weights of the rows that it reads, or that read a row."""
    shared = _shared(axis, back)
    if shared is None:
        return None
    (firsts, weights), kept = shared.reads, shared.reads.weights.shape[1]
    if gathers := kept <= shared.readers.weights.shape[1]:
        bounds, lists = (firsts, firsts + kept), weights.astype(np.float32).view(np.int32).reshape(-1)
    else:
        bounds, lists, kept = shared.spans, _entries(shared.readers), shared.readers.weights.shape[1]
    table = np.concatenate([np.stack(bounds, 1).astype(np.int32).reshape(-1), lists])
    return _Walked(mx.array(table), kept, gathers)
