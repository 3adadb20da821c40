"""Stock MLX on OpenBLAS, in a process of its own that computes only when it is its turn.

MLX's Linux wheel brings the reference BLAS; preloading another one is all it takes to replace it.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from types import TracebackType

from . import clock
from .problems import Problem

NAME = "MLX + OpenBLAS"

_READY = "ready\n"
_DEBIAN = "/usr/lib/*/openblas-pthread/libopenblas*.so*"


def find(path: str | None) -> str | None:
    """The library to preload: the one named, or Debian's libopenblas0-pthread if it is installed."""
    return path or next(iter(sorted(glob.glob(_DEBIAN))), None)


class Rival:
    """The other process, between ``with``'s two ends."""

    def __init__(self, problem: Problem, library: str) -> None:
        self._command = [sys.executable, "-m", "tests.bench.openblas", json.dumps(problem)]
        # Its threads stop spinning after 2^20 cycles, long before the next rival's turn.
        settings = {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_THREAD_TIMEOUT": "20", "LD_PRELOAD": library}
        self._environment = {**os.environ, **settings}

    def __enter__(self) -> Rival:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, env=self._environment, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _READY:
            raise RuntimeError(f"{NAME}: the other process did not start; its errors are above")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def sample(self) -> float:
        """Seconds a call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def main() -> None:
    """The other process: one time for every line that comes in."""
    import mlx.core as mx
    import torch

    from .results import checked
    from .rivals import on_mlx, pytorch, stock

    mx.set_default_device(mx.cpu)
    torch.set_num_threads(2)
    op, shape, *rest = json.loads(sys.argv[1])
    problem, side = Problem(op, tuple(shape), *rest), on_mlx.side(NAME, stock.functions)
    oracle = pytorch.side("oracle", torch.contiguous_format, "cpu")
    bound, wrong = checked(problem, [side], oracle, problem.inputs())
    assert not wrong, f"{NAME} is wrong: {wrong}"
    sample = clock.wall(side, bound[NAME], 1)
    print(_READY, end="", flush=True)
    for _ in sys.stdin:
        print(sample(), flush=True)


if __name__ == "__main__":
    main()
