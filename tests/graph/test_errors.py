"""Shapes and drawings of networks before they run, and what is no network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support.graph_rows import X, residual

import mpsfunc as mf
from mpsfunc import graph

# Shapes and drawings ----------------------------------------------------------------------------------------------


def test_shapes_before_anything_runs() -> None:
    scores, loss = residual()
    f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    shapes = f.shapes({"x": (256, 512, 512, 3), "labels": mx.zeros((256, 1, 1), mx.int32)})
    assert shapes["stem"] == shapes["stem gradient"][:3] + (8,) == (256, 512, 512, 8)
    assert shapes["concatenate"] == (256, 256, 256, 16) and shapes["scores"] == (256, 1, 1, 10)
    assert shapes["loss"] == (256, 1, 1, 10) and shapes["loss value"] == (256, 1, 1, 1)


def drawing() -> graph.Drawing:
    _, loss = residual()
    f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    return f.draw({"x": (4, 8, 8, 3), "labels": mx.zeros((4, 1, 1), mx.int32)})


def test_a_drawing_as_text() -> None:
    lines = str(drawing()).splitlines()
    assert "conv2 gradient          (4, 8, 8, 8)   <- bn2 gradient, relu, state of conv2" in lines
    assert "stem gradients          (4, 8, 8, 8)   <- add gradient 1, bn1 gradient" in lines
    assert "relu 2 gradient         (4, 8, 8, 8)   <- relu 2 gradients 2, add" in lines
    _, loss = residual()
    plain = str(graph.compile(loss).draw())
    assert "(4, 8" not in plain and len(plain.splitlines()) == 18


def test_a_drawing_as_a_picture(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra mpsfunc[demo]")
    drawn = drawing()
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        drawn.save(tmp_path / f"net{ending}")
        assert (tmp_path / f"net{ending}").read_bytes().startswith(start)
    assert "<svg" in (drawn._repr_svg_() or "")
    with pytest.raises(ValueError, match=r"unknown format; got path='net.bmp', expected .svg, .png or .pdf"):
        drawn.save("net.bmp")

    (axes,) = drawn._figure().axes
    places = {text.get_text().partition("\n")[0]: text.get_position() for text in axes.texts if text.get_bbox_patch()}
    assert len(places) == len(str(drawn).splitlines()) == len(set(places.values()))
    for name, (x, y) in places.items():  # gradients are to the right, each at the height of its filter
        if name.endswith(" gradient"):
            of = places[name.removesuffix(" gradient")]
            assert y == of[1] and x > max(x for name, (x, _) in places.items() if "gradient" not in name)
    assert places["stem"][1] > places["bn1"][1] > places["loss"][1]
    assert len({places[name] for name in ("wide", "narrow", "max_pool")}) == 3
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    styles = {(text.xyann, text.xy): text.arrowprops for text in arrows}
    assert styles[places["x"], places["stem"]]["color"] == "#333333"
    assert styles[places["bn2 gradient"], places["conv2 gradient"]]["color"] == "#c0392b"
    assert styles[places["conv2"], places["conv2 gradient"]]["linestyle"] == "--"
    labels = [text.get_text() for text in axes.texts]
    assert labels.count("(4, 8, 8, 8)") >= 10 and "(4, 4, 4, 16)" in labels


def test_the_picture_of_the_page_is_that_of_the_script() -> None:
    script = Path(__file__).parents[2] / "docs" / "draw_graph.py"
    spec = importlib.util.spec_from_file_location("draw_graph", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = {line.split("  ")[0] for line in str(module.drawing()).splitlines()}
    assert names == set(re.findall(r"<!-- ([\w ]+) -->", module.FILE.read_text())) - {""} | (
        names & {line for line in re.findall(r"<!-- ([\w ]+)\n", module.FILE.read_text())}
    )


def _c(x: graph.ImageNode) -> graph.FilterNode:
    return graph.conv(x, 3, 3, name="c")


def _twice(x: graph.ImageNode) -> list[graph.FilterNode]:
    node = graph.relu(x)
    return [node.gradient_filter(x), node.gradient_filter(x)]


# What is refused --------------------------------------------------------------------------------------------------


def test_cycles() -> None:
    x = graph.ImageNode("x")
    first = graph.relu(x, name="first")
    second = graph.tanh(first, name="second")
    first.sources = (second.result_image,)
    for ask in (graph.compile, graph.training_graph):
        with pytest.raises(ValueError, match="graph: there is a cycle; got second -> first -> second"):
            ask(second)


def test_dangling_and_unknown_inputs() -> None:
    f = graph.compile(graph.add(graph.relu(graph.ImageNode("x")), graph.ImageNode("z")))
    with pytest.raises(ValueError, match=r"an input is missing; got \['x'\], expected 'z', which \['add'\] read"):
        f({}, {"x": mx.ones(X)})
    with pytest.raises(ValueError, match=r"graph: unknown input; got 'q', expected \['x', 'z'\]"):
        f({}, {"x": mx.ones(X), "z": mx.ones(X), "q": mx.ones(X)})
    with pytest.raises(TypeError, match="graph: input 'z' is not an array; got 3"):
        f({}, {"x": mx.ones(X), "z": 3})
    with pytest.raises(TypeError, match="graph: input 'z' is not a shape; got 'no'"):
        f.shapes({"x": X, "z": "no"})
    with pytest.raises(ValueError, match="compile: two inputs share a name; got 'x' twice"):
        graph.compile(graph.add(graph.ImageNode("x"), graph.ImageNode("x")))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: graph.conv(x, 3, 9, padding=0, name="c1"), ValueError, "c1: conv: window does not fit"),
        (lambda x: graph.add(graph.relu(x), graph.avg_pool(x, 2), name="sum"), ValueError, "sum: arithmetic: "),
        (lambda x: graph.reshape(x, (3, 3, 3), name="r"), ValueError, "r: reshape: .*expected 120 elements"),
        (lambda x: graph.concatenate([x, graph.avg_pool(x, 2)], name="cat"), ValueError, "cat: concatenate: "),
        (lambda x: graph.dropout(x, p=1.0, name="d"), ValueError, "d: dropout: p is out of range"),
        (lambda x: graph.dropout(x, keep_probability=2.0, name="d"), ValueError, "d: dropout: keep_probability is "),
        (lambda x: graph.relu(graph.relu(x), a="big"), TypeError, "relu 2: relu: a is not a number"),
        (lambda x: graph.batch_norm(x, statistics="no", name="b"), ValueError, "b: batch_norm: unknown statistics"),
        (lambda x: graph.conv(x, "3", 3, name="c"), TypeError, "c: conv: out_channels is not an int; got .*'3'"),
        (lambda x: graph.conv(x, -1, 3, name="c"), ValueError, "c: conv: out_channels is out of range"),
        (lambda x: graph.conv(x, 3, None, name="c"), TypeError, "c: conv: kernel_size is not an int"),
        (lambda x: graph.conv(x, 3, (3, 0), name="c"), ValueError, r"c: conv: kernel_size is .*=\(3, 0\)"),
        (lambda x: graph.conv(x, 3, 3, groups=0, name="c"), ValueError, "c: conv: groups is out of range"),
        (lambda x: graph.conv(x, 3, 3, bias="no", name="c"), TypeError, "c: conv: bias is not a bool"),
        (lambda x: graph.conv(graph.reshape(x, 3), 3, 3, name="c"), ValueError, "reshape: reshape: not an image batch"),
        (lambda x: graph.batch_norm(x, gamma=1, name="b"), TypeError, "b: normalization: gamma is not a bool"),
        (lambda x: graph.depthwise_conv(x, 3, multiplier=0, name="c"), ValueError, "c: conv: multiplier is out"),
        (lambda x: graph.fully_connected(x, None, name="c"), TypeError, "c: fully_connected: out_channels is"),
        (lambda x: graph.dropout(x, seed=-1, name="d"), ValueError, "d: dropout: seed is out of range"),
        (lambda x: graph.dropout(x, seed=1.5, name="d"), TypeError, "d: dropout: seed is not an int"),
        (lambda x: graph.crop(x, (5, 3), (2, 0)), ValueError, r"crop: crop: .* got out_size=\(5, 3\) .* of \(6, 5\)"),
        (lambda x: graph.crop(x, (5, 3), (0, 3)), ValueError, "crop: crop: the rectangle reaches outside the image"),
        (lambda x: graph.crop(x, 0), ValueError, "crop: crop: out_size is too small; got out_size=0"),
        (lambda x: graph.crop(x, 2, -1), ValueError, "crop: crop: offset is too small; got offset=-1"),
        (lambda x: graph.crop(x, "2"), TypeError, "crop: crop: out_size is not an int"),
        (lambda x: graph.slice_rows(x, 2, 7), ValueError, "slice_rows: slice_rows: stop is .* stop=7, expected 3 to 6"),
        (lambda x: graph.slice_columns(x, 5, 5), ValueError, "slice_columns: .*start is .* start=5, expected 0 to 4"),
        (lambda x: graph.slice_columns(x, 0, 1.5), TypeError, "slice_columns: slice_columns: stop is not an int"),
        (lambda x: graph.loss(x, x, "huber", "sum", divided=1), TypeError, "loss: loss: divided is not a bool"),
    ],
)  # fmt: skip
def test_errors_name_the_node(make: Any, error: type[Exception], message: str) -> None:
    f = graph.compile(make(graph.ImageNode("x")))
    with pytest.raises(error, match=message):
        f.shapes({"x": X})
    with pytest.raises(error, match=message):
        f.init(mx.random.key(0), {"x": mx.ones(X)})


def test_a_dropout_takes_its_share_by_name_only() -> None:
    x = graph.ImageNode("x")
    with pytest.raises(
        TypeError, match=r"^dropout: only x goes without a name; got the second argument=0.1, expected k"
    ):
        graph.dropout(x, 0.1, name="d")
    with pytest.raises(TypeError, match="^dropout: got an unexpected keyword argument 'key'"):
        graph.dropout(x, p=0.1, key=mx.random.key(0), name="d")
    with pytest.raises(ValueError, match="d: dropout: keep_probability and p exclude each other; got p=0.1"):
        graph.compile(graph.dropout(x, p=0.1, keep_probability=0.9, name="d")).shapes({"x": X})
    ones, kept = mx.ones(X), []
    for share in ({"p": 0.25}, {"keep_probability": 0.75}):
        f = graph.compile(graph.dropout(x, seed=3, name="d", **share))
        _, states = f.init(mx.random.key(0), {"x": ones})
        kept.append(f({}, {"x": ones}, states)[0])
    assert mx.array_equal(*kept) and mx.array_equal(kept[0], mf.dropout(ones, p=0.25, seed=3))


def test_calls_that_do_not_fit() -> None:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    node = graph.slice_channels(graph.conv(x, 3, 1, name="c"), 0, 2)
    f = graph.compile(node, gradients=graph.training_graph(node, dy))
    inputs = {"x": mx.ones(X), "dy": mx.ones((*X[:3], 2))}
    params, _ = f.init(mx.random.key(0), inputs)
    for wrong in (mx.ones((*X[:3], 1)), mx.ones((1, *X[1:3], 2)), mx.ones((*X[:3], 2), mx.float16)):
        with pytest.raises(ValueError, match="slice_channels gradient: the gradient does not belong to"):
            f(params, {**inputs, "dy": wrong})
    for arguments, message in (
        ((None, inputs), "graph: params is not a dict; got None"),
        ((params, [mx.ones(X)]), r"graph: inputs is not a dict; got \[float32"),
        ((params, inputs, 3), "graph: states is not a dict; got 3"),
        ((params, {**inputs, "x": np.ones(X)}), r"graph: input 'x' is not an array; got numpy.float64\[2"),
    ):
        with pytest.raises(TypeError, match=message):
            f(*arguments)
    with pytest.raises(TypeError, match="init: not a key; got key=0"):
        f.init(0, inputs)
    for given in ((1, -2, 3, 4), "abc", 3.5, (1.5, 2)):
        with pytest.raises(TypeError, match="graph: input 'x' is not a shape"):
            f.shapes({"x": given, "dy": X})
    with pytest.raises(TypeError, match="graph: inputs is not a dict; got None"):
        f.shapes(None)
    with pytest.raises(ValueError, match="c: no image; got an array of shape"):
        f.shapes({"x": (), "dy": X})
    drop = graph.compile(graph.dropout(x, name="d"))
    for state, error in ((5, TypeError), (mx.zeros(2, mx.int32), TypeError), (mx.zeros(3, mx.uint32), ValueError)):
        with pytest.raises(error, match="d: dropout: key is not a key"):
            drop({}, {"x": mx.ones(X)}, {"d": state})


def test_parameters_that_do_not_fit() -> None:
    f = graph.compile(graph.conv(graph.ImageNode("x"), 3, 3, name="c"))
    inputs = {"x": mx.ones(X)}
    params, _ = f.init(mx.random.key(0), inputs)
    for given, error, message in (
        ({}, ValueError, r"c: there are no parameters; got \[\], expected 'c'"),
        ({"c": {"w": params["c"]["w"]}}, ValueError, r"c: a parameter is missing; got \['w'\], expected \['w', 'b'\]"),
        ({"c": 3}, ValueError, "c: a parameter is missing; got 3"),
        ({"c": {**params["c"], "b": None}}, TypeError, "c: b is not an array; got b=None"),
        (
            {"c": {**params["c"], "b": mx.ones(4)}},
            ValueError,
            r"c: b does not fit; got b.shape=\(4,\), expected \(3,\)",
        ),
    ):
        with pytest.raises(error, match=message):
            f(given, inputs)
    drop = graph.compile(graph.dropout(graph.ImageNode("x"), name="d"))
    with pytest.raises(ValueError, match=r"d: there is no state; got \[\], expected 'd', as init makes it"):
        drop({}, inputs)
    bn = graph.compile(graph.batch_norm(graph.ImageNode("x"), eps=1e-3, name="b"))
    params, states = bn.init(mx.random.key(0), inputs)
    with pytest.raises(ValueError, match="b: batch_norm: the state has another eps"):
        bn(params, inputs, {"b": states["b"]._replace(eps=1.0)})
    with pytest.raises(TypeError, match="b: batch_norm: the state is not a BatchNormState; got 3"):
        bn(params, inputs, {"b": 3})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: graph.conv(x, 3, 3), TypeError, "conv: missing a required .*argument: 'name'"),
        (lambda x: graph.conv(x, 3, 3, name=""), TypeError, "conv: name is not a name; got name=''"),
        (lambda x: graph.conv(x, 3, 3, name="c", params=1), TypeError, "conv: params is not a name; got params=1"),
        (lambda x: graph.conv(3, 3, 3, name="c"), TypeError, "conv: x is not a node; got 3, expected an ImageNode"),
        (lambda x: graph.concatenate([x, 3]), TypeError, r"concatenate: images\[1\] is not a node; got 3"),
        (lambda x: graph.relu(x, slope=1), TypeError, "relu: got an unexpected keyword argument 'slope'"),
        (lambda x: graph.conv_transpose(x, 1, 2, state=x, name="t"), TypeError, "conv_transpose: state is not a node"),
        (lambda x: graph.relu(x).configure(b=1), TypeError, "relu: no such argument; got b, expected one of: a"),
        (lambda x: graph.relu(x).gradient_filter(3), TypeError, "relu: gradient is not a node; got 3"),
        (lambda x: graph.ImageNode(3), TypeError, "ImageNode: name is not a name; got name=3"),
        (lambda x: graph.training_graph(x), TypeError, "training_graph: node is not a filter; got node=ImageNode"),
        (lambda x: graph.training_graph(graph.relu(x), 3), TypeError, "training_graph: source_gradient is not a node"),
        (lambda x: graph.compile(3), TypeError, "compile: outputs is not made of nodes; got 3"),
        (lambda x: graph.compile(x, gradients=[x]), TypeError, "compile: gradients holds no gradient node; got Image"),
        (lambda x: graph.compile(x, format=mx.int32), TypeError, "compile: format is no floating dtype"),
        (lambda x: graph.compile(x, format="half"), TypeError, "compile: format is no .*; got format='half'"),
        (lambda x: graph.relu(x).result_state, TypeError, "relu: relu keeps no state; got result_state"),
        (lambda x: graph.conv_transpose(x, 1, 2, state=graph.relu(x), name="t"), TypeError, "relu keeps no state"),
        (lambda x: graph.concatenate([]), ValueError, r"concatenate: there is no image; got images=\(\), expected one"),
        (lambda x: _c(x).gradient_filter(x).configure(stride=2), TypeError, "got stride, expected one of: none"),
        (lambda x: graph.avg_pool(x, 3).gradient_filter(x).configure(kernel_size=2), TypeError, "zero_pad, edge_mode"),
        (lambda x: graph.training_graph(graph.relu(x), handler=3), TypeError, "handler is not a function"),
        (lambda x: graph.training_graph(graph.relu(x), print), TypeError, "source_gradient is not a node"),
        (lambda x: graph.training_graph(graph.relu(graph.relu(x).gradient_filter(x))), TypeError, "no gradient node"),
        (lambda x: graph.compile([]), ValueError, r"compile: there is nothing to make; got outputs=\[\]"),
        (lambda x: graph.compile(x, gradients=graph.relu(x)), TypeError, "compile: gradients is not a list"),
        (lambda x: graph.compile(x, gradients=[graph.relu(x)]), TypeError, "compile: gradients holds no gradient node"),
        (lambda x: graph.compile(x, stream="cpu"), TypeError, "stream: not a stream; got stream='cpu'"),
        (
            lambda x: graph.compile(x, gradients=2 * [graph.relu(x).gradient_filter(x)] + _twice(x)),
            ValueError,
            "compile: one gradient counts twice; got two of 'relu gradient'",
        ),
        (
            lambda x: graph.compile(graph.prelu(graph.prelu(x, name="p"), name="q", params="p")),
            ValueError,
            "compile: two nodes have parameters or states of one name; got 'p' twice",
        ),
        (
            lambda x: graph.compile(graph.prelu(graph.prelu(x, name="p"), name="p")),
            ValueError,
            "compile: two nodes have parameters or states of one name; got 'p' twice",
        ),
    ],
)  # fmt: skip
def test_what_is_no_network(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(graph.ImageNode("x"))
