"""Channels moved: `concatenate` and `slice_channels` with their gradients, `depth_to_space` and `space_to_depth`."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Node, OpInfo, call
from generic.ops.resize import IMAGES, X

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

THREE = Array((2, 3, 4, 3))  # channels


def _side_by_side(images: Sequence[np.ndarray], pad_to_multiple: int = 1) -> np.ndarray:
    """With zeros behind each, as many as are wanting."""
    behind = [(0, -image.shape[3] % pad_to_multiple) for image in images]
    filled = [np.pad(image, ((0, 0), (0, 0), (0, 0), zeros)) for image, zeros in zip(images, behind, strict=True)]
    return np.concatenate(filled, 3)


def _parts(dy: np.ndarray, channels: Sequence[int], pad_to_multiple: int = 1) -> list[np.ndarray]:
    """What lies where each image would."""
    marks = [np.full((1, 1, 1, count), i) for i, count in enumerate(channels, 1)]
    owner = _side_by_side(marks, pad_to_multiple)[0, 0, 0]
    return [dy[..., owner == i] for i in range(1, 1 + len(channels))]


def _among_zeros(dy: np.ndarray, start: int, channels: int) -> np.ndarray:
    dx = np.zeros((*dy.shape[:3], channels))
    dx[..., start : start + dy.shape[3]] = dy
    return dx


def _to_space(x: np.ndarray, r: int) -> np.ndarray:
    """Pixel by pixel."""
    n, h, w, channels = x.shape
    c = channels // (r * r)
    y = np.zeros((n, h * r, w * r, c))
    for row, col in np.ndindex(h * r, w * r):
        first = (r * (row % r) + col % r) * c
        y[:, row, col] = x[:, row // r, col // r, first : first + c]
    return y


def _to_depth(x: np.ndarray, r: int) -> np.ndarray:
    """Channel by channel."""
    n, h, w, c = x.shape
    y = np.zeros((n, h // r, w // r, r * r * c))
    for i, j, k in np.ndindex(r, r, c):
        y[..., (r * i + j) * c + k] = x[:, i::r, j::r, k]
    return y


# Wrong calls, and the records ---------------------------------------------------------------------------

WHOLE = IMAGES.astype(mx.int32)
OPS = (
    OpInfo(
        name="concatenate",
        takes_integers=True,
        launches=False,
        samples={
            "": call("concatenate", [X, THREE]),
            "by fours": call("concatenate", [X, THREE], pad_to_multiple=4),
        },
        reference=_side_by_side,
        wrong_values=(
            ("no images", lambda: mf.concatenate([])),
            ("not an image batch", lambda: mf.concatenate([IMAGES, IMAGES[0]])),
            ("images differ in more than channels", lambda: mf.concatenate([IMAGES, IMAGES[:1]])),
            ("images differ in more than channels", lambda: mf.concatenate([IMAGES, IMAGES[:, :, 1:]])),
            ("pad_to_multiple is out of range", lambda: mf.concatenate([IMAGES], pad_to_multiple=0)),
            ("an image is too large", lambda: mf.concatenate([IMAGES], pad_to_multiple=2**30)),
        ),
        wrong_types=(
            ("images is not a sequence", lambda: mf.concatenate(IMAGES)),
            ("images[0] is not an array", lambda: mf.concatenate([1])),
            ("images[1] is not an array", lambda: mf.concatenate([IMAGES, None])),
            ("images[1] and images[0] differ in dtype", lambda: mf.concatenate([IMAGES, WHOLE])),
            ("pad_to_multiple is not an int", lambda: mf.concatenate([IMAGES], pad_to_multiple=4.0)),
        ),
        nodes={
            "": Node(
                lambda *images: graph.concatenate(images, pad_to_multiple=4),
                lambda p, *images: mf.concatenate(images, pad_to_multiple=4),
                ((2, 6, 5, 4), (2, 6, 5, 3), (2, 6, 5, 1)),
            )
        },
    ),
    OpInfo(
        name="concatenate_grad",
        takes_integers=True,
        launches=False,
        samples={
            "": call("concatenate_grad", Array((2, 3, 4, 6)), (1, 3), pad_to_multiple=2),
            "without zeros": call("concatenate_grad", Array((2, 3, 4, 7)), (4, 3)),
        },
        reference=_parts,
        linear=(0,),
        wrong_values=(
            ("no images", lambda: mf.concatenate_grad(IMAGES, [])),
            ("channels[1] is out of range", lambda: mf.concatenate_grad(IMAGES, [4, 0])),
            ("dy does not belong to these channels", lambda: mf.concatenate_grad(IMAGES, [2, 1])),
            ("dy does not belong to these channels", lambda: mf.concatenate_grad(IMAGES, [2, 2], pad_to_multiple=4)),
        ),
        wrong_types=(
            ("channels is not a sequence", lambda: mf.concatenate_grad(IMAGES, 4)),
            ("channels[0] is not an int", lambda: mf.concatenate_grad(IMAGES, [4.0])),
        ),
    ),
    OpInfo(
        name="slice_channels",
        takes_integers=True,
        launches=False,
        samples={"": call("slice_channels", X, 1, 3)},
        reference=lambda x, start, stop: x[..., start:stop],
        linear=(0,),
        wrong_values=(
            ("start is out of range", lambda: mf.slice_channels(IMAGES, -1, 2)),
            ("stop is out of range", lambda: mf.slice_channels(IMAGES, 2, 2)),
            ("stop is out of range", lambda: mf.slice_channels(IMAGES, 2, 5)),
        ),
        wrong_types=(("start is not an int", lambda: mf.slice_channels(IMAGES, None, 2)),),
        nodes={"": Node(lambda x: graph.slice_channels(x, 1, 3), lambda p, x: mf.slice_channels(x, 1, 3))},
    ),
    OpInfo(
        name="slice_channels_grad",
        takes_integers=True,
        launches=False,
        samples={"": call("slice_channels_grad", X, 1, 7)},
        reference=_among_zeros,
        linear=(0,),
        wrong_values=(
            ("channels is out of range", lambda: mf.slice_channels_grad(IMAGES, 0, 3)),
            ("start is out of range", lambda: mf.slice_channels_grad(IMAGES, 2, 5)),
            ("an image is too large", lambda: mf.slice_channels_grad(IMAGES, 0, 2**30)),
        ),
        wrong_types=(("channels is not an int", lambda: mf.slice_channels_grad(IMAGES, 0, 4.0)),),
    ),
    OpInfo(
        name="depth_to_space",
        takes_integers=True,
        launches=False,
        samples={"": call("depth_to_space", Array((2, 3, 2, 8)), 2)},
        reference=_to_space,
        linear=(0,),
        wrong_values=(
            ("the channels make no squares", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 6)), 2)),
            ("block_size is too small", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 4)), 0)),
        ),
        wrong_types=(
            ("block_size is not an int", lambda: mf.depth_to_space(mx.zeros((1, 2, 2, 4)), 2.0)),
            ("x is not an array", lambda: mf.depth_to_space(3, 2)),
        ),
        nodes={"": Node(lambda x: graph.depth_to_space(x, 2), lambda p, x: mf.depth_to_space(x, 2))},
    ),
    OpInfo(
        name="space_to_depth",
        takes_integers=True,
        launches=False,
        samples={"": call("space_to_depth", Array((2, 4, 6, 3)), 2)},
        reference=_to_depth,
        linear=(0,),
        wrong_values=(
            ("squares do not part the image", lambda: mf.space_to_depth(mx.zeros((1, 2, 3, 6)), 2)),
            ("not an image batch", lambda: mf.space_to_depth(mx.zeros((2, 2, 4)), 2)),
        ),
        nodes={"": Node(lambda x: graph.space_to_depth(x, 1), lambda p, x: mf.space_to_depth(x, 1))},
    ),
)
