"""Waiting, as the process exits, for threads that have read MLX's random state.

Such a thread has a Python object of MLX's, which it frees after Python's join() has returned. If the interpreter is
being finalized by then, the thread cannot have the lock that it asks for, and the process aborts.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

_LONGEST, _PAUSE = 1.0, 1e-3  # seconds
_readers: set[int] = set()
_once = threading.Lock()  # is never released


def wait_at_exit() -> None:
    """Has the exit of the process wait until this thread is gone, if it has ended by then; for Linux."""
    if threading.current_thread() is threading.main_thread():
        return
    _readers.add(threading.get_native_id())
    if _once.acquire(blocking=False):
        atexit.register(_wait)


def _wait() -> None:
    running = {thread.native_id for thread in threading.enumerate()}
    end = time.monotonic() + _LONGEST
    while any(_exists(reader) for reader in _readers - running) and time.monotonic() < end:
        time.sleep(_PAUSE)


def _exists(thread: int) -> bool:
    return os.path.exists(f"/proc/self/task/{thread}")
