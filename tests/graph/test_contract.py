"""What a compiled network promises: it is pure, transformations take it, and its parameters begin as they should."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import mlx.optimizers
import numpy as np
import pytest
from support.graph_rows import SAME, X, close, numbers

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.core import launch
from mpsfunc.graph.nodes import FilterNode, Kind, Made


def two_convolutions() -> tuple[graph.Graph, dict[str, Any], dict[str, mx.array]]:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    y = graph.conv(graph.relu(graph.conv(x, 4, 3, name="a")), 3, 3, name="b")
    f = graph.compile(y, gradients=graph.training_graph(y, dy))
    inputs = {"x": numbers(X, 0), "dy": numbers((*X[:3], 3), 1)}
    return f, f.init(mx.random.key(0), inputs)[0], inputs


def plainly(p: dict[str, Any], x: mx.array, dy: mx.array) -> mx.array:
    y = mf.conv(mf.relu(mf.conv(x, p["a"]["w"], p["a"]["b"], padding=SAME)), p["b"]["w"], p["b"]["b"], padding=SAME)
    return (y * dy).sum()


# Purity -----------------------------------------------------------------------------------------------------------


def test_what_is_compiled_stays_as_it_is() -> None:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    size = [3, 3]
    conv = graph.conv(x, 4, size, name="c")
    node = graph.relu(conv, 0.1)
    ends = graph.training_graph(node, dy)
    f = graph.compile([node, ends[0]], gradients=ends)
    inputs = {"x": numbers(X, 0), "dy": numbers(X, 1)}
    params, states = f.init(mx.random.key(0), inputs)
    before = f(params, inputs, states)
    size[0] = 5
    node.configure(a=0.9)
    conv.options["stride"] = 2
    ends[0].trainable = False
    conv.sources = (dy,)
    close(f(params, inputs, states), before)


def test_gradients_follow_what_their_filter_is_when_compiled() -> None:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    node = graph.relu(x, 0.1)
    (end,) = graph.training_graph(node, dy)
    node.configure(a=0.7)
    got = graph.compile(end)({}, {"x": numbers(X, 0), "dy": numbers(X, 1)})[0]
    close(got, mf.neuron_grad(numbers(X, 1), numbers(X, 0), "relu", 0.7))


def test_only_what_is_asked_for_is_computed() -> None:
    f, params, inputs = two_convolutions()
    node = f.nodes[-1]
    assert isinstance(node, graph.GradientFilterNode)
    alone = graph.compile(node)
    with mock.patch.object(launch, "after", side_effect=AssertionError):
        dx, gradients, _ = alone(params, inputs)
    assert gradients == {}
    close(dx, mx.grad(plainly, argnums=1)(params, inputs["x"], inputs["dy"]))


# Transformations --------------------------------------------------------------------------------------------------


def test_a_step_maps_over_examples() -> None:
    f, params, inputs = two_convolutions()
    each = {name: array[:, None] for name, array in inputs.items()}
    got = mx.vmap(lambda x, dy: f(params, {"x": x, "dy": dy})[1])(each["x"], each["dy"])
    want = [mx.grad(plainly)(params, each["x"][i], each["dy"][i]) for i in range(2)]
    for name in ("a", "b"):
        close(got[name], {k: mx.stack([w[name][k] for w in want]) for k in ("w", "b")})


def test_a_step_maps_over_parameters() -> None:
    f, params, inputs = two_convolutions()
    many = mx.stack([params["b"]["w"], -params["b"]["w"]])

    def run(w: mx.array) -> Any:
        return f({**params, "b": {**params["b"], "w": w}}, inputs)[1]["a"]["w"]

    close(mx.vmap(run)(many), mx.stack([run(many[0]), run(many[1])]))


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile, mx.checkpoint], ids=["plain", "compile", "checkpoint"])
def test_a_step_is_differentiable(wrap: Any) -> None:
    f, params, inputs = two_convolutions()
    v = numbers(X, 5)

    def squared(x: mx.array, gradients: Any) -> mx.array:
        return gradients(x).square().sum()

    run = wrap(lambda x: f(params, {**inputs, "x": x})[1]["a"]["w"])
    want_of = lambda x: mx.grad(plainly)(params, x, inputs["dy"])["a"]["w"]  # noqa: E731
    close(mx.grad(lambda x: squared(x, run))(inputs["x"]), mx.grad(lambda x: squared(x, want_of))(inputs["x"]))
    close(mx.jvp(run, [inputs["x"]], [v])[1], mx.jvp(want_of, [inputs["x"]], [v])[1])


def test_a_step_runs_on_the_stream_that_compile_was_given() -> None:
    seen = []

    def forward(call: Any) -> Made:
        seen.append(mx.default_stream(mx.default_device()))
        return Made(call.images)

    stream = mx.new_stream(mx.cpu)
    node = FilterNode(Kind("probe", forward), [graph.ImageNode("x")], {}, name="probe")
    graph.compile(node, stream=stream)({}, {"x": mx.ones(1)})
    graph.compile(node)({}, {"x": mx.ones(1)})
    assert seen == [stream, mx.default_stream(mx.default_device())]


# Parameters and states ----------------------------------------------------------------------------------------------


def test_first_parameters_and_states() -> None:
    x = graph.ImageNode("x")
    y = graph.prelu(graph.batch_norm(graph.conv(x, 64, 3, name="c"), eps=0.5, name="n"), name="p")
    y = graph.dropout(graph.dropout(graph.conv(y, 64, 3, name="d"), name="d1"), name="d2")
    y = graph.dropout(y, seed=7, name="d3")
    f = graph.compile(y)
    params, states = f.init(mx.random.key(0), {"x": (1, 4, 4, 64)})
    assert abs(params["c"]["w"].std().item() / (2 / (9 * 64)) ** 0.5 - 1) < 0.02
    assert not mx.allclose(params["c"]["w"], params["d"]["w"])
    assert params["p"]["slopes"].tolist() == [0.25] * 64 and params["n"]["gamma"].tolist() == [1] * 64
    assert not params["c"]["b"].any() and not params["n"]["beta"].any()
    close(states["n"], mf.bn_frozen(mx.zeros(64), mx.ones(64), 0.5))
    assert not mx.array_equal(states["d1"], states["d2"])
    other = f.init(mx.random.key(1), {"x": (1, 4, 4, 64)})
    assert not mx.array_equal(other[0]["c"]["w"], params["c"]["w"])
    assert not mx.array_equal(other[1]["d1"], states["d1"])
    assert mx.array_equal(other[1]["d3"], mx.random.key(7))


def test_masks_of_a_dropout_come_from_its_seed_and_change_with_every_step() -> None:
    f = graph.compile(graph.dropout(graph.ImageNode("x"), keep_probability=0.5, seed=7, name="d"))
    _, states = f.init(mx.random.key(0), {"x": X})
    y, _, after = f({}, {"x": numbers(X, 0)}, states)
    close(y, mf.dropout(numbers(X, 0), keep_probability=0.5, seed=7))
    assert not mx.array_equal(f({}, {"x": numbers(X, 0)}, after)[0], y)


def test_gradients_have_the_dtype_of_their_parameters_and_states_pass_through() -> None:
    f, params, inputs = two_convolutions()
    params["a"]["w"] = params["a"]["w"].astype(mx.float16)
    extra = {"somebody else's": mx.ones(1)}
    _, gradients, states = f({**params, "unused": {}}, inputs, extra)
    assert gradients["a"]["w"].dtype == mx.float16 and gradients["b"]["w"].dtype == mx.float32
    assert states.keys() == extra.keys()


def test_parameters_without_gradients_stay() -> None:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    first = graph.conv(x, 4, 3, name="a")
    first.result_image.stop_gradient = True
    y = graph.conv(first, 3, 3, name="b")
    f = graph.compile(y, gradients=graph.training_graph(y, dy))
    inputs = {"x": numbers(X, 0), "dy": numbers((*X[:3], 3), 1)}
    params, states = f.init(mx.random.key(0), inputs)
    _, gradients, _ = f(params, inputs, states)
    updated = params | mlx.optimizers.SGD(0.1).apply_gradients(gradients, params)
    assert updated.keys() == params.keys() and updated["a"] is params["a"]
    close(updated["b"]["b"], params["b"]["b"] - 0.1 * gradients["b"]["b"])


def test_batch_normalization_hands_group_and_neuron_on() -> None:
    group = mx.distributed.init()
    node = graph.batch_norm(graph.ImageNode("x"), neuron="tanh", group=group, name="n")
    f = graph.compile(node, gradients=graph.training_graph(node, graph.ImageNode("dy")))
    inputs = {"x": numbers(X, 0), "dy": numbers(X, 1)}
    params, states = f.init(mx.random.key(0), inputs)
    with (
        mock.patch.object(mf, "batch_norm_fwd", wraps=mf.batch_norm_fwd) as forward,
        mock.patch.object(mf, "bn_stats_grad", wraps=mf.bn_stats_grad) as backward,
    ):
        f(params, inputs, states)
    assert forward.call_args.kwargs["group"] is backward.call_args.kwargs["group"] is group
    y, _, _ = graph.compile(node)(params, {"x": inputs["x"]}, states)
    close(y, mf.tanh(inputs["x"] / (1 + 1e-5) ** 0.5))


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda x: graph.instance_norm(x, name="n"), ("dgamma", "dbeta")),
        (lambda x: graph.group_norm(x, 2, name="n"), ("dgamma", "dbeta")),
        (lambda x: graph.batch_norm(x, name="n"), ("dgamma", "dbeta")),
        (lambda x: graph.conv_transpose(x, 4, 3, name="n"), ("dw", "db")),
    ],
)
def test_states_of_gradient_nodes_hold_the_gradients(make: Any, fields: tuple[str, ...]) -> None:
    node = make(graph.ImageNode("x"))
    (end,) = graph.training_graph(node, graph.ImageNode("dy"))
    f = graph.compile({"before": node.result_state, "after": end.result_state}, gradients=[end])
    inputs = {"x": numbers(X, 0), "dy": numbers(X, 1)}
    params, states = f.init(mx.random.key(0), inputs)
    got, gradients, _ = f(params, inputs, states)
    for field, (_, gradient) in zip(fields, gradients["n"].items(), strict=True):
        assert not getattr(got["before"], field).any()
        kept = getattr(got["after"], field)
        close(kept.sum(axis=0) if kept.ndim > gradient.ndim else kept, gradient)


# Outputs ------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


def test_outputs_come_in_the_form_that_was_given() -> None:
    x = graph.ImageNode("x")
    node = graph.linear(x, 2.0)
    for form in ([x, node], (x, node), Pair(x, node), {"x": x, "y": [node]}):
        got, _, _ = graph.compile(form)({}, {"x": mx.ones(2)})
        assert type(got) is type(form)
        want = {"x": mx.ones(2), "y": [2 * mx.ones(2)]} if isinstance(form, dict) else [mx.ones(2), 2 * mx.ones(2)]
        close(list(got) if isinstance(got, tuple) else got, want)


def test_names_of_inputs_and_filters_do_not_mix() -> None:
    f = graph.compile(graph.max_pool(graph.max_pool(graph.ImageNode("max_pool"), 2), 2))
    assert f.shapes({"max_pool": X}) == {"max_pool": X, "max_pool 2": (2, 3, 3, 4), "max_pool 3": (2, 2, 2, 4)}
    assert str(f.draw()).splitlines()[1:] == ["max_pool 2    <- max_pool", "max_pool 3    <- max_pool 2"]


def test_inputs_by_shape_dtype_or_array() -> None:
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    f = graph.compile(graph.loss(graph.fully_connected(x, 10, name="c"), labels, "softmax_cross_entropy", "sum"))
    for shape in ((4, 8, 8, 3), [4, 8, 8, 3], tuple(np.array([4, 8, 8, 3])), mx.ones((4, 8, 8, 3))):
        for given in (((4, 1, 1), mx.int32), mx.zeros((4, 1, 1), mx.int32)):
            assert f.shapes({"x": shape, "labels": given})["loss"] == (4, 1, 1, 10)
