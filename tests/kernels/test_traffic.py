"""What every body loads and stores, counted in bytes over all threads, before caches: known before a Mac is.

"needed" is each input once. A bound is what the body's design costs and no more; results are stored once each, which
test_bodies.py asserts for every case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest
from support import numbers

import mpsfunc as mf
from mpsfunc import _launch
from kernels.metal_host import metal_host, needs_clang
from kernels.test_bodies import BODIES

pytestmark = needs_clang

SHAPE = (2, 12, 12, 16)
IMAGE, VECTOR = 2 * 12 * 12 * 16 * 4, 16 * 4
LONG = (1, 64, 64, 16)  # for sums, where a thread has 64 pixels to go over
LONG_IMAGE, LONG_THREADS = 64 * 64 * 16 * 4, 256


def _pool() -> None:
    mf.avg_pool(numbers(SHAPE), 3, stride=2, padding=1)


def _pool_grad() -> None:
    mf.avg_pool_grad(numbers((2, 6, 6, 16)), mf.avg_pool_state(SHAPE, 3, stride=2, padding=1))


def _norm() -> None:
    x, dy = numbers(LONG), numbers(LONG, seed=1)
    with mock.patch.object(_launch, "_FILL", 1):
        state = mf.bn_stats_grad(dy, x, mf.bn_stats(x))
    mf.bn_normalize(x, state)
    mf.bn_grad(dy, x, state)


def _conv() -> None:
    x, w = numbers(SHAPE), numbers((16, 3, 3, 16))
    y, state = mf.conv_fwd(x, w, padding=1)
    mf.conv_grad_input(y, w, state)
    mf.conv_grad_weights(y, x, state)


def _bias() -> None:
    state = mf.conv_state(LONG, (16, 1, 1, 16))
    with mock.patch.object(_launch, "_FILL", 1):
        mf.conv_grad_weights(numbers(LONG), numbers(LONG), state)


class Row(NamedTuple):
    call: Callable[[], None]
    loads: dict[str, tuple[int, int]]  # array: bytes needed, bytes at most


TRAFFIC: dict[str, Row] = {}


@pytest.mark.parametrize("body", BODIES)
def test_loads_stay_within_their_bounds(body: str) -> None:
    row = TRAFFIC[body]
    with metal_host() as host:
        row.call()
    run = next(run for run in host.runs if run.stage.body == body)
    inputs = {buffer.name: buffer.bytes for buffer in run.job.buffers if buffer.name in run.stage.inputs}
    assert inputs == {name: needed for name, (needed, _) in row.loads.items()}
    for name, (_, bound) in row.loads.items():
        assert run.outcome.traffic[name].loaded <= bound, name
