"""`models.resnets` in PyTorch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Of a ResNet."""

    def __init__(self, channels: int, out_channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = out_channels // 4 if bottleneck else out_channels
        if bottleneck:
            layers += [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [
            nn.Conv2d(width if bottleneck else channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out_channels, *((1, 1, 0) if bottleneck else (3, 1, 1)), bias=False),
            nn.BatchNorm2d(out_channels),
        ]
        self.body = nn.Sequential(*layers)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or channels != out_channels:
            conv = nn.Conv2d(channels, out_channels, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.short(x)
        return functional.relu(y, inplace=True)


class ResNet(nn.Module):
    """`resnets.ResNet`."""

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
        conv = nn.Conv2d(3, channels, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
        pool = [] if small else [nn.MaxPool2d(3, 2, 1)]
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *pool)
        self.stages = nn.ModuleList()
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            first = Block(channels, width, 2 if i else 1, bottleneck)
            self.stages.append(nn.Sequential(first, *(Block(width, width, 1, bottleneck) for _ in range(depth - 1))))
            channels = width
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.linear(x.mean((2, 3)))


class Plain(nn.Module):
    """`resnets.Plain`."""

    def __init__(self, widths: tuple[int, ...] = (64, 64, 128, 128, 256, 256), num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            layers += [nn.AvgPool2d(3, 2, 1)] * (i % 2)
        self.body = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.body(x).mean((2, 3)))
