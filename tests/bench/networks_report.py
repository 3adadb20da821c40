"""The tables of whole training steps."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from . import report
from .networks import (
    COMPILED,
    CONVERTED,
    EAGER,
    GPU_PROCESSES,
    GPU_STEPS,
    GPU_WARM,
    JAX,
    PROCESSES,
    SLOW_ROUNDS,
    STEPS,
    STOCK,
    WITH_GRAPHS,
    Result,
)  # fmt: skip
from .stats import median, paired

_SIDES = """The small network has six 3x3 convolutions of 64, 64, 128, 128, 256 and 256 channels with batch
normalization and ReLU, a 3x3 average pooling of stride 2 behind each second one, a mean over the image and a linear
layer; ResNet-20 is He's for CIFAR, with projections. Images are 32x32x3; the loss is cross-entropy, and the optimizer
SGD with momentum 0.9. *mpsfunc* is MLX's model after `mpsfunc.nn.convert`; the steps of both are compiled by
`mx.compile`.

Every side has a process of its own, and they take turns, {rounds} in all, begun anew {processes} times. """
_CPU = (
    _SIDES
    + """A turn is one
step that is not counted, since threads have slept and caches hold other things, and then the mean of {steps}; sides
slower than a second a step take single steps in {slow} turns. Ratios are medians of pairs with a bootstrap interval of
95 %. The first steps of all start from the same weights on the same images, and their losses have to agree to 2 %. No
side has more than two threads. Written by `python -m tests.bench.networks`.

Memory is the growth of a process's VmHWM from the imports over building and the first three steps, and of these steps
alone, once everything is built (PyTorch imports a good deal of itself while it builds an optimizer; MLX keeps the
buffers that it has let go of for later); of {processes} processes the least."""
)
_GPU = (
    _SIDES
    + """A turn is {warm}
steps that are not counted and then the mean of {steps}; nobody waits for a step before the last (`mx.async_eval` in
MLX), so that what Python does for one runs beside the GPU's work on another. Ratios are medians of pairs with a
bootstrap interval of 95 %. The first steps of all start from the same weights on the same images, and their losses have
to agree to 2 % in float32 and 5 % in bfloat16. Float32 is with TensorFloat-32 for all; in bfloat16 images, parameters,
running statistics and the optimizer's state are bfloat16. PyTorch runs with cuDNN's benchmark mode. *With CUDA
graphs* is the same program with `MLX_USE_CUDA_GRAPHS=1` in its environment, which is what MLX does by itself and stock
MLX has; importing mpsfunc sets it to 0. Written by `python -m tests.bench.networks --gpu`.

Memory is the peak of the library's allocator over building and the first steps."""
)


def write(folder: Path, results: Sequence[Result], rounds: int, commit: str = "") -> str:
    """Writes networks.md and networks.csv, or on a GPU networks_gpu."""
    commit = commit or report.commit()
    on_gpu = results[0].setting.device == "gpu"
    if on_gpu:
        from . import gpu  # which imports PyTorch

        facts = report.gpu_facts(commit, *gpu.card())
        name, title, method = "networks_gpu", "Whole networks on an NVIDIA GPU", _GPU
    else:
        from mpsfunc import _primitives

        facts = report.cpu_facts(commit, _primitives.isa(), threads=2)
        name, title, method = "networks", "Whole networks on the CPU", _CPU
    steps, processes = (GPU_STEPS, GPU_PROCESSES) if on_gpu else (STEPS, PROCESSES)
    method = method.format(rounds=rounds, slow=SLOW_ROUNDS, processes=processes, steps=steps, warm=GPU_WARM)
    times = [
        [*_what(each), name, f"{1e3 * median(seconds):.{1 + on_gpu}f}", f"{each.megabytes[name]:.0f}"]
        + ([] if on_gpu else [f"{each.stepping[name]:.0f}"])
        for each in results
        for name, seconds in each.seconds.items()
    ]
    learned = [
        [*_what(each), name, ", ".join(f"{loss:.4f}" for loss in curve)]
        for each in results
        for name, curve in each.curves.items()
    ]
    what = ["network", "batch", *["dtype"] * on_gpu]
    targets = [[*_what(each), *line] for each in results for line in _targets(each)]
    parts = [
        f"# {title}",
        report.picture(name, result(times, targets, len(what))),
        method,
        report.table(["machine", ""], facts.items()),
    ]
    parts += ["## Targets", report.table([*what, "against", "at least", "measured (95 %)", ""], targets)]
    columns = [*what, "side", "ms", "MB", *["MB, steps"] * (not on_gpu)]
    parts += ["## Milliseconds a step", report.table(columns, times)]
    parts += ["## Learning curves", report.table([*what, "side", "losses"], learned)]
    with report.opened(folder, f"{name}.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*what, "side", "round", "seconds"])
        for each in results:
            for rival, seconds in each.seconds.items():
                writer.writerows([*_what(each), rival, i, f"{s:.6f}"] for i, s in enumerate(seconds))
    return report.save(folder, name, parts)


def _what(of: Result) -> list[object]:
    setting = of.setting
    return [setting.network, setting.batch, *[setting.dtype] * (setting.device == "gpu")]


def _targets(of: Result) -> list[list[object]]:
    """Against the faster layout of PyTorch, stock MLX, PyTorch compiled, JAX, and itself with graphs; and memory."""
    on_gpu = of.setting.device == "gpu"
    eager = min(EAGER, key=lambda name: median(of.seconds[name]))
    lines: list[list[object]] = []
    stock = 60.0 if of.setting.network == "small" and not on_gpu else None
    rivals = ((eager, 1.0), (STOCK, stock), (COMPILED, None), (JAX, None), (WITH_GRAPHS, None))
    for rival, least in rivals:
        if rival in of.seconds:
            ratio = paired(of.seconds[rival], of.seconds[CONVERTED])
            verdict = "" if least is None else "met" if ratio.reaches(least) else "**missed**"
            measured = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            lines.append([rival, "" if least is None else f"{least:g} x", measured, verdict])
    for what, grown, most in (
        ("memory", of.megabytes, "" if on_gpu else "no more"),
        *[("memory of steps", of.stepping, "")] * (not on_gpu),
    ):
        mine, theirs = grown[CONVERTED], grown[eager]
        verdict = "" if not most else "met" if mine <= theirs else "**missed**"
        lines.append([f"{eager}, {what}", most, f"{mine:.0f} of {theirs:.0f} MB", verdict])
    return lines


def result(times: Sequence[Sequence[object]], targets: Sequence[Sequence[object]], what: int) -> str:
    """The main result in words, from the lines of the tables of times and targets, which begin with so many facts."""
    steps: dict[str, list[str]] = {}
    for line in times:
        network, batch, *dtype = line[:what]
        name, ms = line[what : what + 2]
        against = [target[what] for target in targets if list(target[:what]) == list(line[:what])]
        if name in (CONVERTED, WITH_GRAPHS) or (name in against and name in (*EAGER, STOCK)):
            known = " ".join([f"{network}, {batch} images", *[f"in {d}" for d in dtype]])
            steps.setdefault(known, []).append(f"{name} {ms}")
    said = "; ".join(f"{known}: {', '.join(taken)}" for known, taken in steps.items())
    met = [line[-1] == "met" for line in targets if line[-1]]
    return "; ".join([f"Milliseconds a training step: {said}"] + [report.counted(met, "targets")] * bool(met))
