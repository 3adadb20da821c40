"""Convolution and its gradients as definitions, in NumPy float64: ``einsum`` over dense windows."""

from __future__ import annotations

import numpy as np

from mpsfunc.windows.axis import Axis
from support.oracle.windows import weighted

Array = np.ndarray


def _grouped(a: Array, groups: int, axis: int) -> Array:
    """That axis as (groups, rest)."""
    axis %= a.ndim
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


def conv(x: Array, w: Array, b: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    # g group, c and o channels inside it, q and p taps
    patches = np.einsum(
        "jqh,ipw,nhwgc->njiqpgc", weighted(rows), weighted(cols), _grouped(x, groups, -1), optimize=True
    )
    y = np.einsum("njiqpgc,goqpc->njigo", patches, _grouped(w, groups, 0), optimize=True)
    return y.reshape(*y.shape[:3], w.shape[0]) + b


def conv_grad_input(dy: Array, w: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    spread = np.einsum("njigo,goqpc->njiqpgc", _grouped(dy, groups, -1), _grouped(w, groups, 0), optimize=True)
    dx = np.einsum("jqh,ipw,njiqpgc->nhwgc", weighted(rows), weighted(cols), spread, optimize=True)
    return dx.reshape(*dx.shape[:3], groups * w.shape[3])


def conv_grad_weights(dy: Array, x: Array, rows: Axis, cols: Axis, groups: int = 1) -> Array:
    patches = np.einsum(
        "jqh,ipw,nhwgc->njiqpgc", weighted(rows), weighted(cols), _grouped(x, groups, -1), optimize=True
    )
    dw = np.einsum("njigo,njiqpgc->goqpc", _grouped(dy, groups, -1), patches, optimize=True)
    return dw.reshape(dy.shape[3], *dw.shape[2:])


def conv_grad_bias(dy: Array) -> Array:
    return dy.sum((0, 1, 2))
