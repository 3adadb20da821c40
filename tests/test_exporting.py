"""What cannot be exported is an error of MLX's that names it, on the CPU and with the stages of a Metal GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# MLX prints and exports Metal kernels on any machine, if it is told that they are for a GPU.
PROGRAM = """
import os, sys, tempfile
import mlx.core as mx, mpsfunc as mf
from mpsfunc import _launch

if sys.argv[1] == "metal":
    made = mx.fast.metal_kernel
    _launch.backend = lambda stream: "metal"
    mx.metal.is_available = lambda: True
    mx.fast.metal_kernel = lambda **text: lambda **how: made(**text)(**{**how, "stream": mx.gpu})
functions = {
    "value": lambda x: mf.avg_pool(x, 2),
    "gradient": mx.grad(lambda x: (mf.avg_pool(x, 2) ** 2).sum()),
    "mapped": lambda x: mx.vmap(lambda x: mf.avg_pool(x[None], 2))(x),
}
with mx.stream(mx.cpu):
    path = os.path.join(tempfile.mkdtemp(), "function.mlxfn")
    try:
        mx.export_function(path, functions[sys.argv[2]], mx.ones((2, 4, 4, 1)))
    except (RuntimeError, ValueError) as error:
        print(error)
"""
NAMES = {"cpu": r"Contiguous|avg_pool|avg_pool_grad|CustomTransforms", "metal": r"mpsfunc::GpuKernel|CustomTransforms"}


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("function", ["value", "gradient", "mapped"])
@pytest.mark.parametrize("device", NAMES)
def test_what_cannot_be_exported_is_named(device: str, function: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device, function],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    start, _, name = done.stdout.strip().rpartition(" ")
    assert start == "[export_function] Unable to serialize primitive"
    assert name in NAMES[device].split("|")
