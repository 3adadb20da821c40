"""PyTorch's reductions: a function for each way to reduce, ``reduce_sum_rows`` and so on.

The gradient of an extreme is that of ``amax``, which is made of its result and is shared out among equal ones.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from types import SimpleNamespace as _SimpleNamespace

import torch as _torch
from support.oracle.reductions import AXES as _AXES

from ...problems import Problem as _Problem
from .. import Call as _Call

_Bound = _Callable[[_Problem, _SimpleNamespace], _Call]
_DIMS = {1: 2, 2: 3, 3: 1}  # of the axes, where channels come first


def _flat(x: _torch.Tensor, dims: tuple[int, ...], place: _Callable[..., _torch.Tensor]) -> _torch.Tensor:
    if len(dims) == 1:
        return place(x, dims[0], keepdim=True)
    return place(x.flatten(2), 2)[:, :, None, None]


def _extreme_grad(a: _SimpleNamespace, dims: tuple[int, ...], y: _torch.Tensor) -> _torch.Tensor:
    won = a.x == y
    return a.dy / won.sum(dims, keepdim=True) * won


def _of(name: str, dims: tuple[int, ...]) -> _Bound:
    def bound(p: _Problem, a: _SimpleNamespace) -> _Call:
        least, most = a.x.amin(dims, keepdim=True), a.x.amax(dims, keepdim=True)
        calls: dict[str, _Callable[[], _torch.Tensor]] = {
            "reduce_sum": lambda: a.x.sum(dims, keepdim=True),
            "reduce_mean": lambda: a.x.mean(dims, keepdim=True),
            "reduce_weighted_sum": lambda: (a.x * a.other).sum(dims, keepdim=True),
            "reduce_max": lambda: a.x.amax(dims, keepdim=True),
            "reduce_weighted_sum_grad": lambda: a.dy * a.other,
            "reduce_max_grad": lambda: _extreme_grad(a, dims, most),
            "reduce_min": lambda: a.x.amin(dims, keepdim=True),
            "reduce_min_grad": lambda: _extreme_grad(a, dims, least),
            "reduce_argmax": lambda: _flat(a.x, dims, _torch.argmax),
            "reduce_argmin": lambda: _flat(a.x, dims, _torch.argmin),
        }
        return lambda: [calls[name]()]

    return bound


_NAMES = (
    *("reduce_sum", "reduce_mean", "reduce_weighted_sum", "reduce_weighted_sum_grad", "reduce_max", "reduce_max_grad"),
    *("reduce_min", "reduce_min_grad", "reduce_argmax", "reduce_argmin"),
)
globals().update(
    {
        f"{_name}_{_over}": _of(_name, tuple(_DIMS[i] for i in _axes))
        for _name in _NAMES
        for _over, _axes in _AXES.items()
    }
)
