"""The demo: gradients by hand are those of autodiff, all ways learn the same, and the script runs to its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

for needed in ("sklearn", "tqdm", "matplotlib"):
    pytest.importorskip(needed, reason="the demo needs the extra mpsfunc[demo]")

import digits_network as network  # noqa: E402
import train_digits  # noqa: E402
from digits_graph import graphed  # noqa: E402

pytestmark = pytest.mark.needs_cpu_module


@pytest.mark.parametrize("way", [network.explicit, graphed])
def test_gradients_by_hand_are_those_of_autodiff_over_twenty_steps(way: Callable) -> None:
    digits, _ = train_digits.load()
    batches = train_digits.batches(digits, np.random.default_rng(1))
    params, optimizer = network.new_params(seed=1), optim.AdamW(3e-3)
    for step in range(20):
        images, labels = next(batches)
        loss, statistics, grads = network.autodiff(params, images, labels)
        by_hand = way(params, images, labels)
        mx.eval(loss, statistics, grads, by_hand)
        assert abs(loss.item() - by_hand[0].item()) <= 1e-6 * loss.item()
        expected, actual = dict(tree_flatten((statistics, grads))), dict(tree_flatten(by_hand[1:]))
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            apart = mx.linalg.norm(actual[name] - value).item() / mx.linalg.norm(value).item()
            assert apart <= 1e-5, f"step {step}, {name}: {apart}"
        params = optimizer.apply_gradients(grads, params)


@pytest.mark.programs
def test_all_ways_learn_the_same() -> None:
    digits, held_out = train_digits.load()
    runs = [
        train_digits.train(digits, held_out, gradients, epochs=30, seed=0)
        for gradients in (network.autodiff, network.explicit, graphed)
    ]
    accuracies = [run.accuracies[-1] for run in runs]
    assert min(accuracies) >= 0.98
    assert max(accuracies) - min(accuracies) <= 0.005


@pytest.mark.programs
@pytest.mark.parametrize("way", [[], ["--explicit"], ["--graph"]], ids=["autodiff", "explicit", "graph"])
def test_the_script_ends_with_the_accuracy(way: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    picture = tmp_path / "digits.png"
    accuracy = train_digits.main(["--epochs", "1", "--out", str(picture), *way])
    lines = capsys.readouterr().out.splitlines()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert lines[-2] == f"picture: {picture}"
    assert lines[-1] == f"held-out accuracy: {accuracy:.2%}"
    assert accuracy > 0.5


@pytest.mark.programs
def test_several_seeds_give_their_median(capsys: pytest.CaptureFixture) -> None:
    median = train_digits.main(["--epochs", "1", "--seeds", "3", "--no-plot"])
    *lines, last = capsys.readouterr().out.splitlines()
    each = sorted(re.findall(r"accuracy ([\d.]+%)", "\n".join(lines)))
    assert len(each) == 3
    assert each[1] == f"{median:.2%}"
    assert last == f"held-out accuracy: {median:.2%} (median of 3 seeds)"


def test_the_held_out_fifth_is_fixed_stratified_and_apart() -> None:
    digits, held_out = train_digits.load()
    assert (len(digits.labels), len(held_out.labels)) == (1437, 360)
    assert np.ptp(np.bincount(held_out.labels)) <= 2
    assert np.array_equal(train_digits.load()[1].images, held_out.images)
