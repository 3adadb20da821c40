"""Ends a process that takes no more steps, such as one that waits for another process that is gone.

MLX waits without end in NCCL for a process that has died or stopped, and nothing interrupts its wait. But a step that
needs all processes comes to an end in none once one is gone. So each watches only itself, and needs no connection to
the others. The clock is a thread: MLX gives Python's lock away while it evaluates.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from mpsfunc.core.printing import describe

SECONDS, FIRST = 30.0, 300.0
_LEAST, _MOST = 1, 10**7
_LOOK = 1.0  # seconds at most between two looks at the clock
_WORDS = 2.0  # seconds that printing may take: a pipe that nobody reads takes for ever


class StepWatch:
    """The watch over this process's steps, as `watch_steps` makes it; it watches within one ``with``."""

    def __init__(self, seconds: float, first: float) -> None:
        self._seconds, self._first = seconds, first
        self._steps = 0
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None

    def step(self) -> None:
        """Says that a step is over, from where on the next may take the watch's seconds.

        Raises:
            RuntimeError: The watch is not within its ``with``.
        """
        if self._clock is None or self._ended.is_set():
            raise RuntimeError("StepWatch.step: nothing is watched; expected a call within the watch's with")
        self._steps += 1

    def __enter__(self) -> StepWatch:
        if self._clock is not None:
            raise RuntimeError("watch_steps: this watch was used before; expected one watch for each with")
        self._caller = threading.get_ident()
        self._clock = threading.Thread(target=self._watch, name="mpsfunc step watch", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._clock
        self._clock.join()

    def _watch(self) -> None:
        look = min(_LOOK, self._seconds / 8, self._first / 8)
        before, seen, passed = time.monotonic(), 0, 0.0
        while not self._ended.wait(look):
            now, steps = time.monotonic(), self._steps
            # Of the time for which the process itself was stopped little counts: it may go on with its step.
            passed = passed + min(now - before, 2 * look) if steps == seen else 0.0
            before, seen = now, steps
            limit = self._seconds if steps else self._first
            if passed >= limit:
                self._end(limit)

    def _end(self, limit: float) -> None:
        try:
            words = threading.Thread(target=self._say, args=(limit,), daemon=True)
            words.start()
            words.join(_WORDS)
        finally:
            os._exit(1)

    def _say(self, limit: float) -> None:
        with contextlib.suppress(Exception):  # there may be no standard error any more
            frame = sys._current_frames().get(self._caller)
            where = f"at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "nowhere"
            who = f"rank {os.environ['MLX_RANK']}" if "MLX_RANK" in os.environ else "this process"
            print(
                f"mpsfunc: {who} took no step in {limit:g} s and ends; it is {where}. "
                "It may have waited for a process that ended or stopped.",
                file=sys.stderr,
                flush=True,
            )


def watch_steps(seconds: float = SECONDS, *, first: float = FIRST) -> StepWatch:
    """Ends this process, with a message and status 1, when a step takes too long, whatever it waits for.

    MLX waits without end in NCCL for a process that has died or stopped, and nothing can interrupt that. Use ``with
    watch_steps() as watch:`` around the training, in all processes, and call ``watch.step()`` after each step; what
    waits for a process that is gone then ends. Everything that is no step, such as validation or saving, needs calls
    too, or stays outside of the ``with``. ``mx.distributed.init()`` has to be outside: it keeps Python's lock while it
    waits, so no thread of Python runs. Of the time for which this process itself is stopped hardly any counts.

    The process ends at once, as by ``os._exit``: nothing that is buffered is written, neither ``finally`` nor
    ``atexit`` runs, and its children stay. A forked child has no watch.

    Source: None in MPS. PyTorch's ``timeout`` of a process group limits collectives likewise.

    Args:
        seconds: What may pass between two calls of `StepWatch.step`, and from the last one to the end of the ``with``;
            1 to 10 million.
        first: What may pass before the first call, while much is compiled; 1 to 10 million.

    Returns:
        The watch, for one ``with``.

    Raises:
        TypeError: A time is not a number.
        ValueError: A time is out of range.

    Example:
        >>> with watch_steps(30) as watch:
        ...     watch.step()
    """
    for name, value in (("seconds", seconds), ("first", first)):
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"watch_steps: {name} is not a time; got {name}={describe(value)}, expected a number")
        if not _LEAST <= value <= _MOST:
            raise ValueError(
                f"watch_steps: {name} is out of range; got {name}={describe(value)}, expected {_LEAST} to {_MOST}"
            )
    return StepWatch(seconds, first)
