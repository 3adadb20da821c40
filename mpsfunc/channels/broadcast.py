"""How operands lie under a result of images, for the kernels that work element by element.

An operand is as long as the result along an axis, or 1 where every place shares an entry. Of its batch, ``per`` images
of the result in a row share an image, and behind the last one the first comes again; so `mx.vmap` repeats nobody.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import arguments, grids
from mpsfunc.core.printing import describe

Shape = tuple[int, ...]
_MOST = 2**31 - 1  # places within an image are int32 in kernels
_Pair = tuple[int, int]  # the lengths of two operands along an axis
_ONE: _Pair = (1, 1)


class Operand(NamedTuple):
    """An operand: image b of the result reads its image ``b // per % images``."""

    images: int
    per: int
    h: int
    w: int
    c: int


class Layout(NamedTuple):
    """A result and what lies under it, with axes merged where all operands treat them alike."""

    n: int
    h: int
    w: int
    c: int
    operands: tuple[Operand, ...]


@functools.lru_cache(maxsize=4096)
def layout(shape: Shape, *operands: tuple[Shape, int]) -> Layout:
    """The layout of a result of this shape (n, h, w, c) over operands, each of a shape and a ``per``.

    Example:
        >>> layout((2, 3, 4, 5), ((2, 3, 4, 5), 1), ((1, 1, 1, 5), 2))
        Layout(n=1, h=1, w=24, c=5, operands=(Operand(images=1, per=1, h=1, w=24, c=5), Operand(images=1, per=1, \
h=1, w=1, c=5)))
    """
    n, h, w, c = shape
    groups: list[tuple[int, tuple[bool, ...]]] = []  # from the innermost on: a length, and who goes along it
    apart = not all(s[0] == n or s[0] == 1 for s, _ in operands)
    for axis, length in ((3, c), (2, w), (1, h), (0, 1 if apart else n)):
        along = tuple(s[axis] == length for s, _ in operands)
        if length == 1:
            continue
        if groups and groups[-1][1] == along and groups[-1][0] * length <= _MOST:
            groups[-1] = groups[-1][0] * length, along
        else:
            groups.append((length, along))
    images: tuple[int, tuple[bool, ...]] | None = None
    if math.prod(length for length, _ in groups) > _MOST or len(groups) == 4:  # the batch stays by itself
        images = groups.pop()
    groups += [(1, (True,) * len(operands))] * (3 - len(groups))
    lengths = [g[0] for g in groups]

    def operand(i: int) -> Operand:
        along = [length if to[i] else 1 for length, to in groups]
        if apart:
            batch = operands[i][0][0], operands[i][1]
        elif images is None:
            batch = 1, 1
        else:
            batch = (images[0], 1) if images[1][i] else (1, images[0])
        return Operand(*batch, *reversed(along))

    batch = n if apart else images[0] if images else 1
    inner, middle, outer = lengths
    return Layout(batch, outer, middle, inner, tuple(operand(i) for i in range(len(operands))))


def as_images(shape: Shape) -> Shape:
    """The shape of the same elements as images (n, h, w, c): four axes stay, others go into n and c."""
    if len(shape) == 4:
        return shape
    return (math.prod(shape[:-1]), 1, 1, shape[-1]) if shape else (1, 1, 1, 1)


class Together(NamedTuple):
    """The shape of two operands' result, theirs as images', and how many images of the result share one of theirs."""

    shape: Shape
    first: Shape
    second: Shape
    batch: int
    pers: tuple[int, int]


@functools.lru_cache(maxsize=4096)
def together(op: str, shape: Shape, other: Shape) -> Together:
    """Two operands under one result, as in NumPy.

    Images stay as they are. Of others the last axis becomes the channels. Those before it become as few as it takes to
    say whether both operands go along them or one, and the first of these the batch: so it may be long. Where an image
    would still be too large, the batch takes two.

    Example:
        >>> together("add", (50, 70), (70,))
        Together(shape=(50, 70), first=(50, 1, 1, 70), second=(1, 1, 1, 70), batch=50, pers=(1, 50))
    """
    rank = max(len(shape), len(other), 1)
    pairs = list(zip(*((1,) * (rank - len(lengths)) + lengths for lengths in (shape, other)), strict=True))
    if any(a != b and a != 1 and b != 1 for a, b in pairs):
        raise ValueError(f"{op}: operands do not fit; got y.shape={other}, expected {shape} but for lengths of 1")
    whole = tuple(joint(a, b) for a, b in pairs) if shape or other else ()
    if rank != 4:
        *ahead, last = pairs
        ahead = _merged(ahead)
        if len(ahead) > 3:
            *ahead, last = _merged([*ahead, last])
        if len(ahead) > 3:
            raise ValueError(f"{op}: too many axes; got y.shape={other}, expected at most four steps from {shape}")
        pairs = [*ahead[:1], *[_ONE] * (3 - len(ahead)), *ahead[1:], last] if ahead else [_ONE] * 3 + [last]
        if len(ahead) == 2 and math.prod(joint(a, b) for a, b in (ahead[1], last)) > _MOST:
            return _one_batch(whole, ahead, last)
    batch = joint(*pairs[0])
    pers = tuple(batch if length == 1 else 1 for length in pairs[0])
    return Together(whole, tuple(a for a, _ in pairs), tuple(b for _, b in pairs), batch, (pers[0], pers[1]))


def _merged(pairs: list[_Pair]) -> list[_Pair]:
    """Neighbours as one axis where both operands go along them or only one of them does."""
    made: list[_Pair] = []
    for a, b in pairs:
        c, d = made[-1] if made else _ONE
        if made and (_ONE in ((a, b), (c, d)) or (a == b and c == d) or (a == c == 1) or (b == d == 1)):
            made[-1] = a * c, b * d
        else:
            made.append((a, b))
    return made


def _one_batch(whole: Shape, ahead: list[_Pair], last: _Pair) -> Together:
    """Two axes of large operands as the batch: an operand without the inner one shares its images."""
    outer, inner = (joint(*pair) for pair in ahead)
    made, pers = [], []
    for (a, b), channels in zip(zip(*ahead, strict=True), last, strict=True):
        made.append((a * b, 1, 1, channels))
        pers.append(outer * inner if a * b == 1 else 1 if b == inner else inner)
    return Together(whole, made[0], made[1], outer * inner, (pers[0], pers[1]))


def joint(a: int, b: int) -> int:
    """The length of an axis over operands of which one may have length 1."""
    return b if a == 1 else a


# Arguments ----------------------------------------------------------------------------------------------


def stride(op: str, name: str, value: Any) -> tuple[int, ...]:
    """A stride of MPS's: 0 where an axis is shared."""
    if type(value) is tuple and [type(step) for step in value] == [int] * 3 and {0, 1}.issuperset(value):
        return value
    rule = "three of 0 or 1, for y, x and channels"
    given = arguments.entries(value)
    steps = (None,) if given is None else tuple(map(arguments.whole, given))
    if None in steps:
        raise TypeError(f"{op}: {name} is not a stride; got {name}={describe(value)}, expected {rule}")
    if len(steps) != 3 or not set(steps) <= {0, 1}:
        raise ValueError(f"{op}: {name} is not a stride; got {name}={describe(value)}, expected {rule}")
    return tuple(step for step in steps if step is not None)


def sized(op: str, name: str, shape: Shape) -> Shape:
    """The shape of images that kernels can count through."""
    n, h, w, c = shape
    if h * w * c > _MOST or n > _MOST:
        raise ValueError(f"{op}: an image is too large; got {name}={shape}, expected n and h * w * c < 2**31")
    return shape


# Mapping ------------------------------------------------------------------------------------------------


def spread(a: mx.array, per: int, batch: int) -> mx.array:
    """Every image of an operand as often as the result has it."""
    images, *rest = a.shape
    if images * per == batch and per == 1:
        return a
    wide = mx.broadcast_to(a.reshape(1, images, 1, *rest), (batch // (images * per), images, per, *rest))
    return wide.reshape(batch, *rest)


def mapped(a: mx.array, per: int, batch: int, is_mapped: bool) -> tuple[mx.array, int]:
    """An operand of a result whose batch grows by a mapped axis in front, and its ``per``.

    Args:
        a: The operand, with that axis in front where it is mapped.
        per: What it was.
        batch: Images of the result before.
        is_mapped: Whether it is.
    """
    if not is_mapped:
        return a, per
    size, images, *rest = a.shape
    if images * per != batch:  # it came again and again, which it now does within each of the mapped
        again = batch // (images * per)
        wide = mx.broadcast_to(a.reshape(size, 1, images, *rest), (size, again, images, *rest))
        return wide.reshape(size * batch // per, *rest), per
    return a.reshape(size * images, *rest), per


def gathered(full: mx.array, shape: Shape, per: int) -> mx.array:
    """The sums over everything that shares an entry of an operand of this shape, from the shape of the result."""
    if full.shape == shape:
        return full
    if full.size == 0:
        return mx.zeros(shape, full.dtype)
    images, *rest = shape
    n, *lengths = full.shape
    again = n // (images * per)
    axes = [i + 3 for i, (mine, theirs) in enumerate(zip(rest, lengths, strict=True)) if mine != theirs]
    axes = [0] * (again > 1) + [2] * (per > 1) + axes
    apart = full.reshape(again, images, per, *lengths)
    return (apart.sum(axes, keepdims=True) if axes else apart).reshape(shape)


# GPU ----------------------------------------------------------------------------------------------------


def vector_width(dtype: mx.Dtype, made: Layout) -> int:
    """Elements along the innermost axis that one thread owns."""
    size = made.n * made.h * made.w * made.c
    return grids.vector_width(dtype, made.c, size)


_Three = tuple[int, int, int]


def grid(packs: int, images: int) -> tuple[_Three, _Three]:
    """A grid over so many packs of each of the images, of which a thread has four under way."""
    return grids.threads(min(-(-packs // 4), 8 * 256 * grids.FILL), images)


def merged(made: Layout) -> bool:
    """Whether every operand is one line beside the result's."""
    return made.h * made.w == 1


def packs(made: Layout, width: int) -> int:
    """Packs of an image."""
    return made.h * made.w * (made.c // width)


def result_shape(shapes: Sequence[Shape], batch: int) -> Shape:
    """(n, h, w, c) of the result of operands."""
    first, *others = shapes
    for other in others:
        if other == first:
            continue
        first = tuple(joint(a, b) for a, b in zip(first, other, strict=True))
    return (batch, *first[1:])
