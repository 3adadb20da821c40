"""Ctrl-C in an evaluation is heard where stock MLX hears it.

MLX waits for what it evaluates without looking at signals, whoever's operations those are. So the exception comes out
of mx.eval, before the next statement, and of an evaluation in parts most are never begun. How long that takes is
measured by tests/bench/interrupt.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import program

# The signal is sent when a quarter of the parts has been evaluated, or soon after an evaluation in one part has begun.
INTERRUPTED = """
import os, signal, sys, threading, time
import mlx.core as mx, numpy as np
import mpsfunc as mf

mx.set_default_device(mx.cpu)
signal.signal(signal.SIGINT, signal.default_int_handler)
x, w = mx.random.normal((2, 40, 36, 16)), mx.random.normal((16, 3, 3, 16)) / 12
mx.eval(x, w)
step = {
    "ours": lambda y: mf.conv(y, w, padding=1, neuron="sigmoid"),
    "stock": lambda y: mx.sigmoid(mx.conv2d(y, w, padding=1)),
}[sys.argv[1]]
parts = int(sys.argv[2])
quarter = threading.Event()  # begins

def steps(y, times):
    for _ in range(times):
        y = step(y)
    return y

def evaluate(times):
    global y, done, ended
    y, done, ended = x, 0, False
    for part in range(parts):
        y = steps(y, times // parts)
        if part == parts // 4:
            quarter.set()
        mx.eval(y)
        done += 1
    ended = True
    return y

def uninterrupted(times):
    begin = time.perf_counter()
    y = evaluate(times)
    return time.perf_counter() - begin, np.array(y).tobytes()

times, whole = parts, 0.0
while whole < 0.5:
    times *= 2
    whole = min(uninterrupted(times)[0] for _ in range(2))

def interrupt():
    quarter.wait()
    if parts == 1:
        time.sleep(whole / 20)
    os.kill(os.getpid(), signal.SIGINT)

def interrupted(times):
    quarter.clear()
    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.perf_counter()
    try:
        evaluate(times)
        while True:
            pass
    except KeyboardInterrupt:
        heard = time.perf_counter() - begin
    seen = ended, done, np.array(y)
    thread.join()
    return heard, *seen

shares = []
while len(shares) < 5 and min(shares, default=2) >= 2:
    heard, *seen, left = interrupted(times)
    after, expected = uninterrupted(times)
    shares.append(heard / max(whole, after))
    right = np.isfinite(left).all() and (parts > 1 or left.tobytes() == expected)
    print(*seen, right and uninterrupted(times)[1] == expected)
print(min(shares))
"""


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("parts", [1, 20])
@pytest.mark.parametrize("side", ["ours", "stock"])
def test_ctrl_c_in_an_evaluation(side: str, parts: int, tmp_path: Path) -> None:
    *tries, share = program(tmp_path, INTERRUPTED, side, str(parts)).splitlines()
    for told in tries:
        ended, done, right = told.split()
        assert (ended, right) == ("False", "True")
        assert parts // 4 <= int(done) <= parts // 2
    assert float(share) < 2  # of what the evaluation takes without a signal, on a machine that may be busy
