"""Parameters of the pooling kernels, as ``metal/pooling/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.windows.axis import Axis


class PoolParams(NamedTuple):
    """Windows along the rows and along the columns."""

    rows: Axis
    cols: Axis
