"""What ``import mpsfunc`` does to a process: little, and nothing that anybody would notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import mlx.core as mx

# What takes long to import, and nobody needs before the first call of something.
LATER = {"asyncio", "email", "importlib.metadata", "inspect", "mlx.nn", "numpy", "pickle", "unittest"}


def told(program: str) -> object:
    """What a program prints as JSON in a process of its own that imports what this one does."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, mlx.core as mx\n{program}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_takes_long_is_imported_later() -> None:
    program = "import sys\nbefore = set(sys.modules)\nimport mpsfunc\nprint(json.dumps([*{*sys.modules} - before]))"
    brought = told(program)
    assert isinstance(brought, list) and "mpsfunc.core.launch" in brought
    assert LATER & set(brought) == set()


def test_numpy_comes_with_the_first_call_that_needs_it() -> None:
    program = (
        "import sys, mpsfunc as mf\nbefore = 'numpy' in sys.modules\n"
        "mx.eval(mf.upsample_bilinear(mx.ones((1, 2, 2, 1)), 2, stream=mx.cpu))\n"
        "import numpy\nnumber = mf.relu(mx.ones(1), numpy.float32(0.5), stream=mx.cpu).shape\n"
        "print(json.dumps([before, number]))"
    )
    assert told(program) == [False, [1]]


def test_the_environment_is_as_before() -> None:
    """But for what MLX reads where it has a CUDA device."""
    program = "import os\nbefore = {**os.environ}\nimport mpsfunc\nprint(json.dumps([before, {**os.environ}]))"
    found = told(program)
    assert isinstance(found, list)
    before, after = found
    if mx.is_available(mx.gpu) and not mx.metal.is_available():
        after.pop("MLX_USE_CUDA_GRAPHS")
        before.pop("MLX_USE_CUDA_GRAPHS", None)
    assert after == before
