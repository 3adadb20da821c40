"""Compiles kernel texts with clang, once each: results are kept by the hash of everything that goes in."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from metal_host.msl_text import Kernel, as_cpp

SHIM = Path(__file__).parent / "shim"

# Left out are checks of pointers that nothing goes through, or that the address sanitizer checks when something does:
# they make half of the time to compile.
_ADDRESS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "-fno-sanitize=null,object-size,pointer-overflow",
)
# Builds of a kernel; address and thread sanitizer exclude each other. The first also counts bytes loaded and stored and
# fills variables that nobody set, floats with NaN, where a fresh stack has zeros; the third compiles soonest; the last
# runs soonest, for texts that a sanitizer has seen.
SANITIZERS = {
    "address": (
        "-O1",
        *_ADDRESS,
        "-fsanitize-coverage=trace-pc-guard,trace-loads,trace-stores",
        "-ftrivial-auto-var-init=pattern",
    ),
    "thread": ("-O1", "-fsanitize=thread"),
    "quick address": ("-O0", *_ADDRESS),
    "none": ("-O2",),
}
# Compilers differ in what they warn of; MSL 3.1, MLX's floor (macOS 14), is C++14.
_WARNINGS = ("-Wno-everything", "-Werror=c++17-extensions", "-Werror=return-type", "-Werror=uninitialized")


class CompileError(Exception):
    """The compiler's words about a text that it refused."""


def clang() -> str | None:
    """The clang++ to use: ``MPSFUNC_CLANG``, or the first in the path."""
    return shutil.which(os.environ.get("MPSFUNC_CLANG", "clang++"))


@functools.cache
def missing() -> str:
    """Why kernels cannot be compiled here; empty if they can."""
    if sys.platform != "linux":
        return "the Metal host needs Linux"
    version = re.search(r"clang version (\d+)", _version()) if clang() else None
    if version is None or int(version[1]) < 14:
        return "the Metal host needs clang++ 14 or newer, in the path or as MPSFUNC_CLANG"
    try:
        for sanitizer in SANITIZERS:
            runner(sanitizer)
    except CompileError as error:
        return f"the Metal host needs clang's sanitizer libraries: {str(error).strip().splitlines()[-1]}"
    return ""


@functools.cache
def cache() -> Path:
    """Where compiled kernels are kept: ``MPSFUNC_KERNEL_CACHE``, or a folder for temporary files."""
    folder = os.environ.get("MPSFUNC_KERNEL_CACHE")
    path = Path(folder) if folder else Path(tempfile.gettempdir()) / f"mpsfunc-kernels-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@functools.cache
def runner(sanitizer: str) -> Path:
    """The host for kernels compiled with a sanitizer. Its own accesses are not instrumented."""
    tsan = sanitizer == "thread"
    link = ("-fsanitize=thread" if tsan else "-fsanitize=address,undefined", "-rdynamic", "-ldl")
    source = (SHIM / "gpu.cpp").read_text()
    object_file = _compiled(source, ".o", ("-std=c++17", "-O1", "-c", f"-DGPU_TSAN={int(tsan)}"))
    return _compiled(str(object_file), "", link, inputs=(str(object_file),))


def shared_object(kernel: Kernel, sanitizer: str) -> Path:
    """A kernel that `runner` can load."""
    arguments, buffers = [], 0
    for parameter in kernel.parameters:
        if not parameter.attribute.startswith("buffer"):
            of = f"ids.{parameter.name}"
            vector = parameter.type == "uint3"
            arguments.append(f"uint3{{{of}[0], {of}[1], {of}[2]}}" if vector else of)
            continue
        pointer = parameter.type.replace("&", "*")
        arguments.append(f"{'*' if '&' in parameter.type else ''}({pointer})buffers[{buffers}]")
        buffers += 1
    source = (
        '#include "msl.h"\n#line 1 "kernel.metal"\n'
        f"{as_cpp(kernel.text)}\n"
        'extern "C" void gpu_kernel(void* const* buffers, const Ids& ids) {\n'
        f"  {kernel.instance}({', '.join(arguments)});\n}}\n"
    )
    # What a kernel calls is in the runner: to look for it in libraries would be a third of the time to compile.
    flags = ("-std=c++14", "-g1", "-fPIC", "-shared", "-nostdlib", "-ffp-contract=off")
    return _compiled(source, ".so", (*flags, *_WARNINGS, *SANITIZERS[sanitizer]))


def _compiled(source: str, suffix: str, flags: tuple[str, ...], inputs: tuple[str, ...] = ()) -> Path:
    command = [str(clang()), f"-I{SHIM}", *flags]
    key = hashlib.sha256("\0".join((_toolchain(), source, *command)).encode()).hexdigest()[:24]
    path = cache() / f"{key}{suffix}"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        made = Path(folder) / f"made{suffix}"
        if not inputs:
            (Path(folder) / "source.cpp").write_text(source)
            inputs = (str(Path(folder) / "source.cpp"),)
        done = subprocess.run([*command, *inputs, "-o", str(made)], capture_output=True, text=True)
        if done.returncode != 0:
            raise CompileError(done.stderr)
        made.replace(path)  # at once, so that no other process sees half of it
    return path


@functools.cache
def _version() -> str:
    return subprocess.run([str(clang()), "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _toolchain() -> str:
    """What decides the outcome besides the command: the compiler and the shim."""
    return _version() + "".join(path.read_text() for path in sorted(SHIM.iterdir()))
