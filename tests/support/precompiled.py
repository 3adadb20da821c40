"""Has g++ read once what MLX puts before every kernel that it fuses on a CPU: ``python tests/support/precompiled.py``.

`mx.compile` calls g++ for each such kernel, and the tests have it fuse hundreds: with the header that they share
precompiled, beside it in the environment of the tests, each takes a seventh of the time. The command's flags are MLX's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx

FLAGS = ("-std=c++17", "-O3", "-Wall", "-fPIC")


def main() -> None:
    """Precompiles the header, where MLX has a CPU's compiler and g++ is there; else tests take longer."""
    include = Path(mx.__file__).parent / "include"
    header = include / "mlx" / "backend" / "cpu" / "compiled_preamble.h"
    if sys.platform != "linux" or not header.exists() or shutil.which("g++") is None:
        return
    to = header.with_name(f"{header.name}.gch")
    command = ["g++", *FLAGS, f"-I{include}", "-x", "c++-header", str(header), "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        to.unlink(missing_ok=True)
        print(f"MLX's header was not precompiled, and tests of mx.compile take longer:\n{done.stderr[-500:]}")


if __name__ == "__main__":
    main()
