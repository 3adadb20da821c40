"""The mean of whole images: `spatial_mean` and `spatial_mean_grad`."""

from __future__ import annotations

import numpy as np
from generic.opinfo import Array, Node, OpInfo, Sample, call
from support import numbers

import mpsfunc as mf
from mpsfunc import graph

IMAGES = numbers((2, 6, 5, 4))
OPS = (
    OpInfo(
        name="spatial_mean",
        samples={
            "": call("spatial_mean", Array((2, 3, 4, 4))),
            # Of windows as large and few as these, rows come after columns.
            "in two steps": Sample(call("spatial_mean", Array((2, 9, 10, 8))), in_matrix=False),
        },
        image="x",
        reference=lambda x: x.mean((1, 2), keepdims=True),
        linear=(0,),
        wrong_values=(("not an image batch", lambda: mf.spatial_mean(IMAGES[0])),),
        wrong_types=(("x is not an array", lambda: mf.spatial_mean(3)),),
        nodes={"": Node(lambda x: graph.spatial_mean(x), lambda p, x: mf.spatial_mean(x))},
    ),
    OpInfo(
        name="spatial_mean_grad",
        samples={
            "": call("spatial_mean_grad", Array((2, 1, 1, 4)), (2, 3, 4, 4)),
            "of eight channels": Sample(call("spatial_mean_grad", Array((2, 1, 1, 8)), (2, 5, 4, 8)), in_matrix=False),
        },
        reference=lambda dy, shape: np.broadcast_to(dy / (shape[1] * shape[2]), shape),
        slack=2,
        linear=(0,),
        wrong_values=(
            ("not an image batch", lambda: mf.spatial_mean_grad(IMAGES, (2, 6, 5))),
            ("an image has no elements", lambda: mf.spatial_mean_grad(IMAGES, (2, 0, 5, 4))),
            (
                "dy does not belong to images of this shape",
                lambda: mf.spatial_mean_grad(IMAGES, tuple(IMAGES.shape)),
            ),
        ),
        wrong_types=(("shape is not a shape", lambda: mf.spatial_mean_grad(IMAGES, 4)),),
    ),
)
