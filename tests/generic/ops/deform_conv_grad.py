"""The gradients of a deformable convolution by all that it takes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Call, Loads, OpInfo, call
from generic.ops.deform_conv import (
    DY,
    IMAGE_BYTES,
    MASK,
    OFFSETS,
    PLACES_BYTES,
    STATE,
    Definition,
    W,
    X,
    each,
    each_masked,
    measured,
    moved,
)
from support.oracle import deform as oracle

import mpsfunc as mf


def _grad_input(dy: Any, offsets: Any, w: Any, state: Call, mask: Any = None) -> np.ndarray:
    return oracle.grad_input(dy, w, *Definition.of_state(state, offsets, mask))


def _grad_offsets(dy: Any, x: Any, offsets: Any, w: Any, state: Call, mask: Any = None) -> np.ndarray:
    return oracle.grad_offsets(dy, x, w, *Definition.of_state(state, offsets, mask))


def _grad_mask(dy: Any, x: Any, offsets: Any, w: Any, state: Call, mask: Any) -> np.ndarray:
    return oracle.grad_mask(dy, x, w, *Definition.of_state(state, offsets, mask))


def _grad_weights(dy: Any, x: Any, offsets: Any, state: Call, mask: Any = None) -> tuple[Any, Any]:
    so_far: Any = state.args[:2] if state.function == "DeformConvState" else (0, 0)
    w_shape = (state if state.function == "deform_conv_state" else state.args[5]).args[1]
    dw = oracle.grad_weights(dy, x, w_shape, *Definition.of_state(state, offsets, mask))
    return so_far[0] + dw, so_far[1] + dy.sum((0, 1, 2))


# Wrong calls, and the records ---------------------------------------------------------------------------


def _by_input(dy: Any = DY, offsets: Any = OFFSETS, w: Any = W, state: Any = STATE, mask: Any = None) -> mx.array:
    return mf.deform_conv_grad_input(dy, offsets, w, state, mask)


def _forged(**fields: Any) -> mx.array:
    return _by_input(state=STATE._replace(**fields))


def _by_offsets(**given: Any) -> mx.array:
    of: Any = {"dy": DY, "x": X, "offsets": OFFSETS, "w": W, "state": STATE, **given}
    return mf.deform_conv_grad_offsets(**of)


OPS = (
    OpInfo(
        name="deform_conv_grad_input",
        samples=each(
            lambda kind: call("deform_conv_grad_input", *kind.arrays("dy", "offsets", "w"), kind.state, **kind.mask)
        ),
        image="dy",
        reference=_grad_input,
        slack=8,
        linear=(0, 2),
        wrong_values=(
            ("dy does not belong to this state", lambda: _by_input(dy=DY[..., :5])),
            ("w does not belong to this state", lambda: _by_input(w=W[:, :2])),
            ("offsets and windows do not fit together", lambda: _by_input(offsets=OFFSETS[:1])),
            ("mask and windows do not fit together", lambda: _by_input(mask=MASK[:, 1:])),
            ("a state of another operation", lambda: _forged(op="conv")),
            ("groups of offsets do not divide the channels", lambda: _forged(offset_groups=3)),
            ("the state does not fit together", lambda: _forged(groups=5)),
            ("the state's windows cannot be", lambda: _forged(rows=STATE.rows._replace(edge=1))),
            ("the state's windows cannot be", lambda: _forged(cols=STATE.cols._replace(begin=1))),
        ),
        wrong_types=(
            ("not a state of this operation", lambda: _by_input(state=mf.conv_state(X.shape, W.shape))),
            ("offsets and dy differ in dtype", lambda: _by_input(offsets=OFFSETS.astype(mx.bfloat16))),
            ("state.offset_groups is not an int", lambda: _forged(offset_groups="a")),
        ),
        loads={
            "deform_columns_bounds": Loads(moved, {"places": (PLACES_BYTES, PLACES_BYTES)}),
            # Of an image twelve tiles of four by four pixels, each of which sees what some of its neighbours read.
            "deform_columns_grad": Loads(
                moved,
                {
                    "dcolumns": (9 * IMAGE_BYTES, 4 * 9 * IMAGE_BYTES),
                    "places": (PLACES_BYTES, 9 * PLACES_BYTES),
                    "bounds": (2 * 9 * 16, 9 * 2 * 9 * 16),
                },
            ),
        },
    ),
    OpInfo(
        name="deform_conv_grad_offsets",
        samples=each(
            lambda kind: call(
                "deform_conv_grad_offsets", *kind.arrays("dy", "x", "offsets", "w"), kind.state, **kind.mask
            )
        ),
        image="x",
        reference=_grad_offsets,
        slack=8,
        linear=(0, 1, 3),
        wrong_values=(
            ("x does not belong to this state", lambda: _by_offsets(x=X[:, 1:])),
            ("x does not belong to this state", lambda: _by_offsets(x=X[:1])),
            ("offsets and windows do not fit together", lambda: _by_offsets(offsets=OFFSETS[..., 1:])),
        ),
        wrong_types=(
            ("dy and x differ in dtype", lambda: _by_offsets(dy=DY.astype(mx.float16))),
            ("not a state of this operation", lambda: _by_offsets(state="state")),
        ),
        loads={
            "deform_places_grad": Loads(
                moved,
                {
                    "dcolumns": (9 * IMAGE_BYTES, 9 * IMAGE_BYTES),
                    "x": (IMAGE_BYTES, 4 * 9 * IMAGE_BYTES),
                    "places": (PLACES_BYTES, 4 * PLACES_BYTES),
                },
            ),
        },
        benchmarks={"deform_conv_grads": measured(2, 1, 0.8, "gradients of deform_conv")},
    ),
    OpInfo(
        name="deform_conv_grad_mask",
        samples=each_masked(
            lambda kind: call(
                "deform_conv_grad_mask", *kind.arrays("dy", "x", "offsets", "w"), kind.state, *kind.arrays("mask")
            )
        ),
        image="x",
        reference=_grad_mask,
        slack=8,
        linear=(0, 1, 3),
        wrong_values=(
            (
                "mask and windows do not fit together",
                lambda: mf.deform_conv_grad_mask(DY, X, OFFSETS, W, STATE, MASK[..., 1:]),
            ),
        ),
        wrong_types=(
            ("mask is not an array", lambda: mf.deform_conv_grad_mask(DY, X, OFFSETS, W, STATE, None)),
            (
                "mask and dy differ in dtype",
                lambda: mf.deform_conv_grad_mask(DY, X, OFFSETS, W, STATE, MASK.astype(mx.float16)),
            ),
        ),
    ),
    OpInfo(
        name="deform_conv_grad_weights",
        samples=each(
            lambda kind: call(
                "deform_conv_grad_weights", *kind.arrays("dy", "x", "offsets"), kind.state_of(), **kind.mask
            ),
            (0, 1),
        ),
        image="x",
        reference=_grad_weights,
        slack=8,
        wrong_values=(
            (
                "x does not belong to this state",
                lambda: mf.deform_conv_grad_weights(DY, X[:, :5], OFFSETS, STATE),
            ),
            (
                "offsets and windows do not fit together",
                lambda: mf.deform_conv_grad_weights(DY, X, OFFSETS[:1], STATE),
            ),
        ),
        wrong_types=(
            (
                "dy and x differ in dtype",
                lambda: mf.deform_conv_grad_weights(DY.astype(mx.float16), X, OFFSETS, STATE),
            ),
        ),
    ),
)
