"""Correlations with the neighbours in another image: `local_correlation` and `local_correlation_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Loads, Node, OpInfo, Sample, call
from metal_host.case import Case, named
from metal_host.geometry import IMAGE, SHAPE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target
from support.oracle import correlation as oracle

import mpsfunc as mf
from mpsfunc import graph

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16

# Samples, and what they should give ----------------------------------------------------------------------

X, Y, EIGHT = Array((2, 3, 4, 2)), Array((2, 3, 4, 2)), Array((2, 5, 6, 8))
# By what is special: the window, the stride, and how many features there are.
HOW: dict[str, tuple[Any, Any, int]] = {
    "": (1, 1, 9),
    "with strides": ((1, 2), (2, 3), 15),
    "that lead off the image": ((3, 4), 1, 63),
    "along x": ((0, 2), 2, 5),
    "of a pixel": (0, 1, 1),
}
IN_MATRIX = "", "along x"


def _of(function: str, label: str, shape: tuple[int, ...], **more: Any) -> Call:
    window, stride, features = HOW[label]
    given = (Array((*shape[:3], features)),) if function.endswith("grad") else ()
    return call(function, *given, Array(shape), Array(shape), window, stride=stride, **more)


# Kernel cases -------------------------------------------------------------------------------------------


def _case(shape: tuple[int, ...], dtype: mx.Dtype, window: Any, stride: Any = 1, crowded: bool = False) -> Case:
    """Correlations, and the gradients by both images."""

    def check() -> None:
        x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
        of = [exact(x), exact(y)]
        made = mf.local_correlation(x, y, window, stride=stride)
        close(
            made, oracle.correlate(*of, window, stride=stride), oracle.correlate(*map(abs, of), window, stride=stride)
        )
        dy = numbers(made.shape, dtype, 2)
        for operand in ("primary", "secondary"):
            how: dict[str, Any] = {"stride": stride, "operand": operand}
            right = oracle.gradient(exact(dy), *of, window, **how)
            size = oracle.gradient(abs(exact(dy)), *map(abs, of), window, **how)
            close(mf.local_correlation_grad(dy, x, y, window, **how), right, size)

    bodies = "local_correlation", "local_correlation_grad"
    return Case(named("local_correlation", shape, dtype, window=window, stride=stride), bodies, check, crowded)


def _beside_infinity() -> Case:
    """What is beyond the image is in no product, not even with infinity."""

    def check() -> None:
        x = mx.where(mx.arange(24).reshape(1, 3, 4, 2) % 5 == 0, mx.inf, mx.ones((1, 3, 4, 2)))
        y = mx.abs(numbers(x.shape, seed=1)) + 1
        made, right = exact(mf.local_correlation(x, y, (1, 2))), oracle.correlate(np.ones(x.shape), exact(y), (1, 2))
        infinite = np.isinf(exact(x)).any(-1)[..., None] & (right != 0)
        np.testing.assert_array_equal(np.isinf(made), infinite)
        np.testing.assert_allclose(made[~infinite], right[~infinite], rtol=1e-5)

    return Case("local_correlation beside infinity", ("local_correlation",), check)


def _cases() -> Iterator[Case]:
    yield _case((2, 5, 9, 8), F32, 1)
    yield _case((1, 4, 7, 3), F32, (2, 1), (1, 2))
    yield _case((2, 3, 11, 16), F16, (1, 3), (2, 3))
    yield _case((1, 6, 5, 8), BF16, (0, 2))
    yield _case((1, 1, 3, 1), F32, (0, 1))  # few elements in each array
    yield _case((1, 1, 2, 1), F16, 0)
    yield _case((1, 2, 1, 1), BF16, (1, 0))
    yield _case((1, 3, 4, 20), F32, (4, 5), (1, 2))  # off the image, and more packs than a round of threads has
    yield _case((1, 3, 4, 80), F32, 1, 2)  # several rounds of packs
    yield _case((1, 3, 5, 4), F32, 1, 9)  # a stride that is wider than the image
    yield _case((2, 18, 24, 8), F32, 3, crowded=True)
    yield _beside_infinity()


# What bodies load ---------------------------------------------------------------------------------------

_FEATURES = 2 * 12 * 12 * 9 * 4  # bytes


def _three_by_three() -> None:
    x, y = numbers(SHAPE), numbers(SHAPE, seed=1)
    mf.local_correlation_grad(mf.local_correlation(x, y, 1), x, y, 1)


# What is measured ---------------------------------------------------------------------------------------

# A window of 2.
_CPU = Measured(targets=LEVEL, dtypes=FLOAT32)
_GPU = Measured(targets=(Target(PYTORCH, 1.0),), dtypes=FLOAT32)


def _measured(of_x: int) -> Benchmark:
    return Benchmark("pointwise", of_x, 1, given=("other",), cpu=(_CPU,), gpu=(_GPU,), features=25)


# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES = numbers((2, 6, 5, 4))
PULL = numbers((2, 6, 5, 9))

OPS = (
    OpInfo(
        name="local_correlation",
        samples={
            **{label: _of("local_correlation", label, X.shape) for label in IN_MATRIX},
            **{
                f"of eight channels {label}".strip(): Sample(
                    _of("local_correlation", label, EIGHT.shape), in_matrix=False
                )
                for label in HOW
            },
        },
        image="x",
        reference=oracle.correlate,
        linear=(0, 1),
        wrong_values=(
            ("y does not belong to x", lambda: mf.local_correlation(IMAGES, IMAGES[:, :5])),
            ("window is too small", lambda: mf.local_correlation(IMAGES, IMAGES, (1, -1))),
            ("stride is too small", lambda: mf.local_correlation(IMAGES, IMAGES, 1, stride=0)),
            ("stride is too large", lambda: mf.local_correlation(IMAGES, IMAGES, 1, stride=2**30)),
            ("window is too large", lambda: mf.local_correlation(IMAGES, IMAGES, (2**30, 0))),
            ("an image is too large", lambda: mf.local_correlation(IMAGES, IMAGES, 2**15)),
            ("window is not a pair", lambda: mf.local_correlation(IMAGES, IMAGES, (1, 2, 3))),
        ),
        wrong_types=(
            ("y is not an array", lambda: mf.local_correlation(IMAGES, None)),
            ("y and x differ in dtype", lambda: mf.local_correlation(IMAGES, IMAGES.astype(mx.float16))),
            ("window is not an int", lambda: mf.local_correlation(IMAGES, IMAGES, 1.0)),
        ),
        cases=_cases,
        loads={
            # Runs of four columns load six neighbours for three offsets, and their own pixels for each row of offsets.
            "local_correlation": Loads(
                _three_by_three, {"primary": (IMAGE, 3 * IMAGE), "secondary": (IMAGE, 4.5 * IMAGE)}
            ),
            # Four packs of a pixel are four threads, each of which reads what dy says of it; runs of four columns load
            # six neighbours.
            "local_correlation_grad": Loads(
                _three_by_three, {"dy": (_FEATURES, 4 * _FEATURES), "x": (IMAGE, 4.5 * IMAGE)}
            ),
        },
        benchmarks={"local_correlation": _measured(2)},
        nodes={
            "": Node(
                lambda x, y: graph.local_correlation(x, y, (1, 2), stride=2),
                lambda p, x, y: mf.local_correlation(x, y, (1, 2), stride=2),
                shapes=((2, 6, 5, 4), (2, 6, 5, 4)),
            )
        },
    ),
    OpInfo(
        name="local_correlation_grad",
        samples={
            **{label: _of("local_correlation_grad", label, X.shape) for label in IN_MATRIX},
            "of the secondary image": _of("local_correlation_grad", "along x", X.shape, operand="secondary"),
            **{
                f"of eight channels, by the {operand} image {label}".strip(): Sample(
                    _of("local_correlation_grad", label, EIGHT.shape, operand=operand), in_matrix=False
                )
                for label in HOW
                for operand in ("primary", "secondary")
            },
        },
        image="x",
        reference=oracle.gradient,
        linear=(0,),
        wrong_values=(
            ("dy does not belong to the images", lambda: mf.local_correlation_grad(PULL[..., :8], IMAGES, IMAGES, 1)),
            ("dy does not belong to the images", lambda: mf.local_correlation_grad(PULL[:1], IMAGES, IMAGES, 1)),
            ("y does not belong to x", lambda: mf.local_correlation_grad(PULL, IMAGES, IMAGES[:1], 1)),
            ("window is too small", lambda: mf.local_correlation_grad(PULL, IMAGES, IMAGES, -1)),
            ("unknown operand", lambda: mf.local_correlation_grad(PULL, IMAGES, IMAGES, 1, operand="x")),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.local_correlation_grad(1.0, IMAGES, IMAGES, 1)),
            ("dy and x differ in dtype", lambda: mf.local_correlation_grad(PULL.astype(F16), IMAGES, IMAGES, 1)),
            ("operand is not a name", lambda: mf.local_correlation_grad(PULL, IMAGES, IMAGES, 1, operand=1)),
        ),
        benchmarks={"local_correlation_grad": _measured(4)},
    ),
)
