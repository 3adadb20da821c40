"""How far a converted network is from itself in float64, and how far stock MLX's is from that.

A network is trained for two steps, and then evaluated. Compared are its results and the gradients by every parameter in
both steps and in evaluation, and the running statistics that the steps leave. The right values are those of the
converted network in float64, whose parameters and example are the ones of the dtype, only wider: so distances tell of
the computation alone. Stock MLX's convolutions know no float64, nor do its exp, sigmoid, softmax and RMS norm, which a
network calls besides its layers: for the right values these have others in their places.

The distance of an array is the root of the sum of its squared errors. Compared are geometric means over draws of
weights and examples, since that of one draw has much luck in it: where a relu, or the maximum of a window, is so close
to another choice that rounding decides, a gradient takes another way, and its error is that of a whole pixel. In
float16 that befalls an array of a small network in about every second draw, on either side. If an array is further off
by the first draws, more are made, and decide.

What draws random numbers on the way (dropout, stochastic depth) is switched off, since ours draws other numbers than
MLX does. A VAE's noise is drawn from one seed on all sides.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

import mpsfunc as mf

from .exactly import exactly
from .registry import Network

DRAWS = (3, 12, 48)
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
FACTOR = 3  # how much further from the right values than stock MLX
# No distance counts as less than this many units of the dtype, relative to the array's own norm: what rounding once to
# the dtype may cost, however well values were computed. Stock MLX may by luck be nearer, mostly where values are few.
# The same goes for the spacing of float16's numbers near 0, where gradients of some networks lie.
FLOOR = 0.5
NOTHING = 1e-12  # a norm that is less, by the largest of the same layer's gradients, is that of rounding in float64
SPACING = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

Arrays = dict[str, np.ndarray]
Distances = dict[str, float]
Bits = dict[str, bytes]


class Distance(NamedTuple):
    """How far an array is off.

    Fields:
        name: Of what, and when.
        ours: The distance, relative to the array's norm, or if that is noise to the largest of its layer's gradients.
        stock: That of stock MLX.
        draws: Of how many draws these are the geometric means.
        noise: Whether the right values are 0 but for rounding, as those of the gradient by a bias ahead of a norm, in
            every draw.
    """

    name: str
    ours: float
    stock: float
    draws: int
    noise: bool = False

    @property
    def ratio(self) -> float:
        """The one by the other; 0 where stock MLX always overflows."""
        if not np.isfinite(self.stock):
            return 0.0
        return self.ours / self.stock if np.isfinite(self.ours) else np.inf

    def __str__(self) -> str:
        return f"{self.name}: {self.ours:.1e}, stock MLX {self.stock:.1e}, {self.ratio:.2f} x, over {self.draws} draws"


def converted(model: nn.Module, x: mx.array, *, fused: bool) -> mf.nn.Conversion:
    """Converts a model; ``fused`` with whatever is found by running it on an example."""
    return mf.nn.convert(model, example=x if fused else None)


def without_chance(model: nn.Module) -> nn.Module:
    """Switches off what drops values, here and in mlx-image."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module._p_1 = 1
        elif type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        elif type(module).__name__ == "DropPath":
            module.rate = 0.0
    return model


def made(network: Network, seed: int, dtype: mx.Dtype) -> tuple[nn.Module, mx.array]:
    """A network of stock MLX and an example, in a dtype. What has no gradient, such as a Swin's indices, is frozen."""
    weights, x = _weights(network, seed, dtype)
    model = without_chance(network.build())
    for module in model.modules():
        whole = [
            name for name, a in module.items() if isinstance(a, mx.array) and not mx.issubdtype(a.dtype, mx.floating)
        ]
        module.freeze(recurse=False, keys=whole)
    model.load_weights(list(weights.items()))
    return model, x


@functools.lru_cache(maxsize=1)
def _weights(network: Network, seed: int, dtype: mx.Dtype) -> tuple[dict[str, mx.array], mx.array]:
    """Biases and scales that are no longer 0 and 1, and running statistics of other images.

    With those that a network begins with, gradients in evaluation grow or fade by some powers of ten.
    """
    mx.random.seed(seed)
    model = without_chance(network.build())
    model.apply(lambda a: a + 0.1 * mx.random.normal(a.shape) if a.ndim == 1 and a.dtype == mx.float32 else a)
    x, others = mx.random.normal(network.shape), mx.random.normal(network.shape)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of the batch alone
        if "bias" in norm:
            norm.bias = norm.bias + network.shift
    if norms:
        mf.nn.convert(model)
        mx.eval(model.train()(others))
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return dict(tree_flatten(model.parameters())), x.astype(dtype)


def half_frozen(model: nn.Module) -> nn.Module:
    """Freezes every second layer that has parameters."""
    for module in [each for _, each in sorted(model.named_modules()) if each.leaf_modules() == {} and each][::2]:
        module.freeze()
    return model


def run(model: nn.Module, x: mx.array, network: Network, *, folds: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """Two steps of SGD, then an evaluation with gradients, and one without; each array as soon as it is known.

    Only where something folds does the last compute anything else than the one before. It runs twice: folded weights
    are computed in the first, and kept for the second.
    """

    def forward(x: mx.array) -> tuple[mx.array, Any]:
        outputs = model(x)
        return network.loss(outputs, x), outputs

    def told(what: str, outputs: Any, gradients: Any) -> Iterator[tuple[str, np.ndarray]]:
        mx.eval(outputs, gradients, model.parameters())
        for kind, tree in (("result", outputs), ("gradient", gradients)):
            for path, a in tree_flatten(tree):
                yield f"{kind} {path} {what}".replace("  ", " "), exact(a)

    gradient = nn.value_and_grad(model, forward)
    optimizer = optim.SGD(network.rate)
    model.train()
    for step in (1, 2):
        mx.random.seed(step)
        (_, outputs), gradients = gradient(x)
        optimizer.update(model, gradients)
        yield from told(f"in step {step}", outputs, gradients)
    for path, a in tree_flatten(model.parameters()):
        if path.rpartition(".")[2] in ("running_mean", "running_var"):
            yield f"{path} after two steps", exact(a)
    model.eval()
    mx.random.seed(3)
    (_, outputs), gradients = gradient(x)
    yield from told("in evaluation", outputs, gradients)
    for _ in range(2 if folds else 0):
        mx.random.seed(3)
        outputs = model(x)
        mx.eval(outputs)
    yield from told("in inference", outputs, {})
    del outputs, gradients
    mx.clear_cache()


def exact(a: mx.array) -> np.ndarray:
    """The values, in a dtype that has them all."""
    return np.array(a if a.dtype == mx.float64 else a.astype(mx.float32))


class Right(NamedTuple):
    """The right values.

    Fields:
        arrays: By name.
        norms: Of each.
        beside: What is compared with each to tell whether it is nothing: of a gradient the greatest norm of the same
            layer's at the same time, of other arrays, and where that is nothing itself, of all.
    """

    arrays: Arrays
    norms: Distances
    beside: Distances

    def is_noise(self, name: str) -> bool:
        """Whether an array is 0 but for rounding, as the gradient by a bias ahead of a norm."""
        return self.norms[name] <= NOTHING * self.beside[name]


def right(network: Network, seed: int, dtype: mx.Dtype, change: Callable[[nn.Module], Any] = lambda _: None) -> Right:
    """The converted network in float64."""
    model, x = made(network, seed, dtype)
    converted(model, x, fused=False)
    model.set_dtype(mx.float64)
    change(model)
    with exactly():
        arrays = dict(run(model, x.astype(mx.float64), network))
    norms = {name: float(np.linalg.norm(a)) for name, a in arrays.items()}
    return Right(arrays, norms, beside(norms))


def beside(norms: Distances) -> Distances:
    """The norm that each array is compared with to tell whether it is nothing."""
    largest = max(norms.values())
    of_layers: Distances = {}
    for name, norm in norms.items():
        of_layers[_layer(name)] = max(norm, of_layers.get(_layer(name), 0.0))
    of_layers[""] = largest
    return {name: largest if (of := of_layers[_layer(name)]) <= NOTHING * largest else of for name in norms}


def _layer(name: str) -> str:
    """Of a gradient the layer, and when; empty for other arrays."""
    kind, _, rest = name.partition(" ")
    path, _, when = rest.partition(" ")
    return f"{path.rpartition('.')[0]} {when}" if kind == "gradient" else ""


def plain(model: nn.Module, x: mx.array) -> nn.Module:
    """Converted without fusing."""
    converted(model, x, fused=False)
    return model


def fused(model: nn.Module, x: mx.array) -> nn.Module:
    """Converted and fused."""
    converted(model, x, fused=True)
    return model


def copied(model: nn.Module, x: mx.array) -> nn.Module:
    """A deep copy of what is converted and fused; the original has other weights by then."""
    other = copy.deepcopy(fused(model, x))
    model.apply(mx.zeros_like)
    return other


def reverted(model: nn.Module, x: mx.array) -> nn.Module:
    """Converted, fused, called, and what it was."""
    state = {path: a for path, a in tree_flatten(model.parameters())}
    mx.random.seed(0)
    mx.eval(fused(model, x)(x))
    mf.nn.revert(model)
    model.update_modules({})
    model.load_weights(list(state.items()))  # running statistics moved
    return model


def frozen(model: nn.Module, x: mx.array) -> nn.Module:
    """Converted and fused, with every second layer frozen."""
    return half_frozen(fused(model, x))


def folded(model: nn.Module, x: mx.array) -> nn.Module:
    """Converted for inference: it trains as any other, and then folds its batch norms."""
    mf.nn.convert(model, example=x, inference=True)
    return model


FOLDED = "for inference"
WHOLE: dict[str, Callable[[nn.Module, mx.array], nn.Module]] = {"converted": plain, "fused": fused, FOLDED: folded}
HALVES: dict[str, Callable[[nn.Module, mx.array], nn.Module]] = {"partly frozen": frozen}
VARIANTS = (*WHOLE, *HALVES)


class Draw(NamedTuple):
    """What one draw found: the distances on both sides, and which arrays are 0 but for rounding."""

    ours: Distances
    stock: Distances
    noise: frozenset[str]


def distances(
    network: Network, dtype: str, variants: Iterable[str] = VARIANTS, bits: dict[str, Bits] | None = None
) -> dict[str, list[Distance]]:
    """Of every array of each variant, the worst first; puts the bits of the first draw into a dict, with "stock"."""
    draws: dict[str, list[Draw]] = {variant: [] for variant in variants}
    found: dict[str, list[Distance]] = {}
    for before, many in zip((0, *DRAWS), DRAWS, strict=False):
        left = [variant for variant in draws if variant not in found or found[variant][0].ratio > FACTOR]
        for seed in range(before, many) if left else ():
            for variant, draw in _drawn(network, dtype, left, seed, bits if not seed else None).items():
                draws[variant].append(draw)
        for variant in left:
            found[variant] = _means(draws[variant])
    return found


def _means(draws: list[Draw]) -> list[Distance]:
    """Over the draws in which stock MLX does not overflow, where it always does over all.

    An array that is 0 but for rounding in some of the draws is told by the others.
    """
    found = []
    for name in draws[0].ours:
        some = [draw for draw in draws if name not in draw.noise]
        told = [(draw.ours[name], draw.stock[name]) for draw in some or draws]
        told = [each for each in told if np.isfinite(each[1])] or told
        ours, stock = (float(np.exp(np.mean([np.log(each[side]) for each in told]))) for side in (0, 1))
        found.append(Distance(name, ours, stock, len(told), not some))
    return sorted(found, key=lambda each: -each.ratio)


def _drawn(
    network: Network, dtype: str, variants: list[str], seed: int, bits: dict[str, Bits] | None
) -> dict[str, Draw]:
    """By variant. No more is in memory than the right values of one model, and another model as it computes."""
    found: dict[str, Draw] = {}

    def run_one(what: str, make: Callable[[nn.Module, mx.array], nn.Module], wanted: Right) -> Distances:
        model, x = made(network, seed, DTYPES[dtype])
        arrays = run(make(model, x), x, network, folds=what == FOLDED)
        if bits is not None:
            arrays = _noted(arrays, bits.setdefault(what, {}))
        return _off(arrays, wanted, dtype)

    for some, change in ((WHOLE, lambda model: model), (HALVES, half_frozen)):
        asked = [variant for variant in variants if variant in some]
        if not asked:
            continue
        wanted = right(network, seed, DTYPES[dtype], change)
        noise = frozenset(name for name in wanted.arrays if wanted.is_noise(name))
        stock = "stock" if some is WHOLE else "stock, partly frozen"
        theirs = run_one(stock, lambda model, x, change=change: change(model), wanted)
        for variant in asked:
            found[variant] = Draw(run_one(variant, some[variant], wanted), theirs, noise)
        del wanted
    return found


def _off(arrays: Iterable[tuple[str, np.ndarray]], wanted: Right, dtype: str) -> Distances:
    """Relative to the norm; where that is 0 but for rounding, to that of what is beside it."""
    found = {}
    for name, a in arrays:
        norm = wanted.norms[name]
        with np.errstate(all="ignore"):  # what overflows
            off = float(np.linalg.norm(a - wanted.arrays[name]))
        scale = wanted.beside[name] if wanted.is_noise(name) else norm
        floor = FLOOR * max(EPS[dtype] * norm, SPACING[dtype] * np.sqrt(a.size))
        found[name] = max(off, float(floor)) / scale if np.isfinite(off) else np.inf
    assert found.keys() == wanted.arrays.keys()
    return found


def bits_of(arrays: Iterable[tuple[str, np.ndarray]]) -> Bits:
    """What tells whether other arrays are the same to the bit; one NaN is like another."""
    found: Bits = {}
    for _ in _noted(arrays, found):
        pass
    return found


def _noted(arrays: Iterable[tuple[str, np.ndarray]], bits: Bits) -> Iterator[tuple[str, np.ndarray]]:
    """The same arrays, whose bits are put into a dict."""
    for name, a in arrays:
        bits[name] = hashlib.blake2b(np.where(np.isnan(a), np.nan, a).tobytes()).digest()
        yield name, a
