"""An image that is computed after other images."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Spec(NamedTuple):
    """Statics: the stream."""

    stream: mx.Stream


@operation("after")
def after(image: mx.array, *others: Unpack[tuple[Unpack[Arrays], Spec]]) -> mx.array:
    """The image, which is not made before the other arrays are; mx.depends alone cannot be mapped."""
    return launch.after(image, others[:-1])


@after.vjp
def _after_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    return cotangents[0], *[None] * (len(arrays) - 1)


@after.jvp
def _after_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> mx.array:
    return mx.zeros_like(arrays[0]) if tangents[0] is None else tangents[0]


@after.vmap
def _after_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> mx.array:
    image, *others = arrays
    if not mapped[0]:
        image = mx.broadcast_to(image, (size, *image.shape))
    return after(image, *others, spec)
