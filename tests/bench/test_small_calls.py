"""The benchmark of small calls: what it subtracts, and what it calls met."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

import mpsfunc as mf
from tests.bench import small_calls
from tests.bench.stats import Ratio


def test_costs_are_differences_within_a_round() -> None:
    times = {"x + x": [10.0, 20.0, 90.0], "a": [15.0, 26.0, 94.0]}
    base, a = small_calls.costs(times)
    assert (base.whole, base.beyond) == (20.0, Ratio(0.0, 0.0, 0.0))
    assert (a.whole, a.beyond) == (26.0, Ratio(5.0, 4.0, 6.0))


def test_a_row_says_whether_the_target_is_met() -> None:
    found = [small_calls.Cost(name, 50.0, Ratio(m, m - 1, m + 1)) for name, m in (("x + x", 0), ("a", 20), ("b", 21))]
    assert [row[-1] for row in small_calls.rows(found)] == ["", "met", "**missed**"]
    assert small_calls.rows(found)[1] == ["a", "50.0", "20.0 (19.0 to 21.0)", "met"]


@pytest.mark.needs_cpu_module
def test_it_writes_a_page_of_all_calls(on_cpu: mx.Device, tmp_path: Path) -> None:
    small_calls.main(3, tmp_path)
    text = (tmp_path / "small_calls.md").read_text()
    assert all(f"| {name} |" in text for name in small_calls.calls())
    assert {name.split()[0] for name in small_calls.calls()} - {"x", "mx.conv2d"} <= {*mf.__all__}
