"""How softmax and its gradients run on a GPU."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import grids
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.params import Threadgroup

# Packs that a thread has of a row at most, and packs that it should have under way.
_PACKS, _UNDER_WAY = 8, 4


def kernels(log: bool, gradient: bool, y: mx.array, sign: int = 1) -> tuple[KernelLaunch, ...]:
    """Softmax of sign * x along the middle axis of (outer, length, inner), or its gradient from dy and y."""
    rows_body, body = ("softmax_grad", "softmax_grad_strided") if gradient else ("softmax", "softmax_strided")
    names, made = (("dy", "y"), ("dx",)) if gradient else (("x",), ("y",))
    result = tuple(y.shape), y.dtype
    outer, length, inner = y.shape
    vector_width = grids.vector_width(y.dtype, length, y.size)
    packs = length // vector_width
    sharing = min(32, grids.power_of_two(packs))
    of_thread = -(-packs // sharing)
    if inner == 1 and of_thread <= _PACKS:
        rows = max(1, _UNDER_WAY // of_thread)
        grid, group = grids.sharing_threads(-(-outer // rows), sharing)
        shares = (("V", vector_width), ("R", sharing), ("M", of_thread), ("B", rows), ("L", int(log)), ("S", sign))
        return (KernelLaunch(rows_body, names, made, (result,), grid, group, None, shares),)
    vector_width = grids.vector_width(y.dtype, inner, y.size)
    grid, group = _across(outer, length, inner // vector_width)
    template = (("V", vector_width), ("L", int(log)), ("S", sign))
    return (KernelLaunch(body, names, made, (result,), grid, group, Threadgroup(*group[:2]), template),)


def _across(outer: int, length: int, beside: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Threadgroups of threads side by side, and above one another as far as that takes to fill a large GPU."""
    columns = outer * beside
    width = min(32, grids.power_of_two(beside))
    height = min(256 // width, grids.power_of_two(-(-length // 4)), max(1, grids.FILL * 2048 // columns))
    height = 1 << (height.bit_length() - 1)
    (across, _, _), _ = grids.threads(columns, 1)  # which refuses what is too wide
    return (across, height, 1), (width, height, 1)
