"""`from_torch` beside PyTorch: networks with the weights of a state_dict have PyTorch's outputs, in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from models import classifiers, generators, mobile, resnets
from models.exactly import exactly
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]

SHAPE = (2, 32, 32, 3)
NETWORKS: dict[str, tuple[Any, str, tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = {
    "ResNet": (resnets.ResNet, "ResNet", ((1, 2, 1, 1), (32, 64, 96, 128)), SHAPE, {}),
    "MobileNetV2": (mobile.MobileNet, "MobileNet", ("MobileNetV2",), SHAPE, {}),
    "CIFAR ResNet": (classifiers.CifarResNet, "CifarResNet", (1, 8), SHAPE, {}),
    "ConvNeXt": (
        classifiers.ConvNeXt,
        "ConvNeXt",
        ((1, 2), (16, 32), 10),
        SHAPE,
        {"unflattened": {"stages.*.pwconv2": None}},
    ),
    "U-Net": (generators.UNet, "UNet", (8, (1, 2)), SHAPE, {}),
    "DCGAN": (generators.Generator, "Generator", (16, 8, 2), (2, 1, 1, 16), {}),
}


def drawn(twin: Any) -> Any:
    """Random numbers for all that a network has; variances are positive."""
    generator = torch.Generator().manual_seed(0)
    for name, a in twin.state_dict().items():
        if a.dtype == torch.float64:
            a.copy_(0.5 * torch.rand(a.shape, generator=generator, dtype=a.dtype) + (0.5 if "var" in name else -0.25))
    return twin.eval()


def channels_last(a: np.ndarray) -> np.ndarray:
    return a.transpose(0, *range(2, a.ndim), 1) if a.ndim > 2 else a


def outputs_agree(model: stock.Module, twin: Any, shape: tuple[int, ...]) -> None:
    x = numbers(shape, mx.float64)
    with exactly(), torch.no_grad():
        ours = exact(model.eval()(x))
        theirs = channels_last(twin(torch.tensor(np.moveaxis(exact(x), -1, 1))).numpy())
    assert ours.shape == theirs.shape and np.abs(theirs).max() > 0
    assert np.linalg.norm(ours - theirs) <= 1e-12 * np.linalg.norm(theirs)


@pytest.mark.parametrize("converted", ["before", "after"])  # MLX's own convolutions have no float64
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_outputs_of_its_twin(name: str, converted: str) -> None:
    from models import twins

    build, twin_name, arguments, shape, more = NETWORKS[name]
    model, twin = build(*arguments), drawn(getattr(twins, twin_name)(*arguments).double())
    if converted == "before":
        mf.nn.convert(model)
    model.load_weights(mf.nn.from_torch(twin.state_dict(), model, **more))
    if converted == "after":
        mf.nn.convert(model)
    outputs_agree(model, twin, shape)


class Reshaped(stock.Module):
    """Images become features, and features images again, of which a transposed convolution has groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = mf.nn.Conv2d(3, 6, 3, padding=1, groups=3)
        self.norm = stock.BatchNorm(6 * 4 * 4)
        self.mean, self.spread = stock.Linear(6 * 4 * 4, 5), stock.Linear(6 * 4 * 4, 5)
        self.grow = stock.Linear(5, 4 * 2 * 2)
        self.up = mf.nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.norm(self.conv(x).flatten(1))
        return self.up(self.grow(self.mean(x) * self.spread(x)).reshape(-1, 2, 2, 4))


class ReshapedTwin(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1, groups=3)
        self.norm = torch.nn.BatchNorm1d(6 * 4 * 4)
        self.mean, self.spread = torch.nn.Linear(6 * 4 * 4, 5), torch.nn.Linear(6 * 4 * 4, 5)
        self.grow = torch.nn.Linear(5, 4 * 2 * 2)
        self.up = torch.nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.conv(x).flatten(1))
        return self.up(self.grow(self.mean(x) * self.spread(x)).reshape(-1, 4, 2, 2))


RIGHT = {"flattened": {"norm": 6, "mean": 6, "spread": 6}, "unflattened": {"grow": 4}}


def test_flattened_images_are_named() -> None:
    model, twin = Reshaped(), drawn(ReshapedTwin().double())
    with pytest.raises(ValueError, match="got 'norm' of 96 features, 'mean' of 96 features and 'spread' of 96"):
        mf.nn.from_torch(twin.state_dict(), model)
    with pytest.raises(ValueError, match="layers may make flattened images; got 'grow' of 16 features"):
        mf.nn.from_torch(twin.state_dict(), model, flattened=RIGHT["flattened"])
    model.load_weights(mf.nn.from_torch(twin.state_dict(), model, **RIGHT))  # type: ignore[arg-type]
    outputs_agree(model, twin, (2, 4, 4, 3))


@pytest.mark.parametrize("left", ["norm", "mean", "grow"])
def test_the_order_of_features_matters(left: str) -> None:
    model, twin = Reshaped(), drawn(ReshapedTwin().double())
    named = {argument: {k: None if k == left else n for k, n in of.items()} for argument, of in RIGHT.items()}
    model.load_weights(mf.nn.from_torch(twin.state_dict(), model, **named))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        outputs_agree(model, twin, (2, 4, 4, 3))


class Lines(torch.nn.Module):
    """Of sequences and volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = torch.nn.Conv1d(4, 6, 3, groups=2), torch.nn.ConvTranspose1d(6, 2, 3, stride=2)

    def forward(self, x: Any) -> Any:
        return self.up(self.conv(x))


class OurLines(stock.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = mf.nn.Conv1d(4, 6, 3, groups=2), mf.nn.ConvTranspose1d(6, 2, 3, stride=2)

    def __call__(self, x: mx.array) -> mx.array:
        return self.up(self.conv(x))


def test_sequences() -> None:
    model, twin = OurLines(), drawn(Lines().double())
    model.load_weights(mf.nn.from_torch(twin.state_dict(), model))
    outputs_agree(model, twin, (2, 9, 4))


def test_volumes() -> None:
    twin = drawn(torch.nn.Conv3d(2, 4, (1, 2, 3)))
    model = stock.Conv3d(2, 4, (1, 2, 3))
    model.load_weights(mf.nn.from_torch(twin.state_dict(), model))
    x = numbers((1, 4, 4, 4, 2))
    with torch.no_grad():
        theirs = channels_last(twin(torch.tensor(np.moveaxis(np.array(x), -1, 1))).numpy())
    np.testing.assert_allclose(np.array(model(x)), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_keep_their_dtype(dtype: str) -> None:
    tensor = torch.nn.Parameter(torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)) / 7)
    ((_, a),) = mf.nn.from_torch({"weight": tensor.T}, flattened={"": None})
    assert a.dtype == getattr(mx, dtype) and a.shape == (3, 2)
    np.testing.assert_array_equal(exact(a), tensor.detach().T.double().numpy())
