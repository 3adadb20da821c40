"""Grids of GPU kernels: how many threads run, and in which threadgroups."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

# Elements that a grid may span along one axis, and blocks that CUDA allows along y and z.
_INT_MAX = 2**31 - 1
_MOST_YZ = 65535
# Blocks that a body which strides over y and z is given at most.
_BLOCKS_YZ = _MOST_YZ
FILL = 528  # threadgroups of 256 that keep the largest GPU busy
# A constant of a template that is for CUDA's compiler: so many threadgroups of up to 256 shall find registers on a
# multiprocessor. A few more a thread, and half as many would.
RESIDENT = "RESIDENT"
_MERGING = 128  # threads that fold the parts of one sum


def vector_width(dtype: mx.Dtype, channels: int, size: int) -> int:
    """Channels one thread owns: sixteen bytes of them where they divide evenly, else one.

    Metal hands arrays under eight elements over in another address space; those go one by one too.
    """
    wide = 16 // dtype.size
    return wide if channels % wide == 0 and size >= 8 else 1


def threads(x: int, y: int, z: int = 1) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid for x by y by z items and its threadgroup of 256; bodies stride over what y and z leave over."""
    if x > _INT_MAX:
        raise ValueError(f"launch: a row is too long for a GPU; got {x} elements, expected at most {_INT_MAX}")
    # CUDA rounds x up to whole threadgroups: of the widths that waste least, the widest.
    tx = min((256, 128, 64, 32), key=lambda t: -(-x // t) * t) if x > 32 else power_of_two(x)
    ty = min(256 // tx, power_of_two(y))
    return (x, min(y, _BLOCKS_YZ * ty), min(z, _BLOCKS_YZ)), (tx, ty, 1)


def image_threads(across: int, height: int, rounds: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid for bodies that work out geometry once and then go from image to image, in so many rounds.

    Geometry costs a thread as much as several images do, so it serves four rounds if the GPU stays full: eight leave it
    too few threads to hide what loads wait for.
    """
    deep = max(-(-rounds // 4), -(-FILL * 256 // (across * height)))
    return threads(across, height, min(rounds, deep))


def small_threads(across: int, height: int, rounds: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid for bodies that need many registers, in threadgroups of 64 along x, with a round of images for each."""
    (x, y, z), _ = threads(across, height, rounds)
    return (x, min(y, _BLOCKS_YZ), z), (min(64, power_of_two(across)), 1, 1)


def strip_threads(across: int, strips: int, rounds: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Like `small_threads`, for bodies that have a strip of each image: they do not stride over y."""
    if strips > _MOST_YZ:
        raise ValueError(f"launch: too many strips for a GPU; got {strips}, expected at most {_MOST_YZ}")
    (x, _, z), _ = threads(across, 1, rounds)
    return (x, strips, z), (min(64, power_of_two(across)), 1, 1)


def pointwise_threads(items: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that strides over so many items, four at a time, in whole threadgroups of 256."""
    return (min(8 * FILL, -(-items // 1024)) * 256, 1, 1), (256, 1, 1)


def sharing_threads(items: int, sharing: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that strides over items with ``sharing`` threads each, a power of two, in whole threadgroups of 256."""
    return (min(8 * FILL, -(-items * sharing // 256)) * 256, 1, 1), (256, 1, 1)


def column_threads(
    x: int, rows: int, groups: int = 1, *, register_heavy: bool = False
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that sums x columns over many rows, in groups of rows: enough threadgroups to fill a large GPU.

    They have 256 threads, or as many as a short group of rows can use. The columns of a group follow those of the one
    before. Where threads are ``register_heavy``, with sums of several columns in registers, half as many threadgroups
    fill a GPU, and a thread has some eight rows, four at least, where there are as many: of one its mean is a poor
    pivot for the others.
    """
    each = 8 if register_heavy else 1
    tx = min(256, power_of_two(x))
    ty = min(256 // tx, power_of_two(-(-rows // each)))
    across = -(-x * groups // tx)
    down = min(max(1, FILL // (2 if register_heavy else 1) // across), -(-rows // (ty * each)))
    return (x * groups, down * ty, 1), (tx, ty, 1)


def merging_threads(columns: int, parts: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A grid that folds a few parts of each column: 128 threads for one, or as many as it has parts."""
    height = min(_MERGING, power_of_two(parts))
    return (columns, height, 1), (256 // height, height, 1)


def tiles(x: int, y: int, z: int) -> tuple[int, int, int]:
    """A grid of x by y by z whole threadgroups of 256 threads."""
    if x * 256 > _INT_MAX or max(y, z) > _MOST_YZ:
        raise ValueError(
            f"launch: too many tiles for one GPU kernel; got ({x}, {y}, {z}), expected at most "
            f"({_INT_MAX // 256}, {_MOST_YZ}, {_MOST_YZ})"
        )
    return x * 256, y, z


class PixelTiles(NamedTuple):
    """Tiles of pixels, of which a threadgroup owns one, and some packs of channels.

    Fields:
        packs: Of channels, that a threadgroup owns.
        down: Rows of a tile.
        across: Its columns.
        tiles: Of an image.
        slices: Threadgroups that share a tile, each with packs of its own.
    """

    packs: int
    down: int
    across: int
    tiles: int
    slices: int


def pixel_tiles(height: int, width: int, packs: int, threads_each: int) -> PixelTiles:
    """Tiles for so many packs of channels, with a thread for each pixel and pack."""
    own = min(16, max(2, power_of_two(packs)))
    down = 4 if own > 4 else 8
    across = threads_each // own // down
    return PixelTiles(own, down, across, -(-height // down) * -(-width // across), -(-packs // own))


def whole_groups(x: int, rounds: int, threads: int) -> tuple[int, int, int]:
    """A grid of x whole threadgroups of so many threads; along y bodies stride over the rounds."""
    if x * threads > _INT_MAX:
        raise ValueError(f"launch: too many tiles for a GPU; got {x}, expected at most {_INT_MAX // threads}")
    return x * threads, min(rounds, _BLOCKS_YZ), 1


def power_of_two(n: int) -> int:
    """The least one that is not less."""
    return 1 << (n - 1).bit_length()
