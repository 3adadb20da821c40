"""PyTorch's samples at given places and in boxes, and what is composed for images that PyTorch has no operator for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import torch

from ...problems import Problem
from .. import Call

aten = torch.ops.aten

_BILINEAR, _ZEROS, _BORDER = 0, 0, 1  # of grid_sampler


def grid_sample(p: Problem, a: SimpleNamespace) -> Call:
    grid = _places(a)
    return lambda: [aten.grid_sampler_2d(a.x, grid, _BILINEAR, _ZEROS, False)]


def grid_sample_grad(p: Problem, a: SimpleNamespace) -> Call:
    grid = _places(a)
    return lambda: [aten.grid_sampler_2d_backward(a.dy, a.x, grid, _BILINEAR, _ZEROS, False, [True, False])[0]]


def grid_sample_grads(p: Problem, a: SimpleNamespace) -> Call:
    grid = _places(a)

    def call() -> list[torch.Tensor]:
        dx, dgrid = aten.grid_sampler_2d_backward(a.dy, a.x, grid, _BILINEAR, _ZEROS, False, [True, True])
        return [dx, dgrid.movedim(-1, 1)]  # as answers are read

    return call


def _places(a: SimpleNamespace) -> torch.Tensor:
    """The grid with (x, y) last, as it came."""
    return a.grid.permute(0, 2, 3, 1).contiguous()


def crop_and_resize(p: Problem, a: SimpleNamespace) -> Call:
    """A composition: PyTorch has no such function, but a grid for all boxes of each image, which is made ahead."""
    grid = _grid_of(p, a, _at_ends)
    return lambda: [aten.grid_sampler_2d(a.x, grid, _BILINEAR, _BORDER, True)]


def crop_and_resize_grad(p: Problem, a: SimpleNamespace) -> Call:
    grid, dy = _grid_of(p, a, _at_ends), _below_each_other(p, a)
    return lambda: [aten.grid_sampler_2d_backward(dy, a.x, grid, _BILINEAR, _BORDER, True, [True, False])[0]]


def roi_align(p: Problem, a: SimpleNamespace) -> Call:
    """torchvision's where it is installed, else a composition: a grid with four samples a bin, and their means."""
    torchvision = _torchvision()
    if torchvision is not None:
        return lambda: [_stacked(p, torchvision.ops.roi_align(a.x, a.rois, p.bins, 1.0, 2, True))]
    grid = _grid_of(p, a, _in_bins)
    return lambda: [torch.nn.functional.avg_pool2d(aten.grid_sampler_2d(a.x, grid, _BILINEAR, _BORDER, True), 2)]


def roi_align_grad(p: Problem, a: SimpleNamespace) -> Call:
    torchvision, dy = _torchvision(), _below_each_other(p, a)
    if torchvision is not None:
        back = torch.ops.torchvision._roi_align_backward
        apart = _apart(p, dy)
        n, h, w, c = p.nhwc
        return lambda: [back(apart, a.rois, 1.0, p.bins, p.bins, n, c, h, w, 2, True)]
    grid = _grid_of(p, a, _in_bins)
    samples = aten.grid_sampler_2d(a.x, grid, _BILINEAR, _BORDER, True)

    def call() -> list[torch.Tensor]:
        pulled = aten.avg_pool2d_backward(dy, samples, [2, 2], [2, 2], [0, 0], False, True, None)
        return [aten.grid_sampler_2d_backward(pulled, a.x, grid, _BILINEAR, _BORDER, True, [True, False])[0]]

    return call


def _torchvision() -> ModuleType | None:
    try:
        import torchvision
    except (ImportError, RuntimeError):  # it is of one release of PyTorch, of which another one says so by the latter
        return None
    return torchvision


def _at_ends(begin: torch.Tensor, end: torch.Tensor, bins: int) -> torch.Tensor:
    """Samples from one end to the other, or one in the middle."""
    shares = torch.linspace(0, 1, bins, device=begin.device) if bins > 1 else 0.5
    return begin + (end - begin) * shares


def _in_bins(begin: torch.Tensor, end: torch.Tensor, bins: int) -> torch.Tensor:
    """Two samples in each bin of what is half a pixel less."""
    shares = (torch.arange(2 * bins, device=begin.device) + 0.5) / (2 * bins)
    return begin - 0.5 + (end - begin) * shares


def _grid_of(p: Problem, a: SimpleNamespace, placed: Callable[..., torch.Tensor]) -> torch.Tensor:
    """For each image the places of its regions' samples, one region below the other."""
    n, h, w, _ = p.nhwc
    _, x1, y1, x2, y2 = a.rois[..., None].unbind(1)
    cols, rows = placed(x1, x2, p.bins) * 2 / (w - 1) - 1, placed(y1, y2, p.bins) * 2 / (h - 1) - 1
    made = torch.stack(torch.broadcast_tensors(cols[:, None, :], rows[:, :, None]), dim=-1)
    return made.reshape(n, -1, cols.shape[1], 2).contiguous()


def _below_each_other(p: Problem, a: SimpleNamespace) -> torch.Tensor:
    """What is pulled back, with the bins of an image one below the other."""
    n, _, _, c = p.nhwc
    made = a.dy.permute(0, 2, 3, 1).reshape(n, -1, p.bins, c).permute(0, 3, 1, 2)
    return made.contiguous(memory_format=_layout(a.x))


def _apart(p: Problem, bins: torch.Tensor) -> torch.Tensor:
    """Bins below each other as torchvision has them."""
    n, c, _, _ = bins.shape
    made = bins.reshape(n, c, -1, p.bins, p.bins).transpose(1, 2).reshape(-1, c, p.bins, p.bins)
    return made.contiguous(memory_format=_layout(bins))


def _stacked(p: Problem, bins: torch.Tensor) -> torch.Tensor:
    """Torchvision's bins below each other: a view, so that the clock does not see it."""
    return bins.unflatten(0, (p.shape[0], -1)).movedim(2, 1).flatten(2, 3)


def _layout(x: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


def local_correlation(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_correlated(a.x, a.other)]


def local_correlation_grad(p: Problem, a: SimpleNamespace) -> Call:
    with torch.enable_grad():
        x, y = (image.detach().requires_grad_() for image in (a.x, a.other))
        made = _correlated(x, y)
    return lambda: list(torch.autograd.grad(made, (x, y), a.dy, retain_graph=True))


def _correlated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The images cut out of the other ones once for each offset, as networks for optical flow do it."""
    wide, (height, width) = torch.nn.functional.pad(y, [2] * 4), x.shape[2:]
    cuts = [wide[:, :, i : i + height, j : j + width] for i in range(5) for j in range(5)]
    return torch.stack([(x * cut).sum(1) for cut in cuts], 1)


def gram_matrix(p: Problem, a: SimpleNamespace) -> Call:
    rows, planes = _pixels(a.x)
    return lambda: [(rows @ rows.mT if planes else rows.mT @ rows)[:, :, None]]


def gram_matrix_grad(p: Problem, a: SimpleNamespace) -> Call:
    (rows, planes), (n, c, h, w), dy = _pixels(a.x), a.x.shape, a.matrix[:, :, 0]

    def call() -> list[torch.Tensor]:
        both = dy + dy.mT
        return [(both @ rows).view(n, c, h, w) if planes else (rows @ both).view(n, h, w, c).permute(0, 3, 1, 2)]

    return call


def _pixels(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The pixels of images in one axis, which is the last one where images lie in planes."""
    return (x.flatten(2), True) if x.is_contiguous() else (x.permute(0, 2, 3, 1).flatten(1, 2), False)
