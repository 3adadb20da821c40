"""What all drop-ins have in common, and how a layer applies the activation behind it."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf

FLOATING = (mx.float32, mx.float16, mx.bfloat16, mx.float64)

# What functions of mlx.nn, which stand in a Sequential as they are, come to.
FUNCTIONS: dict[Any, mf.Neuron] = {
    stock.relu: mf.Neuron("relu"),
    stock.relu6: mf.Neuron("relun", 0.0, 6.0),
    stock.leaky_relu: mf.Neuron("relu", 0.01),
    stock.elu: mf.Neuron("elu", 1.0),
    stock.gelu: mf.Neuron("gelu"),
    stock.sigmoid: mf.Neuron("sigmoid"),
    stock.tanh: mf.Neuron("tanh"),
    stock.softplus: mf.Neuron("softplus"),
    stock.softsign: mf.Neuron("softsign"),
    mx.sigmoid: mf.Neuron("sigmoid"),
    mx.tanh: mf.Neuron("tanh"),
}


class DropIn:
    """A layer of mlx.nn whose call runs our functions where they take what it is given, and MLX's elsewhere."""

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """Why such a layer of MLX's, with the arguments that it has, is better left alone; empty if it is not."""
        return ""

    def takes(self, x: mx.array) -> bool:
        """Whether ours computes this; MLX's layers take integers and complex numbers too."""
        return x.dtype in FLOATING and not self.why_not(self)

    def run(self, x: mx.array) -> mx.array:
        """Ours."""
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        return self.run(x) if self.takes(x) else super().__call__(x)  # type: ignore[misc]  # MLX's is the next class


class Fusing(DropIn):
    """A layer that can apply the activation behind it. ``following`` is that of a pair that the user named."""

    following: Following | None = None

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        """Ours, with the activation behind it."""
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        if self.following is None or not self.takes(x):
            return super().__call__(x)
        return self.following.noted(self, x)


class Activation(DropIn):
    """An activation. ``following`` is there if it is in pairs that the user named."""

    following: Following | None = None

    @property
    def neuron(self) -> mf.Neuron:
        """What another layer would apply."""
        raise NotImplementedError

    def run(self, x: mx.array) -> mx.array:
        call = self.following and self.following.taken(x)
        return call.layer.run(call.x, self.neuron) if call else mf.neuron(x, *self.neuron)


class Call(NamedTuple):
    """A call of a layer: what it was given and gave back, its arrays before, and everything it had after."""

    layer: Any
    x: mx.array
    y: mx.array
    before: dict[str, Any]
    after: dict[str, Any]


class Following:
    """Lets an activation take over the last call of the layers that are named with it.

    A layer always returns what it computes without an activation. An activation that gets that very array calls the
    layer again, with itself, and nobody ever evaluates the first array. So nothing is computed wrongly, whatever a user
    does to a model and whatever else reads the array.
    """

    def __init__(self) -> None:
        self._last: dict[int, Call] = {}  # by thread

    def __reduce__(self) -> tuple[type[Following], tuple[()]]:
        return Following, ()

    def noted(self, layer: Any, x: mx.array) -> mx.array:
        """The layer's result without an activation."""
        before = dict(layer)
        y: mx.array = layer.run(x)
        self._last[threading.get_ident()] = Call(layer, x, y, before, _everything(layer))
        return y

    def taken(self, y: mx.array) -> Call | None:
        """The last call, undone, if it gave this array and nobody has changed the layer since."""
        call = self._last.get(threading.get_ident())
        if call is None or call.y is not y:
            return None
        del self._last[threading.get_ident()]
        now = _everything(call.layer)
        if now.keys() != call.after.keys() or any(now[name] is not value for name, value in call.after.items()):
            return None
        for name, value in call.before.items():
            call.layer[name] = value
        return call


def _everything(layer: Any) -> dict[str, Any]:
    return {**layer, **vars(layer)}


class Sequential(DropIn, stock.Sequential):
    """`mlx.nn.Sequential` whose convolutions, linear layers and batch normalizations apply the activations behind them.

    Which ones is found anew in each call, so layers can be exchanged, shared, and called by themselves.

    Example:
        >>> Sequential(mf.nn.Linear(3, 8), stock.relu)(mx.ones((2, 3))).shape
        (2, 8)
    """

    def __call__(self, x: mx.array) -> mx.array:
        left = list(self.layers)
        while left:
            layer = left.pop(0)
            neuron = fused(layer, left[0]) if left else None
            if neuron is None or not layer.takes(x):
                x = layer(x)
            else:
                x = layer.run(x, neuron)
                left.pop(0)
        return x


def fused(layer: Any, behind: Any) -> mf.Neuron | None:
    """What a layer applies for the module or function behind it; None if it does not."""
    if not isinstance(layer, Fusing) or type(layer).__call__ is not Fusing.__call__:  # as in classes that users derive
        return None
    if isinstance(behind, Activation) and type(behind).__call__ is DropIn.__call__:
        return None if behind.why_not(behind) else behind.neuron
    try:
        return None if isinstance(behind, stock.Module) else FUNCTIONS.get(behind)
    except TypeError:  # not hashable
        return None
