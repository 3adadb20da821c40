"""The part of the matrix that convolutions of all kinds make up."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from support import numbers
from support.matrix.entry import Arrays, Entry, entry

IMAGE, OUT = (2, 5, 4, 4), 6
CONV: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2)}
BACK: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "dilation": (1, 2)}
FRAME: dict[str, Any] = {"stride": 2, "offset": (0, 1), "kernel_offset": (1, -1), "out_size": (7, 6)}


def _with(state: Any, y: mx.array | None, dw: mx.array | None = None, db: mx.array | None = None) -> Any:
    """The state of a forward call that returned ``y`` through a relu."""
    given = {"dw": dw, "db": db}
    state = state._replace(**{name: a for name, a in given.items() if a is not None})
    return state if y is None else state._replace(y=y, neuron="relu")


def _convs(groups: int = 1, **edge: Any) -> dict[str, Entry]:
    w, dy, o = (OUT, 3, 2, 4 // groups), (2, 2, 5, OUT), (OUT,)
    how = {"groups": groups, **CONV, **edge}
    state = mf.conv_state(IMAGE, w, **how)
    label = (f" in {groups} groups" if groups > 1 else "") + (" clamped" if edge else "")

    def grad_weights(dy: mx.array, x: mx.array, dw: mx.array, db: mx.array) -> Arrays:
        return mf.conv_grad_weights(dy, x, _with(state, None, dw, db)).arrays[:2]

    def grad(dy: mx.array, x: mx.array, w: mx.array, y: mx.array) -> Arrays:
        dx, grown = mf.conv_grad(dy, x, w, _with(state, y))
        assert dx is not None
        return dx, *grown.arrays[:2]

    return {
        f"conv{label}": entry(lambda x, w, b: mf.conv(x, w, b, **how), IMAGE, w, o),
        f"conv_fwd{label} with a relu": entry(
            lambda x, w, b: mf.conv_fwd(x, w, b, neuron="relu", **how)[0], IMAGE, w, o
        ),
        f"conv_grad_input{label}": entry(lambda dy, w: mf.conv_grad_input(dy, w, state), dy, w),
        f"conv_grad_weights{label}": entry(grad_weights, dy, IMAGE, w, o),
        f"conv_grad{label} of a relu": entry(grad, dy, IMAGE, w, dy),
    }


def _framed() -> dict[str, Entry]:
    w, dy = (OUT, 3, 2, 4), (2, 2, 5, OUT)
    state = mf.conv_state(IMAGE, w, **CONV)
    return {
        "conv_grad_input in a frame": entry(
            lambda dy, w: mf.conv_grad_input(dy, w, state, kernel_offset=(2, -1)), dy, w
        )
    }


def _transposed(label: str, groups: int, how: dict[str, Any]) -> dict[str, Entry]:
    w, o = (OUT, 3, 2, 4 // groups), (OUT,)
    y, state = mf.conv_transpose_fwd(numbers(IMAGE), numbers(w), groups=groups, **how)
    dy = tuple(y.shape)

    def grad_weights(dy: mx.array, x: mx.array, dw: mx.array, db: mx.array) -> Arrays:
        return mf.conv_transpose_grad_weights(dy, x, _with(state, None, dw, db)).arrays[:2]

    def grad(dy: mx.array, x: mx.array, w: mx.array, y: mx.array) -> Arrays:
        dx, grown = mf.conv_transpose_grad(dy, x, w, _with(state, y))
        assert dx is not None
        return dx, *grown.arrays[:2]

    return {
        f"conv_transpose {label}": entry(lambda x, w, b: mf.conv_transpose(x, w, b, groups=groups, **how), IMAGE, w, o),
        f"conv_transpose_fwd {label} with a relu": entry(
            lambda x, w, b: mf.conv_transpose_fwd(x, w, b, groups=groups, neuron="relu", **how)[0], IMAGE, w, o
        ),
        f"conv_transpose_grad_input {label}": entry(lambda dy, w: mf.conv_transpose_grad_input(dy, w, state), dy, w),
        f"conv_transpose_grad_weights {label}": entry(grad_weights, dy, IMAGE, w, o),
        f"conv_transpose_grad {label} of a relu": entry(grad, dy, IMAGE, w, dy),
    }


def _connected() -> dict[str, Entry]:
    w, o, dy = (3, 5, 4, 4), (3,), (2, 1, 1, 3)
    _, state = mf.fully_connected_fwd(numbers(IMAGE), numbers(w))

    def grad(dy: mx.array, x: mx.array, w: mx.array, y: mx.array) -> Arrays:
        dx, grown = mf.fully_connected_grad(dy, x, w, _with(state, y))
        assert dx is not None
        return dx, *grown.arrays[:2]

    return {
        "fully_connected": entry(lambda x, w, b: mf.fully_connected(x, w, b), IMAGE, w, o),
        "fully_connected_fwd with a relu": entry(
            lambda x, w, b: mf.fully_connected_fwd(x, w, b, neuron="relu")[0], IMAGE, w, o
        ),
        "fully_connected_grad of a relu": entry(grad, dy, IMAGE, w, dy),
    }


def _dequantized(low: mx.array, high: mx.array) -> mx.array:
    return mf.dequantize_weights(_BYTES, low=low, high=high, dtype=low.dtype)


_BYTES = mx.arange(36, dtype=mx.uint8).reshape(3, 2, 3, 2) * 7

CONVOLUTIONS: dict[str, Entry] = {
    **_convs(),
    **_convs(2),
    **_convs(edge_mode="clamp"),
    **_framed(),
    **_transposed("in pixels", 1, BACK),
    **_transposed("in pixels in groups", 2, BACK),
    **_transposed("as MPS", 2, FRAME),
    **_connected(),
    "depth_to_space": entry(lambda x: mf.depth_to_space(x, 2), (2, 3, 2, 8)),
    "space_to_depth": entry(lambda x: mf.space_to_depth(x, 2), (2, 4, 6, 3)),
    "fold_batch_norm": entry(
        lambda w, b, gamma, beta, mean, var: mf.fold_batch_norm(w, b, gamma, beta, mean, var, 1e-2),
        *((4, 2, 3, 2), *[(4,)] * 5),
        positive=(5,),
    ),
    "dequantize_weights": entry(_dequantized, (3,), (3,)),
    "dequantize_weights from a table": entry(
        lambda table: mf.dequantize_weights(_BYTES, table=table, dtype=table.dtype), (3, 256)
    ),
}
