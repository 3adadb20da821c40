"""Rivals are optional installs: they are imported by the programs that need them, not by pytest's collection."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

collect_ignore = ["rivals", "compare.py", "cpu.py", "gpu.py", "networks_layers.py"]


@pytest.fixture(autouse=True)
def autograd_back_on() -> Iterator[None]:
    """The programs switch PyTorch's autograd off for their whole process, which the other tests share."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_grad_enabled(True)
