"""Networks that make images, as users write them with mlx.nn: a U-Net, a VAE, and a DCGAN."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups of neighbouring channels."""
    return nn.GroupNorm(min(8, channels // 2), channels, pytorch_compatible=True)


class ResidualBlock(nn.Module):
    """Norm and silu ahead of each convolution."""

    def __init__(self, channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = group_norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = group_norm(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if channels != out_channels:
            self.skip = nn.Conv2d(channels, out_channels, 1)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.conv1(nn.silu(self.norm1(x)))
        y = self.conv2(self.dropout(nn.silu(self.norm2(y))))
        return y + (self.skip(x) if "skip" in self else x)


class UNet(nn.Module):
    """A U-Net with group norm and silu, as in diffusion, without their time."""

    def __init__(self, width: int = 64, scales: tuple[int, ...] = (1, 2, 4), dropout: float = 0.1) -> None:
        super().__init__()
        widths = [width * scale for scale in scales]
        self.inside = nn.Conv2d(3, width, 3, padding=1)
        self.down = [
            {"block": ResidualBlock(a, b, dropout), "conv": nn.Conv2d(b, b, 3, stride=2, padding=1)}
            for a, b in zip([width, *widths], widths, strict=False)
        ]
        self.middle = ResidualBlock(widths[-1], widths[-1], dropout)
        self.up = [
            {
                "upsample": nn.Upsample(2, mode="nearest"),
                "conv": nn.Conv2d(a, b, 3, padding=1),
                "block": ResidualBlock(2 * b, b, dropout),
            }
            for a, b in zip([widths[-1], *widths[::-1]], widths[::-1], strict=False)
        ]
        self.norm = group_norm(width * scales[0])
        self.outside = nn.Conv2d(width * scales[0], 3, 3, padding=1)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.inside(x)
        skips = []
        for down in self.down:
            x = down["block"](x)
            skips.append(x)
            x = down["conv"](x)
        x = self.middle(x)
        for up in self.up:
            x = up["conv"](up["upsample"](x))
            x = up["block"](mx.concatenate([x, skips.pop()], axis=-1))
        return self.outside(nn.silu(self.norm(x)))


class VAE(nn.Module):
    """A variational autoencoder of convolutions for images of a fixed size."""

    def __init__(self, size: int = 64, width: int = 64, latent: int = 64) -> None:
        super().__init__()
        self.side = size // 8
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm(width), nn.BatchNorm(2 * width), nn.BatchNorm(4 * width)
        flat = 4 * width * self.side**2
        self.mean, self.log_variance = nn.Linear(flat, latent), nn.Linear(flat, latent)
        self.grow = nn.Linear(latent, flat)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 3, stride=2, padding=1, output_padding=1)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1, output_padding=1)
        self.up3 = nn.ConvTranspose2d(width, 3, 3, stride=2, padding=1, output_padding=1)
        self.bn4, self.bn5 = nn.BatchNorm(2 * width), nn.BatchNorm(width)

    def encode(self, x: mx.array) -> tuple[mx.array, mx.array]:
        x = nn.leaky_relu(self.bn1(self.conv1(x)))
        x = nn.leaky_relu(self.bn2(self.conv2(x)))
        x = nn.leaky_relu(self.bn3(self.conv3(x)))
        x = x.flatten(1)
        return self.mean(x), self.log_variance(x)

    def decode(self, z: mx.array) -> mx.array:
        x = self.grow(z).reshape(z.shape[0], self.side, self.side, -1)
        x = nn.leaky_relu(self.bn4(self.up1(x)))
        x = nn.leaky_relu(self.bn5(self.up2(x)))
        return mx.sigmoid(self.up3(x))

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        mean, log_variance = self.encode(x)
        # Of 8 bits, which every dtype holds, so that all are given the same noise.
        noise = mx.random.normal(mean.shape, mx.bfloat16).astype(mean.dtype)
        z = mean + noise * mx.exp(0.5 * log_variance)
        return self.decode(z), mean, log_variance


class Generator(nn.Module):
    """DCGAN's generator: from (n, 1, 1, latent) to images of 64 pixels with 4 stages (Radford et al. 2015)."""

    def __init__(self, latent: int = 100, width: int = 64, stages: int = 4) -> None:
        super().__init__()
        channels = width * 2 ** (stages - 1)
        layers = [nn.ConvTranspose2d(latent, channels, 4, bias=False), nn.BatchNorm(channels), nn.ReLU()]
        for _ in range(stages - 1):
            layers += [
                nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm(channels // 2),
                nn.ReLU(),
            ]
            channels //= 2
        layers += [nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1, bias=False), nn.Tanh()]
        self.main = nn.Sequential(*layers)

    def __call__(self, z: mx.array) -> mx.array:
        return self.main(z)


class Discriminator(nn.Module):
    """DCGAN's discriminator: a number for each image."""

    def __init__(self, width: int = 64, stages: int = 4) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, width, 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2)]
        for _ in range(stages - 1):
            layers += [
                nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm(2 * width),
                nn.LeakyReLU(0.2),
            ]
            width *= 2
        layers += [nn.Conv2d(width, 1, 4, bias=False)]
        self.main = nn.Sequential(*layers)

    def __call__(self, x: mx.array) -> mx.array:
        return self.main(x).reshape(-1)
