"""Turns the layers of an existing model into drop-ins, in place, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten

from mpsfunc.core import checks
from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import a_kind, describe
from mpsfunc.nn import (
    activations,
    activations_beyond_mps,
    convolutions,
    drop_in,
    layers,
    laying_out,
    naming,
    observing,
    poolings,
    rewritten_classes,
)
from mpsfunc.nn.activations import LogSoftmax, PReLU, Softmax
from mpsfunc.nn.activations_beyond_mps import GLU, Softmin, Step
from mpsfunc.nn.drop_in import Activation, DropIn, Fusing, Sequential
from mpsfunc.nn.following import Following
from mpsfunc.nn.functions import function
from mpsfunc.nn.layers import BatchNorm
from mpsfunc.nn.report import IN_NO_SEQUENTIAL, NOT_FOLDED, NOT_FOLDED_HERE, Conversion

# Each drop-in by the layer that it stands in for.
DROP_INS: dict[type, type[DropIn]] = {
    value.__mro__[value.__mro__.index(DropIn) + 1]: value
    for module in (activations, activations_beyond_mps, convolutions, drop_in, layers, poolings)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, DropIn) and issubclass(value, stock.Module)
}
_ACTIVATIONS = (Activation, GLU, LogSoftmax, PReLU, Softmax, Softmin, Step)


def convert(
    model: stock.Module,
    fuse: Iterable[tuple[str, str] | str] = (),
    *,
    example: mx.array | Sequence[object] | Mapping[str, object] | None = None,
    inference: bool = False,
    group: mx.distributed.Group | None = None,
) -> Conversion:
    """Turns the layers of mlx.nn in a model into drop-ins, in place.

    Modules stay the same objects, with their parameters, states and places in the model; only what a call of them runs
    changes. So optimizers, checkpoints and references keep working, and modules may be shared. Layers of a class that
    you derived from one of MLX's are not changed.

    Convolutions, transposed convolutions, linear layers, and batch, instance and group norms apply the activation that
    follows them in the same pass (``LayerNorm`` does not). In an ``mlx.nn.Sequential`` that is the next layer.
    Elsewhere ``example`` shows which activation follows, or ``fuse`` names it. Each call checks that the activation's
    argument is the array that the layer returned; if not, both run separately. A fused relu has a slope of 0 at exactly
    0, except after a normalization without a shortcut, where it is 1.

    With an example the model runs once, in evaluation mode. Afterwards its parameters, statistics and modes, and MLX's
    random state, are unchanged. Activations are found if they are modules, or if the code of the model's own classes
    calls them: functions of ``mlx.nn``, ``mx.sigmoid``, ``mx.tanh``, and ``mx.maximum`` of an array and 0. They may be
    called by name, as an attribute of a module, from a closure, in a lambda or ``functools.partial``, and in functions
    that this code calls. If a shortcut of the same shape and dtype is added between a batch normalization and its
    activation, the normalization adds it in the same pass.

    A module whose code calls such functions gets a subclass of its class, with the same name and the same code; in it
    the names of activations mean functions that can be fused. ``isinstance(block, Block)`` still holds,
    ``type(block) is Block`` does not, until `revert`. MLX and other code are not changed, and ``copy.deepcopy`` and
    ``pickle`` work. Functions in lists and dicts, in methods compiled before the conversion, in objects that are not
    modules, or imported while the code runs, are not fused; the report names them.

    For inference, batch normalizations are folded into the weights of the convolutions, transposed convolutions and
    linear layers before them, if they are neighbours in a Sequential or the example shows that one follows the other.
    This takes effect in evaluation mode, which `convert` does not switch on. Parameters do not change: each layer keeps
    folded weights in addition (in float32 if float16 could not represent them), and each call folds again if the
    layer's arrays have changed. On a CPU the weights of all convolutions and linear layers are also kept in the layout
    that the kernels read. With an example such layers also add a shortcut to their results if another layer reads the
    sum, and a vector that multiplies the results before that is folded in. Without the C++ module weights are folded in
    each call.

    Args:
        model: The model, or a single layer.
        fuse: Pairs of paths, of a layer and of the activation that is called on its results; or patterns such as
            ``"*.conv1 -> *.relu"``. Wildcards are those of ``fnmatch``, and match the same text on both sides (unless
            one side has none). Default: none.
        example: What the model is called with: an array; a tuple or list of ints, the shape of a float32 image of
            random numbers; any other tuple or list, the model's arguments; or a dict of arguments by name. Default: the
            model is not called.
        inference: Whether to fold batch normalizations and to rearrange weights. It also holds for later conversions,
            until `revert`. Default: False.
        group: Processes of ``mx.distributed`` that share the statistics of batch normalizations. Default: unchanged; in
            a new model each process has its own statistics.

    Returns:
        A report of what was done. Print it.

    Raises:
        TypeError: model is not a module, fuse contains something other than pairs and patterns, example cannot be one,
            inference is not a bool, or group is not a group.
        ValueError: A path of ``fuse`` does not exist, or is not such a layer or activation; a pattern is not one, or
            matches nothing; a module contains itself; or the call with the example raises an error, which is then the
            cause of this one. The model is then unchanged.

    Example:
        >>> import mlx.nn
        >>> model = mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.relu, mlx.nn.RMSNorm(4))
        >>> print(convert(model))
        2 layers: 1 replaced, 1 fused; left: 1 RMSNorm
          replaced   1 Linear
          fused      1 Linear with relu
          left       1 RMSNorm (no drop-in): layers.2
    """
    op = "convert"
    if not is_a(model, stock.Module):
        raise TypeError(f"{op}: model is not a module; got {a_kind(model)}, expected an mlx.nn.Module")
    if not (group is None or is_a(group, mx.distributed.Group)):
        raise TypeError(
            f"{op}: not a group; got group={describe(group)}, expected None or one from mx.distributed.init()"
        )
    checks.switch(op, "inference", inference)
    given = None if example is None else observing.arguments(op, example)
    paths = dict(sorted(_modules(op, model), key=_by_numbers))
    pairs = naming.pairs(fuse, paths, _becomes(Fusing), _becomes(Activation))
    common: Following | None = None
    was: dict[str, Any] = {}
    before = [(module, type(module), dict(vars(module))) for module in paths.values()]
    kinds = {path: type(module) for path, module in paths.items() if not isinstance(module, stock.Sequential)}
    try:
        replaced, left = _replaced(paths, group)
        told: dict[str, str] = {}
        if pairs or given is not None or inference:
            common = observing.joined(paths.values())
            was = {"folding": common.folding, "classes": dict(common.classes)}
            common.folding |= inference
            for path, behind in pairs:
                for each in (paths[path], paths[behind]):
                    vars(each)["_following"] = common
                drop_in.name(paths[path], paths[behind])
            for chain in paths.values() if common.folding else ():
                if isinstance(chain, Sequential):
                    vars(chain)["_following"] = common
            if given is not None:
                told = observing.observed(op, model, paths, given, common)
        left = {path: why for path, why in left.items() if not isinstance(paths[path], Sequential)}
        fused, unfused, functions = _neighbours(paths, told, given is not None)
        for path, behinds in _named(paths).items():
            behinds = [behind for behind in behinds if behind != fused.get(path)]
            fused[path] = " and ".join([*([fused[path]] if path in fused else []), *behinds])
            for behind in behinds:
                if behind in paths:
                    unfused.pop(behind, None)
        folded = set(fused.values())
        alone = NOT_FOLDED if given is None else NOT_FOLDED_HERE
        for path, module in paths.items():
            if inference and isinstance(module, BatchNorm) and path not in folded:
                unfused.setdefault(path, alone)
    except BaseException:
        if common is not None:
            vars(common).update(was)
        for module, kind, own in before:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(own)
        raise
    if common is not None and common.folding:
        _laid_out(paths.values(), common)
    held = [vars(module).get("_following") for module in paths.values()]
    kept = sum({id(one): one.folds.nbytes for one in held if isinstance(one, Following)}.values())
    kept += sum({id(each): each.nbytes for each in map(_layouts, paths.values()) if each is not None}.values())
    fused, unfused, left = (dict(sorted(each.items(), key=_by_numbers)) for each in (fused, unfused, left | functions))
    ran, already = given is not None, sum(issubclass(kind, DropIn) and path not in left for path, kind in kinds.items())
    return Conversion(
        replaced, fused, unfused, left, classes=_classes(paths), example=ran, before=already, kept_twice=kept
    )


def revert(model: stock.Module) -> stock.Module:
    """Turns every drop-in of a model back into the layer of mlx.nn that it replaces, in place.

    Args:
        model: The model, or a single layer.

    Returns:
        The model.

    Raises:
        TypeError: model is not a module.
        ValueError: A module contains itself, or a drop-in was made with an argument that MLX's layer does not have;
            then nothing is changed.

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
        kind: Any = rewritten_classes.original(type(module))
        for name in (
            ("_following", "_together", "is_added_to", "_behind", "_layouts") if isinstance(module, DropIn) else ()
        ):
            vars(module).pop(name, None)
        module.__class__ = kind
        if isinstance(module, DropIn):
            own: Any = back.get(kind, kind)
            module.__class__ = own
    return model


def _modules(op: str, model: stock.Module) -> list[tuple[str, stock.Module]]:
    """MLX's ``named_modules``, which does not end where a module contains itself."""
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
                raise ValueError(
                    f"{op}: a module contains itself; got {describe(at)}, expected modules without circles"
                )
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


def _becomes(kind: type[DropIn]) -> naming.Fits:
    """Whether a module's drop-in is of such a kind."""

    def fits(module: stock.Module) -> bool:
        return issubclass(DROP_INS.get(type(module), type(module)), kind) and not _why_left(module)

    return fits


def _replaced(
    paths: dict[str, stock.Module], group: mx.distributed.Group | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Gives layers their drop-ins' classes. Which those are, and which stay and why."""
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
    return replaced, left


def _laid_out(modules: Iterable[stock.Module], common: Following) -> None:
    """Lets layers behind which nothing is folded keep their weights as a CPU's kernels read them."""
    folded = common.folds.layers()
    for module in modules:
        if not laying_out.can_be(module):
            continue
        if id(module) in folded:
            vars(module).pop("_layouts", None)
            continue
        own = vars(module).setdefault("_layouts", laying_out.Own())
        own.of_layer(module, module["weight"].dtype)


def _layouts(module: stock.Module) -> laying_out.Own | None:
    own = vars(module).get("_layouts")
    return own if isinstance(own, laying_out.Own) else None


def _neighbours(
    paths: dict[str, stock.Module], told: dict[str, str], has_example: bool
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What is fused in Sequentials, why other activations are not, and functions in them that are not known."""
    fused: dict[str, str] = {}
    left: dict[str, str] = {}
    alone = {}
    for path, module in paths.items():
        if isinstance(module, _ACTIVATIONS) and not module.why_left(module):
            why = f"no layer applies {_name(module)}" if has_example else IN_NO_SEQUENTIAL
            alone[path] = told.get(path, why)
    for path, chain in paths.items():
        if not isinstance(chain, Sequential) or type(chain).__call__ is not Sequential.__call__:
            continue
        for i, behind in enumerate(chain.layers):
            here, ahead = (f"{path}.layers.{k}" if path else f"layers.{k}" for k in (i, i - 1))
            if i and chain._following is not None and drop_in.can_fold(chain.layers[i - 1], behind):
                fused[ahead] = here
                layer = chain.layers[i - 1]
                chain._following.folds.weights(layer, behind, layer.weight.dtype)
            elif i and drop_in.fused(chain.layers[i - 1], behind) is not None:
                fused[ahead] = here
                alone.pop(here, None)
            elif here in alone or function(behind) is not None:
                alone[here] = f"after {_name(chain.layers[i - 1]) if i else 'nothing'}"
            elif not isinstance(behind, stock.Module):
                left[here] = f"no drop-in for {_name(behind)}"
    alone |= {path: why for path, why in told.items() if not isinstance(paths.get(path), _ACTIVATIONS)}
    return fused, alone, left


def _named(paths: dict[str, stock.Module]) -> dict[str, list[str]]:
    """The activations that the user has named, or an example has shown, now or earlier, by the paths of layers."""
    first = {id(module): path for path, module in reversed(paths.items())}
    found: dict[str, list[str]] = {}
    for path, layer in paths.items():
        follows = isinstance(layer, Fusing) and layer._following is not None
        known = (
            [behind if isinstance(behind, str) else first.get(id(behind)) for behind in layer._behind]
            if follows
            else []
        )
        told = [behind for behind in known if behind is not None]
        if told or (follows and layer.is_added_to):
            found[path] = [*(["a shortcut"] if layer.is_added_to else []), *told]
    return found


def _classes(paths: dict[str, stock.Module]) -> dict[str, str]:
    """The class of every module by its path, and the names of functions in Sequentials."""
    found = {path: _name(module) for path, module in paths.items()}
    for path, chain in paths.items():
        for i, each in enumerate(chain.layers if isinstance(chain, stock.Sequential) else ()):
            found.setdefault(f"{path}.layers.{i}" if path else f"layers.{i}", _name(each))
    return found


def _name(each: Any) -> str:
    return type(each).__name__ if isinstance(each, stock.Module) else getattr(each, "__name__", type(each).__name__)


def _by_numbers(entry: tuple[str, Any]) -> list[tuple[int, str]]:
    """Sorts layers.2 ahead of layers.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in entry[0].split(".")]
