"""Runs the GPU kernels of mpsfunc on a CPU, from the exact text that a Mac would compile.

    with metal_host() as host:
        y = mf.avg_pool(x, 3)      # runs metal/avg_pool.metal, at once
    host.runs[0].stage.body        # "avg_pool"

Each launch runs three times: under clang's address and undefined-behaviour sanitizers with aligned inputs, again with
every input one element off and the lanes in reversed order, which must give the same bits, and under the thread
sanitizer, where each GPU thread is a thread of its own and only barriers order memory. Outputs start as NaN. What a
sanitizer or the host finds is a `KernelFault`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest

from kernels import build
from kernels.msl_text import Kernel, capture
from mpsfunc import _launch
from mpsfunc._launch import Stage

__all__ = ["Grid", "KernelFault", "MetalHost", "Run", "metal_host", "needs_clang"]

needs_clang = pytest.mark.skipif(bool(build.missing()), reason=build.missing())

_REVERSED, _ROUNDED, _SHIFTED = 1, 2, 4
_TIMEOUT = 60  # seconds; a kernel that runs longer does not end

_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1:report_bugs=1:exitcode=66",
}


class KernelFault(AssertionError):
    """What was wrong with a kernel: ``by`` is "address", "thread", "host" or "lanes", then the finder's words."""

    def __init__(self, by: str, words: str) -> None:
        super().__init__(f"{by}: {words}")
        self.by = by


class Grid(NamedTuple):
    threads: tuple[int, int, int]
    threadgroup: tuple[int, int, int]


class Run(NamedTuple):
    """A launch that went well, and the bytes that it moved of each input and output."""

    stage: Stage
    kernel: Kernel
    loaded: dict[str, int]
    stored: dict[str, int]


class MetalHost:
    """Runs stages. ``rounded`` rounds the grid up to whole threadgroups, as CUDA does; ``edit`` changes the texts."""

    def __init__(self, *, rounded: bool = False, edit: Callable[[Stage, Kernel], Kernel] | None = None) -> None:
        self.runs: list[Run] = []
        self._rounded = rounded
        self._edit = edit or (lambda stage, kernel: kernel)

    def run_stage(self, stage: Stage, arrays: Sequence[mx.array], stream: mx.Stream) -> list[mx.array]:
        """What `_launch.run_stage` does, here and now."""
        signature = tuple((tuple(a.shape), a.dtype) for a in arrays)
        kernel = self._edit(stage, stage_kernel(stage, signature))
        inputs = dict(zip((*stage.inputs, "params"), (*arrays, _launch.packed(stage.params)), strict=True))
        outputs = dict(zip(stage.outputs, stage.results, strict=True))
        grid = Grid(stage.grid, stage.threadgroup)
        results, loaded, stored = self.run(kernel, inputs, outputs, grid)
        self.runs.append(Run(stage, kernel, loaded, stored))
        return results

    def run(
        self, kernel: Kernel, inputs: dict[str, mx.array], outputs: dict[str, _launch.Output], grid: Grid
    ) -> tuple[list[mx.array], dict[str, int], dict[str, int]]:
        """Runs a kernel in every way that this host knows.

        Returns:
            The outputs, and for each array the bytes loaded and stored.

        Raises:
            KernelFault: A sanitizer complained, the host did, or the order of lanes or the alignment made a difference.
        """
        job = _Job(kernel, inputs, outputs, grid)
        rounded = _ROUNDED if self._rounded else 0
        results, loaded, stored = job.run("address", rounded)
        again, _, _ = job.run("address", rounded | _REVERSED | _SHIFTED)
        if results != again:
            raise KernelFault("lanes", "other bits with the lanes reversed and the inputs one element off")
        job.run("thread", rounded)
        return [_from_bytes(r, *o) for r, o in zip(results, outputs.values(), strict=True)], loaded, stored


@contextlib.contextmanager
def metal_host(
    *, rounded: bool = False, edit: Callable[[Stage, Kernel], Kernel] | None = None
) -> Iterator[MetalHost]:
    """While this lasts, every operation of mpsfunc runs its GPU kernels on a `MetalHost`, whatever its stream.

    The C++ module is as good as absent, so nothing of an operation can run there instead.
    """
    host = MetalHost(rounded=rounded, edit=edit)
    with (
        mock.patch.object(_launch, "_primitives", None),
        mock.patch.object(_launch, "backend", lambda stream: "metal"),
        mock.patch.object(_launch, "routed", lambda stream, *backends: False),
        mock.patch.object(_launch, "run_stage", host.run_stage),
    ):
        yield host


_run_stage = _launch.run_stage  # the real one


@functools.lru_cache(maxsize=1024)
def stage_kernel(stage: Stage, signature: tuple[_launch.Output, ...]) -> Kernel:
    """The text that `_launch` hands over for a stage on arrays of these shapes and dtypes."""
    arrays = [mx.zeros(shape, dtype) for shape, dtype in signature]
    return capture(lambda: _run_stage(stage, arrays, mx.gpu, metal=True, verbose=True))  # type: ignore[arg-type]


class _Job(NamedTuple):
    kernel: Kernel
    inputs: dict[str, mx.array]
    outputs: dict[str, _launch.Output]
    grid: Grid

    def run(self, sanitizer: str, options: int) -> tuple[list[bytes], dict[str, int], dict[str, int]]:
        try:
            library = build.shared_object(self.kernel, sanitizer)
        except build.CompileError as error:
            raise KernelFault("compiler", str(error)) from None
        with tempfile.TemporaryDirectory() as folder:
            job, result = Path(folder) / "job", Path(folder) / "result"
            job.write_bytes(self._file(options))
            command = [*_unrandomized(sanitizer), str(build.runner(sanitizer)), str(library), str(job), str(result)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_TIMEOUT, env={**os.environ, **_ENVIRONMENT}
                )
            except subprocess.TimeoutExpired:
                raise KernelFault("host", f"ran for more than {_TIMEOUT} s") from None
            if done.returncode != 0:
                raise KernelFault("host" if done.returncode == 3 else sanitizer, done.stderr[:3000])
            return self._results(result.read_bytes())

    def _buffers(self) -> list[tuple[str, int, int, int, bytes]]:
        """Name, role, bytes, bytes of an element and contents of each buffer, in Metal's order."""
        found = []
        for parameter in self.kernel.parameters:
            name, _, word = parameter.name.rpartition("_")
            if not parameter.attribute.startswith("buffer"):
                continue
            if parameter.name in self.inputs:
                array = self.inputs[parameter.name]
                found.append((parameter.name, 1, array.nbytes, array.dtype.size, _to_bytes(array)))
            elif parameter.name in self.outputs:
                shape, dtype = self.outputs[parameter.name]
                found.append((parameter.name, 2, math.prod(shape) * dtype.size, dtype.size, b""))
            else:  # x_shape, x_strides, x_ndim
                shape = self.inputs[name].shape
                strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
                data = {
                    "shape": np.array(shape, np.int32),
                    "strides": np.array(strides, np.int64),
                    "ndim": np.array([len(shape)], np.int32),
                }[word]
                found.append((parameter.name, 0, data.nbytes, data.itemsize, data.tobytes()))
        return found

    def _file(self, options: int) -> bytes:
        buffers = self._buffers()
        header = [*self.grid.threads, *self.grid.threadgroup, options, len(buffers)]
        table = [number for _, role, size, element, _ in buffers for number in (role, size, element)]
        return np.array(header + table, np.int64).tobytes() + b"".join(b[-1] for b in buffers)

    def _results(self, data: bytes) -> tuple[list[bytes], dict[str, int], dict[str, int]]:
        buffers, at, outputs = self._buffers(), 0, {}
        for name, role, size, _, _ in buffers:
            if role == 2:
                outputs[name] = data[at : at + size]
                at += size
        counts = np.frombuffer(data, np.int64, offset=at).reshape(len(buffers), 2)
        arrays = [(b[0], c) for b, c in zip(buffers, counts.tolist(), strict=True) if b[1] != 0 and b[0] != "params"]
        results = [outputs[name] for name in self.outputs]
        return results, {n: c[0] for n, c in arrays}, {n: c[1] for n, c in arrays}


def _unrandomized(sanitizer: str) -> list[str]:
    """Older thread sanitizers cannot live with much randomness in the addresses that the kernel hands out."""
    setarch = shutil.which("setarch")
    return [setarch, "-R"] if sanitizer == "thread" and setarch else []


def _to_bytes(array: mx.array) -> bytes:
    if array.dtype == mx.bfloat16:  # NumPy has none
        array = array.view(mx.uint16)
    return np.ascontiguousarray(np.array(array)).tobytes()


def _from_bytes(data: bytes, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    if dtype == mx.bfloat16:
        return mx.array(np.frombuffer(data, np.uint16).reshape(shape)).view(mx.bfloat16)
    name = str(dtype).removeprefix("mlx.core.")
    return mx.array(np.frombuffer(data, name).reshape(shape))
