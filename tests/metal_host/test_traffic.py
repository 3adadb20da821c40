"""What every body loads and stores, counted in bytes over all threads, before caches: known before a Mac is.

"needed" is each input once. A bound is what the body's design costs and no more; results are stored once each, which
test_bodies.py asserts for every case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import pytest
from generic.ops import OPS
from support import numbers

import mpsfunc as mf
from metal_host.case import launched
from metal_host.geometry import LONG, LONG_IMAGE
from metal_host.host import Run, metal_host, needs_clang
from metal_host.runs import BODIES
from mpsfunc.channels import activation_launches, launches
from mpsfunc.channels.activation_spec import NO_ACTIVATION, PRELU, Activation

pytestmark = [needs_clang, pytest.mark.kernels]

TRAFFIC = {body: loads for op in OPS.values() for body, loads in op.loads.items()}


def _affine() -> None:
    x, rows = numbers(LONG), numbers((1, LONG[-1]))
    arrays = {"x": x, "mean": rows, "scale": rows, "shift": rows}
    launched(arrays, ((LONG, mx.float32),), launches.bn_normalize(x, 1, NO_ACTIVATION))


def _prelu() -> None:
    x, dy, slopes = numbers(LONG), numbers(LONG, seed=1), numbers(LONG[-1:], seed=2)
    act, like = Activation(PRELU), ((LONG, mx.float32),)
    launched({"x": x, "slopes": slopes}, like, activation_launches.neuron(x, act, slopes=True))
    launched({"dy": dy, "x": x, "slopes": slopes}, like, activation_launches.grad(x, act, slopes=True))


def _by_channels() -> None:
    x, dy, row = numbers(LONG), numbers(LONG, seed=1), numbers((1, 1, 1, 16))
    mf.dropout(x, mask=row > 0)
    mf.multiply(x, row)
    mf.arithmetic_grad(dy, x, row, "multiply", minimum=-1.0, clamp=True)
    mf.compare(x, row)


@functools.cache
def runs(call: Callable[[], None]) -> tuple[Run, ...]:
    with metal_host() as host:
        call()
    return tuple(host.runs)


@pytest.mark.parametrize("body", ["neuron", "neuron_grad"])
def test_slopes_are_loaded_once_an_element(body: str) -> None:
    run = next(run for run in runs(_prelu) if run.stage.body == body)
    assert run.outcome.traffic["slopes"].loaded <= LONG_IMAGE


def test_statistics_that_are_given_are_no_scales() -> None:
    """The scale comes divided already, and nobody loads the variance."""
    run = next(run for run in runs(_affine) if run.stage.body == "bn_normalize")
    loaded = {name: run.outcome.traffic[name].loaded for name in run.stage.inputs}
    assert loaded["var"] == 0 and loaded["x"] <= LONG_IMAGE
    assert max(loaded[name] for name in ("mean", "scale", "shift")) <= LONG_IMAGE / 4


@pytest.mark.parametrize("body", BODIES)
def test_loads_stay_within_their_bounds(body: str) -> None:
    assert body in TRAFFIC, f"no record says what {body} may load of each input"
    row = TRAFFIC[body]
    run = next(run for run in runs(row.call) if run.stage.body == body)
    inputs = {buffer.name: buffer.bytes for buffer in run.job.buffers if buffer.name in run.stage.inputs}
    assert inputs == {name: needed for name, (needed, _) in row.bytes.items()}
    for name, (_, bound) in row.bytes.items():
        assert run.outcome.traffic[name].loaded <= bound + 0.5, name


@pytest.mark.parametrize("body", ["dropout_by_mask", "arithmetic", "arithmetic_grad", "compare"])
def test_what_pixels_share_is_loaded_beside_each_pack(body: str) -> None:
    """From a cache: as many bytes as the image has."""
    run = next(run for run in runs(_by_channels) if run.stage.body == body)
    for name in {"mask", "x", "y", "dy"} & set(run.stage.inputs):
        assert run.outcome.traffic[name].loaded <= LONG_IMAGE, name


# Windows that do not overlap: 13 pixels leave one behind them.
APART = (2, 12, 13, 16)


def _apart() -> None:
    dy = numbers((2, 6, 6, 16))
    x = numbers(APART)
    mf.avg_pool(x, 2)
    mf.avg_pool_grad(dy, mf.avg_pool_state(APART, 2))
    _, maxima = mf.max_pool_fwd(x, 2)
    mf.max_pool_grad(dy, maxima)
    _, norms = mf.l2_pool_fwd(x, 2)
    mf.l2_pool_grad(dy, x, norms)


@pytest.mark.parametrize(
    "body", ["avg_pool", "avg_pool_grad_tile", "max_pool", "max_pool_grad_tile", "l2_pool", "l2_pool_grad_tile"]
)
def test_windows_that_do_not_overlap_are_loaded_once(body: str) -> None:
    run = next(run for run in runs(_apart) if run.stage.body == body)
    for buffer in run.job.buffers:
        if buffer.name in run.stage.inputs:
            assert run.outcome.traffic[buffer.name].loaded <= buffer.bytes, buffer.name
