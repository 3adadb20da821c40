"""The texts of kernels in a file: a part of those in ``metal/`` that means the same."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import pytest
from exporting.test_export_operations import WITH_ARRAYS, both_ways
from generic.ops import OPS
from metal_host import conformance, msl_text
from metal_host.host import needs_clang

import mpsfunc as mf
from mpsfunc.core import texts
from mpsfunc.exporting import kernels, layout
from mpsfunc.exporting.shortening import shortened

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.needs_cpu_module]


def sources(path: Path) -> dict[str, str]:
    """The texts of a file by the names of its kernels."""
    whole = layout.read(memoryview(path.read_bytes()))
    steps = (step for signature in whole.signatures for step in signature.operations)
    return {step.state[0]: step.state[1] for step in steps if step.name == "CustomKernel"}


@needs_clang
@pytest.mark.kernels
def test_every_body_is_as_legal_as_before(tmp_path: Path) -> None:
    """Of each body one text: what was left out is not missed."""
    found: dict[str, str] = {}
    for name in WITH_ARRAYS:
        sample, path = OPS[name].plain_sample(), tmp_path / "f.mlxfn"
        mf.export(path, both_ways(OPS[name], sample), *sample.inputs(mx.float32))
        for kernel, text in sources(path).items():
            found.setdefault(kernels.body_of(kernel), text)
    assert len(found) > 50
    with ThreadPoolExecutor(2) as pool:
        faults = pool.map(lambda text: conformance.faults(msl_text.parse(text)), found.values())
    assert {body: why for body, why in zip(found, faults, strict=True) if why} == {}


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("body", texts.bodies())
def test_a_text_is_shorter_and_keeps_what_it_names(body: str, cuda: bool) -> None:
    header, text = texts.header(body, metal=not cuda), texts.body(body)
    short, plain = shortened(header, text, cuda=cuda)
    assert len(short) + len(plain) < 0.75 * (len(header) + len(text)) and "//" not in short + plain
    declared = set(re.findall(r"\b(\w+)\(", header)) & set(re.findall(r"MPSF_\w+ [\w<>, ]+?\b(\w+)\(", header))
    used = set(re.findall(r"\b(\w+)\b", plain))
    assert {name for name in declared & used if not re.search(rf"\b{name}\(", short)} == set()
    for line in short.splitlines():
        assert line.count("defined(__CUDACC__)") == 0 or "__METAL_VERSION__" in line
    assert sum(line.startswith("#if") for line in short.splitlines()) == short.count("#endif")


def test_a_kernels_name_is_that_of_its_text(tmp_path: Path) -> None:
    """MLX 0.31 takes two texts of one name for the same, and one text may be in several files."""
    path, x = tmp_path / "f.mlxfn", mx.ones((1, 8, 8, 4))
    seen: dict[str, str] = {}
    for function in (lambda x: mf.avg_pool(x, 2), lambda x: mf.avg_pool(mf.avg_pool(x, 2)[..., :1], 2)):
        for device in ("metal", "cuda"):
            mf.export(path, function, x, device=device)
            for name, text in sources(path).items():
                assert seen.setdefault(name, text) == text and re.search(rf"\b{name}\(", text)
    assert len(seen) > len({name.rpartition("_")[0] for name in seen}) == 1


def test_a_text_for_cuda_is_one_that_mlx_compiles(tmp_path: Path) -> None:
    """Behind MLX's own header and in its namespace, where it looks for the kernel, with shapes as MLX gives them."""
    path = tmp_path / "f.mlxfn"
    mf.export(path, lambda x: mf.avg_pool(x, 2), mx.ones((1, 4, 4, 4), mx.bfloat16), device="cuda")
    ((name, text),) = sources(path).items()
    assert text.startswith('#include "mlx/backend/cuda/device/utils.cuh"\n#include <cooperative_groups.h>\n')
    start = r"namespace mlx::core::cu {\n__global__ void (?:__launch_bounds__\(\S+ \d+\) )?"
    signature = re.search(rf"{start}{name}\((.*)\) {{", text)
    assert signature is not None
    parameters = signature[1].split(", ")
    assert parameters[0] == "const __nv_bfloat16* x" and parameters[-1] == "__nv_bfloat16* y"
    assert "const __grid_constant__ Shape x_shape" in parameters and "const int* params" in parameters
    assert "using T = __nv_bfloat16;" in text and text.count("{") == text.count("}")
    whole = layout.read(memoryview(path.read_bytes()))
    (kernel,) = (step for step in whole.signatures[0].operations if step.name == "CustomKernel")
    inputs = [parameter for parameter in parameters if "*" in parameter][:-1]
    words = "shape", "strides", "ndim"
    flags = [tuple(f"{each.split('* ')[1]}_{word}" in signature[1] for word in words) for each in inputs]
    assert list(kernel.state[8]) == flags
