"""Which pixels an axis of a result reads when an image is enlarged, shrunk or padded, and with what weights.

Whole numbers decide where a position lies, so that no rounding moves it; weights are float64.
"""

from __future__ import annotations

import functools
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import worded

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def _resized(a: Resized) -> str:
    """For states that are printed."""
    words = [a.method] + [a.coordinate] * (a.method != "area") + [a.edge] * (a.method == "bilinear")
    words += ["antialias"] * (a.antialias is True) + ([f"{a.factor:g} times as large"] if a.factor else [])
    return f"{a.n_in} -> {a.n_out} pixels: {', '.join(words)}"


def _padded(a: Padded) -> str:
    """For states that are printed."""
    around = f"{a.before} before, {a.after} behind, {a.mode}" if a.before or a.after else "as they are"
    return f"{a.n_in} -> {a.n_out}: {around}"  # pixels, or channels


@worded(_resized)
class Resized(NamedTuple):
    """One axis of an image that is enlarged or shrunk.

    Position ``j`` of the result lies at ``u = j * s`` ("asymmetric"), ``(j + 1/2) * s - 1/2`` ("half_pixel"),
    ``(j - (n_out - 1) / 2) * s + (n_in - 1) / 2`` ("half_pixel_symmetric") or ``j * (n_in - 1) / (n_out - 1)``
    ("align_corners") of the source, where ``s`` is ``n_in / n_out`` or, if there is a factor, 1 / factor. A nearest
    position that is "mlx" is that of `mlx.nn.Upsample`, rounding and all.

    Fields:
        n_in: Length of the source.
        n_out: Length of the result.
        method: "nearest", "bilinear", "bicubic" or "area", which has no coordinate.
        coordinate: As above.
        edge: What a bilinear position reads beyond the source: "zero" or "clamp".
        antialias: Whether what is mixed goes as far as positions of a smaller result are apart.
        factor: How much larger the result was to be; 0 where its size says it.
    """

    n_in: int
    n_out: int
    method: str
    coordinate: str
    edge: str
    antialias: bool = False
    factor: float = 0.0


@worded(_padded)
class Padded(NamedTuple):
    """One axis of an image with pixels before and behind it.

    Fields:
        n_in: Length of the source.
        before: Pixels before it.
        after: Pixels behind it.
        mode: "constant", "clamp", "mirror", "mirror_with_edge" or "circular".
    """

    n_in: int
    before: int
    after: int
    mode: str

    @property
    def n_out(self) -> int:
        """Length of the result."""
        return self.before + self.n_in + self.after


Axis = Resized | Padded


class Reads(NamedTuple):
    """What each position reads: lists one after the other, of which number i is ``[begins[i], begins[i + 1])``."""

    begins: Array
    indices: Array
    weights: Array


def picks(axis: Axis) -> bool:
    """Whether a position reads one pixel, as it is, or none."""
    return isinstance(axis, Padded) or axis.method == "nearest" or _copies(axis)


def _copies(axis: Resized) -> bool:
    """Whether each position is a pixel; PyTorch takes it so where a factor is too near 1 to tell."""
    if axis.n_in != axis.n_out:
        return False
    if axis.method == "nearest":
        return not axis.factor or axis.coordinate != "half_pixel"
    moved = axis.coordinate == "half_pixel_symmetric" or (axis.method == "bicubic" and not axis.antialias)
    return not (axis.factor and moved)


def step(axis: Resized) -> tuple[int, int]:
    """How many pixels of the source positions are apart, as a fraction; that of a factor is the nearest simple one."""
    factor, length = axis.factor, axis.n_in
    twice = axis.method == "nearest" and axis.coordinate == "asymmetric" and axis.n_out == 2 * length
    if not factor or twice:  # as in PyTorch
        return length, axis.n_out
    from fractions import Fraction  # which brings decimal, and only factors need it

    if factor >= 1:
        of = Fraction(factor).limit_denominator(_SIMPLE)
        return of.denominator, of.numerator
    of = Fraction(1 / factor).limit_denominator(_SIMPLE)
    return of.numerator, of.denominator


_SIMPLE = 2**28  # as far as products with positions stay within 63 bits


def picked(axis: Axis) -> Array:
    """For each position of an axis that `picks` what it reads; -1 where it reads nothing."""
    j, length = np.arange(axis.n_out, dtype=np.int64), axis.n_in
    if isinstance(axis, Resized):
        if _copies(axis):
            return j
        if axis.coordinate == "mlx":
            return _rounded(j, axis)
        up, down = step(axis)
        index = (2 * j + 1) * up // (2 * down) if axis.coordinate == "half_pixel" else j * up // down
        return np.minimum(index, length - 1)
    i = j - axis.before
    if axis.mode == "clamp":
        return np.clip(i, 0, length - 1)
    if axis.mode == "circular":
        return i % length
    if axis.mode == "mirror":
        i = i % max(2 * length - 2, 1)
        return np.minimum(i, 2 * length - 2 - i)
    if axis.mode == "mirror_with_edge":
        i = i % (2 * length)
        return np.minimum(i, 2 * length - 1 - i)
    return np.where((i >= 0) & (i < length), i, -1)


@functools.lru_cache(maxsize=256)
def reads(axis: Axis) -> Reads:
    """What the positions of the result read in the source."""
    if picks(axis):
        index = picked(axis)
        pixels, weights = index[:, None], np.ones((len(index), 1))
    else:
        assert isinstance(axis, Resized)
        mixed = _evenly if axis.method == "area" else _filtered if axis.antialias else _neighbours
        pixels, weights = mixed(axis)
    there = (pixels >= 0) & (pixels < axis.n_in) & (weights != 0)
    begins = np.concatenate([[0], np.cumsum(there.sum(1))])
    return Reads(begins, pixels[there], weights[there])


@functools.lru_cache(maxsize=256)
def readers(axis: Axis) -> Reads:
    """The positions of the result that read each pixel of the source: the transposed matrix."""
    begins, indices, weights = reads(axis)
    order = np.argsort(indices, kind="stable")
    positions = np.repeat(np.arange(axis.n_out, dtype=np.int64), np.diff(begins))
    ends = np.cumsum(np.bincount(indices, minlength=axis.n_in))
    return Reads(np.concatenate([[0], ends]), positions[order], weights[order])


def _rounded(j: Array, axis: Resized) -> Array:
    """MLX's nearest pixels: of a larger result by half pixels, where halves go to the even one, in float32."""
    ratio, j = np.float32(axis.n_in / axis.n_out), j.astype(np.float32)
    u = np.rint((j + np.float32(0.5)) * ratio - np.float32(0.5)) if axis.n_out > axis.n_in else j * ratio
    index: Array = np.clip(u.astype(np.int64), 0, axis.n_in - 1)
    return index


def _places(axis: Resized) -> tuple[Array, int]:
    """Where positions lie in the source, as fractions of one denominator."""
    j, length, size = np.arange(axis.n_out, dtype=np.int64), axis.n_in, axis.n_out
    if axis.coordinate == "align_corners":
        return j * (length - 1), max(size - 1, 1)
    up, down = step(axis)
    if axis.coordinate == "asymmetric":
        return j * up, down
    if axis.coordinate == "half_pixel":
        return (2 * j + 1) * up - down, 2 * down
    return (2 * j + 1 - size) * up + (length - 1) * down, 2 * down


def _neighbours(axis: Resized) -> tuple[Array, Array]:
    """The two or four pixels around each position, which may lie outside with zeros beyond the edge; their weights."""
    (over, under), last = _places(axis), axis.n_in - 1
    left = over // under
    rest = over - left * under
    if axis.method == "bilinear":
        pixels = np.stack([left, left + 1], 1)
        weights = np.stack([(under - rest) / under, rest / under], 1)
        if axis.edge == "clamp":
            outside = (left < 0) | (left >= last)  # both are the same pixel
            pixels[outside] = np.clip(left[outside], 0, last)[:, None]
            weights[outside] = (1.0, 0.0)
        return pixels, weights
    pixels = left[:, None] + np.arange(-1, 3)
    weights = _cubic(np.stack([under + rest, rest, under - rest, 2 * under - rest], 1), under, -0.75)
    for k in (0, 1):  # what lies before the first pixel is the first, each of which is listed once
        weights[:, k + 1] += np.where(pixels[:, k] < 0, weights[:, k], 0)
    for k in (3, 2):
        weights[:, k - 1] += np.where(pixels[:, k] > last, weights[:, k], 0)
    return pixels, weights


def _filtered(axis: Resized) -> tuple[Array, Array]:
    """The pixels of the source that a filter reaches from each position, and their weights, which add up to 1."""
    over, under = _places(axis)
    up, down = step(axis)
    wide = max(up / down, 1.0)
    reach = ceil((2 if axis.method == "bicubic" else 1) * wide) + 1
    count = min(2 * reach + 1, axis.n_in)
    pixels = np.clip(over // under - reach, 0, axis.n_in - count)[:, None] + np.arange(count)
    away, most = np.abs(pixels * under - over[:, None]), under * wide if wide > 1 else under
    weights = _cubic(away, most, -0.5) if axis.method == "bicubic" else np.maximum(most - away, 0) / most
    return pixels, weights / weights.sum(1, keepdims=True)


def _cubic(away: Array, unit: float, a: float) -> Array:
    """Keys' cubic, so many units away from a pixel: as products, which are exact also where it crosses 0."""
    t = away / unit
    near = (unit - away) / unit * (1 + t - (a + 2) * t * t)
    far = a * ((2 * unit - away) / unit) ** 2 * ((away - unit) / unit)
    return np.where(away <= unit, near, np.where(away < 2 * unit, far, 0))


def _evenly(axis: Resized) -> tuple[Array, Array]:
    """The pixels of windows that part the source evenly, each of the same weight."""
    j = np.arange(axis.n_out, dtype=np.int64)
    begin, end = j * axis.n_in // axis.n_out, -(-(j + 1) * axis.n_in // axis.n_out)
    pixels = begin[:, None] + np.arange((end - begin).max())
    return pixels, (pixels < end[:, None]) / (end - begin)[:, None]


class Tiles(NamedTuple):
    """What neighbours read together: ``weights`` has a column for each of a tile's positions.

    Tile t holds the positions from ``t * size - ahead`` on, of which the first and the last may not exist.
    """

    ahead: int
    begins: Array
    indices: Array
    weights: Array


def tiles(found: Reads, size: int, ahead: int) -> Tiles:
    """The lists of so many neighbours as one, in the order of what they read."""
    n_out = len(found.begins) - 1
    positions = np.repeat(np.arange(n_out, dtype=np.int64), np.diff(found.begins)) + ahead
    count = -(-(n_out + ahead) // size)
    width = int(found.indices.max(initial=0)) + 1
    keys, entries = np.unique(positions // size * width + found.indices, return_inverse=True)
    weights = np.zeros((len(keys), size))
    weights[entries.reshape(-1), positions % size] = found.weights
    begins = np.searchsorted(keys // width, np.arange(count + 1))
    return Tiles(ahead, begins, keys % width, weights)


def best_tiles(found: Reads, size: int) -> Tiles:
    """`tiles` whose start makes them read as little as possible."""
    return min((tiles(found, size, ahead) for ahead in range(size)), key=lambda t: len(t.indices))


class Spans(NamedTuple):
    """Where what each position reads begins and ends; neither goes back from a position to the next."""

    begins: Array
    ends: Array

    @property
    def width(self) -> int:
        """That of the widest."""
        return int((self.ends - self.begins).max())


def spans(found: Reads) -> Spans:
    """The spans of lists, of which none is empty."""
    starts = found.begins[:-1]
    begins, ends = np.minimum.reduceat(found.indices, starts), np.maximum.reduceat(found.indices, starts) + 1
    return Spans(np.minimum.accumulate(begins[::-1])[::-1], np.maximum.accumulate(ends))


class Windows(NamedTuple):
    """What each position reads as so many pixels in a row: the first of them, and a weight for each, 0 too."""

    firsts: Array
    weights: Array


def windows(found: Reads, of: Spans, length: int) -> Windows:
    """The lists as windows of one width, within a source of that length."""
    lists = np.repeat(np.arange(len(of.begins)), np.diff(found.begins))
    firsts = np.minimum(of.begins, length - of.width)
    weights = np.zeros((len(firsts), of.width))
    weights[lists, found.indices - firsts[lists]] = found.weights
    return Windows(firsts, weights)
