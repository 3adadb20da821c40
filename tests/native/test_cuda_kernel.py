"""Kernels in machine code that are launched without MLX's primitive, over functions that tell what they were asked."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from native.cxx import HERE, PRIMITIVES, compile_, drive, needs_compiler

MLX = Path(mx.__file__).parent
pytestmark = [pytest.mark.kernels, needs_compiler]

# A grid of (300, 5, 1) threads in groups of (128, 8, 1), of which none is larger than the grid. Arguments are arrays,
# as a buffer and bytes into it, the result's behind the others, and then numbers.
LAUNCHED = "3,1,1 128,5,1"
ASKED = {
    "first": f"1 first {LAUNCHED} 0+0 1+12 2+0 7 -9; loads 1 rooms 1 reads 2 writes 1",
    "again": f"1 first {LAUNCHED} 0+0 1+0 2+0 7 -9; loads 0 rooms 1 reads 2 writes 1",
    "another kernel": f"1 other {LAUNCHED} 0+0 2+0 7 -9; loads 1 rooms 1 reads 1 writes 1",
    "another GPU": f"1 first {LAUNCHED} 0+0 2+0 7 -9; loads 1 rooms 1 reads 1 writes 1",
    "gaps": "0; loads 0 rooms 0 reads 0 writes 0",
    "no kernel": "0; loads 0 rooms 0 reads 0 writes 0",
    "no such function": "0; loads 1 rooms 0 reads 0 writes 0",
    "no such function, again": "0; loads 0 rooms 0 reads 0 writes 0",
    "does not load": "0; loads 1 rooms 0 reads 0 writes 0",
    "does not load, again": "0; loads 0 rooms 0 reads 0 writes 0",
    "no buffer": "0; loads 1 rooms 1 reads 0 writes 0",
    "no buffer, again": "0; loads 0 rooms 0 reads 0 writes 0",
    "no CUDA": "0; loads 0 rooms 0 reads 0 writes 0",
}

# A change of cuda_kernel.cpp, and a line of what is asked that it alters.
FAULTS = (
    ("row_contiguous", "contiguous", "gaps"),
    (" + a.offset()", "", "first"),
    ("loaded.try_emplace(context,", "loaded.try_emplace(nullptr,", "another GPU"),
    ("std::min(launch.threadgroup[i], launch.grid[i])", "launch.threadgroup[i]", "first"),
    ("+ launch.threadgroup[i] - 1)", ")", "first"),
    (
        "functions.load(&module, code.code.data()) == kSuccess",
        "functions.load(&module, code.code.data()) >= 0",
        "does not load",
    ),
    ("  for (const mx::array& a : in) functions.reads(&encoder, a);\n", "", "first"),
    ("    leave_to_mlx(launch.kernel, context);", "    //", "no buffer, again"),
)


def told(to: Path, *flags: str) -> dict[str, str]:
    sources = (HERE / "cuda_kernel_driver.cpp", f"-L{MLX}/lib", "-lmlx", f"-Wl,-rpath,{MLX}/lib", "-ldl")
    program = compile_(Path(flags[0]), to, *flags[1:], *map(str, sources), f"-I{MLX}/include")
    done = drive(program)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_a_kernel_gets_its_arrays_numbers_and_threads(tmp_path: Path) -> None:
    assert told(tmp_path / "cuda_kernel", str(PRIMITIVES / "binding" / "cuda_kernel.cpp")) == ASKED


@pytest.mark.parametrize(("right", "wrong", "where"), FAULTS, ids=[right for right, _, _ in FAULTS])
def test_a_fault_shows(tmp_path: Path, right: str, wrong: str, where: str) -> None:
    source = (PRIMITIVES / "binding" / "cuda_kernel.cpp").read_text()
    assert source.count(right) == 1
    changed = tmp_path / "cuda_kernel.cpp"
    changed.write_text(source.replace(right, wrong))
    found = told(tmp_path / "cuda_kernel", str(changed))
    assert found.keys() == ASKED.keys() and found[where] != ASKED[where]
