"""Stock MLX's reductions: a function for each way to reduce, ``reduce_sum_rows`` and so on."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from types import SimpleNamespace as _SimpleNamespace

import mlx.core as _mx
from support.oracle.reductions import AXES as _AXES

from ...problems import Problem as _Problem
from .. import Call as _Call

_Bound = _Callable[[_Problem, _SimpleNamespace], _Call]


def _flat(x: _mx.array, axes: tuple[int, ...], place: _Callable[..., _mx.array]) -> _mx.array:
    if len(axes) == 1:
        return place(x, axis=axes[0], keepdims=True)
    n, _, _, c = x.shape
    return place(x.reshape(n, -1, c), axis=1).reshape(n, 1, 1, c)


def _slope(a: _SimpleNamespace, axes: tuple[int, ...], extreme: _Callable[..., _mx.array]) -> _mx.array:
    made: _mx.array = _mx.vjp(lambda x: extreme(x, axis=axes, keepdims=True), [a.x], [a.dy])[1][0]
    return made


def _of(name: str, axes: tuple[int, ...]) -> _Bound:
    def bound(p: _Problem, a: _SimpleNamespace) -> _Call:
        calls: dict[str, _Callable[[], _mx.array]] = {
            "reduce_sum": lambda: _mx.sum(a.x, axis=axes, keepdims=True),
            "reduce_mean": lambda: _mx.mean(a.x, axis=axes, keepdims=True),
            "reduce_weighted_sum": lambda: _mx.sum(a.x * a.other, axis=axes, keepdims=True),
            "reduce_max": lambda: _mx.max(a.x, axis=axes, keepdims=True),
            "reduce_weighted_sum_grad": lambda: a.dy * a.other,
            "reduce_max_grad": lambda: _slope(a, axes, _mx.max),
            "reduce_min": lambda: _mx.min(a.x, axis=axes, keepdims=True),
            "reduce_min_grad": lambda: _slope(a, axes, _mx.min),
            "reduce_argmax": lambda: _flat(a.x, axes, _mx.argmax),
            "reduce_argmin": lambda: _flat(a.x, axes, _mx.argmin),
        }
        return lambda: [calls[name]()]

    return bound


_NAMES = (
    *("reduce_sum", "reduce_mean", "reduce_weighted_sum", "reduce_weighted_sum_grad", "reduce_max", "reduce_max_grad"),
    *("reduce_min", "reduce_min_grad", "reduce_argmax", "reduce_argmin"),
)
globals().update({f"{_name}_{_over}": _of(_name, _axes) for _name in _NAMES for _over, _axes in _AXES.items()})
