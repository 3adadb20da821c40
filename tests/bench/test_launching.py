"""The benchmark of launches without MLX's primitive."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mpsfunc.core import launch

from . import launching, networks_turns, whole

pytestmark = pytest.mark.needs_cpu_module


def test_the_other_side_is_the_module_but_for_its_launches() -> None:
    module = launch.optional_module()
    other = launching.LeftToMLX(module)
    made = [mx.ones((2,))]
    assert other.tracing() is False and other.launched(made, 3, [1], (1, 1, 1), (1, 1, 1)) is made


def test_only_one_side_s_steps_are_traced_with_launches_by_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = launch.optional_module(), []

    class Runner:
        def run(self, count: int) -> float:
            seen.append(isinstance(launch._primitives, launching.LeftToMLX))
            return 0.5

    monkeypatch.setattr(networks_turns, "built", lambda name, cell, folder: Runner())
    cell = next(iter(whole.cells("cpu", quick=True)))
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {
            name: launching.steps(cell, Path(folder), name) for name in (networks_turns.OURS, launching.BY_MLX)
        }
    assert seen == [False] * launching.STEPS + [True] * launching.STEPS
    assert [losses for _, losses in found.values()] == [[0.5] * launching.STEPS] * 2 and launch._primitives is module


def test_a_line_has_both_times_and_their_ratio() -> None:
    assert launching.line("a", [0.001, 0.002, 0.003], [0.002, 0.002, 0.004])[:3] == ["a", "2.00", "2.00"]
    assert launching.line("a", [0.001, 0.001], [0.002, 0.002])[3] == "0.50 (0.50 to 0.50)"


def test_documents_have_the_ratios_of_the_page() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page, *others = (
        (docs / name).read_text() for name in ("benchmarks/launching.md", "benchmarks/h200.md", "install.md")
    )
    ratios = re.findall(r"^\| ([\w-]+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \(", page, re.MULTILINE)
    assert [network for network, _ in ratios] == list(launching.NETWORKS)
    for text in others:
        (told,) = (part for part in re.split(r"\n\n|\n(?=\|)", text) if "launching.md" in part)
        assert all(network in told and ratio in told for network, ratio in ratios)
