"""NVIDIA's compiler takes every kernel; `make nvrtc` installs it, and it needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from core.test_nvrtc import nothing_known as nothing_known  # for every test here too
from core.test_nvrtc import on_cuda as on_cuda

from mpsfunc.core import launch
from mpsfunc.core import nvrtc as core_nvrtc
from mpsfunc.normalization import nccl_messages
from mpsfunc.selftest import calls


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> core_nvrtc.Compiler:
    """NVRTC from a toolkit or from pip, for a GPU that need not be here."""
    packages = importlib.util.find_spec("nvidia")
    for place in (packages.submodule_search_locations if packages else None) or ():
        with contextlib.suppress(OSError):
            # So that they are found by their names: that of CUDA 13.0 asks the loader for the other file.
            for library in (
                *sorted(Path(place).glob("cu13/lib/libnvrtc-builtins.so.*")),
                f"{place}/cu13/lib/libnvrtc.so.13",
            ):
                ctypes.CDLL(str(library))
            monkeypatch.setenv("CUDA_HOME", f"{place}/cu13")
    found = core_nvrtc.found("sm_90a", Path(mx.__file__).parent, ("13",))
    if found is None:
        assert not os.environ.get("MPSFUNC_REQUIRE_NVRTC"), "NVRTC or its headers were not found"
        pytest.skip("NVRTC is not installed: make nvrtc")  # which CI runs, and which does not skip
    return found


def test_nvidia_s_compiler_takes_every_kernel(
    nvrtc: core_nvrtc.Compiler, on_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variant of the self-test, and each body for 16 bits."""
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")
    texts, named = set(), set()
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        monkeypatch.setattr(launch, "_ahead", {})
        for call in calls.kept():
            call.computed(dtype)
        nccl_messages.merged_rows(mx.zeros((8, 3)), mx.zeros((3,)), mx.default_stream(mx.cpu))
        wanted = list((launch._ahead or {}).values())
        if dtype != mx.float32:
            wanted = list(
                {(name, constants[0]): each for each in wanted for name, *_, constants, _, _ in [each]}.values()
            )
        texts |= {core_nvrtc.source(*each[:-1])[0] for each in wanted}
        named |= {each[0] for each in wanted}
    bodies = {f"mpsfunc_{path.stem}" for path in (Path(__file__).parents[2] / "metal").glob("*/*.metal")}
    assert bodies - named == {"mpsfunc_conv_grad_weights"}  # by an Apple GPU's matrices; CUDA has one without
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sizes = list(pool.map(lambda text: len(nvrtc.compile(text)), texts))
    assert len(texts) > 200 and min(sizes) > 1000
    matrices = [text for text in texts if "MPSF_SIMDGROUP_MMA_H" in text]
    older = nvrtc._replace(options=tuple(option.replace("sm_90a", "sm_75") for option in nvrtc.options))
    assert matrices and min(len(older.compile(text)) for text in matrices) > 1000


def test_nvidia_s_compiler_says_what_is_wrong(nvrtc: core_nvrtc.Compiler) -> None:
    with pytest.raises(RuntimeError, match="identifier .nowhere. is undefined"):
        nvrtc.compile('extern "C" __global__ void k(float* x) { x[0] = nowhere; }')
