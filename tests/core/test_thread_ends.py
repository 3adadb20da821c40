"""Processes that end right after a thread that has read MLX's random state."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mpsfunc.core import thread_ends

_PROGRAM = """
import sys, threading
import mlx.core as mx, mpsfunc as mf
x = mx.ones(4)
mx.eval(x)
def refused(path):
    try:
        mf.save(path, {{"a": {{1, 2}}}})
    except TypeError:
        pass
thread = threading.Thread(target=lambda: {work})
thread.start()
thread.join()
"""
_WORK = {
    "save": "mf.save(sys.argv[1], {'a': x})",
    "save the random state": "mf.save(sys.argv[1], [x, mx.random.state])",
    "refused": "refused(sys.argv[1])",
    "dropout": "mx.eval(mf.dropout(mx.ones((1, 2, 2, 1)), p=0.5))",
    "export": "mf.export(sys.argv[1], lambda x: x + 1, x)",
}
_PROCESSES = 6  # of which two or three ended by a signal


@pytest.mark.skipif(sys.platform != "linux", reason="threads are looked up in /proc")
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("work", _WORK)
def test_a_process_may_end_with_the_thread(work: str, tmp_path: Path) -> None:
    program = _PROGRAM.format(work=_WORK[work])
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / f"{i}.mlxfn")], stderr=subprocess.PIPE)
        for i in range(_PROCESSES)
    ]
    ended = [(process.communicate()[1], process.returncode) for process in started]
    assert [code for _, code in ended] == [0] * _PROCESSES, ended


def test_the_exit_waits_for_ended_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    running = threading.main_thread().native_id
    gone, there = 2**30, 2**30 + 1
    asked: list[int] = []

    def exists(thread: int) -> bool:
        asked.append(thread)
        return thread == there and asked.count(there) < 3

    monkeypatch.setattr(thread_ends, "_exists", exists)
    monkeypatch.setattr(thread_ends, "_readers", {running, gone, there})
    thread_ends._wait()
    assert asked.count(there) == 3 and running not in asked


def test_the_exit_waits_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_ends, "_exists", lambda thread: True)
    monkeypatch.setattr(thread_ends, "_readers", {2**30 + i for i in range(1000)})
    monkeypatch.setattr(thread_ends, "_LONGEST", 0.05)
    start = time.monotonic()
    thread_ends._wait()
    assert 0.05 <= time.monotonic() - start < 1


def test_threads_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = {2**30 + i for i in range(thread_ends._MANY)}
    monkeypatch.setattr(thread_ends, "_readers", readers)
    thread = threading.Thread(target=thread_ends.random_state)
    thread.start()
    thread.join()
    assert readers == {thread.native_id}


def test_the_main_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: set[int] = set()
    monkeypatch.setattr(thread_ends, "_readers", readers)
    thread_ends.random_state()
    assert not readers
