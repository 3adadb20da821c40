"""Cubic curves through pixels: `resize_bicubic`, with `_fwd`, `_grad` and `_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Loads, Node, OpInfo, Sample, call
from generic.ops.resize import BF16, EIGHT, F16, F32, IMAGES, LARGE, OTHER, X, axes, backward, forward, mixed
from generic.ops.upsample import FOUR, FOUR_BYTES
from metal_host.case import Case
from support import close, exact, numbers
from support.benchmarks import DTYPES, FLOAT32, LEVEL, SHARE, Benchmark, Measured
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc import graph

HOW: dict[str, dict[str, Any]] = {
    "of aligned corners": {"align_corners": True},
    "of whole coordinates": {"coordinate": "asymmetric"},
    "through a filter": {"antialias": True},
}


def curves(
    shape: tuple[int, ...],
    out_size: Any = None,
    scale: Any = None,
    align_corners: bool = False,
    antialias: bool = False,
    coordinate: str = "half_pixel",
) -> tuple[np.ndarray, ...]:
    where = "align_corners" if align_corners else coordinate
    if antialias:
        return tuple(oracle.filtered(n, m, True, where, s) for n, m, s in axes(shape, out_size, scale))
    return tuple(oracle.bicubic(n, m, where, s) for n, m, s in axes(shape, out_size, scale))


# Where each pixel reads four or more that as many read.
STRIPS = ("resample_strip",)


def _cases() -> Iterator[Case]:
    """For the body of `resize_bilinear`, with lists of more than two, and for one of its own."""
    for shape, dtype, out_size, how in (
        ((2, 5, 3, 8), F32, (9, 5), {}),
        ((3, 17, 9, 4), F32, (3, 2), {"antialias": True}),
        ((1, 9, 33, 8), BF16, (4, 3), {"antialias": True}),  # in two launches, columns first
        ((1, 2, 3, 16), F16, (17, 19), {}),  # like this gradient
    ):
        yield mixed("resize_bicubic", curves(shape, out_size, **how), shape, dtype, out_size, **how)
    for shape, dtype, out_size, how in (
        ((2, 4, 5, 16), F16, (8, 10), {}),
        ((3, 9, 4, 4), F32, (20, 8), {}),  # on a crowded grid
        ((1, 6, 7, 3), F32, (11, 13), {"align_corners": True}),  # every other is a pixel
        ((2, 18, 12, 6), F32, (9, 6), {"antialias": True}),
        ((1, 14, 16, 8), BF16, (7, 8), {"antialias": True}),
    ):
        matrices = curves(shape, out_size, **how)
        yield mixed("resize_bicubic", matrices, shape, dtype, out_size, shape[0] > 2, STRIPS, **how)
    yield _infinite()


def _infinite() -> Case:
    """Infinity reaches what it has weight in, and spoils nothing else that reads beside it."""
    size, larger = 6, 11
    matrix = oracle.bicubic(size, larger, "align_corners")

    def check() -> None:
        for x, back in ((np.ones((1, size, size, 4)), False), (np.ones((1, larger, larger, 4)), True)):
            x[0, 2, 1] = np.inf
            state = mf.resize_bicubic_state((1, size, size, 4), larger, align_corners=True)
            made = mf.resize_bicubic_grad if back else lambda x, of: mf.resize_bicubic(x, larger, align_corners=True)
            y = made(mx.array(x, F32), state)
            along = matrix.T if back else matrix
            reached = oracle.along(np.isinf(x), along != 0, along != 0) > 0
            np.testing.assert_array_equal(np.isinf(exact(y)), reached)
            right = oracle.along(np.ones_like(x), along, along)
            close(mx.array(exact(y)[~reached]), right[~reached], slack=4)

    return Case("resample_strip of infinity", STRIPS, check)


# What bodies load ---------------------------------------------------------------------------------------

# Strips of four rows. An axis has 88 places to read from, less than four a pixel only at its ends. Six strips read 32
# rows of an image. A thread, of 24x4 for each strip and image, finds where its strip begins and ends, looks for each
# row that is read or made whether one is due, and for each made at four weights.
_ROWS, _COLS, _THREADS = 24 * (2 + 4) * 4, 24 * 5 * 4, 4 * 24 * 4
_LOADS = Loads(
    lambda: mf.resize_bicubic(numbers(FOUR), scale=2),
    {
        "x": (FOUR_BYTES, 4 * 32 * 88 * 16 * 4),
        "rows": (_ROWS, _THREADS * (6 * 2 + 32 + 24 + 24 * 4) * 4),
        "cols": (_COLS, _THREADS * 6 * 5 * 4),
    },
)


def _measured(scale: float, title: str = "") -> Benchmark:
    """PyTorch filters nothing in 16 bits."""
    dtypes = FLOAT32 if title else DTYPES
    on_cpu, on_gpu = Measured(targets=LEVEL, dtypes=dtypes), Measured(targets=SHARE, dtypes=dtypes)
    return Benchmark("pointwise", 1, 1, scale=scale, title=title, cpu=(on_cpu,), gpu=(on_gpu,))


_NEAREST, _STATE = mf.resize_nearest_state(IMAGES.shape, 3), mf.resize_bicubic_state(IMAGES.shape, 3)
OPS = (
    OpInfo(
        name="resize_bicubic",
        samples={
            "": call("resize_bicubic", X, (5, 2)),
            **{
                label: Sample(call("resize_bicubic", EIGHT, (8, 3), **how), in_matrix=False)
                for label, how in HOW.items()
            },
            "by a factor": Sample(call("resize_bicubic", EIGHT, scale=(1.7, 0.6)), in_matrix=False),
            "by a factor near 1": Sample(call("resize_bicubic", EIGHT, scale=1.1), in_matrix=False),
            "by a factor from the middle": Sample(
                call("resize_bicubic", EIGHT, scale=1.3, coordinate="half_pixel_symmetric"), in_matrix=False
            ),
            "smaller through a filter": Sample(
                call("resize_bicubic", EIGHT, scale=0.3, antialias=True), in_matrix=False
            ),
        },
        image="x",
        reference=forward(curves),
        slack=4,
        linear=(0,),
        wrong_values=(
            ("unknown coordinate", lambda: mf.resize_bicubic(IMAGES, 3, coordinate="cubic")),
            ("no size", lambda: mf.resize_bicubic(IMAGES)),
            ("a filter has no align_corners", lambda: mf.resize_bicubic(IMAGES, 3, antialias=True, align_corners=True)),
            (
                "a filter has no asymmetric",
                lambda: mf.resize_bicubic(IMAGES, 3, antialias=True, coordinate="asymmetric"),
            ),
            (
                "align_corners has a coordinate of its own",
                lambda: mf.resize_bicubic(IMAGES, 3, align_corners=True, coordinate="half_pixel_symmetric"),
            ),
        ),
        wrong_types=(
            ("align_corners is not a bool", lambda: mf.resize_bicubic(IMAGES, 3, align_corners=0)),
            ("scale is not a number", lambda: mf.resize_bicubic(IMAGES, scale=(1, None))),
        ),
        cases=_cases,
        loads={"resample_strip": _LOADS},
        benchmarks={"resize_bicubic": _measured(2), "resize_filtered": _measured(0.5, "resize_bicubic antialias")},
        nodes={
            "": Node(lambda x: graph.resize_bicubic(x, scale=1.5), lambda p, x: mf.resize_bicubic(x, scale=1.5)),
            "through a filter": Node(
                lambda x: graph.resize_bicubic(x, (3, 7), antialias=True),
                lambda p, x: mf.resize_bicubic(x, (3, 7), antialias=True),
            ),
        },
    ),
    OpInfo(
        name="resize_bicubic_fwd",
        samples={
            "": call("resize_bicubic_fwd", X, (1, 7), align_corners=True),
            "lower and wider": call("resize_bicubic_fwd", OTHER, scale=(0.6, 1.7)),
        },
        image="x",
        reference=forward(curves),
        slack=4,
        linear=(0,),
    ),
    OpInfo(
        name="resize_bicubic_grad",
        samples={
            "": call("resize_bicubic_grad", Array((2, 5, 2, 4)), call("resize_bicubic_state", X.shape, (5, 2))),
            "lower and wider": call(
                "resize_bicubic_grad", Array((2, 3, 6, 4)), call("resize_bicubic_state", OTHER.shape, (3, 6))
            ),
            **{
                label: Sample(
                    call(
                        "resize_bicubic_grad",
                        Array((2, 8, 3, 8)),
                        call("resize_bicubic_state", EIGHT.shape, (8, 3), **how),
                    ),
                    in_matrix=False,
                )
                for label, how in HOW.items()
            },
        },
        image="dy",
        reference=backward(curves),
        slack=4,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: mf.resize_bicubic_grad(LARGE, _NEAREST)),
            ("dy does not belong to this state", lambda: mf.resize_bicubic_grad(LARGE, _STATE)),
        ),
        wrong_types=(("not a state of this operation", lambda: mf.resize_bicubic_grad(LARGE, "state")),),
        benchmarks={
            "resize_bicubic_grad": _measured(2),
            "resize_filtered_grad": _measured(0.5, "resize_bicubic_grad antialias"),
        },
    ),
    OpInfo(
        name="resize_bicubic_state",
        differentiable=False,
        compared="image/test_resize.py",
        samples={"": call("resize_bicubic_state", X.shape, (5, 2))},
        wrong_values=(("scale is out of range", lambda: mf.resize_bicubic_state(IMAGES.shape, scale=-0.5)),),
    ),
)
