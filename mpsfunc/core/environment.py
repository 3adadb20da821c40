"""Environment variables that switch something on or off, read whenever they matter."""

from __future__ import annotations

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
