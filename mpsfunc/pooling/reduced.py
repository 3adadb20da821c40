"""Which pixels or channels a reduction makes one of, and images as arrays whose middle axis that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import mlx.core as mx

from mpsfunc.core import checks
from mpsfunc.core.printing import describe

ReducedName = Literal["rows", "columns", "channels", "space"]
REDUCED: tuple[ReducedName, ...] = get_args(ReducedName)
_AXES = {"rows": (2,), "columns": (1,), "channels": (3,), "space": (1, 2)}
_MOST = 2**31 - 1


class Reduced(NamedTuple):
    """Images that are reduced.

    Fields:
        source: Their shape.
        result: What is left of it.
        lines: The shape as (outer, length, inner), whose middle axis is reduced.
        ahead: How many axes are the outer one.
    """

    source: tuple[int, ...]
    result: tuple[int, ...]
    lines: tuple[int, int, int]
    ahead: int

    @property
    def length(self) -> int:
        """How many become one."""
        return self.lines[1]

    @property
    def flat_result(self) -> tuple[int, int]:
        """The result as (outer, inner)."""
        return self.lines[0], self.lines[2]


def reduced(op: str, source: Sequence[int], over: Any) -> Reduced:
    """What a checked shape of images comes to."""
    axes = _AXES[checks.choice(op, "over", over, REDUCED)]
    shape = tuple(source)
    outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
    if outer > _MOST:
        raise ValueError(
            f"{op}: too many lines for one call; got shape={describe(shape)}, expected at most {_MOST} results for "
            "each channel"
        )
    result = tuple(1 if i in axes else d for i, d in enumerate(shape))
    length = math.prod(shape[i] for i in axes)
    return Reduced(shape, result, (outer, length, inner), axes[0])


def of_gradient(op: str, dy: Any, shape: Any, over: Any, stream: mx.Stream) -> Reduced:
    """What images of a shape came to, of which this is a gradient."""
    checks.array(op, "dy", dy, stream=stream)
    made = reduced(op, checks.shape_of_images(op, "shape", shape), over)
    checks.shape(op, "dy", dy, made.result, "dy does not belong to images of this shape")
    return made
