"""What errors add for those who come with PyTorch's layouts, or with arguments that mean something else."""

from __future__ import annotations

import mlx.core as mx
import pytest

import mpsfunc as mf


def test_weights_in_another_order_of_axes() -> None:
    x, hint = mx.ones((2, 7, 5, 4)), "; weights are (o, kh, kw, i / groups), and these look like "
    conv, back = "(o, i / groups, kh, kw)", "(i, o / groups, kh, kw)"
    for call, shape, groups, theirs in (
        *((mf.conv, (6, 4, 3, 3), 1, conv), (mf.conv, (6, 2, 3, 3), 2, conv), (mf.conv, (6, 5, 3, 3), 1, "")),
        *((mf.conv_transpose, (4, 6, 3, 3), 1, back), (mf.conv_transpose, (4, 3, 3, 3), 2, back)),
        *((mf.conv_transpose, (6, 4, 3, 3), 1, ""), (mf.conv, (6, 4, 0, 3), 1, ""), (mf.conv, (3, 4, 4, 9), 1, "")),
    ):
        with pytest.raises(ValueError, match=": the weights do not fit the images; got ") as caught:
            call(x, mx.ones(shape), groups=groups)
        assert str(caught.value).endswith(hint + theirs if theirs else "none of them 0")


def test_labels_and_targets_say_what_they_should_be() -> None:
    y, labels = mx.ones((4, 1, 1, 3)), mx.array([0.0, 1, 2, 0])
    for given in (labels, labels.reshape(4, 1, 1), labels != 0):
        with pytest.raises(TypeError, match=r"^loss_value: labels are integers; got target.shape=\(4, ?.*int32"):
            mf.loss_value(y, given, "softmax_cross_entropy", "mean")
        for dice in (mf.dice_loss, mf.dice_loss_grad):
            with pytest.raises(
                TypeError, match=rf"^{dice.__name__}: labels are integers; got target.shape=\(4, ?.*int32"
            ):
                dice(y, given)
    for function in (lambda t: mf.loss(y, t, "sigmoid_cross_entropy", "sum"), lambda t: mf.focal_loss(y, t)):
        for dtype in (mx.bool_, mx.int32):
            with pytest.raises(TypeError, match=r"expected mlx.core.float32, such as target.astype\(y.dtype\)$"):
                function(mx.ones(y.shape, dtype))
    with pytest.raises(ValueError, match=r"the labels do not fit y; got target.shape=\(4, 1\), expected \(4, 1, 1\)$"):
        mf.loss_value(y, mx.zeros((4, 1), mx.int32), "softmax_cross_entropy", "mean")


def test_bounds_and_exclusions() -> None:
    with pytest.raises(
        ValueError, match=r"scale is out of range; got scale=1e\+30, expected a number > 0 and < 2\*\*31"
    ):
        mf.resize_bilinear(mx.ones((1, 4, 4, 2)), scale=1e30)
    with pytest.raises(
        ValueError, match="^conv_transpose: padding and out_size exclude each other; got padding='same'"
    ):
        mf.conv_transpose(mx.ones((1, 4, 4, 2)), mx.ones((6, 3, 3, 2)), padding="same", out_size=(3, 3))
