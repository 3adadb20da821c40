"""Deformable convolution as a definition, in NumPy float64: hats of all rows and columns around each tap's place.

A pixel that is as far from a place as d has the weight ``max(0, 1 - |d|)`` along an axis. Products with matrices of
such weights, of which most are 0, are samples; sums over all are their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpsfunc.windows.axis import Axis

Array = np.ndarray[Any, Any]


def _hats(places: Array, length: int) -> tuple[Array, Array]:
    """The weight of each pixel of an axis, and its slope, which at a kink is that to the right."""
    distance = np.arange(length) - places[..., None]
    return np.maximum(0, 1 - abs(distance)), ((0 < distance) & (distance <= 1)) * 1.0 - (
        (-1 < distance) & (distance <= 0)
    )


class Tables(NamedTuple):
    """Of each tap's place (n, oh, ow, groups, taps): the weights of rows and columns, their slopes, and the mask."""

    rows: Array
    cols: Array
    steep: Array
    sloping: Array
    mask: Array


def tables(offsets: Array, mask: Array | None, rows: Axis, cols: Axis, groups: int) -> Tables:
    """Those of offsets (n, oh, ow, groups * taps * 2), of which two are y and x."""
    shape = (*offsets.shape[:3], groups, rows.size, cols.size)
    by = offsets.reshape(*shape, 2)
    down, across = (
        (np.arange(axis.n_out) * axis.stride - axis.pad)[:, None] + np.arange(axis.size) * axis.dilation
        for axis in (rows, cols)
    )
    v = (by[..., 0] + down[:, None, None, :, None]).reshape(*shape[:4], -1)
    u = (by[..., 1] + across[:, None, None, :]).reshape(*shape[:4], -1)
    masks = np.ones(v.shape) if mask is None else mask.reshape(v.shape)
    (of_rows, steep), (of_cols, sloping) = _hats(v, rows.n_in), _hats(u, cols.n_in)
    return Tables(of_rows, of_cols, steep, sloping, masks)


def _samples(x: Array, rows: Array, cols: Array) -> Array:
    """Without the mask: (n, oh, ow, groups, taps, channels of a group)."""
    apart = x.reshape(*x.shape[:3], rows.shape[3], -1)
    return np.einsum("nyxgkh,nyxgkw,nhwgc->nyxgkc", rows, cols, apart, optimize=True)


def _apart(of_taps: Array, t: Tables) -> Array:
    """Columns as (n, oh, ow, groups, taps, channels of a group)."""
    groups, taps = t.mask.shape[3:]
    return of_taps.reshape(*of_taps.shape[:3], taps, groups, -1).swapaxes(3, 4)


def columns(x: Array, t: Tables) -> Array:
    """The samples of all taps: (n, oh, ow, taps, c)."""
    made = (_samples(x, t.rows, t.cols) * t.mask[..., None]).swapaxes(3, 4)
    return made.reshape(*made.shape[:4], x.shape[3])


def spread(dcolumns: Array, t: Tables) -> Array:
    """What samples give to the pixels that they read."""
    pulled = _apart(dcolumns, t) * t.mask[..., None]
    dx = np.einsum("nyxgkh,nyxgkw,nyxgkc->nhwgc", t.rows, t.cols, pulled, optimize=True)
    return dx.reshape(*dx.shape[:3], -1)


def slopes(dcolumns: Array, x: Array, t: Tables) -> Array:
    """By y, x and the mask of each tap: (n, oh, ow, groups, taps, 3)."""
    pulled, masked = _apart(dcolumns, t), t.mask[..., None]
    by_y, by_x = _samples(x, t.steep, t.cols) * masked, _samples(x, t.rows, t.sloping) * masked
    return np.stack([(by * pulled).sum(-1) for by in (by_y, by_x, _samples(x, t.rows, t.cols))], axis=-1)


def _weights(w: Array, groups: int) -> Array:
    """(o, taps, c), with zeros where groups do not mix."""
    out, kh, kw, depth = w.shape
    whole = np.zeros((groups, out // groups, kh * kw, groups, depth))
    for group in range(groups):
        whole[group, ..., group, :] = w.reshape(groups, out // groups, kh * kw, depth)[group]
    return whole.reshape(out, kh * kw, groups * depth)


def deform_conv(x: Array, w: Array, b: Any, t: Tables, groups: int) -> Array:
    """Sums over taps and channels."""
    made: Array = np.einsum("nyxkc,okc->nyxo", columns(x, t), _weights(w, groups), optimize=True) + b
    return made


def _pulled(dy: Array, w: Array, groups: int) -> Array:
    """The gradient of the columns."""
    made: Array = np.einsum("nyxo,okc->nyxkc", dy, _weights(w, groups), optimize=True)
    return made


def grad_input(dy: Array, w: Array, t: Tables, groups: int) -> Array:
    """By the images."""
    return spread(_pulled(dy, w, groups), t)


def grad_offsets(dy: Array, x: Array, w: Array, t: Tables, groups: int) -> Array:
    """By y and x of each tap."""
    return slopes(_pulled(dy, w, groups), x, t)[..., :2].reshape(*dy.shape[:3], -1)


def grad_mask(dy: Array, x: Array, w: Array, t: Tables, groups: int) -> Array:
    """By the mask of each tap."""
    return slopes(_pulled(dy, w, groups), x, t)[..., 2].reshape(*dy.shape[:3], -1)


def grad_weights(dy: Array, x: Array, w_shape: tuple[int, ...], t: Tables, groups: int) -> Array:
    """By the weights."""
    out, _, _, depth = w_shape
    seen = columns(x, t)
    apart = seen.reshape(*seen.shape[:4], groups, depth)
    dy = dy.reshape(*dy.shape[:3], groups, out // groups)
    made = np.einsum("nyxgo,nyxkgc->gokc", dy, apart, optimize=True)
    return made.reshape(w_shape)
