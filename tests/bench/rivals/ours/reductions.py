"""mpsfunc's reductions: a function for each way to reduce, ``reduce_sum_rows`` and so on."""

from __future__ import annotations

from collections.abc import Callable as _Callable
from types import SimpleNamespace as _SimpleNamespace

from support.oracle.reductions import AXES as _AXES

import mpsfunc as _mf

from ...problems import Problem as _Problem
from .. import Call as _Call

_Bound = _Callable[[_Problem, _SimpleNamespace], _Call]


def _of(name: str, over: str) -> _Bound:
    f = getattr(_mf, name)

    def bound(p: _Problem, a: _SimpleNamespace) -> _Call:
        if name.startswith("reduce_weighted_sum"):
            dy = (a.dy,) if name.endswith("grad") else ()
            return lambda: [f(*dy, a.x, a.other, over)]
        return lambda: [f(a.dy, a.x, over)] if name.endswith("grad") else [f(a.x, over)]

    return bound


_NAMES = (
    *("reduce_sum", "reduce_mean", "reduce_weighted_sum", "reduce_weighted_sum_grad", "reduce_max", "reduce_max_grad"),
    *("reduce_min", "reduce_min_grad", "reduce_argmax", "reduce_argmin"),
)
globals().update({f"{_name}_{_over}": _of(_name, _over) for _name in _NAMES for _over in _AXES})
