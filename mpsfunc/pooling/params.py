"""Parameters of the pooling kernels, as ``metal/pooling/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.windows.axis import Axis


class PoolParams(NamedTuple):
    """Windows along the rows and along the columns."""

    rows: Axis
    cols: Axis


class ReduceSumParams(NamedTuple):
    """Sums over the middle axis of (outer, length, inner).

    Fields:
        mean: Whether they are divided by the length.
    """

    mean: int


class ReduceExtremeParams(NamedTuple):
    """Extremes over that axis.

    Fields:
        largest: Whether they are the largest elements, instead of the least.
        results: 0 their values, 1 their places, 2 both.
    """

    largest: int
    results: int
