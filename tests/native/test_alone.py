"""What runs kernels, and the kernels themselves, are built without MLX and Python; only the binding knows those."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from native.cxx import PRIMITIVES, ROOT, needs_compiler

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"].*[>"])', re.MULTILINE)
# Behind the include roots primitives/ and metal/: folders that each part of the library may include.
TEXTS = {"shared", *(path.name for path in (PRIMITIVES / "kernels").iterdir())} - {"vector"}
BENEATH = {"runtime": {"runtime", *TEXTS}, "kernels": {"kernels", *TEXTS}}
FOR_KERNELS = {"runtime/call.h", "runtime/parallel.h"}


def included(source: Path) -> list[str]:
    return INCLUDE.findall(source.read_text(encoding="utf-8"))


def outside(part: str, include: str) -> bool:
    """Whether a file of this part may not include that."""
    name = include.strip('<>"')
    if include.startswith('"'):
        return name.partition("/")[0] not in BENEATH[part] and not (part == "kernels" and name in FOR_KERNELS)
    return "/" in name and not name.startswith("sys/") or name == "Python.h"


@pytest.mark.parametrize("part", sorted(BENEATH))
def test_the_library_includes_nothing_of_mlx_or_python(part: str) -> None:
    sources = [path for path in (PRIMITIVES / part).rglob("*") if path.suffix in (".h", ".cpp")]
    assert len(sources) > 5
    for source in sources:
        assert [include for include in included(source) if outside(part, include)] == [], source


@pytest.mark.parametrize(
    "include", ("<nanobind/nanobind.h>", "<mlx/array.h>", '"mlx/array.h"', "<Python.h>", '"binding/cpu_op.h"')
)
def test_what_it_may_not_include_would_be_seen(include: str) -> None:
    assert INCLUDE.findall(f"  # include {include}  // why") == [include]
    assert all(outside(part, include) for part in BENEATH)


def test_a_kernel_does_not_know_the_list_of_operations() -> None:
    """Or a new operation would compile all of them again."""
    assert outside("kernels", '"runtime/operations.h"') and outside("kernels", '"runtime/dispatch.h"')
    for name in FOR_KERNELS:
        assert not [include for include in included(PRIMITIVES / name) if include.startswith('"')], name


@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake")
def test_the_library_is_configured_alone(tmp_path: Path) -> None:
    command = ["cmake", "-S", str(PRIMITIVES / "runtime"), "-B", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = re.findall(r"^(\w+)[:-]", (tmp_path / "CMakeCache.txt").read_text(), re.MULTILINE)
    assert "MPSF_SANITIZE" in asked
    assert not [name for name in asked if re.search("python|nanobind|mlx", name, re.IGNORECASE)]
