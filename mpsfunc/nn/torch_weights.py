"""Weights of PyTorch in the layouts and under the names of a model of mlx.nn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten

from mpsfunc.core import checks
from mpsfunc.core.arguments import is_a, text, whole
from mpsfunc.core.numpy_later import np
from mpsfunc.core.printing import a_kind, describe
from mpsfunc.nn.torch_layers import CONVOLUTION, LINEAR, OWN, TRANSPOSED, VECTOR, Layer, of_arrays, of_module, suspects

_SHOWN = 3  # names in an error


def from_torch(
    state_dict: Mapping[str, object],
    model: stock.Module | None = None,
    *,
    flattened: Mapping[str, int | None] | None = None,
    unflattened: Mapping[str, int | None] | None = None,
    transposed: Mapping[str, int] | None = None,
    strict: bool = True,
) -> list[tuple[str, mx.array]]:
    """The weights of a PyTorch checkpoint, with channels last.

    PyTorch's weights of convolutions, (o, i / groups, ...), become (o, ..., i / groups), and so do those of transposed
    convolutions, (i, o / groups, ...). Vectors, running statistics and weights of linear layers stay as they are;
    ``num_batches_tracked``, which MLX does not have, is left out. Dtypes are kept. PyTorch is not imported.

    With a model, its layers say what each array is; arrays get the model's names (in MLX the layers of a Sequential are
    in ``layers``), and must have the shapes of its parameters. The result is what ``model.load_weights`` takes. The
    model is not changed.

    PyTorch flattens images as (c, h, w), MLX as (h, w, c). So a linear layer that reads a flattened image needs its
    columns in another order, and one whose result is reshaped to an image needs its rows in another order. The arrays
    do not show which layers do this: name them in ``flattened`` and ``unflattened`` with the channels of the image. A
    linear layer must be named unless its number of features is the one that the layer before it returns, or that the
    convolution after it reads. It is assumed that layers are called in the order of the model or, without one, of
    ``state_dict``, and that the results of the last linear layers, with no convolution after them, are features.

    Args:
        state_dict: Arrays by name: PyTorch's tensors, as ``state_dict()`` returns them, NumPy's arrays, or MLX's, as
            ``mx.load`` returns them.
        model: The model that they are for. Default: none.
        flattened: For each linear layer (or normalization) that reads a flattened image, by its name in PyTorch, the
            channels of that image; None if it reads no image, or one that is flattened as in PyTorch. Names may have
            the wildcards of ``fnmatch``. Default: no layer is named.
        unflattened: The same for linear layers (and normalizations of their results) whose results become images.
        transposed: Without a model: the groups of each transposed convolution by its name, ``{}`` if there is none.
            Default: the model says it.
        strict: Whether the checkpoint and the model must have the same names. False leaves out what one of them lacks,
            such as a head for other classes; then call ``model.load_weights(..., strict=False)``. Default True.

    Returns:
        Names and arrays, which are evaluated; in the order of the model, if there is one.

    Raises:
        TypeError: state_dict is not a mapping of names to arrays, model is not a module, one of the next three is not
            a mapping of names to ints, or strict is not a bool.
        ValueError: Names or shapes do not fit the model; a layer may read or return a flattened image but is not named;
            a name in the arguments is not that of such a layer, or its channels or groups do not divide its sizes;
            without a model, weights may be those of transposed convolutions but ``transposed`` is not given; or a
            parameter of your own has several axes of equal length, so the order of its axes is ambiguous.

    Example:
        >>> import mlx.nn
        >>> import numpy as np
        >>> model = mlx.nn.Sequential(
        ...     mlx.nn.Conv2d(3, 8, 5),
        ...     mlx.nn.ReLU(),
        ...     lambda x: x.flatten(1),
        ...     mlx.nn.Linear(32, 4),
        ... )
        >>> state_dict = {"0.weight": np.zeros((8, 3, 5, 5)), "0.bias": np.zeros(8)}
        >>> state_dict |= {"3.weight": np.zeros((4, 32)), "3.bias": np.zeros(4)}
        >>> weights = from_torch(state_dict, model, flattened={"3": 8})
        >>> [(name, a.shape) for name, a in weights if a.ndim > 1]
        [('layers.0.weight', (8, 5, 5, 3)), ('layers.3.weight', (4, 32))]
        >>> _ = model.load_weights(weights)
    """
    op = "from_torch"
    arrays = _arrays(op, state_dict)
    if not (model is None or is_a(model, stock.Module)):
        raise TypeError(f"{op}: model is not a module; got {a_kind(model)}, expected an mlx.nn.Module")
    checks.switch(op, "strict", strict)
    reads, makes = _named(op, "flattened", flattened), _named(op, "unflattened", unflattened)
    turned = _named(op, "transposed", transposed)
    if model is None:
        layers, paths = _alone(op, arrays, turned if transposed is not None else None), {name: name for name in arrays}
    else:
        if transposed is not None:
            raise ValueError(f"{op}: the model says it; got transposed={describe(transposed)}, expected None")
        layers, paths = _of_model(op, arrays, model, strict)
    read, made = _resolved(op, "flattened", reads, layers), _resolved(op, "unflattened", makes, layers)
    found = {name: a for layer in layers for name, a in _converted(op, layer, read, made)}
    if model is not None:
        flat: Any = tree_flatten(model.parameters())
        _check_shapes(op, found, dict(flat), paths, layers)
    _refuse_suspects(op, layers, read, made)
    weights = [(path, mx.contiguous(found[name], stream=mx.cpu)) for name, path in paths.items() if name in found]
    mx.eval([a for _, a in weights])
    return weights


# What is given -------------------------------------------------------------------------------------------------


def _arrays(op: str, state_dict: object) -> dict[str, mx.array]:
    """The arrays of a checkpoint, as MLX's, by name."""
    given = _items(state_dict)
    if given is None:
        raise TypeError(f"{op}: state_dict is not one; got {a_kind(state_dict)}, expected a mapping of names to arrays")
    found: dict[str, mx.array] = {}
    for key, value in given:
        name = text(key)
        if name is None:
            raise TypeError(f"{op}: a name is none; got {describe(key)}, expected a string")
        if name.rpartition(".")[2] != "num_batches_tracked":
            found[name] = _array(op, name, value)
    return found


def _items(value: Any) -> list[tuple[object, object]] | None:
    """The entries of a mapping; None of anything else."""
    try:
        if issubclass(type(value), dict):
            return list(dict.items(value))
        return list(value.items()) if issubclass(type(value), Mapping) else None
    except Exception:  # whatever a mapping of somebody else does
        return None


def _array(op: str, name: str, value: object) -> mx.array:
    """A tensor, or an array of NumPy or MLX, in its own dtype."""
    try:
        if is_a(value, mx.array):
            return value
        narrow = False
        if not is_a(value, np.ndarray) and callable(getattr(type(value), "detach", None)):
            tensor = value.detach().cpu()  # type: ignore[attr-defined]  # of PyTorch's tensors
            narrow = str(tensor.dtype) == "torch.bfloat16"  # which NumPy does not have
            value = (tensor.float() if narrow else tensor).numpy()
        if is_a(value, np.ndarray):
            dtype = mx.bfloat16 if narrow else mx.float64 if value.dtype == np.float64 else None
            return mx.array(np.ascontiguousarray(value).reshape(value.shape), dtype)
    except Exception as error:  # whatever a tensor of somebody else does, and dtypes that NumPy or MLX lack
        raise TypeError(f"{op}: cannot be read; got {describe(name)}, {a_kind(value)}, expected an array") from error
    raise TypeError(
        f"{op}: not an array; got {describe(name)}, {a_kind(value)}, expected a tensor or an array, as in a state_dict"
    )


def _named(op: str, argument: str, given: object) -> dict[str, int | None]:
    """The numbers of a mapping by layers; None may stand for one but in "transposed"."""
    rule = f"names of layers with ints > 0{'' if argument == 'transposed' else ' or None'}"
    if given is None:
        return {}
    pairs = _items(given)
    if pairs is None:
        raise TypeError(f"{op}: not a mapping; got {argument}={describe(given)}, expected {rule}")
    found: dict[str, int | None] = {}
    for key, value in pairs:
        name, number = text(key), whole(value)
        if name is None or (number is None and (value is not None or argument == "transposed")):
            raise TypeError(f"{op}: not a layer with a number; got {argument}={describe(given)}, expected {rule}")
        if number is not None and number < 1:
            raise ValueError(f"{op}: not a number of channels; got {argument}={describe(given)}, expected {rule}")
        found[name] = number
    return found


# Layers ----------------------------------------------------------------------------------------------------------


def _grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of arrays by those of layers."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def _own(name: str) -> str:
    return name.rpartition(".")[2]


def _alone(op: str, arrays: dict[str, mx.array], transposed: dict[str, int | None] | None) -> list[Layer]:
    """The layers of a checkpoint without a model."""
    convolutions = [name for name, a in arrays.items() if _own(name) == "weight" and 3 <= a.ndim <= 5]
    if transposed is None and convolutions:
        raise ValueError(
            f"{op}: which convolutions are transposed is not known; got {_shown(convolutions)}, expected a model, or "
            "transposed= with the groups of each, {} for none"
        )
    named = transposed or {}
    groups: dict[str, int] = {}
    for pattern, number in named.items():
        matched = [name for name in convolutions if fnmatchcase(name.removesuffix("weight").rstrip("."), pattern)]
        if not matched:
            raise ValueError(f"{op}: there is no such convolution; got {describe(pattern)}, expected a layer's name")
        for name in matched:
            if number is None or arrays[name].shape[0] % number:
                raise ValueError(
                    f"{op}: groups do not divide the channels; got {describe(name)} with groups={describe(number)}, "
                    f"expected a divisor of {arrays[name].shape[0]}"
                )
            groups.setdefault(name.rpartition(".")[0], number)
    layers = []
    for name, inside in _grouped(arrays).items():
        own = {_own(each): arrays[each] for each in inside}
        layer = of_arrays(name, own, groups.get(name))
        if layer.kind == CONVOLUTION and "bias" in own and own["bias"].ndim > 1:
            raise ValueError(
                f"{op}: not a convolution; got {describe(name)} and a bias with {describe(own['bias'])}, expected it "
                "left out, and given its order by hand"
            )
        layers.append(layer)
    return layers


def _of_model(
    op: str, arrays: dict[str, mx.array], model: stock.Module, strict: bool
) -> tuple[list[Layer], dict[str, str]]:
    """The layers of a model that a checkpoint has, in the model's order, and its paths by PyTorch's names."""
    modules = dict(model.named_modules())
    chains = {path for path, module in modules.items() if isinstance(module, stock.Sequential)}

    def theirs(path: str) -> str:
        """PyTorch's Sequential has its layers in itself."""
        parts = path.split(".")
        skipped = {i for i, part in enumerate(parts) if part == "layers" and ".".join(parts[:i]) in chains}
        return ".".join(part for i, part in enumerate(parts) if i not in skipped)

    flat: Any = tree_flatten(model.parameters())
    paths = {theirs(path): path for path, _ in flat}
    more, missing = [name for name in arrays if name not in paths], [name for name in paths if name not in arrays]
    if strict and (more or missing):
        said = [f"{_shown(more)}, which it lacks"] if more else []
        said += [f"nothing for {_shown(missing)}"] if missing else []
        raise ValueError(f"{op}: names do not fit the model; got {_and(said)}, expected the names of its parameters")
    by_name = {theirs(path): module for path, module in modules.items()}
    layers = [
        of_module(name, by_name.get(name), {_own(each): arrays[each] for each in inside})
        for name, inside in _grouped(name for name in paths if name in arrays).items()
    ]
    return layers, paths


def _resolved(op: str, argument: str, named: dict[str, int | None], layers: Iterable[Layer]) -> dict[str, int | None]:
    """The numbers of ``named`` by layers, whose names its patterns match; the first that does counts."""
    found: dict[str, int | None] = {}
    for pattern, channels in named.items():
        matched = [each for each in layers if each.kind in (LINEAR, VECTOR) and fnmatchcase(each.name, pattern)]
        if not matched:
            raise ValueError(
                f"{op}: there is no such linear layer or normalization; got {argument}={describe(named)}, expected "
                f"names of the state_dict instead of {describe(pattern)}"
            )
        for layer in matched:
            by_columns = layer.kind == LINEAR and argument == "flattened"
            size = layer.arrays["weight"].shape[1] if by_columns else layer.out
            if channels is not None and size % channels:
                raise ValueError(
                    f"{op}: channels do not divide the features; got {argument}={describe(named)}, expected a divisor "
                    f"of {size} for {describe(layer.name)}"
                )
            found.setdefault(layer.name, channels)
    return found


def _refuse_suspects(
    op: str, layers: Iterable[Layer], read: dict[str, int | None], made: dict[str, int | None]
) -> None:
    reading, making = suspects(layers, read, made)
    for argument, verb, found, told in (("flattened", "read", reading, read), ("unflattened", "make", making, made)):
        left = {name: size for name, size in found.items() if name not in told}
        if left:
            said = [f"{describe(name)} of {size} features" for name, size in left.items()]
            shown = _and(said[:_SHOWN] + [f"{len(said) - _SHOWN} more"] * (len(said) > _SHOWN))
            raise ValueError(
                f"{op}: layers may {verb} flattened images; got {shown}, expected them in {argument}= with the "
                "channels of the image, or None for features of no image"
            )


# Arrays ----------------------------------------------------------------------------------------------------------


def _converted(
    op: str, layer: Layer, read: dict[str, int | None], made: dict[str, int | None]
) -> Iterator[tuple[str, mx.array]]:
    """The arrays of a layer by PyTorch's names, with channels last."""
    columns, rows = read.get(layer.name), made.get(layer.name)
    for own, a in layer.arrays.items():
        if own == "weight" and layer.kind in (CONVOLUTION, TRANSPOSED):
            a = _channels_last(a, layer.groups if layer.kind == TRANSPOSED else 0)
        elif layer.kind == LINEAR and own in ("weight", "bias"):
            a = _pixels_first(a, 1, columns) if own == "weight" else a
            a = _pixels_first(a, 0, rows)
        elif layer.kind == VECTOR and a.size == layer.out:
            a = _pixels_first(a, 0, columns or rows)
        yield (f"{layer.name}.{own}" if layer.name else own), a


def _channels_last(a: mx.array, groups: int) -> mx.array:
    """(o, i / groups, ...) as (o, ..., i / groups), and with groups also (i, o / groups, ...) as that."""
    pixels = range(2, a.ndim)
    if not groups:
        return mx.transpose(a, (0, *pixels, 1), stream=mx.cpu)
    inside, outside, *size = a.shape
    a = mx.reshape(a, (groups, inside // groups, outside, *size), stream=mx.cpu)
    a = mx.transpose(a, (0, 2, *(axis + 1 for axis in pixels), 1), stream=mx.cpu)
    return mx.reshape(a, (groups * outside, *size, inside // groups), stream=mx.cpu)


def _pixels_first(a: mx.array, axis: int, channels: int | None) -> mx.array:
    """An axis of (channels, pixels) as (pixels, channels)."""
    if channels is None:
        return a
    apart = mx.unflatten(a, axis, (channels, -1), stream=mx.cpu)
    return mx.flatten(mx.swapaxes(apart, axis, axis + 1, stream=mx.cpu), axis, axis + 1, stream=mx.cpu)


def _check_shapes(
    op: str, found: dict[str, mx.array], held: dict[str, mx.array], paths: dict[str, str], layers: Iterable[Layer]
) -> None:
    wrong = [name for name, a in found.items() if a.shape != held[paths[name]].shape]
    if wrong:
        said = [f"{describe(each)} with {describe(found[each])}" for each in wrong[:_SHOWN]]
        said += [f"{len(wrong) - _SHOWN} more"] * (len(wrong) > _SHOWN)
        wanted = _and([describe(held[paths[each]]) for each in wrong[:_SHOWN]])
        raise ValueError(f"{op}: shapes do not fit the model; got {_and(said)}, expected {wanted}")
    for layer in layers:
        for own, a in layer.arrays.items() if layer.kind == OWN else ():
            if any(_moves_unseen(a.shape, axis) for axis in range(a.ndim - 1)):
                raise ValueError(
                    f"{op}: the order of axes cannot be told; got {describe(f'{layer.name}.{own}'.lstrip('.'))} with "
                    f"{describe(a)}, expected it left out, with strict=False, and set by hand"
                )


def _moves_unseen(shape: tuple[int, ...], axis: int) -> bool:
    """Whether an axis can go to the end, and elements with it, without another shape."""
    moved = (*shape[:axis], *shape[axis + 1 :], shape[axis])
    return len(shape) > 2 and moved == shape and shape[axis] > 1 and math.prod(shape[axis + 1 :]) > 1


def _shown(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return _and([describe(name) for name in names[:_SHOWN]] + [f"{more} more"] * (more > 0))


def _and(said: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))
