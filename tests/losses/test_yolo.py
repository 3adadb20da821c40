"""The loss of a YOLO detector: worked numbers, assignment of anchors, and derivatives with targets as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from generic.ops.yolo_loss import ANCHORS, HOW, RESCORED, ROWS
from support import accumulator, exact, numbers, same_bits
from support import close as near
from support.oracle import detection as oracle

import mpsfunc as mf

Y, C = (2, 2, 2, 14), 7
LABELS = np.array((ROWS, ROWS[::-1]))
PAIR = [(1, 1), (2, 2)]


def labels(dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(LABELS, dtype)


def one_cell(*label: float) -> mx.array:
    return mx.array(label, mx.float32).reshape(1, 1, 1, -1)


# Worked numbers -------------------------------------------------------------------------------------------


def test_by_hand(device: mx.Device) -> None:
    """Of raw zeros: the second anchor has a shape IOU of 3 / 4 and an IOU of 3 / 5; without epsilon."""
    y, label = mx.zeros((1, 1, 1, 14)), one_cell(0.25, 0.75, 2, 1.5, 1, 1, 0)
    value, state = mf.yolo_loss_fwd(y, label, PAIR, epsilon=0)
    ln2 = np.log(2)
    each = 10 * 2 * 0.25**2, 10 * np.log(0.75) ** 2 / 2, 100 * ln2 + 5 * ln2, 2 * ln2
    np.testing.assert_allclose(value.item(), sum(each), rtol=1e-6)
    np.testing.assert_allclose(value.item(), 75.8306, atol=5e-5)
    target = state.target.reshape(2, C)
    np.testing.assert_allclose(exact(target)[1], [0.25, 0.75, 0, np.log(0.75), 0.6, 1, 0], rtol=1e-6)
    assert not target[0].any() and state.weights.reshape(2, C)[0].tolist() == [0, 0, 0, 0, 5, 0, 0]
    gradient = exact(mf.yolo_loss_grad(y, state)).reshape(2, C)
    np.testing.assert_allclose(gradient[1], [1.25, -1.25, 0, -10 * np.log(0.75), -10, -1, 1], rtol=1e-5)
    assert gradient[0].tolist() == [0, 0, 0, 0, 2.5, 0, 0]
    np.testing.assert_allclose(exact(mx.grad(lambda y: mf.yolo_loss(y, label, PAIR, epsilon=0).sum())(y)).ravel(),
                               gradient.ravel(), rtol=1e-6)  # fmt: skip


def test_an_empty_cell_has_a_loss_of_its_confidence_alone(device: mx.Device) -> None:
    label = one_cell(0, 0, 0, 0, 0, 0.5, 0.5)
    value, state = mf.yolo_loss_fwd(mx.zeros((1, 1, 1, 14)), label, PAIR, max_iou_for_object_absence=0.3)
    np.testing.assert_allclose(value.item(), 2 * 5 * np.log(2), rtol=1e-6)
    assert not state.target.any()


@pytest.mark.parametrize(
    ("limits", "weights"),
    [
        ({}, [5, 100]),
        ({"max_iou_for_object_absence": 0.3}, [0, 100]),  # the first anchor's shape has a third
        ({"max_iou_for_object_absence": 0.34}, [5, 100]),
        ({"min_iou_for_object_presence": 0.3}, [100, 100]),
        ({"min_iou_for_object_presence": 0.7, "max_iou_for_object_absence": 0.3}, [0, 100]),  # MPS's
        ({"min_iou_for_object_presence": 0.9}, [5, 100]),  # the best anchor always counts
    ],
)
def test_limits(limits: dict[str, float], weights: list[int], device: mx.Device) -> None:
    _, state = mf.yolo_loss_fwd(mx.zeros((1, 1, 1, 14)), one_cell(0.25, 0.75, 2, 1.5, 1, 1, 0), PAIR, **limits)
    assert state.weights.reshape(2, C)[:, 4].tolist() == weights


def test_of_anchors_that_are_alike_the_first_is_responsible(device: mx.Device) -> None:
    label = one_cell(0.5, 0.5, 1, 1, 1, 1, 0)
    _, state = mf.yolo_loss_fwd(mx.zeros((1, 1, 1, 21)), label, [(9, 9), (1, 2), (2, 1)])
    assert state.weights.reshape(3, C)[:, 4].tolist() == [5, 100, 5]


def test_the_confidence_of_a_label_only_says_whether_there_is_an_object(device: mx.Device) -> None:
    y = numbers((1, 1, 1, 14))
    some, whole = (mf.yolo_loss(y, one_cell(0.25, 0.75, 2, 1.5, c, 1, 0), PAIR) for c in (0.25, 1))
    assert same_bits(some, whole)


# Beside the definition ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [*HOW.values(), RESCORED, {"reduction": "none"}, {"reduction": "mean", "scale_wh": 0}])
def test_definition(how: dict[str, Any], dtype: mx.Dtype, device: mx.Device) -> None:
    y, wide = numbers(Y, dtype), accumulator(dtype)
    scales = tuple(how.get(f"scale_{name}", usual) for name, usual in
                   (("xy", 10), ("wh", 10), ("no_object", 5), ("object", 100), ("class", 2)))  # fmt: skip
    named = (
        ("min_iou_for_object_presence", None),
        ("max_iou_for_object_absence", None),
        ("rescore", True),
        ("epsilon", 1e-5),
    )
    targets, weights = oracle.yolo_targets(
        exact(y), exact(labels(wide)), ANCHORS, scales, *(how.get(name, usual) for name, usual in named)
    )
    told = {name: how[name] for name in ("xy_loss", "wh_loss", "class_loss", "delta") if name in how}
    lost, slope = oracle.yolo_elements(exact(y), targets, weights, 2, **told)
    reduction = how.get("reduction", "sum")
    size, share = 4 + abs(lost), 1 / lost[0].size if reduction == "mean" else 1
    for given in (labels(wide), mx.concatenate([labels(wide)] * 2, axis=-1)):  # one for each cell, or each anchor
        value, state = mf.yolo_loss_fwd(y, given, ANCHORS, **how)
        near(state.target, targets, 4, slack=16)
        near(state.weights, weights)
        if reduction == "none":
            assert value.dtype == dtype
            near(value, lost, size, slack=16)
        else:
            assert value.dtype == wide and value.shape == (2, 1, 1, 1)
            near(value, share * lost.sum((1, 2, 3), keepdims=True), share * size.sum(), slack=16)
        gradient = mf.yolo_loss_grad(y, state)
        assert gradient.dtype == dtype
        near(gradient, slope, 8 + abs(slope), slack=16)
        near(mf.yolo_loss_grad(y, state, divided=True), share * slope, share * (8 + abs(slope)), slack=16)
        assert same_bits(mf.yolo_loss(y, given, ANCHORS, **how), value)


def test_boxes(dtype: mx.Dtype, device: mx.Device) -> None:
    y = numbers((2, 3, 2, 14), dtype)
    boxes, scores = mf.yolo_boxes(y, ANCHORS)
    assert boxes.dtype == scores.dtype == accumulator(dtype)
    for made, right in zip((boxes, scores), oracle.yolo_boxes(exact(y), ANCHORS), strict=True):
        near(made, right, 8, slack=16)


def test_boxes_are_those_that_the_loss_compares(device: mx.Device) -> None:
    """Raw values that mean the label have a confidence of 1 as their target."""
    label = one_cell(0.25, 0.75, 2, 1.5, 1, 1, 0)
    place = [np.log(0.25 / 0.75), np.log(0.75 / 0.25), np.log(2 / 2), np.log(1.5 / 2)]
    y = mx.array([*[0.0] * C, *place, 0, 0, 0]).reshape(1, 1, 1, 14)
    boxes, _ = mf.yolo_boxes(y, PAIR)
    np.testing.assert_allclose(exact(boxes)[0, 1], [0.25 - 1, 0.75 - 0.75, 0.25 + 1, 0.75 + 0.75], atol=1e-6)
    _, state = mf.yolo_loss_fwd(y, label, PAIR)
    np.testing.assert_allclose(exact(state.target).reshape(2, C)[1, 4], 1, rtol=1e-6)


# Derivatives, and extremes --------------------------------------------------------------------------------


@pytest.mark.parametrize("rescore", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_the_derivative_is_that_of_the_value_with_targets_as_they_are(
    reduction: Any, rescore: bool, on_cpu: mx.Device
) -> None:
    y, way = numbers(Y, mx.float64), numbers(Y, mx.float64, 1)
    _, state = mf.yolo_loss_fwd(y, labels(mx.float64), ANCHORS, reduction, rescore=rescore)
    fixed, weights = exact(state.target), exact(state.weights)

    def lost(step: float) -> float:
        each = oracle.yolo_elements(exact(y + step * way), fixed, weights, 2)[0]
        return float(each.sum()) / (each[0].size if reduction == "mean" else 1)

    gradient = mx.grad(lambda y: mf.yolo_loss(y, labels(mx.float64), ANCHORS, reduction, rescore=rescore).sum())(y)
    np.testing.assert_allclose((gradient * way).sum().item(), (lost(1e-6) - lost(-1e-6)) / 2e-6, rtol=1e-7)
    np.testing.assert_allclose(
        exact(mf.yolo_loss_grad(y, state, divided=True)), exact(gradient), rtol=1e-12, atol=1e-13
    )
    slope = mx.grad(lambda y: (mf.yolo_loss_grad(y, state, divided=True) * way).sum())(y)
    ends = [mf.yolo_loss_grad(y + sign * 1e-6 * way, state, divided=True) for sign in (1, -1)]
    np.testing.assert_allclose(exact(slope), exact(ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_labels_have_no_derivative(on_cpu: mx.Device) -> None:
    y = numbers(Y)
    assert not mx.grad(lambda t: mf.yolo_loss(y, t, ANCHORS).sum())(labels()).any()


@pytest.mark.parametrize("size", [-200.0, 200.0])
@pytest.mark.parametrize("place", [-500.0, 500.0])
def test_predictions_far_beyond_have_finite_losses(size: float, place: float, device: mx.Device) -> None:
    """Whose exponentials overflow or vanish."""
    y = mx.array([place, -place, size, -size, place, -place, size] * 2).reshape(1, 1, 1, 14)
    value, state = mf.yolo_loss_fwd(y, one_cell(0.25, 0.75, 2, 1.5, 1, 1, 0), PAIR)
    for made in (value, *state.arrays, mf.yolo_loss_grad(y, state)):
        assert np.isfinite(exact(made)).all()
    assert 0 <= state.target.reshape(2, C)[1, 4].item() <= 1


def test_no_images(device: mx.Device) -> None:
    y, none = mx.zeros((0, 2, 2, 14)), mx.zeros((0, 2, 2, C))
    for reduction, shape in (("sum", (0, 1, 1, 1)), ("mean", (0, 1, 1, 1)), ("none", y.shape)):
        value, state = mf.yolo_loss_fwd(y, none, ANCHORS, reduction)
        assert value.shape == shape and mf.yolo_loss_grad(y, state).shape == y.shape
    boxes, scores = mf.yolo_boxes(y, ANCHORS)
    assert boxes.shape == (0, 8, 4) and scores.shape == (0, 8, 2)


def test_maps_compilation_and_files(tmp_path: Path, device: mx.Device) -> None:
    ys, many = numbers((3, *Y)), mx.stack([labels()] * 3)
    how: dict[str, Any] = HOW["with limits"] | {"rescore": True}
    right = [mf.yolo_loss(y, labels(), ANCHORS, **how) for y in ys]
    for made in (
        mx.vmap(lambda y, t: mf.yolo_loss(y, t, ANCHORS, **how))(ys, many),
        mx.vmap(lambda y: mf.yolo_loss(y, labels(), ANCHORS, **how))(ys),
        mx.stack([mx.compile(lambda y: mf.yolo_loss(y, labels(), ANCHORS, **how))(y) for y in ys]),
    ):
        np.testing.assert_allclose(exact(made), exact(mx.stack(right)), rtol=1e-6)
    _, state = mf.yolo_loss_fwd(ys[0], labels(), ANCHORS, **how)
    mf.save(tmp_path / "state.safetensors", state)
    again: Any = mf.load(tmp_path / "state.safetensors")
    assert again[2:] == state[2:] and same_bits(mf.yolo_loss_grad(ys[0], again), mf.yolo_loss_grad(ys[0], state))
