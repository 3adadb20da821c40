"""The cases of `cases` for convolutions with a neuron, behind repeated edges, and transposed."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import oracle
from support import close, exact, numbers

import mpsfunc as mf
from kernels.case import Case, named

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def _activated(
    shape: tuple[int, ...], dtype: mx.Dtype, out: int, groups: int = 1, crowded: bool = False, **how: Any
) -> list[Case]:
    """A convolution with a relu and its gradients, and the transposed one that shares its windows."""
    w_shape = (out, 3, 2, shape[3] // groups)

    def gradients() -> None:
        x, w, b = numbers(shape, dtype), numbers(w_shape), numbers((out,))
        y, state = mf.conv_fwd(x, w, b, neuron="relu", groups=groups, **how)
        where = state.rows, state.cols, groups
        values, sizes = ([f(exact(a)) for a in (x, w, b)] for f in (np.asarray, np.abs))
        close(y, np.maximum(oracle.conv(*values, *where), 0), oracle.conv(*sizes, *where))
        dy = numbers(tuple(y.shape), dtype, 2)
        dz, size = np.where(exact(y) > 0, exact(dy), 0), np.abs(exact(dy))
        close(
            mf.conv_grad_input(dy, w, state),
            oracle.conv_grad_input(dz, values[1], *where),
            oracle.conv_grad_input(size, sizes[1], *where),
        )

    def transposed() -> None:
        state = mf.conv_state(shape, w_shape, groups=groups, **how)
        x = numbers((shape[0], state.rows.n_out, state.cols.n_out, out), dtype)
        w, b = numbers((shape[3], 3, 2, out // groups), seed=1), numbers((shape[3],), seed=2)
        like = {key: how[key] for key in ("stride", "dilation") if key in how}
        y = mf.conv_transpose(x, w, b, state=state, neuron="relu", groups=groups, **like)
        # MPS's weights are those of the convolution rotated, with inputs and outputs exchanged in each group.
        inputs, outputs = shape[3] // groups, out // groups
        back = exact(w)[:, ::-1, ::-1].reshape(groups, inputs, 3, 2, outputs).transpose(0, 4, 2, 3, 1)
        back = back.reshape(out, 3, 2, inputs)
        where = state.rows, state.cols, groups
        value, size = (oracle.conv_grad_input(f(exact(x)), f(back), *where) + f(exact(b)) for f in (np.asarray, np.abs))
        close(y, np.maximum(value, 0), size)

    told = {"out": out, "groups": groups, **how}
    return [
        Case(named("neuron", shape, dtype, **told), ("conv", "neuron_grad", "conv_grad_input"), gradients, crowded),
        Case(named("conv_transpose", shape, dtype, **told), ("conv_grad_input",), transposed, crowded),
    ]


def neurons() -> list[Case]:
    return [
        *_activated((2, 5, 6, 3), F32, 5, stride=2, padding=1),
        *_activated((1, 6, 5, 8), F16, 4, groups=2, dilation=(2, 1), padding=(1, 2)),
        *_activated((2, 4, 3, 4), BF16, 8, padding="same"),
        *_activated((1, 3, 2, 1), F32, 2),
        _activated((3, 4, 5, 3), F32, 6, padding=(2, 3), edge_mode="clamp", stride=(1, 2))[0],
        _activated((1, 3, 4, 4), F16, 4, padding=1, edge_mode="clamp")[0],
        _activated((1, 18, 17, 8), F32, 8, crowded=True)[0],  # more packs a thread than it takes at a time
    ]
