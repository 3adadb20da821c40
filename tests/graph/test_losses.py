"""Losses whose values are images: combined, inside a network, several at once, and beside the loss node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from support.graph_rows import SAME, X, close, numbers

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.typing import LossName

Y = (2, 6, 5, 3)
INPUTS = {"x": numbers(X, 0), "t": numbers(Y, 1), "u": numbers(Y, 2), "weights": numbers(Y, 3, True)}
MSE, MAE, HUBER = "mean_squared_error", "mean_absolute_error", "huber"
Plain = Callable[[dict[str, Any], dict[str, mx.array]], mx.array]


def trunk() -> tuple[graph.FilterNode, graph.ImageNode, graph.ImageNode]:
    """Predictions, and two targets for them."""
    stem = graph.relu(graph.conv(graph.ImageNode("x"), 4, 3, name="stem"))
    return graph.conv(stem, 3, 1, name="head"), graph.ImageNode("t"), graph.ImageNode("u")


def predicted(p: dict[str, Any], inputs: dict[str, mx.array]) -> mx.array:
    stem = mf.relu(mf.conv(inputs["x"], p["stem"]["w"], p["stem"]["b"], padding=SAME))
    return mf.conv(stem, p["head"]["w"], p["head"]["b"])


def check(f: graph.Graph, plain: Plain) -> None:
    """The gradients of a compiled network beside those of the plain sum."""
    inputs = {name: INPUTS[name] for name in f.inputs}
    params, states = f.init(mx.random.key(0), inputs)
    for run in (f, mx.compile(f)):
        value, gradients, _ = run(params, inputs, states)
        want, by_autodiff = mx.value_and_grad(lambda p: plain(p, INPUTS).sum())(params)
        close(sum(each.sum() for each in value) if isinstance(value, list) else value.sum(), want, 1e-4)
        close(gradients, by_autodiff, 1e-4)


# Combined ------------------------------------------------------------------------------------------------------------


def test_a_product_of_losses_by_hand() -> None:
    y, t = graph.ImageNode("y"), graph.ImageNode("t")
    squares = graph.forward_loss(y, t, MSE, "sum", name="squares")
    product = graph.multiply(squares, graph.forward_loss(y, t, MAE, "sum", name="sizes"), name="product")
    (end,) = graph.training_graph(product)
    f = graph.compile([product, end])
    arrays = {"y": mx.array([1.0, 2.0]).reshape(1, 1, 1, 2), "t": mx.zeros((1, 1, 1, 2))}
    (value, dy), _, _ = f({}, arrays)
    assert value.item() == 15 and dy.reshape(-1).tolist() == [11, 17]
    drawn = str(f.draw(arrays)).splitlines()
    assert "product initial gradient  (1, 1, 1, 1)  <- product" in drawn
    assert "squares gradient          (1, 1, 1, 2)  <- product gradient 0, y, t" in drawn
    boxes = {node.name: box for node, box in f.draw()._boxes.items()}
    ones = boxes["product initial gradient"]  # below what it belongs to, on the other side
    assert ones.backward and ones.row == boxes["product"].row + 1 and not boxes["product"].backward
    assert {e.carries for e in f.draw()._edges if e.target.name == "product initial gradient"} == {"image"}


@pytest.mark.parametrize(
    ("combine", "plainly"),
    [
        (lambda a, b: graph.add(a, graph.linear(b, 0.3)), lambda a, b: a + 0.3 * b),
        (lambda a, b: graph.subtract(b, a), lambda a, b: b - a),
        (graph.multiply, lambda a, b: a * b),
        (graph.divide, lambda a, b: a / b),
        (
            lambda a, b: graph.tanh(graph.linear(graph.add(a, graph.multiply(b, b)), 0.01)),
            lambda a, b: mx.tanh(0.01 * (a + b * b)),
        ),
        (lambda a, b: graph.multiply(graph.add(a, b), a), lambda a, b: (a + b) * a),
    ],
    ids=["add", "subtract", "multiply", "divide", "tanh", "one_twice"],
)
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_losses_combined_by_arithmetic(reduction: str, combine: Any, plainly: Any) -> None:
    y, t, u = trunk()
    losses = graph.forward_loss(y, t, MSE, reduction), graph.forward_loss(y, u, HUBER, reduction, delta=0.5)
    total = combine(*losses)

    def plain(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
        made = predicted(p, given)
        first = mf.loss_value(made, given["t"], MSE, reduction)
        return plainly(first, mf.loss_value(made, given["u"], HUBER, reduction, delta=0.5))

    check(graph.compile(total, gradients=graph.training_graph(total)), plain)


def test_a_source_gradient_of_a_loss() -> None:
    y, t, _ = trunk()
    loss = graph.forward_loss(y, t, MSE, "none")
    f = graph.compile(loss, gradients=graph.training_graph(loss, graph.ImageNode("u")))
    params, _ = f.init(mx.random.key(0), {name: INPUTS[name] for name in f.inputs})
    _, gradients, _ = f(params, {name: INPUTS[name] for name in f.inputs})

    def plain(p: dict[str, Any]) -> mx.array:
        return (mf.loss_value(predicted(p, INPUTS), INPUTS["t"], MSE, "none") * INPUTS["u"]).sum()

    close(gradients, mx.grad(plain)(params))


def test_a_loss_inside_a_network() -> None:
    """Of every element, through a convolution, and as the prediction of another loss."""
    y, t, u = trunk()
    inner = graph.forward_loss(y, t, HUBER, "none", name="inner")
    outer = graph.forward_loss(graph.conv(inner, 3, 3, name="after"), u, MAE, "mean", name="outer")
    total = graph.add(outer, graph.spatial_mean(graph.conv(inner, 1, 1, name="aside")))

    def plain(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
        made = mf.loss_value(predicted(p, given), given["t"], HUBER, "none")
        after = mf.conv(made, p["after"]["w"], p["after"]["b"], padding=SAME)
        aside = mf.spatial_mean(mf.conv(made, p["aside"]["w"], p["aside"]["b"]))
        return mf.loss_value(after, given["u"], MAE, "mean") + aside

    check(graph.compile(total, gradients=graph.training_graph(total)), plain)


# Several -------------------------------------------------------------------------------------------------------------


def two_heads(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
    made = predicted(p, given)
    first = mf.loss_value(made, given["t"], MSE, "sum")
    return first + mf.loss_value(mf.tanh(made), given["u"], HUBER, "sum")


@pytest.mark.parametrize("makes", [("loss", "loss"), ("forward_loss", "loss"), ("loss", "forward_loss")])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("walks", [1, 2])
def test_several_losses_train_their_sum(makes: tuple[str, str], backwards: bool, walks: int) -> None:
    y, t, u = trunk()
    first = getattr(graph, makes[0])(y, t, MSE, "sum", name="first")
    second = getattr(graph, makes[1])(graph.tanh(y), u, HUBER, "sum", name="second")
    nodes = [second, first] if backwards else [first, second]
    values = [getattr(node, "loss_image", node) for node in nodes]
    ends = graph.training_graph(nodes) if walks == 1 else [end for n in nodes for end in graph.training_graph(n)]
    check(graph.compile(values, gradients=ends), two_heads)


@pytest.mark.parametrize("backwards", [False, True])
def test_several_losses_of_one_image(backwards: bool) -> None:
    y, t, u = trunk()
    nodes: list[Any] = [
        graph.loss(y, t, MSE, "sum"),
        graph.loss(y, u, MAE, "sum"),
        graph.forward_loss(y, u, MSE, "sum"),
    ]
    nodes = nodes[::-1] if backwards else nodes
    f = graph.compile([getattr(n, "loss_image", n) for n in nodes], gradients=graph.training_graph(nodes))

    def plain(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
        pairs = (("t", MSE), ("u", MAE), ("u", MSE))
        return sum((mf.loss_value(predicted(p, given), given[n], k, "sum") for n, k in pairs), mx.array(0.0))

    check(f, plain)
    assert "head gradients" in str(f.draw({name: INPUTS[name].shape for name in f.inputs}))


def test_a_loss_and_a_gradient_of_an_image_before_it() -> None:
    y, t, u = trunk()
    loss = graph.forward_loss(graph.tanh(y), t, MSE, "sum")
    f = graph.compile(loss, gradients=graph.training_graph([loss, y], [None, u]))
    arrays = {name: INPUTS[name] for name in f.inputs}
    params, _ = f.init(mx.random.key(0), arrays)
    lines = [line.split("  ")[0] for line in str(f.draw()).splitlines()]
    assert lines.index("u") + 1 == lines.index("head gradients") > lines.index("tanh gradient")

    def plain(p: dict[str, Any]) -> mx.array:
        made = predicted(p, INPUTS)
        return mf.loss_value(mf.tanh(made), INPUTS["t"], MSE, "sum").sum() + (made * INPUTS["u"]).sum()

    close(f(params, arrays)[1], mx.grad(plain)(params))


# Labels, weights, and what else a loss takes -------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["softmax_cross_entropy", "log", "kullback_leibler", MSE])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_labels_on_request(type: Any, weighted: bool) -> None:
    y, t, weights = (graph.ImageNode(name) for name in ("y", "t", "weights"))
    how: dict[str, Any] = {"weights": weights} if weighted else {}
    loss = graph.forward_loss(graph.sigmoid(y), graph.sigmoid(t), type, "mean", label_gradients=True, **how)
    ends = {end.gradient_of: end for end in graph.training_graph(loss, graph.ImageNode("dy"))}
    assert ends.keys() == {y, t}
    f = graph.compile([loss, ends[y], ends[t]])
    arrays = {"y": INPUTS["u"], "t": INPUTS["t"], "dy": numbers((2, 1, 1, 1), 5)}
    arrays |= {"weights": INPUTS["weights"]} if weighted else {}
    (value, dy, dt), _, _ = f({}, arrays)

    def plain(y: mx.array, t: mx.array) -> mx.array:
        return mf.loss_value(mf.sigmoid(y), mf.sigmoid(t), type, "mean", weights=arrays.get("weights"))

    close(value, plain(arrays["y"], arrays["t"]))
    close([dy, dt], list(mx.grad(lambda y, t: (plain(y, t) * arrays["dy"]).sum(), (0, 1))(arrays["y"], arrays["t"])))
    assert [node.name for node in loss.gradient_filters(y)] == ["forward_loss gradient 0", "forward_loss gradient 1"]
    loss.configure(label_gradients=False)
    assert loss.gradient_filter(y).name == "forward_loss gradient"


def test_labels_that_are_trained() -> None:
    y, t, _ = trunk()
    teacher = graph.conv(t, 3, 1, name="teacher")
    loss = graph.forward_loss(y, teacher, MSE, "mean", label_gradients=True)

    def plain(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
        target = mf.conv(given["t"], p["teacher"]["w"], p["teacher"]["b"])
        return mf.loss_value(predicted(p, given), target, MSE, "mean")

    check(graph.compile(loss, gradients=graph.training_graph(loss)), plain)
    loss.configure(label_gradients=False)
    with pytest.raises(ValueError, match=r"loss: targets and weights .* got 'teacher' .* or label_gradients=True$"):
        graph.training_graph(loss)
    weighted = graph.forward_loss(y, t, MSE, "mean", weights=teacher, label_gradients=True)
    with pytest.raises(
        ValueError, match=r"loss: targets and weights .* got 'teacher' .* expected stop_gradient on it$"
    ):
        graph.training_graph(graph.linear(weighted))
    with pytest.raises(TypeError, match="forward_loss: label_gradients is not a bool; got label_gradients=1"):
        graph.training_graph(graph.forward_loss(y, t, MSE, "mean", label_gradients=1))


@pytest.mark.parametrize("reduction", ["mean", "none", "sum_by_non_zero_weights"])
def test_labels_that_are_integers_and_count_unevenly(reduction: str) -> None:
    y, labels = graph.ImageNode("y"), graph.ImageNode("labels")
    how: dict[str, Any] = {"ignore_index": 2, "label_smoothing": 0.1, "number_of_classes": 3}
    kind: Any = "softmax_cross_entropy"
    loss = graph.forward_loss(y, labels, kind, reduction, class_weights=[1, 0.5, 2], **how)
    total = graph.multiply(loss, loss)
    f = graph.compile([total, *graph.training_graph(total)])
    given = mx.array(np.random.default_rng(0).integers(0, 3, Y[:3]).astype(np.int32))
    got, _, _ = f({}, {"y": INPUTS["u"], "labels": given})

    def plain(y: mx.array) -> mx.array:
        value = mf.loss_value(y, given, kind, reduction, class_weights=mx.array([1, 0.5, 2]), **how)
        return (value * value).sum()

    close([got[0].sum(), got[1]], [plain(INPUTS["u"]), mx.grad(plain)(INPUTS["u"])])
    asked = graph.forward_loss(y, labels, kind, reduction, label_gradients=True)
    with pytest.raises(TypeError, match="such labels have no gradient; got label_gradients=True and a target of mlx"):
        graph.compile(asked)({}, {"y": INPUTS["u"], "labels": given})


def test_a_loss_in_half_precision() -> None:
    y, t, _ = trunk()
    loss = graph.forward_loss(y, t, MSE, "mean")
    f = graph.compile([loss, y], gradients=graph.training_graph(loss), format=mx.float16)
    arrays = {name: INPUTS[name] for name in f.inputs}
    params, _ = f.init(mx.random.key(0), arrays)
    (value, made), gradients, _ = f(params, arrays)
    assert (value.dtype, made.dtype) == (mx.float32, mx.float16)
    want = mx.grad(lambda p: mf.loss_value(predicted(p, INPUTS), INPUTS["t"], MSE, "mean").sum())(params)
    close(gradients, want, 2e-2)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none", "sum_by_non_zero_weights"])
@pytest.mark.parametrize("type", [t for t in get_args(LossName) if t != "cosine_distance"])
def test_a_divided_loss_node_has_the_gradient_of_its_value(type: Any, reduction: Any) -> None:
    y, t, weights = (graph.ImageNode(name) for name in ("y", "t", "weights"))
    how = {"weights": INPUTS["weights"] * (INPUTS["t"] > 0)}
    arrays = {"y": mx.sigmoid(INPUTS["u"]), "t": mx.sigmoid(INPUTS["t"]), **how}

    def plain(y: mx.array) -> mx.array:
        return mf.loss_value(y, arrays["t"], type, reduction, **how)

    want = mx.grad(lambda y: plain(y).sum())(arrays["y"])
    passed = mf.loss(arrays["y"], arrays["t"], type, reduction, **how)[1]
    for divided, gradient in ((True, want), (False, passed)):
        loss = graph.loss(y, t, type, reduction, weights=weights, divided=divided)
        got, _, _ = graph.compile([loss, loss.loss_image, loss.result_state])({}, arrays)
        close(got[:2], [gradient, plain(arrays["y"])])
        assert got[2] == mf.LossState(got[2].gradient, "loss", type, reduction) and got[2].gradient is got[0]


# Transformations, and gradient nodes by hand -------------------------------------------------------------------------


def test_losses_under_transformations() -> None:
    y, t, u = trunk()
    total = graph.multiply(graph.forward_loss(y, t, MSE, "mean"), graph.forward_loss(y, u, HUBER, "mean"))
    f = graph.compile(total, gradients=graph.training_graph(total))
    arrays = {name: INPUTS[name] for name in f.inputs}
    params, _ = f.init(mx.random.key(0), arrays)

    def plain(p: dict[str, Any], given: dict[str, mx.array]) -> mx.array:
        made = predicted(p, given)
        first, second = mf.loss_value(made, given["t"], MSE, "mean"), mf.loss_value(made, given["u"], HUBER, "mean")
        return (first * second).sum()

    each = {name: array[:, None] for name, array in arrays.items()}
    many = mx.vmap(lambda given: f(params, given)[1]["stem"]["w"])(each)
    one = [mx.grad(plain)(params, {n: a[i] for n, a in each.items()})["stem"]["w"] for i in range(2)]
    close(many, mx.stack(one))

    def squared(x: mx.array, gradient: Any) -> mx.array:
        return gradient({**arrays, "x": x})["stem"]["w"].square().sum()

    second = mx.grad(lambda x: squared(x, lambda given: f(params, given)[1]))(arrays["x"])
    close(second, mx.grad(lambda x: squared(x, lambda given: mx.grad(plain)(params, given)))(arrays["x"]), 1e-4)


def test_a_chain_by_hand() -> None:
    y, t = graph.ImageNode("y"), graph.ImageNode("t")
    loss = graph.forward_loss(graph.tanh(y, name="tanh"), t, MSE, "mean", name="loss")
    ones = graph.initial_gradient(loss)
    dy = loss.sources[0].producer.gradient_filter(loss.gradient_filter(ones))
    f = graph.compile([ones, dy])
    (first, last), _, _ = f({}, {"y": INPUTS["u"], "t": INPUTS["t"]})
    assert first.tolist() == mx.ones((2, 1, 1, 1)).tolist()
    close(last, mx.grad(lambda y: mf.loss_value(mf.tanh(y), INPUTS["t"], MSE, "mean").sum())(INPUTS["u"]))
    assert [line.split("  ")[0] for line in str(f.draw()).splitlines()][-3:] == [
        *("initial_gradient", "loss gradient", "tanh gradient")
    ]


def test_without_a_loss_the_result_is_its_own_gradient_still() -> None:
    y, t, _ = trunk()
    graph.forward_loss(y, t, MSE, "sum")  # behind the node, not ahead of it
    (end,) = graph.training_graph(y)
    assert not any("initial" in node.name for node in graph.compile(end).nodes)


# What is refused -----------------------------------------------------------------------------------------------------


def test_what_no_walk_takes() -> None:
    y, t, u = trunk()
    start = graph.loss(y, t, HUBER, "sum", name="start")
    behind = graph.linear(start.loss_image)
    with pytest.raises(
        ValueError, match="a loss node starts the backward pass; got 'start', which leads to another, expected"
    ):
        graph.training_graph(behind)
    with pytest.raises(
        ValueError, match="a loss node starts the backward pass; got 'start', which leads to another, expected"
    ):
        graph.training_graph([start, graph.relu(start)])
    start.loss_image.stop_gradient = True
    assert [end.name for end in graph.training_graph([start, behind])] == ["stem gradient"]
    loss = graph.forward_loss(y, t, HUBER, "sum", name="forward")
    for nodes, given, message in (
        ([loss, loss], None, "training_graph: a node counts twice; got 'forward' twice"),
        ([], None, "training_graph: nodes and gradients differ in number; got 0 nodes"),
        ([loss, y], u, "differ in number; got 2 nodes and source_gradient=ImageNode.'u'., expected"),
        ([loss, y], [u], "differ in number; got 2 nodes and source_gradient="),
        ([start, loss], [u, None], "training_graph: a loss starts the backward pass; got source_gradient="),
    ):
        with pytest.raises(ValueError, match=message):
            graph.training_graph(nodes, given)
    with pytest.raises(TypeError, match=r"node is not a filter; got node=ImageNode\('t'\)"):
        graph.training_graph([loss, t])


@pytest.mark.parametrize("again", [lambda a, b: [a], lambda a, b: [a, b], lambda a, b: [b, a]])
@pytest.mark.parametrize("make", ["loss", "forward_loss"])
def test_no_loss_counts_twice(make: str, again: Any) -> None:
    y, t, u = trunk()
    a, b = (getattr(graph, make)(y, target, HUBER, "sum") for target in (t, u))
    ends = [*graph.training_graph([a, b]), *graph.training_graph(again(a, b))]
    with pytest.raises(
        ValueError, match=r"compile: one gradient counts twice; got two of '\w+ gradient( 0)?', expected"
    ):
        graph.compile([], gradients=ends)
    graph.compile([], gradients=[*graph.training_graph(a), *graph.training_graph(b)])


def test_a_loss_of_constants_trains_nothing() -> None:
    y, t = graph.ImageNode("y"), graph.ImageNode("t")
    y.stop_gradient = True
    loss = graph.forward_loss(y, t, HUBER, "sum")
    assert graph.training_graph(loss) == []
    loss.result_image.stop_gradient = True
    assert graph.training_graph(graph.linear(loss)) == []
