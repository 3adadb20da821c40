"""Runs the GPU kernels of mpsfunc on a CPU, from the text that a Mac would compile behind MLX's own helpers.

    with metal_host() as host:
        y = mf.avg_pool(x, 3)      # runs metal/pooling/avg_pool.metal, at once
    host.runs[0].stage.body        # "avg_pool"

Each launch runs two or three times: under clang's address and undefined-behaviour sanitizers with aligned inputs, again
with every input one element off and the lanes in reversed order, which must give the same bits, and, where threads have
memory or lanes in common, under the thread sanitizer, where each GPU thread is a thread of its own and only barriers
order memory. Outputs start as NaN. What a sanitizer or the host finds is a `KernelFault`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest

from metal_host import build
from metal_host.job import CONSTANT, INPUT, OUTPUT, Buffer, Job, KernelFault, Outcome
from metal_host.msl_text import Kernel, capture
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch, Output
from mpsfunc.core.params import for_gpu

__all__ = ["KernelFault", "MetalHost", "Run", "job", "metal_host", "needs_clang"]

needs_clang = pytest.mark.skipif(bool(build.missing()), reason=build.missing())
if build.missing() and os.environ.get("MPSFUNC_REQUIRE_CLANG") == "1":  # CI: no kernel goes unchecked
    raise RuntimeError(build.missing())


class Run(NamedTuple):
    """A launch that went well."""

    stage: KernelLaunch
    job: Job
    outcome: Outcome


class MetalHost:
    """Runs stages and remembers them. ``rounded`` rounds grids up to whole threadgroups, as CUDA does."""

    def __init__(self, *, rounded: bool = False) -> None:
        self.runs: list[Run] = []
        self._rounded = rounded

    def run_kernel(self, stage: KernelLaunch, arrays: Sequence[mx.array], stream: mx.Stream) -> list[mx.array]:
        """What `core.launch.run_kernel` does, here and now.

        Raises:
            KernelFault: Something was wrong with the kernel.
        """
        kernel = kernel_of(stage, tuple((tuple(a.shape), a.dtype) for a in arrays))
        named = [(name, name) if isinstance(name, str) else name for name in (*stage.reads, *stage.writes)]
        assert all(type(part) is str for pair in named for part in pair), f"{stage.body}: arrays go by names"
        inputs = dict(zip(stage.inputs, arrays, strict=True))
        if stage.params is not None:
            words = for_gpu(stage.params)
            assert all(type(word) is int for word in words), f"{stage.body}: CUDA takes a bool for a byte"
            inputs["params"] = launch.packed(words)
        outputs = dict(zip(stage.outputs, stage.results, strict=True))
        work = job(kernel, inputs, outputs, stage.grid, stage.threadgroup)
        # A rounded grid that is no other has run already.
        outcome = work.once("address") if self._rounded and work.whole else work.run(rounded=self._rounded)
        self.runs.append(Run(stage, work, outcome))
        return [_array(outcome.results[name], *output) for name, output in outputs.items()]


@contextlib.contextmanager
def metal_host(*, rounded: bool = False) -> Iterator[MetalHost]:
    """While this lasts, every operation of mpsfunc runs its GPU kernels on a `MetalHost`, whatever its stream.

    The C++ module is as good as absent, so nothing of an operation can run there instead. Derivatives of every order
    run too; `mx.vmap` and `mx.compile` do not, since they trace without values.
    """
    host = MetalHost(rounded=rounded)
    with (
        mock.patch.object(launch, "_primitives", None),
        mock.patch.object(launch, "backend", lambda stream: "metal"),
        mock.patch.object(launch, "routed", lambda stream, *backends: False),
        mock.patch.object(launch, "run_kernel", host.run_kernel),
    ):
        yield host


_run_stage = launch.run_kernel  # the real one


@functools.lru_cache(maxsize=1024)
def kernel_of(stage: KernelLaunch, signature: tuple[Output, ...]) -> Kernel:
    """The text that `core.launch` hands over for a stage on arrays of these shapes and dtypes."""
    arrays = [mx.zeros(shape, dtype) for shape, dtype in signature]
    return capture(lambda: _run_stage(stage, arrays, mx.gpu, metal=True, verbose=True))  # type: ignore[arg-type]


def job(
    kernel: Kernel,
    inputs: dict[str, mx.array],
    outputs: dict[str, Output],
    threads: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
) -> Job:
    """A kernel with the arrays that its parameters name."""
    buffers = []
    for parameter in kernel.parameters:
        array, _, word = parameter.name.rpartition("_")
        if not parameter.attribute.startswith("buffer"):
            continue
        if parameter.name in inputs:
            value = inputs[parameter.name]
            buffers.append(Buffer(parameter.name, INPUT, _dtype(value.dtype), value.nbytes, _bytes(value)))
        elif parameter.name in outputs:
            shape, dtype = outputs[parameter.name]
            buffers.append(Buffer(parameter.name, OUTPUT, _dtype(dtype), math.prod(shape) * dtype.size))
        else:  # x_shape, x_strides or x_ndim
            shape = inputs[array].shape
            strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            told = {"shape": ("int32", shape), "strides": ("int64", strides), "ndim": ("int32", [len(shape)])}
            name, numbers = told[word]
            data = np.array(numbers, name).tobytes()
            buffers.append(Buffer(parameter.name, CONSTANT, name, len(data), data))
    return Job(kernel, tuple(buffers), threads, threadgroup)


def _dtype(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _bytes(array: mx.array) -> bytes:
    if array.dtype == mx.bfloat16:  # NumPy has none
        array = array.view(mx.uint16)
    return np.array(array).tobytes()


def _array(data: bytes, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    if dtype == mx.bfloat16:
        return mx.array(np.frombuffer(data, np.uint16).reshape(shape)).view(mx.bfloat16)
    return mx.array(np.frombuffer(data, _dtype(dtype)).reshape(shape))
