"""Who computes a problem: a package or module a library, with one function an operation, which binds inputs and
returns a call.

What the call needs from an earlier step, such as statistics, is computed when it is bound, outside the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..problems import Problem

Call = Callable[[], list[Any]]


class Refused(Exception):
    """A library has no such operation in the mode that is asked for, and says so when it is called."""


class Side(NamedTuple):
    """One library, or one way of using it."""

    name: str
    functions: Any  # whose attributes are named after operations
    place: Callable[[SimpleNamespace, str], SimpleNamespace]  # NumPy arrays to the library's, in a dtype
    run: Callable[[Call, int], None]  # so many independent calls, to the end
    answer: Callable[[str, list[Any]], list[np.ndarray]]  # an operation's outputs in float64, NHWC and OHWI

    def bind(self, problem: Problem, arrays: SimpleNamespace) -> Call | None:
        """The call on placed arrays, or None where the library has no such operation."""
        function = getattr(self.functions, problem.op, None)
        return None if function is None else function(problem, arrays)


def gathered(*families: ModuleType) -> SimpleNamespace:
    """One library's functions from its modules."""
    return SimpleNamespace(
        **{name: value for family in families for name, value in vars(family).items() if not name.startswith("_")}
    )


class Runner(NamedTuple):
    """A whole network in one library.

    Fields:
        run: So many steps, each waited for unless it is to be launched ahead; the last loss of a training.
        outputs: What inference gave, in float32 and NHWC.
    """

    run: Callable[..., float]
    outputs: Callable[[], list[np.ndarray]]
