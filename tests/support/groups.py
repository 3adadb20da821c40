"""Groups of processes that mlx.launch starts on this machine, with MLX's ring between them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1]
LAUNCH = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"]
PLENTY = 60.0  # seconds that a process may be silent where MLX may have to compile first


def ports(count: int) -> int:
    """The first of so many free ports in a row, below those that systems hand out."""
    for _ in range(100):
        first = random.SystemRandom().randrange(20000, 30000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise AssertionError("no free ports")


@contextmanager
def launched(size: int, *command: str, patience: float) -> Iterator[subprocess.Popen[str]]:
    """A group that is running; what is left of it afterwards is killed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        "MPSFUNC_DISTRIBUTED_TIMEOUT": str(patience),
        "MPSFUNC_NUM_THREADS": "1",
    }
    arguments = ["-n", str(size), "--backend", "ring", "-p", str(ports(size)), "--python", sys.executable, *command]
    process = subprocess.Popen(
        [*LAUNCH, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def run(size: int, *command: str, patience: float = PLENTY) -> str:
    """What a group prints until all its processes have ended."""
    with launched(size, *command, patience=patience) as process:
        return process.communicate(timeout=2 * PLENTY)[0]
