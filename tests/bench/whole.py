"""The networks of the benchmark of whole networks, and what a cell of its matrix is.

Each is written once with mlx.nn, in `tests/models`, and once in PyTorch, in `tests/models/twins`, under the same name.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LATENT = 100
CLASSES, SQUARES = "cross-entropy", "squares"
TRAINING, INFERENCE = "training", "inference"
MOMENTUM = 0.9
MODES, DTYPES = (TRAINING, INFERENCE), ("float32", "bfloat16")
BATCHES = {TRAINING: (8,), INFERENCE: (1, 8)}
GPU_BATCHES = {TRAINING: (128,), INFERENCE: (128, 1)}
OF_SMALL_IMAGES = 512  # on a GPU, instead of 128
QUICK_PIXELS, QUICK_BATCH = 64, 4  # instead of more


class Spec(NamedTuple):
    """A network of `tests/models`.

    Fields:
        module: Where the class is.
        name: Of the class, and of its twin.
        pixels: Of an image's side.
        arguments: Of both.
        without: What only MLX's takes: that nothing is drawn at random in training.
        loss: Cross-entropy of random classes, or squares of how far each result is from 1.
        classes: So many.
        rate: How far SGD steps: so far that the loss falls by more than rounding, and no further than that the second
            step is as well defined as the first.
    """

    module: str
    name: str
    pixels: int
    arguments: tuple[Any, ...] = ()
    without: Mapping[str, Any] = {}
    loss: str = CLASSES
    classes: int = 1000
    rate: float = 1e-4

    def shape(self, batch: int, pixels: int) -> tuple[int, ...]:
        """Of what it is given, NHWC."""
        return (batch, 1, 1, LATENT) if self.name == "Generator" else (batch, pixels, pixels, 3)


NETWORKS = {
    "ResNet-18": Spec("resnets", "ResNet", 224, ((2, 2, 2, 2), (64, 128, 256, 512), False)),
    "ResNet-50": Spec("resnets", "ResNet", 224, rate=1e-5),
    "MobileNetV2": Spec("mobile", "MobileNet", 224, ("MobileNetV2",), rate=3e-5),
    "MobileNetV3-Large": Spec("mobile", "MobileNet", 224, ("MobileNetV3-Large",), rate=1e-3),
    "EfficientNet-B0": Spec("mobile", "MobileNet", 224, ("EfficientNet-B0",)),
    "ConvNeXt-T": Spec(
        "classifiers", "ConvNeXt", 224, ((3, 3, 9, 3), (96, 192, 384, 768), 1000), {"drop_path": 0.0}, rate=3e-5
    ),
    "U-Net": Spec("generators", "UNet", 128, (64, (1, 2, 4)), {"dropout": 0.0}, SQUARES, rate=1e-5),
    "DCGAN generator": Spec("generators", "Generator", 64, (LATENT, 64, 4), {}, SQUARES, rate=1e-3),
    "YOLO backbone": Spec("detectors", "Backbone", 416, (), {}, SQUARES, rate=1e-2),
    "small": Spec("resnets", "Plain", 32, classes=10, rate=1e-3),
    "ResNet-20": Spec("resnets", "ResNet", 32, ((3, 3, 3), (16, 32, 64), False, 10, True), classes=10),
}
BESIDE_ALL = ("ResNet-50", "small", "ResNet-20")  # on CPUs JAX and stock MLX take part
BESIDE_JAX = ("ResNet-50",)  # on a GPU, and PyTorch that tries all kernels


class Cell(NamedTuple):
    """What is measured: a network in one mode, on images of one size, in one dtype."""

    network: str
    mode: str
    batch: int
    dtype: str
    pixels: int
    device: str = "cpu"

    @property
    def spec(self) -> Spec:
        """The network."""
        return NETWORKS[self.network]

    @property
    def trains(self) -> bool:
        """Whether a step is one of training."""
        return self.mode == TRAINING

    def __str__(self) -> str:
        return f"{self.network}, {self.mode} x{self.batch}, {self.dtype}, {self.pixels} pixels"


def cells(device: str, quick: bool = False) -> list[Cell]:
    """The whole matrix: network by network, float32 first."""
    found = []
    for network, spec in NETWORKS.items():
        pixels = min(spec.pixels, QUICK_PIXELS) if quick else spec.pixels
        for dtype in DTYPES:
            for mode in MODES:
                for batch in (GPU_BATCHES if device == "gpu" else BATCHES)[mode]:
                    many = device == "gpu" and spec.pixels < QUICK_PIXELS and batch > 1
                    batch = min(batch, QUICK_BATCH) if quick else OF_SMALL_IMAGES if many else batch
                    found.append(Cell(network, mode, batch, dtype, pixels, device))
    return list(dict.fromkeys(found))


def of_mlx(cell: Cell) -> Any:
    """The network in mlx.nn, not converted."""
    spec = cell.spec
    return getattr(importlib.import_module(f"models.{spec.module}"), spec.name)(*spec.arguments, **spec.without)


def of_torch(cell: Cell, weights: Mapping[str, np.ndarray]) -> Any:
    """Its twin in PyTorch, with these weights."""
    twins = importlib.import_module("models.twins")
    return twins.copied(getattr(twins, cell.spec.name)(*cell.spec.arguments), weights)


def data(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Random images and classes, the same for all."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=cell.spec.shape(cell.batch, cell.pixels)).astype(np.float32)
    return x, rng.integers(0, cell.spec.classes, cell.batch).astype(np.int32)


def write_weights(cell: Cell, file: Path) -> None:
    """Draws parameters by which signals neither vanish nor grow, and statistics that are not all alike."""
    from mlx.utils import tree_flatten

    rng = np.random.default_rng(1)
    arrays = {path: _drawn(rng, path, tuple(a.shape)) for path, a in tree_flatten(of_mlx(cell).parameters())}
    np.savez(file, **arrays)


def _drawn(rng: np.random.Generator, path: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = path.rpartition(".")[2]
    if len(shape) > 1:
        gain = 2.0 if len(shape) == 4 else 1.0
        drawn = rng.normal(size=shape) * math.sqrt(gain / math.prod(shape[1:]))
    elif kind in ("bias", "running_mean"):
        drawn = 0.1 * rng.normal(size=shape)
    else:  # scales and variances
        drawn = rng.uniform(0.8, 1.2, shape)
    return drawn.astype(np.float32)


def weights(file: Path) -> dict[str, np.ndarray]:
    """What was drawn."""
    with np.load(file) as held:
        return dict(held)
