"""Pixels and channels around images: `pad`, `pad_fwd`, `pad_grad` and `pad_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from generic.ops.resize import BF16, F16, F32, IMAGES, LARGE, OTHER, PIXEL, X, backward
from metal_host.case import Case, named
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, Benchmark, Measured
from support.oracle import image as oracle

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------

AROUND = (1, 5, 1), (0, 2, 2)
MODES = ("constant", "zero", "clamp", "mirror", "mirror_with_edge", "circular")
CALLED = {
    "replicate": "clamp",
    "edge": "clamp",
    "reflect": "mirror",
    "symmetric": "mirror_with_edge",
    "wrap": "circular",
}
EIGHT, MORE, LARGER = Array((2, 5, 4, 8)), ((1, 2, 0), (0, 1, 3)), Array((2, 6, 7, 11))


def _sizes(sizes: Any) -> tuple[int, int, int]:
    """Of rows, columns and channels."""
    y, x, c = (sizes, sizes, 0) if isinstance(sizes, int) else (*sizes, 0)[:3]
    return y, x, c


def _matrices(shape: tuple[int, ...], before: Any, after: Any, mode: str = "constant") -> tuple[np.ndarray, ...]:
    around = zip(shape[1:], _sizes(before), _sizes(after), strict=True)
    return tuple(oracle.padded(*axis, {"zero": "constant", **CALLED}.get(mode, mode)) for axis in around)


def _padded(x: np.ndarray, before: Any, after: Any, mode: str = "constant", value: float = 0.0) -> np.ndarray:
    matrices = _matrices(x.shape, before, after, mode)
    return oracle.along(x, *matrices) + value * (oracle.along(np.ones(x.shape), *matrices) == 0)


# Kernel cases -------------------------------------------------------------------------------------------


def _case(shape: tuple[int, ...], dtype: mx.Dtype, mode: str) -> Case:
    """Around rows and columns, and back."""
    before, after, value = (1, 5), (2, 0), 3 if mode == "constant" else 0
    matrices = _matrices(shape, before, after, mode)

    def check() -> None:
        x = numbers(shape, dtype)
        y, state = mf.pad_fwd(x, before, after, mode, value)
        np.testing.assert_array_equal(exact(y), _padded(exact(x), before, after, mode, value))
        dy = numbers(tuple(y.shape), dtype, 1)
        back = [oracle.along(v, *(m.T for m in matrices)) for v in (exact(dy), abs(exact(dy)))]
        close(mf.pad_grad(dy, state), *back)

    return Case(named("pad", shape, dtype, mode=mode), ("gather_pixels", "resample"), check)


def _cases() -> Iterator[Case]:
    """For the bodies of `upsample_nearest` and `upsample_bilinear`."""
    yield _case((2, 3, 4, 8), F32, "constant")
    yield _case((3, 3, 2, 3), F32, "mirror")
    yield _case((2, 3, 4, 16), F16, "clamp")
    yield _case((2, 2, 5, 8), BF16, "mirror_with_edge")
    yield _case((2, 3, 4, 4), F32, "circular")


# Wrong calls, and the records ---------------------------------------------------------------------------

WHOLE = IMAGES.astype(mx.int32)
_STATE = mf.pad_state(IMAGES.shape, 1, 2, "mirror")


def _refused(**fields: Any) -> mx.array:
    """By the gradient, of a state whose rows say something else."""
    return mf.pad_grad(LARGE, _STATE._replace(rows=_STATE.rows._replace(**fields)))


def _measured(ending: str) -> dict[str, Benchmark]:
    on_cpu = (Measured({"padding": 1}, LEVEL, FLOAT32),)
    modes = ("zero", "clamp", "mirror", "circular")
    return {f"pad_{m}{ending}": Benchmark("pointwise", 1, 1, title=f"pad{ending} {m}", cpu=on_cpu) for m in modes}


OPS = (
    OpInfo(
        name="pad",
        benchmarks=_measured(""),
        takes_integers=True,
        samples={
            "": call("pad", X, *AROUND, mode="mirror"),
            "round and round": Sample(call("pad", X, *AROUND, mode="circular"), in_matrix=False),
            "with a constant": call("pad", X, *AROUND, value=2.0),
            "with a constant of eight channels": Sample(call("pad", EIGHT, 1, 1, value=0.5), in_matrix=False),
        },
        reference=_padded,
        wrong_values=(
            ("an axis is too long", lambda: mf.pad(PIXEL, (2**24, 0), 0)),
            ("before is out of range", lambda: mf.pad(IMAGES, -1, 0)),
            ("after[2] is out of range", lambda: mf.pad(IMAGES, 0, (0, 0, -1))),
            ("before has another number of sizes", lambda: mf.pad(IMAGES, (1,), 0)),
            ("unknown mode", lambda: mf.pad(IMAGES, 1, 1, "border")),
            ("value goes with a constant", lambda: mf.pad(IMAGES, 1, 1, "zero", 1.0)),
            ("value goes with a constant", lambda: mf.pad(IMAGES, 1, 1, "clamp", float("nan"))),
            ("an image is too large", lambda: mf.pad(IMAGES, 2**15, 0)),
        ),
        wrong_types=(
            ("x is not an array", lambda: mf.pad(None, 1, 1)),
            ("before is not an int", lambda: mf.pad(IMAGES, 1.0, 1)),
            ("after[0] is not an int", lambda: mf.pad(IMAGES, 1, (True, 1))),
            ("mode is not a name", lambda: mf.pad(IMAGES, 1, 1, 2)),
            ("value is not a number", lambda: mf.pad(IMAGES, 1, 1, value="0")),
            ("value is not a number", lambda: mf.pad(IMAGES, 1, 1, value=mx.array(1.0))),
            ("the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=0.5)),
            ("the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=2**31)),
            ("the dtype does not hold value", lambda: mf.pad(WHOLE.astype(mx.uint8), 1, 1, value=-1)),
            ("the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=float("nan"))),
            ("the dtype does not hold value", lambda: mf.pad(WHOLE, 1, 1, value=float("inf"))),
        ),
        cases=_cases,
        nodes={
            "": Node(
                lambda x: graph.pad(x, (1, 0, 2), (0, 2, 1), "clamp"),
                lambda p, x: mf.pad(x, (1, 0, 2), (0, 2, 1), "clamp"),
            )
        },
    ),
    OpInfo(
        name="pad_fwd",
        takes_integers=True,
        samples={
            "": call("pad_fwd", X, 1, (0, 3), "clamp"),
            "of mirrored pixels": call("pad_fwd", OTHER, 1, 2, "mirror"),
            **{
                f"of eight channels, {mode}": Sample(call("pad_fwd", EIGHT, *MORE, mode), in_matrix=False)
                for mode in (*MODES, *CALLED)
            },
        },
        reference=_padded,
        linear=(0,),
    ),
    OpInfo(
        name="pad_grad",
        benchmarks=_measured("_grad"),
        samples={
            "": call("pad_grad", Array((2, 4, 11, 7)), call("pad_state", X.shape, *AROUND, mode="mirror")),
            "of mirrored pixels": call("pad_grad", Array((2, 8, 7, 4)), call("pad_state", OTHER.shape, 1, 2, "mirror")),
            **{
                f"of eight channels, {mode}": Sample(
                    call("pad_grad", LARGER, call("pad_state", EIGHT.shape, *MORE, mode)), in_matrix=False
                )
                for mode in MODES
            },
        },
        image="dy",
        reference=backward(_matrices),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("an axis is too long", lambda: _refused(after=2**25)),
            ("state.rows.before is out of range", lambda: _refused(before=-1)),
            ("state.rows.n_in is out of range", lambda: _refused(n_in=0)),
            ("unknown state.rows.mode", lambda: _refused(mode="?")),
            ("an image is too large", lambda: _refused(after=2**30)),
        ),
        wrong_types=(("the state holds no axis", lambda: mf.pad_grad(LARGE, _STATE._replace(channels=3))),),
    ),
    OpInfo(
        name="pad_state",
        differentiable=False,
        compared="image/test_moves.py",
        samples={"": call("pad_state", X.shape, *AROUND, mode="mirror")},
        wrong_values=(
            ("an image is too large", lambda: mf.pad_state(IMAGES.shape, (0, 2**30), 0)),
            ("not an image batch", lambda: mf.pad_state((6, 5, 4), 0, 0)),
        ),
    ),
)
