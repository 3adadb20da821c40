"""Environment variables that switch something on or off or give a number, read when they matter."""

from __future__ import annotations

import math
import os

from mpsfunc.core.printing import describe


def switch(name: str, default: bool) -> bool:
    """Whether a variable is 1, or the default where it is not set or empty.

    Raises:
        ValueError: It is neither 0 nor 1: taken for either, ``true`` or ``off`` would do what nobody meant.
    """
    given = os.environ.get(name) or str(int(default))
    if given not in ("0", "1"):
        raise ValueError(f"{name}: not a switch; got {describe(given)}, expected '0' or '1'")
    return given == "1"


def percent(name: str, default: float) -> float:
    """A variable's number, or the default where it is not set or empty.

    Raises:
        ValueError: It is no finite number of 0 or more.
    """
    given = os.environ.get(name) or str(default)
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}: not a percentage; got {describe(given)}, expected a number of 0 or more")
    return number
