"""Cubic curves through pixels: `resize_bicubic`, with `_fwd`, `_grad` and `_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from generic.ops.resize import BF16, EIGHT, F16, F32, IMAGES, LARGE, OTHER, X, axes, backward, forward, mixed
from metal_host.case import Case
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


def _cases() -> Iterator[Case]:
    """For the body of `resize_bilinear`: lists of more than two."""
    for shape, dtype, out_size, how in (
        ((2, 5, 3, 8), F32, (9, 5), {}),
        ((3, 17, 9, 4), F32, (3, 2), {"antialias": True}),
        ((2, 4, 5, 16), F16, (8, 10), {}),
        ((2, 9, 4, 4), F32, (20, 8), {}),  # tiles of four by four
        ((1, 9, 33, 8), BF16, (4, 3), {"antialias": True}),  # in two launches, columns first
        ((1, 2, 3, 16), F16, (17, 19), {}),  # like this gradient
    ):
        yield mixed("resize_bicubic", curves(shape, out_size, **how), shape, dtype, out_size, **how)


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
