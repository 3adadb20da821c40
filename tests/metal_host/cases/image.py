"""The cases of `cases` that pick and mix the rows and columns of images."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import image as oracle

import mpsfunc as mf
from metal_host.case import Case, named

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
CENTRED = {"coordinate": "half_pixel", "edge_mode": "clamp"}
Shape = tuple[int, ...]
Pair = tuple[int, int]


def _integers(shape: Shape, dtype: mx.Dtype) -> mx.array:
    return mx.random.randint(0, 100, shape, key=mx.random.key(1)).astype(dtype)


def _gathered(shape: Shape, dtype: mx.Dtype, scale: Pair, crowded: bool = False) -> Case:
    def check() -> None:
        x = numbers(shape, dtype) if mx.issubdtype(dtype, mx.floating) else _integers(shape, dtype)
        y = np.array(mf.upsample_nearest(x, scale).astype(F32))
        right = np.array(x.astype(F32)).repeat(scale[0], 1).repeat(scale[1], 2)
        np.testing.assert_array_equal(y, right)

    return Case(named("gather_pixels", shape, dtype, scale=scale), ("gather_pixels",), check, crowded)


def _padded(shape: Shape, dtype: mx.Dtype, mode: str, crowded: bool = False) -> Case:
    """Around rows and columns, and back."""
    before, after, value = (1, 5), (2, 0), 3 if mode == "constant" else 0
    matrices = [oracle.padded(shape[1 + i], before[i], after[i], mode) for i in (0, 1)]

    def check() -> None:
        x = numbers(shape, dtype)
        y, state = mf.pad_fwd(x, before, after, mode, value)
        nothing = oracle.along(np.ones(shape), *matrices) == 0
        np.testing.assert_array_equal(exact(y), oracle.along(exact(x), *matrices) + value * nothing)
        dy = numbers(tuple(y.shape), dtype, 1)
        back = [oracle.along(v, *(m.T for m in matrices)) for v in (exact(dy), abs(exact(dy)))]
        close(mf.pad_grad(dy, state), *back)

    return Case(named("pad", shape, dtype, mode=mode), ("gather_pixels", "resample"), check, crowded)


def _mixed(shape: Shape, dtype: mx.Dtype, out_size: Pair, crowded: bool = False, **how: Any) -> Case:
    """A bilinear image and its gradient."""
    coordinate = "align_corners" if how.get("align_corners") else how.get("coordinate", "asymmetric")
    edge = how.get("edge_mode", "zero")
    matrices = [oracle.bilinear(shape[1 + i], out_size[i], coordinate, edge) for i in (0, 1)]

    def check() -> None:
        x = numbers(shape, dtype)
        y, state = mf.resize_bilinear_fwd(x, out_size, **how)
        close(y, *(oracle.along(v, *matrices) for v in (exact(x), abs(exact(x)))), slack=2)
        dy = numbers(tuple(y.shape), dtype, 1)
        back = [oracle.along(v, *(m.T for m in matrices)) for v in (exact(dy), abs(exact(dy)))]
        close(mf.resize_bilinear_grad(dy, state), *back, slack=2)

    return Case(named("resample", shape, dtype, to=out_size, **how), ("resample",), check, crowded)


def _infinite() -> Case:
    """Infinity reaches what it has weight in, and spoils no neighbour of that in a tile."""
    shape, matrix = (1, 4, 4, 4), oracle.bilinear(4, 8)

    def check() -> None:
        x = np.ones(shape)
        x[0, 2, 1] = np.inf
        y = exact(mf.upsample_bilinear(mx.array(x, F32), 2))
        reached = oracle.along(np.isinf(x), matrix, matrix) > 0
        np.testing.assert_array_equal(np.isinf(y), reached)
        close(mx.array(y[~reached]), oracle.along(np.ones(shape), matrix, matrix)[~reached])

    return Case("resample of infinity", ("resample",), check)


def images() -> list[Case]:
    return [
        _gathered((2, 3, 4, 5), F32, (2, 3)),
        _gathered((5, 3, 2, 8), F32, (2, 2)),
        _gathered((3, 2, 3, 16), F16, (1, 2)),
        _gathered((2, 2, 3, 8), BF16, (3, 1)),
        _gathered((1, 1, 2, 1), F32, (1, 3)),  # few elements in each array
        _gathered((2, 2, 3, 16), mx.uint8, (2, 2)),
        _gathered((2, 2, 3, 3), mx.int16, (2, 2)),
        _gathered((2, 2, 3, 4), mx.int32, (2, 2)),
        _gathered((2, 2, 3, 4), mx.int64, (2, 2)),
        _gathered((33, 9, 9, 4), F32, (2, 2), crowded=True),
        _padded((2, 3, 4, 8), F32, "constant"),
        _padded((3, 3, 2, 3), F32, "mirror"),
        _padded((2, 3, 4, 16), F16, "clamp"),
        _padded((2, 2, 5, 8), BF16, "mirror_with_edge"),
        _mixed((3, 3, 4, 8), F32, (6, 8)),
        _mixed((2, 3, 4, 8), F32, (6, 8), **CENTRED),
        _mixed((2, 3, 4, 5), F32, (9, 7), align_corners=True),
        _mixed((2, 7, 9, 4), F32, (3, 4), coordinate="half_pixel"),
        _mixed((2, 3, 4, 16), F16, (6, 8), **CENTRED),
        _mixed((2, 4, 3, 8), BF16, (5, 7), edge_mode="clamp"),
        _mixed((1, 1, 2, 1), F32, (1, 3)),  # few elements in each array
        _mixed((1, 2, 1, 1), F32, (1, 1)),
        _mixed((9, 40, 9, 4), F32, (80, 18), crowded=True, **CENTRED),
        _infinite(),
    ]
