"""The count of nodes of a step."""

from __future__ import annotations

import mlx.core as mx
import pytest

from . import nodes


def test_nodes_are_counted_by_name() -> None:
    x = mx.ones((2, 3))
    mx.eval(x)
    assert nodes.nodes([mx.stop_gradient(x).reshape(6) + 1, mx.exp(x)])["StopGradient"] == 1
    assert nodes.nodes([x]).total() == 0


@pytest.mark.needs_cpu_module
def test_half_of_the_nodes_that_do_nothing_are_spared() -> None:
    with mx.stream(mx.cpu):
        network, _, before, now, all_before, all_now = nodes.line("small", "float32")
    assert network == "small" and int(now) < 0.55 * int(before)
    assert int(all_before) - int(all_now) == int(before) - int(now)
