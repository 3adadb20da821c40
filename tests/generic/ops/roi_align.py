"""Means over bins of regions: `roi_align`, with `_fwd`, `_grad`, `_grad_rois` and `_state`; their kernels' cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, OpInfo, Sample, call
from generic.ops.crop_and_resize import BODIES, measured
from metal_host.case import Case, named
from support import close, exact, numbers
from support.oracle import boxes as oracle

import mpsfunc as mf

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16

# Samples, and what they should give ----------------------------------------------------------------------

X, EIGHT = Array((2, 4, 5, 4)), Array((2, 5, 4, 8))
ROIS, BOXES = Array((3, 5), of="shares", wide=True), Array((4, 4), wide=True)  # the former all of the first image
INDICES = Fixed([1, 0, 5, 1], "int32")  # one of no image
DY, SIZE = Array((3, 2, 3, 4)), (2, 3)
HOW: dict[str, tuple[Any, ...]] = {
    "": (3.5,),
    "aligned": (5.0, 2, True),
    "with samples": (4.0, 3),
}


def _state(shape: tuple[int, ...], *how: Any) -> Call:
    return call("roi_align_state", shape, SIZE, *how)


def _numbers(rois: Any, indices: Any) -> Any:
    return np.floor(rois[:, 0]) if indices is None else indices


def _sampled(x: Any, rois: Any, size: Any, *how: Any, box_indices: Any = None) -> np.ndarray:
    return oracle.sample(x, _numbers(rois, box_indices), oracle.roi_sides(x.shape, rois, size, *how))


def _spread(dy: Any, rois: Any, state: Call, box_indices: Any = None) -> np.ndarray:
    shape, *how = state.args
    return oracle.spread(dy, _numbers(rois, box_indices), oracle.roi_sides(shape, rois, *how), shape)


def _slopes(dy: Any, x: Any, rois: Any, state: Call, box_indices: Any = None) -> np.ndarray:
    shape, *how = state.args
    by = oracle.slopes(dy, x, _numbers(rois, box_indices), oracle.roi_sides(shape, rois, *how))[:, [1, 0, 3, 2]]
    return np.concatenate([np.zeros((len(by), rois.shape[1] - 4)), by], axis=1)


# Kernel cases -------------------------------------------------------------------------------------------


def some_rois(count: int, images: int, length: int) -> mx.array:
    """Of all images; one reaches far beyond, one is NaN and one of no image where there are many."""
    made = np.zeros((count, 5))
    made[:, 0] = np.arange(count) % images
    made[:, 1:3] = (exact(numbers((count, 2), seed=4)) + 1) * length / 4
    made[:, 3:] = made[:, 1:3] + (0.3 + abs(exact(numbers((count, 2), seed=5)))) * length / 3
    if count > 3:
        made[1, 1], made[2, 3:], made[3, 0] = np.nan, 30 * length, images
    return mx.array(made, mx.float32)


def _case(
    shape: tuple[int, ...], dtype: mx.Dtype, size: tuple[int, int], count: int, *how: Any, crowded: bool = False
) -> Case:
    """Bins, and the gradients by both."""

    def check() -> None:
        x, rois = numbers(shape, dtype), some_rois(count, shape[0], max(shape[1:3]))
        y, state = mf.roi_align_fwd(x, rois, size, *how)
        of, sides = exact(rois)[:, 0].tolist(), oracle.roi_sides(shape, exact(rois), size, *how)
        close(y, oracle.sample(exact(x), of, sides), 64 + abs(exact(x)).max(), slack=4)
        dy = numbers(tuple(y.shape), dtype, 1)
        sizes = oracle.spread(abs(exact(dy)), of, sides, shape)
        right = oracle.spread(exact(dy), of, sides, shape)
        close(mf.roi_align_grad(dy, rois, state), right, 64 + 4 * sizes, slack=4)
        scale = 64 + 8 * abs(exact(dy)).sum() * abs(exact(x)).max()
        by = oracle.slopes(exact(dy), exact(x), of, sides)[:, [1, 0, 3, 2]]
        close(mf.roi_align_grad_rois(dy, x, rois, state)[:, 1:], by, scale)

    return Case(named("box_sample", shape, dtype, to=size, count=count, how=how), BODIES, check, crowded)


def _cases() -> Iterator[Case]:
    yield _case((2, 9, 10, 8), F32, (3, 2), 5)
    yield _case((2, 9, 10, 8), BF16, (3, 2), 4, 0.5, 2, True)
    yield _case((1, 30, 9, 4), F16, (2, 2), 6, 1.0, -1, True)
    yield _case((1, 30, 40, 1), F32, (1, 1), 2)  # more samples than are looked at one by one
    yield _case((3, 12, 13, 36), F32, (7, 7), 9, 1.0, 0, True)
    yield _case((3, 9, 20, 4), F32, (18, 3), 40, 1.0, 1, crowded=True)


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, SOME, BINS = numbers((2, 6, 5, 4)), numbers((3, 5)), numbers((3, 2, 3, 4))
_STATE = mf.roi_align_state(IMAGES.shape, SIZE)
_OTHER = mf.resize_nearest_state(IMAGES.shape, 3)


def _wrong(x: Any = IMAGES, rois: Any = SOME, size: Any = SIZE, *how: Any, **more: Any) -> mx.array:
    return mf.roi_align(x, rois, size, *how, **more)


def _refused(dy: Any = BINS, rois: Any = SOME, of: Any = None, **fields: Any) -> mx.array:
    return mf.roi_align_grad(dy, rois, _STATE._replace(**fields), box_indices=of)


def _refused_by_rois(dy: Any = BINS, x: Any = IMAGES, rois: Any = SOME, state: Any = _STATE) -> mx.array:
    return mf.roi_align_grad_rois(dy, x, rois, state)


OPS = (
    OpInfo(
        name="roi_align",
        samples={
            **{label: call("roi_align", X, ROIS, SIZE, *how) for label, how in HOW.items()},
            **{
                f"of eight channels {label}": Sample(
                    call("roi_align", EIGHT, BOXES, (3, 2), *how, box_indices=INDICES), in_matrix=False
                )
                for label, how in HOW.items()
            },
        },
        image="x",
        reference=_sampled,
        slack=16,
        linear=(0,),
        wrong_values=(
            ("rois are not (n, x1, y1, x2, y2)", lambda: _wrong(rois=SOME[:, :4])),
            ("rois are not (x1, y1, x2, y2)", lambda: _wrong(box_indices=mx.array([0, 1, 0]))),
            ("box_indices does not belong to rois", lambda: _wrong(rois=SOME[:, :4], box_indices=mx.array([0]))),
            ("output_size is too small", lambda: _wrong(size=(0, 1))),
            ("output_size is too large", lambda: _wrong(size=(1, 2**24 + 1))),
            ("spatial_scale is out of range", lambda: _wrong(IMAGES, SOME, 2, float("inf"))),
            ("sampling_ratio is out of range", lambda: _wrong(IMAGES, SOME, 2, 1.0, 2**16 + 1)),
        ),
        wrong_types=(
            ("rois is not an array", lambda: _wrong(rois=[[0, 0, 0, 1, 1]])),
            ("rois and x differ in dtype", lambda: _wrong(rois=SOME.astype(mx.float16))),
            ("box_indices has no integer dtype", lambda: _wrong(rois=SOME[:, :4], box_indices=SOME[:, 0])),
            ("spatial_scale is not a number", lambda: _wrong(IMAGES, SOME, 2, None)),
            ("sampling_ratio is not an int", lambda: _wrong(IMAGES, SOME, 2, 1.0, 1.5)),
            ("aligned is not a bool", lambda: _wrong(IMAGES, SOME, 2, 1.0, 1, 1)),
        ),
        cases=_cases,
        benchmarks={"roi_align": measured(1.0)},
        no_node="MPS has no such filter",
    ),
    OpInfo(
        name="roi_align_fwd",
        samples={"": call("roi_align_fwd", X, ROIS, SIZE, 3.5)},
        image="x",
        reference=_sampled,
        slack=16,
        linear=(0,),
    ),
    OpInfo(
        name="roi_align_grad",
        samples={
            **{label: call("roi_align_grad", DY, ROIS, _state(X.shape, *how)) for label, how in HOW.items()},
            "of eight channels": Sample(
                call(
                    "roi_align_grad",
                    Array((4, 2, 3, 8)),
                    BOXES,
                    _state(EIGHT.shape, 4.0, -1, True),
                    box_indices=INDICES,
                ),
                in_matrix=False,
            ),
        },
        benchmarks={"roi_align_grad": measured(0.8)},
        image="dy",
        reference=_spread,
        slack=16,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: _refused(op="pad")),
            ("dy does not belong to this state", lambda: _refused(channels=3)),
            ("dy does not belong to this state", lambda: _refused(rois=SOME[:1])),
            ("rois are not (x1, y1, x2, y2)", lambda: _refused(of=mx.array([0, 1, 0]))),
            ("state.width is out of range", lambda: _refused(width=0)),
            ("state.rows is out of range", lambda: _refused(rows=0)),
            ("state.sampling_ratio is out of range", lambda: _refused(sampling_ratio=-1)),
            ("state.spatial_scale is out of range", lambda: _refused(spatial_scale=float("nan"))),
        ),
        wrong_types=(
            (
                "not a state of this operation",
                lambda: mf.roi_align_grad(BINS, SOME, _OTHER),  # type: ignore[arg-type]  # refused
            ),
            ("rois and dy differ in dtype", lambda: _refused(rois=SOME.astype(mx.bfloat16))),
            ("state.aligned is not a bool", lambda: _refused(aligned=1)),
        ),
    ),
    OpInfo(
        name="roi_align_grad_rois",
        samples={
            **{label: call("roi_align_grad_rois", DY, X, ROIS, _state(X.shape, *how)) for label, how in HOW.items()},
            "of eight channels": Sample(
                call(
                    "roi_align_grad_rois",
                    *(Array((4, 2, 3, 8)), EIGHT, BOXES),
                    _state(EIGHT.shape, 4.0, -1, True),
                    box_indices=INDICES,
                ),
                in_matrix=False,
            ),
        },
        image="x",
        reference=_slopes,
        slack=64,
        linear=(0, 1),
        wrong_values=(
            ("x does not belong to this state", lambda: _refused_by_rois(x=IMAGES[:, 1:])),
            ("dy does not belong to this state", lambda: _refused_by_rois(dy=BINS[..., 1:])),
            ("rois are not (n, x1, y1, x2, y2)", lambda: _refused_by_rois(rois=SOME[0])),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: _refused_by_rois(dy=BINS.astype(mx.float16))),
            ("not a state of this operation", lambda: _refused_by_rois(state="state")),
        ),
    ),
    OpInfo(
        name="roi_align_state",
        differentiable=False,
        compared="generic/test_references.py",
        samples={"": call("roi_align_state", X.shape, SIZE, 0.25)},
        wrong_values=(
            ("not an image batch", lambda: mf.roi_align_state((1, 2, 3), 2)),
            ("output_size is too small", lambda: mf.roi_align_state((1, 2, 3, 4), -1)),
        ),
    ),
)
