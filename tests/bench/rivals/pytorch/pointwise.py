"""PyTorch's pointwise operators, softmax, upsampling and cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from ...problems import IGNORED, KEEP, Problem
from .. import Call

aten = torch.ops.aten

Operator = Callable[..., torch.Tensor]

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
    return by_autograd(lambda x: torch.nn.functional.pad(x, [p.padding] * 4, "circular"), a, a.dy)


def focal_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_focal(a.x, a.targets)]


def focal_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return by_autograd(lambda x: _focal(x, a.targets).sum(), a)


def dice_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_dice(a.x, a.targets)]


def dice_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return by_autograd(lambda x: _dice(x, a.targets).sum(), a)


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


def by_autograd(function: Operator, a: SimpleNamespace, dy: torch.Tensor | None = None) -> Call:
    """The backward pass alone of a function, whose forward pass was kept."""
    with torch.enable_grad():
        x = a.x.detach().requires_grad_()
        y = function(x)
    return lambda: list(torch.autograd.grad(y, x, dy, retain_graph=True))
