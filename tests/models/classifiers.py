"""Networks that classify images, as users write them with mlx.nn: a DenseNet, a ConvNeXt, and a ResNet for CIFAR."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class DenseLayer(nn.Module):
    """Norm and relu ahead of each convolution; what it finds is laid beside what it was given."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.conv1(nn.relu(self.norm1(x)))
        y = self.conv2(nn.relu(self.norm2(y)))
        return mx.concatenate([x, self.dropout(y)], axis=-1)


class DenseNet(nn.Module):
    """DenseNet-121, or another by its growth and blocks (Huang et al. 2017)."""

    def __init__(
        self,
        growth: int = 32,
        blocks: tuple[int, ...] = (6, 12, 24, 16),
        num_classes: int = 1000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = []
        for i, depth in enumerate(blocks):
            layers: list[nn.Module] = []
            for _ in range(depth):
                layers.append(DenseLayer(channels, growth, dropout))
                channels += growth
            if i + 1 < len(blocks):
                layers += [nn.BatchNorm(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
                layers.append(nn.AvgPool2d(2))
                channels //= 2
            self.stages.append(nn.Sequential(*layers))
        self.norm = nn.BatchNorm(channels)
        self.classifier = nn.Linear(channels, num_classes)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        x = nn.relu(self.norm(x))
        return self.classifier(x.mean(axis=(1, 2)))


class DropPath(nn.Module):
    """Leaves a residual branch out for some of the images of a batch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def __call__(self, x: mx.array) -> mx.array:
        if not self.training or self.rate == 0:
            return x
        kept = mx.random.bernoulli(1 - self.rate, (x.shape[0], 1, 1, 1))
        return x * kept.astype(x.dtype) / (1 - self.rate)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and an MLP over channels, scaled."""

    def __init__(self, channels: int, layer_scale: float, drop_path: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = mx.full((channels,), layer_scale)
        self.drop_path = DropPath(drop_path)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.pwconv1(self.norm(self.dwconv(x)))
        y = self.gamma * self.pwconv2(self.act(y))
        return x + self.drop_path(y)


class ConvNeXt(nn.Module):
    """ConvNeXt-T, or another by its depths and widths (Liu et al. 2022)."""

    def __init__(
        self,
        depths: tuple[int, ...] = (3, 3, 9, 3),
        widths: tuple[int, ...] = (96, 192, 384, 768),
        num_classes: int = 1000,
        layer_scale: float = 1e-6,
        drop_path: float = 0.1,
    ) -> None:
        super().__init__()
        self.stem = [nn.Conv2d(3, widths[0], 4, stride=4), nn.LayerNorm(widths[0], eps=1e-6)]
        self.downsample = [
            {"norm": nn.LayerNorm(a, eps=1e-6), "conv": nn.Conv2d(a, b, 2, stride=2)}
            for a, b in zip(widths, widths[1:], strict=False)
        ]
        self.stages = [
            [ConvNeXtBlock(width, layer_scale, drop_path) for _ in range(depth)]
            for depth, width in zip(depths, widths, strict=True)
        ]
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], num_classes)

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.stem:
            x = layer(x)
        for i, stage in enumerate(self.stages):
            if i:
                down = self.downsample[i - 1]
                x = down["conv"](down["norm"](x))
            for block in stage:
                x = block(x)
        return self.head(self.norm(x.mean(axis=(1, 2))))


class Shortcut(nn.Module):
    """Every second pixel, and channels of zeros: the shortcut without parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def __call__(self, x: mx.array) -> mx.array:
        x = x[:, ::2, ::2, :]
        more = (self.channels - x.shape[-1]) // 2
        return mx.pad(x, [(0, 0), (0, 0), (0, 0), (more, more)])


class BasicBlock(nn.Module):
    """Two convolutions; relu is a function."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(out_channels)
        self.shortcut = Shortcut(out_channels) if stride != 1 else None

    def __call__(self, x: mx.array) -> mx.array:
        y = nn.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return nn.relu(y)


class CifarResNet(nn.Module):
    """ResNet-20 for images of 32 pixels, or another by its blocks and width (He et al. 2015, section 4.2)."""

    def __init__(self, blocks: int = 3, width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(width)
        self.layer1 = self._stage(width, width, blocks, 1)
        self.layer2 = self._stage(width, 2 * width, blocks, 2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, 2)
        self.linear = nn.Linear(4 * width, num_classes)

    def _stage(self, channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(channels, out_channels, stride)
        return nn.Sequential(first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)))

    def __call__(self, x: mx.array) -> mx.array:
        x = nn.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(mx.mean(x, axis=[1, 2]))
