"""Deformable convolution: `deform_conv`, with `_fwd`, `_state` and the gradients by all that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import SHAPE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import deform as oracle

import mpsfunc as mf
from mpsfunc.convolution import deform_columns
from mpsfunc.convolution.deform_columns import DeformSpec
from mpsfunc.convolution.params import DeformParams

# Samples, and what they should give ----------------------------------------------------------------------


class Kind(NamedTuple):
    """Shapes of images and weights, whether there is a mask, and where the windows sit."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    masked: bool
    how: dict[str, Any]

    @property
    def places(self) -> tuple[int, ...]:
        rows, cols = mf.deform_conv_state(self.x, self.w, **self.how)[-2:]
        return self.x[0], rows.n_out, cols.n_out, self.how.get("offset_groups", 1) * self.w[1] * self.w[2]

    @property
    def state(self) -> Call:
        return call("deform_conv_state", self.x, self.w, **self.how)

    def arrays(self, *names: str) -> tuple[Array, ...]:
        """Offsets and the mask are float32 as they are; of a kind with a mask they have the images' dtype."""
        *size, taps = self.places
        wide = not self.masked
        shapes = {"x": self.x, "w": self.w, "b": self.w[:1], "dy": (*size, self.w[0])}
        drawn = {name: Array(shape) for name, shape in shapes.items()}
        drawn |= {"offsets": Array((*size, 2 * taps), wide=wide), "mask": Array((*size, taps), wide=wide)}
        return tuple(drawn[name] for name in names)

    @property
    def mask(self) -> dict[str, Array]:
        return {"mask": self.arrays("mask")[0]} if self.masked else {}

    def state_of(self) -> Call:
        """A state whose gradients so far are arguments."""
        so_far = Array(self.w, wide=True), Array(self.w[:1], wide=True)
        axes = (call("deform_conv_state", self.x, self.w, take=take, **self.how) for take in (5, 6))
        groups = self.how.get("groups", 1), self.how.get("offset_groups", 1)
        return call("DeformConvState", *so_far, "deform_conv", *groups, *axes)


KINDS = {
    "": Kind((2, 3, 4, 4), (3, 2, 2, 4), False, {"stride": (2, 1), "padding": 1}),
    "masked, in groups": Kind(
        (2, 3, 4, 4), (4, 2, 1, 2), True, {"groups": 2, "offset_groups": 2, "dilation": (2, 1), "padding": (1, 0)}
    ),
}
# Not in the matrix of transformations.
LARGER = {
    "of 16 channels": Kind((2, 7, 8, 16), (16, 3, 3, 16), True, {"padding": 1}),
    "of odd sizes": Kind((3, 9, 8, 6), (4, 3, 2, 6), True, {"stride": 2, "dilation": (1, 2), "offset_groups": 3}),
    "of groups of each channel": Kind((1, 6, 5, 8), (8, 3, 3, 1), False, {"groups": 8, "padding": "same"}),
    "of a pixel": Kind((2, 1, 1, 1), (1, 1, 1, 1), True, {}),
}
PLAIN, MASKED = KINDS[""], KINDS["masked, in groups"]


def each(made: Any, outputs: tuple[int, ...] | None = None) -> dict[str, Sample]:
    found = {label: Sample(made(kind), outputs) for label, kind in KINDS.items()}
    return found | {label: Sample(made(kind), outputs, in_matrix=False) for label, kind in LARGER.items()}


def each_masked(made: Any) -> dict[str, Sample]:
    return {label: sample for label, sample in each(made).items() if (KINDS | LARGER)[label].masked}


class Definition(NamedTuple):
    """Where taps lie, and the groups of the weights."""

    tables: oracle.Tables
    groups: int

    @classmethod
    def of(cls, x: Any, w: Any, offsets: Any, mask: Any, **how: Any) -> Definition:
        state = mf.deform_conv_state(x, w, **how)
        return cls(oracle.tables(offsets, mask, state.rows, state.cols, state.offset_groups), state.groups)

    @classmethod
    def of_state(cls, state: Call, offsets: Any, mask: Any) -> Definition:
        made = state if state.function == "deform_conv_state" else state.args[5]
        return cls.of(*made.args, offsets, mask, **made.how)


def _convolved(x: Any, offsets: Any, w: Any, b: Any = 0.0, mask: Any = None, **how: Any) -> np.ndarray:
    return oracle.deform_conv(x, w, b, *Definition.of(x.shape, w.shape, offsets, mask, **how))


# Kernel cases -------------------------------------------------------------------------------------------


def _spec(shape: tuple[int, ...], kernel: tuple[int, int], masked: bool, **how: Any) -> DeformSpec:
    state = mf.deform_conv_state(shape, (1, *kernel, shape[3]), **how)
    params = DeformParams(state.rows, state.cols, state.offset_groups, int(masked), 0, 0, 0)
    return DeformSpec(params, 1, False, mx.default_stream(mx.cpu))


def _case(
    shape: tuple[int, ...],
    kernel: tuple[int, int] = (2, 2),
    crowded: bool = False,
    masked: bool = True,
    spread: float = 1.0,
    **how: Any,
) -> Case:
    """The samples, and their gradients by images and places."""

    def check() -> None:
        spec = _spec(shape, kernel, masked, **how)
        p, taps = spec.params, spec.taps
        size = shape[0], p.rows.n_out, p.cols.n_out
        x, dcolumns = numbers(shape), numbers((*size, taps * shape[3]), seed=1)
        offsets, mask = (
            spread * numbers((*size, p.groups * taps, 2), seed=3),
            numbers((*size, p.groups * taps, 1), seed=4),
        )
        places = mx.concatenate([offsets, mask], axis=-1) if masked else offsets
        places = places.reshape(*size, p.groups * taps * spec.numbers)
        of = oracle.tables(exact(offsets), exact(mask) if masked else None, p.rows, p.cols, p.groups)
        larger = oracle.Tables(*map(abs, of))
        ex, pulled = exact(x), exact(dcolumns).reshape(*size, taps, shape[3])
        far = 16 * max(shape[1:3])  # positions are rounded once more than what is made of them
        made = deform_columns.columns(x, places, spec).reshape(pulled.shape)
        close(made, oracle.columns(ex, of), far * (1 + oracle.columns(abs(ex), larger)))
        made = deform_columns.spread(dcolumns, places, spec)
        close(made, oracle.spread(pulled, of), far * (1 + oracle.spread(abs(pulled), larger)))
        right = oracle.slopes(pulled, ex, of)[..., : spec.numbers]
        made = deform_columns.slopes(dcolumns, x, places, spec).reshape(right.shape)
        close(made, right, far * (1 + oracle.slopes(abs(pulled), abs(ex), larger).max()))

    return Case(named("deform_conv", shape, F32, k=kernel, masked=masked, **how), BODIES, check, crowded)


def _of_few_threads(case: Case) -> Case:
    """Of as few as the thread sanitizer tells apart, which is less than 256."""

    def check() -> None:
        with mock.patch.object(deform_columns, "_THREADS", 128):
            case.check()

    return case._replace(name=f"{case.name} threads=128", check=check)


def _beside_infinity() -> Case:
    """Infinity goes where it has weight, and nowhere else."""

    def check() -> None:
        x = mx.where(mx.arange(9).reshape(1, 3, 3, 1) == 5, mx.inf, mx.ones((1, 3, 3, 1)))
        spec, offsets = _spec(x.shape, (1, 1), True), np.zeros((3, 3, 2), np.float32)
        offsets[0, 0], offsets[0, 1], offsets[1, 1] = (1, 1), (1, -1), (0, 0.5)
        mask = np.where(np.arange(9) == 5, 0, 1).reshape(3, 3, 1)
        places = mx.array(np.concatenate([offsets, mask], -1)[None], mx.float32)
        y = exact(deform_columns.columns(x, places, spec)).reshape(3, 3)
        np.testing.assert_array_equal(y, [[1, 1, 1], [1, np.inf, 0], [1, 1, 1]])
        by = exact(deform_columns.slopes(mx.ones(x.shape), x, places, spec)).reshape(9, 3)
        np.testing.assert_array_equal(by[[0, 3, 4, 5], :2], [[0, np.inf], [0, 0], [-np.inf, np.inf], [0, 0]])
        np.testing.assert_array_equal(by[:, 2], [1, 1, 1, 1, np.inf, np.inf, 1, 1, 1])
        dx = exact(deform_columns.spread(x, places, spec)).reshape(3, 3)
        np.testing.assert_array_equal(dx, [[0, 0, 1], [2, 1.5, 0.5], [1, 1, 1]])

    return Case("deform_conv beside infinity", BODIES, check)


BODIES = "deform_columns", "deform_columns_bounds", "deform_columns_grad", "deform_places_grad"
F32 = mx.float32


def _cases() -> Iterator[Case]:
    yield _case((2, 5, 4, 8), (3, 3), padding=1)
    yield _case((1, 4, 5, 3), masked=False, stride=(1, 2))
    yield _case((2, 4, 9, 16), (1, 3), offset_groups=2, dilation=(1, 2))
    yield _case((2, 6, 5, 12), (2, 1), offset_groups=3, masked=False, padding="same")
    yield _case((1, 1, 2, 1), (1, 1))  # few elements in each array
    yield _case((1, 2, 1, 1), (1, 1), masked=False)
    yield _case((2, 9, 10, 68), (1, 2), spread=3.0)  # more packs than stand side by side
    yield _case((2, 19, 20, 4), (3, 3), spread=2.0, padding=1)  # more chunks of each tap than one
    yield _case((1, 3, 4, 66), (2, 1), offset_groups=2)  # more channels than lanes, one by one
    yield _case((1, 40, 33, 1), (7, 7), spread=0.5, padding=3)  # more chunks than threads look at together
    yield _case((3, 24, 26, 4), crowded=True, padding=1)
    yield _of_few_threads(_case((3, 9, 20, 4), (2, 3), crowded=True, padding=1))
    yield _beside_infinity()


# What bodies load ---------------------------------------------------------------------------------------

IMAGE_BYTES = 2 * 12 * 12 * 16 * 4
PLACES_BYTES = 2 * 12 * 12 * 9 * 3 * 4  # bytes


def moved() -> None:
    """Windows of three by three taps, each a quarter pixel away from where it stood."""
    spec = _spec(SHAPE, (3, 3), True, padding=1)
    x, dcolumns = numbers(SHAPE), numbers((*SHAPE[:3], 9 * SHAPE[3]), seed=1)
    places = mx.broadcast_to(mx.array([0.25, 0.25, 1.0]), (*SHAPE[:3], 9, 3)).reshape(*SHAPE[:3], 27)
    deform_columns.columns(x, places, spec)
    deform_columns.spread(dcolumns, places, spec)
    deform_columns.slopes(dcolumns, x, places, spec)


# What is measured ---------------------------------------------------------------------------------------

_WINDOW = {"kernel_size": 3, "stride": 1, "padding": 1}


def measured(of_x: int, of_y: int, least: float, title: str = "") -> Benchmark:
    on_cpu = Measured(_WINDOW, LEVEL, FLOAT32)
    on_gpu = Measured(_WINDOW, (Target(PYTORCH, least),), FLOAT32, shape=(32, 56, 56, 64))
    given = "w", "offsets", "tap_mask"
    return Benchmark("convolution", of_x, of_y, given, title=title, cpu=(on_cpu,), gpu=(on_gpu,))


# Wrong calls, and the records ---------------------------------------------------------------------------

X, W, OFFSETS, MASK = numbers((2, 6, 5, 4)), numbers((6, 3, 3, 4)), numbers((2, 4, 3, 18)), numbers((2, 4, 3, 9))
DY, STATE = numbers((2, 4, 3, 6)), mf.deform_conv_state((2, 6, 5, 4), (6, 3, 3, 4))
NO_NODE = "MPS has none"


OPS = (
    OpInfo(
        name="deform_conv",
        samples={
            "": call("deform_conv", *PLAIN.arrays("x", "offsets", "w"), **PLAIN.how),
            **{
                " ".join(filter(None, (label, "with a bias"))): sample
                for label, sample in each(
                    lambda kind: call("deform_conv", *kind.arrays("x", "offsets", "w", "b"), **kind.mask, **kind.how)
                ).items()
            },
        },
        image="x",
        reference=_convolved,
        slack=8,  # of positions
        no_node=NO_NODE,
        wrong_values=(
            ("the weights do not fit the images", lambda: mf.deform_conv(X, OFFSETS, W[..., :3])),
            ("the bias does not fit the weights", lambda: mf.deform_conv(X, OFFSETS, W, mx.ones(5))),
            ("offsets and windows do not fit together", lambda: mf.deform_conv(X, OFFSETS[:1], W)),
            ("offsets and windows do not fit together", lambda: mf.deform_conv(X, OFFSETS[..., :9], W)),
            ("offsets and windows do not fit together", lambda: mf.deform_conv(X, OFFSETS, W, padding=1)),
            ("offsets and windows do not fit together", lambda: mf.deform_conv(X, OFFSETS, W, offset_groups=2)),
            ("mask and windows do not fit together", lambda: mf.deform_conv(X, OFFSETS, W, mask=OFFSETS)),
            ("groups of offsets do not divide the channels", lambda: mf.deform_conv(X, OFFSETS, W, offset_groups=3)),
            ("offset_groups is out of range", lambda: mf.deform_conv(X, OFFSETS, W, offset_groups=0)),
            ("groups do not divide the channels", lambda: mf.deform_conv(X, OFFSETS, W, groups=3)),
            ("window does not fit", lambda: mf.deform_conv(X, OFFSETS, mx.ones((1, 7, 3, 4)))),
            (
                "an axis of the image is too long",
                lambda: mf.deform_conv(mx.broadcast_to(mx.zeros(1), (1, 2**24 + 1, 1, 1)), OFFSETS, W[:, :1, :1, :1]),
            ),
            (
                "an image is too large",
                lambda: mf.deform_conv(
                    mx.broadcast_to(mx.zeros(1), (1, 2**14, 2**14, 1)), OFFSETS, W[..., :1], padding=1
                ),
            ),
        ),
        wrong_types=(
            ("offsets is not an array", lambda: mf.deform_conv(X, None, W)),
            ("offsets has no floating dtype", lambda: mf.deform_conv(X, OFFSETS.astype(mx.int32), W)),
            ("offsets and x differ in dtype", lambda: mf.deform_conv(X, OFFSETS.astype(mx.float16), W)),
            ("mask and x differ in dtype", lambda: mf.deform_conv(X, OFFSETS, W, mask=MASK.astype(mx.float16))),
            ("mask is not an array", lambda: mf.deform_conv(X, OFFSETS, W, mask=1.0)),
            ("offset_groups is not an int", lambda: mf.deform_conv(X, OFFSETS, W, offset_groups=1.0)),
        ),
        cases=_cases,
        loads={
            # Neighbours read the same pixels, four of each tap.
            "deform_columns": Loads(
                moved,
                {"x": (IMAGE_BYTES, 36 * IMAGE_BYTES), "places": (PLACES_BYTES, 4 * PLACES_BYTES)},
            ),
        },
        benchmarks={"deform_conv": measured(1, 1, 1.0)},
    ),
    OpInfo(
        name="deform_conv_fwd",
        samples=each(
            lambda kind: call("deform_conv_fwd", *kind.arrays("x", "offsets", "w", "b"), **kind.mask, **kind.how), (0,)
        ),
        image="x",
        reference=_convolved,
        slack=8,
    ),
    OpInfo(
        name="deform_conv_state",
        samples={"": PLAIN.state, "masked, in groups": MASKED.state},
        compared="convolution/test_deform_conv.py",
        differentiable=False,
        launches=False,
        wrong_values=(
            ("the weights do not fit the images", lambda: mf.deform_conv_state(X.shape, (6, 3, 3))),
            (
                "groups of offsets do not divide the channels",
                lambda: mf.deform_conv_state(X.shape, W.shape, offset_groups=8),
            ),
            (
                "an axis of the output is too long",
                lambda: mf.deform_conv_state((1, 1, 2**24, 1), (1, 1, 1, 1), padding=(0, 1)),
            ),
        ),
        wrong_types=(
            ("x_shape is not a shape", lambda: mf.deform_conv_state(3, W.shape)),
            ("no dtype of gradients", lambda: mf.deform_conv_state(X.shape, W.shape, dtype=mx.float16)),
        ),
    ),
)
