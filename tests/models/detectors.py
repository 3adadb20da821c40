"""A detector's backbone, as users write it with mlx.nn: that of YOLOv8, of which heads read three images."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class ConvUnit(nn.Module):
    """A convolution with batch norm and silu."""

    def __init__(self, channels: int, out: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm(out, eps=1e-3)

    def __call__(self, x: mx.array) -> mx.array:
        return nn.silu(self.bn(self.conv(x)))


class ConvPair(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = ConvUnit(channels, channels, 3), ConvUnit(channels, channels, 3)

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.cv2(self.cv1(x))


class CrossStage(nn.Module):
    """Half of the channels goes through pairs of convolutions; every stage of it is kept."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2
        self.cv1, self.cv2 = ConvUnit(channels, channels), ConvUnit((2 + depth) * half, channels)
        self.pairs = [ConvPair(half) for _ in range(depth)]

    def __call__(self, x: mx.array) -> mx.array:
        parts = list(mx.split(self.cv1(x), 2, axis=-1))
        for pair in self.pairs:
            parts.append(pair(parts[-1]))
        return self.cv2(mx.concatenate(parts, axis=-1))


class Pyramid(nn.Module):
    """Maxima of windows of 5, 9 and 13 pixels beside the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.cv1, self.cv2 = ConvUnit(channels, half), ConvUnit(4 * half, channels)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def __call__(self, x: mx.array) -> mx.array:
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.cv2(mx.concatenate(parts, axis=-1))


class Backbone(nn.Module):
    """YOLOv8-s's, or another by its widths and depths; images of an eighth, a 16th and a 32nd of the size."""

    def __init__(
        self, widths: tuple[int, ...] = (32, 64, 128, 256, 512), depths: tuple[int, ...] = (1, 2, 2, 1)
    ) -> None:
        super().__init__()
        self.stem = ConvUnit(3, widths[0], 3, 2)
        self.stages = [
            nn.Sequential(ConvUnit(before, after, 3, 2), CrossStage(after, depth))
            for before, after, depth in zip(widths, widths[1:], depths, strict=False)
        ]
        self.pyramid = Pyramid(widths[-1])

    def __call__(self, x: mx.array) -> tuple[mx.array, ...]:
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return (*found[1:-1], self.pyramid(x))
