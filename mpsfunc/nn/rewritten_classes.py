"""Subclasses of users' modules with rewritten methods, which have the name of the user's class."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import mlx.nn as stock

from mpsfunc.nn import drop_in
from mpsfunc.nn.copying import named, unnamed
from mpsfunc.nn.following import Following
from mpsfunc.nn.functions import is_known
from mpsfunc.nn.rewriting import IN_A_LIST, KINDS, Globals, Owner, codes, names_in


class _Attribute:
    """A function in an object's own dict, of which rewritten code sees what fuses and everyone else the object."""

    def __init__(self, name: str, owner: Owner) -> None:
        self._name, self._owner = name, owner

    def __set_name__(self, made: type, name: str) -> None:
        self._made = made

    def __get__(self, holder: Any, kind: type | None = None) -> Any:
        if holder is None or self._name not in vars(holder):
            return getattr(super(self._made, kind if holder is None else holder), self._name)
        value = vars(holder)[self._name]
        return self._owner.seen(value) if _is_rewritten(sys._getframe(1).f_globals) else value

    def __set__(self, holder: Any, value: Any) -> None:
        vars(holder)[self._name] = value

    def __delete__(self, holder: Any) -> None:
        if vars(holder).pop(self._name, self) is self:
            raise AttributeError(self._name)


class _Member:
    """A method or function that a class holds, rewritten for as long as it holds it."""

    def __init__(self, base: type, name: str, owner: Owner) -> None:
        self._base, self._name, self._owner = base, name, owner
        self._original = vars(base)[name]

    def __set_name__(self, holder: type, name: str) -> None:
        self._holder = holder

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        now: Any = vars(self._base).get(self._name)
        if now is not self._original:
            return getattr(super(self._holder, kind if instance is None else instance), self._name)
        of = type(now)
        if of is FunctionType:
            return self._owner.rewritten(now).__get__(instance, kind)
        if of is classmethod or (of is staticmethod and type(now.__func__) is FunctionType):
            return of(self._owner.seen(now.__func__)).__get__(instance, kind)
        value = now.__func__ if of is staticmethod else now
        return self._owner.seen(value) if _is_rewritten(sys._getframe(1).f_globals) else value


def _is_rewritten(where: Any) -> bool:
    return type(where) is Globals


def original(kind: Any) -> Any:
    """The user's class that a class was made from; of another the class."""
    return vars(kind).get("_mpsfunc_from", kind)


def owner_of(kind: Any) -> Owner:
    """What the code of a class that `is_rewritten` sees."""
    owner: Owner = vars(kind)["_mpsfunc_owner"]
    return owner


def is_rewritten(kind: Any) -> bool:
    """Whether a class was made from a user's here."""
    return "_mpsfunc_from" in vars(kind)


def own_classes(kind: type) -> Iterator[type]:
    """The classes that a module's class consists of, besides MLX's `Module`, Python's and drop-ins."""
    for base in kind.__mro__:
        if base not in (stock.Module, dict, object) and not issubclass(base, drop_in.DropIn):
            yield base


def attributes(modules: Iterable[stock.Module], following: Following) -> frozenset[str]:
    """The names by which any of the modules holds activations as functions."""
    owner = Owner(following)
    return frozenset(name for module in modules for name, value in vars(module).items() if owner.is_some(value))


def rewritten(kind: Any, following: Following, names: frozenset[str]) -> type | None:
    """A class derived from a user's, with rewritten methods, or nothing if there is nothing to rewrite.

    Args:
        kind: The user's class.
        following: What activations look into for layers' results.
        names: By which instances hold functions.
    """
    known = following.classes.get(kind)
    if known is not None and names <= owner_of(known).attributes:
        return known
    if type(kind) is not type or why_not(kind):
        return None
    owner = Owner(following, names)
    for base in own_classes(kind):
        inner = {name: getattr(value, "__func__", value) for name, value in vars(base).items()}
        owner.named |= {name for name, value in inner.items() if type(value) in KINDS and is_known(value)}
    spaces = [(base, _members(base, owner)) for base in own_classes(kind)]
    chain = kind.__call__ is stock.Sequential.__call__
    if not chain and not names and not any(members for _, members in spaces):
        return None
    bases = [kind, *(_derived((base,), base, members) for base, members in spaces[1:] if members)]
    if issubclass(kind, stock.Sequential):
        bases.append(drop_in.Sequential)
    own: dict[str, Any] = {name: _Attribute(name, owner) for name in names} | spaces[0][1]
    own |= {"_mpsfunc_from": kind, "_mpsfunc_owner": owner, "__reduce_ex__": _reduced}
    made = _derived(tuple(bases), kind, own)
    following.classes[kind] = made
    return made


def _members(base: type, owner: Owner) -> dict[str, _Member]:
    found = {}
    for name, value in vars(base).items():
        inner = value.__func__ if type(value) in (staticmethod, classmethod) else value
        if (name == "__call__" or not name.startswith("__")) and owner.is_some(inner):
            found[name] = _Member(base, name, owner)
    return found


def _derived(bases: tuple[type, ...], like: type, members: dict[str, Any]) -> type:
    """A class that looks like another; ``__init_subclass__`` of the other does not run for it."""
    quiet = type("_Quiet", (), {"__slots__": (), "__init_subclass__": classmethod(lambda cls, **how: None)})
    space = {"__module__": like.__module__, "__qualname__": like.__qualname__, "__doc__": like.__doc__, "__slots__": ()}
    return type.__new__(type, like.__name__, (quiet, *bases), space | members)


def _reduced(self: Any, protocol: Any) -> Any:
    """A copy is of a class of its own; what does not copy of MLX's is named."""
    kind: Any = type(self)
    made = super(kind, self).__reduce_ex__(protocol)
    if type(made) is not tuple:
        return made
    real = original(kind)
    factory, args, *rest = (real if each is kind else each for each in made)
    args = tuple(real if each is kind else each for each in args)
    held: dict[str, Any] = {}
    if rest and type(rest[0]) is dict:
        held = {name: made for name, value in rest[0].items() if (made := named(value)) is not value}
        rest[0] = {name: value for name, value in rest[0].items() if name not in held}
    owner = owner_of(kind)
    return _again, (owner.following, owner.attributes, held, factory, args), *rest


def _again(following: Following, names: frozenset[str], held: dict[str, Any], factory: Any, args: Any) -> Any:
    made = factory(*args)
    if isinstance(made, stock.Module):
        made.__class__ = rewritten(type(made), following, names) or type(made)
        vars(made).update({name: unnamed(value) for name, value in held.items()})
    return made


@functools.cache
def _asks_for_its_type(code: Any) -> bool:
    """Whether a method calls ``super`` with the type of its object, which would find the user's class over and over."""
    for each in codes(code):
        of_globals, others = names_in(each)
        if "super" in of_globals and ("type" in of_globals or "__class__" in others):
            return True
    return False


def why_not(kind: type) -> str:
    """Why a class cannot have a rewritten one derived from it; empty if it can."""
    if type(kind) is not type:
        return f"{kind.__name__} has a metaclass"
    for base in own_classes(kind):
        for value in vars(base).values():
            if type(value) is FunctionType and _asks_for_its_type(value.__code__):
                return f"{value.__qualname__} calls super with type(self)"
    return ""


def unseen(kind: type, names: frozenset[str]) -> dict[str, str]:
    """Where the code of a class finds activations that stay MLX's, by name, and why.

    Args:
        kind: The user's class.
        names: By which instances hold functions.
    """
    probe = Owner(Following(), names)
    some = [_members(base, probe) for base in own_classes(kind)]
    why = why_not(kind)
    refused = {"": why} if why and (names or any(some)) else {}
    return probe.refused | probe.unseen | refused


def refused(module: stock.Module, made: type | None) -> dict[str, str]:
    """What a module itself holds of activations that its code may call and that stay MLX's, by name, and why."""
    told: dict[str, str] = dict(owner_of(made).refused) if made else {}
    probe, kind = Owner(Following()), original(type(module))
    compiled = {name: value for base in own_classes(kind) for name, value in vars(base).items()} | vars(module)
    for name, value in compiled.items():
        if type(value) is type(stock.relu) and not is_known(value):
            told[name] = "compiled before the conversion"
    for name, held in (*module.items(), *vars(module).items()):
        values = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, (list, tuple)) else ()
        for at, value in (
            values if not isinstance(module, stock.Sequential) and not isinstance(held, stock.Module) else ()
        ):
            if type(value) in KINDS and is_known(value):
                told[f"item {at} of {name}"] = IN_A_LIST
        if not values and (why := probe.why_unseen(held)):
            told[name] = why
    return told
