"""Trains a convolution and a batch normalization over the images of all processes.

    python across_processes.py                     one process with the whole batch
    mlx.launch -n 2 python across_processes.py     two processes with half of it each: the same losses

The data are random images, and the sums of two of their corners to be found.
"""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

import mpsfunc as mf

BATCH, STEPS = 16, 20


def loss(params: dict[str, mx.array], x: mx.array, target: mx.array, group: mx.distributed.Group) -> mx.array:
    """Mean over this process's images; the statistics are those of all."""
    y = mf.conv(x, params["w"], padding=1)
    y = mf.batch_norm(y, params["gamma"], params["beta"], group=group)
    y = mf.avg_pool(mx.maximum(y, 0), 4).reshape(len(x), -1)
    return mx.mean((y @ params["head"] - target) ** 2)


def main() -> list[float]:
    """Trains, and returns the loss of every step over the whole batch."""
    group = mx.distributed.init()
    mx.random.seed(0)  # the same parameters, and the same batch to take a part of, in all processes
    params = {
        "w": mx.random.normal((8, 3, 3, 1)) / 3,
        "gamma": mx.ones(8),
        "beta": mx.zeros(8),
        "head": mx.random.normal((32, 1)) / 6,
    }
    images = mx.random.normal((BATCH, 8, 8, 1))
    target = images[:, 0, 0] + images[:, 7, 7]
    mine = slice(group.rank(), BATCH, group.size())

    optimizer = optim.SGD(0.1)
    losses = []
    for _ in range(STEPS):
        here, grads = mx.value_and_grad(loss)(params, images[mine], target[mine], group)
        grads = nn.average_gradients(grads, group)
        params = optimizer.apply_gradients(grads, params)
        whole = mx.distributed.all_sum(here, group=group) / group.size()
        mx.eval(params, whole)  # what needs other processes must be evaluated in all of them
        losses.append(whole.item())
    if group.rank() == 0:
        print(f"loss: {losses[0]:.4f} at first, {losses[-1]:.4f} after {STEPS} steps")
    return losses


if __name__ == "__main__":
    main()
