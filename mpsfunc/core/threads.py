"""How many threads of a CPU an operation may use."""

from __future__ import annotations

from mpsfunc.core import arguments, launch
from mpsfunc.core.printing import describe

_MOST_THREADS = 1024


def set_num_threads(count: int) -> None:
    """Sets how many CPU threads an operation may use.

    Default: ``MPSFUNC_NUM_THREADS``, or the processors that this process may run on. Results do not depend on it.

    Args:
        count: Threads, 1 to 1024.

    Raises:
        TypeError: count is not an int.
        ValueError: count is out of range.
        RuntimeError: The C++ module is not installed.

    Example:
        >>> set_num_threads(2)
        >>> get_num_threads()
        2
    """
    plain = arguments.whole(count)
    if plain is None:
        raise TypeError(f"set_num_threads: not a number of threads; got count={describe(count)}, expected an int")
    if not 1 <= plain <= _MOST_THREADS:
        raise ValueError(
            f"set_num_threads: not a number of threads; got count={describe(count)}, expected 1 to {_MOST_THREADS}"
        )
    launch.module("set_num_threads").set_num_threads(plain)


def get_num_threads() -> int:
    """How many CPU threads an operation may use; see `set_num_threads`."""
    return int(launch.module("get_num_threads").get_num_threads())
