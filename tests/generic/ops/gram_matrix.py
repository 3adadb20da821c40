"""Gram matrices of images: `gram_matrix` and `gram_matrix_grad`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from support import numbers
from support.benchmarks import FLOAT32, LEVEL, PYTORCH, Benchmark, Measured, Target

import mpsfunc as mf
from mpsfunc import graph

# Samples, and what they should give ----------------------------------------------------------------------


def _matrix(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    made: np.ndarray = alpha * np.einsum("nhwf,nhwc->nfc", x, x)[:, None]
    return made


def _gradient(dy: np.ndarray, x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    made: np.ndarray = alpha * np.einsum("nkc,nhwc->nhwk", dy[:, 0] + dy[:, 0].swapaxes(1, 2), x)
    return made


SIZES = {
    "of few channels": ((2, 5, 7, 3), 0.5),
    "of eight channels": ((3, 4, 5, 8), 1.0),
    "of many channels": ((1, 6, 6, 40), -0.125),
    "of many images": ((9, 3, 2, 5), 1.0),
    "of one pixel": ((2, 1, 1, 6), 1.0),
}

# What is measured ---------------------------------------------------------------------------------------

_CPU = Measured(targets=LEVEL, dtypes=FLOAT32)
_GPU = Measured(targets=(Target(PYTORCH, 1.0),), dtypes=FLOAT32)

# Wrong calls, and the records ---------------------------------------------------------------------------

IMAGES, PULL = numbers((2, 6, 5, 4)), numbers((2, 1, 4, 4))
OPS = (
    OpInfo(
        name="gram_matrix",
        samples={
            "": call("gram_matrix", Array((2, 3, 4, 4))),
            "with alpha": call("gram_matrix", Array((2, 2, 3, 3)), alpha=0.25),
            **{
                label: Sample(call("gram_matrix", Array(shape), alpha=alpha), in_matrix=False)
                for label, (shape, alpha) in SIZES.items()
            },
        },
        image="x",
        reference=_matrix,
        wrong_values=(
            ("alpha is out of range", lambda: mf.gram_matrix(IMAGES, alpha=float("inf"))),
            ("not an image batch", lambda: mf.gram_matrix(IMAGES[0])),
            ("an image is too large", lambda: mf.gram_matrix(mx.zeros((1, 1, 1, 2**16)))),
        ),
        wrong_types=(
            ("alpha is not a number", lambda: mf.gram_matrix(IMAGES, alpha="1")),
            ("x has no floating dtype", lambda: mf.gram_matrix(IMAGES.astype(mx.int32))),
        ),
        benchmarks={"gram_matrix": Benchmark("pointwise", 1, 0, cpu=(_CPU,), gpu=(_GPU,))},
        nodes={
            "": Node(
                lambda x: graph.gram_matrix(x, alpha=0.25),
                lambda p, x: mf.gram_matrix(x, alpha=0.25),
            )
        },
    ),
    OpInfo(
        name="gram_matrix_grad",
        samples={
            "": call("gram_matrix_grad", Array((2, 1, 4, 4)), Array((2, 3, 4, 4))),
            "with alpha": call("gram_matrix_grad", Array((2, 1, 3, 3)), Array((2, 2, 3, 3)), alpha=0.25),
            **{
                label: Sample(
                    call("gram_matrix_grad", Array((n, 1, c, c)), Array((n, h, w, c)), alpha=alpha), in_matrix=False
                )
                for label, ((n, h, w, c), alpha) in SIZES.items()
            },
        },
        image="x",
        reference=_gradient,
        linear=(0, 1),
        slack=2,
        wrong_values=(
            ("dy does not belong to the images", lambda: mf.gram_matrix_grad(PULL[..., :3], IMAGES)),
            ("dy does not belong to the images", lambda: mf.gram_matrix_grad(PULL[:1], IMAGES)),
            ("alpha is out of range", lambda: mf.gram_matrix_grad(PULL, IMAGES, alpha=float("nan"))),
        ),
        wrong_types=(
            ("dy is not an array", lambda: mf.gram_matrix_grad(None, IMAGES)),
            ("dy and x differ in dtype", lambda: mf.gram_matrix_grad(PULL.astype(mx.float16), IMAGES)),
        ),
        benchmarks={"gram_matrix_grad": Benchmark("pointwise", 2, 0, ("matrix",), cpu=(_CPU,), gpu=(_GPU,))},
    ),
)
