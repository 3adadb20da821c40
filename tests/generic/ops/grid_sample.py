"""Samples at the positions in a grid: `grid_sample`, with `_fwd`, `_grad`, `_grad_grid` and `_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, SHAPE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import sampling as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.image import grid_sample_rules

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16

# Samples, and what they should give ----------------------------------------------------------------------

X, EIGHT = Array((2, 3, 4, 4)), Array((2, 5, 4, 8))
PLACES, MANY = Array((2, 3, 2, 2), wide=True), Array((2, 4, 5, 2), wide=True)
DY = Array((2, 3, 2, 4))
HOW: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest"},
    "bicubic": {"mode": "bicubic"},
    "of aligned corners": {"align_corners": True},
    "by pixels": {"coordinates": "pixel"},
    "by offsets": {"coordinates": "offset"},
    "at a border": {"edge_mode": "border"},
    "reflected": {"edge_mode": "reflection"},
    "reflected at middles": {"edge_mode": "reflection", "align_corners": True},
    "nearest, reflected": {"mode": "nearest", "edge_mode": "reflection"},
    "bicubic at a border": {"mode": "bicubic", "edge_mode": "border", "coordinates": "offset"},
    "bicubic, reflected": {"mode": "bicubic", "edge_mode": "reflection", "coordinates": "pixel"},
    "bicubic, reflected at middles": {"mode": "bicubic", "edge_mode": "reflection", "align_corners": True},
}
CURVED = {"bicubic": HOW["bicubic"], "reflected": HOW["reflected"]}  # in the matrix of transformations


def _state(shape: tuple[int, ...], **how: Any) -> Call:
    return call("grid_sample_state", shape, **how)


def _of(state: Call) -> dict[str, Any]:
    """What a state says besides the shape."""
    return dict(state.how)


def _sampled(x: np.ndarray, grid: np.ndarray, **how: Any) -> np.ndarray:
    return oracle.sample(x, *oracle.tables(grid, x.shape, **how))


def _spread(dy: np.ndarray, grid: np.ndarray, state: Call) -> np.ndarray:
    return oracle.spread(dy, *oracle.tables(grid, state.args[0], **_of(state)))


def _slopes(dy: np.ndarray, x: np.ndarray, grid: np.ndarray, state: Call) -> np.ndarray:
    return oracle.slopes(dy, x, grid, **_of(state))


# Kernel cases -------------------------------------------------------------------------------------------


def places(shape: tuple[int, ...], seed: int = 5) -> mx.array:
    """Normalized ones, some of them outside, and a NaN where there are many."""
    made = mx.clip(0.7 * numbers((*shape, 2), seed=seed), -2.9, 2.9)
    if made.size > 40:
        made = mx.where(mx.arange(made.size).reshape(made.shape) == 17, mx.nan, made)
    return made


def _case(shape: tuple[int, ...], dtype: mx.Dtype, size: tuple[int, int], crowded: bool = False, **how: Any) -> Case:
    """Samples, and the gradients by both."""
    n, _, _, c = shape
    slopes = how.get("mode") != "nearest"
    bodies = ("grid_sample", "grid_sample_bounds", "grid_sample_grad", *(["grid_sample_grad_grid"] * slopes))

    def check() -> None:
        x, grid = numbers(shape, dtype), mx.nan_to_num(places((n, *size)), nan=6.7)
        if how.get("coordinates") == "pixel":
            grid = (grid + 1) * 2
        y, state = mf.grid_sample_fwd(x, grid, **how)
        tables = oracle.tables(exact(grid), shape, **how)
        sizes = [abs(table) for table in tables]
        # Positions are rounded once more than what is made of them.
        close(y, oracle.sample(exact(x), *tables), 16 + oracle.sample(abs(exact(x)), *sizes), slack=4)
        dy = numbers((n, *size, c), dtype, 1)
        right = oracle.spread(exact(dy), *tables)
        close(mf.grid_sample_grad(dy, grid, state), right, 16 + oracle.spread(abs(exact(dy)), *sizes), slack=4)
        if slopes:
            right = oracle.slopes(exact(dy), exact(x), exact(grid), **how)
            scale = 16 + 8 * abs(exact(dy)).sum(-1, keepdims=True) * (1 + abs(exact(x)).max())
            close(mf.grid_sample_grad_grid(dy, x, grid, state), right, scale * max(shape[1:3]), slack=4)

    return Case(named("grid_sample", shape, dtype, to=size, **how), bodies, check, crowded)


def _of_few_threads(case: Case) -> Case:
    """Of as few as the thread sanitizer tells apart, which is less than 256."""

    def check() -> None:
        with mock.patch.object(grid_sample_rules, "_THREADS", 128):
            case.check()

    return case._replace(name=f"{case.name} threads=128", check=check)


def _of_many_chunks() -> Case:
    """More chunks than threads look at together, of which a few have samples on the image."""

    def check() -> None:
        size, chunks = (16, 16 * 257), (0, 40, 255, 256)
        places, dy = np.full((1, *size, 2), 9.0, np.float32), numbers((1, *size, 1))
        columns = [16 * chunk + i for chunk in chunks for i in (0, 1, 15)]
        places[:, 3:5, columns] = exact(numbers((1, 2, len(columns), 2), seed=2))
        places[:, 15, columns[3]] = 2  # alone in the last lanes of its chunk
        state = mf.grid_sample_state((1, 3, 3, 1), "pixel")
        tables = oracle.tables(np.float64(places[:, :, columns]), (1, 3, 3, 1), coordinates="pixel")
        right = oracle.spread(exact(dy)[:, :, columns], *tables)
        close(mf.grid_sample_grad(dy, mx.array(places), state), right, 16, slack=4)

    return Case("grid_sample_grad of many chunks", ("grid_sample_bounds", "grid_sample_grad"), check)


def _beside_infinity() -> Case:
    """Infinity goes where it has weight, and nowhere else: a sample on a pixel has a slope to its right alone."""

    def check() -> None:
        x = mx.where(mx.arange(9).reshape(1, 3, 3, 1) == 5, mx.inf, mx.ones((1, 3, 3, 1)))
        grid = mx.array([[1.0, 1], [1, 0.5], [2, 0], [0.5, 1], [0, 2]]).reshape(1, 1, 5, 2)
        y, state = mf.grid_sample_fwd(x, grid, "pixel")
        np.testing.assert_array_equal(exact(y).ravel(), 1)
        dgrid = exact(mf.grid_sample_grad_grid(mx.ones(y.shape), x, grid, state)).reshape(5, 2)
        np.testing.assert_array_equal(dgrid, [[np.inf, 0], [np.inf, 0], [-1, np.inf], [0, 0], [0, -1]])
        dy = mx.array([np.inf, 1, 2, 3, 4]).reshape(y.shape)
        dx = exact(mf.grid_sample_grad(dy, grid, state)).reshape(3, 3)
        np.testing.assert_array_equal(dx, [[0, 0.5, 2], [1.5, np.inf, 0], [4, 0, 0]])

    bodies = "grid_sample", "grid_sample_bounds", "grid_sample_grad", "grid_sample_grad_grid"
    return Case("grid_sample beside infinity", bodies, check)


def _cases() -> Iterator[Case]:
    yield _case((2, 5, 4, 8), F32, (4, 5))
    yield _case((1, 4, 5, 3), F32, (3, 6), mode="bicubic", edge_mode="border")
    yield _case((2, 4, 9, 16), F16, (3, 4), mode="nearest", edge_mode="reflection")
    yield _case((2, 6, 5, 8), BF16, (5, 3), edge_mode="reflection", align_corners=True)
    yield _case((1, 1, 2, 1), F32, (1, 2), coordinates="pixel")  # few elements in each array
    yield _case((1, 1, 2, 1), F32, (1, 2), mode="nearest")
    yield _case((1, 2, 2, 1), F16, (1, 3), coordinates="offset", edge_mode="border")
    yield _case((2, 9, 10, 68), F32, (17, 18), edge_mode="border")  # more packs than stand side by side
    yield _case((1, 7, 6, 36), F32, (20, 5), mode="bicubic", edge_mode="reflection", coordinates="pixel")
    yield _case((1, 5, 6, 32), BF16, (33, 3), mode="bicubic", edge_mode="reflection", align_corners=True)
    yield _case((3, 9, 20, 4), F32, (40, 19), crowded=True, edge_mode="reflection")
    yield _case((1, 3, 4, 33), F32, (2, 3))  # more channels than lanes
    yield _of_few_threads(_case((3, 9, 20, 4), F32, (20, 19), crowded=True, edge_mode="border"))
    yield _of_many_chunks()
    yield _beside_infinity()


# What bodies load ---------------------------------------------------------------------------------------

_GRID = 2 * 12 * 12 * 2 * 4  # bytes


def _turned() -> None:
    """Each sample between four pixels."""
    x, dy = numbers(SHAPE), numbers(SHAPE, seed=1)
    theta = mx.broadcast_to(mx.array([[0.8, 0.1, 0.0], [-0.1, 0.8, 0.0]]), (2, 2, 3))
    grid = mf.affine_grid(theta, SHAPE[1:3])
    _, state = mf.grid_sample_fwd(x, grid)
    mf.grid_sample_grad(dy, grid, state)
    mf.grid_sample_grad_grid(dy, x, grid, state)


def _measured(of_x: int, least: float, title: str = "") -> Benchmark:
    """PyTorch has no grid of float32 for images of 16 bits."""
    on_cpu = Measured(targets=LEVEL, dtypes=FLOAT32)
    on_gpu = Measured(targets=(Target(PYTORCH, least),), dtypes=FLOAT32)
    return Benchmark("pointwise", of_x, 1, given=("grid",), title=title, cpu=(on_cpu,), gpu=(on_gpu,))


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, GRID, SAMPLES = numbers((2, 6, 5, 4)), numbers((2, 3, 2, 2)), numbers((2, 3, 2, 4))
_STATE = mf.grid_sample_state(IMAGES.shape)
_OTHER = mf.resize_nearest_state(IMAGES.shape, 3)


def _refused(grid: Any = GRID, **fields: Any) -> mx.array:
    return mf.grid_sample_grad(SAMPLES, grid, _STATE._replace(**fields))


def _refused_by_grid(dy: Any = SAMPLES, x: Any = IMAGES, grid: Any = GRID, state: Any = _STATE) -> mx.array:
    return mf.grid_sample_grad_grid(dy, x, grid, state)


OPS = (
    OpInfo(
        name="grid_sample",
        samples={
            "": call("grid_sample", X, PLACES),
            **{label: call("grid_sample", X, PLACES, **how) for label, how in CURVED.items()},
            **{
                f"of eight channels, {label}": Sample(call("grid_sample", EIGHT, MANY, **how), in_matrix=False)
                for label, how in HOW.items()
            },
        },
        image="x",
        reference=_sampled,
        slack=8,
        linear=(0,),
        wrong_values=(
            ("the grid does not belong to x", lambda: mf.grid_sample(IMAGES, GRID[:1])),
            ("the grid does not belong to x", lambda: mf.grid_sample(IMAGES, numbers((2, 3, 2, 3)))),
            ("a grid has no positions", lambda: mf.grid_sample(IMAGES, GRID[:, :0])),
            ("unknown coordinates", lambda: mf.grid_sample(IMAGES, GRID, "pixels")),
            ("unknown mode", lambda: mf.grid_sample(IMAGES, GRID, mode="linear")),
            ("unknown edge_mode", lambda: mf.grid_sample(IMAGES, GRID, edge_mode="zeros")),
            (
                "align_corners is for normalized coordinates",
                lambda: mf.grid_sample(IMAGES, GRID, "pixel", align_corners=True),
            ),
        ),
        wrong_types=(
            ("grid is not an array", lambda: mf.grid_sample(IMAGES, None)),
            ("grid has no floating dtype", lambda: mf.grid_sample(IMAGES, GRID.astype(mx.int32))),
            ("grid and x differ in dtype", lambda: mf.grid_sample(IMAGES, GRID.astype(mx.float16))),
            ("align_corners is not a bool", lambda: mf.grid_sample(IMAGES, GRID, align_corners=1)),
            ("mode is not a name", lambda: mf.grid_sample(IMAGES, GRID, mode=2)),
        ),
        cases=_cases,
        loads={
            "grid_sample": Loads(_turned, {"x": (IMAGE, 4 * IMAGE), "grid": (_GRID, 4 * _GRID)}),
            "grid_sample_bounds": Loads(_turned, {"grid": (_GRID, _GRID)}),
            # By four tiles of an image, of four packs each; the bounds by every thread of a tile that has a chunk.
            "grid_sample_grad": Loads(
                _turned, {"dy": (IMAGE, 4 * IMAGE), "grid": (_GRID, 4 * _GRID), "bounds": (32, 4 * 32)}
            ),
            "grid_sample_grad_grid": Loads(
                _turned, {"dy": (IMAGE, IMAGE), "x": (IMAGE, 4 * IMAGE), "grid": (_GRID, 4 * _GRID)}
            ),
        },
        benchmarks={"grid_sample": _measured(1, 1.0)},
        nodes={
            "": Node(
                lambda x, grid: graph.grid_sample(x, grid, edge_mode="border"),
                lambda p, x, grid: mf.grid_sample(x, grid, "pixel", edge_mode="border"),
                shapes=((2, 6, 5, 4), (2, 3, 4, 2)),
            ),
            "normalized": Node(
                lambda x, grid: graph.grid_sample(x, grid, "normalized", mode="bicubic"),
                lambda p, x, grid: mf.grid_sample(x, grid, mode="bicubic"),
                shapes=((2, 6, 5, 4), (2, 3, 4, 2)),
            ),
        },
    ),
    OpInfo(
        name="grid_sample_fwd",
        samples={"": call("grid_sample_fwd", X, PLACES, edge_mode="border")},
        image="x",
        reference=_sampled,
        slack=8,
        linear=(0,),
    ),
    OpInfo(
        name="grid_sample_grad",
        samples={
            "": call("grid_sample_grad", DY, PLACES, _state(X.shape)),
            **{label: call("grid_sample_grad", DY, PLACES, _state(X.shape, **how)) for label, how in CURVED.items()},
            **{
                f"of eight channels, {label}": Sample(
                    call("grid_sample_grad", Array((2, 4, 5, 8)), MANY, _state(EIGHT.shape, **how)), in_matrix=False
                )
                for label, how in HOW.items()
            },
        },
        benchmarks={"grid_sample_grad": _measured(1, 0.8)},
        image="dy",
        reference=_spread,
        slack=8,
        linear=(0,),
        wrong_values=(
            ("a state of another operation", lambda: _refused(op="pad")),
            ("dy does not belong to this state", lambda: _refused(channels=3)),
            ("dy does not belong to this state", lambda: _refused(GRID[:, :2])),
            ("dy does not belong to this state", lambda: _refused(GRID[:1])),
            ("the grid does not belong to dy", lambda: _refused(GRID[..., :1])),
            ("state.height is out of range", lambda: _refused(height=0)),
            ("state.width is out of range", lambda: _refused(width=2**24 + 1)),
            ("unknown state.mode", lambda: _refused(mode="?")),
            ("unknown state.edge_mode", lambda: _refused(edge_mode="?")),
            ("unknown state.coordinates", lambda: _refused(coordinates="?")),
            (
                "the state aligns corners of other coordinates",
                lambda: _refused(coordinates="pixel", align_corners=True),
            ),
        ),
        wrong_types=(
            ("not a state of this operation", lambda: mf.grid_sample_grad(SAMPLES, GRID, _OTHER)),
            ("grid and dy differ in dtype", lambda: _refused(GRID.astype(mx.bfloat16))),
        ),
    ),
    OpInfo(
        name="grid_sample_grad_grid",
        samples={
            "": call("grid_sample_grad_grid", DY, X, PLACES, _state(X.shape)),
            **{
                label: call("grid_sample_grad_grid", DY, X, PLACES, _state(X.shape, **how))
                for label, how in CURVED.items()
            },
            **{
                f"of eight channels, {label}": Sample(
                    call("grid_sample_grad_grid", Array((2, 4, 5, 8)), EIGHT, MANY, _state(EIGHT.shape, **how)),
                    in_matrix=False,
                )
                for label, how in HOW.items()
                if how.get("mode") != "nearest"
            },
        },
        benchmarks={"grid_sample_grads": _measured(2, 0.8, "grid_sample_grad and _grad_grid")},
        image="x",
        reference=_slopes,
        slack=32,  # of positions, which slopes are as many times larger than as there are pixels
        linear=(0, 1),
        wrong_values=(
            ("x does not belong to this state", lambda: _refused_by_grid(x=IMAGES[:, 1:])),
            ("the grid does not belong to x", lambda: _refused_by_grid(grid=GRID[:1])),
            ("dy does not belong to this state", lambda: _refused_by_grid(dy=SAMPLES[..., 1:])),
            ("dy does not belong to this state", lambda: _refused_by_grid(grid=GRID[:, :2])),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: _refused_by_grid(dy=SAMPLES.astype(mx.float16))),
            ("not a state of this operation", lambda: _refused_by_grid(state="state")),
        ),
    ),
    OpInfo(
        name="grid_sample_state",
        differentiable=False,
        compared="generic/test_references.py",
        samples={"": call("grid_sample_state", X.shape, "pixel")},
        wrong_values=(
            ("unknown edge_mode", lambda: mf.grid_sample_state(IMAGES.shape, edge_mode="clamp")),
            ("an axis of the image is too long", lambda: mf.grid_sample_state((1, 2**24 + 1, 1, 1))),
        ),
    ),
)
