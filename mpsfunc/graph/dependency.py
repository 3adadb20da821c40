"""An image that waits for others to be made."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.core import launch
from mpsfunc.core.autodiff import differentiable


class Spec(NamedTuple):
    """Statics: the stream."""

    stream: mx.Stream


def _run(image: mx.array, *others: Any) -> mx.array:
    *arrays, _ = others
    return launch.after(image, arrays)


def _vmap(arrays: tuple[mx.array, ...], mapped: tuple[bool, ...], size: int, spec: Spec) -> mx.array:
    image, *others = arrays
    if not mapped[0]:
        image = mx.broadcast_to(image, (size, *image.shape))
    waiting: mx.array = after(image, *others, spec)
    return waiting


def _jvp(arrays: tuple[mx.array, ...], tangents: tuple[mx.array | None, ...], spec: Spec) -> mx.array:
    return mx.zeros_like(arrays[0]) if tangents[0] is None else tangents[0]


# after(image, *arrays, spec): the image, which is not made before the arrays are. mx.depends alone cannot be mapped.
after = differentiable(
    "after",
    _run,
    vjp=lambda arrays, cotangents, outputs, spec: (cotangents[0], *[None] * (len(arrays) - 1)),
    jvp=_jvp,
    vmap=_vmap,
)
