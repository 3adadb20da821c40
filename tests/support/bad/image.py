"""The part of generic/test_bad_input.py that moves and resamples images: calls that are wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from support import numbers

import mpsfunc as mf

X = numbers((2, 6, 5, 4))
WHOLE = X.astype(mx.int32)
UP, MIXED = mf.upsample_nearest_state(X.shape, 2), mf.upsample_bilinear_state(X.shape, 2)
SMALL, BLENDED = mf.resize_nearest_state(X.shape, 3), mf.resize_bilinear_state(X.shape, 3)
PADDED = mf.pad_state(X.shape, 1, 2, "mirror")
LARGE = mx.ones((2, 12, 10, 4))


def _forged(**fields: Any) -> mf.ResampleState:
    """A state whose rows say something else."""
    return MIXED._replace(rows=MIXED.rows._replace(**fields))


def _repadded(**fields: Any) -> mf.PadState:
    return PADDED._replace(rows=PADDED.rows._replace(**fields))


PIXEL = mx.ones((1, 1, 1, 1))
IMAGES: dict[str, Callable[[Any], Any]] = {
    "upsample_nearest_grad": lambda dy: mf.upsample_nearest_grad(dy, UP),
    "upsample_bilinear": lambda x: mf.upsample_bilinear(x, 2),
    "upsample_bilinear_grad": lambda dy: mf.upsample_bilinear_grad(dy, MIXED),
    "resize_nearest_grad": lambda dy: mf.resize_nearest_grad(dy, SMALL),
    "resize_bilinear": lambda x: mf.resize_bilinear(x, 2),
    "resize_bilinear_grad": lambda dy: mf.resize_bilinear_grad(dy, BLENDED),
    "pad_grad": lambda dy: mf.pad_grad(dy, PADDED),
    "spatial_mean": lambda x: mf.spatial_mean(x),
}
GRADIENTS = {name for name in IMAGES if name.endswith("_grad")}
WRONG_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("upsample_nearest: scale is too small", lambda: mf.upsample_nearest(X, 0)),
    ("upsample_nearest: scale is not a pair", lambda: mf.upsample_nearest(X, (1, 2, 3))),
    ("upsample_nearest: an image is too large", lambda: mf.upsample_nearest(X, 2**14)),
    ("upsample_nearest_state: scale is too small", lambda: mf.upsample_nearest_state(X.shape, (1, -1))),
    ("upsample_nearest_state: not an image batch", lambda: mf.upsample_nearest_state((6, 5, 4), 2)),
    ("upsample_nearest: not an image batch", lambda: mf.upsample_nearest(X[0], 2)),
    ("upsample_bilinear: unknown edge_mode", lambda: mf.upsample_bilinear(X, 2, edge_mode="mirror")),
    ("upsample_bilinear: unknown coordinate", lambda: mf.upsample_bilinear(X, 2, coordinate="align_corners")),
    (
        "upsample_bilinear: align_corners has a coordinate of its own",
        lambda: mf.upsample_bilinear(X, 2, align_corners=True, coordinate="half_pixel"),
    ),
    ("upsample_bilinear_state: unknown edge_mode", lambda: mf.upsample_bilinear_state(X.shape, 2, edge_mode="")),
    ("upsample_bilinear_state: an image is too large", lambda: mf.upsample_bilinear_state(X.shape, 2**40)),
    ("upsample_bilinear_grad: a state of another operation", lambda: mf.upsample_bilinear_grad(LARGE, UP)),
    ("upsample_bilinear_grad: state.rows.n_out is out of range", lambda: _grad(_forged(n_out=-1))),
    ("upsample_bilinear_grad: state.rows.n_in is out of range", lambda: _grad(_forged(n_in=0))),
    ("upsample_bilinear_grad: an image is too large", lambda: _grad(_forged(n_in=2**31 - 1))),
    ("upsample_bilinear_grad: unknown state.rows.method", lambda: _grad(_forged(method="cubic"))),
    ("upsample_bilinear_grad: unknown state.rows.coordinate", lambda: _grad(_forged(coordinate="?"))),
    ("upsample_bilinear_grad: unknown state.rows.edge", lambda: _grad(_forged(edge="?"))),
    ("upsample_bilinear_grad: state.channels is out of range", lambda: _grad(MIXED._replace(channels=0))),
    ("upsample_nearest_grad: dy does not belong to this state", lambda: mf.upsample_nearest_grad(LARGE[:, 1:], UP)),
    ("resize_nearest: out_size is too small", lambda: mf.resize_nearest(X, (0, 3))),
    ("resize_nearest: unknown coordinate", lambda: mf.resize_nearest(X, 3, coordinate="floor")),
    ("resize_nearest_state: out_size is too small", lambda: mf.resize_nearest_state(X.shape, -1)),
    ("resize_bilinear: an image is too large", lambda: mf.resize_bilinear(X, 2**15)),
    ("resize_bilinear_state: unknown coordinate", lambda: mf.resize_bilinear_state(X.shape, 3, coordinate="")),
    ("resize_nearest: an axis is too long", lambda: mf.resize_nearest(PIXEL, (1, 2**24 + 1))),
    ("resize_bilinear_state: an axis is too long", lambda: mf.resize_bilinear_state((1, 2**24 + 1, 1, 1), 1)),
    ("upsample_bilinear_grad: an axis is too long", lambda: _grad(_forged(n_in=2**25))),
    ("pad: an axis is too long", lambda: mf.pad(PIXEL, (2**24, 0), 0)),
    ("pad_grad: an axis is too long", lambda: mf.pad_grad(LARGE, _repadded(after=2**25))),
    ("pad: before is out of range", lambda: mf.pad(X, -1, 0)),
    ("pad: after[2] is out of range", lambda: mf.pad(X, 0, (0, 0, -1))),
    ("pad: before has another number of sizes", lambda: mf.pad(X, (1,), 0)),
    ("pad: unknown mode", lambda: mf.pad(X, 1, 1, "reflect")),
    ("pad: value goes with a constant", lambda: mf.pad(X, 1, 1, "zero", 1.0)),
    ("pad: value goes with a constant", lambda: mf.pad(X, 1, 1, "clamp", float("nan"))),
    ("pad: an image is too large", lambda: mf.pad(X, 2**15, 0)),
    ("pad_state: an image is too large", lambda: mf.pad_state(X.shape, (0, 2**30), 0)),
    ("pad_state: not an image batch", lambda: mf.pad_state((6, 5, 4), 0, 0)),
    ("pad_grad: state.rows.before is out of range", lambda: mf.pad_grad(LARGE, _repadded(before=-1))),
    ("pad_grad: state.rows.n_in is out of range", lambda: mf.pad_grad(LARGE, _repadded(n_in=0))),
    ("pad_grad: unknown state.rows.mode", lambda: mf.pad_grad(LARGE, _repadded(mode="?"))),
    ("pad_grad: an image is too large", lambda: mf.pad_grad(LARGE, _repadded(after=2**30))),
    ("concatenate: no images", lambda: mf.concatenate([])),
    ("concatenate: not an image batch", lambda: mf.concatenate([X, X[0]])),
    ("concatenate: images differ in more than channels", lambda: mf.concatenate([X, X[:1]])),
    ("concatenate: images differ in more than channels", lambda: mf.concatenate([X, X[:, :, 1:]])),
    ("concatenate: pad_to_multiple is out of range", lambda: mf.concatenate([X], pad_to_multiple=0)),
    ("concatenate: an image is too large", lambda: mf.concatenate([X], pad_to_multiple=2**30)),
    ("concatenate_grad: no images", lambda: mf.concatenate_grad(X, [])),
    ("concatenate_grad: channels[1] is out of range", lambda: mf.concatenate_grad(X, [4, 0])),
    ("concatenate_grad: dy does not belong to these channels", lambda: mf.concatenate_grad(X, [2, 1])),
    (
        "concatenate_grad: dy does not belong to these channels",
        lambda: mf.concatenate_grad(X, [2, 2], pad_to_multiple=4),
    ),
    ("slice_channels: start is out of range", lambda: mf.slice_channels(X, -1, 2)),
    ("slice_channels: stop is out of range", lambda: mf.slice_channels(X, 2, 2)),
    ("slice_channels: stop is out of range", lambda: mf.slice_channels(X, 2, 5)),
    ("slice_channels_grad: channels is out of range", lambda: mf.slice_channels_grad(X, 0, 3)),
    ("slice_channels_grad: start is out of range", lambda: mf.slice_channels_grad(X, 2, 5)),
    ("slice_channels_grad: an image is too large", lambda: mf.slice_channels_grad(X, 0, 2**30)),
    ("spatial_mean_grad: not an image batch", lambda: mf.spatial_mean_grad(X, (2, 6, 5))),
    ("spatial_mean_grad: an image has no elements", lambda: mf.spatial_mean_grad(X, (2, 0, 5, 4))),
    ("spatial_mean_grad: dy does not belong to images of this shape", lambda: mf.spatial_mean_grad(X, X.shape)),
]
WRONG_TYPES: list[tuple[str, Callable[[], Any]]] = [
    ("upsample_nearest: x is not an array", lambda: mf.upsample_nearest([1.0], 2)),
    ("upsample_nearest: x has no dtype of real numbers", lambda: mf.upsample_nearest(X.astype(mx.complex64), 2)),
    ("upsample_nearest: scale is not an int", lambda: mf.upsample_nearest(X, 2.0)),
    ("upsample_nearest: scale is not an int", lambda: mf.upsample_nearest(X, True)),
    ("upsample_nearest_grad: dy has no floating dtype", lambda: mf.upsample_nearest_grad(LARGE.astype(mx.int32), UP)),
    ("upsample_bilinear: x has no floating dtype", lambda: mf.upsample_bilinear(WHOLE, 2)),
    ("upsample_bilinear: align_corners is not a bool", lambda: mf.upsample_bilinear(X, 2, align_corners=1)),
    ("upsample_bilinear: edge_mode is not a name", lambda: mf.upsample_bilinear(X, 2, edge_mode=None)),
    ("upsample_bilinear: coordinate is not a name", lambda: mf.upsample_bilinear(X, 2, coordinate=0)),
    ("upsample_bilinear_grad: the state holds no axis", lambda: _grad(MIXED._replace(rows=(6, 12)))),
    ("upsample_bilinear_grad: the state holds no axis", lambda: _grad(MIXED._replace(cols=PADDED.cols))),
    ("upsample_bilinear_grad: state.rows.n_out is not an int", lambda: _grad(_forged(n_out=12.0))),
    ("upsample_bilinear_grad: state.rows.edge is not a name", lambda: _grad(_forged(edge=["zero"]))),
    ("resize_nearest: out_size is not an int", lambda: mf.resize_nearest(X, (3, None))),
    ("resize_nearest: x has no dtype of real numbers", lambda: mf.resize_nearest(X > 0, 3)),
    ("resize_bilinear: out_size is not an int", lambda: mf.resize_bilinear(X, "3")),
    ("pad: x is not an array", lambda: mf.pad(None, 1, 1)),
    ("pad: before is not an int", lambda: mf.pad(X, 1.0, 1)),
    ("pad: after[0] is not an int", lambda: mf.pad(X, 1, (True, 1))),
    ("pad: mode is not a name", lambda: mf.pad(X, 1, 1, 2)),
    ("pad: value is not a number", lambda: mf.pad(X, 1, 1, value="0")),
    ("pad: value is not a number", lambda: mf.pad(X, 1, 1, value=mx.array(1.0))),
    ("pad: the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=0.5)),
    ("pad: the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=2**31)),
    ("pad: the dtype does not hold value", lambda: mf.pad(WHOLE.astype(mx.uint8), 1, 1, value=-1)),
    ("pad: the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=float("nan"))),
    ("pad: the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=float("inf"))),
    ("pad_grad: the state holds no axis", lambda: mf.pad_grad(LARGE, PADDED._replace(channels=3))),
    ("concatenate: images is not a sequence", lambda: mf.concatenate(X)),
    ("concatenate: images[0] is not an array", lambda: mf.concatenate([1])),
    ("concatenate: images[1] is not an array", lambda: mf.concatenate([X, None])),
    ("concatenate: images[1] and images[0] differ in dtype", lambda: mf.concatenate([X, WHOLE])),
    ("concatenate: pad_to_multiple is not an int", lambda: mf.concatenate([X], pad_to_multiple=4.0)),
    ("concatenate_grad: channels is not a sequence", lambda: mf.concatenate_grad(X, 4)),
    ("concatenate_grad: channels[0] is not an int", lambda: mf.concatenate_grad(X, [4.0])),
    ("slice_channels: start is not an int", lambda: mf.slice_channels(X, None, 2)),
    ("slice_channels_grad: channels is not an int", lambda: mf.slice_channels_grad(X, 0, 4.0)),
    ("spatial_mean_grad: shape is not a shape", lambda: mf.spatial_mean_grad(X, 4)),
]
OF_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "upsample_nearest_grad": ("ResampleState", lambda state: mf.upsample_nearest_grad(LARGE, state)),
    "upsample_bilinear_grad": ("ResampleState", lambda state: mf.upsample_bilinear_grad(LARGE, state)),
    "resize_nearest_grad": ("ResampleState", lambda state: mf.resize_nearest_grad(LARGE, state)),
    "resize_bilinear_grad": ("ResampleState", lambda state: mf.resize_bilinear_grad(LARGE, state)),
    "pad_grad": ("PadState", lambda state: mf.pad_grad(LARGE, state)),
}


def _grad(state: mf.ResampleState) -> mx.array:
    return mf.upsample_bilinear_grad(LARGE, state)
