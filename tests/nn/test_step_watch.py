"""The watch over a process's own steps, each in a process that it may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mpsfunc as mf
from mpsfunc.nn import step_watch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals of POSIX")

PLENTY = 60.0


@contextmanager
def child(*lines: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that runs lines within a watch of one second, the shortest; afterwards it is killed."""
    body = "\n    ".join(lines)
    text = f"import sys, time, mpsfunc as mf\nwith mf.nn.watch_steps(1, first=1) as watch:\n    {body}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MLX_RANK": "3"}
    with subprocess.Popen([sys.executable, "-c", text], env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("before", ["pass", "watch.step()"], ids=["first", "later"])
def test_a_process_without_a_step_ends(before: str) -> None:
    with child(before, "time.sleep(60)", stderr=subprocess.PIPE) as process:
        said = process.communicate(timeout=PLENTY)[1].decode()
    assert process.returncode == 1
    assert said.startswith("mpsfunc: rank 3 took no step in 1 s and ends; it is at <string>:4. It may have waited ")


@pytest.mark.parametrize("how", ["closed", "full", "gone", "none", "unread"])
def test_it_ends_where_nothing_can_be_said(how: str) -> None:
    lines = {"closed": ["sys.stderr.close()"], "none": ["sys.stderr = None"]}.get(how, [])
    reader, writer = os.pipe()
    try:
        if how == "gone":
            os.close(reader)
        elif how == "unread":
            os.set_blocking(writer, False)
            while True:
                try:
                    os.write(writer, b"x")
                except BlockingIOError:
                    break
            os.set_blocking(writer, True)
        full = "/dev/full" if sys.platform == "linux" else os.devnull
        with open(full, "wb") as file:
            stderr: Any = file if how == "full" else writer
            with child(*lines, "time.sleep(60)", stderr=stderr) as process:
                assert process.wait(PLENTY) == 1
    finally:
        os.close(writer)
        if how != "gone":
            os.close(reader)


def test_steps_go_on_for_as_long_as_they_come() -> None:
    with child("for _ in range(9):", "    time.sleep(0.3)", "    watch.step()") as process:
        assert process.wait(PLENTY) == 0


def test_time_for_which_a_process_is_stopped_does_not_count() -> None:
    # It is stopped when the clock has looked since the step.
    lines = "watch.step()", "time.sleep(0.2)", "print('here', flush=True)", "for _ in range(3):", "    time.sleep(0.1)"
    with child(*lines, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PLENTY) == 0


def test_an_error_passes_and_ends_the_watch() -> None:
    with pytest.raises(ZeroDivisionError), mf.nn.watch_steps(1, first=1):
        _ = 1 / 0
    assert "mpsfunc step watch" not in [thread.name for thread in threading.enumerate()]


def test_it_ends_though_no_thread_can_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(threading, "Thread", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        step_watch.StepWatch(1, 1)._end(1)
    assert statuses == [1]


def test_a_watch_serves_one_with() -> None:
    watch = mf.nn.watch_steps()
    with pytest.raises(RuntimeError, match="StepWatch.step: nothing is watched; expected a call within"):
        watch.step()
    with watch:
        with pytest.raises(RuntimeError, match="watch_steps: this watch was used before"), watch:
            pass
        watch.step()
    with pytest.raises(RuntimeError, match="watch_steps: this watch was used before"), watch:
        pass
    with pytest.raises(RuntimeError, match=r"StepWatch\.step: nothing is watched"):
        watch.step()


@pytest.mark.parametrize("name", ["seconds", "first"])
def test_what_is_no_time_is_refused(name: str) -> None:
    for wrong in ("soon", True, None):
        with pytest.raises(TypeError, match=f"watch_steps: {name} is not a time; got {name}="):
            mf.nn.watch_steps(**{name: wrong})
    for wrong in (0.99, -1, 10**7 + 1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"watch_steps: {name} is out of range; got {name}=.*, expected 1 to"):
            mf.nn.watch_steps(**{name: wrong})
