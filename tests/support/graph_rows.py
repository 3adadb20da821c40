"""A node of every filter beside the plain function that it stands for, by the records, and a network of many."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from generic.opinfo import Node
from generic.ops import OPS
from mlx.utils import tree_flatten

import mpsfunc as mf
from mpsfunc import graph

SAME = mf.PaddingPolicy()
X = (2, 6, 5, 4)
ROWS = {
    **{
        label if label in vars(graph) else ", ".join(filter(None, (op.name, label))): node
        for op in OPS.values()
        for label, node in op.nodes.items()
    },
    "crop": Node(lambda x: graph.crop(x, (3, 2), (2, 1)), lambda p, x: x[:, 2:5, 1:3]),
    "crop, of corners": Node(lambda x: graph.crop(x, 4), lambda p, x: x[:, :4, :4]),
    "slice_rows": Node(lambda x: graph.slice_rows(x, 1, 4), lambda p, x: x[:, 1:4]),
    "slice_columns": Node(lambda x: graph.slice_columns(x, 3, 5), lambda p, x: x[:, :, 3:5]),
    "reshape": Node(lambda x: graph.reshape(x, (3, 20, 2)), lambda p, x: x.reshape(2, 3, 20, 2)),
}


def numbers(shape: tuple[int, ...], seed: int, positive: bool = False) -> mx.array:
    """Random numbers by shape and seed."""
    drawn = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return mx.array(np.abs(drawn) + 0.5 if positive else drawn)


def close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Trees of the same form and, to rounding, the same arrays."""
    got, want = dict(tree_flatten(got)), dict(tree_flatten(want))
    assert got.keys() == want.keys()
    for name, expected in want.items():
        if not isinstance(expected, mx.array):
            assert got[name] == expected, name
            continue
        assert got[name].dtype == expected.dtype, name
        scale = max(0.02, float(mx.abs(expected).max())) if expected.size else 1.0
        np.testing.assert_allclose(
            np.array(got[name]), np.array(expected), rtol=0, atol=tolerance * scale, err_msg=name
        )


def residual(training: bool = True) -> tuple[graph.FilterNode, graph.FilterNode]:
    """A residual block, an inception block with a concatenation, batch normalization, dropout and a loss."""
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    stem = graph.conv(x, 8, 3, name="stem")
    body = graph.relu(graph.batch_norm(stem, name="bn1"))
    body = graph.conv(body, 8, 3, bias=False, name="conv2")
    block = graph.relu(graph.add(graph.batch_norm(body, name="bn2"), stem))
    wide = graph.conv(block, 4, 5, stride=2, neuron="sigmoid", name="wide")
    narrow = graph.conv(block, 4, 1, stride=2, name="narrow")
    pooled = graph.max_pool(block, 2)
    mixed = graph.concatenate([wide, narrow, pooled])
    if training:
        mixed = graph.dropout(mixed, p=0.2, seed=5, name="drop")
    scores = graph.fully_connected(graph.spatial_mean(graph.avg_pool(mixed, 2)), 10, name="scores")
    return scores, graph.loss(scores, labels, "softmax_cross_entropy", "sum", weight=0.25)


def plainly(params: dict[str, Any], x: mx.array, labels: mx.array, key: mx.array) -> mx.array:
    """The same by plain functions."""
    p = params
    stem = mf.conv(x, p["stem"]["w"], p["stem"]["b"], padding=SAME)
    body = mf.relu(mf.batch_norm(stem, p["bn1"]["gamma"], p["bn1"]["beta"]))
    body = mf.conv(body, p["conv2"]["w"], padding=SAME)
    block = mf.relu(mf.add(mf.batch_norm(body, p["bn2"]["gamma"], p["bn2"]["beta"]), stem))
    wide = mf.conv(block, p["wide"]["w"], p["wide"]["b"], stride=2, padding=SAME, neuron="sigmoid")
    narrow = mf.conv(block, p["narrow"]["w"], p["narrow"]["b"], stride=2, padding=SAME)
    pooled = mf.max_pool(block, 2, padding=SAME, edge_mode="clamp")
    mixed = mf.dropout(mf.concatenate([wide, narrow, pooled]), keep_probability=0.8, key=key)
    mean = mf.spatial_mean(mf.avg_pool(mixed, 2, padding=SAME, edge_mode="clamp"))
    scores = mf.fully_connected(mean, p["scores"]["w"], p["scores"]["b"])
    return mf.loss_value(scores, labels, "softmax_cross_entropy", "sum", weight=0.25).sum()


def batch(n: int = 4) -> dict[str, mx.array]:
    """Inputs of the networks below."""
    labels = mx.array(np.random.default_rng(1).integers(0, 10, (n, 1, 1)).astype(np.int32))
    return {"x": numbers((n, 8, 8, 3), 0), "labels": labels}
