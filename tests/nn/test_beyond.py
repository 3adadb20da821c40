"""Arguments of drop-ins that MLX's layers do not have: what they run, and that nothing takes such a layer for MLX's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from support import numbers

import mpsfunc as mf
from mpsfunc import nn

X = numbers((2, 6, 5, 4))
LINE = X.reshape(2, 30, 4)
LAYERS: dict[str, tuple[Callable[[], Any], Callable[[Any], mx.array], mx.array]] = {
    "padding_mode='reflect'": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        lambda layer: mf.conv(X, layer.weight, layer.bias, padding=1, padding_mode="reflect"),
        X,
    ),
    "groups=2": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
        lambda layer: mf.conv_transpose(X, layer.weight, layer.bias, stride=2, groups=2),
        X,
    ),
    "divisor_override=3": (
        lambda: nn.AvgPool2d(2, divisor_override=3),
        lambda layer: mf.avg_pool(X, 2, divisor_override=3),
        X,
    ),
    "padding_mode='circular'": (
        lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"),
        lambda layer: mf.conv1d(LINE, layer.weight, layer.bias, padding=1, padding_mode="circular"),
        LINE,
    ),
    "groups=4": (
        lambda: nn.ConvTranspose1d(4, 8, 3, stride=2, groups=4),
        lambda layer: mf.conv_transpose1d(LINE, layer.weight, layer.bias, stride=2, groups=4),
        LINE,
    ),
    "divisor_override=5": (
        lambda: nn.AvgPool1d(2, divisor_override=5),
        lambda layer: mf.avg_pool1d(LINE, 2, divisor_override=5),
        LINE,
    ),
}
each = pytest.mark.parametrize("told", LAYERS)


@each
def test_what_they_compute(told: str, device: mx.Device) -> None:
    make, expected, x = LAYERS[told]
    layer = make()
    assert mx.array_equal(layer(x), expected(layer)) and layer.beyond() == told
    assert repr(layer).endswith(f", {told})")


@pytest.mark.parametrize("groups", [1, 2])
def test_channels_that_are_printed(groups: int) -> None:
    """Those that the layer was made with, not those of a group."""
    for kind in (nn.ConvTranspose2d, nn.ConvTranspose1d):
        assert repr(kind(4, 6, 3, groups=groups)).startswith(f"{kind.__name__}(4, 6, kernel_size=")


@each
def test_they_stay_ours(told: str) -> None:
    """MLX's layer would compute something else, of integers too, and of a layer that was turned back."""
    make, expected, x = LAYERS[told]
    model = stock.Sequential(make(), stock.Conv2d(6, 6, 1))
    kind = type(model.layers[0])
    assert nn.convert(model).left == {}
    with pytest.raises(TypeError, match="has no floating dtype"):
        model.layers[0](x.astype(mx.int32))
    words = (
        f"revert: MLX's {kind.__name__} has no such argument; got 'layers.0' with {told}, expected arguments of MLX's"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        nn.revert(model)
    assert type(model.layers[0]) is kind and type(model.layers[1]) is nn.Conv2d  # nothing was turned back
    assert mx.array_equal(model.layers[0](x), expected(model.layers[0]))


@each
def test_in_front_of_an_activation(told: str) -> None:
    make, expected, x = LAYERS[told]
    layer = make()
    y = nn.Sequential(layer, nn.ReLU())(x)
    np.testing.assert_allclose(np.array(y), np.maximum(np.array(expected(layer)), 0), rtol=1e-5, atol=1e-6)


def test_a_layer_of_mlx_that_gains_one_later() -> None:
    layer: Any = stock.Conv2d(4, 6, 3, padding=1)
    nn.convert(layer)
    assert layer.beyond() == ""
    layer.padding_mode = "circular"
    expected = mf.conv(X, layer.weight, layer.bias, padding=1, padding_mode="circular")
    assert mx.array_equal(layer(X), expected) and layer.beyond() == "padding_mode='circular'"


@pytest.mark.parametrize(
    ("groups", "kind", "words"),
    [
        (3, ValueError, "groups do not divide the channels; got groups=3, expected a divisor of 4 and 6"),
        (4, ValueError, "groups do not divide the channels; got groups=4, expected a divisor of 4 and 6"),
        (0, ValueError, "groups is out of range; got groups=0, expected 1 to 2147483647"),
        (2.0, TypeError, "groups is not an int; got groups=2.0, expected an int"),
    ],
)
def test_groups_that_do_not_divide(groups: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"^ConvTranspose2d: {re.escape(words)}$"):
        nn.ConvTranspose2d(4, 6, 3, groups=groups)


def test_weights_of_groups_are_drawn_like_those_of_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as a layer of one group's channels."""
    mx.random.seed(0)
    ours = nn.ConvTranspose2d(8, 6, 3, groups=2)
    mx.random.seed(0)
    assert mx.array_equal(ours.weight, stock.ConvTranspose2d(4, 6, 3).weight)


def test_a_model_of_sequences_is_converted() -> None:
    model = stock.Sequential(
        *(stock.Conv1d(4, 8, 3, padding=1), stock.BatchNorm(8), stock.ReLU(), stock.MaxPool1d(2)),
        *(stock.Conv1d(8, 8, 3, stride=2), stock.elu, stock.GroupNorm(2, 8, pytorch_compatible=True), stock.SiLU()),
        *(stock.ConvTranspose1d(8, 4, 2, stride=2), stock.InstanceNorm(4), stock.AvgPool1d(2)),
    )
    want = model.eval()(LINE)
    kinds = [type(layer) for layer in model.layers]
    report = nn.convert(model)
    assert report.left == report.unfused == {} and len(report.replaced) == 10
    assert report.fused == {f"layers.{i}": f"layers.{i + 1}" for i in (1, 4, 6)}
    np.testing.assert_allclose(np.array(model(LINE)), np.array(want), rtol=1e-5, atol=1e-5)
    nn.revert(model)
    assert [type(layer) for layer in model.layers] == kinds
