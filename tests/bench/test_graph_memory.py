"""That both sides of the measure do the same, in processes of their own."""

from __future__ import annotations

import mlx.core as mx
import pytest
from support.graph_rows import close

from tests.bench.graph_memory import NETWORKS, QUICK_SHAPE, SIDES, Growth, in_fresh_processes, row, step

pytestmark = pytest.mark.needs_cpu_module


@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_have_the_same_gradients_and_states(name: str, on_cpu: mx.Device) -> None:
    run, arguments = step(name, "graph", QUICK_SHAPE)
    values, gradients, after = run(*arguments)
    plain, same = step(name, "autodiff", QUICK_SHAPE)
    (want, states), by_autodiff = plain(*same)
    close(sum(value.sum() for value in values), want, 1e-4)
    close(gradients, by_autodiff, 1e-4)
    close(after, states)
    assert gradients.keys() == arguments[0].keys()


def test_a_process_tells_how_much_it_grew() -> None:
    found = in_fresh_processes("U-Net, a sum of losses", False, (4, 64, 64, 16), 1)
    image = 4 * 64 * 64 * 16 * 4
    assert found.keys() == set(SIDES)
    for (grown,) in found.values():
        assert image < grown.arrays and image < grown.process


def test_a_row_has_medians_and_their_ratios() -> None:
    graph = [Growth(10**6, 5 * 10**6), Growth(3 * 10**6, 5 * 10**6), Growth(2 * 10**6, 6 * 10**6)]
    found = {"graph": graph, "autodiff": [Growth(4 * 10**6, 4 * 10**6)] * 3}
    expected = ["2 (1 to 3)", "4 (4 to 4)", "0.50", "5 (5 to 6)", "4 (4 to 4)", "1.25"]
    assert row("n", True, found) == ["n", "yes", *expected]
