"""Grids of affine maps: `affine_grid` and `affine_grid_grad`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, OpInfo, call
from support import numbers

import mpsfunc as mf

THETA = Array((2, 2, 3))


def _middles(size: tuple[int, int], align_corners: bool) -> np.ndarray:
    """(x, y, 1) of each pixel."""
    along = [np.linspace(-1, 1, n) if align_corners and n > 1 else (np.arange(n) + 0.5) / n * 2 - 1 for n in size]
    y, x = np.meshgrid(*along, indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1)


def _places(theta: np.ndarray, size: tuple[int, int], align_corners: bool = False) -> np.ndarray:
    made: np.ndarray = np.einsum("nab,yxb->nyxa", theta, _middles(size, align_corners))
    return made


def _maps(dy: np.ndarray, align_corners: bool = False) -> np.ndarray:
    y, x = dy.shape[1:3]
    made: np.ndarray = np.einsum("nyxa,yxb->nab", dy, _middles((y, x), align_corners))
    return made


MAPS, PLACES = numbers((2, 2, 3)), numbers((2, 3, 4, 2))
OPS = (
    OpInfo(
        name="affine_grid",
        launches=False,
        samples={
            "": call("affine_grid", THETA, (3, 4)),
            "of aligned corners": call("affine_grid", THETA, (1, 5), align_corners=True),
        },
        reference=_places,
        slack=2,
        linear=(0,),
        wrong_values=(
            ("not affine maps", lambda: mf.affine_grid(MAPS[:, :1], 3)),
            ("out_size is too small", lambda: mf.affine_grid(MAPS, (0, 3))),
            ("an axis of the result is too long", lambda: mf.affine_grid(MAPS, (1, 2**24 + 1))),
            ("an image is too large", lambda: mf.affine_grid(MAPS, 2**15)),
        ),
        wrong_types=(
            ("theta is not an array", lambda: mf.affine_grid([[1, 0, 0], [0, 1, 0]], 3)),
            ("theta has no floating dtype", lambda: mf.affine_grid(MAPS.astype(mx.int32), 3)),
            ("align_corners is not a bool", lambda: mf.affine_grid(MAPS, 3, align_corners=None)),
        ),
        no_node="MPS has none",
    ),
    OpInfo(
        name="affine_grid_grad",
        launches=False,
        samples={
            "": call("affine_grid_grad", Array((2, 3, 4, 2))),
            "of aligned corners": call("affine_grid_grad", Array((2, 1, 5, 2)), align_corners=True),
        },
        reference=_maps,
        slack=4,
        linear=(0,),
        wrong_values=(("not a gradient of a grid", lambda: mf.affine_grid_grad(numbers((2, 3, 4, 3)))),),
        wrong_types=(("align_corners is not a bool", lambda: mf.affine_grid_grad(PLACES, align_corners=0)),),
    ),
)
