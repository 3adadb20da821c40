"""The programs in docs/examples that train from files, as far as a machine without a GPU can go."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import export_digits
import mlx.core as mx
import numpy as np
import pytest
from exporting import mlxfn

import mpsfunc as mf

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SWIFT = EXAMPLES / "swift" / "Sources" / "DigitsTraining" / "main.swift"
CPP = EXAMPLES / "cpp" / "train_digits.cpp"
MLX = Path(mx.__file__).parent

pytestmark = [pytest.mark.needs_cpu_module, pytest.mark.usefixtures("on_cpu")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What export_digits.py writes."""
    pytest.importorskip("sklearn", reason="scikit-learn, of mpsfunc[demo], is not installed")
    path = tmp_path_factory.mktemp("digits")
    with mx.stream(mx.cpu):
        export_digits.write(path, "metal", None)
    return path


def test_what_is_written(folder: Path) -> None:
    arrays = mx.load(str(folder / "digits.safetensors"))
    step, predict = (mlxfn.read((folder / f"{name}.mlxfn").read_bytes()).functions[0] for name in ("step", "predict"))
    batch = export_digits.BATCH
    state = (arrays["state"].shape, "float32")
    assert step.inputs == (state, ((batch, 8, 8, 1), "float32"), ((batch,), "int32"), ((), "float32"))
    assert step.outputs == (state, ((), "float32"))
    assert predict.inputs == (state, (arrays["test_images"].shape, "float32"))
    assert predict.outputs == ((arrays["test_labels"].shape, "uint32"),)
    assert len(arrays["train_labels"]) == len(arrays["train_images"]) and arrays["train_labels"].dtype == mx.int32
    losses = np.array(arrays["losses"])
    assert len(losses) == export_digits.CHECKED and losses[-1] < losses[0] / 2
    assert (folder / "step.mlxfn").stat().st_size < 300_000


def test_packing_keeps_the_tree() -> None:
    tree = export_digits.new_state(1)
    again = export_digits.unpacked(export_digits.packed(tree), export_digits.LIKE)
    assert mx.array_equal(again["params"]["blocks"][2]["w"], tree["params"]["blocks"][2]["w"])
    assert mx.array_equal(again["averages"][1][1], tree["averages"][1][1])


@pytest.mark.programs
def test_the_program_in_cpp_imports_the_step(folder: Path, tmp_path: Path) -> None:
    """MLX for CPUs evaluates no kernel, but knows all shapes, and says why it stops."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = "-I$mlx/include -L$mlx/lib -lmlx -Wl,-rpath,$mlx/lib"
    assert f"c++ -std=c++20 train_digits.cpp {command} -o train_digits" in CPP.read_text()
    program = tmp_path / "train_digits"
    flags = command.replace("$mlx", str(MLX)).split()
    built = subprocess.run([compiler, "-std=c++20", CPP, *flags, "-o", program], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for name in ("digits.safetensors", "step.mlxfn"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "step.mlxfn").write_bytes(mlxfn.on_cpu((folder / "step.mlxfn").read_bytes()))
    shapes = subprocess.run([program, tmp_path, "--shapes"], capture_output=True, text=True)
    size = mx.load(str(folder / "digits.safetensors"))["state"].size
    assert (shapes.stdout, shapes.stderr) == (f"({size}) float32\n() float32\n", "")
    if not mx.is_available(mx.gpu):
        trained = subprocess.run([program, tmp_path, "3"], capture_output=True, text=True)
        assert trained.returncode == 1 and "GPU" in trained.stderr


def test_the_programs_read_what_is_written(folder: Path) -> None:
    """Names of files and arrays, the batch, the first rate and the number of arguments stand in three languages."""
    names = mx.load(str(folder / "digits.safetensors")).keys()
    swift, cpp = SWIFT.read_text(), CPP.read_text()
    asked = {*re.findall(r'array\("(\w+)"\)', swift), *re.findall(r'files\.at\("(\w+)"\)', cpp)}
    parts = set(re.findall(r'digits\("(\w+)"\)', swift))
    assert parts == {"train", "test"} and '"\\(part)_images"' in swift and '"\\(part)_labels"' in swift
    assert asked | {f"{part}_{what}" for part in parts for what in ("images", "labels")} == names
    assert f"static let batch = {export_digits.BATCH}\n" in swift and f"const int batch = {export_digits.BATCH}," in cpp
    assert f"rate: {export_digits.RATE})" in swift and f"rate({export_digits.RATE}f)" in cpp
    assert "files.step(state, digits.images, digits.labels, MLXArray(rate))" in swift
    assert "files.predict(state, digits.images)" in swift
    for name in ("step.mlxfn", "predict.mlxfn", "digits.safetensors"):
        assert (folder / name).exists() and f'"{name}"' in swift


def test_the_package_for_swift_is_short() -> None:
    assert len(SWIFT.read_text().splitlines()) <= 150


def test_exported_lists_the_files(folder: Path) -> None:
    listed = mf.exported(folder / "step.mlxfn").signatures[0]
    assert [array.name for array in listed.inputs] == ["state", "images", "labels", "rate"]
