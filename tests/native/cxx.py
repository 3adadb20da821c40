"""How the tests beside this compile C++ and run what they made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PRIMITIVES = ROOT / "primitives"
SANITIZED = ("-O1", "-g", "-fsanitize=thread")

CXX = os.environ.get("CXX") or shutil.which("c++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(CXX is None or shutil.which("nm") is None, reason="no C++ compiler")


def compile_(source: Path, to: Path, *flags: str) -> Path:
    command = [str(CXX), "-std=c++20", "-fPIC", *flags, f"-I{PRIMITIVES}", f"-I{ROOT / 'metal'}"]
    subprocess.run([*command, str(source), "-o", str(to)], check=True, capture_output=True, text=True)
    return to


def drive(driver: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    first = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}  # every further report takes seconds to write
    return subprocess.run([str(driver), *arguments], capture_output=True, text=True, timeout=60, check=False, env=first)


def isa_flags(isa: str) -> list[str]:
    """The flags that CMakeLists.txt gives an instruction set, where this compiler has it."""
    if os.uname().machine not in ("x86_64", "AMD64"):
        return []
    found = re.search(rf"set\(flags_{isa} ([^)]*)\)", (PRIMITIVES / "runtime" / "CMakeLists.txt").read_text())
    assert found
    flags = [
        flag if flag.startswith("-") else isa_flags(flag.removeprefix("${flags_")[:-1]) for flag in found[1].split()
    ]
    return [one for flag in flags for one in ([flag] if isinstance(flag, str) else flag)]
