"""Resampling, padding and concatenation beside PyTorch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
SIZES = [(10, 12), (5, 6), (7, 3), (1, 1), (13, 17)]
SHAPE = (2, 5, 6, 3)


def theirs(a: mx.array) -> Any:
    return torch.tensor(exact(a).transpose(0, 3, 1, 2), requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    np.testing.assert_allclose(exact(ours), tensor.detach().numpy().transpose(0, 2, 3, 1), rtol=1e-10, atol=1e-11)


def pulled(output: Any, dy: mx.array, source: Any) -> Any:
    return torch.autograd.grad(output, source, torch.tensor(exact(dy).transpose(0, 3, 1, 2)))[0]


@pytest.mark.parametrize("out_size", SIZES, ids=str)
@pytest.mark.parametrize("align_corners", [True, False])
def test_bilinear(out_size: tuple[int, int], align_corners: bool) -> None:
    x = numbers(SHAPE, mx.float64)
    y, state = mf.resize_bilinear_fwd(x, out_size, align_corners=align_corners)
    source = theirs(x)
    output = torch.nn.functional.interpolate(source, out_size, mode="bilinear", align_corners=align_corners)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.resize_bilinear_grad(dy, state), pulled(output, dy, source))


@pytest.mark.parametrize("scale", [1, 2, (3, 4)], ids=str)
def test_bilinear_by_a_scale(scale: Any) -> None:
    x = numbers(SHAPE, mx.float64)
    y = mf.upsample_bilinear(x, scale)
    agree(y, torch.nn.functional.interpolate(theirs(x), scale_factor=scale, mode="bilinear", align_corners=False))


@pytest.mark.parametrize("out_size", SIZES, ids=str)
@pytest.mark.parametrize(("coordinate", "mode"), [("asymmetric", "nearest"), ("half_pixel", "nearest-exact")])
def test_nearest(out_size: tuple[int, int], coordinate: str, mode: str) -> None:
    x = numbers(SHAPE, mx.float64)
    y, state = mf.resize_nearest_fwd(x, out_size, coordinate=coordinate)
    source = theirs(x)
    output = torch.nn.functional.interpolate(source, out_size, mode=mode)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.resize_nearest_grad(dy, state), pulled(output, dy, source))


@pytest.mark.parametrize("mode", ["constant", "clamp", "mirror"])
def test_pad(mode: str) -> None:
    """PyTorch reflects once; ours go on where theirs refuse."""
    x, value = numbers(SHAPE, mx.float64), 2.5 if mode == "constant" else 0.0
    y, state = mf.pad_fwd(x, (3, 1), (0, 5), mode, value)
    source = theirs(x)
    names = {"constant": "constant", "clamp": "replicate", "mirror": "reflect"}
    output = torch.nn.functional.pad(source, (1, 5, 3, 0), names[mode], value)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(mf.pad_grad(dy, state), pulled(output, dy, source))


def test_concatenate_and_mean() -> None:
    a, b = numbers(SHAPE, mx.float64), numbers((2, 5, 6, 4), mx.float64)
    agree(mf.concatenate([a, b]), torch.cat([theirs(a), theirs(b)], 1))
    source = theirs(a)
    output = source.mean((2, 3), keepdim=True)
    agree(mf.spatial_mean(a), output)
    dy = numbers((2, 1, 1, 3), mx.float64, 1)
    agree(mf.spatial_mean_grad(dy, SHAPE), pulled(output, dy, source))


@pytest.mark.parametrize("scale", [1, 2, (3, 4), 5], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_by_a_scale(scale: Any, mode: str) -> None:
    x = numbers(SHAPE, mx.float64)
    agree(mf.upsample_nearest(x, scale), torch.nn.functional.interpolate(theirs(x), scale_factor=scale, mode=mode))


def test_a_scale_that_is_not_whole() -> None:
    """Here sizes say how far positions are apart, and in PyTorch if it is told to."""
    x = numbers(SHAPE, mx.float64)
    y = mf.resize_bilinear(x, (6, 7))
    how: dict[str, Any] = {"scale_factor": 1.3, "mode": "bilinear"}
    agree(y, torch.nn.functional.interpolate(theirs(x), **how, recompute_scale_factor=True))
    theirs_alone = torch.nn.functional.interpolate(theirs(x), **how).detach().numpy().transpose(0, 2, 3, 1)
    assert theirs_alone.shape == tuple(y.shape)
    assert abs(theirs_alone - exact(y)).max() > 0.01
