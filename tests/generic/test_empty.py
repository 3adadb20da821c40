"""Batches of no images, evaluated: by every function of the table, of arrays of any origin."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import exact
from support.matrix import MATRIX

import mpsfunc as mf
from mpsfunc.core import launch
from mpsfunc.normalization import composed

# Arrays of no elements have strides too, and MLX keeps numpy's and those of what they were cut from.
ORIGINS: dict[str, Callable[[tuple[int, ...]], mx.array]] = {
    "made": mx.zeros,
    "from numpy": lambda shape: mx.array(np.zeros(shape, np.float32)),
    "cut": lambda shape: mx.zeros((3, *shape[1:]))[3:],
    "transposed": lambda shape: mx.zeros((*shape[:0:-1], 3)).transpose(*range(len(shape) - 1, -1, -1))[:0],
}
# Functions that refuse: they take statistics of what is not there, or an entry's state or other arrays have images.
REFUSED = {
    "bn_stats", "batch_norm", "batch_norm1d", "batch_norm_fwd", "box_iou", "box_iou_loss", "box_iou_loss_grad",
    "crop_and_resize_grad", "crop_and_resize_grad_boxes",
    "dequantize_weights", "dice_loss", "dice_loss_grad",
    "dropout", "dropout_grad", "fold_batch_norm", "fully_connected", "loss", "loss_grad", "loss_value", "max_pool_grad",
    "max_pool_grad_from_source", "max_unpool", "reduce_mean_grad", "reduce_sum_grad", "spatial_mean_grad",
    "yolo_loss", "yolo_loss_fwd", "yolo_loss_grad",
}  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("name", MATRIX)
def test_an_empty_batch(name: str, origin: str, device: mx.Device) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(mx.float32)
    images = len(arrays[0]) if arrays[0].ndim else -1
    empty = [ORIGINS[origin]((0, *a.shape[1:])) if a.ndim > 1 and len(a) == images else a for a in arrays]
    try:
        results = list(entry.call(*empty))
    except ValueError:
        assert name.split()[0] in REFUSED
        return
    made = [mx.zeros(a.shape, a.dtype) if a.size == 0 else mx.ones_like(a) for a in results]
    _, gradients = mx.vjp(lambda *arrays: entry.call(*arrays), empty, made)
    mx.eval(results, gradients)
    assert [a.shape for a in gradients] == [a.shape for a in empty]
    if not any(a.size for a in results):
        assert not any(exact(a).any() for a in gradients)


@pytest.mark.parametrize("origin", ORIGINS)
def test_losses_of_no_images(origin: str, device: mx.Device) -> None:
    y, weights = ORIGINS[origin]((0, 3, 4)), ORIGINS[origin]((0, 3, 1))
    for reduction in ("none", "sum", "mean", "sum_by_non_zero_weights"):
        for type in ("mean_squared_error", "softmax_cross_entropy", "sigmoid_cross_entropy"):
            value, gradient = mf.loss(y, y, type, reduction, weights=weights)
            mx.eval(value, gradient)
            assert value.size == 0 and gradient.shape == y.shape
    value, gradient = mf.loss(y, mx.zeros((0, 3), mx.uint32), "softmax_cross_entropy", "sum")
    mx.eval(value, gradient)
    assert value.size == 0 and gradient.shape == y.shape


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int32])
@pytest.mark.parametrize("over", ["rows", "columns", "channels", "space"])
def test_extremes_of_no_images(over: mf.typing.ReducedName, dtype: mx.Dtype, device: mx.Device) -> None:
    x = mx.zeros((0, 3, 4, 5), dtype)
    shape = mx.sum(x, {"rows": 2, "columns": 1, "channels": 3, "space": (1, 2)}[over], keepdims=True).shape
    for function in (mf.reduce_max, mf.reduce_min, mf.reduce_argmax, mf.reduce_argmin):
        y = function(x, over)
        mx.eval(y)
        assert y.shape == shape and y.dtype == (mx.uint32 if "arg" in function.__name__ else dtype)


def further_derivatives(name: str) -> None:
    def norm(x: mx.array) -> mx.array:
        return mf.instance_norm(x, gamma) if name == "instance_norm" else mf.group_norm(x, 2, gamma)

    x, gamma = mx.zeros((0, 3, 3, 4)), mx.ones(4)
    slope = mx.grad(lambda x: norm(x).sum())
    made = [
        *mx.jvp(norm, [x], [x])[1], slope(x), mx.grad(lambda x: (slope(x) * x).sum())(x),
        *mx.jvp(slope, [x], [x])[1], mx.vmap(norm)(x[None])[0], mx.vmap(slope)(x[None])[0],
    ]  # fmt: skip
    mx.eval(made)
    assert [a.shape for a in made] == [x.shape] * len(made)


NORMS = pytest.mark.parametrize("name", ["instance_norm", "group_norm"])


@NORMS
def test_further_derivatives_of_no_images(name: str, device: mx.Device) -> None:
    further_derivatives(name)


@NORMS
def test_a_gpu_is_given_no_empty_vectors(name: str, on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which MLX's operations there would not survive."""
    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    for function in ("statistics", "bn_stats_grad"):
        monkeypatch.setattr(composed, function, None)  # where they begin
    further_derivatives(name)
