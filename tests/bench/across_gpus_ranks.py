"""One rank of a group: ``python -m tests.bench.across_gpus_ranks LIBRARY OPTIONS`` takes steps when it is told to.

A line of JSON comes for each request, and one goes for each answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import across_gpus_groups

WARM, RATE = 3, 0.002
OWN, SYNCHRONISED = "own statistics", "synchronised"
LOSSES = {
    "steps": 20,
    "images": 64,
    "pixels": 64,
    "rate": 0.005,
}  # of the small network: those of ResNet-50 go apart by rounding alone


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
    losses: Callable[[], list[float]]


def of_mlx(options: Options) -> Steps:
    """Ours: the example."""
    import mlx.core as mx
    import train_across_gpus as example

    mx.set_default_device(mx.gpu if options.on_gpu else mx.cpu)
    group = mx.distributed.init(strict=int(os.environ["WORLD_SIZE"]) > 1)
    assert group.size() == int(os.environ["WORLD_SIZE"]), f"a group of {group.size()}"
    dtype = getattr(mx, options.dtype)
    classes = example.RESNET_50[2] if options.network == "resnet50" else example.SMALL[2]
    data = example.batch(options.batch, options.pixels, classes, dtype, group)
    steps: dict[str, Callable[[], Any]] = {}
    last: list[Any] = []

    def step(kind: str) -> None:
        if kind not in steps:
            model = example.network(options.network, dtype, group if kind == SYNCHRONISED else None)
            steps[kind] = example.stepper(model, *data, group, RATE)
        last[:] = [steps[kind]()]

    def wait() -> None:
        mx.eval(last)
        mx.synchronize()

    def losses() -> list[float]:
        mine = int(LOSSES["images"]) // group.size()
        data = example.batch(mine, int(LOSSES["pixels"]), example.SMALL[2], mx.float32, group)
        take = example.stepper(example.network("small", mx.float32, group), *data, group, LOSSES["rate"])
        found = mx.stack([take() for _ in range(int(LOSSES["steps"]))])
        values: list[float] = (mx.distributed.all_sum(found, group=group) / group.size()).tolist()
        return values

    return Steps(step, wait, mx.get_peak_memory, mx.reset_peak_memory, losses)


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
            if kind == SYNCHRONISED:
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

    def losses() -> list[float]:
        raise NotImplementedError

    return Steps(step, wait, peak, reset_peak, losses)


def main() -> None:
    """Answers until no request comes."""
    library = sys.argv[1]
    options = Options(**json.loads(sys.argv[2]))
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
            answer({"losses": steps.losses()})
            continue
        for _ in range(WARM):
            steps.step(request["kind"])
        steps.wait()
        steps.reset_peak()
        start, count = time.perf_counter(), request["steps"]
        for _ in range(count):
            steps.step(request["kind"])
        launched = time.perf_counter() - start
        steps.wait()
        seconds = time.perf_counter() - start
        answer({"seconds": seconds / count, "launched": launched / count, "peak": steps.peak()})


def answer(what: dict[str, Any]) -> None:
    """To the process that measures."""
    print(across_gpus_groups.MARK + json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
