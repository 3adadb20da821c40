"""Lets MLX keep the buffers that a training step frees on the CPU, so that the next step need not ask the system again.

Built with a GPU, MLX keeps whatever its memory limit allows. Built for the CPU alone it keeps 32 MB, less than the
activations of a small network, and each page beyond costs more than most operations spend on it.
"""

from __future__ import annotations

import mlx.core as mx

_MLX_DEFAULT = 32 << 20
_MOST = 1 << 30


def keep_buffers() -> None:
    """Raises the cache limit of a CPU-only MLX to 1 GiB, or to an eighth of MLX's memory limit where that is less.

    A limit that the user set before stays, unless it is MLX's default; ``mx.set_cache_limit`` afterwards overrides it.
    """
    if mx.metal.is_available() or mx.cuda.is_available():
        return
    before = mx.set_cache_limit(min(_MOST, mx.get_memory_limit() // 8))
    if before != _MLX_DEFAULT:
        mx.set_cache_limit(before)
