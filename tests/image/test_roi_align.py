"""`roi_align` where its record says nothing: numbers worked by hand, torchvision's results, regions that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, exact, numbers, same_bits_for_threads
from support.oracle import boxes as oracle

import mpsfunc as mf
from mpsfunc import nn

pytestmark = pytest.mark.usefixtures("on_cpu")
THEIRS = dict(np.load(Path(__file__).parents[1] / "fixtures" / "roi_align.npz"))
HOW = [name for name in THEIRS if name.startswith("how")]
IMAGE = mx.arange(1.0, 17).reshape(1, 4, 4, 1)
NAN, INF = float("nan"), float("inf")


def binned(roi: Any, size: Any = 2, *how: Any) -> list[float]:
    made: list[float] = mf.roi_align(IMAGE, mx.array([[0.0, *roi]]), size, *how).reshape(-1).tolist()
    return made


def test_worked_numbers(dtype: mx.Dtype) -> None:
    """A region of two columns and four rows in two bins, each with samples between two pixels."""
    x, rois = IMAGE.astype(dtype), mx.array([[0.0, 1, 0, 3, 4]])
    y, state = mf.roi_align_fwd(x, rois, (2, 1), 1.0, 1, True)
    assert y.dtype == dtype and exact(y).ravel().tolist() == [4.5, 12.5]  # at (0.5, 1.5) and (2.5, 1.5)
    dx = exact(mf.roi_align_grad(mx.array([4.0, 8], dtype).reshape(y.shape), rois, state)).reshape(4, 4)
    np.testing.assert_array_equal(dx, [[0, 1, 1, 0]] * 2 + [[0, 2, 2, 0]] * 2)
    drois = mf.roi_align_grad_rois(mx.ones(y.shape, dtype), x, rois, state)
    # Rows lie at y1 + (y2 - y1) / 4 and y1 + 3 (y2 - y1) / 4, columns in the middle.
    assert drois.tolist() == [[0, 1, 4 * (3 / 4 + 1 / 4), 1, 4 * (1 / 4 + 3 / 4)]]


@pytest.mark.parametrize("how", HOW)
def test_torchvision(how: str) -> None:
    """As its release that the file names computed it, in float64."""
    scale, ratio, aligned = THEIRS[how]
    x, dy = (mx.array(THEIRS[name].transpose(0, 2, 3, 1), mx.float64) for name in ("x", "dy"))
    rois, number = mx.array(THEIRS["rois"], mx.float64), how.removeprefix("how")
    y, state = mf.roi_align_fwd(x, rois, dy.shape[1:3], float(scale), int(ratio), bool(aligned))
    np.testing.assert_allclose(exact(y), THEIRS[f"y{number}"].transpose(0, 2, 3, 1), rtol=0, atol=1e-12)
    dx = mf.roi_align_grad(dy, rois, state)
    np.testing.assert_allclose(exact(dx), THEIRS[f"dx{number}"].transpose(0, 2, 3, 1), rtol=0, atol=1e-12)


def test_torchvision_s_choices_are_all_there() -> None:
    found = {tuple(THEIRS[how]) for how in HOW}
    assert len(found) == len(HOW) == 12 and {aligned for *_, aligned in found} == {0, 1}
    assert {ratio for _, ratio, _ in found} == {-1, 0, 1, 2, 3}


def test_regions_without_length() -> None:
    """One pixel where it is not aligned; else no samples, unless there is a number of them."""
    assert binned((1, 1, 1, 1), 1) == [8.5]  # the mean of a pixel's square from (1, 1) on
    assert binned((1, 1, 1, 1), 1, 1.0, -1, True) == [0]
    assert binned((1.5, 1.5, 1.5, 1.5), 1, 1.0, 3, True) == [6]
    assert binned((3, 3, 1, 1), 2, 1.0, 2, True) == binned((1, 1, 3, 3), 2, 1.0, 2, True)[::-1]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
@pytest.mark.parametrize(
    "roi", [(NAN, 0, 2, 2), (0, 0, NAN, 2), (0, INF, 2, INF), (-INF, 0, INF, 2), (1e30, 0, 3e30, 2), (9, 9, 12, 12)],
    ids=str,
)  # fmt: skip
def test_regions_that_are_none(roi: Any, ratio: int, aligned: bool) -> None:
    """Zeros, and no gradients."""
    rois, how = mx.array([[0, *roi], [0, 0, 0, 3, 3]], mx.float32), (1.0, ratio, aligned)
    y, state = mf.roi_align_fwd(IMAGE, rois, 2, *how)
    assert not exact(y)[0].any() and exact(y)[1].all()
    dx = exact(mf.roi_align_grad(mx.ones(y.shape), rois, state))
    assert np.isfinite(dx).all() and dx.sum() == pytest.approx(4)
    drois = exact(mf.roi_align_grad_rois(mx.ones(y.shape), IMAGE, rois, state))
    assert not drois[0].any() and np.isfinite(drois).all()


@pytest.mark.parametrize("far", [1e3, 1e5, 1e9])
def test_large_regions_have_the_samples_that_lie_on_the_image(far: float) -> None:
    """In time that does not grow with them."""
    roi = np.array([[0, -far, -0.4 * far, far, 0.6 * far]])
    x = numbers((1, 6, 5, 2), mx.float64)
    y, state = mf.roi_align_fwd(x, mx.array(roi, mx.float64), (3, 2))
    sides = [
        (oracle.roi_side(*roi[0, [2, 4]], 3, 6, 1.0, -1, False), oracle.roi_side(*roi[0, [1, 3]], 2, 5, 1.0, -1, False))
    ]
    right = oracle.sample(exact(x), [0], sides)
    assert abs(right).max() > 0 or far > 1e5
    np.testing.assert_allclose(exact(y), right, rtol=1e-9, atol=1e-18)
    dx = mf.roi_align_grad(mx.ones(y.shape, mx.float64), mx.array(roi, mx.float64), state)
    np.testing.assert_allclose(exact(dx), oracle.spread(np.ones(y.shape), [0], sides, x.shape), rtol=1e-9, atol=1e-18)


def test_indices_apart_from_regions() -> None:
    x, rois = numbers((3, 5, 6, 2)), mx.array([[0.5, 1, 4, 3], [1, 1, 2, 5]])
    of, dy = mx.array([2, 0]), numbers((2, 3, 3, 2), seed=1)
    together = mx.concatenate([of[:, None].astype(mx.float32), rois], axis=1)
    y, state = mf.roi_align_fwd(x, rois, 3, box_indices=of)
    assert mx.array_equal(y, mf.roi_align(x, together, 3))
    dx = mf.roi_align_grad(dy, rois, state, box_indices=of)
    assert mx.array_equal(dx, mf.roi_align_grad(dy, together, state)) and not exact(dx)[1].any()
    drois = mf.roi_align_grad_rois(dy, x, rois, state, box_indices=of)
    assert mx.array_equal(drois, mf.roi_align_grad_rois(dy, x, together, state)[:, 1:])


def test_images_that_are_none() -> None:
    x, rois = 1 + abs(numbers((2, 4, 4, 1))), mx.array([[n, 0, 0, 3, 3] for n in (-1.0, 2, NAN, INF, 1, 0.9)])
    made = exact(mf.roi_align(x, rois, 1)).ravel()
    assert made[:4].tolist() == [0] * 4 and made[4:].all()
    assert made[5] == exact(mf.roi_align(x, mx.array([[0.0, 0, 0, 3, 3]]), 1)).item()


def test_no_regions_and_no_images() -> None:
    none = mx.zeros((0, 5))
    y, state = mf.roi_align_fwd(IMAGE, none, 2)
    assert y.shape == (0, 2, 2, 1)
    assert mx.array_equal(mf.roi_align_grad(y, none, state), mx.zeros(IMAGE.shape))
    assert mf.roi_align_grad_rois(y, IMAGE, none, state).shape == (0, 5)
    assert not exact(mf.roi_align(mx.zeros((0, 3, 3, 1)), mx.zeros((2, 5)), 2)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 9, 3), (2, 33, 7, 20), (1, 30, 20, 70)], ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    x, corners = numbers(shape, dtype), 20 * abs(numbers((40, 4)))
    of, dy = mx.arange(40) % shape[0], numbers((40, 3, 7, shape[3]), dtype, 1)

    def compute() -> list[mx.array]:
        y, state = mf.roi_align_fwd(x, corners, (3, 7), box_indices=of)
        back = mf.roi_align_grad(dy, corners, state, box_indices=of)
        return [y, back, mf.roi_align_grad_rois(dy, x, corners, state, box_indices=of)]

    same_bits_for_threads(threads, compute)


def test_the_layer() -> None:
    x, rois = numbers((2, 5, 6, 3)), [mx.array([[0.0, 1, 9, 8], [2, 2, 4, 4]]), mx.zeros((0, 4))]
    layer = nn.RoIAlign((2, 3), spatial_scale=0.5, sampling_ratio=2, aligned=True)
    together = mx.array([[0.0, 0, 1, 9, 8], [0, 2, 2, 4, 4]])
    right = mf.roi_align(x, together, (2, 3), 0.5, 2, True)
    assert mx.array_equal(layer(x, rois), right) and mx.array_equal(layer(x, together), right)
    other = mf.roi_align(x, mx.array([[1.0, 0, 1, 9, 8], [1, 2, 2, 4, 4]]), (2, 3), 0.5, 2, True)
    assert mx.array_equal(layer(x, rois[::-1]), other)
    assert not layer.parameters()
    assert layer(mx.zeros((0, 5, 6, 3)), []).shape == (0, 2, 3, 3)
    with pytest.raises(ValueError, match=r"^RoIAlign: other regions than images; got 1 arrays, expected"):
        layer(x, rois[:1])
    with pytest.raises(TypeError, match=r"^RoIAlign: no regions; got rois=\[3, 4\], expected"):
        layer(x, [3, 4])  # type: ignore[list-item]  # refused


@pytest.mark.gpu
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
def test_torchvision_on_a_gpu(ratio: int, aligned: bool) -> None:
    """Where it is installed, with its atomics."""
    torch, torchvision = (
        pytest.importorskip(name, reason="torchvision is not installed") for name in ("torch", "torchvision")
    )
    x, corners = numbers((2, 40, 50, 32)), 20 * abs(numbers((60, 4)))
    rois = mx.concatenate(
        [(mx.arange(60)[:, None] % 2).astype(mx.float32), mx.cumsum(corners.reshape(60, 2, 2), 1).reshape(60, 4)], 1
    )
    with mx.stream(mx.gpu):
        y, state = mf.roi_align_fwd(x, rois, 7, 0.9, ratio, aligned)
        dy = numbers(tuple(y.shape), seed=1)
        dx = mf.roi_align_grad(dy, rois, state)
    planes = torch.tensor(exact(x).transpose(0, 3, 1, 2), dtype=torch.float32, device="cuda", requires_grad=True)
    regions = torch.tensor(exact(rois), dtype=torch.float32, device="cuda")
    theirs = torchvision.ops.roi_align(planes, regions, 7, 0.9, ratio, aligned)
    pulled = torch.tensor(exact(dy).transpose(0, 3, 1, 2), dtype=torch.float32, device="cuda")
    (back,) = torch.autograd.grad(theirs, planes, pulled)
    np.testing.assert_allclose(exact(y).transpose(0, 3, 1, 2), theirs.detach().cpu().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(exact(dx).transpose(0, 3, 1, 2), back.cpu().numpy(), rtol=1e-4, atol=1e-3)
