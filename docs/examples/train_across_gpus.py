"""Trains a residual network on random images, data-parallel: each process has its own part of every batch.

    python train_across_gpus.py                                        one process
    mlx.launch --backend nccl -n 2 python train_across_gpus.py         two GPUs of this machine
    mlx.launch -n 2 python train_across_gpus.py                        two processes on the CPU

On a GPU a step is one compiled function, with the average of the gradients in it. Each process has statistics of batch
normalization of its own, unless --synchronised is there, and one that dies or stops ends the others. The network is
ResNet-50 on a GPU, and a small one on a CPU.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from tqdm import tqdm

if __name__ == "__main__":
    # How much memory launches may hold that wait for the GPU, in percent, which is read when mpsfunc is imported. With
    # less, two GPUs were slower.
    os.environ.setdefault("MPSFUNC_RUN_AHEAD", "50")
import mpsfunc as mf  # noqa: E402  # it reads the variable

RESNET_50 = ((3, 4, 6, 3), (256, 512, 1024, 2048), 1000)  # blocks and channels of the stages, classes
SMALL = ((1, 1), (32, 64), 10)


class Block(nn.Module):
    """Three convolutions, and a shortcut past them."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        width = out_channels // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm(width), nn.ReLU()),
            *(nn.Conv2d(width, out_channels, 1, bias=False), nn.BatchNorm(out_channels)),
        )
        self.short = nn.Identity()
        if stride > 1 or channels != out_channels:
            conv = nn.Conv2d(channels, out_channels, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm(out_channels))

    def __call__(self, x: mx.array) -> mx.array:
        """Of images NHWC."""
        return nn.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """A residual network of bottlenecks."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int], classes: int) -> None:
        super().__init__()
        channels = widths[0] // 4
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            *(nn.BatchNorm(channels), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)),
        )
        self.stages = []
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for j in range(depth):
                self.stages.append(Block(channels, width, 2 if i and j == 0 else 1))
                channels = width
        self.linear = nn.Linear(channels, classes)

    def __call__(self, x: mx.array) -> mx.array:
        """The scores of the classes."""
        x = self.stem(x)
        for block in self.stages:
            x = block(x)
        return self.linear(x.mean(axis=(1, 2)))


def network(name: str, dtype: mx.Dtype, statistics: mx.distributed.Group | None) -> nn.Module:
    """A new network, the same in all processes, converted; its batch norms share the statistics of a group."""
    mx.random.seed(0)
    model = ResNet(*{"resnet50": RESNET_50, "small": SMALL}[name])
    model.set_dtype(dtype)
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm)):
        # Running averages stand still where a step is less than half of their last digit.
        norm.running_mean, norm.running_var = (v.astype(mx.float32) for v in (norm.running_mean, norm.running_var))
    mf.nn.convert(model, example=mx.zeros((1, 64, 64, 3), dtype), group=statistics)
    mx.eval(model.parameters())
    return model


def batch(size: int, pixels: int, classes: int, dtype: mx.Dtype, group: mx.distributed.Group) -> tuple[mx.array, ...]:
    """This process's images and labels, of random ones: ``size`` for each process."""
    mx.random.seed(1)
    images = mx.random.normal((size * group.size(), pixels, pixels, 3)).astype(dtype)
    labels = mx.random.randint(0, classes, (size * group.size(),))
    mine = slice(group.rank(), None, group.size())
    images, labels = mx.contiguous(images[mine]), mx.contiguous(labels[mine])
    mx.eval(images, labels)
    return images, labels


def stepper(
    model: nn.Module, images: mx.array, labels: mx.array, group: mx.distributed.Group, rate: float
) -> Callable[[], mx.array]:
    """What takes a step, without waiting for it, and returns the loss of this process's images."""
    optimizer = optim.SGD(rate, momentum=0.9)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state]
    mx.eval(state)

    def loss(images: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(images).astype(mx.float32), labels, reduction="mean")

    def train(images: mx.array, labels: mx.array) -> mx.array:
        value, grads = nn.value_and_grad(model, loss)(images, labels)
        optimizer.update(model, nn.average_gradients(grads, group))
        return value

    if mx.default_device() == mx.gpu:  # on a CPU MLX would call a C++ compiler
        train = mx.compile(train, inputs=state, outputs=state)

    def step() -> mx.array:
        value = train(images, labels)
        mx.async_eval(value, state)
        return value

    return step


def parser() -> argparse.ArgumentParser:
    """Of this program's arguments."""
    on_gpu = mx.default_device() == mx.gpu
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--network", choices=("resnet50", "small"), default="resnet50" if on_gpu else "small")
    found.add_argument("--batch", type=int, default=128 if on_gpu else 8, help="images of each process")
    found.add_argument("--pixels", type=int, default=224 if on_gpu else 32)
    found.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16" if on_gpu else "float32")
    found.add_argument("--steps", type=int, default=100)
    found.add_argument("--rate", type=float, default=0.01, help="of stochastic gradient descent")
    found.add_argument("--synchronised", action="store_true", help="batch norms have statistics of all processes")
    return found


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Trains, and returns the losses over the whole batch; rank 0 prints how fast that was."""
    args = parser().parse_args(arguments)
    if args.steps < 1:
        parser().error("argument --steps: there is no step")
    losses, start, dtype = [], 0.0, getattr(mx, args.dtype)
    group = mx.distributed.init()
    with mf.nn.watch_steps() as watch:
        model = network(args.network, dtype, group if args.synchronised else None)
        images, labels = batch(args.batch, args.pixels, model.linear.weight.shape[0], dtype, group)
        step = stepper(model, images, labels, group, args.rate)
        for i in tqdm(range(args.steps), disable=group.rank() > 0, mininterval=1):
            losses.append(step())
            if i % 10 == 9:  # launch some steps ahead, and not all
                mx.eval(losses[-5])
            if i == min(5, args.steps - 1):  # until here much is compiled
                mx.eval(losses)
                start = time.perf_counter()
            watch.step()
        mx.eval(model.state, losses)
        seconds = time.perf_counter() - start
        whole = mx.distributed.all_sum(mx.stack(losses), group=group) / group.size()
        mx.eval(whole)
    values: list[float] = whole.tolist()
    if group.rank() == 0:
        timed = args.steps - min(6, args.steps)
        speed = f"{timed * args.batch * group.size() / seconds:.0f} images/s" if timed else "too few steps to time"
        print(f"{group.size()} processes: {speed}, loss {values[0]:.4f} at first, {values[-1]:.4f} at last", flush=True)
    return values


if __name__ == "__main__":
    main()
