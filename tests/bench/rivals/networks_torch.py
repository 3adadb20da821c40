"""The networks in PyTorch, eager or compiled, in one of two layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ..networks import CHANNELS, LEARNING_RATE, MOMENTUM, STAGES, Setting, Step


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))


def small() -> nn.Module:
    layers: list[Any] = []
    for i, (before, after) in enumerate(zip((3, *CHANNELS), CHANNELS, strict=False)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.AvgPool2d(3, 2, 1)] * (i % 2)
    return nn.Sequential(*layers, Mean(), nn.Linear(CHANNELS[-1], 10))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x) + self.short(x))


def resnet20() -> nn.Module:
    layers: list[Any] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for after in STAGES:
        for i in range(3):
            layers.append(Block(before, after, 2 if i == 0 and after > 16 else 1))
            before = after
    return nn.Sequential(*layers, Mean(), nn.Linear(STAGES[-1], 10))


def step(
    setting: Setting,
    parameters: dict[str, list[np.ndarray]],
    x: np.ndarray,
    labels: np.ndarray,
    *,
    channels_last: bool,
    compiled: bool = False,
) -> Step:
    """A training step of a network with the parameters of MLX's."""
    device = {"cpu": "cpu", "gpu": "cuda"}[setting.device]
    dtype = getattr(torch, setting.dtype)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = {"small": small, "resnet20": resnet20}[setting.network]()
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    (linear,) = (module for module in model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        for module, weight in zip(convolutions, parameters["conv"], strict=True):
            module.weight.copy_(torch.from_numpy(weight.copy()))
        linear.weight.copy_(torch.from_numpy(parameters["linear"][0].copy()))
        linear.bias.copy_(torch.from_numpy(parameters["bias"][0].copy()))
    model = model.to(device=device, dtype=dtype, memory_format=layout)  # type: ignore[call-overload]  # not in its types
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    images = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(memory_format=layout).to(device, dtype)
    targets = torch.from_numpy(labels).to(device).long()

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(images), targets)

    forward = torch.compile(loss) if compiled else loss

    def times(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            value = forward()
            value.backward()
            optimizer.step()
        return float(value.item())

    return Step(times, lambda: {})


def peak() -> int:
    """Bytes of tensors at most in use since the process began."""
    return torch.cuda.max_memory_allocated()
