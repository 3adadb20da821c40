"""The network of digits_network.py as a graph, whose gradient nodes are found by walking back from the loss."""

import functools

import mlx.core as mx
from digits_network import CHANNELS, Params, Statistics

import mpsfunc as mf
from mpsfunc import graph


@functools.cache
def training_step(batch: int) -> graph.Graph:
    """From parameters, images (n, 8, 8, 1) and labels (n, 1, 1) to each image's loss and the batch's statistics."""
    images, labels = graph.ImageNode("images"), graph.ImageNode("labels")
    x, statistics = images, []
    for i, channels in enumerate(CHANNELS[1:]):
        convolved = graph.conv(x, channels, 3, padding=1, bias=False, name=f"conv{i}")
        normalized = graph.batch_norm(convolved, name=f"norm{i}")
        x = graph.avg_pool(graph.relu(normalized), 2)
        statistics.append(normalized.result_state)
    scores = graph.fully_connected(x, 10, name="linear")
    loss = graph.loss(scores, labels, "softmax_cross_entropy", "sum", weight=1 / batch)
    return graph.compile((loss.loss_image, statistics), gradients=graph.training_graph(loss))


def graphed(params: Params, images: mx.array, labels: mx.array) -> tuple[mx.array, Statistics, Params]:
    """Loss, statistics and gradients, as `digits_network.autodiff` gives them."""
    w, b = params["linear"]["w"], params["linear"]["b"]
    given = {"linear": {"w": w[:, None, None], "b": b}}
    running = {}
    for i, block in enumerate(params["blocks"]):
        given |= {f"conv{i}": {"w": block["w"]}, f"norm{i}": {"gamma": block["gamma"], "beta": block["beta"]}}
        running[f"norm{i}"] = mf.bn_frozen(mx.zeros_like(block["beta"]), mx.ones_like(block["beta"]))

    inputs = {"images": images, "labels": labels.reshape(-1, 1, 1)}
    (values, norms), grads, _ = training_step(len(labels))(given, inputs, running)

    blocks = [grads[f"conv{i}"] | grads[f"norm{i}"] for i in range(len(norms))]
    linear = {"w": grads["linear"]["w"].reshape(w.shape), "b": grads["linear"]["b"]}
    return values.sum(), [(norm.mean, norm.var) for norm in norms], {"blocks": blocks, "linear": linear}
