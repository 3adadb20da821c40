"""Models of mlx-image, whose package asks for an MLX of 2025: they run beside ours, and convert to the same numbers."""

from __future__ import annotations

import importlib
import importlib.metadata

import mlx.core as mx
import mlx.nn
import pytest
from support import numbers

import mpsfunc as mf

pytestmark = pytest.mark.models

# What mlxim.model imports; its data sets need more, which is not here.
NEEDED = ("huggingface_hub", "tqdm", "mlxim.model")
MODELS = ("resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf")


def made(name: str) -> mlx.nn.Module:
    """A model with weights drawn at random, as for inference."""
    mx.random.seed(0)
    model = importlib.import_module("mlxim.model").create_model(name, weights=False)
    model.eval()
    mx.eval(model.parameters())
    return model


def test_what_its_models_need_is_here() -> None:
    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    assert missing == [], "make models installs these"
    assert importlib.metadata.version("mlx-image") == "0.1.10"
    assert importlib.metadata.version("mlx") != "0.24.2", "the package's own choice"


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_has_the_same_results(name: str, on_cpu: mx.Device) -> None:
    model, x = made(name), numbers((1, 64, 64, 3))
    right = model(x)
    assert right.shape == (1, 1000) and bool(mx.isfinite(right).all())
    replaced = mf.nn.convert(model).replaced
    assert len(replaced) > 20
    got = model(x)
    assert mx.allclose(got, right, rtol=1e-4, atol=1e-4 * float(mx.abs(right).max()))
