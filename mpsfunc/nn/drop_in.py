"""What all drop-ins have in common, and how a layer applies the activation behind it."""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.core import lazy
from mpsfunc.core.printing import describe

FLOATING = (mx.float32, mx.float16, mx.bfloat16, mx.float64)

# What functions of mlx.nn, which stand in a Sequential as they are, come to.
FUNCTIONS: dict[Any, mf.Neuron] = {
    stock.relu: mf.Neuron("relu"),
    stock.relu2: mf.Neuron("relu2"),
    stock.relu6: mf.Neuron("relu6"),
    stock.leaky_relu: mf.Neuron("relu", 0.01),
    stock.elu: mf.Neuron("elu", 1.0),
    stock.gelu: mf.Neuron("gelu"),
    stock.gelu_approx: mf.Neuron("gelu_tanh"),
    stock.gelu_fast_approx: mf.Neuron("gelu_fast"),
    stock.silu: mf.Neuron("silu"),
    stock.hardswish: mf.Neuron("hard_swish"),
    stock.mish: mf.Neuron("mish"),
    stock.celu: mf.Neuron("celu"),
    stock.selu: mf.Neuron("selu"),
    stock.hard_tanh: mf.Neuron("hard_tanh"),
    stock.hard_shrink: mf.Neuron("hard_shrink"),
    stock.softshrink: mf.Neuron("soft_shrink"),
    stock.log_sigmoid: mf.Neuron("log_sigmoid"),
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
        """Ours."""
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        return self.run(x) if self.takes(x) else super().__call__(x)  # type: ignore[misc]  # MLX's is the next class

    def _extra_repr(self) -> str:
        told: str = super()._extra_repr()  # type: ignore[misc]  # as above
        return ", ".join(filter(None, (told, self.beyond())))


def other(**arguments: tuple[Any, Any]) -> str:
    """Those that differ from their default, of which each has one, as they were given."""
    return ", ".join(f"{name}={describe(value)}" for name, (value, default) in arguments.items() if value != default)


class Fusing(DropIn):
    """A layer that can apply the activation behind it."""

    _following: Following | None = None

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        """Ours, with the activation behind it."""
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        if self._following is None or not self.takes(x):
            return super().__call__(x)
        return self._following.noted(self, x)


class Activation(DropIn):
    """An activation that other layers can apply."""

    _following: Following | None = None

    @property
    def neuron(self) -> mf.Neuron:
        """What another layer would apply."""
        raise NotImplementedError

    def run(self, x: mx.array) -> mx.array:
        y = self._following.taken(x, self.neuron) if self._following else None
        return mf.neuron(x, *self.neuron) if y is None else y


class Call(NamedTuple):
    """A call of a layer. Arrays are held by objects of our own, which users cannot change in place."""

    layer: Any
    alive: weakref.ref[mx.array]  # the object that the user got, with which this is forgotten
    x: mx.array
    y: mx.array
    before: dict[str, Any]  # what the layer held
    after: dict[str, Any]


class Following:
    """Lets an activation take over the calls of the layers that a user has named with it.

    A layer always returns what it computes without an activation. An activation that is given that very array calls the
    layer again, with itself, and nobody ever evaluates the first array. So nothing is computed wrongly, whatever a user
    does to a model and whatever else reads the array. A call is forgotten with its result.
    """

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}  # by the result's identity

    def __reduce__(self) -> tuple[type[Following], tuple[()]]:
        return Following, ()

    def noted(self, layer: Any, x: mx.array) -> mx.array:
        """The layer's result without an activation."""
        before, x_held = _held(layer), copy.copy(x)
        y: mx.array = layer.run(x)
        key, calls = id(y), self._calls
        alive = weakref.ref(y, lambda _: calls.pop(key, None))
        calls[key] = Call(layer, alive, x_held, copy.copy(y), before, _held(layer))
        return y

    def taken(self, y: mx.array, neuron: mf.Neuron) -> mx.array | None:
        """The result with an activation, if y is a layer's and neither it nor the layer has been changed since."""
        call = self._calls.get(id(y))
        if call is None or not lazy.same(call.y, y):
            return None
        now = _held(call.layer)
        if now.keys() != call.after.keys() or not all(_same(a, now[name]) for name, a in call.after.items()):
            return None
        del self._calls[id(y)]
        statistics = [name for name, a in call.before.items() if not _same(a, call.after[name])]
        call.layer.update({name: call.before[name] for name in statistics})
        try:
            return call.layer.run(call.x, neuron)
        except Exception:  # of whatever kind: statistics are what the first call left
            call.layer.update({name: call.after[name] for name in statistics})
            raise


def _held(layer: Any) -> dict[str, Any]:
    """Everything of a layer."""
    return {name: copy.copy(a) if isinstance(a, mx.array) else a for name, a in (*layer.items(), *vars(layer).items())}


def _same(a: Any, b: Any) -> bool:
    return lazy.same(a, b) if isinstance(a, mx.array) and isinstance(b, mx.array) else a is b


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
    if layer.why_left(layer):
        return None
    if isinstance(behind, Activation) and type(behind).__call__ is DropIn.__call__:
        return None if behind.why_left(behind) else behind.neuron
    return function(behind)


def function(each: Any) -> mf.Neuron | None:
    """What a function is; None if it is not known."""
    try:
        return FUNCTIONS.get(each)
    except TypeError:  # not hashable
        return None
