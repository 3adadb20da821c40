"""Networks as users write them, converted: as near to the right values as stock MLX, in every dtype."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import pytest
from models import left, report
from models.checks import folded_wherever_it_can_be, fused_wherever_it_can_be, nothing_left, proven
from models.comparison import DTYPES, FACTOR, converted, made
from models.registry import OF_MLX_IMAGE, SMALL, WHOLE, Network

import mpsfunc as mf
from mpsfunc.nn.conversion import DROP_INS

pytestmark = pytest.mark.usefixtures("on_cpu")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
small = pytest.mark.parametrize("network", SMALL, ids=lambda network: network.name)
whole = pytest.mark.parametrize(
    "network", [pytest.param(each, marks=pytest.mark.models, id=f"{each.name}, whole") for each in WHOLE]
)


@each_dtype
@small
def test_it_is_as_near_as_stock_and_comes_back_to_the_bit(network: Network, dtype: str) -> None:
    proven(network, dtype)


@each_dtype
@whole
def test_a_whole_one_is_as_near_as_stock_and_comes_back_to_the_bit(network: Network, dtype: str) -> None:
    report.keep(network, dtype, proven(network, dtype))


@small
def test_nothing_is_left(network: Network) -> None:
    nothing_left(network)


@whole
def test_nothing_is_left_of_a_whole_one(network: Network) -> None:
    nothing_left(network)


@pytest.mark.parametrize("network", WHOLE, ids=lambda network: network.name)
def test_the_page_says_what_convert_makes_of_it(network: Network) -> None:
    line = report.rows(report.PAGE.read_text(encoding="utf-8"))[network.name]
    assert tuple(line[1:6]) == report.counts(network), "python -m tests.models --write"


def test_the_page_has_every_network_once() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    names = [network.name for network in (*WHOLE, *OF_MLX_IMAGE)]
    assert list(report.rows(page)) == names == list(dict.fromkeys(names))
    held = report.rows(page)
    other = held | {names[0]: [names[0], *"123456789"]}
    assert report.rows(report.written(page, other)) == other
    assert all(float(cell.split()[0]) <= FACTOR for line in held.values() for cell in line[6:9])


@small
def test_it_is_fused_and_folded_wherever_it_can_be(network: Network) -> None:
    fused_wherever_it_can_be(network)
    folded_wherever_it_can_be(network)


@whole
def test_a_whole_one_is_fused_and_folded_wherever_it_can_be(network: Network) -> None:
    fused_wherever_it_can_be(network)
    folded_wherever_it_can_be(network)


@small
def test_converting_changes_no_value(network: Network) -> None:
    """Also where it runs the network to see which activations follow which layers."""
    model, x = made(network, 0, mx.float32)
    model.train()
    before = {path: mx.array(a) for path, a in mlx.utils.tree_flatten(model.parameters())}
    converted(model, x, fused=True)
    after = dict(mlx.utils.tree_flatten(model.parameters()))
    assert before.keys() == after.keys() and all(mx.array_equal(a, after[path]) for path, a in before.items())
    assert all(module.training for module in model.modules())


def test_every_layer_of_mlx_has_a_drop_in_or_a_reason() -> None:
    names = left.layers()
    assert {theirs.__name__ for theirs in DROP_INS} | left.WITHOUT.keys() == names.keys()
    assert not left.WITHOUT.keys() & {theirs.__name__ for theirs in DROP_INS}
    for name in left.WITHOUT:
        assert not hasattr(mf.nn, name) and not hasattr(mf, name), name
