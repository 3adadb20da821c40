"""Networks of nodes: what they compute, and what the walk back makes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.optimizers
import numpy as np
import pytest
from mlx.utils import tree_flatten
from support.graph_rows import SAME, X, batch, close, numbers, plainly, residual

import mpsfunc as mf
from mpsfunc import graph

# Whole networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_agrees_with_autodiff(compiled: bool, device: mx.Device) -> None:
    _, loss = residual()
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    params, states = step.init(mx.random.key(0), batch())
    run = mx.compile(step) if compiled else step
    value, gradients, after = run(params, batch(), states)
    want, grads = mx.value_and_grad(plainly)(params, **batch(), key=states["drop"])
    close(value.sum(), want)
    close(gradients, grads)
    assert after.keys() == states.keys() == {"bn1", "bn2", "drop"}
    assert not mx.array_equal(after["drop"], states["drop"])


def test_a_network_in_half_precision_by_choice_only() -> None:
    _, loss = residual()
    ends = graph.training_graph(loss)
    for chosen, expected in ((None, mx.float32), (mx.float16, mx.float16)):
        f = graph.compile([loss, loss.loss_image], gradients=ends, format=chosen)
        params, states = f.init(mx.random.key(0), batch())
        (gradient, value), gradients, _ = f(params, batch(), states)
        assert gradient.dtype == expected and value.dtype == mx.float32
        assert {g.dtype for _, g in tree_flatten(gradients)} == {mx.float32}
        want = mx.grad(plainly)(params, **batch(), key=states["drop"])
        close(gradients, want, 1e-5 if chosen is None else 3e-2)


def test_optimizers_take_the_gradients_and_running_statistics_move() -> None:
    scores, loss = residual()
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    params, states = step.init(mx.random.key(0), batch())
    optimizer = mlx.optimizers.SGD(0.1, momentum=0.9)
    before, history = states, []
    for _ in range(15):
        value, gradients, states = step(params, batch(), states)
        params = optimizer.apply_gradients(gradients, params)
        history.append(value.sum().item())
    assert history[-1] < 0.5 * history[0]
    # The network for inference has the same names, no dropout, and takes the running statistics.
    predict = graph.compile(residual(training=False)[0])
    y, gradients, after = predict(params, {"x": batch()["x"]}, states)
    assert gradients == {} and y.shape == (4, 1, 1, 10)
    close(after["bn1"], states["bn1"])
    assert not mx.allclose(states["bn1"].mean, before["bn1"].mean)
    stem = mf.conv(batch()["x"], params["stem"]["w"], params["stem"]["b"], padding=SAME)
    running = mf.bn_running(states["bn1"], mf.bn_stats(stem), 0.1)
    close(step(params, batch(), states)[2]["bn1"], running)


def test_calls_change_nothing() -> None:
    _, loss = residual()
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    params, states = step.init(mx.random.key(0), batch())
    first, again = step(params, batch(), states), step(params, batch(), states)
    for (name, a), (_, b) in zip(tree_flatten(first), tree_flatten(again), strict=True):
        assert not isinstance(a, mx.array) or mx.array_equal(a, b), name


@pytest.mark.parametrize("compiled", [False, True])
def test_the_explicit_chain_needs_no_more_memory_than_autodiff(compiled: bool, on_cpu: mx.Device) -> None:
    x, target = graph.ImageNode("x"), graph.ImageNode("target")
    image: Any = x
    for i in range(6):
        image = graph.relu(graph.batch_norm(graph.conv(image, 16, 3, name=f"conv{i}"), name=f"bn{i}"))
    loss = graph.loss(image, target, "mean_squared_error", "sum")
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    shape = (8, 32, 32, 16)
    inputs = {"x": numbers(shape, 0), "target": numbers(shape, 1)}
    params, states = step.init(mx.random.key(0), inputs)

    def plain(
        params: dict[str, Any], inputs: dict[str, mx.array], states: dict[str, Any]
    ) -> tuple[mx.array, list[Any]]:
        y, after = inputs["x"], []
        for i in range(6):
            conv, bn = params[f"conv{i}"], params[f"bn{i}"]
            y = mf.conv(y, conv["w"], conv["b"], padding=1)
            y, state = mf.batch_norm_fwd(y, bn["gamma"], bn["beta"])
            after.append(mf.bn_running(states[f"bn{i}"], state))
            y = mf.relu(y)
        return mf.loss_value(y, inputs["target"], "mean_squared_error", "sum").sum(), after

    def peak(run: Any) -> float:
        """In images."""
        mx.eval(params, states, inputs)
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(run(params, inputs, states))
        return (mx.get_peak_memory() - before) / inputs["x"].nbytes

    # Beyond its limit MLX makes no array before it has let go of those that it can; how far it makes them ahead
    # otherwise depends on the moment, by several images. An array too many in each layer would be six.
    limit = mx.set_memory_limit(1)
    try:
        runs = [mx.compile(run) if compiled else run for run in (step, mx.value_and_grad(plain))]
        ours, autodiff = np.median([[peak(run) for run in runs] for _ in range(9)], axis=0)
    finally:
        mx.set_memory_limit(limit)
    assert ours <= autodiff + 0.5, (ours, autodiff)


# The walk back ----------------------------------------------------------------------------------------------------


def test_gradients_of_an_image_that_several_filters_read_are_summed() -> None:
    x = graph.ImageNode("x")
    y = graph.multiply(graph.add(graph.tanh(x), graph.absolute(x)), x)
    (end,) = graph.training_graph(y, graph.ImageNode("dy"))
    sums = [node.name for node in graph.compile(end).nodes if node.gradient_of is x and type(node) is graph.FilterNode]
    assert sums == ["x gradients"] * 2
    a, dy = numbers(X, 0), numbers(X, 1)
    dx = graph.compile(end)({}, {"x": a, "dy": dy})[0]
    close(dx, mx.grad(lambda x: ((mf.tanh(x) + mf.absolute(x)) * x * dy).sum())(a))


def test_one_image_twice() -> None:
    x = graph.ImageNode("x")
    (end,) = graph.training_graph(graph.multiply(x, x), graph.ImageNode("dy"))
    close(graph.compile(end)({}, {"x": numbers(X, 0), "dy": numbers(X, 1)})[0], 2 * numbers(X, 0) * numbers(X, 1))


def test_without_a_source_gradient_the_result_is_its_own() -> None:
    x = graph.ImageNode("x")
    (end,) = graph.training_graph(graph.linear(x, 3.0))
    close(graph.compile(end)({}, {"x": numbers(X, 0)})[0], 9 * numbers(X, 0))


def test_stop_gradient_ends_the_walk_but_not_the_training_of_weights() -> None:
    x = graph.ImageNode("x")
    first = graph.relu(graph.conv(x, 3, 3, name="first"))
    first.result_image.stop_gradient = True
    last = graph.sigmoid(graph.conv(graph.tanh(first), 2, 3, name="last"))
    middle = graph.conv(first, 2, 3, name="middle")
    ends = graph.training_graph(graph.add(last, middle), graph.ImageNode("dy"))
    assert [end.name for end in ends] == ["middle gradient", "last gradient"]
    f = graph.compile(last, gradients=ends)
    inputs = {"x": numbers(X, 0), "dy": numbers((2, 6, 5, 2), 1)}
    params, states = f.init(mx.random.key(0), inputs)

    def plain(p: dict[str, Any]) -> mx.array:
        def conv(x: mx.array, name: str) -> mx.array:
            return mf.conv(x, p[name]["w"], p[name]["b"], padding=SAME)

        trunk = mx.stop_gradient(mf.relu(conv(inputs["x"], "first")))
        return ((mf.sigmoid(conv(mf.tanh(trunk), "last")) + conv(trunk, "middle")) * inputs["dy"]).sum()

    want = mx.grad(plain)(params)
    assert not want.pop("first")["w"].any()
    close(f(params, inputs, states)[1], want)


def test_a_loss_may_be_all_there_is() -> None:
    x, t = graph.ImageNode("x"), graph.ImageNode("t")
    loss = graph.loss(x, t, "huber", "sum")
    assert graph.training_graph(loss) == [loss]
    x.stop_gradient = True
    assert graph.training_graph(loss) == []
    conv = graph.conv(t, 3, 1, name="c")
    conv.result_image.stop_gradient = True
    assert graph.training_graph(graph.loss(conv, t, "huber", "sum")) == []


def test_targets_are_constants() -> None:
    x = graph.ImageNode("x")
    target = graph.conv(x, 3, 1, name="target")
    loss = graph.loss(graph.conv(x, 3, 1, name="c"), target, "huber", "sum")
    with pytest.raises(ValueError, match="loss: targets and weights have no gradient; got 'target' with parameters"):
        graph.training_graph(loss)
    target.result_image.stop_gradient = True
    (end,) = graph.training_graph(loss)
    f = graph.compile(loss.loss_image, gradients=[end])
    params, _ = f.init(mx.random.key(0), {"x": X})

    def plain(p: dict[str, Any]) -> mx.array:
        y, t = (mf.conv(numbers(X, 0), p[name]["w"], p[name]["b"]) for name in ("c", "target"))
        return mf.loss_value(y, mx.stop_gradient(t), "huber", "sum").sum()

    close(f(params, {"x": numbers(X, 0)})[1]["c"], mx.grad(plain)(params)["c"])


def test_the_handler_sees_every_gradient_node_and_may_configure_it() -> None:
    x = graph.ImageNode("x")
    conv = graph.conv(x, 3, 3, name="c")
    pool = graph.avg_pool(conv, 3, stride=2)
    seen: list[tuple[Any, ...]] = []

    def handler(node: Any, of: Any, source: Any, gradient: Any) -> None:
        seen.append((node.of, of, source, gradient))
        if of is pool:
            node.configure(zero_pad=1)
        else:
            node.trainable = False

    dy = graph.ImageNode("dy")
    (end,) = graph.training_graph(pool, dy, handler)
    assert seen[0] == (pool, pool, conv.result_image, dy) and seen[1][:3] == (conv, conv, x)
    f = graph.compile([pool, seen[1][3]], gradients=[end])
    params, _ = f.init(mx.random.key(0), {"x": X, "dy": (2, 3, 3, 3)})
    (y, got), gradients, _ = f(params, {"x": numbers(X, 0), "dy": mx.ones((2, 3, 3, 3))})
    assert gradients == {} and pool.options["zero_pad"] == 0
    how: dict[str, Any] = {"stride": 2, "padding": SAME, "edge_mode": "clamp"}
    convolved = mf.conv(numbers(X, 0), params["c"]["w"], params["c"]["b"], padding=SAME)
    close(y, mf.avg_pool(convolved, 3, **how))
    close(got, mf.avg_pool_grad(mx.ones(y.shape), mf.avg_pool_state((2, 6, 5, 3), 3, zero_pad=1, **how)))
    assert not mx.allclose(got, mf.avg_pool_grad(mx.ones(y.shape), mf.avg_pool_state((2, 6, 5, 3), 3, **how)))


def test_gradient_nodes_by_hand() -> None:
    x, dy = graph.ImageNode("x"), graph.ImageNode("dy")
    conv = graph.conv(x, 3, 3, name="c")
    node = conv.gradient_filter(dy)
    f = graph.compile({"dx": node, "state": node.result_state}, gradients=[node])
    inputs = {"x": numbers(X, 0), "dy": numbers((2, 6, 5, 3), 1)}
    params, _ = f.init(mx.random.key(0), inputs)
    got, gradients, _ = f(params, inputs)
    _, state = mf.conv_fwd(inputs["x"], params["c"]["w"], params["c"]["b"], padding=SAME)
    dx, state = mf.conv_grad(inputs["dy"], inputs["x"], params["c"]["w"], state)
    close(got, {"dx": dx, "state": state})
    close(gradients, {"c": {"w": state.dw, "b": state.db}})
    listed = conv.gradient_filter([dy])
    assert listed.sources == node.sources and [n.sources for n in conv.gradient_filters((dy,))] == [node.sources]
    both = graph.add(conv, conv)
    assert [n.position for n in both.gradient_filters([conv])] == [0, 1]
    for wrong in ([], [dy, dy]):
        with pytest.raises(ValueError, match=f"c: gradient: its results are one; got {len(wrong)} gradients, expected"):
            conv.gradient_filters(wrong)
    with pytest.raises(TypeError, match=r"c: gradient\[0\] is not a node; got 3"):
        conv.gradient_filter([3])
    with pytest.raises(ValueError, match="2 sources have a gradient each; got gradient_filter"):
        both.gradient_filter(dy)
    for ask in (node.gradient_filter, node.gradient_filters):
        with pytest.raises(TypeError, match="c gradient: a gradient node has no gradient node"):
            ask(dy)
    with pytest.raises(TypeError, match="a gradient node has no gradient node"):
        graph.training_graph(node)


def test_a_state_sizes_a_transposed_convolution() -> None:
    x = graph.ImageNode("x")
    down = graph.conv(x, 3, 3, stride=2, name="down")
    up = graph.conv_transpose(down, 4, 3, stride=2, state=down, name="up")
    f = graph.compile(up, gradients=graph.training_graph(up, graph.ImageNode("dy")))
    inputs = {"x": numbers(X, 0), "dy": numbers(X, 1)}
    params, _ = f.init(mx.random.key(0), inputs)
    y, gradients, _ = f(params, inputs)

    def plain(p: dict[str, Any]) -> mx.array:
        z, state = mf.conv_fwd(inputs["x"], p["down"]["w"], p["down"]["b"], stride=2, padding=SAME)
        return mf.conv_transpose(z, p["up"]["w"], p["up"]["b"], stride=2, state=state)

    assert y.shape == X
    close(y, plain(params))
    close(gradients, mx.grad(lambda p: (plain(p) * inputs["dy"]).sum())(params))


def test_shared_parameters_get_the_sum() -> None:
    x = graph.ImageNode("x")
    first = graph.conv(x, 4, 3, name="first", params="shared")
    second = graph.conv(graph.relu(first), 4, 3, name="second", params="shared")
    f = graph.compile(second, gradients=graph.training_graph(second, graph.ImageNode("dy")))
    inputs = {"x": numbers(X, 0), "dy": numbers(X, 1)}
    params, _ = f.init(mx.random.key(0), inputs)
    assert params.keys() == {"shared"}

    def plain(p: dict[str, Any]) -> mx.array:
        def conv(x: mx.array) -> mx.array:
            return mf.conv(x, p["shared"]["w"], p["shared"]["b"], padding=SAME)

        return (conv(mf.relu(conv(inputs["x"]))) * inputs["dy"]).sum()

    close(f(params, inputs)[1], mx.grad(plain)(params))


@pytest.mark.parametrize("when", ["automatic", "always", "never"])
@pytest.mark.parametrize("trained", [False, True])
def test_when_batch_normalization_takes_statistics(when: str, trained: bool) -> None:
    node = graph.batch_norm(graph.ImageNode("x"), name="bn", statistics=when, momentum=0.5)
    f = graph.compile(node, gradients=graph.training_graph(node) if trained else ())
    x = 3 * numbers(X, 0) + 1
    params, states = f.init(mx.random.key(0), {"x": X})
    states["bn"] = mf.bn_frozen(mx.ones(4), mx.full(4, 4.0))
    y, gradients, after = f(params, {"x": x}, states)
    taken = when == "always" or (when == "automatic" and trained)
    close(y, mf.batch_norm(x) if taken else (x - 1) / (4 + 1e-5) ** 0.5)
    close(after["bn"], mf.bn_running(states["bn"], mf.bn_stats(x), 0.5) if taken else states["bn"])
    if trained and not taken:
        close(gradients["bn"]["beta"], y.sum(axis=(0, 1, 2)), 1e-4)
