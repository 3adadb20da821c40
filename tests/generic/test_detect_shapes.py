"""The example that detects shapes: its images, labels and average precision, and the script to its end."""

from __future__ import annotations

import math
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

for needed in ("tqdm", "matplotlib"):
    pytest.importorskip(needed, reason="the example needs the extra mpsfunc[demo]")

import average_precision as ap  # noqa: E402  # imports what was asked for above
import detect_shapes  # noqa: E402  # likewise
import shapes  # noqa: E402  # likewise

import mpsfunc as mf  # noqa: E402  # stands with the others

pytestmark = pytest.mark.needs_cpu_module


# Average precision ----------------------------------------------------------------------------------------


def found(*rows: tuple[int, int, tuple[float, ...], float]) -> ap.Found:
    image, kind, box, score = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ap.Found(np.array(image, int), np.array(kind, int), np.array(box).reshape(-1, 4), np.array(score))


A, B, FAR = (0.0, 0.0, 4.0, 4.0), (10.0, 0.0, 14.0, 4.0), (50.0, 50.0, 60.0, 60.0)
NEARLY_A = (0.0, 0.0, 4.0, 3.0)  # IOU 3 / 4


@pytest.mark.parametrize(
    ("right", "objects", "area"),
    [
        ([True, True], 2, 1),
        ([True, False, True], 2, (1 + 2 / 3) / 2),
        ([False, True, True], 2, 2 / 3),  # 1/2 is raised to the precision at the next recall
        ([False, True, False, True, True], 4, (3 / 5 * 3) / 4),  # one object is not found
        ([False, False], 3, 0),
        ([], 2, 0),
    ],
)
def test_area_under_precision_by_hand(right: list[bool], objects: int, area: float) -> None:
    assert ap.area_under(np.array(right, bool), objects) == pytest.approx(area)


def test_there_is_no_precision_of_nothing() -> None:
    assert math.isnan(ap.area_under(np.array([True]), 0))


def test_an_object_is_found_once_and_by_the_surest_box() -> None:
    truth = found((0, 0, A, 1), (0, 0, B, 1))
    detections = found((0, 0, NEARLY_A, 0.9), (0, 0, A, 0.8), (0, 0, B, 0.7))
    assert ap.hits(detections, truth, 0.5).tolist() == [True, False, True]
    assert ap.average_precision(detections, truth, 0) == pytest.approx((1 + 2 / 3) / 2)
    assert ap.hits(detections, truth, 0.75).tolist() == [True, False, True]  # the threshold itself is enough
    assert ap.hits(detections, truth, 0.76).tolist() == [False, True, True]


def test_boxes_of_other_images_and_classes_do_not_count() -> None:
    truth = found((0, 0, A, 1), (1, 1, A, 1), (1, 0, B, 1))
    detections = found((1, 0, A, 0.9), (0, 0, A, 0.8), (1, 1, A, 0.7), (2, 0, A, 0.6), (1, 0, FAR, 0.5))
    assert ap.average_precision(detections, truth, 0) == pytest.approx((1 / 2) / 2)
    assert ap.average_precision(detections, truth, 1) == 1
    assert ap.mean_average_precision(detections, truth) == pytest.approx((1 / 4 + 1) / 2)
    assert ap.average_precision(found(), truth, 1) == 0


def test_overlaps_are_those_of_box_iou() -> None:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 4, (30, 2, 2)).cumsum(1).reshape(30, 4)
    right = np.array(mf.box_iou(mx.array(boxes[:1], mx.float32), mx.array(boxes, mx.float32)))
    np.testing.assert_allclose(ap.overlaps(boxes[0], boxes), right, atol=1e-6)
    assert not ap.overlaps(np.zeros(4), np.zeros((2, 4))).any()


# Images and labels ----------------------------------------------------------------------------------------


def test_images_have_one_to_five_shapes_of_each_class_within_them() -> None:
    drawn = shapes.draw(300, np.random.default_rng(0))
    assert drawn.images.shape == (300, shapes.SIDE, shapes.SIDE, 3) and drawn.images.dtype == np.float32
    counts = (drawn.classes >= 0).sum(1)
    assert set(counts) == {1, 2, 3, 4, 5} and set(drawn.classes.ravel()) == {-1, 0, 1, 2}
    boxes = drawn.boxes[drawn.classes >= 0]
    sides = boxes[:, 2:] - boxes[:, :2]
    assert boxes.min() >= -1e-3 and boxes.max() <= shapes.SIDE + 1e-3
    assert sides.min() > shapes.RADIUS[0] and sides.max() <= 2 * shapes.RADIUS[1] + 1e-3
    assert not drawn.boxes[drawn.classes < 0].any()
    overlapping = [
        ap.overlaps(b[i], np.delete(b, i, 0)).max() > 0 for b in drawn.boxes for i in range(shapes.MOST) if b[i].any()
    ]
    assert np.mean(overlapping) > 0.3


def test_the_same_seed_draws_the_same_images() -> None:
    first, again, other = (shapes.draw(9, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.images, other.images)
    held_out, trained = detect_shapes.held_out(9).images, shapes.draw(9, np.random.default_rng([0, 0])).images
    assert not np.array_equal(held_out, trained)


@pytest.mark.parametrize("kind", range(3))
def test_a_box_is_what_its_shape_covers(kind: int) -> None:
    """To a pixel, of a shape alone in a large image of noise-free coverage."""
    rng = np.random.default_rng(kind)
    kinds, radius = np.full(40, kind), rng.uniform(8, 14, 40).astype(np.float32)
    middle, turn = rng.uniform(20, 44, (40, 2)).astype(np.float32), rng.uniform(0, 7, 40).astype(np.float32)
    covers = shapes._cover(kinds, middle, radius, turn)
    boxes = shapes._boxes(kinds[:, None], middle[:, None], radius[:, None], turn[:, None])[:, 0]
    for cover, box in zip(covers, boxes, strict=True):
        rows, cols = np.nonzero(cover > 0.5)
        np.testing.assert_allclose(box, [cols.min(), rows.min(), cols.max() + 1, rows.max() + 1], atol=1.6)


def test_labels_say_where_shapes_are() -> None:
    boxes = np.array([[[8.0, 16, 24, 28], [40, 40, 44, 44], [9, 15, 23, 27]], [[0, 0, 8, 8], [0] * 4, [0] * 4]])
    made = shapes.labels(boxes, np.array([[0, 2, 1], [2, -1, -1]]), 8)
    assert made.shape == (2, 8, 8, 8) and made[..., 4].sum() == 3
    np.testing.assert_allclose(made[0, 2, 2], [0, 0.625, 1.75, 1.5, 1, 0, 1, 0])  # in front of the first
    np.testing.assert_allclose(made[0, 5, 5], [0.25, 0.25, 0.5, 0.5, 1, 0, 0, 1])
    np.testing.assert_allclose(made[1, 0, 0], [0.5, 0.5, 1, 1, 1, 0, 0, 1])


# The detector ---------------------------------------------------------------------------------------------


def test_predictions_that_say_the_labels_find_all_shapes() -> None:
    """By raw values that mean each label, for its best anchor; what is lost are shapes that share a cell."""
    drawn = shapes.draw(60, np.random.default_rng(3))
    label = shapes.labels(drawn.boxes, drawn.classes, detect_shapes.CELLS)
    count = len(detect_shapes.ANCHORS)
    made = np.zeros((*label.shape[:3], count, label.shape[-1]), np.float32)
    made[..., 4] = -20
    for at in np.argwhere(label[..., 4] > 0):
        place, size = np.clip(label[tuple(at)][:2], 1e-4, 1 - 1e-4), label[tuple(at)][2:4]
        row = [*np.log(place / (1 - place)), *np.log(size / np.array(detect_shapes.ANCHORS[1])), 5]
        made[(*at, 1)] = [*row, *(20 * label[tuple(at)][5:])]
    raw = mx.array(made.reshape(*label.shape[:3], -1))
    boxes, kinds, scores = (np.array(each) for each in detect_shapes.detections(raw))
    image, place = np.nonzero(scores)
    all_found = ap.Found(image, kinds[image, place], boxes[image, place], scores[image, place])
    truth = detect_shapes.truth_of(drawn)
    assert len(all_found.image) <= label[..., 4].sum()
    assert ap.mean_average_precision(all_found, truth, 0.9) > 0.85


def test_every_layer_learns_and_averages_follow() -> None:
    drawn = shapes.draw(8, np.random.default_rng(0))
    labels = mx.array(shapes.labels(drawn.boxes, drawn.classes, detect_shapes.CELLS))
    params, averages = detect_shapes.new_params(0), detect_shapes.new_averages()
    (value, updated), slopes = mx.value_and_grad(detect_shapes.loss)(params, averages, mx.array(drawn.images), labels)
    assert 0 < value.item() < math.inf
    for name, slope in tree_flatten(slopes):
        assert 0 < abs(slope).max().item() < math.inf, name
    for (mean, var), (before, _) in zip(updated, averages, strict=True):
        assert mean.shape == var.shape == before.shape and mean.any()


@pytest.mark.programs
def test_the_script_finds_more_than_half(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "detect_shapes.md"
    mean = detect_shapes.main(["--steps", "400", "--held-out", "100", "--page", str(page)])
    lines = capsys.readouterr().out.splitlines()
    told = next(line for line in lines if "average precision" in line)
    first, *each = (float(n) for n in re.findall(r"\d\.\d{3}", told))
    assert mean > 0.5 and first == pytest.approx(mean, abs=1e-3) == pytest.approx(np.mean(each), abs=2e-3)
    assert lines[-1] == f"average precision at IOU 0.5: {mean:.3f}"
    assert (tmp_path / "detect_shapes.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^Commit (unknown|[0-9a-f]{12}(-dirty)?)\.$", page.read_text(), re.MULTILINE)
    assert f"| 0 | {mean:.3f} | " in page.read_text() and "(detect_shapes.png)" in page.read_text()


@pytest.mark.programs
def test_several_seeds_give_their_median(capsys: pytest.CaptureFixture[str]) -> None:
    median = detect_shapes.main(["--steps", "60", "--held-out", "40", "--seeds", "3", "--no-plot"])
    lines = capsys.readouterr().out.splitlines()
    each = sorted(float(n) for n in re.findall(r"precision (\d\.\d{3}) \(", "\n".join(lines)))
    assert len(each) == 3 and each[1] == pytest.approx(median, abs=1e-3)
    assert lines[-1] == f"average precision at IOU 0.5: {median:.3f} (median of 3 seeds)"
