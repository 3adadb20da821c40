"""The node of a YOLO loss: its value and gradient beside the function, and networks that it trains beside autodiff."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from generic.ops.yolo_loss import ANCHORS, HOW, RESCORED, ROWS
from support.graph_rows import SAME, close, numbers

import mpsfunc as mf
from mpsfunc import graph

LABELS = mx.array((ROWS, ROWS[::-1]))
ARRAYS = {"x": numbers((2, 4, 4, 3), 0), "labels": LABELS}
OTHERS: list[dict[str, Any]] = [*HOW.values(), RESCORED]


def detector(**how: Any) -> graph.FilterNode:
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    stem = graph.relu(graph.conv(x, 6, 3, stride=2, name="stem"))
    return graph.yolo_loss(graph.conv(stem, 14, 1, name="head"), labels, ANCHORS, name="detected", **how)


def predicted(p: dict[str, Any], x: mx.array) -> mx.array:
    stem = mf.relu(mf.conv(x, p["stem"]["w"], p["stem"]["b"], stride=2, padding=SAME))
    return mf.conv(stem, p["head"]["w"], p["head"]["b"])


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("divided", [False, True])
def test_it_is_its_own_gradient_node(how: dict[str, Any], divided: bool, device: mx.Device) -> None:
    y, labels = graph.ImageNode("y"), graph.ImageNode("labels")
    node = graph.yolo_loss(y, labels, ANCHORS, divided=divided, **how)
    arrays = {"y": numbers((2, 2, 2, 14), 1), "labels": LABELS}
    (gradient, value, state), _, _ = graph.compile([node, node.loss_image, node.result_state])({}, arrays)
    right, made = mf.yolo_loss_fwd(arrays["y"], LABELS, ANCHORS, **how)
    exact = mx.grad(lambda y: mf.yolo_loss(y, LABELS, ANCHORS, **how).sum())(arrays["y"])
    passed = exact if divided or how.get("reduction") != "mean" else exact * (2 * 2 * 14)
    close([gradient, value, state], [passed, right, made])
    with pytest.raises(TypeError, match="a loss node is its own gradient node"):
        node.gradient_filters(graph.ImageNode("dy"))


@pytest.mark.parametrize("how", OTHERS)
def test_a_trained_network_has_the_gradients_of_autodiff(how: dict[str, Any], device: mx.Device) -> None:
    node = detector(divided=True, **how)
    f = graph.compile(node.loss_image, gradients=graph.training_graph(node))
    params, _ = f.init(mx.random.key(0), ARRAYS)

    def plain(p: dict[str, Any]) -> mx.array:
        return mf.yolo_loss(predicted(p, ARRAYS["x"]), LABELS, ANCHORS, **how)

    for run in (f, mx.compile(f)):
        value, gradients, _ = run(params, ARRAYS)
        close(value, plain(params))
        close(gradients, mx.grad(lambda p: plain(p).sum())(params), 1e-4)


def test_beside_another_loss(device: mx.Device) -> None:
    """The gradients of both add up."""
    node = detector()
    other = graph.loss(node.sources[0], graph.ImageNode("t"), "huber", "sum")
    f = graph.compile(node.loss_image, gradients=graph.training_graph([node, other]))
    arrays = ARRAYS | {"t": numbers((2, 2, 2, 14), 5)}
    params, _ = f.init(mx.random.key(0), arrays)

    def plain(p: dict[str, Any]) -> mx.array:
        y = predicted(p, arrays["x"])
        return mf.yolo_loss(y, LABELS, ANCHORS).sum() + mf.loss_value(y, arrays["t"], "huber", "sum").sum()

    close(f(params, arrays)[1], mx.grad(plain)(params), 1e-4)


def test_wrong_arguments_are_refused_when_it_runs() -> None:
    for how, words in (({"divided": 1}, "divided is not a bool"), ({"xy_loss": "hinge"}, "unknown xy_loss")):
        f = graph.compile(detector(**how))
        params, _ = graph.compile(detector()).init(mx.random.key(0), ARRAYS)
        with pytest.raises((TypeError, ValueError), match=f"yolo_loss: {words}; got"):
            f(params, ARRAYS)
