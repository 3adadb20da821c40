"""Which pixels an axis of a result reads when an image is enlarged, shrunk or padded, and with what weights.

Whole numbers decide where a position lies, so that no rounding moves it; weights are float64.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from mpsfunc.core.numpy_later import np

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class Resized(NamedTuple):
    """One axis of an image that is enlarged or shrunk.

    Position ``j`` of the result lies at ``u = j * n_in / n_out`` ("asymmetric"), ``(j + 1/2) * n_in / n_out - 1/2``
    ("half_pixel") or ``j * (n_in - 1) / (n_out - 1)`` ("align_corners") of the source.

    Fields:
        n_in: Length of the source.
        n_out: Length of the result.
        method: "nearest" or "bilinear".
        coordinate: As above.
        edge: What a bilinear position reads beyond the source: "zero" or "clamp".
    """

    n_in: int
    n_out: int
    method: str
    coordinate: str
    edge: str


class Padded(NamedTuple):
    """One axis of an image with pixels before and behind it.

    Fields:
        n_in: Length of the source.
        before: Pixels before it.
        after: Pixels behind it.
        mode: "constant", "clamp", "mirror" or "mirror_with_edge".
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
    return isinstance(axis, Padded) or axis.method == "nearest" or axis.n_in == axis.n_out


def picked(axis: Axis) -> Array:
    """For each position of an axis that `picks` what it reads; -1 where it reads nothing."""
    j, length = np.arange(axis.n_out, dtype=np.int64), axis.n_in
    if isinstance(axis, Resized):
        if length == axis.n_out:
            return j
        if axis.coordinate == "half_pixel":
            return (2 * j + 1) * length // (2 * axis.n_out)
        return j * length // axis.n_out
    i = j - axis.before
    if axis.mode == "clamp":
        return np.clip(i, 0, length - 1)
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
        pairs, weights = index[:, None], np.ones((len(index), 1))
    else:
        assert isinstance(axis, Resized)
        pairs, weights = _neighbours(axis)
    there = (pairs >= 0) & (pairs < axis.n_in) & (weights != 0)
    begins = np.concatenate([[0], np.cumsum(there.sum(1))])
    return Reads(begins, pairs[there], weights[there])


@functools.lru_cache(maxsize=256)
def readers(axis: Axis) -> Reads:
    """The positions of the result that read each pixel of the source: the transposed matrix."""
    begins, indices, weights = reads(axis)
    order = np.argsort(indices, kind="stable")
    positions = np.repeat(np.arange(axis.n_out, dtype=np.int64), np.diff(begins))
    ends = np.cumsum(np.bincount(indices, minlength=axis.n_in))
    return Reads(np.concatenate([[0], ends]), positions[order], weights[order])


def _neighbours(axis: Resized) -> tuple[Array, Array]:
    """Both pixels beside each bilinear position, which may lie outside, and their weights."""
    j, length, size = np.arange(axis.n_out, dtype=np.int64), axis.n_in, axis.n_out
    if axis.coordinate == "align_corners":
        over, under = j * (length - 1), max(size - 1, 1)
    elif axis.coordinate == "half_pixel":
        over, under = (2 * j + 1) * length - size, 2 * size
    else:
        over, under = j * length, size
    left = over // under
    rest = over - left * under
    pairs = np.stack([left, left + 1], 1)
    weights = np.stack([(under - rest) / under, rest / under], 1)
    if axis.edge == "clamp":
        outside = (left < 0) | (left >= length - 1)  # both are the same pixel
        pairs[outside] = np.clip(left[outside], 0, length - 1)[:, None]
        weights[outside] = (1.0, 0.0)
    return pairs, weights


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
    """`tiles` that begin where the least is read."""
    return min((tiles(found, size, ahead) for ahead in range(size)), key=lambda t: len(t.indices))
