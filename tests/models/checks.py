"""What every network has to pass."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mpsfunc.nn.conversion import DROP_INS

from . import comparison, left
from .comparison import DTYPES, FACTOR, VARIANTS, converted, distances, fused, made, run
from .registry import Network


def near(network: Network, dtype: str, *, small: bool) -> None:
    """A converted network is as near to the right values as stock MLX, in every array.

    And these are what MLX means, as its results, statistics and gradients in float32 show. In a large network roundings
    decide so much that this is asked of half the gradients only, and less narrowly of the rest.
    """
    found = distances(network, dtype)
    assert tuple(found) == VARIANTS
    if dtype == "float32":
        stock = {each.name: each.stock for each in found["converted"]}
        gradients = [off for name, off in stock.items() if name.startswith("gradient")]
        assert np.quantile(gradients, 1.0 if small else 0.5) <= 1e-2, "gradients have another meaning"
        astray = {name for name, off in stock.items() if off > (1e-5 if small else 1e-2)}
        assert all(name.startswith("gradient") for name in astray), f"another meaning: {sorted(astray)}"
    for variant, worst in found.items():
        assert worst[0].ratio <= FACTOR, f"{variant}: {worst[0]}"


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


def same_bits(network: Network, dtype: str) -> None:
    for change, original in (comparison.reverted, lambda model, x: model), (comparison.copied, fused):
        one, other = ({}, {})
        for into, make in ((one, change), (other, original)):
            model, x = made(network, 0, DTYPES[dtype])
            into.update(run(make(model, x), x, network))
        assert one.keys() == other.keys()
        for name, a in one.items():
            assert np.array_equal(a, other[name], equal_nan=True), name
