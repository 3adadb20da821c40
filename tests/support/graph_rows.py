"""A node of every filter beside the plain function that it stands for, and a network of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

import mpsfunc as mf
from mpsfunc import graph

SAME = mf.PaddingPolicy()
X = (2, 6, 5, 4)


class Row(NamedTuple):
    """What a filter is compared with.

    Fields:
        node: From image nodes to the filter, named "n".
        plain: From its parameters and arrays to the image, by plain functions.
        shapes: Of its sources.
        positive: Whether its sources must be.
    """

    node: Callable[..., graph.FilterNode]
    plain: Callable[..., mx.array]
    shapes: tuple[tuple[int, ...], ...] = (X,)
    positive: bool = False


def _pool(name: str) -> Row:
    filter, function = getattr(graph, name), getattr(mf, name)
    return Row(lambda x: filter(x, 3), lambda p, x: function(x, 3, padding=SAME, edge_mode="clamp"))


def _plain(
    name: str, *args: Any, shapes: tuple[tuple[int, ...], ...] = (X,), positive: bool = False, **how: Any
) -> Row:
    filter, function = getattr(graph, name), getattr(mf, name)
    return Row(
        lambda *images: filter(*images, *args, **how),
        lambda p, *images: function(*images, *args, **how),
        shapes,
        positive,
    )


TWO = (X, (2, 6, 5, 4))
ROWS = {
    "conv": Row(
        lambda x: graph.conv(x, 3, (3, 2), stride=2, neuron="relu", name="n"),
        lambda p, x: mf.conv(x, p["w"], p["b"], stride=2, padding=SAME, neuron="relu"),
    ),
    "conv, in groups": Row(
        lambda x: graph.conv(x, 6, 3, groups=2, bias=False, edge_mode="clamp", name="n"),
        lambda p, x: mf.conv(x, p["w"], padding=SAME, groups=2, edge_mode="clamp"),
    ),
    "depthwise_conv": Row(
        lambda x: graph.depthwise_conv(x, 3, multiplier=2, bias=False, name="n"),
        lambda p, x: mf.conv(x, p["w"], padding=SAME, groups=4),
    ),
    "conv_transpose": Row(
        lambda x: graph.conv_transpose(x, 3, 3, stride=2, name="n"),
        lambda p, x: mf.conv_transpose(x, p["w"], p["b"], stride=2, padding=SAME),
    ),
    "fully_connected": Row(
        lambda x: graph.fully_connected(x, 7, neuron="tanh", name="n"),
        lambda p, x: mf.fully_connected(x, p["w"], p["b"], neuron="tanh"),
    ),
    "batch_norm": Row(
        lambda x: graph.batch_norm(x, neuron="relu", eps=1e-3, name="n"),
        lambda p, x: mf.batch_norm(x, p["gamma"], p["beta"], neuron="relu", eps=1e-3),
    ),
    "instance_norm": Row(
        lambda x: graph.instance_norm(x, name="n"), lambda p, x: mf.instance_norm(x, p["gamma"], p["beta"])
    ),
    "group_norm": Row(
        lambda x: graph.group_norm(x, 2, beta=False, name="n"), lambda p, x: mf.group_norm(x, 2, p["gamma"])
    ),
    "prelu": Row(lambda x: graph.prelu(x, name="n"), lambda p, x: mf.prelu(x, p["slopes"])),
    "dropout": Row(
        lambda x: graph.dropout(x, keep_probability=0.7, seed=3, mask_stride=(1, 1, 0), name="n"),
        lambda p, x: mf.dropout(x, keep_probability=0.7, key=mx.random.key(3), mask_stride=(1, 1, 0)),
    ),
    "local_contrast_norm": Row(
        lambda x: graph.local_contrast_norm(x, 3), lambda p, x: mf.local_contrast_norm(x, 3, alpha=1.0)
    ),
    "cross_channel_norm": _plain("cross_channel_norm", 3, beta=0.5),
    "spatial_norm": _plain("spatial_norm", 3, beta=0.5),
    **{name: _pool(name) for name in ("avg_pool", "max_pool", "l2_pool")},
    **{
        name: _plain(name) for name in ("linear", "sigmoid", "hard_sigmoid", "absolute", "softplus", "softsign", "gelu")
    },
    "relu": _plain("relu", 0.25),
    "tanh": _plain("tanh", 2.0, 0.5),
    "elu": _plain("elu", 0.5),
    "relun": _plain("relun", 0.5, 1.0),
    "power": _plain("power", 1.0, 0.5, 2.5, positive=True),
    "exponential": _plain("exponential", 0.5, 0.25, 2.0),
    "logarithm": _plain("logarithm", 1.0, 0.5, 10.0, positive=True),
    "softmax": _plain("softmax"),
    "log_softmax": _plain("log_softmax", 1),
    "add": _plain("add", shapes=(X, (2, 1, 1, 4)), secondary_scale=-2.0, secondary_stride=(0, 0, 1)),
    "subtract": _plain("subtract", shapes=TWO),
    "multiply": _plain("multiply", shapes=TWO, bias=1.0),
    "divide": _plain("divide", shapes=TWO, positive=True),
    "add, within limits": Row(
        lambda x, y: graph.add(x, y, minimum=-0.5, maximum=0.5, clamp=True),
        lambda p, x, y: mf.add(x, y, minimum=-0.5, maximum=0.5),
        TWO,
    ),
    "upsample_nearest": _plain("upsample_nearest", 2),
    "upsample_bilinear": _plain("upsample_bilinear", (2, 3)),
    "resize_nearest": _plain("resize_nearest", (9, 4)),
    "resize_bilinear": _plain("resize_bilinear", (9, 4), coordinate="half_pixel"),
    "depth_to_space": _plain("depth_to_space", 2),
    "space_to_depth": Row(lambda x: graph.space_to_depth(x, 1), lambda p, x: mf.space_to_depth(x, 1)),
    "pad": _plain("pad", (1, 0, 2), (0, 2, 1), "clamp"),
    "concatenate": Row(
        lambda *images: graph.concatenate(images, pad_to_multiple=4),
        lambda p, *images: mf.concatenate(images, pad_to_multiple=4),
        (X, (2, 6, 5, 3), (2, 6, 5, 1)),
    ),
    "slice_channels": _plain("slice_channels", 1, 3),
    "spatial_mean": _plain("spatial_mean"),
    "reshape": Row(lambda x: graph.reshape(x, (3, 20, 2)), lambda p, x: x.reshape(2, 3, 20, 2)),
}


def numbers(shape: tuple[int, ...], seed: int, positive: bool = False) -> mx.array:
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
    labels = mx.array(np.random.default_rng(1).integers(0, 10, (n, 1, 1)).astype(np.int32))
    return {"x": numbers((n, 8, 8, 3), 0), "labels": labels}
