"""`models.mobile` in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..mobile_tables import TABLES, Row, Table

FUNCTIONS = {
    "relu": functional.relu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "hard_sigmoid": functional.hardsigmoid,
}
MODULES = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "hardswish": nn.Hardswish}


def convolved(channels: int, out: int, size: int, stride: int, act: str, eps: float, groups: int = 1) -> nn.Sequential:
    """A convolution with batch norm and its activation, if it has one, which is in place."""
    conv = nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out, eps), *([MODULES[act](inplace=True)] if act else []))


class SqueezeExcite(nn.Module):
    """Channels times numbers made of their means."""

    def __init__(self, channels: int, squeeze: int, act: str, gate: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeeze, 1), nn.Conv2d(squeeze, channels, 1)
        self.act, self.gate = FUNCTIONS[act], FUNCTIONS[gate]

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.fc2(self.act(self.fc1(mean))))


class InvertedResidual(nn.Module):
    """More channels, a depthwise convolution, and fewer again."""

    def __init__(self, row: Row, table: Table) -> None:
        super().__init__()
        size, channels, expanded, out, squeeze, stride, act = row
        layers: list[nn.Module] = []
        layers += [convolved(channels, expanded, 1, 1, act, table.eps)] if expanded != channels else []
        layers.append(convolved(expanded, expanded, size, stride, act, table.eps, groups=expanded))
        layers += [SqueezeExcite(expanded, squeeze, table.squeezed, table.gate)] if squeeze else []
        layers.append(convolved(expanded, out, 1, 1, "", table.eps))
        self.body = nn.Sequential(*layers)
        self.added = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.added else self.body(x)


class MobileNet(nn.Module):
    """`mobile.MobileNet`."""

    def __init__(self, name: str, num_classes: int = 1000) -> None:
        super().__init__()
        table = TABLES[name]
        self.stem = convolved(3, table.stem, 3, 2, table.act, table.eps)
        self.blocks = nn.Sequential(*(InvertedResidual(row, table) for row in table.rows))
        self.last = convolved(table.rows[-1].out, table.last, 1, 1, table.act, table.eps)
        head: list[nn.Module] = [nn.Linear(table.hidden or table.last, num_classes)]
        if table.hidden:
            head = [nn.Linear(table.last, table.hidden), MODULES[table.act](inplace=True), *head]
        self.head = nn.Sequential(*head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(x)))
        return self.head(x.mean((2, 3)))
