"""The part of the matrix of transformations that works element by element: dropout, arithmetic, comparison."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support.matrix.entry import Entry, entry

IMAGE, ROW, COLUMN = (2, 3, 4, 5), (1, 1, 1, 5), (2, 3, 1, 1)
KEY = mx.array([5, 6], mx.uint32)
GIVEN = mx.array([i % 3 > 0 for i in range(120)]).reshape(IMAGE)
STRIDE: dict[str, Any] = {"mask_stride": (0, 1, 0)}
TOLD: dict[str, Any] = {"primary_scale": 1.5, "secondary_scale": -0.75, "bias": 0.25}
CLAMPED: dict[str, Any] = {**TOLD, "minimum": -0.6, "maximum": 0.9}
FIRST: dict[str, Any] = {"primary_stride": (1, 0, 1), "secondary_stride": (0, 1, 0)}


def _state(mask: mx.array | None = None) -> mf.DropoutState:
    made = mx.zeros(0, mx.uint8) if mask is None else mask
    op = "dropout" if mask is None else "dropout_by_mask"
    return mf.DropoutState(KEY, made, op, 0.6, (1, 1, 1), IMAGE)


def _grad(operation: str, operand: str, *shapes: tuple[int, ...], **told: Any) -> Entry:
    return entry(
        lambda dy, x, y: mf.arithmetic_grad(dy, x, y, operation, operand=operand, **told),
        *shapes,
        positive=(2,) if operation == "divide" else (),
    )


ELEMENTWISE: dict[str, Entry] = {
    "dropout": entry(lambda x: mf.dropout(x, keep_probability=0.6, key=KEY), IMAGE),
    "dropout with strides": entry(lambda x: mf.dropout(x, keep_probability=0.6, key=KEY, **STRIDE), IMAGE),
    "dropout by a mask": entry(lambda x: mf.dropout(x, keep_probability=0.6, mask=GIVEN), IMAGE),
    "dropout by a floating mask": entry(
        lambda x, mask: mf.dropout(x, keep_probability=0.6, mask=mask), IMAGE, (1, 3, 4, 1)
    ),
    "dropout_fwd": entry(lambda x: mf.dropout_fwd(x, keep_probability=0.6, mask=GIVEN[:1, :, :1])[0], IMAGE),
    "dropout_grad": entry(lambda dy: mf.dropout_grad(dy, _state()), IMAGE),
    "dropout_grad by a mask": entry(lambda dy: mf.dropout_grad(dy, _state(GIVEN.view(mx.uint8))), IMAGE),
    "dropout_grad by a floating mask": entry(lambda dy, mask: mf.dropout_grad(dy, _state(mask)), IMAGE, (2, 1, 4, 5)),
    "add": entry(lambda x, y: mf.add(x, y, **TOLD), IMAGE, IMAGE),
    "subtract": entry(lambda x, y: mf.subtract(x, y, **CLAMPED), IMAGE, ROW),
    "multiply": entry(lambda x, y: mf.multiply(x, y, **TOLD), COLUMN, ROW),
    "multiply with strides": entry(lambda x, y: mf.multiply(x, y, **TOLD, **FIRST), IMAGE, IMAGE),
    "divide": entry(lambda x, y: mf.divide(x, y, **CLAMPED), IMAGE, (1, 3, 4, 5), positive=(1,)),
    "arithmetic": entry(lambda x, y: mf.arithmetic(x, y, "divide", **TOLD), COLUMN, IMAGE, positive=(1,)),
    "arithmetic of vectors": entry(lambda x, y: mf.arithmetic(x, y, "multiply", **CLAMPED), (7,), (7,)),
    "arithmetic_grad": _grad("multiply", "secondary", IMAGE, IMAGE, ROW, **TOLD),
    "arithmetic_grad of a sum": _grad("add", "secondary", IMAGE, IMAGE, ROW, **TOLD),
    "arithmetic_grad of a difference": _grad("subtract", "secondary", IMAGE, IMAGE, IMAGE, **CLAMPED, clamp=True),
    "arithmetic_grad of a quotient": _grad("divide", "primary", IMAGE, ROW, IMAGE, **CLAMPED, clamp=True),
    "arithmetic_grad of a divisor": _grad("divide", "secondary", IMAGE, IMAGE, (1, 3, 1, 5), **TOLD),
    "arithmetic_grad with strides": _grad(
        "multiply", "primary", IMAGE, IMAGE, IMAGE, secondary_stride=(0, 1, 0), **TOLD
    ),
    "arithmetic_grad of entries that none reads": _grad(
        "multiply", "primary", (2, 3, 1, 5), (2, 3, 4, 5), (1, 1, 1, 5), primary_stride=(1, 0, 1)
    ),
    "compare": entry(lambda x, y: mf.compare(x, y, "less"), IMAGE, ROW),
}
