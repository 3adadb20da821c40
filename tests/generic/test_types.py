"""What mypy knows of operations and of public functions: types without Any."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.operations import modules, operations

import mpsfunc as mf

pytest.importorskip("mypy", reason="mypy is one of the dev dependencies")

ROOT = Path(__file__).parents[2]
PUBLIC = [name for name in mf.__all__ if callable(getattr(mf, name)) and not isinstance(getattr(mf, name), type)]
EXPRESSIONS = [*operations(), *(f"mpsfunc.{name}" for name in PUBLIC)]


@pytest.fixture(scope="module")
def revealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The type of each expression."""
    calls = tmp_path_factory.mktemp("types") / "calls.py"
    lines = [f"import {module}" for module in ("mpsfunc", *modules())]
    first = len(lines) + 1
    calls.write_text("\n".join([*lines, *(f"reveal_type({each})" for each in EXPRESSIONS), ""]))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r'^.*calls\.py:(\d+): note: Revealed type is "(.*)"$', done.stdout, re.MULTILINE)
    return {EXPRESSIONS[int(line) - first]: type for line, type in found}


def test_mypy_tells_the_type_of_each(revealed: dict[str, str]) -> None:
    assert set(revealed) == set(EXPRESSIONS) and len(PUBLIC) > 100
    assert revealed["mpsfunc.pooling.average_rules.pool"].startswith("mpsfunc.core.operation.Operation[[x: mlx.core.")
    assert revealed["mpsfunc.avg_pool"].endswith("-> mlx.core.array")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_type_is_exact(revealed: dict[str, str], expression: str) -> None:
    assert not re.search(r"\bAny\b", revealed[expression])
