"""Turns the layers of an existing model into drop-ins, in place, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as stock

from mpsfunc.nn import activations, layers
from mpsfunc.nn.activations import FUNCTIONS, Activation, DropIn, Fused
from mpsfunc.nn.layers import BatchNorm, Fusing

# Each drop-in by the layer that it stands in for.
DROP_INS: dict[type, type[DropIn]] = {
    value.__mro__[value.__mro__.index(DropIn) + 1]: value
    for module in (activations, layers)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, DropIn) and issubclass(value, stock.Module)
}


class Passed:
    """Stands in a Sequential where a function was that the layer ahead of it applies now."""

    def __init__(self, function: Callable[[mx.array], mx.array]) -> None:
        self.function = function

    def __call__(self, x: mx.array) -> mx.array:
        return x

    def __repr__(self) -> str:
        return f"Passed({getattr(self.function, '__name__', self.function)})"


class Conversion(NamedTuple):
    """What `convert` did.

    Fields:
        replaced: The class of each layer that is a drop-in now, by its path in the model.
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
            ("replaced", [f"{path} ({name})" for path, name in self.replaced.items()]),
            ("fused", [f"{path} with {activation}" for path, activation in self.fused.items()]),
            ("not fused", [f"{path} ({why})" for path, why in self.unfused.items()]),
            ("left", [f"{path} ({why})" for path, why in self.left.items()]),
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

    A convolution, transposed convolution, linear layer or batch normalization applies the activation behind it itself,
    where the two are neighbours in an ``mlx.nn.Sequential``, or where ``fuse`` says so. The activation then passes on
    what it gets. Neither may be used anywhere else in the model.

    Args:
        model: The model, or a single layer.
        fuse: Paths of a layer and of the activation that always comes right behind it. Default: none.
        group: Processes of ``mx.distributed`` over whose images batch normalizations take statistics together. Default:
            each process by itself.

    Returns:
        What was done. Print it.

    Raises:
        TypeError: model is not a module, or fuse is not made of pairs of paths.
        ValueError: A path of ``fuse`` does not exist, is no such layer or activation, or is used elsewhere.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.relu, mlx.nn.LayerNorm(4))
        >>> print(convert(model))
        replaced: layers.0 (Linear)
        fused: layers.0 with layers.1
        left: layers.2 (no drop-in for LayerNorm)
    """
    if not isinstance(model, stock.Module):
        raise TypeError(f"convert: model is not a module; got a {type(model).__name__}, expected an mlx.nn.Module")
    paths = dict(model.named_modules())
    uses = Counter(id(module) for _, module in model.named_modules())
    pairs = [_pair(each, paths, uses) for each in fuse]
    replaced: dict[str, str] = {}
    left: dict[str, str] = {}
    for path, module in sorted(paths.items()):
        why = _why_left(module)
        if why:
            left[path] = why
        elif type(module) in DROP_INS:
            replaced[path] = type(module).__name__
    for path in replaced:
        paths[path].__class__ = DROP_INS.get(type(paths[path]), type(paths[path]))
    for module in paths.values():
        if isinstance(module, BatchNorm):
            module.group = group

    fused: dict[str, str] = {}
    for path, behind in pairs:
        _fuse(paths[path], paths[behind])
        fused[path] = behind
    for path, module in sorted(paths.items()):
        if type(module) is stock.Sequential:
            fused |= _fuse_neighbours(path, module, uses)
    unfused = {
        path: "shared" if uses[id(module)] > 1 else "no layer right ahead of it in a Sequential"
        for path, module in sorted(paths.items())
        if isinstance(module, Activation) and not module.passes
    }
    return Conversion(replaced, fused, unfused, left)


def revert(model: stock.Module) -> stock.Module:
    """Turns every drop-in of a model back into the layer of mlx.nn that it stands in for, in place.

    Args:
        model: The model, or a single layer.

    Returns:
        The model.

    Raises:
        TypeError: model is not a module.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.relu)
        >>> _ = convert(model)
        >>> type(revert(model).layers[0]) is mlx.nn.Linear, model.layers[1] is mlx.nn.relu
        (True, True)
    """
    if not isinstance(model, stock.Module):
        raise TypeError(f"revert: model is not a module; got a {type(model).__name__}, expected an mlx.nn.Module")
    back = {ours: theirs for theirs, ours in DROP_INS.items()}
    for _, module in model.named_modules():
        if type(module) in back:
            for name in ("fused", "passes", "group"):
                module.__dict__.pop(name, None)
            module.__class__ = back[type(module)]
        elif type(module) is stock.Sequential:
            module.layers = [each.function if isinstance(each, Passed) else each for each in module.layers]
    return model


def _why_left(module: stock.Module) -> str:
    """Why a layer of MLX's is not replaced; empty for those that are, and for what is not MLX's or holds others."""
    kind = type(module)
    if kind in DROP_INS:
        return DROP_INS[kind].why_not(module)
    if isinstance(module, DropIn):
        return ""
    of = next((theirs.__name__ for theirs in DROP_INS if isinstance(module, theirs)), "")
    if of:
        return f"{kind.__name__} is derived from {of}"
    theirs = kind.__module__.startswith("mlx.nn") and not module.leaf_modules()
    holds = kind in (stock.Sequential, stock.Identity)
    return f"no drop-in for {kind.__name__}" if theirs and not holds else ""


def _pair(given: Any, paths: dict[str, stock.Module], uses: Counter[int]) -> tuple[str, str]:
    """A pair that the user names, if both are there, of the right kinds and used once."""
    if not (isinstance(given, (list, tuple)) and len(given) == 2 and all(isinstance(path, str) for path in given)):
        raise TypeError(f"convert: fuse is not made of pairs; got {given!r}, expected (layer, activation) as paths")
    for path, kind, what in zip(given, (Fusing, Activation), ("layer that fuses", "activation"), strict=True):
        if path not in paths:
            raise ValueError(f"convert: there is no such module; got {path!r}, expected a path of the model")
        module = paths[path]
        ours = DROP_INS.get(type(module), type(module))
        if not issubclass(ours, kind) or _why_left(module):
            raise ValueError(f"convert: not a {what}; got {path!r}, a {type(module).__name__}, expected one")
        if uses[id(module)] > 1:
            raise ValueError(f"convert: a module is used more than once; got {path!r}, expected one use")
    return given[0], given[1]


def _fuse(layer: stock.Module, activation: stock.Module) -> None:
    assert isinstance(layer, Fusing) and isinstance(activation, Activation)
    layer.fused, activation.passes = Fused(activation.neuron), True


def _fuse_neighbours(path: str, chain: stock.Sequential, uses: Counter[int]) -> dict[str, str]:
    """Fuses what stands side by side, and returns the paths."""
    fused, ahead = {}, f"{path}.layers." if path else "layers."
    for i, (layer, behind) in enumerate(zip(chain.layers, chain.layers[1:], strict=False)):
        if not isinstance(layer, Fusing) or layer.neuron is not None or uses[id(layer)] > 1 or uses[id(chain)] > 1:
            continue
        if isinstance(behind, Activation) and not behind.passes and uses[id(behind)] == 1:
            _fuse(layer, behind)
        elif not isinstance(behind, stock.Module) and _known(behind):
            layer.fused, chain.layers[i + 1] = Fused(FUNCTIONS[behind]), Passed(behind)
        else:
            continue
        fused[f"{ahead}{i}"] = f"{ahead}{i + 1}"
    return fused


def _known(function: Any) -> bool:
    try:
        return function in FUNCTIONS
    except TypeError:  # not hashable
        return False
