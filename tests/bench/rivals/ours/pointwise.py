"""mpsfunc's pointwise families."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.typing import LossName, OperandName, PadMode

from ...problems import IGNORED, KEEP, Problem
from .. import Call


def relu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.relu(a.x)]


def gelu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.gelu(a.x)]


def silu(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.silu(a.x)]


def neuron_grad(p: Problem, a: SimpleNamespace, neuron: str) -> Call:
    return lambda: [mf.neuron_grad(a.dy, a.x, neuron)]


relu_grad = partial(neuron_grad, neuron="relu")
gelu_grad = partial(neuron_grad, neuron="gelu")
silu_grad = partial(neuron_grad, neuron="silu")


def softmax(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.softmax(a.x)]


def softmax_grad(p: Problem, a: SimpleNamespace) -> Call:
    y = _made(mf.softmax(a.x))
    return lambda: [mf.softmax_grad(a.dy, y)]


def log_softmax(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.log_softmax(a.x)]


def log_softmax_grad(p: Problem, a: SimpleNamespace) -> Call:
    y = _made(mf.log_softmax(a.x))
    return lambda: [mf.log_softmax_grad(a.dy, y)]


def dropout(p: Problem, a: SimpleNamespace) -> Call:
    key = _made(mx.random.key(1))
    return lambda: [mf.dropout(a.x, keep_probability=KEEP, key=key)]


def dropout_grad(p: Problem, a: SimpleNamespace) -> Call:
    y, state = mf.dropout_fwd(a.x, keep_probability=KEEP, key=mx.random.key(1))
    mx.eval(y, state.arrays)
    return lambda: [mf.dropout_grad(a.dy, state), y]


def dropout_masked(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.dropout(a.x, keep_probability=KEEP, mask=a.mask)]


def dropout_masked_grad(p: Problem, a: SimpleNamespace) -> Call:
    _, state = mf.dropout_fwd(a.x, keep_probability=KEEP, mask=a.mask)
    mx.eval(state.arrays)
    return lambda: [mf.dropout_grad(a.dy, state)]


# PyTorch's rule, and MPS's.
_HALF_PIXEL: dict[str, Any] = {}
_ASYMMETRIC: dict[str, Any] = {"edge_mode": "zero", "coordinate": "asymmetric"}


def bilinear(p: Problem, a: SimpleNamespace, rule: dict[str, Any]) -> Call:
    return lambda: [mf.upsample_bilinear(a.x, p.scale, **rule)]


def bilinear_grad(p: Problem, a: SimpleNamespace, rule: dict[str, Any]) -> Call:
    state = mf.upsample_bilinear_state(p.shape, p.scale, **rule)
    return lambda: [mf.upsample_bilinear_grad(a.dy, state)]


upsample_bilinear = partial(bilinear, rule=_HALF_PIXEL)
upsample_bilinear_grad = partial(bilinear_grad, rule=_HALF_PIXEL)
upsample_asymmetric = partial(bilinear, rule=_ASYMMETRIC)
upsample_asymmetric_grad = partial(bilinear_grad, rule=_ASYMMETRIC)


def resize_bicubic(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.resize_bicubic(a.x, scale=p.scale)]


def resize_bicubic_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.resize_bicubic_state(p.shape, scale=p.scale)
    return lambda: [mf.resize_bicubic_grad(a.dy, state)]


def resize_filtered(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.resize_bicubic(a.x, scale=p.scale, antialias=True)]


def resize_filtered_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.resize_bicubic_state(p.shape, scale=p.scale, antialias=True)
    return lambda: [mf.resize_bicubic_grad(a.dy, state)]


def upsample_nearest(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.upsample_nearest(a.x, p.scale)]


def upsample_nearest_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.upsample_nearest_state(p.shape, p.scale)
    return lambda: [mf.upsample_nearest_grad(a.dy, state)]


def cross_entropy(p: Problem, a: SimpleNamespace) -> Call:
    return _loss(a.x, a.labels)


cross_entropy_images = cross_entropy


def cross_entropy_dense(p: Problem, a: SimpleNamespace) -> Call:
    return _loss(a.x, a.targets)


def cross_entropy_weighted(p: Problem, a: SimpleNamespace) -> Call:
    return _loss(a.x, a.labels, class_weights=a.weights, ignore_index=IGNORED)


def sigmoid_entropy(p: Problem, a: SimpleNamespace) -> Call:
    return _loss(a.x, a.targets, "sigmoid_cross_entropy", pos_weight=a.weights)


def _loss(logits: mx.array, labels: mx.array, type: LossName = "softmax_cross_entropy", **how: Any) -> Call:
    return lambda: list(mf.loss(logits, labels, type, reduction="sum", **how))


def add(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.add(a.x, a.other)]


def multiply(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.multiply(a.x, a.other)]


def multiply_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.arithmetic_grad(a.dy, a.x, a.other, "multiply", operand="primary")]


def multiply_channels(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.multiply(a.x, a.factors)]


def multiply_channels_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.arithmetic_grad(a.dy, a.x, a.factors, "multiply", operand="secondary")]


def _made(array: mx.array) -> mx.array:
    mx.eval(array)
    return array


def _resized(p: Problem, a: SimpleNamespace, name: str, **how: bool) -> Call:
    function, size = getattr(mf, name), p.out_shape[1:3]
    return lambda: [function(a.x, size, **how)]


def _resized_grad(p: Problem, a: SimpleNamespace, name: str, **how: bool) -> Call:
    gradient, state = getattr(mf, f"{name}_grad"), getattr(mf, f"{name}_state")(p.shape, p.out_shape[1:3], **how)
    return lambda: [gradient(a.dy, state)]


resize_area = partial(_resized, name="resize_area")
resize_area_grad = partial(_resized_grad, name="resize_area")
shrink_nearest = partial(_resized, name="resize_nearest")
shrink_nearest_grad = partial(_resized_grad, name="resize_nearest")
shrink_bilinear = partial(_resized, name="resize_bilinear")
shrink_bilinear_grad = partial(_resized_grad, name="resize_bilinear")
shrink_filtered = partial(_resized, name="resize_bilinear", antialias=True)
shrink_filtered_grad = partial(_resized_grad, name="resize_bilinear", antialias=True)


def _padded(p: Problem, a: SimpleNamespace, mode: PadMode) -> Call:
    return lambda: [mf.pad(a.x, p.padding, p.padding, mode)]


def _padded_grad(p: Problem, a: SimpleNamespace, mode: PadMode) -> Call:
    state = mf.pad_state(p.shape, p.padding, p.padding, mode)
    return lambda: [mf.pad_grad(a.dy, state)]


pad_zero, pad_clamp = partial(_padded, mode="zero"), partial(_padded, mode="clamp")
pad_mirror, pad_circular = partial(_padded, mode="mirror"), partial(_padded, mode="circular")
pad_zero_grad, pad_clamp_grad = partial(_padded_grad, mode="zero"), partial(_padded_grad, mode="clamp")
pad_mirror_grad, pad_circular_grad = partial(_padded_grad, mode="mirror"), partial(_padded_grad, mode="circular")


def focal_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.focal_loss(a.x, a.targets)]


def focal_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.focal_loss_grad(a.x, a.targets)]


def dice_loss(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.dice_loss(a.x, a.targets, activation="softmax", reduction="none")]


def dice_loss_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.dice_loss_grad(a.x, a.targets, activation="softmax", reduction="sum")]


def grid_sample(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.grid_sample(a.x, a.grid)]


def grid_sample_grad(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.grid_sample_state(p.shape)
    return lambda: [mf.grid_sample_grad(a.dy, a.grid, state)]


def grid_sample_grads(p: Problem, a: SimpleNamespace) -> Call:
    state = mf.grid_sample_state(p.shape)
    return lambda: [mf.grid_sample_grad(a.dy, a.grid, state), mf.grid_sample_grad_grid(a.dy, a.x, a.grid, state)]


def local_correlation(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.local_correlation(a.x, a.other, 2)]


def local_correlation_grad(p: Problem, a: SimpleNamespace) -> Call:
    both: tuple[OperandName, ...] = "primary", "secondary"
    return lambda: [mf.local_correlation_grad(a.dy, a.x, a.other, 2, operand=each) for each in both]


def gram_matrix(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.gram_matrix(a.x)]


def gram_matrix_grad(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [mf.gram_matrix_grad(a.matrix, a.x)]


def crop_and_resize(p: Problem, a: SimpleNamespace) -> Call:
    boxes, of = _boxes(p, a)
    return lambda: [_side_by_side(p, mf.crop_and_resize(a.x, boxes, of, p.bins))]


def crop_and_resize_grad(p: Problem, a: SimpleNamespace) -> Call:
    boxes, of = _boxes(p, a)
    state, dy = mf.crop_and_resize_state(p.shape, p.bins), a.dy.reshape(-1, p.bins, p.bins, p.shape[-1])
    return lambda: [mf.crop_and_resize_grad(dy, boxes, of, state)]


def roi_align(p: Problem, a: SimpleNamespace) -> Call:
    return lambda: [_side_by_side(p, mf.roi_align(a.x, a.rois, p.bins, 1.0, 2, True))]


def roi_align_grad(p: Problem, a: SimpleNamespace) -> Call:
    state, dy = mf.roi_align_state(p.shape, p.bins, 1.0, 2, True), a.dy.reshape(-1, p.bins, p.bins, p.shape[-1])
    return lambda: [mf.roi_align_grad(dy, a.rois, state)]


def _boxes(p: Problem, a: SimpleNamespace) -> tuple[mx.array, mx.array]:
    """The regions in normalized coordinates, and the numbers of their images."""
    _, h, w, _ = p.shape
    x1, y1, x2, y2 = (a.rois[:, i] for i in range(1, 5))
    boxes = mx.stack([y1 / (h - 1), x1 / (w - 1), y2 / (h - 1), x2 / (w - 1)], axis=1)
    of = a.rois[:, 0].astype(mx.int32)
    mx.eval(boxes, of)
    return boxes, of


def _side_by_side(p: Problem, bins: mx.array) -> mx.array:
    """Those of each image one below the other, as PyTorch makes them of one grid."""
    return bins.reshape(p.shape[0], -1, p.bins, p.shape[-1])
