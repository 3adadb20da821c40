"""`models.classifiers` in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Shortcut(nn.Module):
    """Every second pixel, and channels of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        more = (self.channels - x.shape[1]) // 2
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more))


class BasicBlock(nn.Module):
    """Of the ResNet for CIFAR."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = Shortcut(out_channels) if stride != 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """`classifiers.CifarResNet`."""

    def __init__(self, blocks: int, width: int, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks, 1)
        self.layer2 = self._stage(width, 2 * width, blocks, 2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, 2)
        self.linear = nn.Linear(4 * width, num_classes)

    def _stage(self, channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
        strides = [stride] + [1] * (blocks - 1)
        return nn.Sequential(
            *(BasicBlock(out_channels if i else channels, out_channels, s) for i, s in enumerate(strides))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Of the ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1))))
        return x + (self.gamma * self.pwconv2(y)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """`classifiers.ConvNeXt`."""

    def __init__(self, depths: tuple[int, ...], widths: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6))
        self.downsample = nn.ModuleList(
            nn.ModuleDict({"norm": ChannelNorm(a, eps=1e-6), "conv": nn.Conv2d(a, b, 2, 2)})
            for a, b in zip(widths, widths[1:], strict=False)
        )
        self.stages = nn.ModuleList(
            nn.ModuleList(ConvNeXtBlock(width) for _ in range(depth))
            for depth, width in zip(depths, widths, strict=True)
        )
        self.norm, self.head = nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, stage in enumerate(self.stages):
            if i:
                down: Any = self.downsample[i - 1]
                x = down["conv"](down["norm"](x))
            for block in stage:
                x = block(x)
        return self.head(self.norm(x.mean((2, 3))))
