"""How soon Ctrl-C is heard while an evaluation runs: ``python -m tests.bench.interrupt``, from the checkout's root.

A process of its own evaluates for a few seconds, gets SIGINT after a while, and says when KeyboardInterrupt came.
Beside that stands how long the same evaluation takes when nobody interrupts it. Stock MLX does the same in turn. A
share of 1 means that the signal was heard when the evaluation had ended.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_ROUNDS = 5
_AFTER = 0.3  # seconds from the beginning of an evaluation to the signal
_LASTS = 3.0  # that an evaluation is to take, about
_MEMORY = 2 * 10**9  # bytes of what one task reads and writes


class Work(NamedTuple):
    """What is evaluated: one step, whose result is the next one's input, or that many times the rows in one step."""

    title: str
    step: Callable[[Any], Any]
    shape: tuple[int, ...]
    single: bool


def works(ours: bool) -> dict[str, Work]:
    """Convolutions one after the other, and one long task, of ours or of stock MLX."""
    import mlx.core as mx

    if ours:
        import mpsfunc as mf

        conv: Any = mf.conv
        pool: Any = mf.softmax
    else:
        conv, pool = mx.conv2d, mx.softmax
    w = mx.random.normal((32, 3, 3, 32), key=mx.random.key(0)) * 0.05
    mx.eval(w)
    return {
        "chain": Work("many convolutions", lambda x: conv(x, w, padding=1), (4, 64, 64, 32), False),
        "one": Work("one convolution", lambda x: conv(x, w, padding=1), (1, 64, 64, 32), True),
        "softmax": Work("one softmax", lambda x: pool(x, axis=-1), (1, 64, 64, 64), True),
    }


def child(name: str, ours: bool, interrupted: bool, given: int) -> None:
    """Runs one evaluation of so many steps in this process, 0 for what takes long, and prints its times."""
    import os
    import signal
    import threading
    import time

    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    work = works(ours)[name]

    def graph(times: int) -> Any:
        if work.single:
            x = mx.ones((work.shape[0] * times, *work.shape[1:]))
            mx.eval(x)
            return work.step(x)
        x = mx.ones(work.shape)
        for _ in range(times):
            x = work.step(x)
        return x

    most = _MEMORY // (8 * math.prod(work.shape)) if work.single else 4096
    times, lasted = min(8, most), 0.0
    while not given and lasted < _LASTS / 8 and times < most:
        times = min(most, 2 * times)
        made = graph(times)
        begin = time.perf_counter()
        mx.eval(made)
        lasted = time.perf_counter() - begin
        del made
    times = min(most, given or int(times * _LASTS / lasted))
    y = graph(times)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent: list[float] = []

    def send() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(_AFTER, send)
    begin = time.perf_counter()
    if interrupted:
        timer.start()
    heard = 0.0
    try:
        mx.eval(y)
        ended = time.perf_counter()
        while interrupted and time.perf_counter() < ended + 10:  # until Python looks for signals
            pass
    except KeyboardInterrupt:
        heard = time.perf_counter()
    whole = (heard or ended) - begin
    print(json.dumps({"whole": whole, "delay": heard - sent[0] if heard else None, "times": times}))


def main(rounds: int) -> None:
    """Every work, each side in turn, in processes of their own."""
    print(
        "evaluation | side | s without a signal (median; all) | s from SIGINT to KeyboardInterrupt (median; all) | "
        "share of the whole"
    )
    for name, work in works(True).items():
        times = {ours: _long(name, ours) for ours in (True, False)}
        wholes: dict[bool, list[float]] = {True: [], False: []}
        delays: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for ours in (True, False):
                wholes[ours].append(_run(name, ours, False, times[ours])["whole"])
                delays[ours].append(_run(name, ours, True, times[ours])["delay"])
        for ours in (True, False):
            side = "ours" if ours else "stock MLX"
            whole, delay = statistics.median(wholes[ours]), statistics.median(delays[ours])
            share = (_AFTER + delay) / whole
            print(f"{work.title} | {side} | {_told(wholes[ours])} | {_told(delays[ours])} | {share:.2f}", flush=True)


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f}; {' '.join(f'{each:.2f}' for each in sorted(seconds))}"


def _long(name: str, ours: bool) -> int:
    """How many steps take about as long as they should."""
    times = 0
    for _ in range(4):
        made = _run(name, ours, False, times)
        if times == made["times"] and made["whole"] > _LASTS / 2:
            break
        times = max(1, int(made["times"] * _LASTS / made["whole"]))
    return times


def _run(name: str, ours: bool, interrupted: bool, times: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.interrupt", "--child", name, "--times", str(times)]
    command += ["--ours"] * ours + ["--interrupted"] * interrupted
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made: dict[str, float] = json.loads(done.stdout)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--interrupted", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.ours, given.interrupted, given.times)
    else:
        main(given.rounds)
