"""Each filter of a graph: what it computes, its gradients, and its defaults."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from generic.ops import OPS
from support.graph_rows import ROWS, SAME, X, close, numbers

import mpsfunc as mf
from mpsfunc import graph

FILTERS = {name for name, value in vars(graph).items() if inspect.isfunction(value)} - {"compile", "training_graph"}

LOSSES, WITHOUT_GRADIENTS = {"loss", "yolo_loss"}, {"compare", "reduce_argmax", "reduce_argmin"}


def test_every_filter_has_a_row() -> None:
    rows = {name.partition(",")[0] for name in ROWS}
    assert rows | LOSSES | WITHOUT_GRADIENTS | {"initial_gradient"} == FILTERS


def test_every_forward_function_has_a_filter_or_says_why_not() -> None:
    behind = re.compile("_(fwd|grad|state|mask|value|indices|grad_.*)$")
    for op in OPS.values():
        if not behind.search(op.name):
            has = op.name in FILTERS
            assert has == bool(op.nodes or op.name in LOSSES | WITHOUT_GRADIENTS), op.name
            assert has != bool(op.no_node), f"{op.name}: a filter, or why there is none"


def test_the_table_of_functions_names_what_has_no_filter() -> None:
    page = (Path(__file__).parents[2] / "docs/comparison/functions.md").read_text(encoding="utf-8")
    told = re.search("a filter node for every operation above except (.*?);", page)
    assert told
    without = {op.name for op in OPS.values() if op.no_node and op.no_node != "no operation"}
    of_others = {"arithmetic", "neuron"}  # whose nodes have the names of what they compute
    named = {name for name in without - of_others if not name.startswith("bn_") and not name.endswith("1d")}
    assert set(re.findall(r"`(\w+)`", told[1])) == named


@pytest.mark.parametrize("name", ROWS)
def test_a_filter_and_its_gradients_are_those_of_the_function(name: str, device: mx.Device) -> None:
    row = ROWS[name]
    nodes = [graph.ImageNode(f"x{i}") for i in range(len(row.shapes))]
    node = row.node(*nodes)
    ends = graph.training_graph(node, graph.ImageNode("dy"))
    f = graph.compile([node, *(end.result_image for end in ends)], gradients=ends)
    assert [end.gradient_of for end in ends] == nodes

    arrays = [numbers(shape, i, row.positive) for i, shape in enumerate(row.shapes)]
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    blank = graph.compile(node)
    params, states = blank.init(mx.random.key(0), inputs)
    params = {name: {k: v + 0.1 * numbers(v.shape, 7) for k, v in each.items()} for name, each in params.items()}
    dy = numbers(blank.shapes(inputs)[node.name], 9)
    (y, *dxs), gradients, _ = f(params, {**inputs, "dy": dy}, states)

    def objective(given: dict[str, Any], *images: mx.array) -> mx.array:
        return (row.plain(given.get("n", {}), *images) * dy).sum()

    want = mx.grad(objective, argnums=tuple(range(len(arrays) + 1)))(params, *arrays)
    close(y, row.plain(params.get("n", {}), *arrays))
    close(dxs, list(want[1:]))
    close(gradients, want[0])


def test_defaults_are_those_of_the_functions_but_where_nodes_of_mps_differ() -> None:
    differ = {
        "conv": {"padding"}, "depthwise_conv": {"padding"}, "conv_transpose": {"padding"},
        "avg_pool": {"padding", "edge_mode"}, "max_pool": {"padding", "edge_mode"}, "l2_pool": {"padding", "edge_mode"},
        "local_contrast_norm": {"alpha"}, "grid_sample": {"coordinates"},
        **{name: {"coordinate", "edge_mode"} for name in ("resize_bilinear", "upsample_bilinear")},
    }  # fmt: skip
    others = {"depthwise_conv": "conv", "forward_loss": "loss_value"}
    for name in FILTERS - {"reshape", "initial_gradient", "crop", "slice_rows", "slice_columns"}:
        mine = inspect.signature(getattr(graph, name)).parameters
        theirs = inspect.signature(getattr(mf, others.get(name, name))).parameters
        found = {k for k in mine if k in theirs and k not in ("beta", "gamma") and mine[k].default != theirs[k].default}
        found |= {"beta"} if "beta" in theirs and mine["beta"].default not in (True, theirs["beta"].default) else set()
        assert found == differ.get(name, set()), name


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_help_tells_what_is_made_and_every_argument_of_its_own(name: str) -> None:
    make = getattr(graph, name)
    told, signature = inspect.getdoc(make), inspect.signature(make)
    like = re.match(r"Makes a node of `mpsfunc\.(\w+)`\.", told)
    theirs = set(inspect.signature(getattr(mf, like[1])).parameters) if like else set()
    made = signature.return_annotation
    assert f"Returns:\n    A `{made}`." in told and made in ("FilterNode", "LossNode", "ForwardLossNode") + (
        ("InitialGradientNode",) if name == "initial_gradient" else ()
    )
    for argument in signature.parameters.values():
        assert argument.annotation is not inspect.Parameter.empty
        if like and argument.name not in theirs:
            assert f"\n    {argument.name}: " in told, argument.name
    assert not re.search(r"(?<![`\w])MPS[A-Z]\w+", told.partition("Source:")[2].partition("Args:")[0])
    node = eval(told.rpartition("node = ")[2], {"graph": graph, "x": graph.ImageNode("x")})
    assert type(node).__name__ == made


def test_whoever_places_windows_gets_no_policy() -> None:
    x = graph.ImageNode("x")
    assert graph.avg_pool(x, 2, offset=1, out_size=(2, 2)).options["padding"] == 0
    assert graph.avg_pool(x, 2, padding=1).options["padding"] == 1
    assert graph.avg_pool(x, "global").options["padding"] == 0
    assert graph.conv_transpose(x, 1, 2, output_padding=1, stride=2, name="t").options["padding"] == 0
    assert graph.avg_pool(x, 2, ceil_mode=True).options["padding"] == 0
    assert graph.avg_pool(x, 2).options["padding"] == SAME
    assert graph.compile(graph.avg_pool(x, "global")).shapes({"x": X})["avg_pool"] == (2, 1, 1, 4)


def test_a_filter_of_pixels_takes_the_place_of_coordinates_that_nobody_gave() -> None:
    x = graph.ImageNode("x")
    for how in ({}, {"coordinate": "half_pixel_symmetric"}, {"edge_mode": "clamp"}):
        node = graph.resize_bilinear(x, out_size=(3, 4), antialias=True, **how)
        made = graph.compile(node)({}, {"x": numbers(X, 0)})[0]
        close(made, mf.resize_bilinear(numbers(X, 0), (3, 4), antialias=True, **how))
    plain = graph.resize_bilinear(x, (3, 4), antialias=False).options
    assert (plain["coordinate"], plain["edge_mode"]) == ("asymmetric", "zero")
    for name, value in (("coordinate", "asymmetric"), ("edge_mode", "zero")):
        wrong = graph.resize_bilinear(x, (3, 4), antialias=True, **{name: value})
        with pytest.raises(ValueError, match="a filter has no (asymmetric|edges of zero); got"):
            graph.compile(wrong)({}, {"x": numbers(X, 0)})
    assert "as in MPS's nodes, but for ``antialias=True``." in graph.resize_bilinear.__doc__
    assert "antialias" not in graph.upsample_bilinear.__doc__


def test_compare_has_no_gradient() -> None:
    x, y = graph.ImageNode("x"), graph.ImageNode("y")
    less = graph.compare(x, y, "less")
    a, b = numbers(X, 0), numbers(X, 1)
    close(graph.compile(less)({}, {"x": a, "y": b})[0], mf.compare(a, b, "less"))
    with pytest.raises(TypeError, match="compare: an operation without a gradient; got compare"):
        graph.training_graph(less)
    masked = graph.multiply(x, less)
    less.result_image.stop_gradient = True
    (end,) = graph.training_graph(masked, graph.ImageNode("dy"))
    dx = graph.compile(end)({}, {"x": a, "y": b, "dy": mx.ones(X)})[0]
    close(dx, mf.compare(a, b, "less"))


@pytest.mark.parametrize("name", ["reduce_argmax", "reduce_argmin"])
def test_a_place_has_no_gradient(name: str) -> None:
    x = graph.ImageNode("x")
    node = getattr(graph, name)(x, "channels")
    found = graph.compile(node)({}, {"x": numbers(X, 0)})[0]
    close(found, getattr(mf, name)(numbers(X, 0), "channels"))
    with pytest.raises(TypeError, match=f"{name}: an operation without a gradient"):
        graph.training_graph(node)


@pytest.mark.parametrize("divided", [False, True])
def test_weights_of_classes_and_positives_are_lists(on_cpu: mx.Device, divided: bool) -> None:
    y, target = graph.ImageNode("y"), graph.ImageNode("target")
    labels, shares = mx.array([0, 3]), mx.sigmoid(numbers((2, 1, 1, 4), 1))
    for kind, given, name in (
        ("softmax_cross_entropy", labels, "class_weights"),
        ("sigmoid_cross_entropy", shares, "pos_weight"),
    ):
        for dtype in (mx.float32, mx.float64, mx.float16):
            x, right = numbers((2, 1, 1, 4), 0).astype(dtype), given if given is labels else given.astype(dtype)
            node = graph.loss(y, target, kind, "mean", divided=divided, **{name: [1, 0.5, 2.0, 3.0]})
            f = graph.compile({"gradient": node, "value": node.loss_image})
            how: dict[str, Any] = {
                name: mx.array([1, 0.5, 2.0, 3.0], mx.float64 if dtype == mx.float64 else mx.float32)
            }
            value, gradient = mf.loss(x, right, kind, "mean", **how)
            gradient = mf.loss_grad(x, right, kind, "mean", divided=True, **how) if divided else gradient
            close(f({}, {"y": x, "target": right})[0], {"gradient": gradient, "value": value})
        for wrong, words in ((mx.ones(4), "is not a list"), ([1, "a", 1, 1], "is not a number")):
            bad = graph.loss(y, target, kind, "mean", **{name: wrong})
            with pytest.raises(TypeError, match=f"loss: {name} {words}; got {name}="):
                graph.compile(bad)({}, {"y": x, "target": right})


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_is_its_own_gradient(divided: bool, weighted: bool) -> None:
    y, target, weights = (graph.ImageNode(name) for name in ("y", "target", "weights"))
    node = graph.loss(y, target, "huber", "mean", delta=0.5, divided=divided, weights=weights if weighted else None)
    f = graph.compile({"gradient": node, "value": node.loss_image})
    arrays = {"y": numbers(X, 0), "target": numbers(X, 1)} | ({"weights": numbers(X, 2, True)} if weighted else {})
    got, _, _ = f({}, arrays)
    how: dict[str, Any] = {"delta": 0.5, "weights": arrays.get("weights")}
    value, gradient = mf.loss(arrays["y"], arrays["target"], "huber", "mean", **how)
    exact = mx.grad(lambda y: mf.loss_value(y, arrays["target"], "huber", "mean", **how).sum())(arrays["y"])
    close(got, {"gradient": exact if divided else gradient, "value": value})
    with pytest.raises(TypeError, match="a loss node is its own gradient node"):
        node.gradient_filter(y)
    with pytest.raises(ValueError, match="a loss starts the backward pass"):
        graph.training_graph(node, y)
