"""Turns the layers of an existing model into drop-ins, in place, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten

from mpsfunc.core.arguments import entries, is_a, text
from mpsfunc.core.printing import a_kind, describe
from mpsfunc.nn import activations, activations_beyond_mps, convolutions, drop_in, layers, poolings
from mpsfunc.nn.activations import LogSoftmax, PReLU, Softmax
from mpsfunc.nn.activations_beyond_mps import GLU, Softmin, Step
from mpsfunc.nn.drop_in import Activation, DropIn, Following, Fusing, Sequential
from mpsfunc.nn.layers import BatchNorm

# Each drop-in by the layer that it stands in for.
DROP_INS: dict[type, type[DropIn]] = {
    value.__mro__[value.__mro__.index(DropIn) + 1]: value
    for module in (activations, activations_beyond_mps, convolutions, drop_in, layers, poolings)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, DropIn) and issubclass(value, stock.Module)
}
_ACTIVATIONS = (Activation, GLU, LogSoftmax, PReLU, Softmax, Softmin, Step)


class Conversion(NamedTuple):
    """What `convert` did.

    Fields:
        replaced: The class of each layer that is a drop-in now, by its path in the model. Without Sequentials, which
            compute nothing themselves.
        fused: The layers that apply the activation behind them, with that activation.
        unfused: Activations that run by themselves, and why.
        left: Layers of mlx.nn that stay as they were, and why.
    """

    replaced: dict[str, str]
    fused: dict[str, str]
    unfused: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        told = [
            ("replaced", [f"{path or 'the model'} ({name})" for path, name in self.replaced.items()]),
            ("fused", [f"{path} with {activation}" for path, activation in self.fused.items()]),
            ("not fused", [f"{path or 'the model'} ({why})" for path, why in self.unfused.items()]),
            ("left", [f"{path or 'the model'} ({why})" for path, why in self.left.items()]),
        ]
        return "\n".join(f"{what}: {', '.join(each)}" for what, each in told if each)


def convert(
    model: stock.Module,
    fuse: Iterable[tuple[str, str]] = (),
    *,
    group: mx.distributed.Group | None = None,
) -> Conversion:
    """Turns the layers of mlx.nn in a model into drop-ins, in place.

    Modules stay the objects that they are, with their parameters, their states and their places in the model, shared
    ones too; only what their call runs changes. So optimizers, checkpoints and references go on. Layers of a class that
    a user derived from one of MLX's stay as they are.

    A convolution, transposed convolution, linear layer or batch, instance or group norm applies the activation behind
    it itself, where the two are neighbours in an ``mlx.nn.Sequential``, or where ``fuse`` says so; ``LayerNorm`` does
    not. Both find out in each call, so modules that are shared, called by themselves or exchanged later compute what
    they always did. Of a relu that runs so behind anything but a normalization, the slope at exactly 0 is 0, not 1.

    Args:
        model: The model, or a single layer.
        fuse: Paths of a layer and of the activation that is called on its results. Default: none.
        group: Processes of ``mx.distributed`` over whose images batch normalizations take statistics together. Default:
            as before, at first each process by itself.

    Returns:
        What was done. Print it.

    Raises:
        TypeError: model is not a module, fuse is not made of pairs of paths, or group is not a group.
        ValueError: A path of ``fuse`` does not exist, or is no such layer or activation; a layer has two activations; a
            module holds itself.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.relu, mlx.nn.RMSNorm(4))
        >>> print(convert(model))
        replaced: layers.0 (Linear)
        fused: layers.0 with layers.1
        left: layers.2 (no drop-in for RMSNorm)
    """
    if not is_a(model, stock.Module):
        raise TypeError(f"convert: model is not a module; got {a_kind(model)}, expected an mlx.nn.Module")
    if not (group is None or is_a(group, mx.distributed.Group)):
        raise TypeError(
            f"convert: not a group; got group={describe(group)}, expected None or one from mx.distributed.init()"
        )
    paths = dict(sorted(_modules("convert", model), key=_by_numbers))
    pairs = _pairs(fuse, paths)
    replaced: dict[str, str] = {}
    left: dict[str, str] = {}
    for path, module in paths.items():
        why = _why_left(module)
        if why and not (group is not None and type(module) is stock.BatchNorm):  # MLX's would know no group
            left[path] = why
        elif type(module) in DROP_INS and not isinstance(module, stock.Sequential):
            replaced[path] = type(module).__name__
    for path, module in paths.items():
        if path not in left:
            kind: Any = DROP_INS.get(type(module), type(module))
            module.__class__ = kind
        if group is not None and isinstance(module, BatchNorm):
            module.processes = group
    for path, behind in pairs.items():
        layer, activation = paths[path], paths[behind]
        assert isinstance(layer, Fusing) and isinstance(activation, Activation)
        layer._following = activation._following = activation._following or Following()
    fused, unfused, functions = _neighbours(paths)
    for path, behind in _named(paths, pairs).items():
        fused[path] = behind if fused.get(path, behind) == behind else f"{fused[path]} and {behind}"
        unfused.pop(behind, None)
    return Conversion(
        replaced, *(dict(sorted(each.items(), key=_by_numbers)) for each in (fused, unfused, left | functions))
    )


def revert(model: stock.Module) -> stock.Module:
    """Turns every drop-in of a model back into the layer of mlx.nn that it stands in for, in place.

    Args:
        model: The model, or a single layer.

    Returns:
        The model.

    Raises:
        TypeError: model is not a module.
        ValueError: A module holds itself, or a drop-in was made with an argument that MLX's layer does not have; then
            nothing is turned back.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.relu)
        >>> _ = convert(model)
        >>> type(revert(model).layers[0]) is mlx.nn.Linear, model.layers[1] is mlx.nn.relu
        (True, True)
    """
    if not is_a(model, stock.Module):
        raise TypeError(f"revert: model is not a module; got {a_kind(model)}, expected an mlx.nn.Module")
    back = {ours: theirs for theirs, ours in DROP_INS.items()}
    modules = _modules("revert", model)
    for path, module in modules:
        if isinstance(module, DropIn) and (more := module.beyond()):
            raise ValueError(
                f"revert: MLX's {type(module).__name__} has no such argument; got {describe(path)} with {more}, "
                "expected arguments of MLX's"
            )
    for _, module in modules:
        if isinstance(module, DropIn):
            for name in ("_following", "_together"):
                vars(module).pop(name, None)
            module.__class__ = back.get(type(module), type(module))
    return model


def _modules(op: str, model: stock.Module) -> list[tuple[str, stock.Module]]:
    """MLX's ``named_modules``, which does not end where a module holds itself."""
    found: list[tuple[str, stock.Module]] = []
    left: list[tuple[str, stock.Module, tuple[stock.Module, ...]]] = [("", model, ())]
    while left:
        path, module, holders = left.pop()
        found.append((path, module))
        holders = (*holders, module)
        try:
            children: Any = tree_flatten(module.children(), prefix=f".{path}" if path else "", is_leaf=module.is_module)
        except RecursionError:
            rule = "expected lists and dicts that hold neither themselves nor hundreds of others in each other"
            raise ValueError(f"{op}: a module is nested too deep; got {describe(path)}, {rule}") from None
        for at, child in children:
            if any(child is holder for holder in holders):
                raise ValueError(f"{op}: a module holds itself; got {describe(at)}, expected modules without circles")
            left.append((at, child, holders))
    return found


def _why_left(module: stock.Module) -> str:
    """Why a layer of MLX's is not replaced; empty for those that are, and for what is not MLX's or holds others."""
    kind = type(module)
    drop_in: type[DropIn] | None = type(module) if isinstance(module, DropIn) else DROP_INS.get(kind)
    if drop_in:
        return drop_in.why_left(module)
    of = next((theirs.__name__ for theirs in DROP_INS if isinstance(module, theirs)), "")
    if of:
        return f"{kind.__name__} is derived from {of}"
    theirs = kind.__module__.startswith("mlx.nn") and not module.leaf_modules()
    return f"no drop-in for {kind.__name__}" if theirs and kind is not stock.Identity else ""


def _pairs(given: Iterable[tuple[str, str]], paths: dict[str, stock.Module]) -> dict[str, str]:
    """The pairs that the user names, if both are there and of the right kinds."""
    wrong = f"convert: fuse is not made of pairs; got {describe(given)}, expected (layer, activation) as paths"
    if is_a(given, str) or is_a(given, mx.array):
        raise TypeError(wrong)
    try:
        given = list(given)
    except Exception:  # whatever asking it for entries does
        raise TypeError(wrong) from None
    pairs: dict[str, str] = {}
    for each in given:
        held = entries(each) or ()
        pair = [path for path in map(text, held) if path is not None]
        if len(held) != 2 or len(pair) != 2:
            raise TypeError(
                f"convert: fuse is not made of pairs; got {describe(each)}, expected (layer, activation) as paths"
            )
        wanted = "a layer that fuses", "an activation that can be fused"
        for path, kind, what in zip(pair, (Fusing, Activation), wanted, strict=True):
            if path not in paths:
                raise ValueError(
                    f"convert: there is no such module; got {describe(path)}, expected a path of the model"
                )
            module = paths[path]
            if not issubclass(DROP_INS.get(type(module), type(module)), kind) or _why_left(module):
                raise ValueError(f"convert: not {what}; got {describe(path)}, {a_kind(module)}, expected one")
        layer, behind = paths[pair[0]], paths[pair[1]]
        named = [paths[pairs[path]] for path in pairs if paths[path] is layer]
        following = getattr(layer, "_following", None)
        if any(each is not behind for each in named) or following not in (None, getattr(behind, "_following", None)):
            raise ValueError(
                f"convert: a layer has one activation; got {describe(pair[0])} with {describe(pair[1])}, "
                "expected the one named before"
            )
        pairs[pair[0]] = pair[1]
    return pairs


def _neighbours(
    paths: dict[str, stock.Module],
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What is fused in Sequentials, why other activations are not, and functions in them that are not known."""
    fused: dict[str, str] = {}
    left: dict[str, str] = {}
    alone = {
        path: "in no Sequential"
        for path, module in paths.items()
        if isinstance(module, _ACTIVATIONS) and not module.why_left(module)
    }
    for path, chain in paths.items():
        if not isinstance(chain, Sequential) or type(chain).__call__ is not Sequential.__call__:
            continue
        for i, behind in enumerate(chain.layers):
            here, ahead = (f"{path}.layers.{k}" if path else f"layers.{k}" for k in (i, i - 1))
            if i and drop_in.fused(chain.layers[i - 1], behind) is not None:
                fused[ahead] = here
                alone.pop(here, None)
            elif here in alone or drop_in.function(behind) is not None:
                alone[here] = f"behind {_name(chain.layers[i - 1]) if i else 'nothing'}"
            elif not isinstance(behind, stock.Module):
                left[here] = f"no drop-in for {_name(behind)}"
    return fused, alone, left


def _named(paths: dict[str, stock.Module], pairs: dict[str, str]) -> dict[str, str]:
    """The pairs that the user has named, now or earlier."""
    activations = {id(each._following): path for path, each in paths.items() if isinstance(each, Activation)}
    return {
        path: pairs.get(path, activations[id(layer._following)])
        for path, layer in paths.items()
        if isinstance(layer, Fusing) and layer._following and id(layer._following) in activations
    }


def _name(each: Any) -> str:
    return type(each).__name__ if isinstance(each, stock.Module) else getattr(each, "__name__", type(each).__name__)


def _by_numbers(entry: tuple[str, Any]) -> list[tuple[int, str]]:
    """Sorts layers.2 ahead of layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in entry[0].split(".")]
