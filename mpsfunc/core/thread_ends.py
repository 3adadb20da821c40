"""Waiting, as the process exits, for threads that have read MLX's random state; on Linux.

Such a thread has a Python object of MLX's, which it frees after Python's join() has returned. If the interpreter is
being finalized by then, the thread cannot have the lock that it asks for, and the process aborts.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

_LONGEST, _PAUSE = 1.0, 1e-3  # seconds
_MANY = 100  # threads from which those that are gone are dropped
_readers: set[int] = set()


def wait_at_exit() -> None:
    """Has the exit of the process wait until this thread is gone, if it has ended by then."""
    if threading.current_thread() is threading.main_thread():
        return
    if len(_readers) >= _MANY:
        _readers.intersection_update([*filter(_exists, [*_readers])])
    _readers.add(threading.get_native_id())


@atexit.register
def _wait() -> None:
    running = {thread.native_id for thread in threading.enumerate()}
    end = time.monotonic() + _LONGEST
    for reader in _readers - running:
        while _exists(reader) and time.monotonic() < end:
            time.sleep(_PAUSE)


def _exists(thread: int) -> bool:
    return os.path.exists(f"/proc/self/task/{thread}")
