"""The import has MLX launch kernels one by one on NVIDIA GPUs, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CUDA_GRAPHS = "MLX_USE_CUDA_GRAPHS"


def variable_after_the_import(before: str | None, *, on_cuda: bool) -> str:
    env = {name: value for name, value in os.environ.items() if name != CUDA_GRAPHS}
    lines = ["import os, mlx.core as mx", f"mx.cuda.is_available = lambda: {on_cuda}", "import mpsfunc"]
    program = "\n".join([*lines, f"print(os.environ.get({CUDA_GRAPHS!r}))"])
    env |= {} if before is None else {CUDA_GRAPHS: before}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("0", "0"), ("1", "1")])
def test_what_the_user_set_stays(before: str | None, after: str) -> None:
    assert variable_after_the_import(before, on_cuda=True) == after


def test_elsewhere_nothing_is_set() -> None:
    assert variable_after_the_import(None, on_cuda=False) == "None"
