"""What is precompiled for `mx.compile` is what MLX compiles."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

from support import precompiled


@pytest.mark.skipif(sys.platform != "linux", reason="MLX has g++ compile on Linux")
def test_the_flags_are_those_of_mlx() -> None:
    """With others g++ would leave it aside and read the header anew."""
    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    assert " ".join(("g++", *precompiled.FLAGS, "-shared ")).encode() in library.read_bytes()
