"""The kernels of dropout and their rules.

All are linear in the images and their own adjoints: with its mask fixed, dropout is a diagonal. A mask is made from a
key of two uint32 as it is needed (Philox4x32-10): element i is kept where word ``i % 4`` of what the counter ``i // 4``
gives is below the keep probability times 2^32. Keys (sets, 2) are of as many sets of images, one behind the other.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import broadcast
from mpsfunc.channels.broadcast import Layout, Shape
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation
from mpsfunc.core.params import Unsigned
from mpsfunc.elementwise.params import (
    DropoutByMaskParams,
    DropoutMaskLaunch,
    DropoutMaskParams,
    DropoutParams,
    halves,
)


class Random(NamedTuple):
    """A mask (images, h or 1, w or 1, c or 1) for each set of so many images."""

    keep: float
    images: int
    mask: tuple[int, int, int]
    stream: mx.Stream

    @property
    def threshold(self) -> int:
        """What words of kept elements are below."""
        return threshold(self.keep)


class Given(NamedTuple):
    """A mask of bytes; ``batch`` and ``per`` say how it lies under the result, see `channels.broadcast`."""

    keep: float
    batch: int
    per: int
    stream: mx.Stream


def threshold(keep: float) -> int:
    """The keep probability in steps of 2^-32."""
    return round(keep * 2**32)


@operation("dropout")
def by_key(x: mx.array, keys: mx.array, spec: Random) -> mx.array:
    """``x * mask / keep``; images fewer than the sets have come again."""
    sets = keys.shape[0]
    result = ((sets * spec.images, *x.shape[1:]), x.dtype)
    made = _layout(x, keys, spec)
    source, mask = made.operands
    params = DropoutParams(*made[:4], source, mask, Unsigned(spec.threshold), spec.keep)

    def launches() -> tuple[KernelLaunch, ...]:
        width = broadcast.vector_width(x.dtype, made)
        size, group = broadcast.grid(broadcast.packs(made, width), made.n)
        along = int(mask.c > 1)
        unroll = (("V", width), ("A", along), ("F", int(broadcast.merged(made))))
        return (KernelLaunch("dropout", ("x", "keys"), ("y",), (result,), size, group, params, unroll),)

    return launch.launch("dropout", {"x": x, "keys": keys}, params, (result,), launches, spec.stream)[0]


@by_key.vjp
def _by_key_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Random) -> Gradients:
    x, keys = arrays
    return _once(by_key(cotangents[0], keys, spec), x.shape), None


@by_key.jvp
def _by_key_jvp(arrays: Arrays, tangents: Tangents, spec: Random) -> mx.array:
    x, keys = arrays
    return mx.zeros_like(by_key(x, keys, spec)) if tangents[0] is None else by_key(tangents[0], keys, spec)


@by_key.vmap
def _by_key_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Random) -> mx.array:
    x, keys = arrays
    sets = keys.shape[1] if mapped[1] else keys.shape[0]
    if not mapped[1]:
        keys = mx.broadcast_to(keys, (size, sets, 2))
    batch = sets * spec.images
    x, _ = broadcast.mapped(x, 1, batch, mapped[0])
    y = by_key(x, keys.reshape(size * sets, 2), spec)
    return y.reshape(size, batch, *y.shape[1:])


@operation("dropout_by_mask")
def by_mask(x: mx.array, mask: mx.array, spec: Given) -> mx.array:
    """``x * mask / keep``."""
    shape = (spec.batch, *x.shape[1:])
    made = broadcast.layout(shape, (x.shape, 1), (mask.shape, spec.per))
    result = (shape, x.dtype)
    source, over = made.operands
    params = DropoutByMaskParams(*made[:4], source, over, spec.keep)

    def launches() -> tuple[KernelLaunch, ...]:
        width = broadcast.vector_width(x.dtype, made)
        size, group = broadcast.grid(broadcast.packs(made, width), made.n)
        unroll = (("V", width), ("F", int(broadcast.merged(made))))
        return (KernelLaunch("dropout_by_mask", ("x", "mask"), ("y",), (result,), size, group, params, unroll),)

    return launch.launch("dropout_by_mask", {"x": x, "mask": mask}, params, (result,), launches, spec.stream)[0]


@by_mask.vjp
def _by_mask_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Given) -> Gradients:
    x, mask = arrays
    return _once(by_mask(cotangents[0], mask, spec), x.shape), None


@by_mask.jvp
def _by_mask_jvp(arrays: Arrays, tangents: Tangents, spec: Given) -> mx.array:
    x, mask = arrays
    return mx.zeros_like(by_mask(x, mask, spec)) if tangents[0] is None else by_mask(tangents[0], mask, spec)


@by_mask.vmap
def _by_mask_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Given) -> mx.array:
    x, _ = broadcast.mapped(arrays[0], 1, spec.batch, mapped[0])
    mask, per = broadcast.mapped(arrays[1], spec.per, spec.batch, mapped[1])
    y = by_mask(x, mask, spec._replace(batch=size * spec.batch, per=per))
    return y.reshape(size, spec.batch, *y.shape[1:])


@operation("dropout_mask")
def masks(keys: mx.array, spec: Random) -> mx.array:
    """The masks of all sets (sets * images, h, w, c), bytes."""
    h, w, c = spec.mask
    result = ((keys.shape[0] * spec.images, h, w, c), mx.uint8)
    bound = Unsigned(spec.threshold)

    def launches() -> tuple[KernelLaunch, ...]:
        each = spec.images * h * w * c
        width = 16 if each % 16 == 0 else 1
        size, group = broadcast.grid(each // width, keys.shape[0])
        params, unroll = DropoutMaskLaunch(*halves(each), bound), (("V", width),)
        return (KernelLaunch("dropout_mask", ("keys",), ("mask",), (result,), size, group, params, unroll),)

    return launch.launch("dropout_mask", {"keys": keys}, DropoutMaskParams(bound), (result,), launches, spec.stream)[0]


@masks.vjp
def _masks_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Random) -> Gradients:
    return (None,)


@masks.jvp
def _masks_jvp(arrays: Arrays, tangents: Tangents, spec: Random) -> mx.array:
    return mx.zeros_like(masks(arrays[0], spec))


@masks.vmap
def _masks_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Random) -> mx.array:
    (keys,) = arrays
    made = masks(keys.reshape(-1, 2), spec)
    return made.reshape(size, -1, *made.shape[1:])


def _layout(x: mx.array, keys: mx.array, spec: Random) -> Layout:
    """Of a set, then as often as there are sets."""
    shape = (spec.images, *x.shape[1:])
    one = broadcast.layout(shape, (shape, 1), ((spec.images, *spec.mask), 1))
    sets = keys.shape[0]
    source, mask = one.operands
    source = source._replace(images=x.shape[0] // spec.images * one.n, per=1)
    return one._replace(n=sets * one.n, operands=(source, mask._replace(images=sets * one.n, per=1)))


def _once(full: mx.array, shape: Shape) -> mx.array:
    """The sum over the times that images came again."""
    if full.shape == shape:
        return full
    wide = full.astype(launch.accumulator(full.dtype)).reshape(full.shape[0] // shape[0], *shape)
    return wide.sum(0).astype(full.dtype)
