"""A small network for 8x8 digits, and its gradients in two ways: by ``mx.grad``, and by hand.

Three blocks of convolution, batch normalization, ReLU and average pooling halve the image to 1x1; a linear layer scores
the ten digits. The parameters are a tree of arrays, so MLX's transformations and optimizers take them as they are.
"""

from typing import Any

import mlx.core as mx

import mpsfunc as mf

CHANNELS = (1, 32, 64, 128)
Params = dict[str, Any]
Statistics = list[tuple[mx.array, mx.array]]  # mean and variance after each convolution


def new_params(seed: int) -> Params:
    """Weights (o, kh, kw, i) with He's spread; scales are one and shifts zero."""
    keys = mx.random.split(mx.random.key(seed), len(CHANNELS))
    blocks = [
        {
            "w": mx.random.normal((o, 3, 3, i), scale=(2 / (9 * i)) ** 0.5, key=key),
            "gamma": mx.ones(o),
            "beta": mx.zeros(o),
        }
        for i, o, key in zip(CHANNELS[:-1], CHANNELS[1:], keys[:-1], strict=True)
    ]
    w = mx.random.normal((10, CHANNELS[-1]), scale=CHANNELS[-1] ** -0.5, key=keys[-1])
    return {"blocks": blocks, "linear": {"w": w, "b": mx.zeros(10)}}


def new_averages() -> Statistics:
    """Running averages of the statistics, before the first batch."""
    return [(mx.zeros(c), mx.ones(c)) for c in CHANNELS[1:]]


def updated(averages: Statistics, batch: Statistics, keep: float = 0.9) -> Statistics:
    """The running averages after one more batch."""
    return [
        (keep * mean + (1 - keep) * batch_mean, keep * var + (1 - keep) * batch_var)
        for (mean, var), (batch_mean, batch_var) in zip(averages, batch, strict=True)
    ]


def predict(params: Params, averages: Statistics, images: mx.array) -> mx.array:
    """The most likely digit of each image; batch normalization uses the running averages."""
    return scores(params, averages, images).argmax(axis=1)


def scores(params: Params, averages: Statistics, images: mx.array) -> mx.array:
    """The score of each digit for each image (n, 10), by the running averages."""
    x = images
    for block, (mean, var) in zip(params["blocks"], averages, strict=True):
        x = mf.conv(x, block["w"], padding=1)
        x = mf.bn_normalize(x, mf.bn_frozen(mean, var), block["gamma"], block["beta"])
        x = mf.avg_pool(mx.maximum(x, 0), 2)
    return _scores(params, x)


def loss(params: Params, images: mx.array, labels: mx.array) -> tuple[mx.array, Statistics]:
    """Mean cross-entropy of a batch, and the batch's statistics."""
    x, statistics = images, []
    for block in params["blocks"]:
        x = mf.conv(x, block["w"], padding=1)
        x, state = mf.batch_norm_fwd(x, block["gamma"], block["beta"])
        x = mf.avg_pool(mx.maximum(x, 0), 2)
        statistics.append((state.mean, state.var))
    return cross_entropy(_scores(params, x), labels), statistics


def autodiff(params: Params, images: mx.array, labels: mx.array) -> tuple[mx.array, Statistics, Params]:
    """Loss, statistics and gradients, which MLX finds by running the operations' derivative rules."""
    (value, statistics), grads = mx.value_and_grad(loss)(params, images, labels)
    return value, statistics, grads


def explicit(params: Params, images: mx.array, labels: mx.array) -> tuple[mx.array, Statistics, Params]:
    """The same three without any autodiff, as on MPS: each forward function leaves a state for its gradient."""
    x, tape = images, []
    for block in params["blocks"]:
        convolved, conv_state = mf.conv_fwd(x, block["w"], padding=1)
        bn_state = mf.bn_stats(convolved)
        normalized = mf.bn_normalize(convolved, bn_state, block["gamma"], block["beta"])
        pooled, pool_state = mf.avg_pool_fwd(mx.maximum(normalized, 0), 2)
        tape.append((block, x, conv_state, convolved, bn_state, normalized, pool_state))
        x = pooled

    logits = _scores(params, x)
    dscores = (mx.softmax(logits, axis=1) - mx.eye(10)[labels]) / len(labels)
    linear = {"w": dscores.T @ x.reshape(len(labels), -1), "b": dscores.sum(axis=0)}
    dy = (dscores @ params["linear"]["w"]).reshape(x.shape)

    blocks: list[Params] = []
    for block, x, conv_state, convolved, bn_state, normalized, pool_state in reversed(tape):
        dy = mx.where(normalized > 0, mf.avg_pool_grad(dy, pool_state), 0)
        bn_state = mf.bn_stats_grad(dy, convolved, bn_state, block["gamma"], block["beta"])
        dy = mf.bn_grad(dy, convolved, bn_state, block["gamma"], block["beta"])
        conv_state = mf.conv_grad_weights(dy, x, conv_state)
        dy = mf.conv_grad_input(dy, block["w"], conv_state)
        blocks.insert(0, {"w": conv_state.dw, "gamma": bn_state.dgamma, "beta": bn_state.dbeta})

    statistics = [(bn_state.mean, bn_state.var) for _, _, _, _, bn_state, _, _ in tape]
    return cross_entropy(logits, labels), statistics, {"blocks": blocks, "linear": linear}


def _scores(params: Params, x: mx.array) -> mx.array:
    return x.reshape(x.shape[0], -1) @ params["linear"]["w"].T + params["linear"]["b"]


def cross_entropy(scores: mx.array, labels: mx.array) -> mx.array:
    """Mean cross-entropy of scores."""
    chosen = mx.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    return (mx.logsumexp(scores, axis=1) - chosen).mean()
