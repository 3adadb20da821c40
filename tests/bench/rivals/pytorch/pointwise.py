"""PyTorch's pointwise operators, softmax, upsampling and cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import torch

from ...problems import IGNORED, KEEP, Problem
from .. import Call

aten = torch.ops.aten

Operator = Callable[..., torch.Tensor]

_BILINEAR, _ZEROS, _BORDER = 0, 0, 1  # of grid_sampler
_EACH, _NONE = 0, -100  # the loss of each row for itself, and a label that is none of a row's


def relu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.relu(a.x)]


def relu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.threshold_backward(a.dy, a.x, 0)]


def gelu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.gelu(a.x)]


def silu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.silu(a.x)]


def silu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.silu_backward(a.dy, a.x)]


def gelu_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.gelu_backward(a.dy, a.x)]


def softmax(p: Problem, a: SimpleNamespace) -> Call:
    return _over_channels(aten._softmax, a)


def softmax_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _back_over_channels(aten._softmax, aten._softmax_backward_data, a)


def log_softmax(p: Problem, a: SimpleNamespace) -> Call:
    return _over_channels(aten._log_softmax, a)


def log_softmax_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _back_over_channels(aten._log_softmax, aten._log_softmax_backward_data, a)


def _over_channels(forward: Operator, a: SimpleNamespace) -> Call:
    x, axis, images = _channels(a.x)
    return lambda: [images(forward(x, axis, False))]


def _back_over_channels(forward: Operator, backward: Operator, a: SimpleNamespace) -> Call:
    (x, axis, images), dy = _channels(a.x), _channels(a.dy)[0]
    y = forward(x, axis, False)
    return lambda: [images(backward(dy, y, axis, y.dtype))]


def _channels(x: torch.Tensor) -> tuple[torch.Tensor, int, Operator]:
    """The images, the axis of their channels, and what makes images of a result.

    Channels-last images are seen as NHWC: over their axis 1 the operators would copy them into the other layout first.
    """
    if x.is_contiguous():
        return x, 1, lambda y: y
    return x.permute(0, 2, 3, 1), 3, lambda y: y.permute(0, 3, 1, 2)


def dropout(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.native_dropout(a.x, 1 - KEEP, True)[0]]


def dropout_grad(p: Problem, a: SimpleNamespace) -> Call:
    y, mask = aten.native_dropout(a.x, 1 - KEEP, True)
    return lambda: [aten.native_dropout_backward(a.dy, mask, 1 / KEEP), y]


def dropout_masked(p: Problem, a: SimpleNamespace) -> Call:
    return _masked(a.x, a.mask)


def dropout_masked_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _masked(a.dy, a.mask)


def _masked(x: torch.Tensor, mask: torch.Tensor) -> Call:
    """The operator that is called a backward one multiplies by a mask and a number."""
    kept = mask.bool()
    return lambda: [aten.native_dropout_backward(x, kept, 1 / KEEP)]


def upsample_bilinear(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_bilinear2d(a.x, a.dy.shape[2:], False)]


def upsample_bilinear_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_bilinear2d_backward(a.dy, a.dy.shape[2:], a.x.shape, False)]


def upsample_asymmetric(p: Problem, a: SimpleNamespace) -> Call:
    taps = _taps(a)
    size = {"stride": 2, "padding": 1, "output_padding": 1, "groups": a.x.shape[1]}
    return lambda: [torch.nn.functional.conv_transpose2d(a.x, taps, **size)]


def upsample_asymmetric_grad(p: Problem, a: SimpleNamespace) -> Call:
    taps = _taps(a)
    return lambda: [torch.conv2d(a.dy, taps, stride=2, padding=1, groups=a.x.shape[1])]


def _taps(a: SimpleNamespace) -> torch.Tensor:
    """Weights of a convolution a channel, which is what PyTorch has for images that go on as zeros; factor 2."""
    row = torch.tensor([0.5, 1, 0.5], dtype=a.x.dtype, device=a.x.device)
    return torch.outer(row, row).repeat(a.x.shape[1], 1, 1, 1)


def resize_bicubic(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_bicubic2d(a.x, a.dy.shape[2:], False)]


def resize_bicubic_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_bicubic2d_backward(a.dy, a.dy.shape[2:], a.x.shape, False)]


def resize_filtered(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten._upsample_bicubic2d_aa(a.x, a.dy.shape[2:], False, p.scale, p.scale)]


def resize_filtered_grad(p: Problem, a: SimpleNamespace) -> Call:
    how = False, p.scale, p.scale
    return lambda: [aten._upsample_bicubic2d_aa_backward(a.dy, a.dy.shape[2:], a.x.shape, *how)]


def upsample_nearest(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_nearest2d(a.x, a.dy.shape[2:])]


def upsample_nearest_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.upsample_nearest2d_backward(a.dy, a.dy.shape[2:], a.x.shape)]


def cross_entropy(p: Problem, a: SimpleNamespace) -> Call:
    return _cross_entropy(a, None, _NONE)


def cross_entropy_weighted(p: Problem, a: SimpleNamespace) -> Call:
    return _cross_entropy(a, a.weights, IGNORED)


def _cross_entropy(a: SimpleNamespace, weights: torch.Tensor | None, ignored: int) -> Call:
    labels, ones = a.labels.long(), a.x.new_ones(len(a.x))

    def call() -> list[torch.Tensor]:
        y = aten._log_softmax(a.x, 1, False)
        value, weight = aten.nll_loss_forward(y, labels, weights, _EACH, ignored)
        dy = aten.nll_loss_backward(ones, y, labels, weights, _EACH, ignored, weight)
        return [value[:, None], aten._log_softmax_backward_data(dy, y, 1, y.dtype)]

    return call


def cross_entropy_images(p: Problem, a: SimpleNamespace) -> Call:
    """Of channels-last images as of rows, which is faster than to have the loss copy them into the other layout."""
    labels = a.labels.permute(0, 2, 1).long().contiguous()  # which were taken for a sequence
    n, h, w, c = p.nhwc
    if a.x.is_contiguous() and c > 1:
        ones = a.x.new_ones(labels.shape)

        def planes() -> list[torch.Tensor]:
            y = aten._log_softmax(a.x, 1, False)
            value, weight = aten.nll_loss2d_forward(y, labels, None, _EACH, _NONE)
            dy = aten.nll_loss2d_backward(ones, y, labels, None, _EACH, _NONE, weight)
            return [value.sum((1, 2))[:, None, None, None], aten._log_softmax_backward_data(dy, y, 1, y.dtype)]

        return planes
    rows = SimpleNamespace(x=a.x.permute(0, 2, 3, 1).reshape(n * h * w, c), labels=labels.reshape(-1))
    of_rows = _cross_entropy(rows, None, _NONE)

    def call() -> list[torch.Tensor]:
        value, dx = of_rows()
        return [value.reshape(n, -1).sum(1)[:, None, None, None], dx.reshape(n, h, w, c).permute(0, 3, 1, 2)]

    return call


def cross_entropy_dense(p: Problem, a: SimpleNamespace) -> Call:
    def call() -> list[torch.Tensor]:
        y = aten._log_softmax(a.x, 1, False)
        return [-(y * a.targets).sum(1, keepdim=True), aten._log_softmax_backward_data(-a.targets, y, 1, y.dtype)]

    return call


def add(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x + a.other]


def multiply(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x * a.other]


def multiply_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.dy * a.other]


def multiply_channels(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [a.x * a.factors]


def multiply_channels_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [(a.dy * a.x).sum((0, 2, 3), keepdim=True)]


def resize_area(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten._adaptive_avg_pool2d(a.x, a.dy.shape[2:])]


def resize_area_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten._adaptive_avg_pool2d_backward(a.dy, a.x)]


shrink_nearest, shrink_nearest_grad = upsample_nearest, upsample_nearest_grad
shrink_bilinear, shrink_bilinear_grad = upsample_bilinear, upsample_bilinear_grad


def shrink_filtered(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten._upsample_bilinear2d_aa(a.x, a.dy.shape[2:], False)]


def shrink_filtered_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten._upsample_bilinear2d_aa_backward(a.dy, a.dy.shape[2:], a.x.shape, False)]


def pad_zero(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.constant_pad_nd(a.x, [p.padding] * 4)]


def pad_zero_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.constant_pad_nd(a.dy, [-p.padding] * 4)]


def pad_clamp(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.replication_pad2d(a.x, [p.padding] * 4)]


def pad_clamp_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.replication_pad2d_backward(a.dy, a.x, [p.padding] * 4)]


def pad_mirror(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.reflection_pad2d(a.x, [p.padding] * 4)]


def pad_mirror_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [aten.reflection_pad2d_backward(a.dy, a.x, [p.padding] * 4)]


def pad_circular(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [torch.nn.functional.pad(a.x, [p.padding] * 4, "circular")]


def pad_circular_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _by_autograd(lambda x: torch.nn.functional.pad(x, [p.padding] * 4, "circular"), a, a.dy)


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


def focal_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_focal(a.x, a.targets)]


def focal_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _by_autograd(lambda x: _focal(x, a.targets).sum(), a)


def dice_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_dice(a.x, a.targets)]


def dice_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return _by_autograd(lambda x: _dice(x, a.targets).sum(), a)


def sigmoid_entropy(p: Problem, a: SimpleNamespace) -> Call:
    weights, entropy = a.weights[:, None, None], torch.nn.functional.binary_cross_entropy_with_logits

    def call() -> list[torch.Tensor]:
        with torch.enable_grad():
            x = a.x.detach().requires_grad_()
            value = entropy(x, a.targets, reduction="none", pos_weight=weights).sum((1, 2, 3), keepdim=True)
            return [value.detach(), *torch.autograd.grad(value.sum(), x)]

    return call


def _focal(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """As torchvision's ``sigmoid_focal_loss`` has it, with its defaults."""
    p = torch.sigmoid(x)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none")
    wrong = 1 - (p * t + (1 - p) * (1 - t))
    return (0.25 * t + 0.75 * (1 - t)) * (entropy * wrong**2)


def _dice(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """As MONAI's ``DiceLoss(softmax=True, reduction="none")`` has it."""
    p = torch.softmax(x, 1)
    both, of_p, of_t = ((p * t).sum((2, 3)), p.sum((2, 3)), t.sum((2, 3)))
    return (1 - (2 * both + 1e-5) / (of_p + of_t + 1e-5))[:, :, None, None]


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


def _by_autograd(function: Operator, a: SimpleNamespace, dy: torch.Tensor | None = None) -> Call:
    """The backward pass alone of a function, whose forward pass was kept."""
    with torch.enable_grad():
        x = a.x.detach().requires_grad_()
        y = function(x)
    return lambda: list(torch.autograd.grad(y, x, dy, retain_graph=True))
