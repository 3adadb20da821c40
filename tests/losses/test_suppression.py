"""Non-maximum suppression: beside the definition, which keeps boxes one after the other."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact
from support.oracle import detection as oracle

import mpsfunc as mf
from mpsfunc.losses import suppression

NAN, INF = float("nan"), float("inf")


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Crowded boxes of sixteenths, scores of which some are equal or none, and classes."""
    rng = np.random.default_rng([seed, count])
    low = rng.integers(0, 48, (count, 2)) / 16
    boxes = np.concatenate([low, low + rng.integers(4, 32, (count, 2)) / 16], 1)
    scores = rng.integers(0, count + 1, count) / 64
    scores[rng.random(count) < 0.1] = -INF
    return boxes, scores, rng.integers(0, 3, count)


@pytest.fixture(params=["kernel", "operations"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a CPU runs, and what other devices do, on whichever is there."""
    if request.param == "operations":
        monkeypatch.setattr(suppression, "_by_kernel", lambda stream: False)
    way: str = request.param
    return way


def check(indices: mx.array, count: mx.array, right: list[int], length: int) -> None:
    assert indices.dtype == count.dtype == mx.int32 and indices.shape == (length,)
    assert indices.tolist() == [*right, *[-1] * (length - len(right))] and count.item() == len(right)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.55, 1.0])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 130, 200])
def test_definition(count: int, threshold: float, device: mx.Device) -> None:
    """Of one class and of several, in blocks that are full, partial and several."""
    boxes, scores, classes = drawn(count)
    given = mx.array(boxes, mx.float32), mx.array(scores, mx.float32)
    right = oracle.kept(boxes, scores, threshold)
    check(*mf.nms(*given, threshold), right, count)
    of_classes = oracle.kept(boxes, scores, threshold, classes)
    check(*mf.nms(*given, threshold, classes=mx.array(classes)), of_classes, count)
    most = len(right) // 2
    check(*mf.nms(*given, threshold, max_outputs=most), right[:most], most)
    check(*mf.nms(*given, threshold, max_outputs=count + 5), right, count)


def test_in_each_dtype(dtype: mx.Dtype, device: mx.Device) -> None:
    boxes, scores, _ = drawn(50)
    given = mx.array(boxes, mx.float32).astype(dtype), mx.array(scores, mx.float32).astype(dtype)
    check(*mf.nms(*given, 0.4), oracle.kept(*map(exact, given), 0.4), 50)


def test_a_chain_in_which_each_box_depends_on_the_one_before(on_cpu: mx.Device) -> None:
    """Every second one is kept: as many steps as there are boxes, in blocks and from one to the next."""
    count = 3 * suppression._BLOCK + 5
    low = np.arange(count) / 2
    boxes = np.stack([low, low * 0, low + 1, low * 0 + 1], 1)
    check(
        *mf.nms(mx.array(boxes, mx.float32), -mx.arange(count).astype(mx.float32), 0.3), list(range(0, count, 2)), count
    )


@pytest.mark.parametrize("wide", [mx.float32, mx.float64], ids=str)
def test_the_overlap_is_that_of_box_iou(wide: mx.Dtype, on_cpu: mx.Device) -> None:
    """To the last bit: two boxes whose overlap is the threshold are both kept, and beyond a little less one is."""
    rng = np.random.default_rng(5)
    low = rng.uniform(0, 1, (60, 2, 2))
    boxes = mx.array(np.concatenate([low, low + rng.uniform(1, 2, low.shape)], -1), mx.float64).astype(wide)
    scores = mx.array([1.0, 0.0])
    for pair, overlap in zip(boxes, mf.box_iou(boxes[:, 0], boxes[:, 1]).tolist(), strict=True):
        assert mf.nms(pair, scores, overlap)[1].item() == 2
        assert mf.nms(pair, scores, overlap * (1 - 1e-6))[1].item() == 1


def test_a_cpu_has_a_kernel(way: str, on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, launch = [], suppression.launch.launch

    def recorded(op: str, *args: Any, **kwargs: Any) -> list[mx.array]:
        launched.append(op)
        return launch(op, *args, **kwargs)

    monkeypatch.setattr(suppression.launch, "launch", recorded)
    mf.nms(mx.zeros((2, 4)), mx.zeros(2), 0.5)
    assert launched == (["nms"] if way == "kernel" else [])


def test_an_overlap_of_the_threshold_is_kept(on_cpu: mx.Device) -> None:
    """As in torchvision: only a larger one is suppressed. Of equal scores the first box goes first."""
    boxes, scores = mx.array([[0.0, 0, 2, 1], [0, 0, 1, 1], [0, 0, 2, 1]]), mx.array([1.0, 1.0, 1.0])
    check(*mf.nms(boxes, scores, 0.5), [0, 1], 3)
    check(*mf.nms(boxes, scores, 0.49), [0], 3)


def test_what_is_not_there_and_what_is_no_number(on_cpu: mx.Device) -> None:
    boxes = mx.array([[0.0, 0, 1, 1], [0, 0, 1, 1], [NAN, 0, 1, 1], [0, 0, 1, 1], [3, 3, 3, 3], [3, 3, 3, 3]])
    check(*mf.nms(boxes, mx.array([NAN, 0.1, 0.9, -INF, 0.0, INF]), 0.5), [5, 2, 1, 4], 6)
    check(*mf.nms(boxes, mx.full((6,), -INF), 0.5), [], 6)
    check(*mf.nms(mx.zeros((0, 4)), mx.zeros(0), 0.5), [], 0)
    check(*mf.nms(boxes, mx.zeros(6), 0.5, max_outputs=0), [], 0)
    indices, count = mf.nms(mx.zeros((2, 0, 4)), mx.zeros((2, 0)), 0.5)
    assert indices.shape == (2, 0) and count.tolist() == [0, 0]
    indices, count = mf.nms(mx.zeros((0, 3, 4)), mx.zeros((0, 3)), 0.5)
    assert indices.shape == (0, 3) and count.shape == (0,)


@pytest.mark.parametrize("across", [1e-30, 1e25])
def test_boxes_of_any_size(across: float, device: mx.Device) -> None:
    boxes, scores, _ = drawn(90)
    scaled = mx.array(boxes * across, mx.float32)
    check(*mf.nms(scaled, mx.array(scores, mx.float32), 0.4), oracle.kept(exact(scaled), scores, 0.4), 90)


def test_memory_grows_with_the_number_of_boxes_and_not_with_its_square(on_cpu: mx.Device) -> None:
    taken = []
    for count in (1024, 4096):
        boxes, scores, _ = drawn(count)
        given = mx.array(boxes, mx.float32), mx.array(scores, mx.float32)
        mx.eval(given)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(mf.nms(*given, 0.5))
        taken.append(mx.get_peak_memory() - before)
    assert taken[1] < 6 * taken[0] and taken[1] < 4096 * 4096 * 4


def test_a_box_of_many_images(on_cpu: mx.Device) -> None:
    """Each on its own, whichever thread has it; of each no more than are wanted."""
    drawings = [drawn(70, seed) for seed in range(9)]
    boxes, scores, classes = (np.stack([d[i] for d in drawings]) for i in range(3))
    given = mx.array(boxes, mx.float32), mx.array(scores, mx.float32)
    indices, counts = mf.nms(*given, 0.3, classes=mx.array(classes), max_outputs=8)
    for found, count, drawing in zip(indices, counts, drawings, strict=True):
        check(found, count, oracle.kept(*drawing[:2], 0.3, drawing[2])[:8], 8)


def test_classes_are_told_apart_by_all_their_bits(on_cpu: mx.Device) -> None:
    classes = mx.array([1, 1 + 2**32, 1 + 2**62, 1])
    check(*mf.nms(mx.zeros((4, 4)) + mx.array([0.0, 0, 1, 1]), mx.zeros(4), 0.5, classes=classes), [0, 1, 2], 4)


def test_several_images_maps_and_compilation(device: mx.Device) -> None:
    """The same shapes whatever is kept, so one trace serves all."""
    images = [drawn(70, seed) for seed in range(3)]
    boxes, scores, classes = (np.stack(each) for each in zip(*images, strict=True))
    given: list[Any] = [mx.array(boxes, mx.float32), mx.array(scores, mx.float32), mx.array(classes)]
    traces = []

    def kept(boxes: mx.array, scores: mx.array, classes: mx.array) -> tuple[mx.array, mx.array]:
        traces.append(1)
        return mf.nms(boxes, scores, 0.35, classes=classes, max_outputs=30)

    mapped, compiled = mx.vmap(kept)(*given), mx.compile(kept)
    traces.clear()
    for i, image in enumerate(images):
        right = oracle.kept(image[0], image[1], 0.35, image[2])[:30]
        check(kept(*given)[0][i], kept(*given)[1][i], right, 30)
        check(mapped[0][i], mapped[1][i], right, 30)
        traces.clear() if i == 0 else None
        check(*compiled(*(a[i] for a in given)), right, 30)
    assert not mx.grad(lambda b: mf.nms(b, given[1][0], 0.3)[0].astype(mx.float32).sum())(given[0][0]).any()
