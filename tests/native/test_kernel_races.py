"""Kernels from several threads at once under the thread sanitizer, in a process that knows neither Python nor MLX."""

from __future__ import annotations

import functools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from native.cxx import HERE, PRIMITIVES, SANITIZED, compile_, drive, needs_compiler
from support import numbers

import mpsfunc as mf
from mpsfunc.core import launch

pytestmark = [needs_compiler, pytest.mark.needs_cpu_module, pytest.mark.kernels]

FAMILIES = ("conv", "batch_norm", "avg_pool", "dropout", "parallel")  # the longest to compile first
DRIVER = HERE / "kernels_driver.cpp"
KERNELS = set(re.findall(r"X\((\w+)\)", DRIVER.read_text().partition("#define RECORDED(X)")[2].partition("\n\n")[0]))
FLAGS = (*SANITIZED, "-g1", "-DMPSF_ISA=tested", "-ffp-contract=fast", "-fno-math-errno")
# In the order of Type in call.h.
TYPES = [mx.float32, mx.float16, mx.bfloat16, mx.float64, mx.int64, mx.uint64, mx.uint8, mx.uint16, mx.uint32]


class Recorder:
    """Stands for the module of primitives, and writes down what the driver's kernels are called with."""

    def __init__(self) -> None:
        self.calls = list[bytes]()
        self.names = set[str]()

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name)

    def _call(self, name: str, arrays: list[mx.array], params: list[int], shapes: Any, dtypes: Any, stream: Any) -> Any:
        tensors = [(a.dtype, a.shape) for a in arrays] + list(zip(dtypes, shapes, strict=True))
        words = [len(params), len(arrays), len(shapes), *params]
        for dtype, shape in tensors:
            words += [TYPES.index(dtype), len(shape), *shape]
        data = b"".join(np.array(a.reshape(-1).view(mx.uint8)).tobytes() for a in arrays)
        if name in KERNELS:
            self.calls.append(f"{name} {' '.join(map(str, words))}\n".encode() + data)
            self.names.add(name)
        return getattr(launch._primitives, name)(arrays, params, shapes, dtypes, stream)


def training_step(dtype: mx.Dtype) -> list[Any]:
    """Calls of every recorded kernel, with chunks enough for several threads."""
    x, dy, w = numbers((3, 13, 12, 20), dtype), numbers((3, 13, 12, 24), dtype, 1), numbers((24, 3, 3, 20), seed=2)
    b, gamma, key = numbers((24,), seed=3), numbers((20,), seed=4), mx.array([1, 2], mx.uint32)
    pooled, windows = mf.avg_pool_fwd(x, 3, stride=2, padding=1)
    norm = mf.bn_stats(x)
    y, conv = mf.conv_fwd(mf.bn_normalize(x, norm, gamma), w, b, padding=1)
    norm = mf.bn_stats_grad(x, x, norm, gamma)
    kept, mask = mf.dropout_fwd(x, keep_probability=0.6, key=key)
    strided, far = mf.conv_fwd(x, w, b, stride=2)
    alone, apart = mf.conv_fwd(x, numbers((20, 3, 3, 1), seed=5), groups=20, padding=1)
    few, of_few = mf.conv_transpose_fwd(x[:, :2, :2], numbers((24, 4, 4, 20), seed=6), stride=2)
    return [
        *(pooled, mf.avg_pool_grad(pooled, windows), y, mf.bn_grad(x, x, norm, gamma), kept, mf.dropout_grad(x, mask)),
        *(mf.conv_grad_input(dy, w, conv), *mf.conv_grad_weights(dy, x, conv).arrays[:2]),
        *(mf.conv_grad_input(strided, w, far), *mf.conv_grad_weights(strided, x, far).arrays[:2]),
        *mf.conv_grad_weights(alone, x, apart).arrays[:2],
        *(few, *mf.conv_transpose_grad_weights(few, x[:, :2, :2], of_few).arrays[:2]),
        *(
            mf.dropout(x, keep_probability=0.5, mask=x > 0),
            mf.dropout_mask((3, 13, 12, 20), keep_probability=0.5, key=key),
        ),
        mx.grad(lambda b: (mf.conv(x, w, b) ** 2).sum())(b),
        *mx.vjp(lambda *by: mf.batch_norm(*by, neuron="relu"), [x, gamma, gamma], [x])[1],
        *mx.jvp(mx.grad(lambda x: (mf.batch_norm(x, gamma) * x).sum()), [x], [x])[1],
    ]


def record(to: Path) -> Path:
    """What Python hands the kernels, in a file that the driver reads."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch, mx.stream(mx.cpu):
        patch.setattr(launch, "module", lambda op: recorder)
        for dtype in (mx.float32, mx.bfloat16):
            mx.eval(training_step(dtype))
    assert recorder.names == KERNELS
    to.write_bytes(b"".join(recorder.calls))
    return to


def linked(objects: dict[str, Path], to: Path) -> Path:
    first, *others = objects.values()
    return compile_(first, to, "-pthread", *SANITIZED, *map(str, others))


# Memory that each chunk has for itself, made one that all threads share; and a pool that hands on nothing of what its
# threads wrote.
FAULTS = {
    "dropout": ("Scratch<Byte> room(Random::room());", "static Scratch<Byte> room(Random::room());"),
    "parallel": ("fetch_sub(1, std::memory_order_release)", "fetch_sub(1, std::memory_order_relaxed)"),
}


def test_kernels_have_no_races_and_a_race_would_be_seen(tmp_path: Path) -> None:
    sources = {name: next(PRIMITIVES.rglob(f"{name}.cpp")) for name in FAMILIES} | {"driver": DRIVER}
    with ThreadPoolExecutor(2) as both:
        made = both.map(lambda item: compile_(item[1], tmp_path / f"{item[0]}.o", "-c", *FLAGS), sources.items())
        objects = dict(zip(sources, made, strict=True))
    calls = str(record(tmp_path / "calls"))
    done = drive(linked(objects, tmp_path / "right"), calls)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 2 * len(KERNELS)

    for name, (right, wrong) in FAULTS.items():
        source = sources[name].read_text()
        assert source.count(right) == 1
        faulty = tmp_path / f"{name}.cpp"
        faulty.write_text(source.replace(right, wrong))
        built = compile_(faulty, tmp_path / f"wrong_{name}.o", "-c", *FLAGS)
        done = drive(linked(objects | {name: built}, tmp_path / "wrong"), calls)
        assert done.returncode != 0, name
        assert "ThreadSanitizer: data race" in done.stderr, name
