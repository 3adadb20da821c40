"""What a convolution leaves for its gradients: `conv_fwd` and `conv_state`."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import OpInfo, Sample, call
from generic.ops.conv import KINDS, PLAIN, POOLING, W, X, labelled, larger, summed, with_kept

import mpsfunc as mf


def _forward(*args: Any, neuron: str, **how: Any) -> tuple[np.ndarray, ...]:
    return with_kept(summed(*args, **how), neuron)


OPS = (
    OpInfo(
        name="conv_fwd",
        samples={
            **{
                labelled(label, "with a relu"): Sample(
                    call("conv_fwd", *kind.arrays("x", "w", "b"), neuron="relu", **kind.how), (0,)
                )
                for label, kind in KINDS.items()
            },
            "with a tanh": Sample(
                call("conv_fwd", *POOLING.arrays("x", "w", "b"), neuron="tanh", **POOLING.how), (0, 3)
            ),
            **larger(lambda kind: call("conv_fwd", *kind.arrays("x", "w", "b"), neuron="relu", **kind.how), (0,)),
        },
        image="x",
        reference=_forward,
        slack=2,
    ),
    OpInfo(
        name="conv_state",
        samples={"": PLAIN.state, "in 2 groups": KINDS["in 2 groups"].state},
        compared="convolution/test_conv.py",
        differentiable=False,
        launches=False,
        wrong_values=(
            ("the weights do not fit the images", lambda: mf.conv_state(X.shape, (6, 3, 3))),
            ("the weights do not fit the images", lambda: mf.conv_state(X.shape, (6.0, 3, 3, 4))),
            ("an image is too large", lambda: mf.conv_state((1, 2**16, 2**15, 1), (1, 1, 1, 1))),
        ),
        wrong_types=(
            ("x_shape is not a shape", lambda: mf.conv_state(3, W.shape)),
            ("no dtype of gradients", lambda: mf.conv_state(X.shape, W.shape, dtype=None)),
            ("no dtype of gradients", lambda: mf.conv_state(X.shape, W.shape, dtype=mx.float16)),
        ),
    ),
)
