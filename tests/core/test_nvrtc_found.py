"""Which NVRTC is found and what becomes of what it refuses, without one."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from core.test_nvrtc import GPU, INPUTS, OUTPUTS, Fake
from core.test_nvrtc import nothing_known as nothing_known  # for every test here too

from mpsfunc.core import nvrtc


class Library:
    """NVRTC that knows its version only."""

    def __init__(self, failed: int = 0) -> None:
        self.failed = failed

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 13, 2
        return self.failed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., nvrtc.Compiler | None]:
    """Looks for a compiler among folders that a test makes, where libraries are by their names."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    real = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: str(path).startswith(str(tmp_path)) and real(path))

    def look(libraries: dict[str, Library], headers: str = "", *more: str) -> nvrtc.Compiler | None:
        def load(name: str) -> Library:
            if name not in libraries:
                raise OSError(name)
            return libraries[name]

        monkeypatch.setattr(ctypes, "CDLL", load)
        for folder in more:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        if headers:
            (tmp_path / headers / "include").mkdir(parents=True, exist_ok=True)
            (tmp_path / headers / "include/cuda_fp16.h").touch()
        return nvrtc.found("sm_90a", tmp_path / "site/mlx", ("13", "12"))

    return look


def test_no_compiler_is_no_error(here: Any) -> None:
    thirteen, twelve = "libnvrtc.so.13", "libnvrtc.so.12"
    assert here({}) is None
    assert here({thirteen: Library()}) is None  # without headers
    assert here({twelve: Library()}, "site/nvidia/cu13") is None  # those of another version
    assert here({thirteen: Library(failed=1)}) is None
    assert here({thirteen: Library(failed=1), twelve: Library()}, "site/nvidia/cuda_runtime") is not None


@pytest.mark.parametrize("variable", ["", "CUDA_HOME", "CUDA_PATH"])
def test_headers_are_looked_for_where_mlx_does(
    here: Any, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "toolkit"))
    place = "toolkit" if variable else "site/nvidia/cu13"
    found = here(
        {"libnvrtc.so.13": Library()}, place, "site/mlx/include/cccl", f"{place}/include/cccl", f"{place}/cccl"
    )
    assert found is not None and found.version == (13, 2)
    paths = ("site/mlx/include/cccl", f"{place}/include/cccl", f"{place}/cccl", f"{place}/include")
    assert found.options[:2] == ("--device-as-default-execution-space", "--gpu-architecture=sm_90a")
    assert found.options[2:] == tuple(f"--include-path={tmp_path / path}" for path in paths)


def test_the_version_is_that_of_mlx_s_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.32.4"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert nvrtc.cudas() == ("13", "12")
    installed.add("mlx-cuda-12")
    assert nvrtc.cudas() == ("12",)


def test_the_architecture_is_that_of_the_stream_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = [], []
    about = {"compute_capability_major": 8, "compute_capability_minor": 9}

    def device_info(device: mx.Device) -> dict[str, int]:
        asked.append(repr(device))
        return about if repr(device) == "Device(gpu, 3)" else {}

    monkeypatch.setattr(mx, "device_info", device_info)
    monkeypatch.setattr(nvrtc, "found", lambda architecture, mlx, versions: architecture)
    nvrtc.compiler.cache_clear()
    try:
        found += [nvrtc.compiler(repr(mx.Device(mx.gpu, i))) for i in (3, 0)]
        for major in (9, 10):
            about["compute_capability_major"] = major
            nvrtc.compiler.cache_clear()
            found.append(nvrtc.compiler("Device(gpu, 3)"))
    finally:
        nvrtc.compiler.cache_clear()
    assert found == ["sm_89", None, "sm_99a", "sm_109a"] and asked[:2] == ["Device(gpu, 3)", "Device(gpu, 0)"]


def test_a_kernel_is_another_for_others_of_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(nvrtc, "compiler", lambda device: fake)
    fewer = (("x", mx.float16, 3), *INPUTS[1:])
    others = (("y", mx.float32), OUTPUTS[1])

    def made(
        inputs: Any = INPUTS,
        outputs: Any = OUTPUTS,
        constants: Any = (("V", 4),),
        numbers: int = 8,
        device: mx.Device = GPU,
    ) -> Any:
        return nvrtc.kernel("mpsfunc_body", "y[0] = x_shape[0] * V;", "", inputs, outputs, constants, numbers, device)

    kernels = [made(), made(inputs=fewer), made(outputs=others), made(constants=(("V", 1),)), made(numbers=9)]
    assert len({kernel.code for kernel in kernels}) == 5 and made() is kernels[0]
    before = len(nvrtc._kernels)
    made(device=mx.Device(mx.gpu, 1))
    assert len(nvrtc._kernels) == before + 1  # of whose architecture code may be another


def test_what_nvrtc_refuses_is_left_to_mlx_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(nvrtc, "compiler", lambda device: fake)
    with pytest.warns(RuntimeWarning, match=r"mpsfunc_body: MLX compiles it.*error"):
        assert nvrtc.kernel("mpsfunc_body", "no C++", "", INPUTS, OUTPUTS, (), 0, GPU) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nvrtc.kernel("mpsfunc_body", "no C++", "", INPUTS, OUTPUTS, (), 0, GPU) is None
        with pytest.raises(RuntimeWarning):
            nvrtc.kernel("mpsfunc_other", "no C++", "", INPUTS, OUTPUTS, (), 0, GPU)
        assert nvrtc.kernel("mpsfunc_other", "no C++", "", INPUTS, OUTPUTS, (), 0, GPU) is None
    assert len(fake.compiled) == 2
