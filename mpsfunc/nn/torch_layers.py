"""The layers of a PyTorch checkpoint, and which of them read or return flattened images.

PyTorch flattens images as (c, h, w) and MLX as (h, w, c). Neither weights nor modules show where that happens, but
numbers of features do: a linear layer that reads as many features as the layer before it returns reads no flattened
image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as stock

CONVOLUTION, TRANSPOSED, LINEAR, EMBEDDING, VECTOR, OWN = (
    "convolution", "transposed convolution", "linear layer", "embedding", "vector", "array",
)  # fmt: skip
_KINDS: tuple[tuple[type[stock.Module] | tuple[type[stock.Module], ...], str, int], ...] = (
    ((stock.Conv1d, stock.Conv2d, stock.Conv3d), CONVOLUTION, 3),
    ((stock.ConvTranspose1d, stock.ConvTranspose2d, stock.ConvTranspose3d), TRANSPOSED, 3),
    (stock.Linear, LINEAR, 2),
    (stock.Embedding, EMBEDDING, 2),
)


class Layer(NamedTuple):
    """The arrays of one layer.

    Fields:
        name: PyTorch's.
        kind: One of those above. A normalization is a vector, and what is nothing else an array.
        arrays: By their names in the layer, as PyTorch has them.
        groups: Of a convolution; 0 where nobody knows.
    """

    name: str
    kind: str
    arrays: dict[str, mx.array]
    groups: int = 1

    @property
    def out(self) -> int:
        """How many channels or features the layer makes; of a vector, how many it has."""
        if self.kind == VECTOR:
            return max(a.size for a in self.arrays.values())
        shape = self.arrays["weight"].shape
        return shape[1] * max(self.groups, 1) if self.kind == TRANSPOSED else shape[self.kind == EMBEDDING]

    def takes(self, size: int) -> bool:
        """Whether a convolution may read images of so many channels."""
        out, inside = self.arrays["weight"].shape[:2]
        if self.kind == TRANSPOSED:
            return size == out
        if self.groups:
            return size == inside * self.groups
        return size == inside or (inside == 1 and out % size == 0)


def of_module(name: str, module: object, arrays: dict[str, mx.array]) -> Layer:
    """A layer of which a model has the module."""
    weight = arrays.get("weight")
    for kinds, kind, least in _KINDS:
        if isinstance(module, kinds) and weight is not None and (weight.ndim == least or 3 == least < weight.ndim):
            groups = getattr(module, "groups", 1)
            if kind != TRANSPOSED or weight.shape[0] % groups == 0:  # or it does not fit, as a check of shapes says
                return Layer(name, kind, arrays, groups)
    return Layer(name, _without_kind(arrays), arrays)


def of_arrays(name: str, arrays: dict[str, mx.array], groups: int | None) -> Layer:
    """A layer of which there is nothing but arrays; ``groups`` are those of a transposed convolution."""
    weight = arrays.get("weight")
    if groups is not None:
        return Layer(name, TRANSPOSED, arrays, groups)
    if weight is not None and 2 <= weight.ndim <= 5:
        return Layer(name, LINEAR, arrays) if weight.ndim == 2 else Layer(name, CONVOLUTION, arrays, 0)
    return Layer(name, _without_kind(arrays), arrays)


def _without_kind(arrays: Mapping[str, mx.array]) -> str:
    return VECTOR if all(a.ndim == 1 for a in arrays.values()) else OWN


def suspects(
    layers: Iterable[Layer], read: Mapping[str, int | None], made: Mapping[str, int | None]
) -> tuple[dict[str, int], dict[str, int]]:
    """What may read a flattened image, and what may make one, each with its features.

    ``read`` and ``made`` have the channels of what is known to do it, and None for what is known not to.
    """
    reading: dict[str, int] = {}
    making: dict[str, int] = {}
    known: set[int] = set()  # the sizes of what was made since the last convolution
    waiting: dict[str, int] = {}  # of what no linear layer was seen to read yet
    unknown: dict[str, int] = {}  # vectors of other sizes, as behind a concatenation or a flattened image
    for layer in layers:
        if layer.kind in (CONVOLUTION, TRANSPOSED):
            making |= {name: size for name, size in waiting.items() if not layer.takes(size)}
            known, waiting, unknown = {layer.out}, {}, {}
        elif layer.kind == LINEAR:
            size = layer.arrays["weight"].shape[1]
            if size not in known:
                reading |= {name: each for name, each in unknown.items() if each == size} | {layer.name: size}
            if read.get(layer.name, 1) is None:  # or each that reads features of this size has to be named
                known.add(size)
            known.add(layer.out)
            waiting = {name: each for name, each in waiting.items() if each != size}
            if made.get(layer.name, 1) is not None:
                waiting[layer.name] = layer.out
        elif layer.kind == EMBEDDING:
            known.add(layer.out)
        elif layer.kind == VECTOR and layer.out not in known:
            unknown[layer.name] = layer.out
        elif layer.kind == VECTOR and layer.out in waiting.values():
            waiting[layer.name] = layer.out
    return reading, making
