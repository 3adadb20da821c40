"""Batch normalizations with running statistics, folded into the weights of the layers before them.

Folded weights are stored with copies of the arrays that they were computed from, and each call compares these copies
with the arrays that the layers now have. So after any change of a parameter, in place or not, the weights are folded
again. Layers in training mode are not folded. If parameters are traced by a transformation, folding is part of the
transformed function, and nothing is stored. If the CPU's kernels would rearrange weights in every call, the rearranged
weights are stored.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.convolution.laid_out import LaidOut
from mpsfunc.core import lazy
from mpsfunc.nn import laying_out
from mpsfunc.nn.laying_out import Layouts, as_images, can_be

_NAMES = "weight", "bias"
_NO_NORM = 0  # in place of a normalization's identity
_STATISTICS = "running_mean", "running_var"
_FEWEST = 2.0**-14  # of float16 that have all their digits


class _Weights:
    """Folded weights, and the arrays that they come from, held by objects that users cannot change in place.

    Where kernels take them laid out, they are kept so, and computed again for whatever asks for themselves.
    """

    def __init__(self, sources: tuple[mx.array | None, ...], eps: float, weight: mx.array, bias: mx.array) -> None:
        self.sources, self.eps, self.bias = sources, eps, bias
        self.alive: tuple[weakref.ref[Any], ...] = ()
        self.dtype = weight.dtype
        self._weight: mx.array | None = weight
        self._layouts = Layouts()

    @property
    def nbytes(self) -> int:
        """What is kept besides the parameters."""
        return self.bias.nbytes + self._layouts.nbytes + (0 if self._weight is None else self._weight.nbytes)

    def laid(self, layer: Any, images: mx.Dtype) -> LaidOut | None:
        """The weights laid out for images of a dtype, if kernels take them so."""
        if not can_be(layer):
            return None
        groups, sources, eps, dtype = getattr(layer, "groups", 1), self.sources, self.eps, self.dtype

        def weights() -> mx.array:  # holds none of this object, which would then live until garbage is collected
            return as_images(_folded(sources, eps)[0].astype(dtype))

        found = self._layouts.of(images, dtype, groups, weights)
        if found is not None:
            self._weight = None
        return found

    def weight(self) -> mx.array:
        """The weights themselves."""
        if self._weight is None:
            self._weight = _folded(self.sources, self.eps)[0].astype(self.dtype)
            mx.eval(self._weight)
        return self._weight


class Folds:
    """The folded weights of a model, by the identities of a layer and a normalization."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Weights] = {}

    @property
    def nbytes(self) -> int:
        """What is kept besides the parameters."""
        return sum(each.nbytes for each in list(self._kept.values()))

    def layers(self) -> set[int]:
        """The identities of the layers with folded weights."""
        return {layer for layer, _ in self._kept}

    def keep(self, pairs: set[tuple[int, int]], scaled: set[int]) -> None:
        """Forgets what belongs to no such pair of a layer and a normalization, and no such layer, by identity."""
        for key in self._kept.keys() - pairs - {(layer, _NO_NORM) for layer in scaled}:
            self._kept.pop(key, None)

    def weights(self, layer: Any, norm: Any, images: mx.Dtype) -> tuple[mx.array, mx.array, LaidOut | None]:
        """The weights and the bias of a layer behind which nothing is to be normalized.

        Where kernels take the weights laid out for images of a dtype, those stand in for the weights, and the layer's
        own are returned for their shape.
        """
        key, sources = (id(layer), id(norm)), _sources(layer, norm)
        return self._weights(key, sources, norm.eps, layer, (layer, norm), images)

    def scaled(self, layer: Any, scale: mx.array, images: mx.Dtype) -> tuple[mx.array, mx.array, LaidOut | None]:
        """The same of a layer whose result is not to be multiplied by a vector any more."""
        sources = (*_own(layer), scale, None, None, None)
        return self._weights((id(layer), _NO_NORM), sources, 0.0, layer, (layer,), images)

    def _weights(
        self,
        key: tuple[int, int],
        sources: tuple[mx.array | None, ...],
        eps: float,
        layer: Any,
        holders: tuple[Any, ...],
        images: mx.Dtype,
    ) -> tuple[mx.array, mx.array, LaidOut | None]:
        known = self._kept.get(key)
        if known is None or known.eps != eps or not all(map(_same, known.sources, sources)):
            weight, bias = _folded(sources, eps)
            if not lazy.are_settled([a for a in sources if a is not None]):
                return _rounded(weight, layer.weight.dtype, fits=False), bias, None
            weight = _rounded(weight, layer.weight.dtype, fits=_fits(weight))
            mx.eval(weight, bias)
            known = _Weights(tuple(None if a is None else copy.copy(a) for a in sources), eps, weight, bias)
            kept = self._kept
            known.alive = tuple(weakref.ref(each, lambda _: kept.pop(key, None)) for each in holders)
            kept[key] = known
        laid = known.laid(layer, images)
        return (known.weight() if laid is None else layer.weight), known.bias, laid


class Folded:
    """A layer with the normalization behind it as one."""

    def __init__(self, layer: Any, norm: Any, folds: Folds) -> None:
        self.layer, self.norm, self._folds = layer, norm, folds

    @property
    def training(self) -> bool:
        """Of the normalization."""
        return bool(self.norm.training)

    @property
    def adds(self) -> bool:
        """Whether it adds images ahead of the activation."""
        return can_be(self.layer)

    @property
    def is_added_to(self) -> bool:
        """Whether an example has shown that such are added to its result."""
        return bool(self.norm.is_added_to)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What the layer computes with the folded weights, with images that are added before the activation."""
        return _run(self.layer, self._folds.weights(self.layer, self.norm, x.dtype), x, neuron, add)


class Scaled:
    """A layer whose result is multiplied by a vector, with that multiplication as one."""

    def __init__(self, layer: Any, scale: mx.array, folds: Folds) -> None:
        self.layer, self.scale, self._folds = layer, scale, folds

    @property
    def training(self) -> bool:
        """Of the layer."""
        return bool(self.layer.training)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What the layer computes with its weights times the vector, with images that are added."""
        return _run(self.layer, self._folds.scaled(self.layer, self.scale, x.dtype), x, neuron, add)


def scales(layer: Any) -> bool:
    """Whether a vector by which a layer's result is multiplied may be one with its weights."""
    return bool(getattr(layer, "is_linear", False)) and "weight" in layer


def _run(
    layer: Any,
    weights: tuple[mx.array, mx.array, LaidOut | None],
    x: mx.array,
    neuron: mf.Neuron | None,
    add: mx.array | None,
) -> mx.array:
    weight, bias, laid = weights
    kind: Any = type(layer)
    other = kind.__new__(kind)
    dict.update(other, layer, weight=weight, bias=bias)
    vars(other).update(vars(layer), _layouts=laid)
    y: mx.array = other.run(x, neuron) if add is None else added(other, x, neuron, add)
    return y


def added(layer: Any, x: mx.array, neuron: mf.Neuron | None, add: mx.array) -> mx.array:
    """What a layer makes with images that are added ahead of the activation, by its kernel if weights are laid out."""
    laid = laying_out.laid(layer, x)
    if laid is None:
        y: mx.array = layer.run(x) + add
        return y if neuron is None else mf.neuron(y, *neuron)
    kind: Any = type(layer)
    other = kind.__new__(kind)
    dict.update(other, layer)
    vars(other).update(vars(layer), _layouts=laid.adding(add))
    y = other.run(x, neuron)
    return y


def fit(layer: Any, norm: Any) -> bool:
    """Whether a normalization behind a layer is one with it in evaluation mode, as both are now."""
    if not (getattr(layer, "is_linear", False) and getattr(norm, "folds", False)):
        return False
    held = "weight" in layer and all(name in norm for name in _STATISTICS)
    return held and int(layer.weight.shape[0]) == norm.running_mean.size == norm.running_var.size


def _sources(layer: Any, norm: Any) -> tuple[mx.array | None, ...]:
    return (*_own(layer), *(norm.get(name) for name in (*_NAMES, *_STATISTICS)))


def _own(layer: Any) -> tuple[mx.array | None, ...]:
    return tuple(layer.get(name) for name in _NAMES)


def _same(a: mx.array | None, b: mx.array | None) -> bool:
    return a is b if a is None or b is None else lazy.same(a, b)


def _folded(sources: tuple[mx.array | None, ...], eps: float) -> tuple[mx.array, mx.array]:
    """Not rounded yet; without statistics, the weights times gamma."""
    exact = any(a is not None and a.dtype == mx.float64 for a in sources)
    weight, bias, gamma, beta, mean, var = (
        None if a is None else a.astype(mx.float64 if exact else mx.float32) for a in sources
    )
    assert weight is not None
    if var is None or mean is None:
        assert gamma is not None
        scale, made = gamma, mx.zeros_like(gamma) if bias is None else bias * gamma
    else:
        scale = mx.rsqrt(var + eps) if gamma is None else gamma * mx.rsqrt(var + eps)
        shift = -mean if bias is None else bias - mean
        made = shift * scale if beta is None else shift * scale + beta
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), made


def _rounded(weight: mx.array, dtype: mx.Dtype, fits: bool) -> mx.array:
    return weight.astype(dtype) if fits or dtype != mx.float16 else weight


def _fits(weight: mx.array) -> bool:
    """Whether float16 has the greatest weight of each channel, with all its digits."""
    most = mx.abs(weight).reshape(len(weight), -1).max(axis=1)
    fits = (most <= mx.finfo(mx.float16).max) & ((most >= _FEWEST) | (most == 0))
    return bool(mx.all(fits).item())
