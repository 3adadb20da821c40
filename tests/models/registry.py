"""The networks that conversion is proven with: how each is built, what it is given, and what it is trained for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from . import classifiers, generators, sequences


class Network(NamedTuple):
    """A network, and an example for it.

    Fields:
        name: What tests and tables call it.
        build: Makes it.
        shape: Of an example.
        loss: Of its results and the example; targets are made from these.
        rate: How far SGD steps: no further than that the second step is as well defined as the first, in float32.
        shift: What is added to the biases of batch norms. With 2, of the values that a relu is given 2 in 100 are
            negative, and few so close to 0 that rounding decides on which side they are. Each of those costs a gradient
            a whole pixel, and dozens of layers make so much of it that in 16 bits nothing else is left of them.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[Any, mx.array], mx.array]
    rate: float = 0.01
    shift: float = 0.0


def wide(y: mx.array) -> mx.array:
    """Losses of 16 bits are computed in float32, as users do."""
    return y if y.dtype == mx.float64 else y.astype(mx.float32)


def classes(y: mx.array, x: mx.array) -> mx.array:
    """Cross entropy; the class of an image is its place in the batch, that of a column its place in the line."""
    targets = mx.broadcast_to(mx.arange(y.shape[-2]) % y.shape[-1], y.shape[:-1])
    return -mx.take_along_axis(nn.log_softmax(wide(y)), targets[..., None], axis=-1).mean()


def images(y: mx.array, x: mx.array) -> mx.array:
    """Squared errors to the example, added up over an image."""
    return ((wide(y) - wide(x)) ** 2).sum() / len(x)


def autoencoder(outputs: tuple[mx.array, mx.array, mx.array], x: mx.array) -> mx.array:
    """What is lost of the image, and how far the latents are from normal ones."""
    y, mean, log_variance = map(wide, outputs)
    divergence = -0.5 * (1 + log_variance - mean**2 - mx.exp(log_variance)).sum()
    return images(y, x) + divergence / len(x)


def to_be_true(y: mx.array, x: mx.array) -> mx.array:
    """Binary cross entropy of a discriminator's results for true images."""
    return -nn.log_sigmoid(wide(y)).mean()


def bright(y: mx.array, x: mx.array) -> mx.array:
    """What a generator is far from a white image, added up over an image."""
    return ((wide(y) - 1) ** 2).sum() / len(x)


def mlx_image(name: str) -> Callable[[], nn.Module]:
    """A model of the package, with weights drawn at random."""

    def build() -> nn.Module:
        made: nn.Module = importlib.import_module("mlxim.model").create_model(name, weights=False)
        return made

    return build


# Small ones of those written here, for make test. A layer scale of 1e-6 is hardly a number in float16.
SMALL = (
    Network("DenseNet", lambda: classifiers.DenseNet(8, (2, 2), 10), (4, 32, 32, 3), classes),
    Network("ConvNeXt", lambda: classifiers.ConvNeXt((1, 2), (16, 32), 10, 0.1), (4, 32, 32, 3), classes),
    Network("CIFAR ResNet", lambda: classifiers.CifarResNet(1, 8), (4, 16, 16, 3), classes),
    Network("U-Net", lambda: generators.UNet(8, (1, 2)), (2, 16, 16, 3), images, 1e-4),
    Network("VAE", lambda: generators.VAE(16, 8, 8), (4, 16, 16, 3), autoencoder, 1e-4),
    Network("DCGAN generator", lambda: generators.Generator(16, 8, 2), (4, 1, 1, 16), bright, 1e-4),
    Network("DCGAN discriminator", lambda: generators.Discriminator(8, 2), (4, 16, 16, 3), to_be_true),
    Network("1-D network", lambda: sequences.WaveNet1d(6, 16), (4, 128, 6), classes),
    Network("recurrent mix", lambda: sequences.Reader(8, 16, 20), (4, 16, 32, 1), classes),
)
# Those of the sizes that people use, on small images, for make models.
WHOLE = (
    Network("DenseNet-121, growth 12", lambda: classifiers.DenseNet(12), (4, 64, 64, 3), classes, 1e-5, 2.0),
    Network("ConvNeXt-T", lambda: classifiers.ConvNeXt(layer_scale=0.1), (2, 32, 32, 3), classes),
    Network("CIFAR ResNet-20", classifiers.CifarResNet, (4, 32, 32, 3), classes, shift=2.0),
    Network("U-Net", lambda: generators.UNet(32), (2, 16, 16, 3), images, 1e-4),
    Network("VAE", lambda: generators.VAE(32, 32, 32), (4, 32, 32, 3), autoencoder, 1e-4),
    Network("DCGAN generator", lambda: generators.Generator(width=16), (4, 1, 1, 100), bright, 1e-4),
    Network("DCGAN discriminator", lambda: generators.Discriminator(width=16), (4, 64, 64, 3), to_be_true),
    Network("1-D network", sequences.WaveNet1d, (4, 256, 6), classes),
    Network("recurrent mix", sequences.Reader, (4, 32, 64, 1), classes),
)
OF_MLX_IMAGE = (
    *(
        Network(name, mlx_image(name), (4, 36, 36, 3), classes, 1e-6, 2.0)
        for name in (
            "resnet18",
            "resnet50",
            "mobilenet_v2",
            "mobilenet_v3_small",
            "mobilenet_v3_large",
            "efficientnet_b0",
            "regnet_y_400mf",
        )
    ),
    Network("swin_tiny", mlx_image("swin_tiny_patch4_window7_224"), (1, 32, 32, 3), classes, 1e-6),
)
