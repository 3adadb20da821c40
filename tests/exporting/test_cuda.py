"""A training step for CUDA, from a file that another process runs without mpsfunc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import export_digits
import mlx.core as mx
import pytest
from exporting import mlxfn

import mpsfunc as mf

STEPS, BATCH = 3, 16
PROGRAM = """
import sys
sys.modules["mpsfunc"] = None  # an import of it is an error
import mlx.core as mx
folder, steps = sys.argv[1], int(sys.argv[2])
step, given = mx.import_function(folder + "/step.mlxfn"), mx.load(folder + "/given.safetensors")
state, found = given["state"], {}
for number in range(steps):
    state, loss = step(state, given["images"][number], given["labels"][number], given["rate"])
    mx.eval(state, loss)
    found |= {f"state {number}": state, f"loss {number}": loss}
mx.save_safetensors(folder + "/found.safetensors", found)
"""


def given() -> dict[str, mx.array]:
    images = mx.random.uniform(shape=(STEPS, BATCH, 8, 8, 1), key=mx.random.key(0))
    labels = mx.random.randint(0, 10, (STEPS, BATCH), key=mx.random.key(1))
    state = export_digits.packed(export_digits.new_state(0))
    return {"images": images, "labels": labels, "state": state, "rate": mx.array(0.1)}


def write(folder: Path, arrays: dict[str, mx.array]) -> Path:
    path = folder / "step.mlxfn"
    mx.eval(arrays)
    first = arrays["state"], arrays["images"][0], arrays["labels"][0], arrays["rate"]
    mf.export(path, export_digits.step, *first, device="cuda")
    mx.save_safetensors(str(folder / "given.safetensors"), arrays)
    return path


@pytest.mark.needs_cpu_module
def test_the_file_has_kernels_for_cuda(tmp_path: Path, on_cpu: mx.Device) -> None:
    file = mlxfn.read(write(tmp_path, given()).read_bytes())
    (function,) = file.functions
    assert {stream.device for stream in file.streams} == {"gpu"} and len(file.streams) == 1
    assert function.kernels
    for kernel in function.kernels:
        assert "__global__" in kernel.text and "[[kernel]]" not in kernel.text
        assert not kernel.is_precompiled and not kernel.scalars


@pytest.mark.gpu
@pytest.mark.needs_cpu_module
@pytest.mark.skipif(mx.metal.is_available(), reason="needs an NVIDIA GPU")
def test_gives_equal_bits_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")  # a file has no vendor's library
    with mx.stream(mx.gpu):
        arrays = given()
        write(tmp_path, arrays)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path, str(STEPS)], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        found = mx.load(str(tmp_path / "found.safetensors"))
        state = arrays["state"]
        for number in range(STEPS):
            images, labels = arrays["images"][number], arrays["labels"][number]
            state, loss = export_digits.step(state, images, labels, arrays["rate"])
            assert mx.array_equal(found[f"loss {number}"], loss).item(), number
            assert mx.array_equal(found[f"state {number}"], state).item(), number
