"""What finds a network that is wrong finds it, and distances that were kept are those that were found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from models import checks, comparison, report
from models.comparison import FACTOR, VARIANTS, Distance, bits_of, distances, made
from models.registry import OF_MLX_IMAGE, SMALL, WHOLE

import mpsfunc as mf
from mpsfunc.core import lazy
from mpsfunc.nn import folding

pytestmark = pytest.mark.usefixtures("on_cpu")

VAE = next(each for each in SMALL if each.name == "VAE")
RESNET = next(each for each in SMALL if each.name == "CIFAR ResNet")
IDLE = [
    f"gradient {layer}.bias in step {step}" for layer in ("conv1", "conv2", "conv3", "up1", "up2") for step in (1, 2)
]
GOOD = [Distance(name, 1e-7, 1e-7, 3, True) for name in IDLE]
GOOD += [Distance(f"{kind} {i} in evaluation", 2e-7, 1e-7, 3) for kind in ("result", "gradient") for i in range(50)]


def test_layers_whose_bias_a_norm_takes_away() -> None:
    assert {f"gradient {path}.bias in step {step}" for path in checks.taken_away(VAE) for step in (1, 2)} == set(IDLE)
    checks.near(VAE, "float32", dict.fromkeys(VARIANTS, GOOD))


@pytest.mark.parametrize(
    ("dtype", "others", "told"),
    [
        ("float32", [Distance("gradient a in step 1", 3.1e-7, 1e-7, 48)], "gradient a in step 1: 3.1e-07"),
        ("float32", [Distance("gradient a in step 1", 1e-7, 1e-7, 3, True)], "0 but for rounding"),
        ("float32", [Distance(f"gradient {i}.bias in step 1", 1e-7, 1e-7, 3, True) for i in range(2)], "0 but for"),
        ("float32", [Distance("result in step 1", 1e-7, 1e-5, 3)], "another meaning: "),
        ("bfloat16", [Distance("a.running_var after two steps", 0.5, 0.5, 3)], "another meaning: "),
        ("float32", [Distance("gradient a in step 1", 1e-7, 0.01, 3)], "or rounding decides"),
        ("float16", [Distance("gradient a.bias in step 1", 1e-7, 0.5, 3)], "or rounding decides"),
        ("bfloat16", [Distance("gradient a.weight in step 2", 0.6, 0.6, 3)], "or rounding decides"),
        ("float32", [Distance("gradient a.bias in step 1", 1e-7, 3e-4, 3, True)], "or rounding decides"),
        ("bfloat16", [Distance("gradient a.bias in step 1", 0.1, 0.2, 3, True)], "or rounding decides"),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_distances_that_are_too_large_or_prove_nothing(
    dtype: str, others: list[Distance], told: str, variant: str
) -> None:
    found = sorted(GOOD + others, key=lambda each: -each.ratio)
    with pytest.raises(AssertionError, match=f"{variant}: .*{told}"):
        checks.near(VAE, dtype, dict.fromkeys(VARIANTS, GOOD) | {variant: found})


def test_gradients_that_rounding_may_decide_are_few_and_known() -> None:
    dense = next(each for each in SMALL if each.name == "DenseNet")
    weak = [Distance(f"gradient stem.layers.1.{what} in step 1", 0.6, 0.6, 3) for what in ("weight", "bias")]
    good = [each for each in GOOD if not each.noise]
    checks.near(dense, "float16", dict.fromkeys(VARIANTS, good + weak))
    more = weak[0]._replace(name="gradient stem.layers.1.weight in step 2")
    another = weak[0]._replace(name="gradient stem.layers.0.weight in step 1")
    for dtype, wrong in (("float16", [*weak, more]), ("float32", weak), ("bfloat16", [another])):
        with pytest.raises(AssertionError, match="or rounding decides"):
            checks.near(dense, dtype, dict.fromkeys(VARIANTS, good + wrong))
    assert checks.WEAK.keys() <= {network.name for network in (*SMALL, *WHOLE, *OF_MLX_IMAGE)}


def test_what_is_0_is_told_by_the_gradients_of_its_layer() -> None:
    norms = {"result in step 1": 1e9, "gradient a.weight in step 1": 1.0, "gradient a.bias in step 1": 1e-13}
    norms |= {"gradient b.weight in step 1": 1e-13, "gradient b.bias in step 1": 1e-20, "gradient g in step 1": 1e-2}
    norms["gradient a.bias in step 2"] = 1e-13  # of another time
    right = comparison.Right({}, norms, comparison.beside(norms))
    noise = {name for name in norms if right.is_noise(name)}
    assert noise == {name for name in norms if norms[name] <= 1e-13}
    assert right.beside["gradient a.bias in step 1"] == 1 and right.beside["gradient b.bias in step 1"] == 1e9
    bias = "gradient a.bias in step 1"
    assert not right._replace(norms=norms | {bias: 1e-11}).is_noise(bias)
    found = comparison._off([(bias, np.array([1e-4]))], right._replace(arrays={bias: np.zeros(1)}), "float32")
    assert found[bias] == pytest.approx(1e-4)


def test_what_is_0_in_some_draws_is_told_by_the_others() -> None:
    draws = [comparison.Draw({"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 1.0}, frozenset("ab")) for _ in range(2)]
    draws.append(comparison.Draw({"a": 9.0, "b": 16.0}, {"a": 6.0, "b": 1.0}, frozenset("b")))
    found = {each.name: each for each in comparison._means(draws)}
    assert found["a"] == pytest.approx(("a", 9, 6, 1, False)) and found["b"] == pytest.approx(("b", 4, 1, 3, True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gradient_that_should_be_0_and_is_not_is_found(variant: str) -> None:
    found = [each._replace(noise=False) if each.name == IDLE[0] else each for each in GOOD]
    checks.near(VAE, "float16", dict.fromkeys(VARIANTS, GOOD) | {variant: GOOD[1:]})  # frozen
    with pytest.raises(AssertionError, match=f"{variant}: not 0 but for rounding"):
        checks.near(VAE, "float16", dict.fromkeys(VARIANTS, GOOD) | {variant: found})


def test_a_layer_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mf.nn.GroupNorm, "why_not", classmethod(lambda cls, layer: "of no reason"))
    with pytest.raises(AssertionError, match=r"norm \(GroupNorm\) stays: of no reason"):
        checks.nothing_left(next(each for each in SMALL if each.name == "U-Net"))


@pytest.mark.parametrize("what", ["results", "gradients"])
def test_a_layer_that_means_something_else_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in float64, so that the right values are wrong."""
    running, product = mf.bn_running, mf.fully_connected
    if what == "results":
        monkeypatch.setattr(mf, "bn_running", lambda known, state, momentum: running(known, state, momentum / 2))
    else:

        def twice(x: mx.array, w: mx.array, b: mx.array, **settings: Any) -> mx.array:
            return product(x, w, 2 * b - mx.stop_gradient(b), **settings)

        monkeypatch.setattr(mf, "fully_connected", twice)
    with pytest.raises(AssertionError, match="another meaning"):
        checks.proven(RESNET, "float32")


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
    assert distances(RESNET, dtype, ["converted"])["converted"][0].ratio > FACTOR


def test_folded_weights_that_are_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept, and only a call without gradients sees them."""
    folded = folding._folded

    def wrong(sources: tuple[mx.array | None, ...], eps: float) -> tuple[mx.array, mx.array]:
        weight, bias = folded(sources, eps)
        kept = lazy.are_settled([a for a in sources if a is not None])
        return (1.0001 * weight if kept else weight), bias

    monkeypatch.setattr(folding, "_folded", wrong)
    monkeypatch.setattr(comparison, "DRAWS", (3,))
    found = distances(RESNET, "float32", ["for inference"])["for inference"]
    assert found[0].ratio > FACTOR and found[0].name == "result in inference"


def test_bits_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.array([1.0, np.nan, -0.0], np.float32)
    assert bits_of([("a", a)]) == bits_of([("a", np.array([1.0, -np.nan, -0.0], np.float32))])
    for other in (np.array([1.0, np.nan, 0.0], np.float32), np.nextafter(a, np.float32(2)), a[:2]):
        assert bits_of([("a", a)]) != bits_of([("a", other)])
    monkeypatch.setattr(comparison, "DRAWS", (1,))
    bits: dict[str, comparison.Bits] = {}
    distances(RESNET, "float16", ["fused"], bits)
    checks.same_bits(RESNET, "float16", bits)
    bits["stock"] |= {"result in step 2": b""}
    with pytest.raises(AssertionError, match="reverted is not stock: .*result in step 2"):
        checks.same_bits(RESNET, "float16", bits)


def test_a_network_is_made_the_same_each_time() -> None:
    (one, x), (other, y) = made(RESNET, 1, mx.float16), made(RESNET, 1, mx.float16)
    a, b = (dict(mlx.utils.tree_flatten(model.parameters())) for model in (one, other))
    assert one is not other and a.keys() == b.keys() and all(mx.array_equal(a[path], b[path]) for path in a)
    assert mx.array_equal(x, y) and not mx.array_equal(x, made(RESNET, 2, mx.float16)[1])
    assert not mx.allclose(one.bn1.running_var, mx.ones(8)) and one.bn1.momentum == 0.1


def test_kept_distances_are_those_that_were_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "KEPT", tmp_path)
    found = {variant: [*GOOD, Distance("lost", 1.0, np.inf, 3)] for variant in VARIANTS}
    assert report.kept(VAE, "float16") is None
    for dtype in comparison.DTYPES:
        report.keep(VAE, dtype, found)
    assert report.kept(VAE, "float16") == found and report.kept(RESNET, "float16") is None
    line = report.row(VAE)
    assert line[0] == "VAE" and line[-2] == "2.00 (2.0e-07, 1.0e-07); of 3 of 333 arrays MLX's overflow"
    assert line[-1] == "11, 11, 11 of 111"
    monkeypatch.setattr(report, "sources", lambda: "of another commit")
    assert report.kept(VAE, "float16") is None
