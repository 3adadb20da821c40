"""Replaces unevaluated arguments of a layer that MLX would compute slowly."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import launch, lazy
from mpsfunc.nn.following import Following

_SUMMED = mx.float32, mx.float16, mx.bfloat16


def read(x: mx.array, following: Following | None = None, reader: Any = None) -> mx.array:
    """The same numbers as ``x`` has, to rounding, and the same derivatives.

    Of ``mx.mean`` over the pixels of images, and of images times a number for each channel, as squeeze and excite has
    both, MLX's kernels on a CPU run in one thread and repeat the numbers in memory order. What such an array follows
    from says what it is; the array itself stays as it is for whoever else reads it.

    In a model for inference a gate that is a hard sigmoid written out is ours. A sum with a layer's result becomes one
    that the layer makes, and another sum or a concatenation of channels one that our kernels make. That is done in
    place, since the code of a block goes on to read it as its next shortcut.

    Args:
        x: What a layer is given.
        following: Of the layer. Default: sums stay.
        reader: The layer. Default: none is told of.
    """
    if not launch.on_cpu():
        return x
    factors = lazy.channel_factors(x)
    folding = following is not None and following.folding
    if factors is not None:
        pixels, gate = factors
        return mf.multiply(pixels, _gated(gate) if folding else gate)
    images = lazy.mean_of(x)
    if following is not None and folding:
        images_read = x if images is None else images
        following.add_to(images_read, reader)
        if _threaded(images_read):
            following.changed(reader)
    return x if images is None or not images.size else mf.spatial_mean(images).reshape(x.shape)


def _gated(gate: mx.array) -> mx.array:
    """A gate, which is ours where code wrote out a hard sigmoid: its slopes at -3 and 3 are others, for training."""
    x = lazy.hard_sigmoid_of(gate)
    return gate if x is None else mf.hard_sigmoid(x, 1 / 6, 0.5)


def _threaded(x: mx.array) -> bool:
    """Has a sum or a concatenation that MLX would make on one thread be made by all, with the same bits.

    Returns:
        Whether x is one.
    """
    made, parts = _summed(x), lazy.joined(x)
    if parts is not None:
        sums = [_summed(part) for part in parts]
        made = lazy.join([part if made is None else made for part, made in zip(parts, sums, strict=True)])
    if made is not None:
        lazy.become(x, made)
    return made is not None


def _summed(x: mx.array) -> mx.array | None:
    parts = lazy.addends(x)
    fits = parts is not None and x.ndim == 4 and x.size > 0 and x.dtype in _SUMMED
    return mf.add(*parts) if fits and parts and all(part.shape == x.shape for part in parts) else None
