"""Networks once more in PyTorch, with parameters under the same names, so that weights can be copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from .classifiers import CifarResNet as CifarResNet
from .classifiers import ConvNeXt as ConvNeXt
from .detectors import Backbone as Backbone
from .generators import Generator as Generator
from .generators import UNet as UNet
from .mobile import MobileNet as MobileNet
from .resnets import Plain as Plain
from .resnets import ResNet as ResNet


def copied(twin: nn.Module, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """Gives a twin the parameters and statistics of a network of MLX."""
    theirs = {name: a for name, a in twin.state_dict().items() if not name.endswith("num_batches_tracked")}
    turned = {f"{name}.weight" for name, each in twin.named_modules() if isinstance(each, nn.ConvTranspose2d)}
    ours = {renamed(name): a for name, a in arrays.items()}
    ours = {
        name: np.ascontiguousarray(a.transpose(3, 0, 1, 2)) if name in turned else ordered(a)
        for name, a in ours.items()
    }
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    for name, a in ours.items():
        assert theirs[name].shape == a.shape, name
        theirs[name].copy_(torch.from_numpy(a))
    return twin


def renamed(name: str) -> str:
    """PyTorch's Sequential has its layers in itself."""
    return name.replace(".layers.", ".")


def ordered(a: np.ndarray) -> np.ndarray:
    """Images and weights with channels ahead of pixels."""
    return np.ascontiguousarray(a.transpose(0, 3, 1, 2) if a.ndim == 4 else a)
