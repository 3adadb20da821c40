"""Nodes for parts of images; outside of graphs, slice the arrays."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import pair
from mpsfunc.core.printing import describe

IntOrPair = int | Sequence[int]
Part = tuple[int, int]  # of an axis: the first entry, and one past the last


def crop(x: mx.array, out_size: IntOrPair, offset: IntOrPair = 0) -> mx.array:
    """A rectangle of images: ``out_size`` pixels (y, x) from the pixel ``offset`` (y, x) on, by default the first."""
    return _cut(x, *crop_parts(x, out_size, offset))


def slice_rows(x: mx.array, start: int, stop: int) -> mx.array:
    """The rows of images from ``start`` up to but not including ``stop``."""
    return _cut(x, *row_parts(x, start, stop))


def slice_columns(x: mx.array, start: int, stop: int) -> mx.array:
    """The columns of images from ``start`` up to but not including ``stop``."""
    return _cut(x, *column_parts(x, start, stop))


def crop_parts(x: mx.array, out_size: IntOrPair, offset: IntOrPair) -> tuple[Part, Part]:
    """The rows and columns of a rectangle."""
    _, h, w, _ = _shape("crop", x)
    sizes, firsts = pair("crop", "out_size", out_size, least=1), pair("crop", "offset", offset, least=0)
    for size, first, length in zip(sizes, firsts, (h, w), strict=True):
        if first + size > length:
            raise ValueError(
                f"crop: the rectangle reaches outside the image; got out_size={describe(out_size)} at "
                f"offset={describe(offset)}, expected a part of {(h, w)}"
            )
    top, left = firsts
    return (top, top + sizes[0]), (left, left + sizes[1])


def row_parts(x: mx.array, start: int, stop: int) -> tuple[Part, Part]:
    """Some rows and all columns."""
    _, h, w, _ = _shape("slice_rows", x)
    return _part("slice_rows", start, stop, h), (0, w)


def column_parts(x: mx.array, start: int, stop: int) -> tuple[Part, Part]:
    """All rows and some columns."""
    _, h, w, _ = _shape("slice_columns", x)
    return (0, h), _part("slice_columns", start, stop, w)


def among_zeros(dy: mx.array, x: mx.array, rows: Part, cols: Part) -> mx.array:
    """The gradient of images of which a part was taken."""
    _, h, w, _ = x.shape
    return mf.pad(dy, (rows[0], cols[0]), (h - rows[1], w - cols[1]))


def _shape(op: str, x: mx.array) -> tuple[int, ...]:
    checks.moved_image(op, "x", x, stream=mx.default_stream(mx.default_device()))
    return tuple(x.shape)


def _part(op: str, start: int, stop: int, length: int) -> Part:
    first = checks.whole(op, "start", start, 0, length - 1)
    return first, checks.whole(op, "stop", stop, first + 1, length)


def _cut(x: mx.array, rows: Part, cols: Part) -> mx.array:
    return launch.cut(x, (slice(None), slice(*rows), slice(*cols)))
