"""What every network has to pass."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import mlx.nn as nn

import mpsfunc as mf
from mpsfunc.core import lazy
from mpsfunc.nn.conversion import DROP_INS
from mpsfunc.nn.drop_in import Activation, Fusing

from . import comparison, left
from .comparison import DTYPES, FACTOR, VARIANTS, Bits, Distance, bits_of, converted, distances, made, run
from .registry import Network

# How far stock MLX's gradients are off where they prove nothing.
LOST = {"float32": 1e-2, "float16": 0.5, "bfloat16": 0.5}
# And how large, by the largest of the same layer's gradients, where they should be 0: what rounding makes of that.
TINY = {"float32": 1e-5, "float16": 0.1, "bfloat16": 0.1}
NOISE = 0.1  # the share of the arrays that may be 0 but for rounding


class Weak(NamedTuple):
    """Gradients of a network that rounding may decide in stock MLX, since all readers of a layer undo what it learns.

    Fields:
        arrays: A pattern of their names, without the steps.
        many: How many of them may be so, by dtype.
    """

    arrays: str
    many: dict[str, int]


# What reads the result of a DenseNet's first norm normalizes it again. So its scale and shift change no more than what
# the relu and the maximum behind it make of them, and their gradients are what is left of sums that cancel.
_FIRST_NORM = r"stem\.layers\.1\.(weight|bias)"
# What a residual stream is shifted by is taken away by the norms behind the convolutions of one pixel that read it, but
# for the relus between; the norms here shift so much that those see few negative values, or none.
WEAK = {
    "DenseNet": Weak(_FIRST_NORM, {"float16": 2, "bfloat16": 4}),
    "DenseNet-121, growth 12": Weak(_FIRST_NORM, {"float32": 4, "float16": 4, "bfloat16": 4}),
    "resnet50": Weak(r"layer[1-3]\.layers\.[1-3]\.bn3\.bias", {"float16": 3, "bfloat16": 14}),
    "regnet_y_400mf": Weak(r"trunk_output\.[12]\.blocks\.[12]\.f\.c\.layers\.1\.bias", {"bfloat16": 6}),
}


def proven(network: Network, dtype: str) -> dict[str, list[Distance]]:
    """A converted network is as near to the right values as stock MLX, in every array; returns how near.

    And one that was turned back, or copied, is the same to the bit.
    """
    bits: dict[str, Bits] = {}
    found = distances(network, dtype, bits=bits)
    near(network, dtype, found)
    same_bits(network, dtype, bits)
    return found


def near(network: Network, dtype: str, found: dict[str, list[Distance]]) -> None:
    """Every array of every variant is as near as stock MLX's, and the right values are what MLX means."""
    assert tuple(found) == VARIANTS
    idle = {f"gradient {path}.bias in step {step}" for path in taken_away(network) for step in (1, 2)}
    for variant, worst in found.items():
        assert worst[0].ratio <= FACTOR, f"{variant}: {worst[0]}"
        _means_the_same(network, dtype, variant, worst)
        others = {each.name for each in worst if not each.noise}
        assert not idle & others, f"{variant}: not 0 but for rounding: {sorted(idle & others)}"


def _means_the_same(network: Network, dtype: str, variant: str, found: list[Distance]) -> None:
    """Whether the right values are what MLX means, which stock MLX's own distances show.

    In float32 its results and statistics have five digits, its gradients two. Where those have less, or are off by half
    in 16 bits, rounding decides and nothing is proven: in no array but those of `WEAK`. Gradients that are 0 but for
    rounding, by biases that a batch norm takes away again, in training, have to be next to nothing in MLX, too.
    """
    noise = {each.name for each in found if each.noise}
    other = {name for name in noise if not (name.startswith("gradient") and ".bias in step" in name)}
    assert not other and len(noise) <= NOISE * len(found), f"{variant}: 0 but for rounding: {sorted(noise)}"
    coarse = {each.name for each in found if each.stock >= 1e-5 and dtype == "float32"}
    coarse |= {each.name for each in found if each.stock >= LOST[dtype]}
    other = {name for name in coarse if not name.startswith("gradient")}
    assert not other, f"{variant}: another meaning: {sorted(other)}"
    lost = {each.name for each in found if proves_nothing(each, dtype) and not is_next_to_nothing(each, dtype)}
    weak = WEAK.get(network.name, Weak("", {}))
    other = {name for name in lost if not re.fullmatch(f"gradient {weak.arrays} in step [12]", name)}
    many = weak.many.get(dtype, 0)
    assert not other and len(lost) <= many, (
        f"{variant}: another meaning, or rounding decides: {sorted(other) or f'{sorted(lost)}, more than {many}'}"
    )


def is_next_to_nothing(distance: Distance, dtype: str) -> bool:
    """Whether an array is 0 but for rounding, and as good as 0 in stock MLX."""
    return distance.noise and distance.stock < TINY[dtype]


def proves_nothing(distance: Distance, dtype: str) -> bool:
    """Whether rounding decides what stock MLX makes of an array."""
    return distance.noise or distance.stock >= LOST[dtype]


def nothing_left(network: Network) -> None:
    """No layer that has a drop-in stays MLX's."""
    model, x = made(network, 0, mx.float32)
    report = converted(model, x, fused=True)
    assert len(report.replaced) > 2
    for path, module in model.named_modules():
        name = type(module).__name__
        if type(module) in DROP_INS:
            assert report.left.get(path) in left.REASONS, f"{path} ({name}) stays: {report.left.get(path)}"
        elif type(module) is left.layers().get(name):
            assert name in left.WITHOUT, f"{path}: {name}"


def same_bits(network: Network, dtype: str, bits: dict[str, Bits]) -> None:
    """One that was turned back has the bits of stock, and a deep copy those of its original, which are known."""
    for change, original in ((comparison.reverted, "stock"), (comparison.copied, "fused")):
        model, x = made(network, 0, DTYPES[dtype])
        found, wanted = bits_of(run(change(model, x), x, network)), bits[original]
        assert found.keys() == wanted.keys()
        other = [name for name in found if found[name] != wanted[name]]
        assert not other, f"{change.__name__} is not {original}: {other}"


def fused_wherever_it_can_be(network: Network) -> None:
    """Every layer that can apply an activation, and whose result one is called on at once, applies it."""
    model, x = made(network, 0, mx.float32)
    wanted = {path for path, _ in followed(model, x, activations())}
    report = converted(model, x, fused=True)
    assert wanted and wanted <= report.fused.keys(), sorted(wanted - report.fused.keys())


def folded_wherever_it_can_be(network: Network) -> None:
    """Every batch norm that is called at once on what a convolution or a linear layer gave is folded into that."""
    model, x = made(network, 0, mx.float32)
    wanted = followed(model, x, norms())
    report = mf.nn.convert(model, example=x, inference=True)
    found = {(path, behind) for path, behinds in report.fused.items() for behind in behinds.split(" and ")}
    assert wanted <= found, sorted(wanted - found)
    scaled = network.name.startswith("ConvNeXt")  # of which vectors are folded into linear layers
    assert bool(report.kept_twice) == bool(wanted or scaled)


def taken_away(network: Network) -> set[str]:
    """Paths of layers with a bias that the mean of a batch norm behind takes away again."""
    model, x = made(network, 0, mx.float32)
    layers = dict(model.named_modules())
    return {path for path, _ in followed(model.eval(), x, norms()) if "bias" in layers[path]}


Reader = tuple[Any, str, int]  # where a function is, its name, and which of its arguments is the array


def activations() -> list[Reader]:
    """Activations, layers and functions."""
    layers = [(theirs, "__call__", 1) for theirs, ours in DROP_INS.items() if issubclass(ours, Activation)]
    names = ("relu", "silu", "leaky_relu", "tanh", "sigmoid")
    return layers + [(module, name, 0) for name in names for module in (nn, mx) if hasattr(module, name)]


def norms() -> list[Reader]:
    """Batch norms."""
    return [(nn.BatchNorm, "__call__", 1)]


def followed(model: nn.Module, x: mx.array, readers: list[Reader]) -> set[tuple[str, str]]:
    """Paths of layers of MLX's that fuse once they are converted, of whose result a reader is the first, and of that.

    Of layers that fold only those that are linear are looked at. Functions have no path.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    results: dict[int, tuple[str, mx.array, mx.array]] = {}  # held, so that no other array gets an identity
    found: set[tuple[str, str]] = set()
    linear = (nn.BatchNorm, "__call__", 1) in readers

    def layer(call: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def noted(self: nn.Module, x: mx.array) -> mx.array:
            y = call(self, x)
            results[id(y)] = paths[id(self)], y, copy.copy(y)
            return y

        return noted

    def reader(call: Callable[..., mx.array], given: int) -> Callable[..., mx.array]:
        def noted(*arguments: Any) -> mx.array:
            path, _, unchanged = results.get(id(arguments[given]), ("", None, None))
            if unchanged is not None and lazy.same(unchanged, arguments[given]):  # y += x keeps the object
                found.add((path, paths[id(arguments[0])] if given else ""))
            return call(*arguments)

        return noted

    with ExitStack() as replaced:
        for theirs, ours in DROP_INS.items():
            if issubclass(ours, Fusing) and (ours.is_linear or not linear):
                replaced.enter_context(mock.patch.object(theirs, "__call__", layer(theirs.__call__)))
        for where, name, given in readers:
            replaced.enter_context(mock.patch.object(where, name, reader(getattr(where, name), given)))
        mx.eval(model(x))
    return found
