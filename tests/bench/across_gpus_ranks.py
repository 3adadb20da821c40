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

WARM, RATE = 5, 0.002
OWN, SYNCHRONISED = "own", "synchronised"
LOSSES = {"steps": 20, "images": 64, "pixels": 64, "rate": 0.005}


class Options(NamedTuple):
    """What is trained."""

    network: str
    batch: int
    pixels: int
    dtype: str
    on_gpu: bool


class Steps(NamedTuple):
    """What a library offers."""

    begin: Callable[[str], Callable[[], None]]  # a new model with statistics of that kind; the result launches a step
    wait: Callable[[], None]
    peak: Callable[[], int]
    reset_peak: Callable[[], None]
    set_ahead: Callable[[float], None] | None = None  # MPSFUNC_RUN_AHEAD, which is ours alone
    losses: Callable[[], list[float]] | None = None  # which are only compared with our own


def of_mlx(options: Options) -> Steps:
    """Ours: the example."""
    import mlx.core as mx
    import train_across_gpus as example

    from mpsfunc.core import launch

    mx.set_default_device(mx.gpu if options.on_gpu else mx.cpu)
    group = mx.distributed.init(strict=int(os.environ["WORLD_SIZE"]) > 1)
    assert group.size() == int(os.environ["WORLD_SIZE"]), f"a group of {group.size()}"
    dtype = getattr(mx, options.dtype)
    classes = example.RESNET_50[2] if options.network == "resnet50" else example.SMALL[2]
    data = example.batch(options.batch, options.pixels, classes, dtype, group)
    last: list[Any] = []

    def begin(kind: str) -> Callable[[], None]:
        model = example.network(options.network, dtype, group if kind == SYNCHRONISED else None)
        take = example.stepper(model, *data, group, RATE)

        def step() -> None:
            last[:] = [take()]

        return step

    def wait() -> None:
        mx.eval(last)
        mx.synchronize()

    def set_ahead(percent: float) -> None:
        module = launch.optional_module()
        assert module is not None, launch.without_module()
        if options.on_gpu:
            assert module.set_run_ahead(percent / 100), "launches are not counted"
        mx.clear_cache()

    def losses() -> list[float]:
        mine = int(LOSSES["images"]) // group.size()
        data = example.batch(mine, int(LOSSES["pixels"]), example.SMALL[2], mx.float32, group)
        take = example.stepper(example.network("small", mx.float32, group), *data, group, LOSSES["rate"])
        found = mx.stack([take() for _ in range(int(LOSSES["steps"]))])
        values: list[float] = (mx.distributed.all_sum(found, group=group) / group.size()).tolist()
        return values

    return Steps(begin, wait, mx.get_peak_memory, mx.reset_peak_memory, set_ahead, losses)


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

    def begin(kind: str) -> Callable[[], None]:
        torch.manual_seed(0)
        model: nn.Module = twins.ResNet(*arguments)
        if kind == SYNCHRONISED:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.to(device=device, dtype=dtype, memory_format=torch.channels_last).train()
        if size > 1:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).float(), targets).backward()
            optimizer.step()

        return step

    def wait() -> None:
        if options.on_gpu:
            torch.cuda.synchronize()

    def peak() -> int:
        return int(torch.cuda.max_memory_allocated()) if options.on_gpu else 0

    def reset_peak() -> None:
        if options.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    return Steps(begin, wait, peak, reset_peak)


def settings() -> str:
    """What importing mpsfunc chose."""
    import mpsfunc as mpsfunc  # first, as users do: it has a say in how MLX launches
    from mpsfunc.core import launch, mlx_settings

    chosen = ", ".join(f"{name}={value}" for name, value in mlx_settings.chosen.items())
    return f"{chosen or 'as in the environment'}; {launch.without_module() or 'with the C++ module'}"


def turn(steps: Steps, step: Callable[[], None], count: int) -> dict[str, float]:
    """Seconds of a step, and until it was launched, and bytes, over steps that are launched ahead."""
    for _ in range(WARM):
        step()
    steps.wait()
    steps.reset_peak()
    start = time.perf_counter()
    for _ in range(count):
        step()
    launched = time.perf_counter() - start
    steps.wait()
    seconds = time.perf_counter() - start
    return {"seconds": seconds / count, "launched": launched / count, "peak": steps.peak()}


def main() -> None:
    """Answers until no request comes."""
    library, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    said = settings() if library == "mpsfunc" else ""
    steps = of_mlx(options) if library == "mpsfunc" else of_torch(options)
    step: Callable[[], None] | None = None
    answer({"settings": said})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "losses":
            assert steps.losses
            answer({"losses": steps.losses()})
        elif request["do"] == "begin":
            step = None  # frees the model before
            step = steps.begin(request["kind"])
            for _ in range(2):  # compile
                step()
                steps.wait()
            answer({})
        else:
            assert step
            if request["ahead"] is not None:
                assert steps.set_ahead
                steps.set_ahead(request["ahead"])
            answer(turn(steps, step, request["steps"]))


def answer(what: dict[str, Any]) -> None:
    """To the process that measures."""
    print(across_gpus_groups.MARK + json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
