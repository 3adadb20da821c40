"""What one process of several computes for test_distributed.py, which launches this file, and what one alone computes.

As a script: ``distributed_worker.py FOLDER`` saves the results of every case to ``FOLDER/RANK.npz``, and
``distributed_worker.py FOLDER "as by NCCL"`` those of the messages that go through NCCL;
``distributed_worker.py FOLDER train`` the losses of the example to ``FOLDER/RANK.json``;
``distributed_worker.py FOLDER HOW WHO`` has one process go, and the others write down what they then see.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import across_processes
import mlx.core as mx
import numpy as np
from support import numbers

import mpsfunc as mf
from mpsfunc.normalization import across_processes as normalization_across_processes
from mpsfunc.normalization import nccl_messages

Arrays = dict[str, mx.array]

# Images of each process, by the size of the group: one may have none.
SHARDS: dict[int, tuple[int, ...]] = {1: (7,), 2: (5, 2), 4: (3, 1, 0, 3)}
DTYPES = {"float32": mx.float32, "float64": mx.float64, "bfloat16": mx.bfloat16}
SHAPE, CHANNELS, EPS = (7, 3, 2, 5), 5, 0.1

# How a result of all processes is made of theirs. Names begin with it.
WAYS = ("images", "same", "added")  # one after the other; equal in all, to the bit; the sum of all


def data(dtype: mx.Dtype, size: int, rank: int) -> Arrays:
    """This process's part of the batch, far from zero in some channels, and what all have in common."""
    begin = sum(SHARDS[size][:rank])
    mine = slice(begin, begin + SHARDS[size][rank])
    offset = mx.array([0, 1, -3, 10, 100]).astype(dtype)
    images = {name: numbers(SHAPE, dtype, seed)[mine] for seed, name in enumerate(("dy", "w", "t", "u"))}
    stack = numbers((3, *SHAPE), dtype, 7)[:, mine] + offset
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    vectors = {name: numbers((CHANNELS,), wide, seed) for seed, name in enumerate(("gamma", "beta", "a", "b"), 10)}
    return {"x": numbers(SHAPE, dtype, 5)[mine] + offset, "stack": stack, **images, **vectors}


def results(dtype: mx.Dtype, size: int, rank: int, group: Any) -> Arrays:
    """Every case's results; a group of one, or None, has the whole batch."""
    d = data(dtype, size, rank)
    x, dy, gamma, beta = d["x"], d["dy"], d["gamma"], d["beta"]
    found: Arrays = {}

    def keep(case: str, way: str, **values: mx.array) -> None:
        assert way in WAYS
        found.update({f"{way} {case} {name}": value for name, value in values.items()})

    def keep_state(case: str, state: mf.BatchNormState) -> None:
        keep(case, "same", **{name: getattr(state, name) for name in state._fields[:5]})

    # The four functions, and again in two parts.
    state = mf.bn_stats(x, eps=EPS, group=group)
    keep("explicit", "images", y=mf.bn_normalize(x, state, gamma, beta))
    state = mf.bn_stats_grad(dy, x, state, gamma, beta, group=group)
    keep_state("explicit", state)
    keep("explicit", "images", dx=mf.bn_grad(dy, x, state, gamma, beta))
    cut = (x.shape[0] + 1) // 2
    parts = [(x[:cut], dy[:cut]), (x[cut:], dy[cut:])]
    whole = None
    for some, _ in parts:
        whole = mf.bn_stats(some, whole, eps=EPS, group=group)
    for some, their_dy in parts:
        whole = mf.bn_stats_grad(their_dy, some, whole, gamma, beta, group=group)
    keep_state("parts", whole)

    y, own = mf.batch_norm_fwd(x, gamma, beta, eps=EPS, group=group)
    keep_state("fwd", own)
    keep("fwd", "images", y=y)
    if dtype == mx.bfloat16:
        return found

    def norm(x: mx.array, *vectors: mx.array) -> mx.array:
        return mf.batch_norm(x, *vectors, eps=EPS, group=group)

    def loss(x: mx.array, gamma: mx.array, beta: mx.array) -> mx.array:
        return (d["w"] * norm(x, gamma, beta) ** 3).sum()

    def of_statistics(x: mx.array) -> mx.array:
        state = mf.bn_stats(x, eps=EPS, group=group)
        return ((d["a"] * state.mean) ** 2 + d["b"] * mx.sqrt(state.var + 1)).sum() / size

    def of_both(x: mx.array) -> mx.array:
        y, state = mf.batch_norm_fwd(x, gamma, beta, eps=EPS, group=group)
        return (d["w"] * y**3).sum() + (d["a"] * state.mean + d["b"] * state.var**2).sum() / size

    def by_hand(x: mx.array) -> mx.array:
        state = mf.bn_stats(x, eps=EPS, group=group)
        state = mf.bn_stats_grad(dy, x, state, gamma, beta, group=group)
        return (d["w"] * mf.bn_grad(dy, x, state, gamma)).sum()

    def twice(f: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
        return mx.grad(lambda x: (d["u"] * mx.grad(f)(x)).sum())

    dx, dgamma, dbeta = mx.grad(loss, argnums=(0, 1, 2))(x, gamma, beta)
    keep("grad", "images", dx=dx)
    keep("grad", "added", dgamma=dgamma, dbeta=dbeta)
    keep("grad", "images", statistics=mx.grad(of_statistics)(x), both=mx.grad(of_both)(x), by_hand=mx.grad(by_hand)(x))
    for name, function in {
        "loss": lambda x: loss(x, gamma, beta),
        "statistics": of_statistics,
        "both": of_both,
    }.items():
        keep("second", "images", **{name: twice(function)(x)})

    def of_a_sum(x: mx.array, added: mx.array) -> mx.array:
        y = mf.batch_norm(x, gamma, beta, eps=EPS, add=added, neuron="relu", group=group)
        return (d["w"] * y**2).sum()

    y = mf.batch_norm(x, gamma, beta, eps=EPS, add=d["t"], neuron="relu", group=group)
    dx, dt = mx.grad(of_a_sum, argnums=(0, 1))(x, d["t"])
    keep("sum", "images", y=y, dx=dx, dt=dt)

    # MLX calls a compiler for each of a few kernels, so this is for one group and dtype.
    simple = mx.grad(lambda x: (d["w"] * norm(x, gamma, beta)).sum())
    keep("compiled", "images", dx=(mx.compile(simple) if size == 2 and dtype == mx.float32 else simple)(x))

    (y,), (ty,) = mx.jvp(norm, [x, gamma, beta], [d["t"], d["a"], d["b"]])
    keep("jvp", "images", y=y, ty=ty)
    _, tangents = mx.jvp(lambda x: mf.bn_stats(x, eps=EPS, group=group).arrays[:2], [x], [d["t"]])
    keep("jvp", "same", tmean=tangents[0], tvar=tangents[1])

    mapped = mx.vmap(lambda x: norm(x, gamma, beta))(d["stack"])
    keep("vmap", "images", y=mx.moveaxis(mapped, 0, -1))
    mapped = mx.vmap(lambda x: mx.grad(loss)(x, gamma, beta))(d["stack"])
    keep("vmap", "images", dx=mx.moveaxis(mapped, 0, -1))
    mean, var, count = mx.vmap(lambda x: mf.bn_stats(x, group=group).arrays[:3])(d["stack"])
    keep("vmap", "same", mean=mean, var=var, count=count)
    return found


def numpy(value: mx.array) -> np.ndarray:
    return np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value)


# Processes ----------------------------------------------------------------------------------------------


def compute(folder: Path, group: Any) -> None:
    # One evaluation for everything: what the processes have in common must happen in one order in all of them.
    found = {name: results(dtype, group.size(), group.rank(), group) for name, dtype in DTYPES.items()}
    mx.eval(found)
    saved = {f"{dtype} {name}": numpy(value) for dtype, cases in found.items() for name, value in cases.items()}
    np.savez(folder / f"{group.rank()}.npz", **saved)


def merged_rows(rows: mx.array, like: mx.array, stream: mx.Stream) -> tuple[mx.array, ...]:
    """What a kernel does on GPUs; tests/metal_host runs that."""
    parts = mx.split(rows, rows.shape[0])  # mx.vmap has no right rule for rows[0]
    means, variances, highs, lows = ([part.reshape(like.shape) for part in parts[i::4]] for i in range(4))
    counts = [high * 2**16 + low for high, low in zip(highs, lows, strict=True)]
    whole = mx.maximum(sum(counts), 1)
    mean = means[0] + sum(n / whole * (m - means[0]) for n, m in zip(counts, means, strict=True))
    spread = (n / whole * (v + (m - mean) ** 2) for n, v, m in zip(counts, variances, means, strict=True))
    return mean, sum(spread), sum(counts).astype(mx.int64)


def go(how: str) -> None:
    """Leaves the group in the given way."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exits":
        sys.exit(0)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "sleeps":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(60)


def survive(folder: Path, group: Any, how: str, who: int) -> None:
    """Takes steps of a training until one fails, then tries again, and notes what happened and when."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it to all that are left when one fails
    rank = group.rank()
    if how == "sleeps":  # as with a backend whose connections nobody knows
        normalization_across_processes._connections = lambda size: []
    x = numbers((2, 2, 2, 3), seed=rank)

    def gradient(x: mx.array) -> mx.array:
        return mx.grad(lambda x: (mf.batch_norm(x, group=group) ** 3).sum())(x)

    # What is compiled looks at the group anew when it runs, without Python.
    state = mf.bn_frozen(mx.zeros(3), mx.ones(3))
    compiled = mx.compile(lambda x: mf.bn_stats_grad(x, x, state, group=group).dbeta)
    step = compiled if how == "exits" else gradient
    for _ in range(3):
        mx.eval(step(x))
    if rank == who:
        if (folder / "alive").exists():
            os.open(folder / "alive", os.O_WRONLY)  # which the system closes, like all connections
        (folder / "leaving").touch()
        go(how)
    noted: dict[str, Any] = {}
    for attempt in ("first", "second", "third"):
        begun = time.monotonic()
        try:
            mx.eval(step(x))
            noted[attempt] = "no error"
        except RuntimeError as error:
            noted[attempt] = str(error)
        noted[f"{attempt} at"] = time.monotonic()  # the same clock in all processes
        noted[f"{attempt} seconds"] = noted[f"{attempt} at"] - begun
    noted["alone"] = mx.eval(mf.batch_norm(x)) is None  # what needs nobody else still works
    mx.eval(mf.batch_norm(x))
    partial = folder / f"{rank}.part"
    partial.write_text(json.dumps(noted))
    partial.rename(folder / f"{rank}.json")


def disagree(folder: Path, group: Any) -> None:
    """Has the processes evaluate in different orders."""
    x = numbers((2, 2, 2, 3))
    pair = [mf.bn_stats(x, group=group).mean, mf.bn_stats(x[..., :2], group=group).mean]
    message = "no error"
    try:
        for mean in pair if group.rank() == 0 else pair[::-1]:
            mx.eval(mean)
    except RuntimeError as error:
        message = str(error)
    (folder / f"{group.rank()}.txt").write_text(message)


@contextmanager
def own_compiled_code(folder: Path) -> Iterator[None]:
    """Has MLX write what it compiles to a folder of this process, or two processes would write and read it at once.

    It begins with what earlier groups have finished, which MLX keeps from run to run as well.
    """
    kept = Path(tempfile.gettempdir(), f"mpsfunc tests of {os.getuid()}", mx.__version__)
    own = folder / "mlx" / mx.__version__ / "cpu"
    for each in (kept, own):
        each.mkdir(parents=True, exist_ok=True)
    for library in kept.glob("*.so"):
        (own / library.name).symlink_to(library)
    os.environ["TMPDIR"] = str(folder)
    yield
    for library in own.glob("*.so"):
        if not library.is_symlink():
            part = kept / f"of {os.getpid()}"
            shutil.copyfile(library, part)
            part.replace(kept / library.name)  # nobody sees a part of it


def main(folder: Path, *how: str) -> None:
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    with own_compiled_code(folder / f"compiled {group.rank()}"):
        act(folder, group, *how)


def act(folder: Path, group: Any, *how: str) -> None:
    if not how:
        compute(folder, group)
    elif how[0] == "as by NCCL":
        nccl_messages.are_sent, nccl_messages.merged_rows = (lambda stream: True), merged_rows
        compute(folder, group)
    elif how[0] == "train":
        (folder / f"{group.rank()}.json").write_text(json.dumps(across_processes.main()))
    elif how[0] == "disagree":
        disagree(folder, group)
    else:
        survive(folder, group, how[0], int(how[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
