"""What cannot be exported is an error of MLX's that names a primitive, on the CPU and with the stages of a Metal GPU.

MLX has begun a file by then, which it leaves behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import mpsfunc as mf

# MLX prints and exports Metal kernels on any machine, if it is told that they are for a GPU.
PROGRAM = """
import os, sys, tempfile
import mlx.core as mx, mpsfunc as mf
from mpsfunc.core import launch

if sys.argv[1] == "metal":
    made = mx.fast.metal_kernel
    launch.backend = lambda stream: "metal"
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
    except ValueError as error:
        print(error)
    print(os.path.getsize(path))
    try:
        mx.import_function(path)
    except ValueError as error:
        print(error)
"""
# What MLX does not write comes first: on the CPU its own primitive, which makes an argument lie row by row.
NAMES = {"cpu": "Contiguous", "metal": "mpsfunc::GpuKernel"}


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
    exported, size, imported = done.stdout.splitlines()
    assert exported == f"[export_function] Unable to serialize primitive {NAMES[device]}"
    assert 100 < int(size) < 1000
    if device == "metal" and not mx.is_available(mx.gpu):
        assert imported.startswith("[new_stream] Cannot make gpu stream")
    else:
        assert imported.rstrip() == f"[import_function] Unable to deserialize primitive {NAMES[device]}"


@pytest.mark.needs_cpu_module
def test_a_file_that_is_left_behind_has_the_weights_too(on_cpu: mx.Device, tmp_path: Path) -> None:
    w, path = mx.ones((16, 7, 7, 16)), tmp_path / "function.mlxfn"
    mx.eval(w)
    with pytest.raises(ValueError, match="Unable to serialize primitive Contiguous$"):
        mx.export_function(str(path), lambda x: mf.conv(x, w), mx.ones((1, 9, 9, 16)))
    assert w.nbytes < path.stat().st_size < w.nbytes + 1000
    with pytest.raises(ValueError, match="Unable to deserialize primitive Contiguous"):
        mx.import_function(str(path))
