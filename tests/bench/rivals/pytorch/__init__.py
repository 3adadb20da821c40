"""PyTorch's own operators, below autograd, on tensors that already have the layout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...problems import EPS
from .. import Call, Side, gathered
from . import activations, convolution, detection, normalization, pointwise, pooling, reductions, samples, sequences

functions = gathered(
    pooling, reductions, normalization, convolution, pointwise, samples, activations, sequences, detection
)

LAYOUTS = {"PyTorch NCHW": torch.contiguous_format, "PyTorch NHWC": torch.channels_last}

_PARAMETERS = ("gamma", "beta")


def side(name: str, layout: torch.memory_format, device: str, *, functions: Any = functions) -> Side:
    """PyTorch on a device, with images and weights in one layout."""

    def place(arrays: SimpleNamespace, dtype: str) -> SimpleNamespace:
        torch.set_grad_enabled(False)
        placed = SimpleNamespace()
        for key, value in vars(arrays).items():
            tensor = torch.from_numpy(value).to(device)
            if tensor.is_floating_point():  # labels and masks stay what they are
                plain = key in _PARAMETERS and dtype != "float64"
                tensor = tensor.to(torch.float32 if plain else getattr(torch, dtype))
            if tensor.ndim == 4:
                tensor = tensor.permute(0, 3, 1, 2).contiguous(memory_format=layout)
            elif tensor.ndim == 3:  # sequences, whose channels come last in memory as they are
                tensor = tensor.permute(0, 2, 1)
                tensor = tensor.contiguous() if layout == torch.contiguous_format else tensor
            setattr(placed, key, tensor)
        return placed

    return Side(name, functions, place, _keeping, answer)


def _keeping(call: Call, times: int) -> None:
    """As one evaluation of MLX, and a training step, keep the results of several."""
    results = [call() for _ in range(times)]
    del results


def answer(op: str, outputs: list[Any]) -> list[np.ndarray]:
    """To NumPy, channels last."""
    if op == "bn_stats":  # the root of the variance comes inverted
        outputs = [outputs[0], outputs[1].double() ** -2 - EPS]
    wide = (out.double() for out in outputs)
    return [(out.movedim(1, -1) if out.ndim > 2 else out).cpu().numpy() for out in wide]
