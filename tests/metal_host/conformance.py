"""Whether a kernel text keeps the rules of MSL that plain C++ does not have.

Three questions, each to its own judge. clang's C++ for OpenCL has Metal's address spaces and, like Metal, no double, no
exceptions, no RTTI, no virtual functions and no pointers to functions. It lets a pointer without an address space point
anywhere, where Metal refuses it, so the declarators are read here; lambdas too. Recursion shows in the compiled calls.
"""

from __future__ import annotations

import functools
import re
import subprocess

from metal_host.build import SHIM, CompileError, clang
from metal_host.msl_text import Kernel, as_cpp

_METAL = "-D__METAL_VERSION__=310"
_OPENCL = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "--target=spir64-unknown-unknown", "-emit-llvm", "-S", "-O0"),
    *("-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,+cl_khr_fp16"),
    *("-Werror", "-Wno-unknown-attributes", "-Wno-ignored-attributes"),
)
_TYPES = """void bool char uchar short ushort int uint long ulong size_t
    int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
    half float bfloat float16_t bfloat16_t auto""".split()
_SPACES = ("device", "constant", "threadgroup", "thread")


@functools.cache
def faults(kernel: Kernel) -> tuple[str, ...]:
    """What a Mac would refuse, in words; empty for a text that conforms. Cases share many kernels."""
    try:
        found = _unwritten(re.sub(r"^template \[\[host_name\(.*", "", kernel.text, flags=re.MULTILINE))
        calls = _calls(_clang(_as_opencl(kernel), *_OPENCL, _METAL))
    except CompileError as error:
        return (str(error),)
    return (*found, *[f"recursion: {name}" for name in calls if name in _reached(calls, name)])


@functools.cache
def _unwritten(text: str) -> tuple[str, ...]:
    """Missing address spaces, and lambdas, in what Metal sees of a text. Instances of one body have one text."""
    seen_by_metal = _clang(text, "-x", "c++", "-E", "-P", _METAL)
    return (*_undeclared_spaces(seen_by_metal), *_lambdas(seen_by_metal))


def _clang(source: str, *flags: str) -> str:
    command = [str(clang()), *flags, f"-I{SHIM}", "-", "-o", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompileError(done.stderr[:3000])
    return done.stdout


def _undeclared_spaces(text: str) -> list[str]:
    """Pointers and references that name no address space."""
    own = {name for pair in re.findall(r"\bstruct (\w+)|\btypename (\w+)", text) for name in pair if name}
    words = rf"(?:\b(?:{'|'.join(_SPACES)}|const)\s+)*"
    type_name = rf"\b(?:{'|'.join([*_TYPES, *sorted(own)])})\b(?:<[^<>;]*>)?(?:\s+const)?"
    declarators = re.finditer(rf"({words}){type_name}\s*[*&](?!&)", text)
    return [
        f"no address space: {match[0].strip()} in {text[match.start() :].splitlines()[0]}"
        for match in declarators
        if not any(space in match[1].split() for space in _SPACES)
    ]


def _lambdas(text: str) -> list[str]:
    found = re.findall(r"\[[\s\w&=,]*\]\s*\([^()]*\)\s*(?:mutable\s*)?(?:->\s*\w+\s*)?\{", text)
    return [f"lambda: {each}" for each in found]


def _as_opencl(kernel: Kernel) -> str:
    """Structs that may be copied out of any array, which OpenCL does not allow for small ones by itself."""
    copied = re.sub(r"(template <[^<>]*>\s*struct (\w+) \{)", r"\1 MSL_COPIES_FROM_CONSTANT(\2)", as_cpp(kernel.text))
    return f'#include "msl_strict.h"\n#line 1 "kernel.metal"\n{copied}'


def _calls(llvm: str) -> dict[str, set[str]]:
    """Which functions each function calls."""
    calls: dict[str, set[str]] = {}
    for name, body in re.findall(r"^define [^@]*@(\w+)\(.*?\{\n(.*?)^\}", llvm, re.DOTALL | re.MULTILINE):
        calls[name] = set(re.findall(r"\bcall\b[^@\n]*@(\w+)\(", body))
    return calls


def _reached(calls: dict[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    front = set(calls[name])
    while front:
        reached |= front
        front = {c for f in front for c in calls.get(f, ())} - reached
    return reached
