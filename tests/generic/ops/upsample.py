"""Images enlarged by whole factors: `upsample_nearest` and `upsample_bilinear`, each with `_fwd`, `_grad`, `_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, Node, OpInfo, Sample, call
from generic.ops.resize import (
    BF16,
    F16,
    F32,
    IMAGES,
    LARGE,
    MPS,
    OTHER,
    X,
    backward,
    forward,
    larger,
    larger_grad,
    mixes,
    picks,
)
from metal_host.case import Case, named
from support import close, exact, numbers
from support.benchmarks import LEVEL, SHARE, Benchmark, Measured
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

DY, TWICE = Array((2, 6, 12, 4)), Array((2, 10, 8, 4))


def _size(shape: tuple[int, ...], scale: int | tuple[int, int]) -> tuple[int, int]:
    sy, sx = (scale, scale) if isinstance(scale, int) else scale
    return shape[1] * sy, shape[2] * sx


def _picks(shape: tuple[int, ...], scale: Any) -> tuple[np.ndarray, ...]:
    return picks(shape, _size(shape, scale))


def _mixes(shape: tuple[int, ...], scale: Any, **how: Any) -> tuple[np.ndarray, ...]:
    return mixes(shape, _size(shape, scale), **how)


# Kernel cases -------------------------------------------------------------------------------------------


def _gathered(shape: tuple[int, ...], dtype: mx.Dtype, scale: tuple[int, int], crowded: bool = False) -> Case:
    def check() -> None:
        x = numbers(shape, dtype) if mx.issubdtype(dtype, mx.floating) else _integers(shape, dtype)
        y = np.array(mf.upsample_nearest(x, scale).astype(F32))
        right = np.array(x.astype(F32)).repeat(scale[0], 1).repeat(scale[1], 2)
        np.testing.assert_array_equal(y, right)

    return Case(named("gather_pixels", shape, dtype, scale=scale), ("gather_pixels",), check, crowded)


def _integers(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.randint(0, 100, shape, key=mx.random.key(1)).astype(dtype)


def _cases() -> Iterator[Case]:
    yield _gathered((2, 3, 4, 5), F32, (2, 3))
    yield _gathered((5, 3, 2, 8), F32, (2, 2))
    yield _gathered((3, 2, 3, 16), F16, (1, 2))
    yield _gathered((2, 2, 3, 8), BF16, (3, 1))
    yield _gathered((1, 1, 2, 1), F32, (1, 3))  # few elements in each array
    yield _gathered((2, 2, 3, 16), mx.uint8, (2, 2))
    yield _gathered((2, 2, 3, 3), mx.int16, (2, 2))
    yield _gathered((2, 2, 3, 4), mx.int32, (2, 2))
    yield _gathered((2, 2, 3, 4), mx.int64, (2, 2))
    yield _gathered((33, 9, 9, 4), F32, (2, 2), crowded=True)


def _infinite() -> Case:
    """Infinity reaches what it has weight in, and spoils no neighbour of that in a tile."""
    shape, matrix = (1, 4, 4, 4), oracle.bilinear(4, 8, "half_pixel", "clamp")

    def check() -> None:
        x = np.ones(shape)
        x[0, 2, 1] = np.inf
        y = exact(mf.upsample_bilinear(mx.array(x, F32), 2))
        reached = oracle.along(np.isinf(x), matrix, matrix) > 0
        np.testing.assert_array_equal(np.isinf(y), reached)
        close(mx.array(y[~reached]), oracle.along(np.ones(shape), matrix, matrix)[~reached])

    return Case("resample of infinity", ("resample",), check)


def _bilinear_cases() -> Iterator[Case]:
    """Besides those of `resize_bilinear`, which are for the same body."""
    yield _infinite()


# What bodies load ---------------------------------------------------------------------------------------

# Four images of 12x12 pixels that become twice as large, and a table of them that has 24 entries or 13 lists of 24. A
# thread of either body takes two or four of the images at a time.
FOUR = (4, 12, 12, 16)
FOUR_BYTES = 4 * 12 * 12 * 16 * 4
_TABLE, _TILES = 24 * 4, (14 + 24 * 3) * 4


def _nearest_of_four() -> None:
    mf.upsample_nearest(numbers(FOUR), 2)


def _bilinear_of_four() -> None:
    mf.upsample_bilinear(numbers(FOUR), 2)


# What is measured ---------------------------------------------------------------------------------------


def _measured(title: str = "", *, targeted: bool = True) -> Benchmark:
    on_cpu = Measured(targets=LEVEL if targeted else ())
    return Benchmark("pointwise", 1, 1, scale=2, title=title, cpu=(on_cpu,), gpu=(Measured(targets=SHARE),))


# Wrong calls, and the records ---------------------------------------------------------------------------

_UP, _MIXED = mf.upsample_nearest_state(IMAGES.shape, 2), mf.upsample_bilinear_state(IMAGES.shape, 2)


def _refused(**fields: Any) -> mx.array:
    """By the gradient, of a state whose rows say something else."""
    return mf.upsample_bilinear_grad(LARGE, _MIXED._replace(rows=_MIXED.rows._replace(**fields)))


def _padded_cols() -> mf.PadState:
    return mf.pad_state(IMAGES.shape, 1, 2, "mirror")


OPS = (
    OpInfo(
        name="upsample_nearest",
        takes_integers=True,
        samples={
            "": call("upsample_nearest", X, (2, 3)),
            "of eight channels": Sample(call("upsample_nearest", Array((2, 5, 4, 8)), (2, 3)), in_matrix=False),
        },
        reference=forward(_picks),
        linear=(0,),
        wrong_values=(
            ("scale is too small", lambda: mf.upsample_nearest(IMAGES, 0)),
            ("scale is not a pair", lambda: mf.upsample_nearest(IMAGES, (1, 2, 3))),
            ("an image is too large", lambda: mf.upsample_nearest(IMAGES, 2**14)),
            ("not an image batch", lambda: mf.upsample_nearest(IMAGES[0], 2)),
        ),
        wrong_types=(
            ("x is not an array", lambda: mf.upsample_nearest([1.0], 2)),
            ("x has no dtype of real numbers", lambda: mf.upsample_nearest(IMAGES.astype(mx.complex64), 2)),
            ("scale is not an int", lambda: mf.upsample_nearest(IMAGES, 2.0)),
            ("scale is not an int", lambda: mf.upsample_nearest(IMAGES, True)),
        ),
        cases=_cases,
        loads={
            # Each of 24x24 threads for each of four packs reads its places, and one place of each image.
            "gather_pixels": Loads(
                _nearest_of_four,
                {
                    "x": (FOUR_BYTES, 4 * FOUR_BYTES),
                    **dict.fromkeys(("rows", "cols"), (_TABLE, 24 * 24 * 4 * 4)),
                    "filling": (4, 0),
                },
            )
        },
        benchmarks={"upsample_nearest": _measured()},
        nodes={"": Node(lambda x: graph.upsample_nearest(x, 2), lambda p, x: mf.upsample_nearest(x, 2))},
    ),
    OpInfo(
        name="upsample_nearest_fwd",
        takes_integers=True,
        samples={"": call("upsample_nearest_fwd", X, 2), "of five rows": call("upsample_nearest_fwd", OTHER, 2)},
        reference=forward(_picks),
        linear=(0,),
    ),
    OpInfo(
        name="upsample_nearest_grad",
        samples={
            "": call("upsample_nearest_grad", DY, call("upsample_nearest_state", X.shape, (2, 3))),
            "by two": call("upsample_nearest_grad", TWICE, call("upsample_nearest_state", OTHER.shape, 2)),
            **larger_grad("upsample_nearest", (2, 3), (10, 12), {"of eight channels": {}}),
        },
        image="dy",
        reference=backward(_picks),
        linear=(0,),
        wrong_values=(("dy does not belong to this state", lambda: mf.upsample_nearest_grad(LARGE[:, 1:], _UP)),),
        wrong_types=(("dy has no floating dtype", lambda: mf.upsample_nearest_grad(LARGE.astype(mx.int32), _UP)),),
        benchmarks={"upsample_nearest_grad": _measured()},
    ),
    OpInfo(
        name="upsample_nearest_state",
        differentiable=False,
        compared="image/test_upsample.py",
        samples={"": call("upsample_nearest_state", X.shape, (2, 3))},
        wrong_values=(
            ("scale is too small", lambda: mf.upsample_nearest_state(IMAGES.shape, (1, -1))),
            ("not an image batch", lambda: mf.upsample_nearest_state((6, 5, 4), 2)),
        ),
    ),
    OpInfo(
        name="upsample_bilinear",
        samples={
            "": call("upsample_bilinear", X, (2, 3)),
            "with aligned corners": call("upsample_bilinear", X, 2, align_corners=True),
            **larger("upsample_bilinear", 2),
        },
        image="x",
        reference=forward(_mixes),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("unknown edge_mode", lambda: mf.upsample_bilinear(IMAGES, 2, edge_mode="mirror")),
            ("unknown coordinate", lambda: mf.upsample_bilinear(IMAGES, 2, coordinate="align_corners")),
            (
                "align_corners has a coordinate of its own",
                lambda: mf.upsample_bilinear(IMAGES, 2, align_corners=True, coordinate="asymmetric"),
            ),
        ),
        wrong_types=(
            ("x has no floating dtype", lambda: mf.upsample_bilinear(IMAGES.astype(mx.int32), 2)),
            ("align_corners is not a bool", lambda: mf.upsample_bilinear(IMAGES, 2, align_corners=1)),
            ("edge_mode is not a name", lambda: mf.upsample_bilinear(IMAGES, 2, edge_mode=None)),
            ("coordinate is not a name", lambda: mf.upsample_bilinear(IMAGES, 2, coordinate=0)),
        ),
        cases=_bilinear_cases,
        loads={
            # Tiles of two by two pixels read two rows and columns and those at the edges one: 24 lines of 12 an axis.
            # A thread of 13x13 for each of four packs and two images reads where its lists begin and end, and their
            # entries: of the columns again in each row.
            "resample": Loads(
                _bilinear_of_four,
                {
                    "x": (FOUR_BYTES, 4 * FOUR_BYTES),
                    "rows": (_TILES, 13 * (13 * 2 + 24 * 3) * 8 * 4),
                    "cols": (_TILES, (13 * 13 * 2 + 24 * 24 * 3) * 8 * 4),
                },
            )
        },
        benchmarks={
            "upsample_bilinear": _measured(),
            "upsample_asymmetric": _measured("upsample_bilinear asymmetric", targeted=False),
        },
        nodes={
            "": Node(lambda x: graph.upsample_bilinear(x, (2, 3)), lambda p, x: mf.upsample_bilinear(x, (2, 3), **MPS)),
            "with aligned corners": Node(
                lambda x: graph.upsample_bilinear(x, (2, 3), align_corners=True),
                lambda p, x: mf.upsample_bilinear(x, (2, 3), align_corners=True),
            ),
        },
    ),
    OpInfo(
        name="upsample_bilinear_fwd",
        samples={
            "": call("upsample_bilinear_fwd", X, 2),
            "of zero edges": call("upsample_bilinear_fwd", OTHER, 2, **MPS),
        },
        image="x",
        reference=forward(_mixes),
        slack=2,
        linear=(0,),
    ),
    OpInfo(
        name="upsample_bilinear_grad",
        samples={
            "": call("upsample_bilinear_grad", DY, call("upsample_bilinear_state", X.shape, (2, 3))),
            "by two": call("upsample_bilinear_grad", TWICE, call("upsample_bilinear_state", OTHER.shape, 2)),
            **larger_grad("upsample_bilinear", 2, (10, 8)),
        },
        image="dy",
        reference=backward(_mixes),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: mf.upsample_bilinear_grad(LARGE, _UP)),
            ("state.rows.n_out is out of range", lambda: _refused(n_out=-1)),
            ("state.rows.n_in is out of range", lambda: _refused(n_in=0)),
            ("an image is too large", lambda: _refused(n_in=2**31 - 1)),
            ("an axis is too long", lambda: _refused(n_in=2**25)),
            ("unknown state.rows.method", lambda: _refused(method="cubes")),
            ("unknown state.rows.coordinate", lambda: _refused(coordinate="?")),
            ("unknown state.rows.edge", lambda: _refused(edge="?")),
            ("state.rows.factor is of another size", lambda: _refused(factor=1.5)),
            ("state.rows.factor is out of range", lambda: _refused(factor=-1.0)),
            (
                "state.channels is out of range",
                lambda: mf.upsample_bilinear_grad(LARGE, _MIXED._replace(channels=0)),
            ),
        ),
        wrong_types=(
            ("the state holds no axis", lambda: mf.upsample_bilinear_grad(LARGE, _MIXED._replace(rows=(6, 12)))),
            (
                "the state holds no axis",
                lambda: mf.upsample_bilinear_grad(LARGE, _MIXED._replace(cols=_padded_cols().cols)),
            ),
            ("state.rows.n_out is not an int", lambda: _refused(n_out=12.0)),
            ("state.rows.edge is not a name", lambda: _refused(edge=["zero"])),
            ("state.rows.antialias is not a bool", lambda: _refused(antialias=0)),
            ("state.rows.factor is not a number", lambda: _refused(factor=None)),
        ),
        benchmarks={
            "upsample_bilinear_grad": _measured(),
            "upsample_asymmetric_grad": _measured("upsample_bilinear_grad asymmetric", targeted=False),
        },
    ),
    OpInfo(
        name="upsample_bilinear_state",
        differentiable=False,
        compared="image/test_upsample.py",
        samples={"": call("upsample_bilinear_state", X.shape, (2, 3))},
        wrong_values=(
            ("unknown edge_mode", lambda: mf.upsample_bilinear_state(IMAGES.shape, 2, edge_mode="")),
            ("an image is too large", lambda: mf.upsample_bilinear_state(IMAGES.shape, 2**40)),
        ),
    ),
)
