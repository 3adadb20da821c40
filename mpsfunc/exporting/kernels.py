"""The kernels of a file: the operation that MLX writes for each launch, and CUDA's texts, which MLX makes on CUDA only.

A kernel's name holds a digest of its text, since MLX 0.31 takes two texts of one name for the same.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mpsfunc.core import launch, nvrtc, texts
from mpsfunc.core.launch import Gpu, KernelLaunch
from mpsfunc.core.params import for_gpu
from mpsfunc.exporting.shortening import shortened

_BEGUN = re.compile(r"custom_kernel_(mpsfunc_\w+?_[0-9a-f]{10})_")
_FINISHED = re.compile(r"mpsfunc_(\w+)_[0-9a-f]{10}")
_NAME = "mpsfunc_kernel"  # stands for a kernel's name in the text whose digest the name has
_PROLOGUE = '#include "mlx/backend/cuda/device/utils.cuh"\n#include <cooperative_groups.h>\n'


class Kernels:
    """Makes the operations of a file for one kind of GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._known: dict[str, tuple[str, str]] = {}  # bodies and CUDA's texts, by their names while MLX writes

    def node(self, of: KernelLaunch, arrays: Sequence[mx.array]) -> list[mx.array]:
        """The operation of one launch, which no GPU need be there for."""
        words = () if of.params is None else for_gpu(of.params)
        given = [*arrays, *((launch.packed(words),) if words else ())]
        names = *of.inputs, *(("params",) if words else ())
        for name, a in zip(names, given, strict=True):
            if a.dtype == mx.float64:
                raise TypeError(
                    f"export: no GPU has float64; got {name}.dtype={a.dtype} of {of.body}, expected another dtype"
                )
        constants = launch.constants_of(of, arrays)
        header, body = _text(of.body, self.gpu == "metal")
        how: dict[str, Any] = {
            "output_shapes": [shape for shape, _ in of.results],
            "output_dtypes": [dtype for _, dtype in of.results],
            "grid": of.grid,
            "threadgroup": of.threadgroup,
            "stream": mx.gpu,
        }
        text = ""
        if self.gpu == "metal":
            how["template"] = list(constants)
        else:  # what MLX makes of the body without its header is for Metal, and exchanged later
            text = _cuda(header, body, list(zip(names, given, strict=True)), of, constants)
            header = ""
        name = f"mpsfunc_{of.body}_{_digest(text or header + body)}"
        self._known[name] = of.body, text
        return list(launch.kernel_of_text(name, names, of.outputs, header, body, True)(inputs=given, **how))

    def finished(self, name: str, source: str) -> tuple[str, str]:
        """The name and the text that a kernel has in the file; those of others' kernels stay."""
        match = _BEGUN.match(name)
        if match is None or match[1] not in self._known:
            return name, source
        body, text = self._known[match[1]]
        text = text or source.replace(name, _NAME)
        named = f"mpsfunc_{body}_{_digest(text)}"
        return named, text.replace(_NAME, named)


def body_of(name: str) -> str:
    """What a kernel of ours is called in ``metal/``; the whole name of another."""
    match = _FINISHED.fullmatch(name)
    return name if match is None else match[1]


@functools.cache
def _text(body: str, metal: bool) -> tuple[str, str]:
    return shortened(texts.header(body, metal=metal), texts.body(body), cuda=not metal)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _cuda(
    header: str,
    body: str,
    inputs: Sequence[tuple[str, mx.array]],
    of: KernelLaunch,
    constants: Sequence[nvrtc.Constant],
) -> str:
    """The text that MLX compiles: its name is looked for among MLX's own, and shapes come as MLX's `Shape`."""
    parameters = []
    for name, a in inputs:
        parameters.append(f"const {nvrtc.TYPES[a.dtype]}* {name}")
        if a.ndim and f"{name}_shape" in body:
            parameters.append(f"const __grid_constant__ Shape {name}_shape")
        if a.ndim and f"{name}_strides" in body:
            parameters.append(f"const __grid_constant__ Strides {name}_strides")
        if a.ndim and f"{name}_ndim" in body:
            parameters.append(f"const __grid_constant__ int {name}_ndim")
    parameters += [f"{nvrtc.TYPES[d]}* {name}" for name, (_, d) in zip(of.outputs, of.results, strict=True)]
    lines, bounds = nvrtc.declared(constants)
    signature = f"__global__ void {bounds}{_NAME}({', '.join(parameters)})"
    end = "}\n}\n"
    return "\n".join([_PROLOGUE + header, "namespace mlx::core::cu {", f"{signature} {{", *lines, body, end])
