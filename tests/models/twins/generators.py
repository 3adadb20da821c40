"""`models.generators` in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Of the U-Net."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(min(8, each // 2), each) for each in (channels, out_channels))
        self.conv1 = nn.Conv2d(channels, out_channels, 3, 1, 1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.skip = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.conv2(functional.silu(self.norm2(y))) + self.skip(x)


class UNet(nn.Module):
    """`generators.UNet`."""

    def __init__(self, width: int, scales: tuple[int, ...]) -> None:
        super().__init__()
        widths = [width * scale for scale in scales]
        self.inside = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.ModuleList(
            nn.ModuleDict({"block": ResidualBlock(a, b), "conv": nn.Conv2d(b, b, 3, 2, 1)})
            for a, b in zip([width, *widths], widths, strict=False)
        )
        self.middle = ResidualBlock(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            nn.ModuleDict({"conv": nn.Conv2d(a, b, 3, 1, 1), "block": ResidualBlock(2 * b, b)})
            for a, b in zip([widths[-1], *widths[::-1]], widths[::-1], strict=False)
        )
        self.norm = nn.GroupNorm(min(8, widths[0] // 2), widths[0])
        self.outside = nn.Conv2d(widths[0], 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        skips = []
        for down in self.down:
            x = down["block"](x)
            skips.append(x)
            x = down["conv"](x)
        x = self.middle(x)
        for up in self.up:
            x = up["conv"](functional.interpolate(x, scale_factor=2, mode="nearest"))
            x = up["block"](torch.cat([x, skips.pop()], 1))
        return self.outside(functional.silu(self.norm(x)))


class Generator(nn.Module):
    """`generators.Generator`."""

    def __init__(self, latent: int, width: int, stages: int) -> None:
        super().__init__()
        channels = width * 2 ** (stages - 1)
        layers = [nn.ConvTranspose2d(latent, channels, 4, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        for _ in range(stages - 1):
            conv = nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False)
            layers += [conv, nn.BatchNorm2d(channels // 2), nn.ReLU()]
            channels //= 2
        layers += [nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.main = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z)
