"""Residual networks and a plain one, as users write them with mlx.nn."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three; the shortcut is projected where shapes differ."""

    def __init__(self, channels: int, out_channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = out_channels // 4 if bottleneck else out_channels
        if bottleneck:
            layers += [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm(width), nn.ReLU()]
        layers += [
            nn.Conv2d(width if bottleneck else channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm(width),
            nn.ReLU(),
            nn.Conv2d(width, out_channels, *((1, 1, 0) if bottleneck else (3, 1, 1)), bias=False),
            nn.BatchNorm(out_channels),
        ]
        self.body = nn.Sequential(*layers)
        self.short = nn.Identity()
        if stride > 1 or channels != out_channels:
            conv = nn.Conv2d(channels, out_channels, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm(out_channels))

    def __call__(self, x: mx.array) -> mx.array:
        return nn.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """He's networks: ResNet-50, or another by its blocks and widths; with ``small`` for images of 32 pixels."""

    def __init__(
        self,
        depths: tuple[int, ...] = (3, 4, 6, 3),
        widths: tuple[int, ...] = (256, 512, 1024, 2048),
        bottleneck: bool = True,
        num_classes: int = 1000,
        small: bool = False,
    ) -> None:
        super().__init__()
        channels = widths[0] // 4 if bottleneck else widths[0]
        window = (3, 1, 1) if small else (7, 2, 3)
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, *window, bias=False),
            nn.BatchNorm(channels),
            nn.ReLU(),
            *([] if small else [nn.MaxPool2d(3, stride=2, padding=1)]),
        )
        self.stages = []
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            first = Block(channels, width, 2 if i else 1, bottleneck)
            self.stages.append(nn.Sequential(first, *(Block(width, width, 1, bottleneck) for _ in range(depth - 1))))
            channels = width
        self.linear = nn.Linear(channels, num_classes)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.linear(x.mean(axis=(1, 2)))


class Plain(nn.Module):
    """3x3 convolutions with batch norm and relu, an average pooling behind each second one, and a linear layer."""

    def __init__(self, widths: tuple[int, ...] = (64, 64, 128, 128, 256, 256), num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm(after), nn.ReLU()]
            layers += [nn.AvgPool2d(3, 2, 1)] * (i % 2)
        self.body = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1], num_classes)

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(self.body(x).mean(axis=(1, 2)))
