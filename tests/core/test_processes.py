"""How programs use the package: workers of data loaders, event loops, threads that come and go, compiled functions that
are kept. Everything gets the bits that one thread of one process computes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support import numbers, program

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.core import launch

IMAGE, WEIGHTS = (2, 12, 10, 8), (6, 3, 3, 8)


def step(x: mx.array, w: mx.array) -> list[mx.array]:
    """Some operations forward and backward."""

    def loss(x: mx.array, w: mx.array) -> mx.array:
        y = mf.max_pool(mf.batch_norm(mf.conv(x, w, padding=1, neuron="relu")), 2)
        return (mf.softmax(y) ** 2).sum()

    return [loss(x, w), *mx.grad(loss, argnums=(0, 1))(x, w)]


def bits(arrays: list[mx.array]) -> list[bytes]:
    mx.eval(arrays)
    return [np.array(a.reshape(-1).view(mx.uint8)).tobytes() for a in arrays]


def arguments(seed: int = 0, shape: tuple[int, ...] = IMAGE, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    x, w = numbers(shape, dtype, seed=seed), numbers(WEIGHTS, dtype, seed=seed + 1)
    mx.eval(x, w)
    return x, w


# Workers ------------------------------------------------------------------------------------------------

# A loader as in PyTorch: workers take numbers of batches from one queue and put the batches, in NumPy's arrays, into
# another, a few ahead of the training that the parent does meanwhile. There are two rounds of new workers.
LOADER = """
import multiprocessing, sys
import mlx.core as mx, numpy as np
import mpsfunc as mf

BATCHES, WORKERS, AHEAD = 12, 3, 5

def batch(index):
    x = mx.array(np.random.default_rng(index).standard_normal((2, 18, 16, 4)).astype(np.float32))
    return np.array(mf.spatial_norm(mf.avg_pool(mf.resize_bilinear(x, (24, 20)), 2), 3))

def work(wanted, made):
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(mx.new_stream(mx.cpu))  # a forked child has none of its own
    for index in iter(wanted.get, None):
        made.put((index, batch(index)))

def train(x, w):
    loss = lambda w: (mf.batch_norm(mf.conv(x, w, padding=1)) ** 3).mean()
    return w - 0.01 * mx.grad(loss)(w)

def main():
    mx.set_default_device(mx.cpu)
    mf.set_num_threads(2)
    start = mx.array(np.random.default_rng(99).standard_normal((5, 3, 3, 4)).astype(np.float32))
    expected = start
    for index in range(BATCHES):  # all in this process, which so has threads, streams and memory before it forks
        expected = train(mx.array(batch(index)), expected)
        mx.eval(expected)
    context = multiprocessing.get_context(sys.argv[1])
    for _ in range(2):
        wanted, made, w, waiting = context.Queue(), context.Queue(), start, {}
        workers = [context.Process(target=work, args=(wanted, made)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for index in range(AHEAD):
            wanted.put(index)
        for index in range(BATCHES):
            while index not in waiting:
                came, values = made.get(timeout=100)
                waiting[came] = values
            if index + AHEAD < BATCHES:
                wanted.put(index + AHEAD)
            w = train(mx.array(waiting.pop(index)), w)
            mx.eval(w)
        for _ in workers:
            wanted.put(None)
        for worker in workers:
            worker.join(100)
        print([worker.exitcode for worker in workers], np.array(w).tobytes() == np.array(expected).tobytes())

if __name__ == "__main__":
    main()
"""


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("start", ("spawn", "fork", "forkserver"))
def test_workers_of_a_data_loader(start: str, tmp_path: Path) -> None:
    if not hasattr(os, "fork") and start != "spawn":
        pytest.skip("no fork on this system")
    assert program(tmp_path, LOADER, start).splitlines() == ["[0, 0, 0] True"] * 2


# Event loops --------------------------------------------------------------------------------------------


def test_an_event_loop(device: mx.Device) -> None:
    expected = [bits(step(*arguments(seed))) for seed in range(6)]

    async def awaited(seed: int) -> list[bytes]:
        """Described, given way, then evaluated: in the loop's own thread that is one thread's work."""
        made = step(*arguments(seed))
        await asyncio.sleep(0)
        return bits(made)

    def called(seed: int) -> list[bytes]:
        with mx.stream(device):
            return bits(step(*arguments(seed)))

    async def begun(seed: int) -> list[bytes]:
        made = step(*arguments(seed))
        mx.async_eval(made)
        await asyncio.sleep(0.001)
        return bits(made)

    async def main() -> list[list[list[bytes]]]:
        loop, ways = asyncio.get_running_loop(), []
        with ThreadPoolExecutor(3) as pool:
            for _ in range(3):
                in_pool = [loop.run_in_executor(pool, called, seed) for seed in range(6)]
                by_default = [asyncio.to_thread(called, seed) for seed in range(6)]
                here = [awaited(seed) for seed in range(6)]
                async_eval = [begun(seed) for seed in range(6)]
                made = await asyncio.gather(*in_pool, *by_default, *here, *async_eval)
                ways += [made[i : i + 6] for i in range(0, 24, 6)]
        return ways

    for way in asyncio.run(main()):
        assert way == expected


def test_a_task_that_is_cancelled_leaves_the_others_right(device: mx.Device) -> None:
    expected = bits(step(*arguments()))

    async def work() -> list[bytes]:
        made = step(*arguments())
        mx.async_eval(made)
        await asyncio.sleep(0)
        return bits(made)

    async def main() -> list[list[bytes]]:
        tasks = [asyncio.create_task(work()) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(done[i], asyncio.CancelledError) for i in range(0, 8, 2))
        return [each for each in done if not isinstance(each, BaseException)]

    assert asyncio.run(main()) == [expected] * 4


# Threads that come and go -------------------------------------------------------------------------------

# MLX keeps a thread of the system for each stream of the CPU, and so for each thread of Python that evaluated: what
# these functions add must be that alone. Memory is what arrays hold and what the process has.
SHORT = """
import os, sys, threading
import mlx.core as mx, numpy as np
import mpsfunc as mf

mx.set_default_device(mx.cpu)
mf.set_num_threads(3)
x = mx.array(np.random.default_rng(0).standard_normal((4, 20, 18, 16)).astype(np.float32))
w = mx.array(np.random.default_rng(1).standard_normal((24, 3, 3, 16)).astype(np.float32))
mx.eval(x, w)

def ours():
    loss = lambda x, w: (mf.softmax(mf.batch_norm(mf.conv(x, w, padding=1, neuron="relu"))) ** 2).sum()
    return mx.grad(loss, argnums=(0, 1))(x, w)

def stock():
    loss = lambda x, w: (mx.softmax(mx.maximum(mx.conv2d(x, w, padding=1), 0), axis=-1) ** 2).sum()
    return mx.grad(loss, argnums=(0, 1))(x, w)

function = {"ours": ours, "stock": stock}[sys.argv[1]]
expected = [np.array(a).tobytes() for a in function()]
wrong = []

def work():
    if [np.array(a).tobytes() for a in function()] != expected:
        wrong.append(threading.get_ident())

def measured():
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/task")), resident, mx.get_active_memory()

def come_and_go(count):
    for _ in range(count // 4):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

come_and_go(40)
mx.clear_cache()
before = measured()
come_and_go(400)
mx.clear_cache()
print(len(wrong), *[after - was for after, was in zip(measured(), before)])
"""


@pytest.mark.programs
@pytest.mark.needs_cpu_module
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system")
def test_hundreds_of_short_threads_leave_nothing_of_ours(tmp_path: Path) -> None:
    wrong, threads, resident, active = map(int, program(tmp_path, SHORT, "ours").split())
    _, stock_threads, stock_resident, _ = map(int, program(tmp_path, SHORT, "stock").split())
    assert (wrong, active) == (0, 0)
    assert threads <= stock_threads == 400  # one of MLX's own for each
    assert resident <= stock_resident + 16 * 2**20  # 40 KB a thread


# The number of threads ----------------------------------------------------------------------------------


@pytest.mark.needs_cpu_module
def test_the_number_of_threads_changes_while_others_work(on_cpu: mx.Device) -> None:
    before, ended = mf.get_num_threads(), threading.Event()
    x, w = arguments(shape=(8, 40, 36, 8))  # of many chunks, so that an evaluation sees several numbers
    expected = bits(step(x, w))
    wrong: list[int] = []
    changes = 0

    def work(rounds: int) -> None:
        with mx.stream(mx.cpu):
            for i in range(rounds):
                if bits(step(x, w)) != expected:
                    wrong.append(i)

    def evaluate() -> None:
        try:
            work(30)
        finally:
            ended.set()

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        while not ended.is_set():
            for count in (1, 2, 64, 3, 1, 17):
                mf.set_num_threads(count)
                assert mf.get_num_threads() == count
                changes += 1
            with pytest.raises(ValueError, match="^set_num_threads: "):
                mf.set_num_threads(0)
            assert mf.get_num_threads() == 17
            work(1)
        for thread in threads:
            thread.join()
    finally:
        mf.set_num_threads(before)
    assert not wrong and changes >= 6


# Graphs that are kept -----------------------------------------------------------------------------------

SHAPES = ((2, 12, 10, 8), (1, 7, 9, 8), (3, 12, 10, 8), (2, 12, 10, 8), (5, 4, 4, 8), (1, 7, 9, 8))


def kept_programs() -> dict[str, tuple[Callable[..., list[mx.array]], Callable[..., list[mx.array]]]]:
    """What is compiled once and used ever after, and what it should be."""
    x, w = graph.ImageNode("x"), numbers(WEIGHTS)
    mx.eval(w)
    network = graph.compile(graph.softmax(graph.relu(graph.avg_pool(x, 3))))

    def by_graph(x: mx.array, _: mx.array) -> list[mx.array]:
        image, _, _ = network({}, {"x": x})
        return [image]

    def plain(x: mx.array, _: mx.array) -> list[mx.array]:
        return [mf.softmax(mf.relu(mf.avg_pool(x, 3, padding=mf.PaddingPolicy(), edge_mode="clamp")))]

    return {
        "a function": (mx.compile(step), step),
        "a network": (by_graph, plain),
        "a compiled network": (mx.compile(by_graph), plain),
    }


def test_compiled_functions_are_used_again(device: mx.Device) -> None:
    programs = kept_programs()
    count = None if launch._primitives is None else mf.get_num_threads()
    dtypes = (mx.float32, mx.bfloat16, mx.float16) + (() if device == mx.Device(mx.gpu) else (mx.float64,))

    def check(rounds: int) -> None:
        with mx.stream(device):
            for i in range(rounds):
                for shape in SHAPES:
                    given = arguments(i, shape, dtypes[i % len(dtypes)])
                    for name, (kept, plain) in programs.items():
                        for a, b in zip(kept(*given), plain(*given), strict=True):
                            assert a.dtype == b.dtype and a.shape == b.shape, name
                            near = {mx.float64: 1e-12, mx.float32: 1e-5}.get(a.dtype, 0.05)
                            wide = mx.float64 if device == mx.Device(mx.cpu) else mx.float32
                            assert mx.allclose(a.astype(wide), b.astype(wide), near, near), (name, shape, a.dtype)

    try:
        check(5)
        for threads in (1, 3, 2):
            if count is not None:
                mf.set_num_threads(threads)
            check(2)
        raised: list[BaseException] = []

        def elsewhere() -> None:
            try:
                check(2)
            except BaseException as error:
                raised.append(error)

        others = [threading.Thread(target=elsewhere) for _ in range(4)]
        for thread in others:
            thread.start()
        check(2)
        for thread in others:
            thread.join()
        assert raised == []
        check(1)
    finally:
        if count is not None:
            mf.set_num_threads(count)
