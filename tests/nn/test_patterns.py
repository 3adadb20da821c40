"""Pairs that are named by patterns of paths."""

from __future__ import annotations

from typing import Any

import mlx.nn as stock
import pytest
from nn.test_conversion import X
from nn.test_layers import close, numbers

from mpsfunc import nn


class Block(stock.Module):
    """Pairs by number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.norm = stock.Conv2d(3, 3, 1), stock.Conv2d(3, 3, 1), stock.BatchNorm(3)
        self.relu, self.act1, self.act2 = stock.Sigmoid(), stock.Tanh(), stock.SiLU()

    def __call__(self, x: Any) -> Any:
        return self.act2(self.conv2(self.act1(self.conv1(self.relu(self.norm(x))))))


class Model(stock.Module):
    """Blocks, and an activation of their own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.conv, self.act = [Block() for _ in range(3)], stock.Conv2d(3, 3, 1), stock.Sigmoid()

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.act(self.conv(x))


@pytest.mark.parametrize(
    ("pattern", "fused"),
    [
        ("*.conv1 -> *.relu", {f"blocks.{i}.conv1": f"blocks.{i}.relu" for i in range(3)}),
        ("*.conv?->*.act?", {f"blocks.{i}.conv{k}": f"blocks.{i}.act{k}" for i in range(3) for k in (1, 2)}),
        ("blocks.[!1].norm -> blocks.[!1].relu", {f"blocks.{i}.norm": f"blocks.{i}.relu" for i in (0, 2)}),
        ("*.norm -> act", {f"blocks.{i}.norm": "act" for i in range(3)}),
        ("blocks.1.norm -> blocks.1.[ar]*", {"blocks.1.norm": "blocks.1.act1 and blocks.1.act2 and blocks.1.relu"}),
        ("conv -> act", {"conv": "act"}),
    ],
)
def test_what_patterns_name(pattern: str, fused: dict[str, str]) -> None:
    model, same = Model(), Model()
    same.update(model.parameters())
    assert nn.convert(model, [pattern]).fused == fused
    close(model(numbers(X)), same(numbers(X)))
    assert nn.convert(model, [("conv", "act"), pattern]).fused == fused | {"conv": "act"}


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("*.conv9 -> *.relu", "convert: a pattern matches no layers that fuse; got '"),
        ("*.relu -> *.relu", "convert: a pattern matches no layers that fuse; got '"),
        ("*.conv1 -> *.gelu", "convert: a pattern matches no activations; got '"),
        ("*conv1 -> *act", "convert: a pattern matches no pairs of these; got '"),
        ("*.conv? -> *.relu", "convert: the wildcards of a pattern differ; got '"),
        ("-> act", "convert: fuse has no such pattern; got '"),
        ("a -> b -> c", "convert: fuse has no such pattern; got '"),
        ("*.[conv -> *.[conv", "convert: a pattern matches no layers that fuse; got '"),
    ],
)
def test_patterns_that_name_nothing(pattern: str, told: str) -> None:
    model = Model()
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        nn.convert(model, [pattern])
    assert type(model.conv) is stock.Conv2d
