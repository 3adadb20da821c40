"""Shapes and drawings of networks before they run, and what is no network."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from graph_rows import X, residual

from mpsfunc import graph

# Shapes and drawings ----------------------------------------------------------------------------------------------


def test_shapes_before_anything_runs() -> None:
    scores, loss = residual()
    f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    shapes = f.shapes({"x": (256, 512, 512, 3), "labels": mx.zeros((256, 1, 1), mx.int32)})
    assert shapes["stem"] == shapes["stem gradient"][:3] + (8,) == (256, 512, 512, 8)
    assert shapes["concatenate"] == (256, 256, 256, 16) and shapes["scores"] == (256, 1, 1, 10)
    assert shapes["loss"] == (256, 1, 1, 10) and shapes["loss value"] == (256, 1, 1, 1)


def test_drawings(tmp_path: Any) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    assert matplotlib
    _, loss = residual()
    f = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    drawing = f.draw({"x": (4, 8, 8, 3), "labels": mx.zeros((4, 1, 1), mx.int32)})
    lines = str(drawing).splitlines()
    assert len(lines) == len(f.nodes) + 2
    assert "conv2 gradient          (4, 8, 8, 8)   <- bn2 gradient, relu, state of conv2" in lines
    assert "stem gradients          (4, 8, 8, 8)   <- add gradient 1, bn1 gradient" in lines
    assert "relu 2 gradient         (4, 8, 8, 8)   <- relu 2 gradients 2, add, state of relu 2" in lines
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        drawing.save(tmp_path / f"net{ending}")
        assert (tmp_path / f"net{ending}").read_bytes().startswith(start)
    svg = (tmp_path / "net.svg").read_text()
    assert all(f"<!-- {name} -->" in svg for name in ("conv2 gradient", "scores"))
    assert "<svg" in (drawing._repr_svg_() or "")
    with pytest.raises(ValueError, match=r"unknown format; got path='net.bmp', expected .svg, .png or .pdf"):
        drawing.save("net.bmp")
    assert "(4, 8" not in str(f.draw())


# What is refused --------------------------------------------------------------------------------------------------


def test_cycles() -> None:
    x = graph.ImageNode("x")
    first = graph.relu(x, name="first")
    second = graph.tanh(first, name="second")
    first.sources = (second.result_image,)
    for ask in (graph.compile, graph.training_graph):
        with pytest.raises(ValueError, match="graph: there is a cycle; got second -> first -> second"):
            ask(second)


def test_two_losses() -> None:
    y, t = graph.ImageNode("y"), graph.ImageNode("t")
    first = graph.loss(y, t, "huber", "sum", name="first")
    second = graph.loss(graph.linear(first.loss_image), t, "huber", "sum", name="second")
    with pytest.raises(ValueError, match="training_graph: a second loss node leads to 'second'; got 'first'"):
        graph.training_graph(second)
    with pytest.raises(ValueError, match=r"compile: there are two loss nodes; got \['first', 'second'\], expected one"):
        graph.compile(second)
    with pytest.raises(ValueError, match="there are two loss nodes"):
        graph.compile([first, graph.loss(y, t, "log", "sum", name="other")])


def test_dangling_and_unknown_inputs() -> None:
    f = graph.compile(graph.add(graph.relu(graph.ImageNode("x")), graph.ImageNode("z")))
    with pytest.raises(ValueError, match=r"graph: input 'z' is missing, which \['add'\] read; got \['x'\]"):
        f({}, {"x": mx.ones(X)})
    with pytest.raises(ValueError, match=r"graph: unknown input; got 'q', expected \['x', 'z'\]"):
        f({}, {"x": mx.ones(X), "z": mx.ones(X), "q": mx.ones(X)})
    with pytest.raises(TypeError, match="graph: input 'z' is not an array; got 3"):
        f({}, {"x": mx.ones(X), "z": 3})
    with pytest.raises(TypeError, match="graph: input 'z' is not an array; got 'no'"):
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
        (lambda x: graph.dropout(x, 2.0, name="d"), ValueError, "d: dropout.*keep_probability is out of range"),
        (lambda x: graph.relu(graph.relu(x), a="big"), TypeError, "relu 2: relu: a is not a number"),
        (lambda x: graph.batch_norm(x, statistics="no", name="b"), ValueError, "b: batch_norm: unknown statistics"),
    ],
)  # fmt: skip
def test_errors_name_the_node(make: Any, error: type[Exception], message: str) -> None:
    f = graph.compile(make(graph.ImageNode("x")))
    with pytest.raises(error, match=message):
        f.shapes({"x": X})
    with pytest.raises(error, match=message):
        f.init(mx.random.key(0), {"x": mx.ones(X)})


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
        (lambda x: graph.relu(x).configure(b=1), TypeError, "relu: no such argument; got b, expected one of a"),
        (lambda x: graph.relu(x).gradient_filter(3), TypeError, "relu: gradient is not a node; got 3"),
        (lambda x: graph.ImageNode(3), TypeError, "ImageNode: name is not a string; got name=3"),
        (lambda x: graph.training_graph(x), TypeError, "training_graph: node is not a filter; got node=ImageNode"),
        (lambda x: graph.training_graph(graph.relu(x), 3), TypeError, "training_graph: source_gradient is not a node"),
        (lambda x: graph.compile(3), TypeError, "compile: outputs is not made of nodes; got 3"),
        (lambda x: graph.compile(x, gradients=[x]), TypeError, "compile: gradients is not made of filters; got Image"),
        (lambda x: graph.compile(x, format=mx.int32), TypeError, "compile: format is no floating dtype"),
        (lambda x: graph.compile(x, format="half"), TypeError, "compile: format is no .*; got format='half'"),
        (
            lambda x: graph.compile(graph.prelu(graph.prelu(x, name="p"), name="p")),
            ValueError,
            "compile: two nodes with parameters or states share a name; got 'p' twice",
        ),
    ],
)  # fmt: skip
def test_what_is_no_network(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(graph.ImageNode("x"))
