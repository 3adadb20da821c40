"""Kernels in machine code are launched without MLX's primitive, on an NVIDIA GPU; elsewhere MLX would launch them."""

from __future__ import annotations

import threading
from typing import Any

import mlx.core as mx
import pytest

from mpsfunc.core import launch, nvrtc

ASKED_OF_MLX, ASKED_OF_OURS = 2, 3
SCALED = """
extern "C" __global__ void scaled(const float* x, float* y, float* negated, int size, int factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) { y[i] = factor * x[i]; negated[i] = -y[i]; }
}
"""
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.needs_cpu_module,
    pytest.mark.skipif(not mx.cuda.is_available(), reason="of MLX's CUDA backend"),
]


def test_kernels_are_launched_directly() -> None:
    assert launch.optional_module().launches_directly()


@pytest.fixture(scope="module")
def scaled() -> Any:
    """Two results of a kernel that is asked for one factor where MLX launches it, and for another where we do."""
    compiler = nvrtc.compiler(repr(mx.Device(mx.gpu)))
    if compiler is None:
        pytest.skip("NVRTC or CUDA's headers were not found")  # then MLX compiles kernels, and launches them
    code, module = compiler.compile(SCALED), launch.optional_module()
    kept = module.keep_cuda_kernel("scaled", code)

    def call(x: mx.array, stream: mx.Stream) -> list[mx.array]:
        grid, group = (x.size, 1, 1), (64, 1, 1)
        made = mx.fast.precompiled_cuda_kernel(
            name="scaled",
            compiled_source=code,
            inputs=[x],
            output_shapes=[x.shape] * 2,
            output_dtypes=[x.dtype] * 2,
            scalars=[x.size, ASKED_OF_MLX],
            grid=grid,
            threadgroup=group,
            ensure_row_contiguous=True,
            stream=stream,
        )
        return list(module.launched(made, kept, [x.size, ASKED_OF_OURS], grid, group))

    return call


def is_scaled(found: list[mx.array], x: mx.array, factor: int) -> bool:
    return mx.array_equal(found[0], factor * x).item() and mx.array_equal(found[1], -factor * x).item()


def test_it_reads_arrays_and_parts_of_them(scaled: Any) -> None:
    stream = mx.default_stream(mx.Device(mx.gpu))
    x = mx.random.normal((7, 33))
    for part in (x, x[3:], x + 1):
        assert is_scaled(scaled(part, stream), part, ASKED_OF_OURS)


def test_mlx_launches_it_where_an_input_has_gaps(scaled: Any) -> None:
    x = mx.random.normal((7, 33))
    mx.eval(x)
    assert is_scaled(scaled(x.T, mx.default_stream(mx.Device(mx.gpu))), x.T, ASKED_OF_MLX)


def test_in_another_stream_and_another_thread(scaled: Any) -> None:
    x = mx.random.normal((5, 77))
    mx.eval(x)
    found = []

    def run() -> None:
        stream = mx.new_stream(mx.Device(mx.gpu))
        with mx.stream(stream):
            found.append(is_scaled(scaled(x, stream), x, ASKED_OF_OURS))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert found == [True, True]
