"""The MSL text that MLX hands to Apple's compiler, taken from an exported call, and its signature.

``mx.fast.metal_kernel`` builds the whole text on any machine and prints it on request; only running it needs Metal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx


class Parameter(NamedTuple):
    type: str  # as written, such as "const device float*"
    name: str
    attribute: str  # "buffer(0)", or what the GPU tells the thread: "thread_position_in_grid"


class Kernel(NamedTuple):
    """A complete text and what is needed to call it."""

    text: str
    instance: str  # "custom_kernel_mpsfunc_avg_pool<float, 4>"
    parameters: tuple[Parameter, ...]

    @property
    def shares(self) -> bool:
        """Whether its threads have memory or lanes in common."""
        code = re.sub(r"//.*", "", self.text)
        return re.search(r"\bthreadgroup\b|\bthreadgroup_barrier\b|\bsimd_\w|\bsimdgroup_\w", code) is not None

    def replaced(self, old: str, new: str) -> Kernel:
        """This kernel with a part of its text exchanged."""
        if self.text.count(old) != 1:
            raise ValueError(f"{old!r} occurs {self.text.count(old)} times")
        return self._replace(text=self.text.replace(old, new))


def capture(call: Callable[[], Any]) -> Kernel:
    """The kernel that ``call`` launches; it must pass ``stream=mx.gpu`` and ``verbose=True``."""
    with tempfile.TemporaryDirectory() as folder:
        with _stdout() as printed:
            mx.export_function(str(Path(folder) / "call.mlxfn"), call)
        match = re.fullmatch(r"Generated source code for `\w+`:\n```\n(.*)\n```\n", printed(), re.DOTALL)
    if match is None:
        raise ValueError(f"MLX printed something else than one kernel:\n{printed()}")
    return parse(match[1])


def parse(text: str) -> Kernel:
    """Reads the signature that MLX wrote around a body."""
    signature = re.search(r"\[\[kernel\]\] void (\w+)\((.*?)\) \{\n", text, re.DOTALL)
    if signature is None:
        raise ValueError("the text has no kernel")
    instance = re.search(r"\]\] decltype\(([^()]*)\) ", text)
    parameters = []
    for written in signature[2].split("]],"):
        match = re.match(r"\s*(.*?)\s*(\w+) \[\[([\w()]+)", written)
        if match is None:
            raise ValueError(f"not a kernel parameter: {written}")
        parameters.append(Parameter(*match.groups()))
    return Kernel(text, instance[1] if instance else signature[1], tuple(parameters))


def as_cpp(text: str) -> str:
    """The text, changed in the two places where clang's C++ cannot be brought to read MSL as it stands.

    Arrays in threadgroup memory become references to memory that the shim provides, and the explicit instantiation
    loses its attributes. Everything else is left to the shim headers, and lines keep their numbers.
    """
    text = re.sub(r"^template \[\[host_name\(.*?\)\]\] \[\[kernel\]\]", "template", text, flags=re.MULTILINE)
    count = 0

    def declare(match: re.Match[str]) -> str:
        nonlocal count
        type_name, declared = match[1], []
        for name, size in re.findall(r"(\w+)((?:\[[^\]]*\])*)\s*(?:,|$)", match[2]):
            memory = f"{name}_memory"
            declared.append(
                f"typedef {type_name} {memory}{size}; threadgroup {memory}& {name} = "
                f"*(threadgroup {memory}*)gpu_threadgroup_memory({count}, sizeof({memory}));"
            )
            count += 1
        return " ".join(declared)

    declaration = re.compile(
        r"^\s*threadgroup ([\w:]+(?:<[^;<>]*>)?) ((?:\w+(?:\[[^;\]]*\])*(?:, ?)?)+);", re.MULTILINE
    )
    return declaration.sub(declare, text)


@contextlib.contextmanager
def _stdout() -> Iterator[Callable[[], str]]:
    """Catches what C++ prints to file descriptor 1 meanwhile."""
    libc, text = ctypes.CDLL(None), ""
    with tempfile.TemporaryFile() as file:
        libc.fflush(None)
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lambda: text
        finally:
            libc.fflush(None)
            os.dup2(saved, 1)
            os.close(saved)
            file.seek(0)
            text = file.read().decode()
