"""Networks as users write them, converted: as near to the right values as stock MLX, in every dtype."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import pytest
from models import comparison, left, report
from models.checks import fused_wherever_it_can_be, near, nothing_left, same_bits
from models.comparison import DTYPES, FACTOR, converted, distances, made
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
def test_it_is_as_near_as_stock(network: Network, dtype: str) -> None:
    near(network, dtype, small=True)


@each_dtype
@whole
def test_a_whole_one_is_as_near_as_stock(network: Network, dtype: str) -> None:
    near(network, dtype, small=False)


@small
def test_nothing_is_left(network: Network) -> None:
    nothing_left(network)


@whole
def test_nothing_is_left_of_a_whole_one(network: Network) -> None:
    nothing_left(network)


@each_dtype
@whole
def test_a_reverted_and_a_copied_whole_one_have_the_same_bits(network: Network, dtype: str) -> None:
    same_bits(network, dtype)


@pytest.mark.parametrize("network", WHOLE, ids=lambda network: network.name)
def test_the_page_says_what_convert_makes_of_it(network: Network) -> None:
    line = report.rows(report.PAGE.read_text(encoding="utf-8"))[network.name]
    assert tuple(line[1:5]) == report.counts(network), f"python -m tests.models --write --only '{network.name}'"


def test_the_page_has_every_network_once() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    names = [network.name for network in (*WHOLE, *OF_MLX_IMAGE)]
    assert list(report.rows(page)) == names == list(dict.fromkeys(names))
    held = report.rows(page)
    changed = report.written(page, {names[0]: [names[0], *"1234567"]}, names)
    assert report.rows(changed) == held | {names[0]: [names[0], *"1234567"]}
    assert all(float(cell.split()[0]) <= FACTOR for line in held.values() for cell in line[5:])


@each_dtype
@small
def test_a_reverted_network_is_stock_s_and_a_copy_its_original_s_to_the_bit(network: Network, dtype: str) -> None:
    same_bits(network, dtype)


@small
def test_it_is_fused_wherever_it_can_be(network: Network) -> None:
    fused_wherever_it_can_be(network)


@whole
def test_a_whole_one_is_fused_wherever_it_can_be(network: Network) -> None:
    fused_wherever_it_can_be(network)


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


def test_a_layer_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mf.nn.GroupNorm, "why_not", classmethod(lambda cls, layer: "of no reason"))
    with pytest.raises(AssertionError, match=r"norm \(GroupNorm\) stays: of no reason"):
        nothing_left(next(each for each in SMALL if each.name == "U-Net"))


@pytest.mark.parametrize("what", ["results", "gradients"])
def test_a_layer_that_means_something_else_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in float64, so that the right values are wrong."""
    running, product = mf.bn_running, mf.fully_connected
    if what == "results":
        monkeypatch.setattr(mf, "bn_running", lambda known, state, momentum: running(known, state, momentum / 2))
    else:
        twice = lambda x, w, b, **settings: product(x, w, 2 * b - mx.stop_gradient(b), **settings)  # noqa: E731
        monkeypatch.setattr(mf, "fully_connected", twice)
    with pytest.raises(AssertionError, match="another meaning"):
        near(next(each for each in SMALL if each.name == "CIFAR ResNet"), "float32", small=True)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_layer_that_is_less_exact_is_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch norm that keeps 5 or 4 bits less than it could."""
    exactly, kept = mf.batch_norm_fwd, {"float32": 2.0**18, "float16": 2.0**6}[dtype]

    def roughly(x: mx.array, *rest: object, **settings: object) -> object:
        y, state = exactly(x, *rest, **settings)
        if x.dtype == mx.float64:
            return y, state
        return y + mx.stop_gradient((mx.round(y.astype(mx.float32) * kept) / kept - y).astype(y.dtype)), state

    monkeypatch.setattr(mf, "batch_norm_fwd", roughly)
    monkeypatch.setattr(comparison, "DRAWS", (3,))
    network = next(each for each in SMALL if each.name == "CIFAR ResNet")
    assert distances(network, dtype, ["converted"])["converted"][0].ratio > FACTOR
