"""Sums over all pixels of images."""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.core import grids, launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.params import Threadgroup


def channel_sums(x: mx.array, stream: mx.Stream) -> mx.array:
    """The sum of each channel of images, a vector in the accumulator's dtype."""
    n, height, width, channels = x.shape
    result = ((channels,), launch.accumulator(x.dtype))

    def kernels() -> tuple[KernelLaunch, ...]:
        per_thread = grids.vector_width(x.dtype, channels, x.size)
        grid, group = grids.column_threads(channels // per_thread, n * height * width)
        partial = ((grid[1] // group[1], channels), mx.float32)
        params, template = Threadgroup(*group[:2]), (("V", per_thread),)
        first = KernelLaunch("conv_grad_bias", ("dy",), ("partial",), (partial,), grid, group, params, template)
        return first, launch.sum_partials(channels)

    return launch.launch("conv_grad_bias", {"dy": x}, None, (result,), kernels, stream)[0]
