"""Observes a model while it is called on an example: which activation is applied to which layer's result."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten

from mpsfunc.core import launch, lazy, recomputing
from mpsfunc.core.arguments import entries, is_a, real, whole
from mpsfunc.core.printing import a_kind, describe
from mpsfunc.nn import drop_in, functions
from mpsfunc.nn import rewritten_classes as classes
from mpsfunc.nn.checkpointing import Kept
from mpsfunc.nn.folding import Folded
from mpsfunc.nn.following import Call, Following
from mpsfunc.nn.rewriting import Globals

_AXES, _ELEMENTS = 8, 2**31 - 1  # of a shape


class Given(NamedTuple):
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def arguments(op: str, example: Any) -> Given:
    """What a model is called with."""
    if is_a(example, mx.array):
        return Given((example,), {})
    if is_a(example, dict) and not is_a(example, stock.Module) and example and all(is_a(name, str) for name in example):
        return Given((), example)
    held = entries(example)
    if not held:
        raise TypeError(
            f"{op}: not an example; got example={describe(example)}, "
            "expected an array, a shape, a tuple of arguments or a dict of them by name"
        )
    if all(real(each) is not None for each in held) and any(whole(each) is None for each in held):
        raise ValueError(f"{op}: example is no shape; got example={describe(example)}, expected sizes that are ints")
    sizes = [whole(each) for each in held]
    shape = [size for size in sizes if size is not None]
    if len(shape) < len(held):
        return Given(held, {})
    if any(size < 1 for size in shape):
        raise ValueError(f"{op}: example is no shape; got example={describe(example)}, expected sizes above 0")
    if len(shape) > _AXES or math.prod(shape) > _ELEMENTS:
        rule = f"expected at most {_AXES} axes and {_ELEMENTS} elements"
        raise ValueError(f"{op}: example is too large a shape; got example={describe(example)}, {rule}")
    return Given((mx.random.normal(shape, key=mx.random.key(0)),), {})


class Pair(NamedTuple):
    """A layer's result that an activation was given."""

    layer: Any
    behind: Any  # a module, or what rewritten code and the function of MLX that it calls
    y: mx.array
    in_a_sum: bool


class Observation:
    """What activations were given."""

    def __init__(self, modules: dict[int, str]) -> None:
        self._paths = modules
        self.pairs: list[Pair] = []
        self._lines: dict[str, list[int]] = {}  # of functions that were given no layer's result
        self.called: set[int] = set()  # activations, by identity
        self.sums: list[Pair] = []  # and the layers that read them
        self.readers: set[int] = set()  # of what threads are to make, by identity

    def seen(self, call: Call | None, y: mx.array, behind: Any, in_a_sum: bool = False) -> None:
        """Notes it."""
        self.called.add(id(behind))
        if call is not None:
            self.pairs.append(Pair(_last(call), behind, call.y, in_a_sum))
        elif isinstance(behind, tuple):
            at, line, where = _place(sys._getframe(2), self._paths)
            if where.startswith("mlx."):  # such as gates of its recurrent layers, which nobody could write otherwise
                return
            lines = self._lines.setdefault(_at(at, functions.called(behind[1])), [])
            if line not in lines:
                lines.append(line)

    def summed(self, call: Call, reader: Any) -> None:
        """Notes it."""
        self.sums.append(Pair(_last(call), reader, call.y, True))

    def changed(self, reader: Any) -> None:
        """Notes it."""
        self.readers.add(id(reader))

    def alone(self) -> dict[str, str]:
        """Functions that were given no layer's result."""
        return {at: f"on no layer's result in line {', '.join(map(str, lines))}" for at, lines in self._lines.items()}

    def computed_twice(self) -> set[int]:
        """Layers, by identity, whose results were read besides."""
        return {id(pair.layer) for pair in (*self.pairs, *self.sums) if _is_evaluated(pair.y)}


def _last(call: Call) -> Any:
    """Of the layers that make the result."""
    return call.layer.norm if isinstance(call.layer, Folded) else call.layer


def _place(frame: FrameType | None, paths: dict[int, str]) -> tuple[str, int, str]:
    """The module whose code a function is called in, the line, and the name of the file as a module."""
    line, where = 0, ""
    while frame is not None:
        if type(frame.f_globals) is Globals:
            line, where = (line, where) if line else (frame.f_lineno, str(frame.f_globals.get("__name__")))
            names = frame.f_code.co_varnames[:1]
            holder = frame.f_locals.get(names[0]) if names else None
            if id(holder) in paths:
                return paths[id(holder)], line, where
        frame = frame.f_back
    return "", line, where


def _at(path: str, name: str) -> str:
    """Where a report says that a function is, by the module whose code calls it."""
    return f"{path}: {name}" if path and name else path or name


def _is_evaluated(a: mx.array) -> bool:
    """What is evaluated has forgotten how; only MLX's drawing of that is public."""
    drawn = io.StringIO()
    mx.export_to_dot(drawn, a)
    return "label" not in drawn.getvalue()


def run(op: str, model: stock.Module, given: Given) -> None:
    """Calls the model in evaluation mode and evaluates what it gives; the model and the random state stay.

    Raises:
        ValueError: The call raises.
    """
    with _kept(model):
        try:
            for module in model.modules():
                vars(module)["_training"] = False
            made: Any = tree_flatten(model(*given.args, **given.kwargs))
            mx.eval([a for _, a in made if isinstance(a, mx.array)])
        except Exception as error:  # whatever a user's code raises
            shown = given.kwargs or (given.args[0] if len(given.args) == 1 else given.args)
            raise ValueError(
                f"{op}: the model's call raises {a_kind(error)} of {describe(str(error))}; "
                f"got example={describe(shown)}, expected arguments that it takes"
            ) from error


@contextlib.contextmanager
def _kept(model: stock.Module) -> Iterator[None]:
    """Puts back everything in a model, arrays that were changed in place, too, and MLX's random state."""
    kept = Kept(model, copied=False)
    copies = [(a, copy.copy(a)) for _, items, own in kept.containers.values() for a in _arrays(items, own)]
    with recomputing.drawing_from(recomputing.random_state()):
        try:
            yield
        finally:
            kept.restore()
            for a, before in copies:
                if not lazy.same(a, before):
                    a[...] = before


def _arrays(items: Any, own: dict[str, Any]) -> Iterator[mx.array]:
    for value in (*(items.values() if isinstance(items, dict) else items), *own.values()):
        if isinstance(value, mx.array):
            yield value
        elif isinstance(value, tuple):
            yield from _arrays(value, {})


def joined(modules: Iterable[stock.Module]) -> Following:
    """What the activations and the layers of a model share; of modules that had several, from now on one."""
    found: dict[int, Following] = {}
    rewritten = []
    for module in modules:
        each = vars(module).get("_following")
        if classes.is_rewritten(type(module)):
            rewritten.append(module)
            each = classes.owner_of(type(module)).following
        if isinstance(each, Following):
            found[id(each)] = each
    if len(found) == 1:
        (common,) = found.values()
        return common
    common = Following(any(each.folding for each in found.values()))
    for module in modules:
        if isinstance(vars(module).get("_following"), Following):
            vars(module)["_following"] = common
    for module in rewritten:
        names = classes.owner_of(type(module)).attributes
        kind: Any = classes.rewritten(classes.original(type(module)), common, names)
        module.__class__ = kind
    return common


def observed(
    op: str, model: stock.Module, paths: dict[str, stock.Module], given: Given, common: Following
) -> dict[str, str]:
    """Calls the model on an example and has activations follow the layers whose results they are given.

    Returns:
        Activations that run by themselves, and why.
    """
    modules = {id(module): (path, module) for path, module in reversed(paths.items())}
    first = {at: path for at, (path, _) in modules.items()}
    if launch.optional_module() is None:
        why = "without the C++ module nothing tells whether an array is a layer's result"
        return {path: why for path, module in paths.items() if isinstance(module, drop_in.Activation)}
    before = {at: (type(module), "_following" in vars(module)) for at, (_, module) in modules.items()}
    for _, module in modules.values():
        reads = common.folding and isinstance(module, drop_in.DropIn)
        if reads or drop_in.can_fuse(module) or drop_in.can_be_fused(module):
            vars(module)["_following"] = common
            if isinstance(module, drop_in.Fusing):  # what an earlier example showed may not hold any more
                vars(module)["_behind"] = tuple(each for each in module._behind if not isinstance(each, str))
                vars(module)["is_added_to"] = False
    told = _rewrite([module for _, module in modules.values()], first, common)
    common.watch = watch = Observation(first)
    try:
        run(op, model, given)
    finally:
        common.watch = None
        common.forget_sums()
    twice = watch.computed_twice()
    for pair in watch.pairs:
        function = functions.called(pair.behind[1]) if isinstance(pair.behind, tuple) else ""
        if id(pair.layer) not in twice:
            drop_in.name(pair.layer, function or pair.behind)
            continue
        layer = first[id(pair.layer)]
        told[_at(layer, function) if function else first[id(pair.behind)]] = (
            f"the result of {layer or 'the model'} is read besides"
        )
    good = [pair for pair in watch.pairs if id(pair.layer) not in twice]
    sums = [pair for pair in watch.sums if id(pair.layer) not in twice]
    common.folds.keep({(id(pair.layer), id(pair.behind)) for pair in good}, {id(pair.layer) for pair in sums})
    follow = {id(each) for pair in (*good, *sums) for each in (pair.layer, pair.behind)}
    follow |= watch.readers
    for pair in (*good, *sums):
        if pair.in_a_sum:
            vars(pair.layer)["is_added_to"] = True
    owners = {id(pair.behind[0]) for pair in good if isinstance(pair.behind, tuple)}
    for at, (path, module) in modules.items():
        kind, had = before[at]
        if at not in follow and not had:
            vars(module).pop("_following", None)
        rewritten = classes.is_rewritten(type(module))
        if rewritten and id(classes.owner_of(type(module))) not in owners and not _fuses_neighbours(module):
            module.__class__ = kind
        if isinstance(module, drop_in.Activation) and at not in follow and path not in told:
            told[path] = "on no layer's result" if at in watch.called else "not called on the example"
    used = {id(type(module)) for module in model.modules()}
    common.classes = {kind: made for kind, made in common.classes.items() if id(made) in used}
    return told | watch.alone()


def _rewrite(modules: list[stock.Module], paths: dict[int, str], common: Following) -> dict[str, str]:
    """Gives modules whose code may call activations classes for it. What cannot be rewritten, and why."""
    kinds: dict[Any, list[stock.Module]] = {}
    for module in modules:
        kind = classes.original(type(module))
        if not issubclass(kind, drop_in.DropIn):
            kinds.setdefault(kind, []).append(module)
    told: dict[str, str] = {}
    for kind, of in kinds.items():
        names = classes.attributes(of, common)
        made: Any = classes.rewritten(kind, common, names)
        unseen = classes.unseen(kind, names)
        for module in of:
            refused = unseen | classes.refused(module, made)
            for name, why in refused.items():
                told[_at(paths[id(module)], name)] = why
            module.__class__ = made or kind
    return told


def _fuses_neighbours(chain: stock.Module) -> bool:
    """Whether a class derived from Sequential is needed as one of ours."""
    if not isinstance(chain, drop_in.Sequential):
        return False
    return any(drop_in.fused(*pair) is not None for pair in zip(chain.layers, chain.layers[1:], strict=False))
