"""The blocks of the benchmark of additions: all but one compute the same, and what is left out has gradients."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from mpsfunc.nn import convert
from tests.bench.residual import INSIDE, JOINS, WAYS, Block, free_add, saved
from tests.bench.stats import Ratio


def test_both_ways_after_the_norm_compute_the_same() -> None:
    y, shortcut = (mx.random.normal((2, 3, 4, 5), key=mx.random.key(i)) for i in range(2))
    sums = [JOINS[name](y, shortcut) for name in ("after", "by MLX")]
    assert mx.array_equal(*sums) and mx.array_equal(sums[0], mx.maximum(y + shortcut, 0))


def test_what_is_left_out_has_the_gradients_of_a_sum() -> None:
    y, shortcut, dy = (mx.random.normal((2, 3), key=mx.random.key(i)) for i in range(3))
    (made,), gradients = mx.vjp(free_add, [y, shortcut], [dy])
    assert mx.array_equal(made, y) and all(mx.array_equal(g, dy) for g in gradients)


@pytest.mark.parametrize("join", WAYS)
def test_a_block_has_its_activation_once(join: str) -> None:
    """In the norm's own place where nothing is added."""
    block = Block(8, 2, 1, join)
    activations = sum(isinstance(layer, nn.ReLU) for layer in block.body.layers)
    assert activations == (3 if join == "bound" else 2)
    x = mx.random.normal((2, 4, 4, 8))
    assert block(x).shape == x.shape and block(x).min() >= 0


def test_the_norm_adds_the_shortcut_where_the_table_says_so() -> None:
    block, other = Block(8, 2, 1, INSIDE), Block(8, 2, 1, "by MLX")
    other.update(block.parameters())
    x = mx.random.normal((2, 4, 4, 8))
    fused = convert(block, example=x).fused
    assert fused["body.layers.7"] == "a shortcut and nn.relu"
    assert mx.allclose(block(x), other(x), atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "said"),
    (
        (Ratio(1.25, 1.0625, 4 / 3), ("20.0 % (5.9 to 25.0)", "yes")),
        (Ratio(1.25, 1.0, 4 / 3), ("20.0 % (0.0 to 25.0)", "unclear")),
        (Ratio(1.0, 0.8, 1.0), ("0.0 % (-25.0 to 0.0)", "no")),
        (Ratio(1.0, 0.8, 1.25), ("0.0 % (-25.0 to 20.0)", "unclear")),
    ),
)
def test_what_is_saved_is_told_where_the_whole_interval_says_it(ratio: Ratio, said: tuple[str, str]) -> None:
    assert saved(ratio) == said
