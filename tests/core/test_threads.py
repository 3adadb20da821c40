"""Several threads at once, several streams in one, and forked processes: always the bits that one thread computes.

`make properties` keeps the threads at it for 30 seconds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import numbers, same_bits_for_threads

import mpsfunc as mf
from mpsfunc.core import launch

Arrays = Sequence[mx.array]
THREADS = 8
SECONDS = 30 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 4

IMAGE, WEIGHTS = (4, 20, 18, 16), (24, 3, 3, 16)
FOREIGN = r"There is no Stream\(\w+, \d+\) in current thread"


def with_gradients(f: Callable[..., mx.array], differentiated: int) -> Callable[..., list[mx.array]]:
    """What f returns, and the gradients of its square by the first arguments."""
    argnums = tuple(range(differentiated))
    pull = mx.grad(lambda *arrays: (f(*arrays).astype(mx.float32) ** 2).sum(), argnums=argnums)

    def call(*arrays: mx.array) -> list[mx.array]:
        slopes = pull(*arrays)
        return [f(*arrays), *(slopes if isinstance(slopes, tuple) else (slopes,))]

    return call


def by_hand(dy: mx.array, x: mx.array, w: mx.array, gamma: mx.array) -> list[mx.array]:
    """A normalization and a convolution, forward and backward by the explicit functions and their states."""
    norm = mf.bn_stats(x)
    y, conv = mf.conv_fwd(mf.bn_normalize(x, norm, gamma), w, padding=1, neuron="relu")
    pooled, winners = mf.max_pool_fwd(y, 2)
    dz, conv = mf.conv_grad(mf.max_pool_grad(dy, winners), x, w, conv)
    assert dz is not None
    norm = mf.bn_stats_grad(dz, x, norm, gamma)
    return [pooled, mf.bn_grad(dz, x, norm, gamma), *conv.arrays[:2], *norm.arrays]


def shared(c: int = 16) -> dict[str, tuple[Callable[..., list[mx.array]], list[mx.array]]]:
    """What all threads compute, and the arrays that all of them read."""
    shapes = ((*IMAGE[:3], c), (c + 8, 3, 3, c), (c + 8,), (c,), (c,))
    x, w, b, gamma, beta = (numbers(shape, seed=i) for i, shape in enumerate(shapes))
    key, labels = mx.array([1, 2], mx.uint32), mx.array(np.arange(4 * 20 * 18).reshape(4, 20, 18) % c)
    half = [a.astype(mx.bfloat16) for a in (x, w, b)]
    dy = numbers((4, 10, 9, c + 8), seed=9)

    def conv(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return mf.conv(x, w, b, stride=2, padding=1, neuron="relu")

    def loss(x: mx.array) -> mx.array:
        return mf.loss_value(x, labels, "softmax_cross_entropy", "mean")

    made: dict[str, tuple[Callable[..., list[mx.array]], list[mx.array]]] = {
        "conv": (with_gradients(conv, 3), [x, w, b]),
        "conv in bfloat16": (with_gradients(conv, 3), half),
        "conv by itself": (with_gradients(lambda x, w: mf.conv(x, w, padding=1), 2), [x, w]),
        "batch_norm": (with_gradients(mf.batch_norm, 3), [x, gamma, beta]),
        "avg_pool": (with_gradients(lambda x: mf.avg_pool(x, 3, stride=2, padding=1), 1), [x]),
        "max_pool": (with_gradients(lambda x: mf.max_pool(x, 3, stride=2, padding=1), 1), [x]),
        "l2_pool": (with_gradients(lambda x: mf.l2_pool(x, 2), 1), [x]),
        "dropout": (with_gradients(lambda x: mf.dropout(x, keep_probability=0.7, key=key), 1), [x]),
        "loss": (with_gradients(loss, 1), [x]),
        "upsample_bilinear": (with_gradients(lambda x: mf.upsample_bilinear(x, 2), 1), [x]),
        "add": (with_gradients(lambda x, g: mf.add(x, g.reshape(1, 1, 1, -1), primary_scale=2.0), 2), [x, gamma]),
        "by hand": (by_hand, [dy, x, w, gamma]),
    }
    mx.eval([arrays for _, arrays in made.values()], key, labels)
    return made


def bits(arrays: Arrays) -> list[bytes]:
    mx.eval(arrays)
    return [np.array(a.reshape(-1).view(mx.uint8)).tobytes() for a in arrays]


def together(task: Callable[[int], None], count: int = THREADS) -> None:
    """Runs a task in so many threads that begin at once, and raises what one of them raised."""
    begin, raised = threading.Barrier(count), list[BaseException]()

    def run(i: int) -> None:
        begin.wait()
        try:
            task(i)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.fixture(autouse=True)
def thread_count() -> Iterator[None]:
    """Puts back the number of threads."""
    if launch._primitives is None:
        yield
        return
    before = mf.get_num_threads()
    yield
    mf.set_num_threads(before)


# Threads ------------------------------------------------------------------------------------------------


@pytest.mark.programs
def test_threads_at_once_get_the_bits_of_one(device: mx.Device) -> None:
    cases = shared()
    compiled = {name: mx.compile(f) for name, (f, _) in cases.items()}  # each thread traces them for itself
    expected = {name: bits(f(*arrays)) for name, (f, arrays) in cases.items()}
    traced = {name: bits(mx.compile(f)(*arrays)) for name, (f, arrays) in cases.items()}
    end = time.monotonic() + SECONDS

    def work(thread: int) -> None:
        order, rounds = random.Random(thread), 0
        with mx.stream(device):
            while rounds < 2 or time.monotonic() < end:
                if launch._primitives is not None:
                    mf.set_num_threads(1 + (thread + rounds) % 4)  # for all, in the middle of their work
                for name in order.sample(list(cases), len(cases)):
                    f, arrays = cases[name]
                    plain = (thread + rounds) % 2 == 0
                    assert bits((f if plain else compiled[name])(*arrays)) == (expected if plain else traced)[name], (
                        name
                    )
                rounds += 1

    together(work)
    assert all(bits(f(*arrays)) == expected[name] for name, (f, arrays) in cases.items())


def test_errors_in_some_threads_leave_the_others_right(device: mx.Device) -> None:
    cases = shared()
    expected = {name: bits(f(*arrays)) for name, (f, arrays) in cases.items()}
    x, w = cases["conv by itself"][1]
    pending, elsewhere = mf.avg_pool(x, 2), mx.new_stream(device)

    def fail() -> None:
        with pytest.raises(ValueError, match="^avg_pool: window does not fit"):
            mf.avg_pool(x, 99)
        for foreign in (pending, mf.conv(x, w, stream=elsewhere), mf.batch_norm(x) + pending.sum()):
            with pytest.raises(RuntimeError, match=FOREIGN):
                mx.eval(foreign)

    def work(thread: int) -> None:
        with mx.stream(device):
            for _ in range(3):
                for name, (f, arrays) in cases.items():
                    if thread % 2:
                        fail()
                    assert bits(f(*arrays)) == expected[name], name

    together(work)
    assert bits([pending]) == bits([mf.avg_pool(x, 2)])  # here, where it was made


def test_arrays_that_are_evaluated_may_go_from_thread_to_thread(device: mx.Device) -> None:
    x = numbers(IMAGE)
    made: list[mx.array] = []

    def make(_: int) -> None:
        with mx.stream(device):
            made.append(mf.max_pool(x, 2))
            mx.eval(made)

    together(make, 1)  # has ended, and its stream with it
    (expected,) = bits([mf.avg_pool(mf.max_pool(x, 2), 2)])
    assert bits([mf.avg_pool(made[0], 2)]) == [expected]


def test_what_a_thread_leaves_unevaluated_is_nothing_to_others(device: mx.Device) -> None:
    cases = shared(13)  # of a size that nothing was computed for, so that whatever is kept for it is of that thread
    pending: list[Arrays] = []

    def describe(_: int) -> None:
        with mx.stream(device):
            pending.extend(f(*arrays) for f, arrays in cases.values())

    def work(_: int) -> None:
        with mx.stream(device):
            for name, (f, arrays) in cases.items():
                assert bits(f(*arrays)) == expected[name], name

    together(describe, 1)
    expected = {name: bits(f(*arrays)) for name, (f, arrays) in cases.items()}
    together(work)


# Streams ------------------------------------------------------------------------------------------------


def test_streams_at_once_get_the_bits_of_one(device: mx.Device) -> None:
    cases = shared()
    expected = {name: bits(f(*arrays)) for name, (f, arrays) in cases.items()}
    graphs: list[tuple[str, list[mx.array]]] = []
    for stream in [mx.new_stream(device) for _ in range(3)]:
        with mx.stream(stream):
            graphs += [(name, f(*arrays)) for name, (f, arrays) in cases.items()]
    mx.eval([outs for _, outs in graphs])  # nothing before this, so all streams have work at once
    for name, outs in graphs:
        assert bits(outs) == expected[name], name


def test_a_network_over_several_streams_gets_the_bits_of_one(device: mx.Device) -> None:
    x, w = numbers(IMAGE), numbers(WEIGHTS, seed=1)
    streams = [mx.new_stream(device) for _ in range(4)]

    def network(streams: list[Any]) -> Callable[..., list[mx.array]]:
        def f(x: mx.array, w: mx.array) -> mx.array:
            y = mf.conv(x, w, padding=1, stream=streams[0])
            y = mf.batch_norm(y, neuron="relu", stream=streams[1])
            y = mf.max_pool(y, 2, stream=streams[2])
            return mf.softmax(mf.dropout(y, seed=3, stream=streams[3]), stream=streams[0])

        return with_gradients(f, 2)

    expected = bits(network([None] * 4)(x, w))
    for _ in range(10):
        random.Random(0).shuffle(streams)
        assert bits(network(streams)(x, w)) == expected


def test_a_thread_local_stream_can_be_given(device: mx.Device) -> None:
    local, x = mx.new_thread_local_stream(device), numbers(IMAGE)
    pull = mx.compile(mx.grad(lambda x: (mf.avg_pool(x, 2, stream=local) ** 2).sum()))
    expected, meant = bits([pull(x)]), set[str]()

    def work(_: int) -> None:
        with mx.stream(device):
            for _ in range(20):
                assert bits([pull(x)]) == expected
            own = launch.resolve(local)
            assert own == launch.resolve(local) != mx.default_stream(device)
            meant.add(str(own))

    together(work)
    assert len(meant) == THREADS  # a stream of each thread's own
    assert launch.resolve(local).device == device


# Processes ----------------------------------------------------------------------------------------------

# Its child of each way exits with 0 where it gets the bits of its parent, and is killed where it waits too long.
FORKED = """
import os, signal, sys, threading
import mlx.core as mx, numpy as np
import mpsfunc as mf

mx.set_default_device(mx.cpu)
mf.set_num_threads(2)
x, w = mx.random.normal((4, 20, 18, 16)), mx.random.normal((24, 3, 3, 16))
pull = mx.grad(lambda x, w: (mf.batch_norm(mf.conv(x, w, padding=1)) ** 3).sum(), argnums=(0, 1))

def step():
    return [np.array(a).tobytes() for a in pull(x, w)]

def on_a_stream_of_its_own():
    with mx.stream(mx.new_stream(mx.cpu)):
        return step()

def in_a_thread_of_its_own():
    made = []
    thread = threading.Thread(target=lambda: made.append(step()))
    thread.start()
    thread.join()
    return made[0]

before = step()
for way, seconds in ((on_a_stream_of_its_own, 60), (in_a_thread_of_its_own, 60), (step, 1)):
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        os._exit(0 if way() == before else 1)
    status = os.waitpid(child, 0)[1]
    print(way.__name__, -os.WTERMSIG(status) or os.WEXITSTATUS(status), step() == before)
"""


@pytest.mark.needs_cpu_module
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_needs_a_stream_of_its_own() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "on_a_stream_of_its_own 0 True",
        "in_a_thread_of_its_own 0 True",
        "step -14 True",  # an inherited one has no thread behind it: MLX waits for ever
    ]


@pytest.mark.needs_cpu_module
def test_bits_that_depend_on_the_number_of_threads_are_found(threads: Callable[[int], None]) -> None:
    same_bits_for_threads(threads, lambda: [mx.array([1.0, float("nan")])])
    with pytest.raises(AssertionError, match=r"arrays \[1\] have other bits with 3 threads than with 1"):
        same_bits_for_threads(threads, lambda: [mx.zeros(3), mx.array(mf.get_num_threads() > 2)])
    with pytest.raises(AssertionError):
        same_bits_for_threads(threads, list)


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_every_thread_has_its_processors_back() -> None:
    """The threads that wake for work, and those that wait for it, are moved for a moment only.

    In a process of its own: of several that sleep, those that are not woken stay away until they are.
    """
    told = subprocess.run([sys.executable, "-c", PROCESSORS], check=True, capture_output=True, text=True)
    assert told.stdout.split() == ["True", "True"]


PROCESSORS = """
import os, time
import mlx.core as mx
import mpsfunc as mf

mx.set_default_device(mx.cpu)
mf.set_num_threads(2)
allowed, x = os.sched_getaffinity(0), mx.ones((8, 32, 32, 64))
for _ in range(5):
    time.sleep(0.01)  # the pool's threads fall asleep
    mx.eval(mf.relu(x))
time.sleep(0.01)
threads = [int(each) for each in os.listdir("/proc/self/task")]
print(len(threads) > 1, all(os.sched_getaffinity(each) == allowed for each in threads))
"""
