"""The example that straightens digits: its maps, the gradients that come through them, and the script to its end."""

from __future__ import annotations

import math
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

for needed in ("sklearn", "tqdm", "matplotlib"):
    pytest.importorskip(needed, reason="the example needs the extra mpsfunc[demo]")

import straighten  # noqa: E402  # imports what was asked for above
import train_digits  # noqa: E402  # likewise

pytestmark = pytest.mark.needs_cpu_module


def inverse(maps: mx.array) -> mx.array:
    """The maps that undo others."""
    whole = np.concatenate([np.array(maps), np.broadcast_to([[[0.0, 0, 1]]], (len(maps), 1, 3))], axis=1)
    return mx.array(np.linalg.inv(whole)[:, :2], mx.float32)


def test_digits_are_in_the_middle_of_the_canvas() -> None:
    digits, _ = train_digits.load()
    canvas = straighten.on_canvas(digits.images[:20])
    assert canvas.shape == (20, straighten.SIDE, straighten.SIDE, 1)
    assert abs(straighten.of_canvas(canvas) - mx.array(digits.images[:20])).mean().item() < 0.05
    margin = straighten.MARGIN
    assert not canvas[:, :margin].any() and not canvas[:, :, -margin:].any()


def test_random_maps_keep_their_bounds_and_turn_both_ways() -> None:
    maps = np.array(straighten.random_maps(2000, np.random.default_rng(0)))
    turns = np.arctan2(maps[:, 1, 0], maps[:, 0, 0])
    assert abs(turns).max() <= straighten.TURN + 1e-6 and min(turns.max(), -turns.min()) > 0.95 * straighten.TURN
    areas = np.linalg.det(maps[:, :, :2])
    assert straighten.STRETCH**-2 <= areas.min() and areas.max() <= straighten.STRETCH**2
    assert abs(maps[:, :, 2]).max() <= straighten.MOVE


def test_maps_one_after_the_other_are_as_looking_twice() -> None:
    rng = np.random.default_rng(1)
    first, then = straighten.random_maps(3, rng), straighten.random_maps(3, rng)
    both = np.array(straighten.one_after_the_other(first, then))
    place = rng.uniform(-1, 1, (3, 2, 1)).astype(np.float32)
    seen = np.array(then)[:, :, :2] @ place + np.array(then)[:, :, 2:]
    right = np.array(first)[:, :, :2] @ seen + np.array(first)[:, :, 2:]
    np.testing.assert_allclose(both[:, :, :2] @ place + both[:, :, 2:], right, rtol=1e-5, atol=1e-6)
    unchanged = straighten.one_after_the_other(first, inverse(first))
    np.testing.assert_allclose(np.array(unchanged)[0], np.array(straighten.UNCHANGED).reshape(2, 3), atol=1e-5)


def test_at_first_images_are_unchanged_and_every_layer_learns_through_the_grid() -> None:
    digits, _ = train_digits.load()
    images = straighten.on_canvas(digits.images[:8])
    params = straighten.new_params(0)
    assert mx.allclose(straighten.straightened(params, images), images, atol=1e-5)
    params["maps"]["w"] = 0.01 * mx.random.normal(params["maps"]["w"].shape, key=mx.random.key(1))
    turned = straighten.seen_through(images, straighten.random_maps(8, np.random.default_rng(0)))

    def loss(params: straighten.Params) -> mx.array:
        return (straighten.straightened(params, turned) - images).square().mean()

    for name, slope in tree_flatten(mx.grad(loss)(params)):
        size = abs(slope).max().item()
        assert 0 < size < math.inf, name


@pytest.mark.programs
def test_the_script_straightens_more_than_half_of_what_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "straighten.md"
    accuracy = straighten.main(["--epochs", "8", "--page", str(page)])
    lines = capsys.readouterr().out.splitlines()
    told = next(line for line in lines if "straightened" in line)
    upright, warped, after = (float(n) / 100 for n in re.findall(r"([\d.]+)%", told))
    assert upright > 0.97 and warped < 0.6 and after == pytest.approx(accuracy, abs=1e-4)
    assert accuracy - warped > (upright - warped) / 2
    assert lines[-1] == f"held-out accuracy: {accuracy:.2%}"
    assert (tmp_path / "straighten.png").read_bytes().startswith(b"\x89PNG")
    row = next(line for line in page.read_text().splitlines() if line.startswith("| 0 |"))
    assert row.startswith(f"| 0 | {upright:.1%} | {warped:.1%} | {accuracy:.1%} |")
    assert "(straighten.png)" in page.read_text()


@pytest.mark.programs
def test_several_seeds_give_their_median(capsys: pytest.CaptureFixture[str]) -> None:
    median = straighten.main(["--epochs", "1", "--classifier-epochs", "1", "--seeds", "3", "--no-plot"])
    lines = capsys.readouterr().out.splitlines()
    each = sorted(float(n) for n in re.findall(r"straightened ([\d.]+)%", "\n".join(lines)))
    assert len(each) == 3 and each[1] == pytest.approx(100 * median, abs=0.01)
    assert lines[-1] == f"held-out accuracy: {median:.2%} (median of 3 seeds)"
