"""A second interpreter in a process gets an error, where the C++ module would wait without end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mpsfunc.core import versions

# One that shares the lock of all, as all did before Python 3.12; in others ctypes itself may refuse.
PROGRAM = """
FIRST
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
try:
    other = interpreters.create("legacy")
except (TypeError, ValueError):
    other = interpreters.create(isolated=False)
interpreters.run_string(other, "try:\\n    THEN\\nexcept ImportError as error:\\n    print(error, flush=True)")
print("on")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which imports what this one does."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("first", ["", "import mpsfunc"])
@pytest.mark.parametrize("then", ["import mpsfunc", "import mpsfunc._primitives", "import mpsfunc.nn"])
def test_a_second_interpreter_is_told(first: str, then: str) -> None:
    done = run(PROGRAM.replace("FIRST", first).replace("THEN", then))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"mpsfunc {versions.VERSION} runs in the main interpreter only: in another one its C++ module would wait "
        "without end; use threads or processes",
        "on",
    ]


def test_functions_that_everybody_shares_are_left_as_they_are() -> None:
    program = "import ctypes, mpsfunc; f = ctypes.pythonapi; print(f.PyInterpreterState_Main.restype is ctypes.c_int)"
    done = run(program)
    assert done.stdout == "True\n", done.stderr
