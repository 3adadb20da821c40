"""One rank of a group: ``python -m tests.bench.across_gpus_ranks LIBRARY OPTIONS`` takes steps when it is told to.

A line of JSON comes for each request, and one goes for each answer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import across_gpus_groups

WARM, LOSSES, RATE = 3, 20, 0.002
OWN, SYNCHRONISED = "own statistics", "synchronised"
COMPILED = "one function"  # the step of one process as a whole, or of several with MLX's average_gradients in it
# Ways to train with statistics of each process's own, or where the name ends so, with synchronised ones.
VARIANTS = (
    "after, default stream",  # MLX's average_gradients behind the backward pass
    "after, own stream",
    COMPILED,
    "during, default stream",
    "during, 4 MB",
    "during, 8 MB",
    "during, 128 MB",
    "during, together on own stream",  # gradients are put together there, too
    "during, own communicator",
    "during, own communicator, synchronised",
    "no communication",  # what a step of several processes costs where none waits for another
)


class Options(NamedTuple):
    """What is trained."""

    network: str
    batch: int
    pixels: int
    dtype: str
    kinds: tuple[str, ...]
    on_gpu: bool


class Steps(NamedTuple):
    """What a library offers."""

    step: Callable[[str], None]  # launches one
    wait: Callable[[], None]
    peak: Callable[[], int]
    reset_peak: Callable[[], None]
    losses: Callable[[int, int], list[float]]  # of so many images of so many pixels


def of_mlx(options: Options) -> Steps:
    """Ours."""
    import mlx.core as mx
    import train_across_gpus as example

    mx.set_default_device(mx.gpu if options.on_gpu else mx.cpu)
    group = mx.distributed.init(strict=int(os.environ["WORLD_SIZE"]) > 1)
    assert group.size() == int(os.environ["WORLD_SIZE"]), f"a group of {group.size()}"
    dtype = getattr(mx, options.dtype)
    classes = example.RESNET_50[2] if options.network == "resnet50" else example.SMALL[2]
    images, labels = example.batch(options.batch, options.pixels, classes, dtype, group)
    steps: dict[str, Callable[[], Any]] = {}
    last: list[Any] = []

    def step(kind: str) -> None:
        if kind not in steps:
            model = example.network(options.network, dtype, group if kind.endswith(SYNCHRONISED) else None)
            steps[kind] = _mlx_stepper(kind, model, images, labels, group)
        last[:] = [steps[kind]()]

    def wait() -> None:
        mx.eval(last)
        mx.synchronize()

    def losses(size: int, pixels: int) -> list[float]:
        model = example.network(options.network, mx.float32, group)
        data = example.batch(size // group.size(), pixels, classes, mx.float32, group)
        take = example.stepper(model, *data, example.averaging(group), RATE)
        found = [take() for _ in range(LOSSES)]
        mx.eval(found)
        return [float(each.item()) for each in found]

    def reset_peak() -> None:
        mx.reset_peak_memory()

    return Steps(step, wait, mx.get_peak_memory, reset_peak, losses)


def _mlx_stepper(kind: str, model: Any, images: Any, labels: Any, group: Any) -> Callable[[], Any]:
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    import train_across_gpus as example

    import mpsfunc as mf

    words = kind.split(", ")
    if kind in (OWN, SYNCHRONISED):
        return example.stepper(model, images, labels, example.averaging(group), RATE)
    stream = mx.new_stream(mx.gpu) if mx.default_device() == mx.gpu else None
    if words[0] == "no communication":
        return example.stepper(model, images, labels, lambda grads: grads, RATE)
    if kind == COMPILED:
        optimizer = optim.SGD(RATE, momentum=0.9)
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        mx.eval(state)

        def loss() -> Any:
            scores = model(images).astype(mx.float32)
            return nn.losses.cross_entropy(scores, labels, reduction="mean")

        def train() -> Any:
            value, grads = nn.value_and_grad(model, loss)()
            optimizer.update(model, nn.average_gradients(grads, group))
            return value

        compiled = mx.compile(train, inputs=state, outputs=state) if mx.default_device() == mx.gpu else train

        def step() -> Any:
            value = compiled()
            mx.async_eval(value, state)
            return value

        return step

    def average(grads: Any) -> Any:
        if words[0] == "after":
            own = stream if words[1] == "own stream" else None
            return nn.average_gradients(grads, group, communication_stream=own)
        if words[1] == "together on own stream":
            return _together_on(stream, grads, group)
        megabytes = float(words[1].removesuffix(" MB")) if words[1].endswith(" MB") else 32
        own = None if words[1] == "default stream" else stream
        return mf.nn.average_gradients(grads, communicator, int(megabytes * 2**20), own)

    communicator = group.split(0) if "own communicator" in words else group
    return example.stepper(model, images, labels, average, RATE)


def _together_on(stream: Any, grads: Any, group: Any) -> Any:
    """As ours, but that the stream of the sums puts gradients together."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten

    ours = importlib.import_module("mpsfunc.nn.gradient_averaging")
    flat, averages = tree_flatten(grads), {}
    for paths in ours._buckets(flat, 32 * ours.MEBIBYTE):
        bucket = [(path, array) for path, array in flat if path in paths]
        mx.async_eval([array for _, array in bucket])
        with mx.stream(stream or mx.default_stream(mx.default_device())):
            together = mx.concatenate([array.reshape(-1) for _, array in bucket])
            average = mx.distributed.all_sum(together, group=group, stream=stream) / group.size()
            mx.async_eval(average)
        end = 0
        for path, array in bucket:
            averages[path] = average[end : end + array.size].reshape(array.shape)
            end += array.size
    return tree_unflatten([(path, averages[path]) for path, _ in flat])


def of_torch(options: Options) -> Steps:
    """PyTorch's, images channels last, weights in the dtype; DistributedDataParallel where there are several ranks."""
    import torch
    from models import twins
    from torch import nn

    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    device = "cuda" if options.on_gpu else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if size > 1:
        torch.distributed.init_process_group("nccl" if options.on_gpu else "gloo", rank=rank, world_size=size)
    torch.manual_seed(rank)
    dtype = getattr(torch, options.dtype)
    arguments = () if options.network == "resnet50" else ((1, 1), (32, 64), True, 10)
    x = torch.randn(options.batch, 3, options.pixels, options.pixels)
    x = x.contiguous(memory_format=torch.channels_last).to(device, dtype)
    targets = torch.randint(0, 10, (options.batch,), device=device)
    made: dict[str, tuple[Any, Any]] = {}

    def step(kind: str) -> None:
        if kind not in made:
            torch.manual_seed(0)
            model: nn.Module = twins.ResNet(*arguments)
            if kind == SYNCHRONISED and size > 1:
                model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
            model = model.to(device=device, dtype=dtype, memory_format=torch.channels_last).train()
            if size > 1:
                model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            made[kind] = model, torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
        model, optimizer = made[kind]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float(), targets).backward()
        optimizer.step()

    def wait() -> None:
        if options.on_gpu:
            torch.cuda.synchronize()

    def peak() -> int:
        return int(torch.cuda.max_memory_allocated()) if options.on_gpu else 0

    def reset_peak() -> None:
        if options.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def losses(size: int, pixels: int) -> list[float]:
        raise NotImplementedError

    return Steps(step, wait, peak, reset_peak, losses)


def main() -> None:
    """Answers until no request comes."""
    library = sys.argv[1]
    given = json.loads(sys.argv[2])
    options = Options(**{**given, "kinds": tuple(given["kinds"])})
    settings = ""
    if library == "mpsfunc":
        import mpsfunc as mpsfunc  # first, as users do: it has a say in how MLX launches
        from mpsfunc.core import launch, mlx_settings

        chosen = ", ".join(f"{name}={value}" for name, value in mlx_settings.chosen.items())
        settings = f"{chosen or 'as in the environment'}; {launch.without_module() or 'with the C++ module'}"
    steps = of_mlx(options) if library == "mpsfunc" else of_torch(options)
    for kind in options.kinds:
        for _ in range(2):  # compile
            steps.step(kind)
            steps.wait()
    answer({"settings": settings})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "losses":
            answer({"losses": steps.losses(request["size"], request["pixels"])})
            continue
        for _ in range(WARM):
            steps.step(request["kind"])
        steps.wait()
        steps.reset_peak()
        start = time.perf_counter()
        for _ in range(request["steps"]):
            steps.step(request["kind"])
        launched = time.perf_counter() - start
        steps.wait()
        seconds = time.perf_counter() - start
        count = request["steps"]
        answer({"seconds": seconds / count, "launched": launched / count, "peak": steps.peak()})


def answer(what: dict[str, Any]) -> None:
    """To the process that measures."""
    print(across_gpus_groups.MARK + json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
