"""What a layer reads in place of arrays that MLX would make slowly, if nobody has evaluated them yet."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import lazy
from mpsfunc.nn.following import Following

_CPU = mx.Device(mx.cpu)


def read(x: mx.array, following: Following | None = None, reader: Any = None) -> mx.array:
    """The same numbers as ``x`` has, to rounding, and the same derivatives.

    Of ``mx.mean`` over the pixels of images, and of images times a number for each channel, as squeeze and excite has
    both, MLX's kernels on a CPU run in one thread and repeat the numbers in memory order. What such an array follows
    from says what it is; the array itself stays as it is for whoever else reads it.

    In a model for inference a sum with a layer's result becomes one that the layer makes. That is done in place, since
    the code of a block goes on to read it as its next shortcut.

    Args:
        x: What a layer is given.
        following: Of the layer. Default: sums stay.
        reader: The layer. Default: none is told of.
    """
    if mx.default_device() != _CPU:
        return x
    factors = lazy.channel_factors(x)
    if factors is not None:
        return mf.multiply(*factors)
    images = lazy.mean_of(x)
    if following is not None and following.folding:
        following.add_to(x if images is None else images, reader)
    return x if images is None or not images.size else mf.spatial_mean(images).reshape(x.shape)
