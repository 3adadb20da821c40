"""Waiting, as the process exits, for threads that have read MLX's random state; on Linux.

Such a thread has a Python object of MLX's, which it frees after Python's join() has returned. If the interpreter is
being finalized by then, the thread cannot have the lock that it asks for, and the process aborts.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any

import mlx.core as mx

_LONGEST, _PAUSE = 1.0, 1e-3  # seconds
_MANY = 100  # threads from which those that are gone are dropped
_readers: set[int] = set()


def random_state() -> Any:
    """``mx.random.state`` of this thread, for which the exit of the process waits if it has ended by then."""
    if threading.current_thread() is not threading.main_thread():
        if len(_readers) >= _MANY:
            _readers.intersection_update([*filter(_exists, [*_readers])])
        _readers.add(threading.get_native_id())
    return mx.random.state


@atexit.register
def _wait() -> None:
    running = {thread.native_id for thread in threading.enumerate()}
    end = time.monotonic() + _LONGEST
    for reader in _readers - running:
        while _exists(reader) and time.monotonic() < end:
            time.sleep(_PAUSE)


def _exists(thread: int) -> bool:
    return os.path.exists(f"/proc/self/task/{thread}")
