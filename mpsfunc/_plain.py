"""Numbers of all kinds as Python's own.

They are told by their types alone: an array in the place of one is not evaluated, and no method of a stranger's class
is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def whole(value: Any) -> int | None:
    """An int, Python's or NumPy's, as Python's; None for everything else, True and False among it."""
    if type(value) is int:  # nearly every call
        return value
    if isinstance(value, np.integer):
        return int(value)
    # What a class that derives from int says of itself is not asked.
    return int.__index__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def real(value: Any) -> float | int | None:
    """An int or a float, Python's or NumPy's, as Python's; None for everything else, True and False among it."""
    if type(value) is float:
        return value
    if isinstance(value, np.floating):
        return float(value)
    return float.__float__(value) if isinstance(value, float) else whole(value)
