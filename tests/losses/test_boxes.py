"""Overlaps of boxes and their losses: by hand, beside torchvision's formulas, and where formulas say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from support import TOLERANCE, accumulator, exact
from support import close as near
from support.oracle import detection as oracle

import mpsfunc as mf
from mpsfunc.typing import OverlapName

THEIRS = dict(np.load(Path(__file__).parents[1] / "fixtures" / "box_losses.npz"))
KINDS: tuple[OverlapName, ...] = get_args(OverlapName)
each_kind = pytest.mark.parametrize("kind", KINDS)
NAN = float("nan")


def close(made: mx.array, right: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(exact(made), right, tolerance, tolerance / 10)


def drawn(count: int, dtype: mx.Dtype, seed: int = 0) -> mx.array:
    """Boxes with an area, that mostly overlap."""
    rng = np.random.default_rng([seed, count])
    low = rng.uniform(0, 3, (count, 2))
    return mx.array(np.concatenate([low, low + rng.uniform(0.5, 3, (count, 2))], 1), dtype)


# By hand, and beside others -------------------------------------------------------------------------------


def test_by_hand(device: mx.Device) -> None:
    """Two squares of 2 by 2, one moved by 1: I = 2, U = 6, C = 6, d = 1, D = 13. And the second stretched to 4 by 2."""
    a, b = mx.array([0.0, 0, 2, 2]), mx.array([[1.0, 0, 3, 2], [1, 0, 5, 2]])
    close(mf.box_iou(a, b), [1 / 3, 1 / 5])
    close(mf.box_iou(a, b, "giou"), [1 / 3, 1 / 5])
    close(mf.box_iou(a, b, "diou"), [1 / 3 - 1 / 13, 1 / 5 - 4 / 29])
    v = 4 / np.pi**2 * (np.arctan(2) - np.pi / 4) ** 2
    close(mf.box_iou(a, b, "ciou"), [1 / 3 - 1 / 13, 1 / 5 - 4 / 29 - v * v / (4 / 5 + v)])
    close(mf.box_iou(a, mx.array([3.0, 3, 4, 4]), "giou"), -(16 - 5) / 16)
    close(mf.box_iou_loss(a, b[0], "iou", epsilon=0), 2 / 3)


@each_kind
def test_definition(kind: OverlapName, dtype: mx.Dtype, device: mx.Device) -> None:
    a, b = drawn(40, dtype), drawn(40, dtype, 1)
    right = oracle.overlaps(exact(a), exact(b), kind)
    near(mf.box_iou(a, b, kind), right, 8, slack=4)
    near(mf.box_iou(a[:, None], b[:7], kind), oracle.overlaps(exact(a)[:, None], exact(b)[:7], kind), 8, slack=4)
    lost = 1 - oracle.overlaps(exact(a), exact(b), kind, 0.25)
    near(mf.box_iou_loss(a, b, kind, epsilon=0.25), lost, 8, slack=4)
    for reduction, whole in (("sum", lost.sum()), ("mean", lost.mean())):
        made = mf.box_iou_loss(a, b, kind, reduction=reduction, epsilon=0.25)
        assert made.dtype == accumulator(dtype)
        near(made, whole, 8 * (40 if reduction == "sum" else 1), slack=4)


@each_kind
def test_as_torchvision(kind: OverlapName, on_cpu: mx.Device) -> None:
    """Values and gradients by both, of a factor of CIOU that is a constant."""
    boxes, target = (mx.array(THEIRS[name], mx.float64) for name in ("boxes", "target"))
    close(mf.box_iou_loss(boxes, target, kind), THEIRS[f"{kind} loss"], 1e-11)
    close(mf.box_iou_loss_grad(boxes, target, kind), THEIRS[f"{kind} dboxes"], 1e-9)
    grads = mx.grad(lambda a, b: mf.box_iou_loss(a, b, kind).sum(), (0, 1))(boxes, target)
    for made, name in zip(grads, ("dboxes", "dtarget"), strict=True):
        close(made, THEIRS[f"{kind} {name}"], 1e-9)
    mean = mf.box_iou_loss_grad(boxes, target, kind, reduction="mean")
    close(mean, THEIRS[f"{kind} dboxes"] / len(boxes), 1e-9)


@pytest.mark.parametrize("which", range(4))
def test_the_focal_loss_is_torchvisions(which: int, on_cpu: mx.Device) -> None:
    """``sigmoid_focal_loss``, whose alpha below 0 is None."""
    y, t = (mx.array(THEIRS[name], mx.float64) for name in ("logits", "shares"))
    alpha, gamma = THEIRS[f"how{which}"].tolist()
    how: dict[str, Any] = {"alpha": None if alpha < 0 else alpha, "gamma": gamma}
    close(mf.focal_loss(y, t, **how), THEIRS[f"focal{which}"], 1e-11)
    close(mf.focal_loss_grad(y, t, **how), THEIRS[f"dfocal{which}"], 1e-10)
    close(mf.focal_loss(y, t, reduction="mean", **how), THEIRS[f"focal{which}"].mean(), 1e-11)


# Derivatives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-7, 0.5])
@each_kind
def test_derivatives_are_differences(kind: OverlapName, epsilon: float, on_cpu: mx.Device) -> None:
    a, b = drawn(12, mx.float64), drawn(12, mx.float64, 1)

    def lost(a: mx.array, b: mx.array) -> mx.array:
        return mf.box_iou_loss(a, b, kind, reduction="sum", epsilon=epsilon, exact=True)

    by_both = mx.grad(lost, (0, 1))(a, b)
    way = drawn(12, mx.float64, 2) - 2
    for at, gradient in enumerate(by_both):
        ends = [lost(*(x + sign * 1e-6 * way if i == at else x for i, x in enumerate((a, b)))) for sign in (1, -1)]
        close((gradient * way).sum(), exact(ends[0] - ends[1]) / 2e-6, 1e-6)
        pushed = mx.jvp(
            lambda x, at=at: lost(*(x if i == at else o for i, o in enumerate((a, b)))), [(a, b)[at]], [way]
        )
        close(pushed[1][0], exact((gradient * way).sum()), 1e-10)
    slope = mx.grad(lost)
    curved = mx.grad(lambda a: (slope(a, b) * way).sum())(a)
    ends = [slope(a + sign * 1e-6 * way, b) for sign in (1, -1)]
    np.testing.assert_allclose(exact(curved), exact(ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)
    close(mf.box_iou_loss_grad(a, b, kind, epsilon=epsilon, exact=True), exact(by_both[0]), 1e-12)


def test_only_ciou_has_a_factor_that_is_constant(on_cpu: mx.Device) -> None:
    a, b = drawn(12, mx.float64), drawn(12, mx.float64, 1)
    for kind in KINDS:
        constant, whole = (exact(mf.box_iou_loss_grad(a, b, kind, exact=flag)) for flag in (False, True))
        assert np.array_equal(constant, whole) == (kind != "ciou")


@each_kind
def test_the_gradient_in_each_dtype(kind: OverlapName, dtype: mx.Dtype, device: mx.Device) -> None:
    a, b = drawn(20, dtype), drawn(20, dtype, 1)
    wide = mf.box_iou_loss_grad(*(x.astype(accumulator(dtype)) for x in (a, b)), kind)
    made = mf.box_iou_loss_grad(a, b, kind)
    assert made.dtype == dtype
    np.testing.assert_allclose(exact(made), exact(wide), rtol=2 * TOLERANCE[dtype], atol=1e-6)


# Where formulas say nothing -------------------------------------------------------------------------------

POINT, LINE, UPRIGHT, BOX = [1.0, 1, 1, 1], [0.0, 1, 2, 1], [1.0, 0, 1, 2], [0.0, 0, 2, 2]
TURNED, OUTSIDE = [2.0, 2, 0, 0], [4.0, 4, 5, 6]
DEGENERATE = [POINT, LINE, UPRIGHT, BOX, TURNED, OUTSIDE]


@each_kind
def test_degenerate_boxes_have_finite_values_and_slopes(kind: OverlapName, dtype: mx.Dtype, device: mx.Device) -> None:
    """Of all pairs, each with itself too, with an epsilon and without."""
    pairs = [(a, b) for a in DEGENERATE for b in DEGENERATE]
    a, b = (mx.array(boxes).astype(dtype) for boxes in zip(*pairs, strict=True))
    near(mf.box_iou(a, b, kind), oracle.overlaps(exact(a), exact(b), kind), 8)
    for epsilon in (0.0, 1e-7):
        lost = 1 - oracle.overlaps(exact(a), exact(b), kind, epsilon)
        near(mf.box_iou_loss(a, b, kind, epsilon=epsilon), lost, 8)
        for gradient in mx.grad(lambda a, b, e=epsilon: mf.box_iou_loss(a, b, kind, epsilon=e).sum(), (0, 1))(a, b):
            assert np.isfinite(exact(gradient)).all()


def test_zero_areas_identical_and_disjoint_boxes(device: mx.Device) -> None:
    def overlaps(a: list[float], b: list[float]) -> list[float]:
        return [round(mf.box_iou(mx.array(a), mx.array(b), kind).item(), 6) for kind in KINDS]

    assert overlaps(POINT, POINT) == overlaps(LINE, LINE) == [0, 0, 0, 0]
    assert overlaps(POINT, BOX)[:3] == [0, 0, 0]
    assert overlaps(BOX, BOX) == [1, 1, 1, 1]
    assert overlaps(TURNED, BOX)[0] == 0  # has no area
    far, v = -(3.5**2 + 4**2) / 61, 4 / np.pi**2 * (np.arctan(1 / 2) - np.pi / 4) ** 2
    assert overlaps(BOX, OUTSIDE) == [0, -0.8, round(far, 6), round(far - v * v / (1 + v), 6)]
    assert mf.box_iou_loss(mx.array(BOX), mx.array(BOX), "giou").item() == 0


@each_kind
def test_equal_boxes_have_no_slope(kind: OverlapName, on_cpu: mx.Device) -> None:
    boxes = drawn(9, mx.float64)
    close(mf.box_iou_loss_grad(boxes, boxes, kind, epsilon=0), np.zeros((9, 4)), 1e-12)


def test_an_area_of_nothing_may_grow(on_cpu: mx.Device) -> None:
    """GIOU moves a line that a box should be: it widens."""
    slope = mf.box_iou_loss_grad(mx.array(UPRIGHT), mx.array(BOX), "giou")
    assert slope[2].item() < 0 < slope[0].item()


@each_kind
def test_nan_stays_in_its_row(kind: OverlapName, device: mx.Device) -> None:
    for i in range(4):
        bad = mx.array([BOX, BOX])
        bad[1, i] = NAN
        target = mx.array([OUTSIDE, BOX])
        for made in (mf.box_iou(bad, target, kind), mf.box_iou(target, bad, kind), mf.box_iou_loss(bad, target, kind)):
            assert np.isnan(exact(made)).tolist() == [False, True]
        assert np.isfinite(exact(mf.box_iou_loss_grad(bad, target, kind))[0]).all()


def test_no_boxes(device: mx.Device) -> None:
    none = mx.zeros((0, 4))
    assert mf.box_iou(none, none).shape == (0,) and mf.box_iou(none[:, None], mx.zeros((3, 4))).shape == (0, 3)
    for reduction in ("sum", "mean"):
        assert mf.box_iou_loss(none, none, reduction=reduction).item() == 0
    assert mf.box_iou_loss_grad(none, none, reduction="mean").shape == (0, 4)


def test_a_box_alone_and_maps(device: mx.Device) -> None:
    a, b = drawn(6, mx.float32), drawn(6, mx.float32, 1)
    assert mf.box_iou(a[0], b[0]).shape == ()
    right = exact(mf.box_iou(a, b, "ciou"))
    close(mx.vmap(lambda a, b: mf.box_iou(a, b, "ciou"))(a, b), right)
    close(mx.compile(lambda a, b: mf.box_iou(a, b, "ciou"))(a, b), right)
    grid = mx.vmap(mx.vmap(mf.box_iou, (None, 0)), (0, None))(a, b)
    close(grid, exact(mf.box_iou(a[:, None], b)))


@each_kind
def test_where_a_ratio_is_0_to_0_there_is_no_slope(kind: OverlapName, on_cpu: mx.Device) -> None:
    """Of a line or a point and itself, whose areas would grow if a side did."""
    for box in (LINE, UPRIGHT, POINT):
        same = mx.array([box, box])
        assert not mf.box_iou_loss_grad(same, same, kind, epsilon=0.0).any()


@each_kind
def test_a_line_and_itself_have_no_slope(kind: OverlapName, device: mx.Device) -> None:
    """Nor do two lines in one, of which GIOU's would be 1 / epsilon times a length."""
    pairs = [(LINE, LINE), (UPRIGHT, UPRIGHT), (POINT, POINT), ([0.0, 1, 2, 1], [1.0, 1, 5, 1])]
    for a, b in pairs[:3] if kind in ("diou", "ciou") else pairs:
        assert not mf.box_iou_loss_grad(mx.array([a]), mx.array([b]), kind).any()


# Of any size ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("across", [1e-25, 1e-3, 1.0, 1e4, 1e20, 1e38])
@each_kind
def test_boxes_of_any_size(kind: OverlapName, across: float, device: mx.Device) -> None:
    """Sides whose products float32 has not; values and slopes are those of float64."""
    a, b = (mx.array(exact(drawn(30, mx.float32, seed)) * across / 8, mx.float32) for seed in (0, 1))
    with mx.stream(mx.cpu):
        exactly = [mx.array(exact(x), mx.float64) for x in (a, b)]
    close(mf.box_iou(a, b, kind), oracle.overlaps(exact(a), exact(b), kind), 2e-5)
    for epsilon, constant in ((0.0, False), (1e-7, False), (1e-7, True)):
        made = mf.box_iou_loss_grad(a, b, kind, epsilon=epsilon, exact=not constant)
        right = exact(mf.box_iou_loss_grad(*exactly, kind, epsilon=epsilon, exact=not constant, stream=mx.cpu))
        assert np.isfinite(exact(made)).all()
        np.testing.assert_allclose(exact(made), right, 1e-3, 1e-4 * abs(right).max())


@pytest.mark.parametrize("sides", [(1e25, 1e-20), (1e-25, 1e20), (1e-20, 1e-30), (3e38, 3e38)])
@each_kind
def test_boxes_of_any_shape(kind: OverlapName, sides: tuple[float, float], device: mx.Device) -> None:
    """The same box twice, and one of half the width in it, which has half its area."""
    wide, high = sides
    box = mx.array([-wide, -high, wide, high], mx.float32)
    half = mx.array([-wide, -high, 0, high], mx.float32)
    close(mf.box_iou(box, box, kind), 1)
    close(mf.box_iou(box, half), 0.5)
    close(mf.box_iou(box, half, "giou"), 0.5)
    for epsilon in (0.0, 1e-7):
        for a, b in ((box, box), (box, half), (half, box)):
            gradient = exact(mf.box_iou_loss_grad(a, b, kind, epsilon=epsilon))
            assert not np.isnan(gradient).any()


def test_second_derivatives_of_large_and_small_boxes_are_finite(on_cpu: mx.Device) -> None:
    for across in (1e-12, 1e12):
        a, b = (across * drawn(9, mx.float32, seed) for seed in (0, 1))
        for kind in KINDS:
            slope = mx.grad(lambda a, kind=kind, b=b: mf.box_iou_loss(a, b, kind, "sum", exact=True, epsilon=0))
            assert np.isfinite(exact(mx.grad(lambda a, slope=slope: slope(a).sum())(a))).all()


def test_a_reduction_may_stand_in_its_place_and_is_no_type(on_cpu: mx.Device) -> None:
    a, b = drawn(6, mx.float32), drawn(6, mx.float32, 1)
    assert mf.box_iou_loss(a, b, "diou", "mean").item() == mf.box_iou_loss(a, b, "diou", reduction="mean").item()
    by_name = mf.box_iou_loss_grad(a, b, "diou", reduction="mean")
    assert mf.box_iou_loss_grad(a, b, "diou", "mean").tolist() == by_name.tolist()
    wrong: Any = "mean"
    for function in (mf.box_iou_loss, mf.box_iou_loss_grad):
        with pytest.raises(ValueError, match="unknown type; got type='mean', .*, or reduction='mean'"):
            function(a, b, wrong)


@each_kind
@pytest.mark.parametrize("scale", [1e-30, 1e-5, 1.0, 16.0, 1e10, 1e30])
def test_flat_and_inverted_boxes_have_slopes(kind: OverlapName, scale: float, device: mx.Device) -> None:
    """First and second derivatives are numbers wherever corners of whole numbers lie."""
    rng = np.random.default_rng(3)
    a, b = (mx.array(scale * rng.integers(-3, 4, (500, 4)), mx.float32) for _ in range(2))

    def lost(boxes: mx.array) -> mx.array:
        return mf.box_iou_loss(boxes, b, kind, reduction="sum", epsilon=0.0)

    slope = mx.grad(lost)
    assert np.isfinite(exact(slope(a))).all()
    if 1e-5 <= scale <= 1e10:  # else they have no number in float32
        assert np.isfinite(exact(mx.grad(lambda boxes: (slope(boxes) * scale).sum())(a))).all()


def test_flat_boxes_apart_have_no_slope(device: mx.Device) -> None:
    flat, point = mx.array([[16.0, 0, 16, 16]]), mx.zeros((1, 4))
    assert not exact(mx.grad(lambda a: mf.box_iou(a, point).sum())(flat)).any()
    beside = mx.array([[0.0, 0, 1e-23, 1e23]])
    made = mx.grad(lambda a: mf.box_iou(a, beside).sum())(mx.array([[0.0, 0, 1, 1]]))
    assert np.isfinite(exact(made)).all()
