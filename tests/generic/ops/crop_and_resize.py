"""Boxes cut out of images: `crop_and_resize`, with `_fwd`, `_grad`, `_grad_boxes` and `_state`; and their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, SHAPE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import boxes as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.image import box_sample_rules

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
BODIES = "box_sample", "box_order", "box_sample_grad", "box_sample_grad_boxes", "sum_partials"

# Samples, and what they should give ----------------------------------------------------------------------

X, EIGHT = Array((2, 4, 5, 4)), Array((2, 5, 4, 8))
BOXES, MANY = Array((3, 4), of="shares", wide=True), Array((5, 4), wide=True)
INDICES, OF_MANY = Fixed([1, 0, 1], "int32"), Fixed([0, 1, 7, 1, 0], "uint32")  # one of no image
DY, CROP = Array((3, 2, 3, 4)), (2, 3)
NEAREST: dict[str, Any] = {"method": "nearest", "extrapolation_value": 0.75}


def _state(shape: tuple[int, ...], size: Any = CROP, **how: Any) -> Call:
    return call("crop_and_resize_state", shape, size, **how)


def _cropped(x: Any, boxes: Any, indices: Any, size: Any, extrapolation_value: float = 0.0, **how: Any) -> np.ndarray:
    return oracle.sample(x, indices, oracle.crop_sides(x.shape, boxes, size, **how), extrapolation_value)


def _spread(dy: Any, boxes: Any, indices: Any, state: Call) -> np.ndarray:
    shape, size = state.args
    return oracle.spread(dy, indices, oracle.crop_sides(shape, boxes, size, **state.how), shape)


def _slopes(dy: Any, x: Any, boxes: Any, indices: Any, state: Call) -> np.ndarray:
    return oracle.slopes(dy, x, indices, oracle.crop_sides(x.shape, boxes, state.args[1], **state.how))


# Kernel cases -------------------------------------------------------------------------------------------


def some_boxes(count: int, seed: int = 3) -> mx.array:
    """Normalized ones: of any sides, one flipped, one far outside, one NaN where there are many."""
    corners = 0.5 + 0.4 * numbers((count, 4), seed=seed)
    made = exact(corners)
    if count > 3:
        made[1, 0], made[2, 1], made[3, 2:] = np.nan, -1e9, 7
    return mx.array(made, mx.float32)


def _case(shape: tuple[int, ...], dtype: mx.Dtype, size: tuple[int, int], count: int, crowded: bool = False) -> Case:
    """Crops, and the gradients by both."""

    def check() -> None:
        x, boxes = numbers(shape, dtype), some_boxes(count)
        indices = mx.arange(count) * 7 % (shape[0] + (count > 3))
        y, state = mf.crop_and_resize_fwd(x, boxes, indices, size, extrapolation_value=0.5)
        sides = oracle.crop_sides(shape, exact(boxes), size)
        of = indices.tolist()
        close(y, oracle.sample(exact(x), of, sides, 0.5), 16 + abs(exact(x)).max(), slack=4)
        dy = numbers(tuple(y.shape), dtype, 1)
        sizes = oracle.spread(abs(exact(dy)), of, sides, shape)
        close(mf.crop_and_resize_grad(dy, boxes, indices, state), oracle.spread(exact(dy), of, sides, shape),
              16 + 4 * sizes, slack=4)  # fmt: skip
        scale = 16 + 8 * max(shape[1:3]) * abs(exact(dy)).sum() * abs(exact(x)).max()
        right = oracle.slopes(exact(dy), exact(x), of, sides)
        close(mf.crop_and_resize_grad_boxes(dy, x, boxes, indices, state), right, scale)

    return Case(named("box_sample", shape, dtype, to=size, count=count), BODIES, check, crowded)


def _nearest() -> Case:
    """Of two pixels that are as near, the right one; outside is what is given."""

    def check() -> None:
        x = mx.arange(1.0, 7).reshape(1, 2, 3, 1)
        boxes = mx.array([[0, 0.25, 1, 0.75], [0, 1.5, 0, 0.5]])
        y, state = mf.crop_and_resize_fwd(x, boxes, mx.array([0, 0]), (2, 2), **NEAREST)
        np.testing.assert_array_equal(exact(y).ravel(), [2, 3, 5, 6, 0.75, 2, 0.75, 2])
        dx = mf.crop_and_resize_grad(mx.arange(1.0, 9).reshape(y.shape), boxes, mx.array([0, 0]), state)
        np.testing.assert_array_equal(exact(dx).ravel(), [0, 15, 2, 0, 3, 4])

    return Case("box_sample nearest", BODIES[:3], check)


def _beside_infinity() -> Case:
    """Infinity goes where it has weight, and nowhere else."""

    def check() -> None:
        x = mx.where(mx.arange(9).reshape(1, 3, 3, 1) == 5, mx.inf, mx.ones((1, 3, 3, 1)))
        boxes, of = mx.array([[0.5, 0, 0.5, 0.5], [0, 0.25, 0, 1], [1, 1, 1, 1]]), mx.array([0, 0, 0])
        y, state = mf.crop_and_resize_fwd(x, boxes, of, (1, 2))
        np.testing.assert_array_equal(exact(y).ravel(), 1)
        dy = mx.array([np.inf, 1, 2, 3, 4, 5]).reshape(y.shape)
        dx = exact(mf.crop_and_resize_grad(dy, boxes, of, state)).reshape(3, 3)
        np.testing.assert_array_equal(dx, [[1, 1, 3], [np.inf, 1, 0], [0, 0, 9]])
        dboxes = exact(mf.crop_and_resize_grad_boxes(mx.ones(y.shape), x, boxes, of, state))
        np.testing.assert_array_equal(np.isinf(dboxes), [[0, 0, 0, 1], [1, 0, 1, 0], [1, 0, 1, 0]])
        assert not np.isnan(dboxes).any()
        for box, size, right in (
            ((0, 1, 1, 1), (2, 1), [np.inf, 0, -np.inf, 0]),
            ((0.5, 0.5, 0.5, 0), (1, 2), [0, np.inf, 0, 0]),
        ):
            one, state = mx.array([box], mx.float32), mf.crop_and_resize_state(x.shape, size)
            dboxes = mf.crop_and_resize_grad_boxes(mx.ones((1, *size, 1)), x, one, of[:1], state)
            np.testing.assert_array_equal(exact(dboxes), [right])

    return Case("box_sample beside infinity", BODIES, check)


def _in_one_place() -> Case:
    """Along an axis of one pixel all samples of a box lie on it, also of a flipped box, whose length is then -0."""

    def check() -> None:
        x, boxes = numbers((1, 1, 4, 1)), mx.array([[0.5, 0, -0.5, 1], [0.0, 1, -0.0, 0]])
        of = mx.array([0, 0])
        y, state = mf.crop_and_resize_fwd(x, boxes, of, (3, 2))
        dx = mf.crop_and_resize_grad(mx.ones(y.shape), boxes, of, state)
        np.testing.assert_array_equal(exact(dx).ravel(), [6, 0, 0, 6])

    return Case("box_sample in one place", BODIES[:3], check)


def _mixed() -> Case:
    """Derivatives of the gradient by the boxes: those by one axis and then by the other."""

    def check() -> None:
        x, boxes, of, size = numbers((2, 5, 6, 4)), some_boxes(3), mx.array([0, 1, 0]), (3, 2)
        dy, t = numbers((3, *size, 4), seed=1), numbers((3, 4), seed=2)
        state = mf.crop_and_resize_state(x.shape, size)
        with mx.stream(mx.default_device()):
            (made,) = mx.vjp(lambda boxes: mf.crop_and_resize_grad_boxes(dy, x, boxes, of, state), [boxes], [t])[1]
        right = np.zeros((3, 4))
        for r, (down, across) in enumerate(oracle.crop_sides(x.shape, exact(boxes), size)):
            products = np.einsum("yxc,hwc->yxhw", exact(dy)[r], exact(x)[of[r].item()])
            for i, rows in enumerate((down.by_begin, down.by_end)):
                for j, cols in enumerate((across.by_begin, across.by_end)):
                    term = np.einsum("yh,xw,yxhw->", rows, cols, products)
                    right[r, 2 * i] += exact(t)[r, 2 * j + 1] * term
                    right[r, 2 * j + 1] += exact(t)[r, 2 * i] * term
        close(made, right, 16 + 64 * abs(right).max())
        moved = mx.jvp(lambda boxes: mf.crop_and_resize_grad(dy, boxes, of, state), [boxes], [t])[1][0]
        right = np.zeros(x.shape)
        for r, (down, across) in enumerate(oracle.crop_sides(x.shape, exact(boxes), size)):
            y1, x1, y2, x2 = exact(t)[r]
            rows, cols = y1 * down.by_begin + y2 * down.by_end, x1 * across.by_begin + x2 * across.by_end
            for one, other in ((rows, across.value), (down.value, cols)):
                right[of[r].item()] += np.einsum("yh,xw,yxc->hwc", one, other, exact(dy)[r])
        close(moved, right, 16 + 64 * abs(right).max())

    return Case("box_sample_grad_boxes mixed", BODIES, check)


def _of_few_threads(case: Case) -> Case:
    """Of as few as the thread sanitizer tells apart, which is less than 256."""

    def check() -> None:
        with mock.patch.object(box_sample_rules, "_THREADS", 128):
            case.check()

    return case._replace(name=f"{case.name} threads=128", check=check)


def _cases() -> Iterator[Case]:
    yield _case((2, 5, 4, 8), F32, (4, 5), 5)
    yield _case((1, 4, 5, 3), F32, (3, 6), 1)
    yield _case((2, 6, 5, 8), BF16, (5, 3), 4)
    yield _case((2, 4, 9, 16), F16, (3, 4), 3)
    yield _case((1, 1, 2, 1), F32, (1, 2), 1)  # few elements in each array
    yield _case((1, 2, 1, 1), BF16, (1, 2), 1)
    yield _case((1, 2, 2, 1), F16, (1, 3), 1)
    yield _case((2, 9, 10, 68), F32, (7, 18), 12)  # more packs than stand side by side, more bins than in a block
    yield _case((3, 9, 20, 4), F32, (20, 19), 9, crowded=True)
    yield _case((1, 3, 4, 33), F32, (2, 3), 2)  # more channels than lanes
    yield _case((2, 18, 3, 4), F32, (2, 1), 300, crowded=True)  # more boxes than threads
    yield _of_few_threads(_case((2, 9, 20, 4), F32, (17, 3), 400, crowded=True))  # also of each image
    yield _case((2, 41, 36, 4), F32, (60, 70), 7, crowded=True)  # tiles that few of the bins read
    yield _nearest()
    yield _beside_infinity()
    yield _in_one_place()
    yield _mixed()


# What bodies load ---------------------------------------------------------------------------------------


def _turned() -> None:
    """One box of each image, whose samples are between four pixels."""
    x, dy = numbers(SHAPE), numbers(SHAPE, seed=1)
    boxes, of = mx.array([[0.02, 0.97, 0.98, 0.04]] * 2), mx.array([0, 1])
    _, state = mf.crop_and_resize_fwd(x, boxes, of, SHAPE[1:3])
    mf.crop_and_resize_grad(dy, boxes, of, state)
    mf.crop_and_resize_grad_boxes(dy, x, boxes, of, state)


def measured(least: float) -> Benchmark:
    """Beside PyTorch's composition of a grid and its samples, or torchvision."""
    on_cpu = Measured(targets=LEVEL, dtypes=FLOAT32)
    on_gpu = Measured(targets=(Target(PYTORCH, least),), dtypes=FLOAT32)
    return Benchmark("pointwise", 1, 1, given=("rois",), cpu=(on_cpu,), gpu=(on_gpu,))


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, SOME, OF, CROPS = numbers((2, 6, 5, 4)), numbers((3, 4)), mx.array([0, 1, 0]), numbers((3, 2, 3, 4))
_STATE = mf.crop_and_resize_state(IMAGES.shape, CROP)
_OTHER = mf.resize_nearest_state(IMAGES.shape, 3)


def _wrong(x: Any = IMAGES, boxes: Any = SOME, of: Any = OF, size: Any = CROP, **how: Any) -> mx.array:
    return mf.crop_and_resize(x, boxes, of, size, **how)


def _refused(dy: Any = CROPS, boxes: Any = SOME, of: Any = OF, **fields: Any) -> mx.array:
    return mf.crop_and_resize_grad(dy, boxes, of, _STATE._replace(**fields))


def _refused_by_boxes(dy: Any = CROPS, x: Any = IMAGES, boxes: Any = SOME, of: Any = OF, state: Any = _STATE) -> Any:
    return mf.crop_and_resize_grad_boxes(dy, x, boxes, of, state)


def _in_graph(x: mx.array) -> mx.array:
    boxes, of = mx.array([[0.25, 0, 1.25, 0.75], [0.0, 0, 1, 1]] * 2), mx.array([0, 0, 1, 1])
    return mf.crop_and_resize(x, boxes, of, (3, 2))


OPS = (
    OpInfo(
        name="crop_and_resize",
        samples={
            "": call("crop_and_resize", X, BOXES, INDICES, CROP),
            "nearest": call("crop_and_resize", X, BOXES, INDICES, CROP, **NEAREST),
            "of eight channels": Sample(call("crop_and_resize", EIGHT, MANY, OF_MANY, (4, 1)), in_matrix=False),
            "of many places outside": Sample(
                call("crop_and_resize", EIGHT, MANY, OF_MANY, 5, extrapolation_value=-2.0), in_matrix=False
            ),
        },
        image="x",
        reference=_cropped,
        slack=8,
        wrong_values=(
            ("boxes are not (y1, x1, y2, x2)", lambda: _wrong(boxes=numbers((3, 5)))),
            ("box_indices does not belong to boxes", lambda: _wrong(of=OF[:2])),
            ("box_indices does not belong to boxes", lambda: _wrong(of=OF[:, None])),
            ("crop_size is too small", lambda: _wrong(size=0)),
            ("crop_size is too large", lambda: _wrong(size=(1, 2**24 + 1))),
            ("an image is too large", lambda: _wrong(size=2**20)),
            ("unknown method", lambda: _wrong(method="linear")),
            ("extrapolation_value is out of range", lambda: _wrong(extrapolation_value=float("nan"))),
            (
                "too many images, or too long ones",
                lambda: _wrong(x=mx.zeros((1, 1, 2**24 + 1, 1)), of=OF * 0),
            ),
        ),
        wrong_types=(
            ("boxes is not an array", lambda: _wrong(boxes=[[0, 0, 1, 1]])),
            ("boxes has no floating dtype", lambda: _wrong(boxes=SOME.astype(mx.int32))),
            ("boxes and x differ in dtype", lambda: _wrong(boxes=SOME.astype(mx.float16))),
            ("box_indices has no integer dtype", lambda: _wrong(of=SOME[:, 0])),
            ("box_indices is not an array", lambda: _wrong(of=[0, 1, 0])),
            ("crop_size is not an int", lambda: _wrong(size=(2.5, 3))),
            ("method is not a name", lambda: _wrong(method=1)),
            ("extrapolation_value is not a number", lambda: _wrong(extrapolation_value="0")),
        ),
        cases=_cases,
        loads={
            "box_sample": Loads(_turned, {"x": (IMAGE, 4 * IMAGE), "boxes": (40, 40 * 12 * 12 * 4)}),
            # By all three threadgroups twice, the number of each box.
            "box_order": Loads(_turned, {"boxes": (40, 2 * 3 * 2 * 4)}),
            # By eight tiles, of 256 threads: the limits of the list by each, the box by one that looks for boxes near
            # and by 32 that make weights, each of which reads both ends along an axis.
            "box_sample_grad": Loads(
                _turned,
                {
                    "dy": (IMAGE, 4.5 * IMAGE),
                    "boxes": (40, 8 * (16 + 32 * 8)),
                    "order": (8, 8 * 33 * 4),
                    "begins": (12, 8 * 256 * 8),
                },
            ),
            "box_sample_grad_boxes": Loads(
                _turned, {"dy": (IMAGE, IMAGE), "x": (IMAGE, 4 * IMAGE), "boxes": (40, 40 * 12 * 64)}
            ),
        },
        benchmarks={"crop_and_resize": measured(1.0)},
        nodes={
            "": Node(
                lambda x: graph.crop_and_resize(x, [(0, 0.25, 0.75, 1), (0, 0, 1, 1)], (3, 2)),
                lambda p, x: _in_graph(x),
            ),
        },
    ),
    OpInfo(
        name="crop_and_resize_fwd",
        samples={"": call("crop_and_resize_fwd", X, BOXES, INDICES, CROP)},
        image="x",
        reference=_cropped,
        slack=8,
        linear=(0,),
    ),
    OpInfo(
        name="crop_and_resize_grad",
        samples={
            "": call("crop_and_resize_grad", DY, BOXES, INDICES, _state(X.shape)),
            "nearest": call("crop_and_resize_grad", DY, BOXES, INDICES, _state(X.shape, method="nearest")),
            "of eight channels": Sample(
                call("crop_and_resize_grad", Array((5, 5, 5, 8)), MANY, OF_MANY, _state(EIGHT.shape, 5)),
                in_matrix=False,
            ),
        },
        benchmarks={"crop_and_resize_grad": measured(0.8)},
        image="dy",
        reference=_spread,
        slack=8,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: _refused(op="pad")),
            ("dy does not belong to this state", lambda: _refused(channels=3)),
            ("dy does not belong to this state", lambda: _refused(boxes=SOME[:1], of=OF[:1])),
            ("boxes are not (y1, x1, y2, x2)", lambda: _refused(boxes=SOME[:, :3])),
            ("box_indices does not belong to boxes", lambda: _refused(of=OF[:1])),
            ("state.images is out of range", lambda: _refused(images=-1)),
            ("state.height is out of range", lambda: _refused(height=0)),
            ("state.cols is out of range", lambda: _refused(cols=0)),
            ("unknown state.method", lambda: _refused(method="?")),
            ("state.extrapolation_value is out of range", lambda: _refused(extrapolation_value=float("inf"))),
        ),
        wrong_types=(
            (
                "not a state of this operation",
                lambda: mf.crop_and_resize_grad(CROPS, SOME, OF, _OTHER),  # type: ignore[arg-type]  # refused
            ),
            ("boxes and dy differ in dtype", lambda: _refused(boxes=SOME.astype(mx.bfloat16))),
            ("box_indices is not an array", lambda: _refused(of=None)),
        ),
    ),
    OpInfo(
        name="crop_and_resize_grad_boxes",
        samples={
            "": call("crop_and_resize_grad_boxes", DY, X, BOXES, INDICES, _state(X.shape)),
            "of eight channels": Sample(
                call("crop_and_resize_grad_boxes", Array((5, 5, 5, 8)), EIGHT, MANY, OF_MANY, _state(EIGHT.shape, 5)),
                in_matrix=False,
            ),
        },
        image="x",
        reference=_slopes,
        slack=32,
        linear=(0, 1),
        wrong_values=(
            ("x does not belong to this state", lambda: _refused_by_boxes(x=IMAGES[:, 1:])),
            ("x does not belong to this state", lambda: _refused_by_boxes(x=IMAGES[:1])),
            ("dy does not belong to this state", lambda: _refused_by_boxes(dy=CROPS[..., 1:])),
            ("boxes are not (y1, x1, y2, x2)", lambda: _refused_by_boxes(boxes=SOME[0])),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: _refused_by_boxes(dy=CROPS.astype(mx.float16))),
            ("not a state of this operation", lambda: _refused_by_boxes(state="state")),
        ),
    ),
    OpInfo(
        name="crop_and_resize_state",
        differentiable=False,
        compared="generic/test_references.py",
        samples={"": call("crop_and_resize_state", X.shape, CROP, **NEAREST)},
        wrong_values=(
            ("not an image batch", lambda: mf.crop_and_resize_state((1, 2, 3), 2)),
            ("crop_size is too small", lambda: mf.crop_and_resize_state((1, 2, 3, 4), -1)),
        ),
        wrong_types=(("x_shape is not a shape", lambda: mf.crop_and_resize_state(3, 2)),),  # type: ignore[arg-type]  # refused
    ),
)
