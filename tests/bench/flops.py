"""The peaks that this machine's processor reaches on so many threads, by a small program that is compiled for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


def peaks(threads: int) -> dict[str, float]:
    """GFLOP/s of "fma", "avx512_bf16" and "amx", those that the machine has; nothing without a compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if not compiler:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "flops"
        build = [compiler, "-O2", "-march=native", "-pthread", "-std=c++17", str(SOURCE), "-o", str(program)]
        if subprocess.run(build, capture_output=True).returncode:
            return {}
        told = subprocess.run([program, str(threads)], capture_output=True, text=True).stdout  # as far as it came
    return {name: float(number) for name, number in (line.split() for line in told.splitlines())}
