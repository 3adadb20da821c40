"""What a conversion tells: counts in one screen, every path on demand, and what to do where nothing was fused."""

from __future__ import annotations

import copy
import pickle
import re
import xml.etree.ElementTree
from typing import Any

import mlx.core as mx
import mlx.nn as stock
import pytest
from nn.test_inference import kept

from mpsfunc import nn


class Block(stock.Module):
    """An inverted residual block whose activations are layers, in no Sequential."""

    def __init__(self, kind: Any = stock.ReLU6) -> None:
        super().__init__()
        self.convs = [stock.Conv2d(8, 8, 1, bias=False) for _ in range(3)]
        self.norms = [stock.BatchNorm(8) for _ in range(3)]
        self.acts = [kind(), kind()] if kind else []


class Net(stock.Module):
    """As many layers as a MobileNetV2 has, and some that have no drop-in."""

    def __init__(self, kind: Any = stock.ReLU6) -> None:
        super().__init__()
        self.blocks = [Block(kind) for _ in range(17)]
        self.head = stock.Linear(8, 5)
        self.embeddings = [stock.Embedding(3, 3) for _ in range(12)]


def test_counts_come_first_and_one_screen_is_enough() -> None:
    report = nn.convert(Net())
    assert (
        str(report)
        == repr(report)
        == (
            "149 layers: 137 replaced, 0 fused; left: 12 Embedding\n"
            "  replaced   51 Conv2d, 51 BatchNorm, 34 ReLU6, 1 Linear\n"
            "  not fused  34 ReLU6 (in no Sequential): blocks.0.acts.0, blocks.0.acts.1, blocks.1.acts.0 and 31 more\n"
            "  left       12 Embedding (no drop-in): embeddings.0, embeddings.1, embeddings.2 and 9 more\n"
            "  hint       34 activations are in no Sequential: "
            "convert(model, example=x) sees which layer each follows; or\n"
            "             name pairs by fuse="
        )
    )


def test_many_kinds_and_reasons_stay_one_screen() -> None:
    names = [name for name in dir(stock) if isinstance(getattr(stock, name), type)]
    kinds = [kind for name in names if issubclass(kind := getattr(stock, name), stock.Module)]
    left = {f"odd.{i}": f"no drop-in for {kind.__name__}" for i, kind in enumerate(kinds)}
    replaced = {f"layers.{i}": kind.__name__ for i, kind in enumerate(kinds)}
    alone = {f"acts.{i}": f"after {kind.__name__}" for i, kind in enumerate(kinds)}
    fused = {f"layers.{i}": f"layers.{i + 1}" for i in range(len(kinds) - 1)}
    lines = str(nn.Conversion(replaced, fused, alone, left)).splitlines()
    assert len(kinds) > 50 and len(lines) <= 20 and max(map(len, lines)) <= 120
    assert lines[0].endswith(f", {len(kinds) - 4} of other kinds")
    assert sum(f"{len(kinds) - 8} of other kinds" in line for line in lines) == 1
    assert sum(f"{len(kinds) - 4} more, for {len(kinds) - 4} other reasons: see paths" in line for line in lines) == 2


def test_paths_are_complete() -> None:
    report = nn.convert(Net())
    told = report.paths.splitlines()
    assert told[0] == "replaced" and len(told) == 3 + 137 + 34 + 12
    for field in (report.replaced, report.unfused, report.left):
        assert all(f"  {path}: {said}" in told for path, said in field.items())
    alone = nn.convert(stock.Sequential(stock.Linear(2, 2), stock.relu))
    assert alone.paths == "replaced\n  layers.0: Linear\nfused\n  layers.0: with layers.1"
    assert nn.convert(stock.RMSNorm(2)).paths == "left\n  the model: no drop-in for RMSNorm"


def test_old_code_goes_on() -> None:
    report = nn.convert(Net())
    replaced, fused, unfused, left = report
    assert (replaced, fused, unfused, left) == report == nn.Conversion(*report)
    assert replaced is report.replaced and len(replaced) == 137 and list(unfused.values()) == 34 * ["in no Sequential"]
    assert nn.Conversion({}, {}, {}, {}, kept_twice=1792).kept_twice == 1792
    kept = str(nn.Conversion({}, {}, {}, {}, kept_twice=1792)).splitlines()
    assert kept == ["0 layers: 0 replaced, 0 fused", "  kept twice 1,792 bytes of folded and rearranged weights"]
    for copied in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert type(copied) is nn.Conversion and str(copied) == str(report)
    assert report._replace(left={}).left == {}


def test_pairs_are_told_by_their_classes() -> None:
    class Named(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = stock.Sequential(stock.Conv2d(3, 4, 1), stock.relu, stock.BatchNorm(4), stock.SiLU())
            self.norm, self.act = stock.BatchNorm(4), stock.Tanh()

    model = Named()
    report = nn.convert(model, [("norm", "act"), ("chain.layers.2", "act")])
    want = "  fused      1 Conv2d with relu, 1 BatchNorm with SiLU and Tanh, 1 BatchNorm with Tanh"
    assert want in str(report).splitlines()
    again = str(nn.convert(model))  # where none is replaced any more
    assert again.splitlines() == ["5 layers: 0 replaced, 5 already converted, 3 fused", want]


def test_functions_and_derived_classes_are_told() -> None:
    class Own(stock.Conv2d):
        pass

    shown = str(nn.convert(stock.Sequential(Own(3, 3, 1), lambda x: x, Own(3, 3, 1), stock.LeakyReLU(2.0))))
    assert shown.splitlines() == [
        "4 layers: 0 replaced, 0 fused; left: 2 Own, 1 <lambda>, 1 LeakyReLU",
        "  left       2 Own (derived from Conv2d): layers.0, layers.2",
        "             1 <lambda> (no drop-in): layers.1",
        "             1 LeakyReLU (a slope beyond 1): layers.3",
    ]


def test_functions_that_blocks_call_are_counted_by_their_names() -> None:
    class Shortcut(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = stock.BatchNorm(3)

        def __call__(self, x: mx.array) -> mx.array:
            return stock.relu(x + stock.silu(self.norm(x)))

    report = nn.convert(stock.Sequential(Shortcut(), Shortcut()), example=(2, 4, 4, 3))
    assert report.example and report.hint == ""
    assert str(report).splitlines()[2] == "  fused      2 BatchNorm with silu"
    assert re.match(r"  not fused  2 nn\.relu \(.* line \d+\): layers\.0, layers\.1$", str(report).splitlines()[3])


def test_where_nothing_is_fused_it_says_why() -> None:
    relu = stock.Sequential(stock.MaxPool2d(2), stock.ReLU())
    assert nn.convert(relu).hint == ""  # no layer here could
    assert "follows a layer that can apply it" in nn.convert(stock.Sequential(stock.Linear(2, 2), relu)).hint
    functions = nn.convert(Net(kind=None))
    assert not functions.unfused and "convert(model, example=x) sees functions that blocks call" in functions.hint
    assert "  hint       nothing is fused" in str(functions)
    assert nn.convert(Block()).hint.startswith("2 activations are in no Sequential: convert(model, example=x)")
    assert nn.convert(stock.ReLU()).hint.startswith("an activation is in no Sequential")
    for hintless in (stock.Conv2d(3, 3, 1), stock.Sequential(stock.Linear(2, 2), stock.ReLU()), stock.Identity()):
        assert nn.convert(hintless).hint == ""


@pytest.mark.parametrize("kind", [stock.ReLU6, None])
def test_after_an_example_no_hint_asks_for_one(kind: Any) -> None:
    report = nn.convert(Net(kind))
    seen = nn.Conversion(*report, classes=dict(report.classes), example=True)
    assert "example=" in report.hint and "example=" not in seen.hint
    assert seen.hint.startswith("nothing is fused, since no activation")


def test_a_table_for_notebooks() -> None:
    class Wild(stock.Module):
        pass

    Wild.__name__ = Wild.__qualname__ = '<script>"&'
    Wild.__module__ = "mlx.nn.layers.wild"
    model = stock.Sequential(stock.Linear(3, 3), stock.relu, Wild(), lambda x: x, stock.Tanh())
    report = nn.convert(model)
    text = report._repr_html_()
    assert "<script>" not in text and "<lambda>" not in text
    tree = xml.etree.ElementTree.fromstring(text)
    rows = {row[0].text: "".join(row[1].itertext()) for row in tree.iter("tr")}
    assert rows["left"] == '1 <script>"& (no drop-in): layers.21 <lambda> (no drop-in): layers.3'
    assert rows["fused"] == "1 Linear with relu" and "hint" not in rows
    assert tree.find("p").text == str(report).splitlines()[0]
    assert tree.find("details/pre").text == report.paths
    assert "hint" in nn.convert(Net())._repr_html_()
    xml.etree.ElementTree.fromstring(nn.convert(stock.Identity())._repr_html_())


def test_a_converted_model_still_runs() -> None:
    chain = stock.Sequential(stock.Linear(3, 3), stock.relu)
    want = chain(mx.ones((2, 3)))
    nn.convert(chain)
    assert mx.allclose(chain(mx.ones((2, 3))), want)


def test_a_function_that_is_called_twice_is_reported_where_it_runs_by_itself() -> None:
    class Twice(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = stock.BatchNorm(3)

        def __call__(self, x: mx.array) -> mx.array:
            return stock.relu(stock.relu(self.norm(x)) * 3)

    report = nn.convert(Twice(), example=(2, 4, 4, 3))
    assert report.fused == {"norm": "nn.relu"} and list(report.unfused) == ["nn.relu"]


@pytest.mark.parametrize("wrong", ["no", 1, None, mx.array(True)])
def test_inference_is_a_switch(wrong: Any) -> None:
    model = stock.Sequential(stock.Conv2d(3, 4, 1), stock.BatchNorm(4))
    with pytest.raises(TypeError, match="convert: inference is not a bool"):
        nn.convert(model, inference=wrong)
    assert type(model.layers[0]) is stock.Conv2d


@pytest.mark.parametrize("shape", [[1] * 9, (2**16, 2**15), (2**40,)])
def test_a_shape_that_no_image_has(shape: Any) -> None:
    with pytest.raises(ValueError, match="convert: example is too large a shape"):
        nn.convert(stock.ReLU(), example=shape)


def test_sizes_are_ints() -> None:
    with pytest.raises(ValueError, match="convert: example is no shape; got example=.*, expected sizes that are ints"):
        nn.convert(stock.ReLU(), example=(2.0, 8, 8, 3))


def test_what_an_example_would_show_is_said_of_normalizations() -> None:
    class Own(stock.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = stock.Conv2d(3, 4, 1), stock.BatchNorm(4)

        def __call__(self, x: mx.array) -> mx.array:
            return self.norm(self.conv(x))

    model = Own().eval()
    report = nn.convert(model, inference=True)
    assert report.unfused == {"norm": "not folded: it follows no convolution or linear layer in a Sequential"}
    assert "example=x" in report.hint
    report = nn.convert(model, inference=True, example=(1, 4, 4, 3))
    assert report.kept_twice == nn.convert(model).kept_twice == kept(model.conv.weight) + 4 * 4
