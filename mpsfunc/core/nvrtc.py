"""CUDA kernels compiled once: NVRTC's machine code is kept on disk from one process to the next.

MLX compiles a custom kernel anew in every process, behind headers that take it most of a second, and a training step
has dozens of them. From here the text goes to the same NVRTC behind the two headers that it needs, in an eighth of the
time or so, and MLX is given the machine code. Where NVRTC or those headers are not found, nothing here is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core.grids import RESIDENT
from mpsfunc.core.printing import brief, describe

_HEADERS = {"13": "cu13", "12": "cuda_runtime"}  # where pip keeps those of each version of CUDA
TYPES = {
    mx.bool_: "bool", mx.uint8: "unsigned char", mx.int8: "signed char", mx.uint16: "unsigned short",
    mx.int16: "short", mx.uint32: "unsigned int", mx.int32: "int", mx.uint64: "unsigned long",
    mx.int64: "long", mx.float16: "__half", mx.bfloat16: "__nv_bfloat16", mx.float32: "float",
}  # fmt: skip
_PROLOGUE = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
"""
_DIGEST = 32  # bytes of a SHA-256
_MOST_THREADS = 256

Parameter = tuple[str, mx.Dtype, int]  # name, dtype and number of axes of an array, 0 where nothing asks
Constant = tuple[str, mx.Dtype | int]


class Compiler(NamedTuple):
    """NVRTC, for one GPU."""

    nvrtc: ctypes.CDLL
    version: tuple[int, int]
    options: tuple[str, ...]

    def compile(self, source: str) -> bytes:
        """Machine code, or a RuntimeError with the compiler's words."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        words = [option.encode() for option in self.options]
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"mpsfunc.cu", 0, None, None)
        try:
            failed = self.nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
            kind = "ProgramLog" if failed else "CUBIN"
            self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            self._call(f"nvrtcGet{kind}", program, code)
        finally:
            self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        if failed:
            raise RuntimeError(code.value.decode(errors="replace"))
        return code.raw

    def _call(self, name: str, *args: object) -> None:
        failed = getattr(self.nvrtc, name)(*args)
        if failed:
            raise RuntimeError(f"{name} returned {failed}")


@functools.cache
def compiler(device: str) -> Compiler | None:
    """NVRTC of the CUDA that MLX was built for, if it and its headers are found, and MLX knows what the GPU is."""
    index = device.removeprefix("Device(gpu, ").removesuffix(")")
    about = mx.device_info(mx.Device(mx.gpu, int(index)))
    if "compute_capability_major" not in about:
        return None
    major, minor = (int(about[f"compute_capability_{part}"]) for part in ("major", "minor"))
    return found(f"sm_{major}{minor}{'a' * (major >= 9)}", Path(mx.__file__).parent, cudas())


def cudas() -> tuple[str, ...]:
    """Versions of CUDA that MLX may be built for: that of the package which brought its backend, if one did."""
    import importlib.metadata  # to import it takes long

    known = []
    for version in _HEADERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(f"mlx-cuda-{version}")
            known.append(version)
    return tuple(known or _HEADERS)


def found(architecture: str, mlx: Path, versions: Sequence[str]) -> Compiler | None:
    """The compiler for an architecture, of the first of these versions of CUDA that is found where MLX looks."""
    for version in versions:
        try:
            nvrtc = ctypes.CDLL(f"libnvrtc.so.{version}")
        except OSError:
            continue
        homes = [Path(os.environ[v]) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
        toolkits = [mlx.parent / "nvidia" / _HEADERS[version], *homes, Path("/usr/local/cuda")]
        # os.path.exists says no of what nobody may read.
        toolkit = next((t / "include" for t in toolkits if os.path.exists(t / "include/cuda_fp16.h")), None)
        major, minor = ctypes.c_int(), ctypes.c_int()
        if toolkit is None or nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
            continue
        more = [p for p in (mlx / "include/cccl", toolkit / "cccl", toolkit.parent / "cccl") if os.path.exists(p)]
        includes = [f"--include-path={path}" for path in (*more, toolkit)]
        options = ("--device-as-default-execution-space", f"--gpu-architecture={architecture}", *includes)
        return Compiler(nvrtc, (major.value, minor.value), options)
    return None


class Kernel(NamedTuple):
    """One body for given dtypes, in machine code."""

    name: str
    code: bytes
    sized: tuple[int, ...]  # the inputs whose lengths it is told, behind all arrays
    numbers: int  # of parameters, behind the lengths


_kernels: dict[tuple[object, ...], Kernel | None] = {}


def kernel(
    name: str,
    body: str,
    header: str,
    inputs: tuple[Parameter, ...],
    outputs: tuple[tuple[str, mx.Dtype], ...],
    constants: tuple[Constant, ...],
    numbers: int,
    device: mx.Device,
) -> Kernel | None:
    """The kernel, from disk if it was compiled before; None where MLX has to compile it."""
    key = (name, inputs, outputs, constants, numbers, repr(device))  # two equal mx.Device have two hashes
    if key not in _kernels:
        with_nvrtc = compiler(repr(device))
        text, sized = source(name, body, header, inputs, outputs, constants, numbers)
        try:
            _kernels[key] = with_nvrtc and Kernel(name, machine_code(text, with_nvrtc), sized, numbers)
        except RuntimeError as error:
            _kernels[key] = None
            warnings.warn(f"{name}: MLX compiles it, since NVRTC said: {error}", RuntimeWarning, stacklevel=2)
    return _kernels[key]


@functools.cache
def asks(body: str, array: str) -> bool:
    """Whether a body asks about an array's axes; arrays that differ in nothing else share one kernel."""
    return re.search(rf"\b{array}_(shape|ndim)\b", body) is not None


def source(
    name: str,
    body: str,
    header: str,
    inputs: Sequence[Parameter],
    outputs: Sequence[tuple[str, mx.Dtype]],
    constants: Sequence[Constant],
    numbers: int,
) -> tuple[str, tuple[int, ...]]:
    """The text for NVRTC, and the inputs whose lengths it takes behind all arrays, before so many parameters.

    These come with the launch, since a kernel that reads them first waits as long as a small one works.
    """
    lines: list[str] = []
    lengths: list[str] = []
    words = set(re.findall(r"\w+", body))
    sized = tuple(i for i, (array, _, _) in enumerate(inputs) if f"{array}_shape" in words)
    for i in sized:
        array, _, ndim = inputs[i]
        each = [f"{array}_length_{axis}" for axis in range(ndim)]
        lengths += [f"int {length}" for length in each]
        lines.append(f"const int {array}_shape[] = {{{', '.join(each)}}};")
    lines += [f"constexpr int {array}_ndim = {ndim};" for array, _, ndim in inputs if f"{array}_ndim" in words]
    declarations, bounds = declared(constants)
    lines += declarations
    given = [f"param_{i}" for i in range(numbers)]
    if given:
        lines.append(f"const int params[] = {{{', '.join(given)}}};")
    arrays = [f"const {TYPES[dtype]}* {array}" for array, dtype, _ in inputs]
    arrays += [f"{TYPES[dtype]}* {array}" for array, dtype in outputs]
    scalars = [*lengths, *(f"int {word}" for word in given)]
    signature = f'extern "C" __global__ void {bounds}{name}({", ".join([*arrays, *scalars])})'
    return "\n".join([_PROLOGUE, header, signature, "{", *lines, body, "}", ""]), sized


def declared(constants: Sequence[Constant]) -> tuple[list[str], str]:
    """The lines that tell a kernel its constants, and the bounds that stand before its name."""
    lines, bounds = [], ""
    for constant, value in constants:
        if constant == RESIDENT:
            bounds = f"__launch_bounds__({_MOST_THREADS}, {value}) "
        elif isinstance(value, mx.Dtype):
            lines.append(f"using {constant} = {TYPES[value]};")
        else:
            lines.append(f"constexpr {'bool' if isinstance(value, bool) else 'int'} {constant} = {int(value)};")
    return lines, bounds


def machine_code(text: str, with_nvrtc: Compiler) -> bytes:
    """What the text compiles to; kept on disk behind its digest, so that half a file is not taken for a whole one."""
    key = hashlib.sha256("\0".join([text, *with_nvrtc.options, str(with_nvrtc.version)]).encode()).hexdigest()
    folder = cache_folder()
    if folder:
        with contextlib.suppress(OSError):
            kept = _read(folder / f"{key}.cubin")
            if hashlib.sha256(kept[_DIGEST:]).digest() == kept[:_DIGEST]:
                return kept[_DIGEST:]
    code = with_nvrtc.compile(text)
    if folder:
        with contextlib.suppress(OSError):
            _write(folder / f"{key}.cubin", hashlib.sha256(code).digest() + code)
    return code


def cache_folder() -> Path | None:
    """Where machine code is kept: ``MPSFUNC_CACHE_DIR``, or the user's folder of caches; None keeps nothing.

    What lies there runs on the GPU. So a folder that others may write to is an error where the variable names it, and a
    usual one is left alone, with a warning.

    Raises:
        ValueError: ``MPSFUNC_CACHE_DIR`` is no folder of this user alone.
    """
    named = os.environ.get("MPSFUNC_CACHE_DIR")
    if named == "":
        return None
    if named is not None:
        try:
            folder = Path(named).expanduser()
        except RuntimeError:
            raise ValueError(
                f"MPSFUNC_CACHE_DIR: no such home folder; got {describe(named)}, expected a folder"
            ) from None
        if wrong := _why_not(folder):
            raise ValueError(
                f"MPSFUNC_CACHE_DIR: {wrong}; got {describe(named)}, expected a folder that only you can write to"
            )
        return folder
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (home if home.is_absolute() else Path.home() / ".cache") / "mpsfunc"
    except RuntimeError:  # this user has no home folder
        return None
    wrong = _why_not(folder)
    if wrong:
        warnings.warn(f"compiled kernels are not cached: {brief(str(folder))} is {wrong}", RuntimeWarning, stacklevel=2)
        return None
    return folder


def _why_not(folder: Path) -> str:
    """What speaks against believing what lies in a folder, or in the one that a link leads to."""
    try:
        about = os.stat(folder)
    except OSError:  # what is not there yet is made for this user alone; what cannot be reached is not read either
        return ""
    if not stat.S_ISDIR(about.st_mode):
        return ""  # nothing is read there
    return _touched(about)


def _touched(about: os.stat_result) -> str:
    """How others than this user and root can have had a hand in what lies there."""
    if about.st_uid not in (os.geteuid(), 0):
        return "somebody else's"
    return "open to others" if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _read(path: Path) -> bytes:
    """What a file holds that nobody else can have written: the folder may have been open once."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        return file.read() if stat.S_ISREG(about.st_mode) and not _touched(about) else b""


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
