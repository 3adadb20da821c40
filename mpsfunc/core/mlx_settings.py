"""Settings of malloc's and MLX's that importing mpsfunc changes for the whole process, unless the user did.

Built with a GPU, MLX keeps whatever buffers its memory limit allows. Built for the CPU alone it keeps 32 MB, less than
the activations of a small network, and each page beyond costs more than most operations spend on it. MLX gives a buffer
only to arrays of its size, while a training frees the small images of its last layers before it makes gradients of the
size of the first ones. So malloc keeps what is freed, where it is glibc's, and cuts any size out of it.

On NVIDIA GPUs MLX gathers launches in CUDA graphs and alters a graph for the next step. Those that hold some of cuDNN's
convolutions it builds anew each time, and waits for the GPU before it lets go of one: training steps of convolutional
networks take 1.3 to 1.9 times as long as with launches one by one (docs/benchmarks/networks_gpu.md).
"""

from __future__ import annotations

import os

import mlx.core as mx

from mpsfunc.core import launch

_MLX_DEFAULT = 32 << 20
_MOST = 1 << 30
_SMALL = 1 << 20  # that MLX keeps where malloc does: large buffers between others would keep these from joining
CUDA_GRAPHS = "MLX_USE_CUDA_GRAPHS"  # which MLX reads at its first launch


def keep_buffers() -> None:
    """Has a CPU-only MLX make arrays of memory that was used before: up to 1 GiB, or an eighth of MLX's memory limit.

    It is malloc that keeps it. Where that is not glibc's, or the user told it otherwise by environment variables, MLX's
    cache limit is raised. A cache limit that the user set before stays, unless it is MLX's default, and so does malloc.
    """
    if mx.metal.is_available() or mx.cuda.is_available():
        return
    most = min(_MOST, mx.get_memory_limit() // 8)
    before = mx.set_cache_limit(most)
    if before != _MLX_DEFAULT:
        mx.set_cache_limit(before)
        return
    module = launch.optional_module()
    if module is not None and module.keep_freed(most):
        mx.set_cache_limit(_SMALL)


def launch_one_by_one() -> None:
    """Has MLX do without CUDA graphs on NVIDIA GPUs, unless the variable says otherwise already."""
    if mx.cuda.is_available():
        os.environ.setdefault(CUDA_GRAPHS, "0")
