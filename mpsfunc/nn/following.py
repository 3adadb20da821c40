"""How an activation is computed in the call of the layer whose result is its argument."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import weakref
from typing import Any, Protocol

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import lazy, operation
from mpsfunc.nn import folding
from mpsfunc.nn.folding import Folded, Folds, Scaled

_REMEMBERED = 2  # calls whose results are gone
_Way = tuple[mx.array, mx.array, "tuple[mx.array, mx.array] | None"]  # two addends, and of what the first is a product


@dataclasses.dataclass(frozen=True, eq=False)  # each is only itself: == would compare modules and arrays
class Call:
    """A call of a layer. Arrays are held by objects of our own, which users cannot change in place."""

    key: int  # the result's identity
    number: int  # they are counted
    layer: Any
    alive: weakref.ref[mx.array]  # the object that the user got, with which this is forgotten
    x: mx.array
    y: mx.array  # what the layer returned
    before: dict[str, Any]  # what the layer held
    after: dict[str, Any]


class Watch(Protocol):
    """What looks on while an example runs."""

    def seen(self, call: Call | None, y: mx.array, behind: Any, in_a_sum: bool = False) -> None:
        """An activation was called on y, the result of that call or a sum of it, or of none."""

    def summed(self, call: Call, reader: Any) -> None:
        """A layer, `reader`, was called on a sum of that call's result and images."""

    def changed(self, reader: Any) -> None:
        """A layer was called on a sum or a concatenation that was to be made by threads."""


class Following:
    """Lets activations take over the calls of layers, of those that somebody named or that an example showed.

    A layer always returns what it computes without an activation. An activation that is given that very array calls the
    layer again, with itself, and nobody ever evaluates the first array. So nothing is computed wrongly, whatever a user
    does to a model and whatever else reads the array.

    A call, which holds the layer's input and parameters, is forgotten with its result. But where an example showed that
    images are added to it, two calls are remembered longer, since a user's code keeps the sum and not the result.

    The layers and the activations of one model share one, which copies of the model have of their own.
    """

    def __init__(self, folding: bool = False) -> None:
        """With folding, fixed normalizations take over the calls of layers, too."""
        self.folding, self.folds = folding, Folds()
        self._calls: dict[int, Call] = {}  # by the result's identity
        self._count = itertools.count()
        self._gone: tuple[Call, ...] = ()  # whose results no user holds any more, but maybe a sum
        self.watch: Watch | None = None
        self.classes: dict[Any, type] = {}  # of modules whose code was rewritten for this, by their own

    def __reduce__(self) -> tuple[type[Following], tuple[bool]]:
        return Following, (self.folding,)

    def noted(self, layer: Any, x: mx.array) -> mx.array:
        """The layer's result without an activation."""
        call = self._unchanged(x) if self.folding and layer.folds else None
        folded = self.folded(call.layer, layer, x) if call is not None else None
        if call is not None and folded is not None:
            if self.watch is not None:
                self.watch.seen(call, x, layer)
            self._forget(call)
            return self.kept(folded, call.x)
        return self.kept(layer, x)

    def kept(self, layer: Any, x: mx.array) -> mx.array:
        """What a layer computes, or one with its normalization, for activations that may take it over."""
        before, x_held = _held(layer), copy.copy(x)
        y: mx.array = layer.run(x)
        key, calls = id(y), self._calls

        def forget(_: object) -> None:
            call = calls.pop(key, None)
            if call is not None and self._may_be_added_to(call.layer):
                self._gone = (*self._gone, call)[-_REMEMBERED:]

        calls[key] = Call(
            key, next(self._count), layer, weakref.ref(y, forget), x_held, copy.copy(y), before, _held(layer)
        )
        return y

    def taken(self, y: mx.array, neuron: mf.Neuron, behind: Any) -> mx.array | None:
        """The result with an activation, if y is a layer's and neither it nor the layer has been changed since.

        Or the result with images added and an activation, if y is that sum.
        """
        call = self._unchanged(y)
        added: dict[str, mx.array] = {}
        if call is None:
            call, added = self._summed(y)
        if self.watch is not None:
            self.watch.seen(call, y, behind, bool(added))
        if call is None:
            return None
        self._forget(call)
        statistics = [name for name, a in call.before.items() if not _same(a, call.after[name])]
        if statistics:
            call.layer.update({name: call.before[name] for name in statistics})
        try:
            return self.run(call.layer, call.x, neuron, **added)
        except Exception:  # of whatever kind: statistics are what the first call left
            if statistics:
                call.layer.update({name: call.after[name] for name in statistics})
            raise

    def run(
        self, layer: Any, x: mx.array, neuron: mf.Neuron | None, scale: mx.array | None = None, **added: mx.array
    ) -> mx.array:
        """What a layer computes; in evaluation mode a model for inference keeps nothing for derivatives."""
        if scale is not None:
            layer = Scaled(layer, scale, self.folds)
        with operation.for_inference() if self.folding and not layer.training else contextlib.nullcontext():
            y: mx.array = layer.run(x, neuron, **added)
            return y

    def folded(self, layer: Any, norm: Any, x: mx.array) -> Folded | None:
        """A layer and the normalization behind it as one, if they are as both are now; x has as many axes as between.

        Normalizations take two to four.
        """
        fits = self.folding and 2 <= x.ndim <= 4 and folding.fit(layer, norm) and not norm.training
        return Folded(layer, norm, self.folds) if fits else None

    def _unchanged(self, y: mx.array) -> Call | None:
        call = self._calls.get(id(y))
        return call if call is not None and lazy.same(call.y, y) and _as_left(call) else None

    def _summed(self, z: mx.array) -> tuple[Call | None, dict[str, mx.array]]:
        """The call of a layer that adds, and what it is to add, if z is the sum of its result and other images."""
        held = self._calls.copy()  # at once, since other threads add to it
        calls = [call for call in (*self._gone, *held.values()) if self._may_be_added_to(call.layer)]
        if self.folding:  # what was made last nobody else reads, but a shortcut, which may be a layer's result, too
            calls.sort(key=lambda call: -call.number)
        parts = lazy.addends(z) if calls else None
        ways = [(one, other, self._scaled(one)) for one, other in (parts, parts[::-1])] if parts else []
        for (one, other, scaled), call in _pairs(ways, calls, by_calls=self.folding):
            if lazy.same(call.y, one) and _as_left(call):
                return call, {"add": other}
            if scaled and lazy.same(call.y, scaled[0]) and folding.scales(call.layer) and _as_left(call):
                return call, {"add": other, "scale": scaled[1]}
        return None, {}

    def _scaled(self, a: mx.array) -> tuple[mx.array, mx.array] | None:
        return lazy.channel_scale(a) if self.folding else None

    def add_to(self, z: mx.array, reader: Any) -> None:
        """Has z, if it is the sum of a layer's result and images, be what the layer makes with them added.

        Or with the result times a vector in it. The object that is z then holds that.
        """
        call, added = self._summed(z)
        if call is None or call.layer.training:
            return
        if self.watch is not None:
            self.watch.summed(call, reader)
        self._forget(call)
        lazy.become(z, self.run(call.layer, call.x, None, **added))

    def changed(self, reader: Any) -> None:
        """A layer was given what is now made by threads."""
        if self.watch is not None:
            self.watch.changed(reader)

    def forget_sums(self) -> None:
        """Forgets the calls whose results no user holds any more."""
        self._gone = ()

    def _may_be_added_to(self, layer: Any) -> bool:
        """Whether a layer adds images itself, as an example has shown or is about to show."""
        adds = getattr(layer, "adds", False)  # which a layer that was reverted since has not
        if self.folding and getattr(layer, "adds_in_inference", False):
            adds = not layer.training
        return bool(adds and (layer.is_added_to or self.watch is not None))

    def _forget(self, call: Call) -> None:
        self._calls.pop(call.key, None)
        self._gone = tuple(each for each in self._gone if each is not call)


def _pairs(ways: list[_Way], calls: list[Call], by_calls: bool) -> list[tuple[_Way, Call]]:
    if by_calls:
        return [(way, call) for call in calls for way in ways]
    return [(way, call) for way in ways for call in calls]


def _as_left(call: Call) -> bool:
    """Whether a layer holds what it held after the call."""
    now = _held(call.layer)
    return now.keys() == call.after.keys() and all(_same(a, now[name]) for name, a in call.after.items())


def _held(layer: Any) -> dict[str, Any]:
    """Everything of a layer."""
    if isinstance(layer, Folded):
        parts = enumerate(map(_held, (layer.layer, layer.norm)))
        return {f"{at} {name}": value for at, held in parts for name, value in held.items()}
    return {name: copy.copy(a) if isinstance(a, mx.array) else a for name, a in (*layer.items(), *vars(layer).items())}


def _same(a: Any, b: Any) -> bool:
    return lazy.same(a, b) if isinstance(a, mx.array) and isinstance(b, mx.array) else a is b
