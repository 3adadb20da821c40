"""A convolution that is over before another thread had begun is left to one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path("/proc/self/task")
PROGRAM = """
import pathlib
import mlx.core as mx
import mpsfunc as mf

mx.set_default_device(mx.cpu)
mf.set_num_threads(4)
tasks = pathlib.Path("/proc/self/task")
many = lambda: len([*tasks.iterdir()])
mx.eval(mx.ones(3) + 1)
before = many()
for size in (8, 32):
    x, w = mx.ones((1, size, size, 8)), mx.ones((8, 3, 3, 8))
    y, state = mf.conv_fwd(x, w, padding=1)
    mx.eval(y, mf.conv_grad(y, x, w, state)[0], mf.conv_grad_weights(y, x, state).dw)
    print(many() - before)
"""


@pytest.mark.needs_cpu_module
@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in Linux's way")
def test_no_thread_is_begun_for_a_few_multiplications() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=os.environ)
    assert told.stdout.split() == ["0", "3"]
