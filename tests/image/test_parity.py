"""Resampling, padding and concatenation beside PyTorch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
SIZES = [(10, 12), (5, 6), (7, 3), (1, 1), (13, 17)]
SHAPE = (2, 5, 6, 3)
EDGES = ("zero", "border", "reflection")


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


@pytest.mark.parametrize("mode", ["constant", "replicate", "reflect", "circular"])
def test_pad(mode: str) -> None:
    """By PyTorch's names, which reflects once and goes round once; ours go on where theirs refuse."""
    x, value = numbers(SHAPE, mx.float64), 2.5 if mode == "constant" else 0.0
    y, state = mf.pad_fwd(x, (3, 1), (0, 5), mode, value)
    source = theirs(x)
    output = torch.nn.functional.pad(source, (1, 5, 3, 0), mode, value)
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
    """Its size says how far positions are apart if PyTorch is told so."""
    x = numbers(SHAPE, mx.float64)
    y = mf.resize_bilinear(x, (6, 7))
    how: dict[str, Any] = {"scale_factor": 1.3, "mode": "bilinear"}
    agree(y, torch.nn.functional.interpolate(theirs(x), **how, recompute_scale_factor=True))
    agree(mf.resize_bilinear(x, scale=1.3), torch.nn.functional.interpolate(theirs(x), **how))
    assert abs(exact(mf.resize_bilinear(x, scale=1.3)) - exact(y)).max() > 0.01


# Of each function what it takes, and what `interpolate` is given for it.
RESIZED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bilinear": ("resize_bilinear", {}, {"mode": "bilinear"}),
    "bilinear, corners": (
        "resize_bilinear",
        {"align_corners": True},
        {"mode": "bilinear", "align_corners": True},
    ),
    "bilinear, filtered": ("resize_bilinear", {"antialias": True}, {"mode": "bilinear", "antialias": True}),
    "bicubic": ("resize_bicubic", {}, {"mode": "bicubic"}),
    "bicubic, corners": ("resize_bicubic", {"align_corners": True}, {"mode": "bicubic", "align_corners": True}),
    "bicubic, filtered": ("resize_bicubic", {"antialias": True}, {"mode": "bicubic", "antialias": True}),
    "area": ("resize_area", {}, {"mode": "area"}),
    "nearest": ("resize_nearest", {}, {"mode": "nearest"}),
    "nearest-exact": ("resize_nearest", {"coordinate": "half_pixel"}, {"mode": "nearest-exact"}),
}
TO = [
    *({"out_size": size} for size in ((10, 12), (5, 6), (7, 3), (1, 1), (13, 17), (2, 40))),
    *({"scale": scale} for scale in (1.5, 0.3, 2.0, 0.5, 3.3, (0.25, 4.0), 2.1, 1 / 3, 0.9, (1.1, 0.7))),
]
SHAPES = [(2, 5, 6, 3), (1, 1, 9, 2), (2, 16, 11, 4), (1, 40, 1, 2), (1, 9, 12, 2)]


def interpolated(source: Any, to: dict[str, Any], how: dict[str, Any]) -> Any:
    scale = to.get("scale")
    factor = scale if scale is None or isinstance(scale, tuple) else (scale, scale)
    return torch.nn.functional.interpolate(source, to.get("out_size"), scale_factor=factor, **how)


@pytest.mark.parametrize("way", RESIZED)
@pytest.mark.parametrize("to", TO, ids=str)
def test_resizing(to: dict[str, Any], way: str) -> None:
    """Values and gradients, also of one row or one column."""
    name, ours, how = RESIZED[way]
    for shape in SHAPES:
        scale = to.get("scale", 1.0)
        if min(np.multiply(shape[1:3], scale)) < 1:  # PyTorch refuses it too
            continue
        x = numbers(shape, mx.float64)
        source = theirs(x)
        output = interpolated(source, to, how)
        y, state = getattr(mf, f"{name}_fwd")(x, **to, **ours)
        agree(y, output)
        dy = numbers(tuple(y.shape), mx.float64, 1)
        dx = getattr(mf, f"{name}_grad")(dy, state)
        copied = [n == m for n, m in zip(shape[1:3], y.shape[1:3], strict=True)]
        if "scale" in to and how.get("antialias") and any(copied) and not all(copied):
            # Of an axis that it copies PyTorch's gradient is that of one that is resized: no transpose of its matrix.
            plain = (dy * getattr(mf, name)(x, **to, **ours)).sum()
            np.testing.assert_allclose((dx * x).sum().item(), plain.item(), rtol=1e-10)
            continue
        agree(dx, pulled(output, dy, source))


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_filtered_to_one_column(channels: int, name: str) -> None:
    """Of contiguous images PyTorch has another result: see docs/families/image/upsampling.md."""
    x = numbers((1, 7, 9, channels), mx.float64)
    y = getattr(mf, f"resize_{name}")(x, (3, 1), antialias=True)
    source, how = theirs(x).detach(), {"mode": name, "antialias": True}
    rows = torch.nn.functional.interpolate(source.contiguous(), (3, 9), **how)
    agree(y, torch.nn.functional.interpolate(rows, (3, 1), **how))
    if channels > 1:
        last = source.contiguous(memory_format=torch.channels_last)
        agree(y, torch.nn.functional.interpolate(last, (3, 1), **how))
    contiguous = torch.nn.functional.interpolate(source.contiguous(), (3, 1), **how)
    assert abs(exact(y) - contiguous.numpy().transpose(0, 2, 3, 1)).max() > 0.05


def test_37_pixels_by_2_1_of_which_mlx_takes_a_wrong_one() -> None:
    """Position 17 is pixel 8 of what lies symmetrically. PyTorch's positions are those of no symmetric image."""
    x = numbers((1, 37, 1, 1))
    right = interpolated(theirs(x), {"scale": (2.1, 1)}, {"mode": "bicubic"})
    agree(mf.resize_bicubic(x.astype(mx.float64), scale=(2.1, 1)), right)
    ours = exact(mf.resize_bicubic(x, scale=(2.1, 1), coordinate="half_pixel_symmetric")).ravel()
    off = abs(exact(stock.Upsample((2.1, 1.0), mode="cubic")(x)).ravel() - ours)
    assert ours[17] == x[0, 8, 0, 0].item()
    assert np.flatnonzero(off > 1e-4).tolist() == [17], "MLX takes another pixel: see docs/families/image/upsampling.md"


@pytest.mark.parametrize("way", RESIZED)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_resizing_in_other_dtypes(way: str, dtype: mx.Dtype) -> None:
    """To the roundings of PyTorch, which rounds weights of bicubic images to 16 bits; it filters none in 16 bits."""
    name, ours, how = RESIZED[way]
    if how.get("antialias") and dtype != mx.float32:
        return
    kind = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}[dtype]
    rounding = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}[dtype]
    x = numbers((2, 9, 7, 4), dtype)
    for to in ({"out_size": (13, 5)}, {"scale": 1.5}, {"scale": 0.3}):
        output = interpolated(torch.tensor(exact(x).transpose(0, 3, 1, 2)).to(kind), to, how)
        y = getattr(mf, name)(x, **to, **ours)
        assert y.dtype == dtype
        right = output.double().numpy().transpose(0, 2, 3, 1)
        np.testing.assert_allclose(exact(y), right, rtol=0, atol=rounding * abs(right).max())


# Samples at places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("edge", ["zero", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 1, 4, 20), (1, 6, 1, 2)], ids=str)
def test_grid_sample(shape: tuple[int, ...], mode: Any, edge: Any, align_corners: bool) -> None:
    x, grid = numbers(shape, mx.float64), 1.2 * numbers((shape[0], 8, 9, 2), mx.float64, 1)
    how: dict[str, Any] = {"mode": mode, "align_corners": align_corners}
    y, state = mf.grid_sample_fwd(x, grid, edge_mode=edge, **how)
    source, places = theirs(x), torch.tensor(exact(grid), requires_grad=True)
    padding_mode = {"zero": "zeros"}.get(edge, edge)
    output = torch.nn.functional.grid_sample(source, places, padding_mode=padding_mode, **how)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    dx, dgrid = torch.autograd.grad(output, (source, places), torch.tensor(exact(dy).transpose(0, 3, 1, 2)))
    agree(mf.grid_sample_grad(dy, grid, state), dx)
    ours = mf.grid_sample_grad_grid(dy, x, grid, state)
    np.testing.assert_allclose(exact(ours), dgrid.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "edges"), [("nearest", EDGES), ("bilinear", EDGES[1:])])
def test_places_that_are_none(mode: Any, edges: tuple[Any, ...], align_corners: bool) -> None:
    """Where PyTorch says what comes of them; for the rest its CPU makes NaN, or an end to the process."""
    x = mx.arange(1.0, 10, dtype=mx.float64).reshape(1, 3, 3, 1)
    nan, inf = float("nan"), float("inf")
    places = [(nan, 0), (0, nan), (inf, 0), (-inf, 0), (0, inf), (0, -inf), (1e30, 0), (-1, -1), (1, 1), (0.3, -1)]
    grid = mx.array(places, mx.float64).reshape(1, 1, -1, 2)
    for edge in edges:
        how: dict[str, Any] = {"mode": mode, "align_corners": align_corners}
        padding_mode = {"zero": "zeros"}.get(edge, edge)
        output = torch.nn.functional.grid_sample(theirs(x), torch.tensor(exact(grid)), padding_mode=padding_mode, **how)
        agree(mf.grid_sample(x, grid, edge_mode=edge, **how), output)


@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid(align_corners: bool) -> None:
    theta = numbers((2, 2, 3), mx.float64)
    source = torch.tensor(exact(theta), requires_grad=True)
    output = torch.nn.functional.affine_grid(source, [2, 3, 4, 5], align_corners=align_corners)
    ours = mf.affine_grid(theta, (4, 5), align_corners=align_corners)
    np.testing.assert_allclose(exact(ours), output.detach().numpy(), rtol=1e-12, atol=1e-12)
    dy = numbers((2, 4, 5, 2), mx.float64, 1)
    (right,) = torch.autograd.grad(output, source, torch.tensor(exact(dy)))
    np.testing.assert_allclose(
        exact(mf.affine_grid_grad(dy, align_corners=align_corners)), right.numpy(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("window", [0, 1, (0, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("stride", [1, (2, 3)], ids=str)
def test_local_correlation(window: Any, stride: Any) -> None:
    """Beside products with the images cut out of zeros."""
    (wy, wx), (sy, sx) = ((v, v) if isinstance(v, int) else v for v in (window, stride))
    x, y = numbers(SHAPE, mx.float64), numbers(SHAPE, mx.float64, 1)
    sources, (_, height, width, _) = [theirs(x), theirs(y)], SHAPE
    wide = torch.nn.functional.pad(sources[1], [wx * sx, wx * sx, wy * sy, wy * sy])
    output = torch.stack(
        [
            (sources[0] * wide[:, :, i : i + height, j : j + width]).sum(1)
            for i in range(0, 2 * wy * sy + 1, sy)
            for j in range(0, 2 * wx * sx + 1, sx)
        ],
        1,
    )
    made = mf.local_correlation(x, y, window, stride=stride)
    agree(made, output)
    dy = numbers(made.shape, mx.float64, 2)
    grads = torch.autograd.grad(output, sources, torch.tensor(exact(dy).transpose(0, 3, 1, 2)))
    for operand, right in zip(("primary", "secondary"), grads, strict=True):
        agree(mf.local_correlation_grad(dy, x, y, window, stride=stride, operand=operand), right)  # type: ignore[arg-type]  # a loop's str


# Boxes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(3, 4), (1, 5), (7, 1)], ids=str)
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crop_and_resize_as_a_grid(method: Any, size: tuple[int, int]) -> None:
    """Of the samples in a box, whose ends PyTorch's autograd knows, too."""
    x, of = numbers(SHAPE, mx.float64), [1, 0, 1]
    corners = 0.5 + 0.3 * np.tanh(exact(numbers((3, 4), mx.float64, 1)))
    boxes, source = torch.tensor(corners, requires_grad=True), theirs(x)
    shares = [torch.linspace(0, 1, n, dtype=torch.float64) if n > 1 else torch.tensor([0.5]).double() for n in size]
    rows, cols = (boxes[:, i, None] * (1 - share) + boxes[:, i + 2, None] * share for i, share in enumerate(shares))
    grid = torch.stack(torch.broadcast_tensors(cols[:, None, :], rows[:, :, None]), -1) * 2 - 1
    output = torch.nn.functional.grid_sample(source[of], grid, mode=method, align_corners=True)
    y, state = mf.crop_and_resize_fwd(x, mx.array(corners, mx.float64), mx.array(of), size, method=method)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    dx, dboxes = torch.autograd.grad(output, (source, boxes), torch.tensor(exact(dy).transpose(0, 3, 1, 2)))
    given = mx.array(corners, mx.float64), mx.array(of), state
    agree(mf.crop_and_resize_grad(dy, *given), dx)
    ours = mf.crop_and_resize_grad_boxes(dy, x, *given)
    np.testing.assert_allclose(exact(ours), dboxes.numpy(), rtol=1e-10, atol=1e-10)
