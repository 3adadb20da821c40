"""Trains a small network and saves all of it every few steps; killed and started again, it goes on bit for bit.

    python resume.py training.safetensors --steps 200 --every 10

What makes the next step what it is: the parameters, the optimizer's state, the running statistics, MLX's random key
(for dropout) and the number of the step (for the batch). All of it is in the file, so a run that went on and one that
was never interrupted end with the same file. On a GPU that takes MPSFUNC_DETERMINISTIC=1.
"""

import argparse
import functools
import os
from typing import Any, TypedDict

import mlx.core as mx
import mlx.optimizers as optim

import mpsfunc as mf

Params = dict[str, mx.array]


class Saved(TypedDict):
    """All that the next step depends on."""

    step: int
    params: Params
    optimizer: dict[str, Any]
    running: mf.BatchNormState
    random: list[mx.array]


def batch_of(step: int) -> tuple[mx.array, mx.array]:
    """Random images (16, 12, 12, 1), each with a brighter quarter, and which quarter that is."""
    for_labels, for_images = mx.random.split(mx.random.key(step))
    labels = mx.random.randint(0, 4, (16,), key=for_labels)
    places = mx.arange(12) // 6
    bright = (2 * places[:, None] + places)[None] == labels[:, None, None]
    return mx.random.normal((16, 12, 12, 1), key=for_images) + bright[..., None], labels


def new_params() -> Params:
    """Weights before the first step."""
    return {
        "w": mx.random.normal((8, 3, 3, 1)) / 3,
        "gamma": mx.ones(8),
        "beta": mx.zeros(8),
        "head": mx.random.normal((4, 3, 3, 8)) / 9,
        "bias": mx.zeros(4),
    }


def loss_of(params: Params, images: mx.array, labels: mx.array) -> tuple[mx.array, mf.BatchNormState]:
    """Cross-entropy of a batch, and the batch's statistics."""
    x, state = mf.batch_norm_fwd(mf.conv(images, params["w"], padding=1), params["gamma"], params["beta"])
    x = mf.dropout(mf.avg_pool(mf.relu(x), 4), keep_probability=0.8)
    x = mf.fully_connected(x, params["head"], params["bias"])
    return mf.loss_value(x, labels.reshape(-1, 1, 1), "softmax_cross_entropy", "sum").mean(), state


def train(path: str, steps: int, every: int) -> None:
    """Trains up to a step, from the file if there is one."""
    optimizer = optim.SGD(0.05, momentum=0.9)
    if os.path.exists(path):
        saved = mf.load(path, Saved)
        params, running, first = saved["params"], saved["running"], saved["step"]
        optimizer.state = saved["optimizer"]
        high, low = map(int, saved["random"][0])
        mx.random.seed(high << 32 | low)
        print(f"going on from step {first}", flush=True)
    else:
        mx.random.seed(0)
        params, running, first = new_params(), mf.bn_frozen(mx.zeros(8), mx.ones(8)), 0
        optimizer.init(params)
    changing: list[Any] = [params, optimizer.state, mx.random.state]

    @functools.partial(mx.compile, inputs=changing, outputs=changing)
    def step(images: mx.array, labels: mx.array, running: mf.BatchNormState) -> tuple[mx.array, tuple[mx.array, ...]]:
        (loss, batch), grads = mx.value_and_grad(loss_of)(params, images, labels)
        params.update(optimizer.apply_gradients(grads, params))
        return loss, mf.bn_running(running, batch).arrays

    for number in range(first, steps):
        loss, arrays = step(*batch_of(number), running)
        running = running.with_arrays(arrays)
        mx.eval(loss, running.arrays, changing)
        if (number + 1) % every == 0 or number + 1 == steps:
            tree = {"step": number + 1, "params": params, "optimizer": optimizer.state, "running": running}
            mf.save(path, {**tree, "random": mx.random.state})
            print(f"step {number + 1}: loss {loss.item():.4f}, saved", flush=True)


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="where all of the training is saved")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps from one save to the next")
    options = parser.parse_args()
    train(options.path, options.steps, options.every)


if __name__ == "__main__":
    main()
