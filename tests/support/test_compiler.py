"""The compiler that tests give MLX: libraries come to their place whole, and everything else is g++'s own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

# Not by what conftest.py sets, whose absence would be a failure.
pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="no g++, or not Linux")


def compiled(text: str, library: Path) -> int:
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode


def test_mlx_finds_it() -> None:
    found = shutil.which("g++")
    assert found == str(Path(__file__).parent / "bin" / "g++") != os.environ["MPSFUNC_TESTS_GXX"]


def test_mlx_names_the_library_last() -> None:
    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    assert b'-shared {} "{}" -o "{}" 2>&1' in library.read_bytes()


@pytest.mark.parametrize("length", [5, 249])
def test_a_library_comes_to_its_place_whole(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that lists the folder when it has written half."""
    slow = tmp_path / "slow"
    slow.write_text(
        '#!/bin/sh\nfor last; do :; done\necho half > "$last"\nls "${last%/*}" > "$LISTED"\necho all >> "$last"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("MPSFUNC_TESTS_GXX", str(slow))
    monkeypatch.setenv("LISTED", str(tmp_path / "listed"))
    library = tmp_path / "mlx" / "0.0" / "cpu" / f"lib{'f' * length}.so"  # at most 255 bytes
    assert compiled("", library) == 0
    assert library.name not in (tmp_path / "listed").read_text()
    assert library.read_text() == "half\nall\n" and [*library.parent.iterdir()] == [library]


def test_what_does_not_compile_leaves_nothing(tmp_path: Path) -> None:
    library = tmp_path / "mlx" / "0.0" / "cpu" / "libfused.so"
    assert compiled("int f() { return }", library) != 0
    assert not [*library.parent.iterdir()]


def test_other_files_are_as_they_are_asked_for(tmp_path: Path) -> None:
    assert compiled("int f() { return 1; }", tmp_path / "libother.so") == 0
    assert (tmp_path / "libother.so").read_bytes()[:4] == b"\x7fELF"
