"""Settings of malloc's and MLX's that importing mpsfunc changes for the whole process, unless the user did.

Built with a GPU, MLX keeps whatever buffers its memory limit allows. Built for the CPU alone it keeps 32 MB, less than
the activations of a small network, and each page beyond costs more than most operations spend on it. MLX gives a buffer
only to arrays of its size, while a training frees the small images of its last layers before it makes gradients of the
size of the first ones. So malloc keeps what is freed, where it is glibc's, and cuts any size out of it.

On NVIDIA GPUs MLX gathers launches in CUDA graphs and alters a graph for the next step. Those that hold some of cuDNN's
convolutions it builds anew each time, and waits for the GPU before it frees one. Without graphs it hands launches over
one by one, and what they read stays in memory until a whole batch of a hundred is over, of which ten may be under way.
Ours bound that by bytes (primitives/binding/run_ahead.h). tests/bench/commits.py measures both.
"""

from __future__ import annotations

import os
import re

import mlx.core as mx

from mpsfunc.core import environment, launch

_MLX_DEFAULT = 32 << 20
_MOST = 1 << 30
_SMALL = 1 << 20  # that MLX keeps where malloc does: large buffers between others would keep these from joining
CUDA_GRAPHS, RUN_AHEAD = "MLX_USE_CUDA_GRAPHS", "MPSFUNC_RUN_AHEAD"
PERCENT = 10  # of the memory that work needs, which launches that wait for a GPU may hold on top
chosen: dict[str, str] = {}  # what was set because the environment did not say it


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
    """Has MLX do without CUDA graphs on NVIDIA GPUs, and bounds what waits for them, unless the user says otherwise.

    MLX reads its variable once, when it first waits for a GPU. It does so here, and then the environment is as before.

    Raises:
        ValueError: ``MPSFUNC_RUN_AHEAD`` is no percentage.
    """
    if has_graphs(os.environ.get(CUDA_GRAPHS, "0")) or not mx.cuda.is_available():
        return
    share = environment.percent(RUN_AHEAD, PERCENT)
    if CUDA_GRAPHS not in os.environ:
        os.environ[CUDA_GRAPHS] = "0"
        try:
            mx.synchronize(mx.default_stream(mx.Device(mx.gpu)))
            chosen[CUDA_GRAPHS] = "0"
        except RuntimeError:  # a GPU that cannot be used: who uses it is told, others go on without
            return
        finally:
            del os.environ[CUDA_GRAPHS]
    module = launch.optional_module()
    if module is not None and module.set_run_ahead(share / 100):
        chosen[RUN_AHEAD] = f"{share:g}"


def has_graphs(value: str) -> bool:
    """Whether MLX uses graphs where the variable has this value: it reads numbers as C's atoi does."""
    return re.match(r"\s*[+-]?0*[1-9]", value) is not None
