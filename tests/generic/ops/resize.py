"""Images of any size: `resize_nearest` and `resize_bilinear`, each with `_fwd`, `_grad` and `_state`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, SHARE, Benchmark, Measured
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

X, SMALL = Array((2, 3, 4, 4)), Array((2, 5, 2, 4))
OTHER, WIDE = Array((2, 5, 4, 4)), Array((2, 3, 6, 4))
EIGHT = Array((2, 5, 4, 8))  # channels
MPS: dict[str, Any] = {"coordinate": "asymmetric", "edge_mode": "zero"}  # and what its graphs' nodes do
# What a bilinear image may be besides.
HOW: dict[str, dict[str, Any]] = {
    "of zero edges": MPS,
    "of clamped edges": {"coordinate": "asymmetric"},
    "of half pixels": {"edge_mode": "zero"},
    "of half pixels and clamped edges": {},
    "of aligned corners": {"align_corners": True},
}
# What is special about resizing alone.
MORE: dict[str, dict[str, Any]] = HOW | {"through a filter": {"antialias": True}}
Matrices = Callable[..., tuple[np.ndarray, ...]]  # of the axes of images, for their shape and what the function takes


def larger(name: str, size: Any, of: dict[str, dict[str, Any]] = HOW) -> dict[str, Sample]:
    """In each way, of eight channels."""
    return {label: Sample(call(name, EIGHT, size, **how), in_matrix=False) for label, how in of.items()}


def larger_grad(
    name: str, size: Any, out_size: tuple[int, int], of: dict[str, dict[str, Any]] = HOW
) -> dict[str, Sample]:
    dy = Array((2, *out_size, 8))
    return {
        label: Sample(call(f"{name}_grad", dy, call(f"{name}_state", EIGHT.shape, size, **how)), in_matrix=False)
        for label, how in of.items()
    }


def axes(shape: tuple[int, ...], out_size: Any, scale: Any) -> list[tuple[int, int, float | None]]:
    """The lengths of rows and columns, those that they become, and a factor if there is one."""
    if scale is None:
        return [(n, m, None) for n, m in zip(shape[1:3], out_size, strict=True)]
    scales = scale if isinstance(scale, tuple) else (scale, scale)
    return [(n, math.floor(n * s), s) for n, s in zip(shape[1:3], scales, strict=True)]


def picks(
    shape: tuple[int, ...], out_size: Any = None, scale: Any = None, coordinate: str = "asymmetric"
) -> tuple[np.ndarray, ...]:
    return tuple(oracle.nearest(n, m, coordinate, s) for n, m, s in axes(shape, out_size, scale))


def mixes(
    shape: tuple[int, ...],
    out_size: Any = None,
    scale: Any = None,
    align_corners: bool = False,
    antialias: bool = False,
    coordinate: str = "half_pixel",
    edge_mode: str = "clamp",
) -> tuple[np.ndarray, ...]:
    where = "align_corners" if align_corners else coordinate
    if antialias:
        return tuple(oracle.filtered(n, m, False, where, s) for n, m, s in axes(shape, out_size, scale))
    return tuple(oracle.bilinear(n, m, where, edge_mode, s) for n, m, s in axes(shape, out_size, scale))


def forward(matrices: Matrices) -> Callable[..., np.ndarray]:
    return lambda x, *args, **how: oracle.along(x, *matrices(x.shape, *args, **how))


def backward(matrices: Matrices) -> Callable[[np.ndarray, Call], np.ndarray]:
    return lambda dy, state: oracle.along(dy, *(m.T for m in matrices(*state.args, **state.how)))


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def mixed(
    name: str,
    matrices: tuple[np.ndarray, ...],
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    out_size: Any,
    crowded: bool = False,
    bodies: tuple[str, ...] = ("resample",),
    **how: Any,
) -> Case:
    """An image that is mixed with such matrices, and its gradient."""
    sizes = [abs(m) for m in matrices]

    def check() -> None:
        x = numbers(shape, dtype)
        y, state = getattr(mf, f"{name}_fwd")(x, out_size, **how)
        close(y, oracle.along(exact(x), *matrices), oracle.along(abs(exact(x)), *sizes), slack=2)
        dy = numbers(tuple(y.shape), dtype, 1)
        back, of = [m.T for m in matrices], [m.T for m in sizes]
        dx = getattr(mf, f"{name}_grad")(dy, state)
        close(dx, oracle.along(exact(dy), *back), oracle.along(abs(exact(dy)), *of), slack=2)

    label = named("resample" if name == "resize_bilinear" else name, shape, dtype, to=out_size, **how)
    return Case(label, bodies, check, crowded)


def _mixed(shape: tuple[int, ...], dtype: mx.Dtype, out_size: Any, crowded: bool = False, **how: Any) -> Case:
    matrices = mixes(shape, out_size, **how)
    return mixed("resize_bilinear", matrices, shape, dtype, out_size, crowded, **how)


def _cases() -> Iterator[Case]:
    yield _mixed((3, 3, 4, 8), F32, (6, 8), **MPS)
    yield _mixed((2, 3, 4, 8), F32, (6, 8))
    yield _mixed((2, 3, 4, 5), F32, (9, 7), align_corners=True)
    yield _mixed((2, 7, 9, 4), F32, (3, 4), edge_mode="zero")
    yield _mixed((2, 3, 4, 16), F16, (6, 8))
    yield _mixed((2, 4, 3, 8), BF16, (5, 7), coordinate="asymmetric")
    yield _mixed((2, 17, 9, 4), F32, (3, 2), antialias=True)
    yield _mixed((2, 5, 4, 4), F32, (20, 16))  # tiles of four by four
    yield _mixed((1, 1, 2, 1), F32, (1, 3))  # few elements in each array
    yield _mixed((1, 2, 1, 1), F32, (1, 1), **MPS)
    yield _mixed((9, 40, 9, 4), F32, (80, 18), crowded=True)


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, LARGE, PIXEL = numbers((2, 6, 5, 4)), mx.ones((2, 12, 10, 4)), mx.ones((1, 1, 1, 1))
_UP = mf.upsample_nearest_state(IMAGES.shape, 2)
_NEAREST, _BILINEAR = mf.resize_nearest_state(IMAGES.shape, 3), mf.resize_bilinear_state(IMAGES.shape, 3)
SMALLER: dict[str, Any] = {
    "scale": 0.4,
    "cpu": (Measured(targets=LEVEL, dtypes=FLOAT32),),
    "gpu": (Measured(targets=SHARE, dtypes=FLOAT32),),
}


def _filtered(title: str) -> Benchmark:
    return Benchmark("pointwise", 1, 1, scale=SMALLER["scale"], title=title, cpu=SMALLER["cpu"])


OPS = (
    OpInfo(
        name="resize_nearest",
        benchmarks={"shrink_nearest": Benchmark("pointwise", 1, 1, title="resize_nearest", **SMALLER)},
        takes_integers=True,
        samples={
            "": call("resize_nearest", X, (5, 2), coordinate="half_pixel"),
            "of whole coordinates": call("resize_nearest", X, (5, 2)),
            "of eight channels": Sample(call("resize_nearest", EIGHT, (3, 7)), in_matrix=False),
            "by a factor": Sample(call("resize_nearest", EIGHT, scale=(1.7, 0.6)), in_matrix=False),
        },
        reference=forward(picks),
        linear=(0,),
        wrong_values=(
            ("out_size is too small", lambda: mf.resize_nearest(IMAGES, (0, 3))),
            ("unknown coordinate", lambda: mf.resize_nearest(IMAGES, 3, coordinate="half_pixel_symmetric")),
            ("no size", lambda: mf.resize_nearest(IMAGES)),
            ("scale is out of range", lambda: mf.resize_nearest(IMAGES, scale=-1)),
            ("an axis is too long", lambda: mf.resize_nearest(PIXEL, (1, 2**24 + 1))),
        ),
        wrong_types=(
            ("out_size is not an int", lambda: mf.resize_nearest(IMAGES, (3, None))),
            ("x has no dtype of real numbers", lambda: mf.resize_nearest(IMAGES > 0, 3)),
        ),
        nodes={
            "": Node(lambda x: graph.resize_nearest(x, (9, 4)), lambda p, x: mf.resize_nearest(x, (9, 4))),
            "by a scale": Node(
                lambda x: graph.resize_nearest(x, scale=0.7), lambda p, x: mf.resize_nearest(x, scale=0.7)
            ),
        },
    ),
    OpInfo(
        name="resize_nearest_fwd",
        takes_integers=True,
        samples={
            "": call("resize_nearest_fwd", X, (5, 2)),
            "lower and wider": call("resize_nearest_fwd", OTHER, (3, 6)),
        },
        reference=forward(picks),
        linear=(0,),
    ),
    OpInfo(
        name="resize_nearest_grad",
        benchmarks={"shrink_nearest_grad": Benchmark("pointwise", 1, 1, title="resize_nearest_grad", **SMALLER)},
        samples={
            "": call("resize_nearest_grad", SMALL, call("resize_nearest_state", X.shape, (5, 2))),
            "lower and wider": call("resize_nearest_grad", WIDE, call("resize_nearest_state", OTHER.shape, (3, 6))),
            **larger_grad("resize_nearest", (3, 7), (3, 7), {"of eight channels": {"coordinate": "half_pixel"}}),
        },
        image="dy",
        reference=backward(picks),
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: mf.resize_nearest_grad(LARGE, _UP)),
            ("dy does not belong to this state", lambda: mf.resize_nearest_grad(LARGE, _NEAREST)),
        ),
        wrong_types=(("not a state of this operation", lambda: mf.resize_nearest_grad(LARGE, tuple(_NEAREST))),),
    ),
    OpInfo(
        name="resize_nearest_state",
        differentiable=False,
        compared="generic/test_references.py",  # where the gradient is of such a state
        samples={"": call("resize_nearest_state", X.shape, (5, 2))},
        wrong_values=(("out_size is too small", lambda: mf.resize_nearest_state(IMAGES.shape, -1)),),
    ),
    OpInfo(
        name="resize_bilinear",
        benchmarks={
            "shrink_bilinear": Benchmark("pointwise", 1, 1, title="resize_bilinear", **SMALLER),
            "shrink_filtered": _filtered("resize_bilinear antialias"),
        },
        samples={
            "": call("resize_bilinear", X, (5, 2)),
            **larger("resize_bilinear", (8, 3), MORE),
            "by a factor": Sample(call("resize_bilinear", EIGHT, scale=(1.7, 0.6)), in_matrix=False),
            "by a factor from the middle": Sample(
                call("resize_bilinear", EIGHT, scale=1.3, coordinate="half_pixel_symmetric"), in_matrix=False
            ),
            "smaller through a filter": Sample(
                call("resize_bilinear", EIGHT, scale=0.3, antialias=True), in_matrix=False
            ),
        },
        image="x",
        reference=forward(mixes),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("an image is too large", lambda: mf.resize_bilinear(IMAGES, 2**15)),
            ("no size", lambda: mf.resize_bilinear(IMAGES)),
            ("two sizes", lambda: mf.resize_bilinear(IMAGES, 3, scale=2)),
            ("scale is out of range", lambda: mf.resize_bilinear(IMAGES, scale=0.0)),
            ("scale is out of range", lambda: mf.resize_bilinear(IMAGES, scale=(1, float("nan")))),
            ("scale is out of range", lambda: mf.resize_bilinear(IMAGES, scale=float("inf"))),
            ("scale is not a pair", lambda: mf.resize_bilinear(IMAGES, scale=(1, 2, 3))),
            ("scale leaves no pixels", lambda: mf.resize_bilinear(IMAGES, scale=0.1)),
            (
                "a filter has no align_corners",
                lambda: mf.resize_bilinear(IMAGES, 3, antialias=True, align_corners=True),
            ),
            ("a filter has no edges of zero", lambda: mf.resize_bilinear(IMAGES, 3, antialias=True, edge_mode="zero")),
            (
                "a filter has no asymmetric",
                lambda: mf.resize_bilinear(IMAGES, 3, antialias=True, coordinate="asymmetric"),
            ),
        ),
        wrong_types=(
            ("out_size is not an int", lambda: mf.resize_bilinear(IMAGES, "3")),
            ("scale is not a number", lambda: mf.resize_bilinear(IMAGES, scale="2")),
            ("scale is not a number", lambda: mf.resize_bilinear(IMAGES, scale=True)),
            ("antialias is not a bool", lambda: mf.resize_bilinear(IMAGES, 3, antialias=1)),
        ),
        cases=_cases,
        nodes={
            "": Node(
                lambda x: graph.resize_bilinear(x, (9, 4), coordinate="half_pixel"),
                lambda p, x: mf.resize_bilinear(x, (9, 4), edge_mode="zero"),
            ),
            "by a scale": Node(
                lambda x: graph.resize_bilinear(x, scale=(1.3, 0.6)),
                lambda p, x: mf.resize_bilinear(x, scale=(1.3, 0.6), **MPS),
            ),
            "of MPS": Node(
                lambda x: graph.resize_bilinear(x, (9, 4)), lambda p, x: mf.resize_bilinear(x, (9, 4), **MPS)
            ),
            "with aligned corners": Node(
                lambda x: graph.resize_bilinear(x, (9, 4), align_corners=True),
                lambda p, x: mf.resize_bilinear(x, (9, 4), align_corners=True),
            ),
        },
    ),
    OpInfo(
        name="resize_bilinear_fwd",
        samples={
            "": call("resize_bilinear_fwd", X, (1, 7), align_corners=True),
            "lower and wider": call("resize_bilinear_fwd", OTHER, (3, 6)),
        },
        image="x",
        reference=forward(mixes),
        slack=2,
        linear=(0,),
    ),
    OpInfo(
        name="resize_bilinear_grad",
        benchmarks={
            "shrink_bilinear_grad": Benchmark("pointwise", 1, 1, title="resize_bilinear_grad", **SMALLER),
            "shrink_filtered_grad": _filtered("resize_bilinear_grad antialias"),
        },
        samples={
            "": call("resize_bilinear_grad", SMALL, call("resize_bilinear_state", X.shape, (5, 2))),
            "lower and wider": call("resize_bilinear_grad", WIDE, call("resize_bilinear_state", OTHER.shape, (3, 6))),
            **larger_grad("resize_bilinear", (8, 3), (8, 3), MORE),
        },
        image="dy",
        reference=backward(mixes),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: mf.resize_bilinear_grad(LARGE, _NEAREST)),
            ("dy does not belong to this state", lambda: mf.resize_bilinear_grad(LARGE, _BILINEAR)),
        ),
        wrong_types=(("not a state of this operation", lambda: mf.resize_bilinear_grad(LARGE, "state")),),
    ),
    OpInfo(
        name="resize_bilinear_state",
        differentiable=False,
        compared="image/test_upsample.py",
        samples={"": call("resize_bilinear_state", X.shape, (5, 2))},
        wrong_values=(
            ("unknown coordinate", lambda: mf.resize_bilinear_state(IMAGES.shape, 3, coordinate="")),
            ("an axis is too long", lambda: mf.resize_bilinear_state((1, 2**24 + 1, 1, 1), 1)),
        ),
    ),
)
