"""Whole networks in PyTorch, channels last, eager or compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import whole
from . import Runner


def runner(cell: whole.Cell, weights: Mapping[str, np.ndarray], *, compiled: bool, autotuned: bool = False) -> Runner:
    """Steps of a network with these weights."""
    device = {"cpu": "cpu", "gpu": "cuda"}[cell.device]
    if device == "cpu":
        torch.set_num_threads(2)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    given, classes = whole.data(cell)
    dtype = getattr(torch, cell.dtype)
    with torch.no_grad():
        model = whole.of_torch(cell, weights)
    model = model.to(device=device, dtype=dtype, memory_format=torch.channels_last).train(cell.trains)
    x = torch.from_numpy(given).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last).to(device, dtype)
    targets = torch.from_numpy(classes).to(device).long()
    mode = {"mode": "max-autotune"} if autotuned else {}
    make = _training if cell.trains else _inference
    run = make(cell, model, x, targets, (lambda f: torch.compile(f, **mode)) if compiled else None)
    return run


def loss_of(cell: whole.Cell, y: Any, classes: torch.Tensor) -> torch.Tensor:
    """In float32, as users compute it."""
    if cell.spec.loss == whole.CLASSES:
        return nn.functional.cross_entropy(y.float(), classes)
    return sum(((each.float() - 1) ** 2).mean() for each in _several(y))


def _several(y: Any) -> list[torch.Tensor]:
    return list(y) if isinstance(y, tuple) else [y]


def _training(cell: whole.Cell, model: nn.Module, x: torch.Tensor, classes: torch.Tensor, compiled: Any) -> Runner:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # imports a good deal of PyTorch
    optimizer = torch.optim.SGD(model.parameters(), cell.spec.rate, momentum=whole.MOMENTUM)

    def loss() -> torch.Tensor:
        return loss_of(cell, model(x), classes)

    forward = compiled(loss) if compiled else loss

    def run(count: int, ahead: bool = False) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            value = forward()
            value.backward()
            optimizer.step()
            _waited(x, ahead)
        return float(value.item())

    return Runner(run, lambda: [])


def _inference(cell: whole.Cell, model: nn.Module, x: torch.Tensor, classes: torch.Tensor, compiled: Any) -> Runner:
    if compiled:
        import torch._inductor.config as config

        config.freezing = True  # weights become constants of the compiled code, which may be laid out in another way
    off: type[contextlib.ContextDecorator] = torch.no_grad if compiled else torch.inference_mode
    forward = compiled(model) if compiled else model
    outputs: list[np.ndarray] = []
    if compiled:
        with off():
            forward(x)

    def run(count: int, ahead: bool = False) -> float:
        with off():
            for _ in range(count):
                y = forward(x)
                _waited(x, ahead)
            if not outputs:
                outputs.extend(each.float().cpu().numpy() for each in _several(y))
        _waited(x, False)
        return 0.0

    return Runner(run, lambda: [y.transpose(0, 2, 3, 1) if y.ndim == 4 else y for y in outputs])


def _waited(x: torch.Tensor, ahead: bool) -> None:
    if x.is_cuda and not ahead:
        torch.cuda.synchronize()


def peak() -> int:
    """Bytes of tensors at most in use since the last reset."""
    return torch.cuda.max_memory_allocated()


def reset_peak() -> None:
    """Begins anew, from what is in use."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
