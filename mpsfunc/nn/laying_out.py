"""Weights of convolutions and linear layers, rearranged once for inference on a CPU instead of in each call.

They belong to a layer, or to one with a folded normalization, and are used until its weights change: each call compares
the weights that they were made from with those that the layer now has. Copies of a layer make their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mpsfunc.convolution import laid_out
from mpsfunc.convolution.laid_out import LaidOut
from mpsfunc.core import lazy

_DTYPES = mx.float32, mx.float16, mx.bfloat16


class Layouts:
    """The weights of one layer, laid out for images of one dtype or several."""

    def __init__(self) -> None:
        self._known: dict[mx.Dtype, LaidOut | None] = {}

    def __reduce__(self) -> tuple[type[Layouts], tuple[()]]:
        return type(self), ()

    @property
    def nbytes(self) -> int:
        """What is kept besides the weights."""
        return sum(each.words.nbytes for each in list(self._known.values()) if each is not None)

    def clear(self) -> None:
        """Forgets all."""
        self._known = {}

    def of(self, images: mx.Dtype, dtype: mx.Dtype, groups: int, weights: Callable[[], mx.array]) -> LaidOut | None:
        """The weights for images of a dtype, laid out; None where kernels read them as they are.

        Args:
            images: Dtype of the images.
            dtype: That of the weights.
            groups: Of the convolution.
            weights: Gives them, (o, kh, kw, c / groups), each time that it is called.
        """
        isa = laid_out.isa()
        if isa is None or images not in _DTYPES or dtype not in _DTYPES:
            return None
        ready = dtype if dtype == images else mx.float32  # as a launch takes them
        known = self._known.get(ready)
        if known is None and ready in self._known:
            return None
        if known is None or known.isa != isa:
            known = self._known[ready] = laid_out.lay_out(lambda: weights().astype(ready), groups)
        return known


class Own(Layouts):
    """The layouts of a layer's own weights, in the layer."""

    _source: mx.array | None = None

    def of_layer(self, layer: Any, images: mx.Dtype) -> LaidOut | None:
        """What stands in for the layer's weights with images of a dtype; None while it trains."""
        if layer.training:
            self.clear()
            return None
        weight = layer.weight
        if self._source is None or not lazy.same(self._source, weight):
            if not lazy.are_settled([weight]):
                return None
            self.clear()
            self._source = copy.copy(weight)  # held by an object that users cannot change in place
        source = self._source
        return self.of(images, weight.dtype, getattr(layer, "groups", 1), lambda: as_images(source))

    def clear(self) -> None:
        super().clear()
        self._source = None


def as_images(weight: mx.array) -> mx.array:
    """The weights of a layer as those of a convolution of images: of a linear layer those of one pixel."""
    if weight.ndim == 2:
        return weight[:, None, None]
    return weight[:, None] if weight.ndim == 3 else weight


def can_be(layer: Any) -> bool:
    """Whether a layer takes weights that are laid out."""
    return bool(getattr(layer, "takes_layouts", False)) and "weight" in layer


def laid(layer: Any, x: mx.array) -> LaidOut | None:
    """What stands in for a layer's weights in this call, if anything does."""
    own = vars(layer).get("_layouts")
    if own is None or isinstance(own, LaidOut):
        return own
    found: LaidOut | None = own.of_layer(layer, x.dtype)
    return found
