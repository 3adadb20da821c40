"""Two of MLX's settings that importing mpsfunc changes for the whole process, unless the user did: for training.

Built with a GPU, MLX keeps whatever buffers its memory limit allows. Built for the CPU alone it keeps 32 MB, less than
the activations of a small network, and each page beyond costs more than most operations spend on it.

On NVIDIA GPUs MLX gathers launches in CUDA graphs and alters a graph for the next step. Those that hold some of cuDNN's
convolutions it builds anew each time, and waits for the GPU before it lets go of one: training steps of convolutional
networks take 1.3 to 1.9 times as long as with launches one by one (docs/benchmarks/networks_gpu.md).
"""

from __future__ import annotations

import os

import mlx.core as mx

_MLX_DEFAULT = 32 << 20
_MOST = 1 << 30
CUDA_GRAPHS = "MLX_USE_CUDA_GRAPHS"  # which MLX reads at its first launch


def keep_buffers() -> None:
    """Raises the cache limit of a CPU-only MLX to 1 GiB, or to an eighth of MLX's memory limit where that is less.

    A limit that the user set before stays, unless it is MLX's default; ``mx.set_cache_limit`` afterwards overrides it.
    """
    if mx.metal.is_available() or mx.cuda.is_available():
        return
    before = mx.set_cache_limit(min(_MOST, mx.get_memory_limit() // 8))
    if before != _MLX_DEFAULT:
        mx.set_cache_limit(before)


def launch_one_by_one() -> None:
    """Has MLX do without CUDA graphs on NVIDIA GPUs, unless the variable says otherwise already."""
    if mx.cuda.is_available():
        os.environ.setdefault(CUDA_GRAPHS, "0")
