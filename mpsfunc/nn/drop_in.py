"""What all drop-ins have in common, and how a layer applies the activation after it."""

from __future__ import annotations

from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.core.printing import describe
from mpsfunc.nn import folding, reading
from mpsfunc.nn.copying import Copied
from mpsfunc.nn.following import Following
from mpsfunc.nn.functions import function

FLOATING = (mx.float32, mx.float16, mx.bfloat16, mx.float64)


class DropIn:
    """A layer of mlx.nn whose call runs our functions where they take what it is given, and MLX's elsewhere."""

    _following: Following | None = None

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """Why MLX's computes with such arguments of its layer, here too; empty if ours does."""
        return ""

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """What our function refuses among the arguments of MLX's layer, which is left alone; empty if nothing.

        A drop-in that was made with such arguments refuses them when it is called, whatever its input.
        """
        return ""

    @classmethod
    def why_left(cls, layer: Any) -> str:
        """Why such a layer of MLX's is better left alone; empty if it is not."""
        return cls.why_not(layer) or cls.refuses(layer)

    def beyond(self) -> str:
        """What it was made with that MLX's layer does not have, so that only ours can compute it; empty if nothing."""
        return ""

    def takes(self, x: mx.array) -> bool:
        """Whether it is ours that computes this, or refuses it; MLX's layers take integers and complex numbers too."""
        ours = bool(self.refuses(self) or self.beyond())
        return ours or (x.dtype in FLOATING and not self.why_not(self))

    def run(self, x: mx.array) -> mx.array:
        """What a call computes with mpsfunc's functions."""
        raise NotImplementedError

    def read(self, x: mx.array) -> mx.array:
        """What it reads in place of an array."""
        return reading.read(x, self._following, self)

    def __call__(self, x: mx.array) -> mx.array:
        if self.takes(x):
            return self.run(self.read(x))
        return super().__call__(x)  # type: ignore[misc]  # MLX's is the next class

    def _extra_repr(self) -> str:
        told: str = super()._extra_repr()  # type: ignore[misc]  # as above
        return ", ".join(filter(None, (told, self.beyond())))


def other(**arguments: tuple[Any, Any]) -> str:
    """Those that differ from their default, of which each has one, as they were given."""
    return ", ".join(f"{name}={describe(value)}" for name, (value, default) in arguments.items() if value != default)


class Fusing(DropIn):
    """A layer that can apply the activation after it.

    Attributes:
        is_linear: Whether it multiplies by weights with the channels of its result first, and adds a bias.
        takes_layouts: Whether `run` takes weights that are laid out, `laying_out`.
        folds: Whether it multiplies each channel by a number and adds another in evaluation mode.
        adds: Whether `run` takes images that it adds ahead of the activation, in training too.
        adds_in_inference: The same of layers that gain by it only where their weights are laid out.
        is_added_to: Whether an example has shown that such are added to its result.
    """

    is_linear: ClassVar[bool] = False
    takes_layouts: ClassVar[bool] = False
    adds: ClassVar[bool] = False
    adds_in_inference: ClassVar[bool] = False
    is_added_to: bool = False
    _behind: tuple[Any, ...] = ()  # activations that were named or shown, of functions the names; for reports

    @property
    def folds(self) -> bool:
        return False

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        """What a call computes with mpsfunc's functions, with the activation after it."""
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        if not self.takes(x):
            return super().__call__(x)
        x = self.read(x)
        return self.run(x) if self._following is None else self._following.noted(self, x)


def name(layer: Any, behind: Any) -> None:
    """Keeps for reports that an activation, a module or the name of a function, is called on a layer's results."""
    known = layer._behind
    if not any(other == behind if isinstance(behind, str) else other is behind for other in known):
        vars(layer)["_behind"] = (*known, behind)


class Activation(DropIn):
    """An activation that other layers can apply."""

    @property
    def neuron(self) -> mf.Neuron:
        """What another layer would apply."""
        raise NotImplementedError

    def read(self, x: mx.array) -> mx.array:
        """A layer that x came of may take over."""
        return x

    def run(self, x: mx.array) -> mx.array:
        y = self._following.taken(x, self.neuron, self) if self._following else None
        return mf.neuron(x, *self.neuron) if y is None else y


class Sequential(Copied, DropIn, stock.Sequential):
    """`mlx.nn.Sequential` whose convolutions, linear layers and batch normalizations apply the activations after them.

    This is decided in each call, so layers can be replaced, shared, and called by themselves.

    Example:
        >>> Sequential(mf.nn.Linear(3, 8), stock.relu)(mx.ones((2, 3))).shape
        (2, 8)
    """

    def __call__(self, x: mx.array) -> mx.array:
        left = list(self.layers)
        while left:
            layer = left.pop(0)
            following = self._following
            folded = following.folded(layer, left[0], x) if following and left else None
            if folded and following and can_fuse(layer) and can_fuse(left[0]) and layer.takes(x):
                layer = left.pop(0)
                neuron = fused(layer, left[0]) if left else None
                if not left and layer._following is not None:  # whose result code behind the chain may add to
                    x = layer._following.kept(folded, self.read(x))
                else:
                    x = following.run(folded, self.read(x), neuron)
            else:
                neuron = fused(layer, left[0]) if left else None
                if neuron is None or not layer.takes(x):
                    x = layer(x)
                    continue
                x = self.read(x)
                x = following.run(layer, x, neuron) if following else layer.run(x, neuron)
            if neuron is not None:
                left.pop(0)
        return x


def fused(layer: Any, behind: Any) -> mf.Neuron | None:
    """What a layer applies for the module or function after it; None if it does not."""
    if not can_fuse(layer):
        return None
    if isinstance(behind, Activation):
        return behind.neuron if can_be_fused(behind) else None
    return function(behind)


def can_fold(layer: Any, norm: Any) -> bool:
    """Whether a normalization behind a layer is one with it in evaluation mode."""
    return can_fuse(layer) and can_fuse(norm) and folding.fit(layer, norm)


def can_fuse(layer: Any) -> bool:
    """Whether a layer applies activations; classes that users derive may do something else behind it."""
    return isinstance(layer, Fusing) and type(layer).__call__ is Fusing.__call__ and not layer.why_left(layer)


def can_be_fused(behind: Any) -> bool:
    """Whether a module is an activation that layers apply."""
    is_one = isinstance(behind, Activation) and type(behind).__call__ is DropIn.__call__
    return is_one and not behind.why_left(behind)
