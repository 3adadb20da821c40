"""Public functions and their gradients from files, run on the Metal host, beside the CPU.

``make test`` runs some of each family, ``make kernels`` all that have derivatives, or of these one in
MPSFUNC_KERNEL_SAMPLE.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from exporting import mlxfn, run_file
from generic.ops import FAMILIES
from metal_host.host import needs_clang
from support.matrix import MATRIX, OP_OF, grads

import mpsfunc as mf

pytestmark = [needs_clang, pytest.mark.needs_cpu_module, pytest.mark.usefixtures("on_cpu")]

CHOSEN = (
    "neuron",
    "prelu",
    "max_pool",
    "avg_pool",
    "conv",
    "conv_transpose",
    "bn_normalize",
    "group_norm",
    "loss_value",
)
CHOSEN = (*CHOSEN, "softmax", "add", "resize_bilinear", "grid_sample", "dice_loss")


# The first sample of each function that has derivatives.
FIRST = {OP_OF[name.removesuffix(" float64")].name: name for name in reversed(MATRIX)}
SAMPLE = int(os.environ.get("MPSFUNC_KERNEL_SAMPLE") or 1)

functions = pytest.mark.parametrize(
    "name",
    [
        name if name in CHOSEN else pytest.param(name, marks=pytest.mark.kernels)
        for name in FIRST
        if name in CHOSEN or zlib.crc32(name.encode()) % SAMPLE == 0
    ],
)


def agree(function: Callable[..., Sequence[mx.array]], arrays: Sequence[mx.array], path: Path) -> None:
    """Compares what a file of the function makes with what the function makes on the CPU."""
    mx.eval(arrays)
    right = function(*arrays)
    mf.export(path, function, *arrays)
    file = mlxfn.read(path.read_bytes())
    assert {stream.device for stream in file.streams} <= {"gpu"}
    found = run_file.run(file, [np.array(a) for a in arrays], sanitizer="quick address")
    for one, other in zip(found, right, strict=True):
        expected = np.array(other)
        assert (one.shape, one.dtype) == (expected.shape, expected.dtype)
        size = float(np.abs(expected).max(initial=0))
        np.testing.assert_allclose(one, expected, rtol=0, atol=2e-5 * size)


@functions
def test_forward(name: str, tmp_path: Path) -> None:
    entry = MATRIX[FIRST[name]]
    agree(entry.call, entry.inputs(mx.float32), tmp_path / "function.mlxfn")


@functions
def test_backward(name: str, tmp_path: Path) -> None:
    entry = MATRIX[FIRST[name]]
    agree(grads(entry.square, len(entry.shapes)), entry.inputs(mx.float32), tmp_path / "function.mlxfn")


def test_chosen_are_of_every_family() -> None:
    families = {"activation", "pooling", "convolution", "normalization", "losses", "elementwise", "image"}
    assert {FAMILIES[name] for name in CHOSEN} == families
